//! One connection of a host, which is one NVMe queue.
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
//! The identifiers of outstanding commands outlive the state. A command can complete after its
//! queue has ended, even if no host receives the response.

mod admin_queue;
mod connect;
mod data;
mod fabrics;
mod io_queue;
mod refusal;
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
use crate::controller::{Controller, ControllerKey, ErrorRecord, TeardownReason};
use crate::disposition::{
    DataSource, Disposition, Extent, IoCommand, IoKind, QueueOwner, Response,
};
use crate::failure::Failure;
use crate::limits::ADMIN_QUEUE_MIN;
use crate::quiesce::{Quiesce, QuiesceGuard};
use crate::spec::{DeviceId, PortId, TransportKind};
use crate::target::Target;

pub use self::refusal::ConnectRefusal;
pub use self::waiting::ControllerBarrier;

/// Properties of a connected queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueueInfo {
    /// True for an admin queue.
    pub admin: bool,
    /// Queue ID; 0 for an admin queue.
    pub qid: u16,
    /// Entries of the submission queue.
    pub depth: u16,
    /// Key of its controller, as in [`Disposition::Abort`].
    pub controller: ControllerKey,
    /// ID of its controller.
    pub cntlid: u16,
    /// NQN of its subsystem.
    pub subnqn: Nqn,
    /// NQN of its host.
    pub hostnqn: Nqn,
    /// True for a queue of a discovery controller.
    pub discovery: bool,
}

/// One NVMe queue, which is the target's view of a connection. See the module.
///
/// Dropping an admin queue also ends its controller.
#[derive(Debug)]
pub struct Queue {
    target: Arc<Target>,
    id: u64,
    port: PortId,
    transport: TransportKind,
    /// The host's address, for messages.
    peer: String,
    /// The target's address that the connection came to.
    local_address: Option<IpAddr>,
    slots: Slots,
    state: State,
    /// Commands that ended without a response.
    dropped: Vec<u16>,
    /// The last Connect, if the target refused it.
    refused: Option<Box<ConnectRefusal>>,
    /// The Connect that waits for commands of another association of its host.
    waiting: Option<Box<WaitingConnect>>,
    barrier: Option<PendingBarrier>,
    /// For an I/O queue: commands of it can be at a device.
    guard: Option<QuiesceGuard>,
}

#[derive(Debug)]
enum State {
    /// Before Connect.
    Fresh {
        /// Time at which the connection is closed without a Connect.
        deadline: Nanos,
        /// The Connect command whose data is being transferred.
        connecting: Option<u16>,
        /// Token shared with the caller that accepted the connection; kept until Connect.
        token: Option<Arc<AtomicBool>>,
    },
    Admin(AdminQueue),
    Io(IoQueue),
    Ended(TeardownReason),
}

/// Result of a command before its completion is built.
#[derive(Debug)]
enum Outcome {
    /// The command is done, with this result.
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
    /// The command is done when these devices are flushed.
    Flush {
        devices: Vec<DeviceId>,
        result: u64,
    },
    /// A Connect was accepted; its completion already follows the new rules of the queue.
    Connected(connect::Accepted),
}

