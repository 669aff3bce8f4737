//! Connect (Base 6.3): turns a connection into a queue of a controller.

use std::sync::Arc;

use nvmeof_wire::fabrics::{
    CNTLID_DYNAMIC, CONNECT_DATA_SIZE, Connect, ConnectData, ConnectError, ConnectResult,
};
use nvmeof_wire::zerocopy::FromBytes;
use nvmeof_wire::{Nqn, Sqe, Status};

use super::admin_queue::AdminQueue;
use super::io_queue::IoQueue;
use super::refusal::Refused;
use super::{Outcome, Queue, State, data, waiting};
use crate::Nanos;
use crate::controller::{Controller, NewController};
use crate::disposition::Disposition;
use crate::failure::Failure;
use crate::hosts::{QueueLease, QueueLeaseKind, QuotaContext};
use crate::quiesce::{Association, QuiesceGuard};
use crate::subsystem::{Subsystem, SubsystemKind};
use crate::target::Registry;

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
    /// Successful responses may be folded into data.
    folds: bool,
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
        let begun = self.check_command(sqe, inline_len);
        let outcome = begun.map_err(|refused| self.refuse_connect(sqe, None, refused))?;
        if let State::Fresh { connecting, .. } = &mut self.state {
            *connecting = Some(sqe.cid.get());
        }
        Ok(outcome)
    }

    /// Handles the data of a Connect command.
    pub(super) fn connect(
        &mut self,
        sqe: &Sqe,
        data: &[u8],
        now: Nanos,
    ) -> Result<Outcome, Failure> {
        let (data, _) = ConnectData::ref_from_prefix(data).map_err(|_| Failure::DataTransfer)?;
        self.decide(sqe, data, now).map_err(|refused| match refused.failure {
            // It waits; the caller refuses it when it has waited long enough.
            Failure::Quiescing => Failure::Quiescing,
            _ => self.refuse_connect(sqe, Some(data), refused),
        })
    }

    /// Keeps the reason of a refusal for the log; returns the failure to respond with.
    pub(super) fn refuse_connect(
        &mut self,
        sqe: &Sqe,
        data: Option<&ConnectData>,
        refused: Refused,
    ) -> Failure {
        let failure = refused.failure;
        let host = data.and_then(|data| data.hostnqn().ok());
        let subsystem = data.and_then(|data| data.subnqn().ok());
        let qid = Connect::qid(sqe);
        self.refused = Some(Box::new(refused.of(host, subsystem, qid)));
        failure
    }

    /// Checks the command, before its data.
    fn check_command(&self, sqe: &Sqe, inline_len: u32) -> Result<Outcome, Refused> {
        if !matches!(self.state, State::Fresh { connecting: None, .. }) {
            let allowed = "one Connect for each connection";
            return Err(Refused::new(Failure::CommandSequence, "queue", "connected", allowed));
        }
        Connect::parse(sqe).map_err(malformed)?;
        let source = data::from_host(sqe, DATA_LEN, inline_len, self.transport);
        let source = source.map_err(|failure| {
            let allowed = format_args!("a descriptor of at least {DATA_LEN} bytes");
            Refused::new(failure, "SGL1", failure, allowed)
        })?;
        Ok(Outcome::Receive { len: DATA_LEN, source })
    }

    /// Creates the queue that a Connect requests.
    fn decide(&mut self, sqe: &Sqe, data: &ConnectData, now: Nanos) -> Result<Outcome, Refused> {
        let command = Connect::parse(sqe).map_err(malformed)?;
        let subnqn = data.subnqn().map_err(malformed)?;
        let request = Request {
            command,
            host_id: data.hostid,
            cntlid: data.cntlid.get(),
            host_nqn: data.hostnqn().map_err(malformed)?,
        };
        let target = Arc::clone(&self.target);
        // Held until the queue is part of a controller, so that no config change comes in between.
        let registry = target.registry();
        let subsystem = self.find_subsystem(&registry, &subnqn, &request.host_nqn)?;
        let folds_always = self.check_port(&registry, subsystem)?;
        if command.qid == 0 && subsystem.kind == SubsystemKind::Nvm {
            let association = Association {
                subnqn: subnqn.clone(),
                host_nqn: request.host_nqn.clone(),
                host_id: request.host_id,
            };
            waiting::pass_barrier(&mut self.barrier, &target, subsystem, &association, now)
                .map_err(Refused::quiescing)?;
        }
        let lease = self.lease(&registry, subsystem, &request)?;
        let (state, controller, guard) = if command.qid == 0 {
            let (state, controller) = self.connect_admin(subsystem, &request, lease, now)?;
            (state, controller, None)
        } else {
            let (state, controller, guard) = self.connect_io(subsystem, &request, lease)?;
            (state, controller, Some(guard))
        };
        let flow_control = !command.disable_sq_flow_control;
        Ok(Outcome::Connected(Accepted {
            state: Box::new(state),
            guard,
            cntlid: controller.cntlid,
            entries: command.entries,
            flow_control,
            folds: folds_always || !flow_control,
        }))
    }

    /// The subsystem of this name, if the host may connect to it.
    fn find_subsystem<'r>(
        &self,
        registry: &'r Registry,
        subnqn: &Nqn,
        host: &Nqn,
    ) -> Result<&'r Arc<Subsystem>, Refused> {
        let subsystem = registry.subsystem(subnqn).ok_or_else(|| {
            let failure = Failure::ConnectSubsystem { offset: ConnectData::SUBNQN_OFFSET };
            Refused::new(failure, "SUBNQN", subnqn, "the name of a subsystem of the config")
        })?;
        if registry.allows(subsystem, host) {
            return Ok(subsystem);
        }
        let name = if host.as_str().is_empty() { "empty" } else { host.as_str() };
        let allowed = match subsystem.kind {
            SubsystemKind::Nvm => "a host that the subsystem lists",
            SubsystemKind::Discovery => "a host that may connect to a subsystem",
        };
        Err(Refused::new(Failure::ConnectHost, "HOSTNQN", name, allowed))
    }

    /// Checks that the listener is there and serves the subsystem. Returns true if responses are
    /// always folded into data.
    fn check_port(&self, registry: &Registry, subsystem: &Subsystem) -> Result<bool, Refused> {
        let Some(port) = registry.ports.get(&self.port) else {
            // It was removed after the connection came through it.
            let allowed = "one of the config";
            return Err(Refused::new(Failure::ConnectBusy, "listener", "removed", allowed));
        };
        if subsystem.kind == SubsystemKind::Nvm && !port.serves(&subsystem.nqn) {
            let failure = Failure::ConnectSubsystem { offset: ConnectData::SUBNQN_OFFSET };
            let allowed = "a subsystem that this listener serves";
            return Err(Refused::new(failure, "SUBNQN", &subsystem.nqn, allowed));
        }
        Ok(port.folds_always)
    }

    /// Reserves a queue of the host.
    fn lease(
        &self,
        registry: &Registry,
        subsystem: &Subsystem,
        request: &Request,
    ) -> Result<QueueLease, Refused> {
        let kind = match (request.command.qid, subsystem.kind) {
            (0, SubsystemKind::Discovery) => QueueLeaseKind::Discovery,
            (0, SubsystemKind::Nvm) => QueueLeaseKind::Controller,
            _ => QueueLeaseKind::IoQueue,
        };
        let lists = || registry.lists(&request.host_nqn);
        let quota = QuotaContext { limits: &self.target.limits, lists: &lists, peer: &self.peer };
        let lease = self.target.hosts.lease(&request.host_nqn, kind, &quota, self.id);
        lease.map_err(|(why, had)| Refused::quota(why, had))
    }

    /// Turns the queue into the requested one, and completes the Connect by its rules.
    pub(super) fn accept(&mut self, cid: u16, accepted: Accepted) -> Disposition {
        self.state = *accepted.state;
        self.guard = accepted.guard;
        self.slots.settle(accepted.entries, accepted.flow_control, accepted.folds);
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
    ) -> Result<(State, Arc<Controller>), Refused> {
        let limits = self.target.limits;
        check_entries(request.command.entries, limits.admin_queue_depth())?;
        if request.cntlid != CNTLID_DYNAMIC {
            // With the dynamic controller model, a host cannot choose.
            let failure = in_data(ConnectData::CNTLID_OFFSET);
            let value = format_args!("{:#x}", request.cntlid);
            return Err(Refused::new(failure, "CNTLID", value, "0xffff: controllers are dynamic"));
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
            .ok_or_else(|| {
                let Subsystem { cntlid_min, cntlid_max, .. } = &**subsystem;
                let allowed = format_args!("{cntlid_min} to {cntlid_max}: cntlid-min, cntlid-max");
                let value = "all in use";
                Refused::new(Failure::ConnectBusy, "controller IDs", value, allowed)
            })?;
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
    ) -> Result<(State, Arc<Controller>, QuiesceGuard), Refused> {
        let Connect { qid, entries, .. } = request.command;
        check_entries(entries, self.target.limits.io_queue_depth())?;
        // Another controller can have this ID by now, so each of these errors can result from a
        // controller that has just ended.
        let gone = |offset| Failure::ConnectGone { offset };
        let wrong_controller = |allowed| {
            let failure = gone(ConnectData::CNTLID_OFFSET);
            Refused::new(failure, "CNTLID", request.cntlid, allowed)
        };
        let controller = subsystem
            .controller(request.cntlid)
            .ok_or_else(|| wrong_controller("the ID of a controller of this subsystem"))?;
        if controller.host_nqn != request.host_nqn {
            let failure = gone(ConnectData::HOSTNQN_OFFSET);
            let allowed = format_args!("{}, as of the admin queue", controller.host_nqn);
            return Err(Refused::new(failure, "HOSTNQN", &request.host_nqn, allowed));
        }
        // HOSTID may differ, as with other targets; that of the admin queue counts.
        if controller.port != self.port {
            // An association uses one port of the subsystem (Base 3.3.2.2).
            return Err(wrong_controller("a controller at the same listener"));
        }
        if controller.is_discovery() {
            let failure = in_command(Connect::QID_OFFSET);
            let allowed = "0: discovery controllers have no I/O queues";
            return Err(Refused::new(failure, "QID", qid, allowed));
        }
        let incarnation = controller.incarnation();
        if incarnation & 1 == 0 {
            let allowed = "enabled: set CC.EN first";
            return Err(Refused::new(Failure::ConnectTooSoon, "controller", "disabled", allowed));
        }
        let added = controller.add_io_queue(qid, incarnation);
        let (counters, guard) = added.map_err(|failure| match failure {
            Failure::Quiescing => Refused::quiescing(failure),
            Failure::ConnectTooSoon => {
                Refused::new(failure, "QID", qid, "a queue that is not connected")
            }
            _ => {
                let allowed = "1 to the granted Number of Queues (Set Features 07h)";
                Refused::new(failure, "QID", qid, allowed)
            }
        })?;
        let queue = IoQueue::new(Arc::clone(&controller), lease, qid, counters, incarnation);
        Ok((State::Io(queue), controller, guard))
    }
}

