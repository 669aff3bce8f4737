//! One connection of a host: one NVMe queue.
//!
//! ```text
//!                Connect, QID 0
//!    +-----+ --------------------> admin ---+
//!    |fresh|                                | Disconnect (I/O), controller gone or reset (I/O),
//!    +-----+ --------------------> I/O -----+ keep-alive or connect timeout, connection closed
//!       |        Connect, QID > 0           |
//!       +-----------------------------------+--> ended
//! ```
//!
//! The identifiers of outstanding commands outlive the state: what was taken can be completed after
//! the queue ended, whether or not anybody still hears it.

mod admin_queue;
mod connect;
mod data;
mod fabrics;
mod io_queue;
mod slots;
mod waiting;

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use nvmeof_wire::{Nqn, Sgl, Sqe, Status};

use self::admin_queue::AdminQueue;
use self::io_queue::IoQueue;
use self::slots::Slots;
use self::waiting::{PendingBarrier, WaitingConnect};
use crate::Nanos;
use crate::admin::features;
use crate::controller::{Controller, ControllerKey, DeathReason, ErrorRecord};
use crate::disposition::{
    DataSource, Disposition, Extent, IoCommand, IoKind, QueueOwner, Response,
};
use crate::failure::Failure;
use crate::hosts::Refusal;
use crate::limits::ADMIN_QUEUE_MIN;
use crate::quiesce::{Quiesce, QuiesceGuard};
use crate::spec::{DeviceId, PortId, TransportKind};
use crate::target::Target;

pub use self::waiting::ControllerBarrier;

/// What a connected queue is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueueInfo {
    /// An admin queue.
    pub admin: bool,
    /// Queue ID; 0 for an admin queue.
    pub qid: u16,
    /// Entries of the submission queue.
    pub depth: u16,
    /// Its controller, as [`Disposition::Abort`] names it.
    pub controller: ControllerKey,
    /// Its controller's ID.
    pub cntlid: u16,
    /// Its subsystem.
    pub subnqn: Nqn,
    /// Its host.
    pub hostnqn: Nqn,
    /// It belongs to a discovery controller.
    pub discovery: bool,
}

/// One NVMe queue: what a connection is to the target. See the module.
///
/// Dropping it ends what it stands for: an admin queue takes its controller along.
#[derive(Debug)]
pub struct Queue {
    target: Arc<Target>,
    id: u64,
    port: PortId,
    transport: TransportKind,
    /// The host's address, for messages.
    peer: String,
    /// The target's address the connection came to.
    local_address: Option<IpAddr>,
    slots: Slots,
    state: State,
    /// Its last Connect, if that was refused for want of a seat.
    refused: Option<Refusal>,
    /// Its Connect, while commands of another association of the host are not over, and what it waits for.
    waiting: Option<Box<WaitingConnect>>,
    barrier: Option<PendingBarrier>,
    /// Of an I/O queue: commands of it may be with a device.
    guard: Option<QuiesceGuard>,
}

#[derive(Debug)]
enum State {
    /// Before Connect.
    Fresh {
        /// When to give up.
        deadline: Nanos,
        /// The Connect command whose data is on its way.
        connecting: Option<u16>,
        /// Tells whoever has the other end that there was no Connect yet.
        token: Option<Arc<AtomicBool>>,
    },
    Admin(AdminQueue),
    Io(IoQueue),
    Ended(DeathReason),
}

/// What a command came to, before its completion is made.
#[derive(Debug)]
enum Outcome {
    /// It is done, with this result.
    Done(u64),
    Send {
        len: u32,
        sgl: Sgl,
    },
    Receive {
        len: u32,
        source: DataSource,
    },
    Io(IoCommand),
    Held,
    Abort {
        controller: ControllerKey,
        sqid: u16,
        cid: u16,
        owner: QueueOwner,
    },
    /// Done when these devices are flushed.
    Flush {
        devices: Vec<DeviceId>,
        result: u64,
    },
    /// A Connect was accepted; unlike any other its completion goes out with the queue's new rules.
    Connected(connect::Accepted),
}

