//! Connect (Base 6.3): turns a connection into a queue of a controller.

use std::sync::Arc;

use nvmeof_wire::fabrics::{
    CNTLID_DYNAMIC, CONNECT_DATA_SIZE, Connect, ConnectData, ConnectError, ConnectResult,
};
use nvmeof_wire::zerocopy::FromBytes;
use nvmeof_wire::{Nqn, Sqe, Status};

use super::admin_queue::AdminQueue;
use super::io_queue::IoQueue;
use super::{Outcome, Queue, State, data, waiting};
use crate::Nanos;
use crate::controller::{Controller, NewController};
use crate::disposition::Disposition;
use crate::failure::Failure;
use crate::hosts::{QueueLease, QueueLeaseKind, QuotaContext, QuotaRefusal};
use crate::quiesce::{Association, QuiesceGuard};
use crate::subsystem::{Subsystem, SubsystemKind};

/// Bytes of a Connect command's data.
const DATA_LEN: u32 = 1024;
const _: () = assert!(DATA_LEN as usize == CONNECT_DATA_SIZE);

/// A Connect that the target accepts.
#[derive(Debug)]
pub(super) struct Accepted {
    state: Box<State>,
    guard: Option<QuiesceGuard>,
    cntlid: u16,
    entries: u32,
    flow_control: bool,
}

/// Parameters of a Connect, with parsed names.
#[derive(Debug)]
struct Request {
    command: Connect,
    host_id: [u8; 16],
    cntlid: u16,
    host_nqn: Nqn,
}

impl Queue {
    /// Handles a Connect command: requests its data.
    pub(super) fn begin_connect(&mut self, sqe: &Sqe, inline_len: u32) -> Result<Outcome, Failure> {
        let State::Fresh { connecting, .. } = &mut self.state else {
            return Err(Failure::CommandSequence);
        };
        if connecting.is_some() {
            return Err(Failure::CommandSequence);
        }
        Connect::parse(sqe).map_err(failure)?;
        let source = data::from_host(sqe, DATA_LEN, inline_len, self.transport)?;
        *connecting = Some(sqe.cid.get());
        Ok(Outcome::Receive { len: DATA_LEN, source })
    }

    /// Handles the data of a Connect command.
    pub(super) fn connect(
        &mut self,
        sqe: &Sqe,
        data: &[u8],
        now: Nanos,
    ) -> Result<Outcome, Failure> {
        let command = Connect::parse(sqe).map_err(failure)?;
        let (data, _) = ConnectData::ref_from_prefix(data).map_err(|_| Failure::DataTransfer)?;
        let subnqn = data.subnqn().map_err(failure)?;
        let request = Request {
            command,
            host_id: data.hostid,
            cntlid: data.cntlid.get(),
            host_nqn: data.hostnqn().map_err(failure)?,
        };
        // Held until the queue is part of a controller, so that no config change comes in between.
        let registry = self.target.registry();
        let subsystem = if subnqn.is_discovery() {
            Some(&registry.discovery)
        } else {
            registry.subsystems.get(&subnqn)
        };
        let unknown = Failure::ConnectSubsystem { offset: ConnectData::SUBNQN_OFFSET };
        let subsystem = subsystem.ok_or(unknown)?;
        if !subsystem.allows(&request.host_nqn) {
            return Err(Failure::ConnectHost);
        }
        if !registry.ports.contains_key(&self.port) {
            // The listener was removed after the connection came through it.
            return Err(Failure::ConnectBusy);
        }
        if command.qid == 0 && subsystem.kind == SubsystemKind::Nvm {
            let association = Association {
                subnqn: subnqn.clone(),
                host_nqn: request.host_nqn.clone(),
                host_id: request.host_id,
            };
            waiting::pass_barrier(&mut self.barrier, &self.target, subsystem, &association, now)?;
        }
        let kind = match (command.qid, subsystem.kind) {
            (0, SubsystemKind::Discovery) => QueueLeaseKind::Discovery,
            (0, SubsystemKind::Nvm) => QueueLeaseKind::Controller,
            _ => QueueLeaseKind::IoQueue,
        };
        let lists = || registry.lists(&request.host_nqn);
        let quota = QuotaContext { limits: &self.target.limits, lists: &lists, peer: &self.peer };
        let lease = self.target.hosts.lease(&request.host_nqn, kind, &quota, self.id);
        let lease = lease.map_err(|(why, had)| {
            let (host, subsystem) = (request.host_nqn.clone(), subnqn.clone());
            self.refused = Some(QuotaRefusal { host, subsystem, qid: command.qid, why, had });
            why
        })?;
        let (state, controller, guard) = if command.qid == 0 {
            let (state, controller) = self.connect_admin(subsystem, &request, lease, now)?;
            (state, controller, None)
        } else {
            let (state, controller, guard) = self.connect_io(subsystem, &request, lease)?;
            (state, controller, Some(guard))
        };
        Ok(Outcome::Connected(Accepted {
            state: Box::new(state),
            guard,
            cntlid: controller.cntlid,
            entries: command.entries,
            flow_control: !command.disable_sq_flow_control,
        }))
    }