impl Queue {
    /// Creates the queue of a new connection through the listener `port`.
    ///
    /// `peer` is the host's address, for messages.
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
                None => State::Ended(TeardownReason::PortRemoved),
            },
            dropped: Vec::new(),
            refused: None,
            waiting: None,
            barrier: None,
            guard: None,
        }
    }

    /// Unique ID, which no other queue of the target ever gets.
    #[must_use]
    pub fn id(&self) -> u64 {
        self.id
    }

    /// Keeps `token` until the Connect is accepted or the queue ends.
    ///
    /// The token turns true once the host has [`greeted`](Self::greeted).
    pub fn keep_until_connect(&mut self, token: Arc<AtomicBool>) {
        if let State::Fresh { token: kept, .. } = &mut self.state {
            *kept = Some(token);
        }
    }

    /// Records that the host has started its fabric's handshake: the peer does send data.
    pub fn greeted(&self) {
        if let State::Fresh { token: Some(token), .. } = &self.state {
            token.store(true, Ordering::Relaxed);
        }
    }

    /// Sets the target's address that the connection came to.
    ///
    /// The discovery log reports it to the host for listeners on every address. Must be called
    /// before the first command.
    pub fn set_local_address(&mut self, address: IpAddr) {
        self.local_address = Some(address);
    }

    /// The target's address that the connection came to, if known.
    #[must_use]
    pub fn local_address(&self) -> Option<IpAddr> {
        self.local_address
    }

    /// Handles a command with `inline_len` bytes of in-capsule data.
    #[inline]
    pub fn handle_command(&mut self, sqe: &Sqe, inline_len: u32, now: Nanos) -> Disposition {
        if let Err(failure) = self.slots.take(sqe.cid.get())
            && !self.replaces_event_request(sqe, failure)
        {
            return self.refuse(sqe, failure);
        }
        if let (State::Io(io), false) = (&mut self.state, sqe.is_fabrics()) {
            io.counters.mark_traffic();
            let outcome = io.command(sqe, inline_len);
            return self.dispose(sqe, outcome);
        }
        let outcome = self.other_command(sqe, inline_len, now);
        let disposition = self.dispose(sqe, outcome);
        self.announce();
        disposition
    }

    /// Handles the data that a [`Disposition::Receive`] requested.
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

    /// Writes the data that a [`Disposition::Send`] announced into `out`, and ends the command.
    ///
    /// `out` is a buffer of that length with arbitrary contents. The data is current as of this
    /// call, and whatever a read clears is cleared now. Without success there is no data: only the
    /// response goes to the host.
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

    /// Sets the location that serves an I/O queue, for [`Disposition::Abort`].
    ///
    /// Must be called after an accepted Connect and after every change.
    pub fn set_owner(&self, owner: QueueOwner) {
        if let State::Io(io) = &self.state {
            io.counters.set_owner(owner);
        }
    }

    /// Returns true if it is this I/O queue of this controller.
    #[must_use]
    pub fn is_io_queue(&self, controller: ControllerKey, qid: u16) -> bool {
        matches!(&self.state, State::Io(io) if io.controller.key == controller && io.qid == qid)
    }

    /// NQN of the subsystem, once the queue is connected and until it ends.
    #[must_use]
    pub fn subnqn(&self) -> Option<&Nqn> {
        self.controller().map(|controller| &controller.subsystem.nqn)
    }

    /// Completes an [`IoCommand`], or a [`Disposition::Receive`] whose data failed to arrive.
    #[inline]
    pub fn complete(&mut self, cid: u16, outcome: Result<(), Failure>) -> Response {
        if let State::Io(io) = &self.state {
            // Hosts that see a completion may omit a Keep Alive.
            io.counters.mark_traffic();
        }
        match outcome {
            Ok(()) => self.slots.complete(cid, Status::SUCCESS, 0),
            Err(failure) => self.complete_failed(cid, failure),
        }
    }

    /// Completes a [`Disposition::Flush`]; `is_durable` is true if all devices were flushed.
    pub fn complete_flush(&mut self, cid: u16, result: u64, is_durable: bool) -> Response {
        if is_durable {
            return self.slots.complete(cid, Status::SUCCESS, result);
        }
        if let State::Admin(admin) = &self.state {
            // A failed Set Features changes nothing.
            features::set_write_cache(&admin.controller, true);
        }
        self.complete_failed(cid, Failure::MediaWrite)
    }

    /// Completes a [`Disposition::Abort`]; `aborted` is true if the command ended because of it.
    pub fn complete_abort(&mut self, cid: u16, aborted: bool) -> Response {
        if let State::Admin(admin) = &mut self.state {
            admin.abort_done();
        }
        let result = if aborted { 0 } else { nvmeof_wire::abort::NOT_ABORTED };
        self.slots.complete(cid, Status::SUCCESS, result)
    }

    /// Parses the ranges of a Deallocate from the host's data, in bytes of its device.
    ///
    /// Empty ranges are omitted. The call uses the namespaces as of the last command that the queue
    /// took.
    ///
    /// # Errors
    /// A range is beyond the namespace, the namespace is gone, or its NSID belongs to another
    /// device.
    pub fn parse_ranges(&self, io: &IoCommand, data: &[u8]) -> Result<Vec<Extent>, Failure> {
        match (&self.state, io.kind) {
            (State::Io(queue), IoKind::Deallocate { ranges }) => queue.ranges(io, ranges, data),
            (State::Ended(_), _) => Err(Failure::QueueDeleted),
            _ => Err(Failure::Internal),
        }
    }

    /// Completes the next Asynchronous Event Request.
    ///
    /// The caller repeats the call until it returns `None`, whenever [`Target::epoch`] has changed.
    pub fn poll_event(&mut self) -> Option<Response> {
        let State::Admin(admin) = &mut self.state else { return None };
        let (cid, event) = admin.poll_event()?;
        Some(match event {
            Ok(event) => self.slots.complete(cid, Status::SUCCESS, u64::from(event)),
            Err(failure) => self.slots.complete(cid, failure.status(), 0),
        })
    }

    /// Reason to close the connection, if any. Earlier responses should still be sent.
    #[inline]
    #[must_use]
    pub fn is_dead(&self) -> Option<TeardownReason> {
        match &self.state {
            State::Io(io) => io.death(),
            State::Admin(admin) => admin.controller.death(),
            State::Fresh { .. } => None,
            State::Ended(reason) => Some(*reason),
        }
    }

    /// Time at which to call [`Self::handle_timeout`].
    #[must_use]
    pub fn deadline(&self) -> Option<Nanos> {
        match &self.state {
            // A waiting Connect has its own deadline.
            State::Fresh { .. } if self.waiting.is_some() => None,
            State::Fresh { deadline, .. } => Some(*deadline),
            State::Admin(admin) if admin.controller.death().is_none() => {
                admin.timer().map(|(deadline, _)| deadline)
            }
            State::Admin(_) | State::Io(_) | State::Ended(_) => None,
        }
    }

    /// Ends the queue or controller whose time has expired; see [`Self::is_dead`].
    pub fn handle_timeout(&mut self, now: Nanos) {
        match &mut self.state {
            State::Fresh { deadline, .. } if now >= *deadline && self.waiting.is_none() => {
                self.state = State::Ended(TeardownReason::ConnectTimeout);
            }
            State::Admin(admin) => {
                if let Some(reason) = admin.expire(now) {
                    admin.controller.kill(reason);
                }
            }
            State::Fresh { .. } | State::Io(_) | State::Ended(_) => {}
        }
    }

    /// Postpones [`Self::deadline`] by `nanos`, a period in which the target was stalled.
    pub fn extend_deadlines(&mut self, nanos: Nanos) {
        match &mut self.state {
            State::Fresh { deadline, .. } => *deadline = deadline.saturating_add(nanos),
            State::Admin(admin) => admin.extend_deadlines(nanos),
            State::Io(_) | State::Ended(_) => {}
        }
    }

    /// Handles the end of the connection.
    ///
    /// An admin queue ends its controller and all its queues. For an I/O queue, the caller must
    /// keep the returned guard until no command of the queue is at a device.
    #[must_use]
    pub fn handle_disconnect(&mut self) -> Option<QuiesceGuard> {
        if let Some(guard) = &self.guard {
            guard.close();
        }
        self.end(TeardownReason::ConnectionClosed);
        self.waiting = None;
        self.barrier = None;
        self.guard.take()
    }

    /// Handle to wait for the end of its commands.
    ///
    /// These are the commands of an I/O queue, or of an admin queue's controller. `None` before
    /// Connect and after the end.
    #[must_use]
    pub fn quiesce(&self) -> Option<Quiesce> {
        match &self.state {
            State::Admin(admin) => Some(admin.controller.quiesce().clone()),
            State::Io(io) => Some(io.controller.quiesce().of_queue(io.qid)),
            State::Fresh { .. } | State::Ended(_) => None,
        }
    }

    /// Completes a Disconnect once no other command is outstanding, and ends the queue.
    ///
    /// Polled like [`Self::poll_event`].
    pub fn poll_disconnect(&mut self) -> Option<Response> {
        let State::Io(io) = &self.state else { return None };
        let cid = io.disconnecting.filter(|_| self.slots.outstanding() == 1)?;
        let response = self.slots.complete(cid, Status::SUCCESS, 0);
        self.end(TeardownReason::Disconnected);
        // None of its commands is outstanding, so none is at a device.
        self.guard = None;
        Some(response)
    }

    /// Devices to flush for a shutdown whose commands have completed; returned once.
    ///
    /// Then the caller calls [`Self::shutdown_flushed`]. Polled like [`Self::poll_event`].
    pub fn poll_shutdown(&mut self) -> Option<Vec<DeviceId>> {
        let State::Admin(admin) = &mut self.state else { return None };
        admin.poll_shutdown()
    }

    /// Reports that the devices of [`Self::poll_shutdown`] are flushed, or that a flush failed.
    pub fn shutdown_flushed(&mut self, is_durable: bool) {
        if let State::Admin(admin) = &mut self.state {
            admin.shutdown_flushed(is_durable);
        }
    }

    /// Properties of the queue, from the accepted Connect until its end.
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

    /// Takes a command that ended without a response; the fabric forgets it.
    ///
    /// Polled after every command, before its disposition.
    #[inline]
    pub fn take_dropped(&mut self) -> Option<u16> {
        self.dropped.pop()
    }

    /// Takes the last Connect if it was refused; for the log.
    #[inline]
    pub fn take_refusal(&mut self) -> Option<ConnectRefusal> {
        self.refused.take().map(|refusal| *refusal)
    }

    /// The listener that the connection came through.
    #[must_use]
    pub fn port(&self) -> PortId {
        self.port
    }

    /// The host's address, as passed to [`Self::new`].
    #[must_use]
    pub fn peer(&self) -> &str {
        &self.peer
    }

    /// Number of outstanding commands.
    #[must_use]
    pub fn outstanding(&self) -> u32 {
        self.slots.outstanding()
    }

    /// Handles every command except an I/O queue's NVM commands.
    fn other_command(&mut self, sqe: &Sqe, inline: u32, now: Nanos) -> Result<Outcome, Failure> {
        if let State::Ended(_) = self.state {
            return Err(Failure::QueueDeleted);
        }
        if let State::Admin(admin) = &mut self.state {
            admin.on_command(now);
        }
        if sqe.is_fabrics() {
            return self.fabrics_command(sqe, inline, now);
        }
        match &mut self.state {
            State::Admin(admin) => admin.command(&self.target, sqe, inline, now),
            State::Io(_) | State::Fresh { .. } | State::Ended(_) => Err(Failure::CommandSequence),
        }
    }

    /// Converts an outcome into a disposition for the caller.
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

    /// Notifies the reactors if the command made an event request ready to complete.
    fn announce(&self) {
        if let State::Admin(admin) = &self.state
            && admin.has_event()
        {
            self.target.notifier.notify();
        }
    }

    /// Returns true if the command takes over the identifier and entry of an event request.
    ///
    /// SPDK's host drops its event requests on its own side before a shutdown, without an Abort.
    #[cold]
    fn replaces_event_request(&mut self, sqe: &Sqe, failure: Failure) -> bool {
        let State::Admin(admin) = &mut self.state else { return false };
        let is_dropped = failure == Failure::CidConflict && admin.drop_event_request(sqe.cid.get());
        if is_dropped {
            self.slots.pass_on();
            self.dropped.push(sqe.cid.get());
        }
        is_dropped
    }

    /// Responds to a command whose identifier or queue entry is not available.
    #[cold]
    fn refuse(&mut self, sqe: &Sqe, failure: Failure) -> Disposition {
        self.record(sqe, failure);
        if failure == Failure::QueueOverrun {
            self.end(TeardownReason::QueueOverrun);
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

    /// Records a failed command in the controller's error log.
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

    /// Leaves the association; the first reason is kept.
    fn end(&mut self, reason: TeardownReason) {
        if matches!(self.state, State::Ended(_)) {
            return;
        }
        match std::mem::replace(&mut self.state, State::Ended(reason)) {
            State::Admin(admin) => {
                let known = admin.controller.death();
                admin.controller.kill(TeardownReason::AdminQueueGone);
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

    /// The controller, if the queue is connected.
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
        self.end(TeardownReason::ConnectionClosed);
        self.target.queues.fetch_sub(1, Ordering::Relaxed);
    }
}