impl Queue {
    /// A new connection through the listener `port`. `peer` is the host's address, for messages.
    #[must_use]
    pub fn new(target: &Arc<Target>, port: PortId, peer: &str, now: Nanos) -> Self {
        let transport = target.registry().ports.get(&port).map(|port| port.transport);
        let patience = Nanos::from(target.limits.connect_timeout_ms) * 1_000_000;
        let deadline = now.saturating_add(patience);
        target.queues.fetch_add(1, Ordering::Relaxed);
        Self {
            target: Arc::clone(target),
            id: target.next_queue(),
            port,
            transport: transport.unwrap_or(TransportKind::Tcp),
            peer: peer.to_owned(),
            local_address: None,
            slots: Slots::new(u32::from(ADMIN_QUEUE_MIN)),
            state: match transport {
                Some(_) => State::Fresh { deadline, connecting: None, token: None },
                None => State::Ended(DeathReason::PortRemoved),
            },
            refused: None,
            waiting: None,
            barrier: None,
            guard: None,
        }
    }

    /// Its name: no other queue of the target ever has it.
    #[must_use]
    pub fn id(&self) -> u64 {
        self.id
    }

    /// Keeps this until Connect is accepted, or the queue ends; true once the host has [`greeted`](Self::greeted).
    pub fn keep_until_connect(&mut self, token: Arc<AtomicBool>) {
        if let State::Fresh { token: kept, .. } = &mut self.state {
            *kept = Some(token);
        }
    }

    /// The host has begun as its fabric has it: it is no silent peer.
    pub fn greeted(&self) {
        if let State::Fresh { token: Some(token), .. } = &self.state {
            token.store(true, Ordering::Relaxed);
        }
    }

    /// Says which of the target's addresses the connection came to: what the discovery log tells the host
    /// for listeners on every address. To be called before the first command.
    pub fn set_local_address(&mut self, address: IpAddr) {
        self.local_address = Some(address);
    }

    /// The target's address the connection came to, where it is known.
    #[must_use]
    pub fn local_address(&self) -> Option<IpAddr> {
        self.local_address
    }

    /// A command came, with `inline_len` bytes of in-capsule data.
    #[inline]
    pub fn handle_command(&mut self, sqe: &Sqe, inline_len: u32, now: Nanos) -> Disposition {
        if let Err(failure) = self.slots.take(sqe.cid.get()) {
            return self.refuse(sqe, failure);
        }
        if let (State::Io(io), false) = (&mut self.state, sqe.is_fabrics()) {
            let outcome = io.command(sqe, inline_len);
            return self.dispose(sqe, outcome);
        }
        let outcome = self.other_command(sqe, inline_len, now);
        let disposition = self.dispose(sqe, outcome);
        self.announce();
        disposition
    }

    /// The data that a [`Disposition::Receive`] asked for is here.
    pub fn handle_data(&mut self, sqe: &Sqe, data: &[u8], now: Nanos) -> Disposition {
        let outcome = match &mut self.state {
            State::Fresh { connecting, .. } if *connecting == Some(sqe.cid.get()) => {
                let outcome = self.connect_or_wait(sqe, data, now);
                if let State::Fresh { connecting, .. } = &mut self.state
                    && self.waiting.is_none()
                {
                    *connecting = None;
                }
                outcome
            }
            State::Fresh { .. } => Err(Failure::CommandSequence),
            State::Admin(admin) => admin.data(sqe, data, now),
            State::Io(io) => io.dataset_management_data(sqe, data),
            State::Ended(_) => Err(Failure::QueueDeleted),
        };
        let disposition = self.dispose(sqe, outcome);
        self.announce();
        disposition
    }

    /// Writes the data that a [`Disposition::Send`] of this command announced into `out`, a buffer
    /// of that length whose contents do not matter, and ends the command. The data is what it is
    /// now, and what its reading clears is cleared now. Without success there is no data: the
    /// response alone is for the host.
    pub fn fill(&mut self, sqe: &Sqe, out: &mut [u8], now: Nanos) -> Response {
        let filled = match &mut self.state {
            State::Admin(admin) => admin.fill(&self.target, sqe, out, now),
            State::Ended(_) => Err(Failure::QueueDeleted),
            State::Io(_) | State::Fresh { .. } => Err(Failure::Internal),
        };
        let response = match filled {
            Ok(result) => self.slots.complete(sqe.cid.get(), Status::SUCCESS, result),
            Err(failure) => self.failed(sqe, failure),
        };
        self.announce();
        response
    }

    /// Says where an I/O queue is served, for [`Disposition::Abort`]. To be called whenever that
    /// changes, and when Connect was accepted.
    pub fn set_owner(&self, owner: QueueOwner) {
        if let State::Io(io) = &self.state {
            io.counters.set_owner(owner);
        }
    }