    /// Turns the queue into the requested one, and completes the Connect by its rules.
    pub(super) fn accept(&mut self, cid: u16, accepted: Accepted) -> Disposition {
        self.state = *accepted.state;
        self.guard = accepted.guard;
        self.slots.settle(accepted.entries, accepted.flow_control);
        let result = ConnectResult {
            cntlid: accepted.cntlid,
            authentication: false,
            authentication_over_secure_channel: false,
        };
        let mut response = self.slots.complete(cid, Status::SUCCESS, result.encode());
        if !accepted.flow_control {
            // Reports that flow control is off, as requested (Base 6.3).
            response.cqe = response.cqe.with_sqhd(0xffff);
        }
        Disposition::Respond(response)
    }

    /// Creates a controller and its admin queue.
    fn connect_admin(
        &self,
        subsystem: &Arc<Subsystem>,
        request: &Request,
        lease: QueueLease,
        now: Nanos,
    ) -> Result<(State, Arc<Controller>), Failure> {
        let limits = self.target.limits;
        check_entries(request.command.entries, limits.admin_queue_depth())?;
        if request.cntlid != CNTLID_DYNAMIC {
            // With the dynamic controller model, a host cannot choose.
            return Err(in_data(ConnectData::CNTLID_OFFSET));
        }
        let new = NewController {
            key: self.target.next_key(),
            host_nqn: request.host_nqn.clone(),
            host_id: request.host_id,
            port: self.port,
            transport: self.transport,
            limits,
            kato_ms: request.command.kato_ms,
            hosts: Arc::clone(&self.target.hosts),
            quiescing: Arc::clone(&self.target.quiescing),
        };
        let notifier = Arc::clone(&self.target.notifier);
        let controller = subsystem
            .add_controller(|cntlid| Controller::new(cntlid, Arc::clone(subsystem), notifier, new))
            .ok_or(Failure::ConnectBusy)?;
        lease.taken_by(&controller);
        if let Some(address) = self.local_address {
            controller.set_local_address(address);
        }
        Ok((State::Admin(AdminQueue::new(Arc::clone(&controller), lease, now)), controller))
    }

    /// Creates an I/O queue of an existing controller.
    fn connect_io(
        &self,
        subsystem: &Subsystem,
        request: &Request,
        lease: QueueLease,
    ) -> Result<(State, Arc<Controller>, QuiesceGuard), Failure> {
        let Connect { qid, entries, .. } = request.command;
        check_entries(entries, self.target.limits.io_queue_depth())?;
        // Another controller can have this ID by now, so each of these errors can result from a
        // controller that has just ended.
        let gone = |offset| Failure::ConnectGone { offset };
        let wrong_controller = gone(ConnectData::CNTLID_OFFSET);
        let controller = subsystem.controller(request.cntlid).ok_or(wrong_controller)?;
        if controller.host_nqn != request.host_nqn {
            return Err(gone(ConnectData::HOSTNQN_OFFSET));
        }
        if controller.host_id != request.host_id {
            return Err(gone(ConnectData::HOSTID_OFFSET));
        }
        if controller.port != self.port {
            // An association uses one port of the subsystem (Base 3.3.2.2).
            return Err(wrong_controller);
        }
        if controller.is_discovery() {
            return Err(in_command(Connect::QID_OFFSET));
        }
        let incarnation = controller.incarnation();
        if incarnation & 1 == 0 {
            return Err(Failure::ConnectTooSoon);
        }
        let (counters, guard) = controller.add_io_queue(qid, incarnation)?;
        let queue = IoQueue::new(Arc::clone(&controller), lease, qid, counters, incarnation);
        Ok((State::Io(queue), controller, guard))
    }
}

/// Checks the queue size; SQSIZE, 0's based, is never 0, because a queue has at least two entries.
fn check_entries(entries: u32, most: u16) -> Result<(), Failure> {
    if (2..=u32::from(most)).contains(&entries) {
        Ok(())
    } else {
        Err(in_command(Connect::SQSIZE_OFFSET))
    }
}

fn failure(error: ConnectError) -> Failure {
    match error {
        ConnectError::Format(_) => Failure::ConnectFormat,
        ConnectError::Name { ipo, .. } => in_data(ipo),
    }
}

fn in_data(offset: u16) -> Failure {
    Failure::ConnectParameter { offset, in_data: true }
}

fn in_command(offset: u16) -> Failure {
    Failure::ConnectParameter { offset, in_data: false }
}