/// Checks the queue size; SQSIZE, 0's based, is never 0, because a queue has at least two entries.
fn check_entries(entries: u32, most: u16) -> Result<(), Refused> {
    if (2..=u32::from(most)).contains(&entries) {
        return Ok(());
    }
    let failure = in_command(Connect::SQSIZE_OFFSET);
    let value = format_args!("{} ({entries} entries)", entries - 1);
    let allowed = format_args!("1 to {} (2 to {most} entries: limits.queue-depth)", most - 1);
    Err(Refused::new(failure, "SQSIZE", value, allowed))
}

/// A Connect whose format or names are malformed.
fn malformed(error: ConnectError) -> Refused {
    match error {
        ConnectError::Format(format) => Refused::new(Failure::ConnectFormat, "RECFMT", format, "0"),
        ConnectError::Name { ipo, reason } => {
            let field = if ipo == ConnectData::SUBNQN_OFFSET { "SUBNQN" } else { "HOSTNQN" };
            let allowed = "1 to 223 bytes of UTF-8 without control characters, then NUL";
            Refused::new(in_data(ipo), field, format_args!("malformed: {reason}"), allowed)
        }
    }
}

fn in_data(offset: u16) -> Failure {
    Failure::ConnectParameter { offset, in_data: true }
}

fn in_command(offset: u16) -> Failure {
    Failure::ConnectParameter { offset, in_data: false }
}