    /// Whether it is this I/O queue of this controller.
    #[must_use]
    pub fn is_io_queue(&self, controller: ControllerKey, qid: u16) -> bool {
        matches!(&self.state, State::Io(io) if io.controller.key == controller && io.qid == qid)
    }

    /// The subsystem, once the queue is connected and until it ends.
    #[must_use]
    pub fn subnqn(&self) -> Option<&Nqn> {
        self.controller().map(|controller| &controller.subsystem.nqn)
    }

    /// An [`IoCommand`] ended, or the data of a [`Disposition::Receive`] could not be had.
    #[inline]
    pub fn complete(&mut self, cid: u16, outcome: Result<(), Failure>) -> Response {
        match outcome {
            Ok(()) => self.slots.complete(cid, Status::SUCCESS, 0),
            Err(failure) => self.complete_failed(cid, failure),
        }
    }

    /// A [`Disposition::Flush`] was seen to: are all devices flushed?
    pub fn complete_flush(&mut self, cid: u16, result: u64, is_durable: bool) -> Response {
        if is_durable {
            return self.slots.complete(cid, Status::SUCCESS, result);
        }
        if let State::Admin(admin) = &self.state {
            // A Set Features that fails changes nothing.
            features::set_write_cache(&admin.controller, true);
        }
        self.complete_failed(cid, Failure::MediaWrite)
    }

    /// A [`Disposition::Abort`] was seen to: did the command end because of it?
    pub fn complete_abort(&mut self, cid: u16, aborted: bool) -> Response {
        if let State::Admin(admin) = &mut self.state {
            admin.abort_done();
        }
        let result = if aborted { 0 } else { nvmeof_wire::abort::NOT_ABORTED };
        self.slots.complete(cid, Status::SUCCESS, result)
    }

    /// The ranges of a Deallocate in bytes of its device, from the data the host sent. Empty ranges are
    /// left out. What counts is the namespace as it was when the queue last took a command.
    ///
    /// # Errors
    /// A range is beyond the namespace, or the namespace is gone, or its NSID is another device's.
    pub fn parse_ranges(&self, io: &IoCommand, data: &[u8]) -> Result<Vec<Extent>, Failure> {
        match (&self.state, io.kind) {
            (State::Io(queue), IoKind::Deallocate { ranges }) => queue.ranges(io, ranges, data),
            (State::Ended(_), _) => Err(Failure::QueueDeleted),
            _ => Err(Failure::Internal),
        }
    }

    /// The next Asynchronous Event Request to complete. Call it until `None` whenever
    /// [`Target::epoch`] changed.
    pub fn poll_event(&mut self) -> Option<Response> {
        let State::Admin(admin) = &mut self.state else { return None };
        let (cid, event) = admin.poll_event()?;
        Some(match event {
            Ok(event) => self.slots.complete(cid, Status::SUCCESS, u64::from(event)),
            Err(failure) => self.slots.complete(cid, failure.status(), 0),
        })
    }

    /// Why the connection is to be closed, if it is. What was answered before should still be sent.
    #[inline]
    #[must_use]
    pub fn is_dead(&self) -> Option<DeathReason> {
        match &self.state {
            State::Io(io) => io.death(),
            State::Admin(admin) => admin.controller.death(),
            State::Fresh { .. } => None,
            State::Ended(reason) => Some(*reason),
        }
    }

    /// When to call [`Self::handle_timeout`].
    #[must_use]
    pub fn deadline(&self) -> Option<Nanos> {
        match &self.state {
            // A Connect that waits has a bound of its own.
            State::Fresh { .. } if self.waiting.is_some() => None,
            State::Fresh { deadline, .. } => Some(*deadline),
            State::Admin(admin) if admin.controller.death().is_none() => {
                admin.timer().map(|(deadline, _)| deadline)
            }
            State::Admin(_) | State::Io(_) | State::Ended(_) => None,
        }
    }

    /// Ends what has run out of time; see [`Self::is_dead`].
    pub fn handle_timeout(&mut self, now: Nanos) {
        match &self.state {
            State::Fresh { deadline, .. } if now >= *deadline && self.waiting.is_none() => {
                self.state = State::Ended(DeathReason::ConnectTimeout);
            }
            State::Admin(admin) => {
                let due = admin.timer().filter(|(deadline, _)| now >= *deadline);
                if let Some((_, reason)) = due {
                    admin.controller.kill(reason);
                }
            }
            State::Fresh { .. } | State::Io(_) | State::Ended(_) => {}
        }
    }

    /// The target stood still for so long: [`Self::deadline`] is that much later.
    pub fn excuse(&mut self, nanos: Nanos) {
        match &mut self.state {
            State::Fresh { deadline, .. } => *deadline = deadline.saturating_add(nanos),
            State::Admin(admin) => admin.excuse(nanos),
            State::Io(_) | State::Ended(_) => {}
        }
    }

    /// The connection is closed. An admin queue takes its controller and all its queues along. Of an I/O queue what
    /// this gives has to be kept until no command of it is with a device any more.
    #[must_use]
    pub fn handle_disconnect(&mut self) -> Option<QuiesceGuard> {
        if let Some(guard) = &self.guard {
            guard.close();
        }
        self.end(DeathReason::ConnectionClosed);
        self.waiting = None;
        self.barrier = None;
        self.guard.take()
    }

    /// To wait until its commands are over: those of an I/O queue, or of an admin queue's controller. `None` before
    /// Connect and after the end.
    #[must_use]
    pub fn quiesce(&self) -> Option<Quiesce> {
        match &self.state {
            State::Admin(admin) => Some(admin.controller.quiesce().clone()),
            State::Io(io) => Some(io.controller.quiesce().of_queue(io.qid)),
            State::Fresh { .. } | State::Ended(_) => None,
        }
    }

    /// Answers a Disconnect that waited until every other command of its queue is over, and ends the queue; to be
    /// asked as [`Self::poll_event`] is.
    pub fn poll_disconnect(&mut self) -> Option<Response> {
        let State::Io(io) = &self.state else { return None };
        let cid = io.disconnecting.filter(|_| self.slots.outstanding() == 1)?;
        let response = self.slots.complete(cid, Status::SUCCESS, 0);
        self.end(DeathReason::Disconnected);
        // None of its commands is outstanding, so none is with a device.
        self.guard = None;
        Some(response)
    }

    /// Devices to flush, once, for a shutdown whose commands are over; then [`Self::shutdown_flushed`]. To be asked
    /// as [`Self::poll_event`] is.
    pub fn poll_shutdown(&mut self) -> Option<Vec<DeviceId>> {
        let State::Admin(admin) = &mut self.state else { return None };
        admin.poll_shutdown()
    }

    /// The devices that [`Self::poll_shutdown`] named are flushed, or not all of them could be.
    pub fn shutdown_flushed(&mut self, is_durable: bool) {
        if let State::Admin(admin) = &mut self.state {
            admin.shutdown_flushed(is_durable);
        }
    }

    /// What the queue is, once its Connect was accepted and until it ends.
    #[must_use]
    pub fn connected(&self) -> Option<QueueInfo> {
        let (controller, qid) = match &self.state {
            State::Admin(admin) => (&admin.controller, 0),
            State::Io(io) => (&io.controller, io.qid),
            State::Fresh { .. } | State::Ended(_) => return None,
        };
        Some(QueueInfo {
            admin: qid == 0,
            qid,
            depth: u16::try_from(self.slots.entries()).unwrap_or(u16::MAX),
            controller: controller.key,
            cntlid: controller.cntlid,
            subnqn: controller.subsystem.nqn.clone(),
            hostnqn: controller.host_nqn.clone(),
            discovery: controller.is_discovery(),
        })
    }

    /// The last Connect, once, if it was refused because its host has as many connections or I/O queues as it
    /// may: to be told of.
    #[inline]
    pub fn take_refusal(&mut self) -> Option<Refusal> {
        self.refused.take()
    }

    /// The listener it came through.
    #[must_use]
    pub fn port(&self) -> PortId {
        self.port
    }

    /// The host's address, as given to [`Self::new`].
    #[must_use]
    pub fn peer(&self) -> &str {
        &self.peer
    }

    /// Commands that are outstanding.
    #[must_use]
    pub fn outstanding(&self) -> u32 {
        self.slots.outstanding()
    }

    /// Everything but an I/O queue's NVM commands.
    fn other_command(&mut self, sqe: &Sqe, inline: u32, now: Nanos) -> Result<Outcome, Failure> {
        if let State::Ended(_) = self.state {
            return Err(Failure::QueueDeleted);
        }
        if sqe.is_fabrics() {
            return self.fabrics_command(sqe, inline, now);
        }
        match &mut self.state {
            State::Admin(admin) => admin.command(&self.target, sqe, inline, now),
            State::Io(_) | State::Fresh { .. } | State::Ended(_) => Err(Failure::CommandSequence),
        }
    }

    /// Turns an outcome into what the caller is to do.
    #[inline]
    fn dispose(&mut self, sqe: &Sqe, outcome: Result<Outcome, Failure>) -> Disposition {
        let cid = sqe.cid.get();
        match outcome {
            Ok(Outcome::Io(io)) => Disposition::Io(io),
            Ok(Outcome::Done(result)) => {
                Disposition::Respond(self.slots.complete(cid, Status::SUCCESS, result))
            }
            Ok(Outcome::Send { len, sgl }) => Disposition::Send { len, sgl },
            Ok(Outcome::Receive { len, source }) => Disposition::Receive { len, source },
            Ok(Outcome::Held) => Disposition::Held,
            Ok(Outcome::Flush { devices, result }) => Disposition::Flush { devices, result },
            Ok(Outcome::Abort { controller, sqid, cid, owner }) => {
                Disposition::Abort { controller, sqid, cid, owner }
            }
            Ok(Outcome::Connected(accepted)) => self.accept(cid, accepted),
            Err(failure) => Disposition::Respond(self.failed(sqe, failure)),
        }
    }

    /// A command may have made an event request ready to complete: has the queue looked at.
    fn announce(&self) {
        if let State::Admin(admin) = &self.state
            && admin.has_event()
        {
            self.target.notifier.notify();
        }
    }

    /// Answers a command whose identifier or queue entry was not to be had.
    #[cold]
    fn refuse(&mut self, sqe: &Sqe, failure: Failure) -> Disposition {
        self.record(sqe, failure);
        if failure == Failure::QueueOverrun {
            self.end(DeathReason::QueueOverrun);
            self.target.notifier.notify();
        }
        Disposition::Respond(self.slots.reject(sqe.cid.get(), failure.status(), 0))
    }

    #[cold]
    fn failed(&mut self, sqe: &Sqe, failure: Failure) -> Response {
        self.record(sqe, failure);
        self.slots.complete(sqe.cid.get(), failure.status(), failure.result())
    }

    #[cold]
    fn complete_failed(&mut self, cid: u16, failure: Failure) -> Response {
        match &mut self.state {
            State::Fresh { connecting, .. } if *connecting == Some(cid) => *connecting = None,
            State::Io(io) if matches!(failure, Failure::MediaRead | Failure::MediaWrite) => {
                io.counters.count_media_error();
            }
            _ => {}
        }
        let mut sqe = Sqe::default();
        sqe.cid.set(cid);
        self.record(&sqe, failure);
        self.slots.complete(cid, failure.status(), failure.result())
    }

    /// Enters a failed command into the controller's error log.
    fn record(&self, sqe: &Sqe, failure: Failure) {
        let (controller, qid) = match &self.state {
            State::Admin(admin) => (&admin.controller, 0),
            State::Io(io) => (&io.controller, io.qid),
            State::Fresh { .. } | State::Ended(_) => return,
        };
        if matches!(failure, Failure::Aborted | Failure::QueueDeleted) {
            return;
        }
        controller.admin().errors.push(ErrorRecord {
            count: 0,
            sqid: qid,
            cid: sqe.cid.get(),
            status: failure.status(),
            lba: if qid == 0 { 0 } else { sqe.cdw10_11() },
            nsid: if sqe.is_fabrics() { 0 } else { sqe.nsid.get() },
            opcode: sqe.opcode,
        });
    }

    /// Leaves the association; the first reason stays.
    fn end(&mut self, reason: DeathReason) {
        if matches!(self.state, State::Ended(_)) {
            return;
        }
        match std::mem::replace(&mut self.state, State::Ended(reason)) {
            State::Admin(admin) => {
                let known = admin.controller.death();
                admin.controller.kill(DeathReason::AdminQueueGone);
                self.state = State::Ended(known.unwrap_or(reason));
            }
            State::Io(io) => {
                let known = io.death();
                io.controller.remove_io_queue(io.qid, &io.counters);
                self.state = State::Ended(known.unwrap_or(reason));
            }
            State::Fresh { .. } | State::Ended(_) => {}
        }
    }

    /// The controller, if connected.
    fn controller(&self) -> Option<&Arc<Controller>> {
        match &self.state {
            State::Admin(admin) => Some(&admin.controller),
            State::Io(io) => Some(&io.controller),
            State::Fresh { .. } | State::Ended(_) => None,
        }
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        self.end(DeathReason::ConnectionClosed);
        self.target.queues.fetch_sub(1, Ordering::Relaxed);
    }
}
