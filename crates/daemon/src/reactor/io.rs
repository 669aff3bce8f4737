//! I/O commands on a reactor: permit, buffer, host data, device, response.
//!
//! The request's own state machine (`nvmf::request`) decides the next step. This file performs it.

use std::sync::Arc;

use nvmeof_core::block::{BlockOp, BlockOpKind, Completed};
use nvmeof_core::dma::{Buffer, LeaseError, Payload};
use nvmeof_nvmf::request::{BufferRequest, DeviceOp, Request, Step};
use nvmeof_nvmf::{DataSource, Failure, IoCommand, IoKind, QuiesceGuard, Response};
use nvmeof_pacing::{Charge, CommandOutcome, Cost, FlowId, Permit};
use nvmeof_transport::{FabricError, FabricOp};
use nvmeof_wire::Status;

use super::Reactor;
use super::abort::AbortWaiting;
use super::admin::Admin;
use super::connection::FlowHandle;
use super::failure::{from_block, from_fabric};
use super::gen_slab::SlotKey;
use super::holdings::CommandHoldings;
use super::kind;
use super::quiesce::Flush;
use super::trace::{State, TraceMark};
use crate::logs::{LogCategory, limited};

/// A command between capsule and response.
#[derive(Debug)]
#[expect(
    clippy::large_enum_variant,
    reason = "nearly all are I/O commands, and a box would be an allocation for each"
)]
pub(super) enum Pending {
    /// An I/O command.
    Io(Io),
    /// An admin or fabrics command that moves data.
    Admin(Admin),
    /// A flush of devices.
    Flush(Flush),
    /// An Abort whose command belongs to another reactor, or is at its device.
    Abort(Aborting),
}

impl Pending {
    /// Returns the command's connection. The key is stale once that connection is gone.
    fn connection(&self) -> SlotKey {
        match self {
            Self::Io(io) => io.connection,
            Self::Admin(admin) => admin.connection,
            Self::Abort(aborting) => aborting.connection,
            Self::Flush(flush) => flush.connection,
        }
    }
}

/// An Abort that waits for the end of another command.
#[derive(Debug)]
pub(super) struct Aborting {
    /// The connection that sent it.
    pub(super) connection: SlotKey,
    /// Command identifier of the Abort.
    pub(super) cid: u16,
}

/// An I/O command.
#[derive(Debug)]
pub(super) struct Io {
    /// Its connection. The key is stale once that connection is gone.
    pub(super) connection: SlotKey,
    /// The flow whose queue it waits in.
    pub(super) flow: FlowId,
    /// Its device flow among those of the connection.
    pub(super) device_flow: SlotKey,
    /// Key of the device's statistics.
    pub(super) stats_key: SlotKey,
    /// Time at which its capsule arrived.
    pub(super) arrived: u64,
    /// Time at which the device received its last operation.
    pub(super) submitted: u64,
    /// Time at which its data was complete in memory, or 0 until then.
    pub(super) device_done_at: u64,
    /// Its trace, if the reactor traces it.
    pub(super) mark: TraceMark,
    /// An Abort that waits for its end.
    pub(super) abort: Option<Box<AbortWaiting>>,
    /// Its part of its host's holdings.
    pub(super) holdings: CommandHoldings,
    /// Its state.
    pub(super) request: Request<Buffer, Permit>,
    /// Guard of its queue, if the queue closes while the command is at a device.
    pub(super) guard: Option<Arc<QuiesceGuard>>,
}

impl Reactor {
    /// Adds a checked I/O command to the queue of its flow.
    #[inline]
    pub(super) fn start_io(&mut self, key: SlotKey, io: IoCommand, data: Option<Buffer>, now: u64) {
        let Some(connection) = self.connections.present_mut(key) else { return };
        let inline = match io.source {
            Some(DataSource::InCapsule { offset }) => {
                data.and_then(|data| cut(data, offset, io.data_len()))
            }
            _ => None,
        };
        let paced = (&mut self.pacer, &self.core);
        let joined = connection.join(io.device, &self.qos, paced, &mut self.stats);
        let FlowHandle { device_flow, flow, stats_key } = joined;
        connection.in_flight += 1;
        let request = Request::new(io, inline);
        let cost = request.cost();
        let pending = Pending::Io(Io {
            connection: key,
            flow,
            device_flow,
            stats_key,
            arrived: now,
            submitted: now,
            device_done_at: 0,
            mark: TraceMark::default(),
            abort: None,
            holdings: CommandHoldings::default(),
            request,
            guard: None,
        });
        let request = self.requests.insert(&mut connection.newest, pending);
        self.trace_capsule(request, now);
        let admissible = u32::try_from(cost).is_ok_and(|bytes| {
            let (cost, token) = (Cost { bytes }, request.token(kind::REQUEST));
            self.pacer.enqueue_charged(flow, cost, charge(&io), token).is_ok()
        });
        if !admissible {
            // Impossible with limits that were derived together. The host gets an error all the
            // same.
            self.finish(request, Err(Failure::InvalidField), None, now);
        }
    }

    /// Starts every command that may start.
    pub(super) fn admit(&mut self, now: u64) -> bool {
        let mut busy = self.retry_buffer_wait(now) | self.retry_admin(now);
        self.stats.counters.pacer_calls += 1;
        while let Some((token, permit)) = self.pacer.next(now) {
            self.stats.counters.pacer_calls += 1;
            busy = true;
            let (_, request) = SlotKey::from_token(token);
            let Some(permit) = self.take_or_defer(request, permit, now) else { continue };
            let Some(Pending::Io(io)) = self.requests.get_mut(request) else {
                // Cancelled commands leave their flow queue, so no command owns this permit.
                debug_assert!(false, "a permit for a command that is gone");
                self.pacer.release(permit, CommandOutcome::Cancelled, now);
                continue;
            };
            let step = io.request.admitted(permit);
            self.advance(request, step, now);
        }
        busy
    }

    /// Retries the commands that found the pool empty, oldest first.
    ///
    /// The others are tried only while commands may pass the oldest one.
    fn retry_buffer_wait(&mut self, now: u64) -> bool {
        let mut busy = false;
        let bars = self.buffer_wait.bars(now);
        for nth in 0..self.buffer_wait.len() {
            let Some(request) = self.buffer_wait.pop() else { break };
            // A command whose connection has closed is gone.
            if let Some(Pending::Io(io)) = self.requests.get(request) {
                let (wanted, key) = (io.request.wanted(), io.connection);
                let leased = self.lease(request, wanted);
                let Some(step) = leased.or_else(|| self.lease_own(request, key, wanted)) else {
                    if bars {
                        self.buffer_wait.put_first(request);
                        break;
                    }
                    self.buffer_wait.put_last(request);
                    continue;
                };
                self.advance(request, step, now);
                busy = true;
            }
            if bars || nth == 0 {
                self.buffer_wait.begin(now);
            }
        }
        busy
    }

    /// Performs the steps of a request until it waits for an event or ends.
    fn advance(&mut self, request: SlotKey, mut step: Step<Buffer>, now: u64) {
        loop {
            let Some(io) = self.requests.present_io(request) else { return };
            let command = *io.request.io();
            let key = io.connection;
            let live = self.connections.get_mut(key).is_some_and(|c| c.is_live());
            if !live {
                // No host is left to answer. The buffers of the step return to the pool here.
                drop(step);
                self.drop_request(request, now);
                return;
            }
            step = match step {
                Step::Lease(wanted) => {
                    self.trace_state(request, State::BufferWait);
                    if command.kind == IoKind::Read
                        && self.try_zero_copy(request, key, &command, now)
                    {
                        return;
                    }
                    match self.lease_or_wait(request, key, wanted, now) {
                        Some(step) => step,
                        None => return,
                    }
                }
                Step::Pull { buf, sgl } => {
                    let token = request.token(kind::REQUEST);
                    let op = FabricOp::FetchHostData { token, cid: command.cid, sgl, buf };
                    self.trace_state(request, State::H2cTransfer);
                    self.submit_fabric(request, key, op, now);
                    return;
                }
                Step::Ranges { list } => {
                    let Some(connection) = self.connections.present_mut(key) else { return };
                    let extents = connection.queue.parse_ranges(&command, list.as_slice());
                    let Some(io) = self.requests.present_io(request) else { return };
                    io.request.ranges(extents)
                }
                Step::Device { op, offset, len, buf } => {
                    let token = request.token(kind::REQUEST);
                    let device_flow = io.device_flow;
                    if self.must_report_flush_failure(key, device_flow, &command) {
                        self.finish(request, Err(Failure::MediaWrite), None, now);
                        return;
                    }
                    let Some(io) = self.requests.present_io(request) else { return };
                    io.submitted = now;
                    let op = BlockOp { token, kind: block_kind(op), offset, len, buf };
                    self.trace_state(request, State::Device);
                    match self.devices.submit(command.device, op) {
                        Ok(()) => return,
                        Err((op, error)) => {
                            drop(op);
                            let Some(io) = self.requests.present_io(request) else { return };
                            io.request.fail(from_block(&error, command.kind))
                        }
                    }
                }
                Step::Finish { outcome, data } => {
                    self.finish(request, outcome, data.map(Payload::Buffer), now);
                    return;
                }
            };
        }
    }

    /// Leases the buffers of a request, or queues the request until the pool has some.
    ///
    /// While earlier requests bar it from the pool, it gets only the buffer of its connection.
    #[inline]
    fn lease_or_wait(
        &mut self,
        request: SlotKey,
        key: SlotKey,
        wanted: BufferRequest,
        now: u64,
    ) -> Option<Step<Buffer>> {
        let pooled = if self.buffer_wait.bars(now) { None } else { self.lease(request, wanted) };
        let step = pooled.or_else(|| self.lease_own(request, key, wanted));
        if step.is_none() {
            if let Some(io) = self.requests.present_io(request) {
                io.holdings.waits(now);
            }
            self.buffer_wait.push(request, now);
        }
        step
    }

    /// Gives a request the buffers that it needs, or fails it.
    ///
    /// Returns `None` while the pool has no buffers.
    #[inline]
    fn lease(&mut self, request: SlotKey, wanted: BufferRequest) -> Option<Step<Buffer>> {
        let io = self.requests.present_io(request)?;
        let Ok(len) = usize::try_from(wanted.len) else {
            return Some(io.request.fail(Failure::InvalidField));
        };
        let leased = if wanted.spare {
            self.pool.lease_two(len).map(|(buf, spare)| (buf, Some(spare)))
        } else {
            self.pool.lease(len).map(|buf| (buf, None))
        };
        match leased {
            Ok((buf, spare)) => Some(io.request.leased(buf, spare)),
            Err(LeaseError::Exhausted) => None,
            // The time of the next free buffer is unknown, so the host may try again.
            Err(LeaseError::NoMemory | LeaseError::NotTwo { .. }) => {
                Some(io.request.fail(Failure::Busy))
            }
            Err(LeaseError::TooLarge { .. }) => Some(io.request.fail(Failure::InvalidField)),
        }
    }

    /// Leases the connection's own buffer, as [`Self::lease`] does from the pool.
    ///
    /// A small command therefore proceeds whatever other commands hold.
    #[cold]
    fn lease_own(
        &mut self,
        request: SlotKey,
        key: SlotKey,
        wanted: BufferRequest,
    ) -> Option<Step<Buffer>> {
        let len = usize::try_from(wanted.len).ok().filter(|_| !wanted.spare)?;
        let mut buf = self.connections.get_mut(key)?.own_buffer(len)?;
        buf.truncate(len);
        let io = self.requests.present_io(request)?;
        Some(io.request.leased(buf, None))
    }

    /// Answers a read from device memory (a zero-copy read).
    ///
    /// Returns false if the device does not expose that memory, or the fabric cannot send it.
    #[inline]
    fn try_zero_copy(
        &mut self,
        request: SlotKey,
        connection: SlotKey,
        command: &IoCommand,
        now: u64,
    ) -> bool {
        let Ok(len) = u32::try_from(command.len) else { return false };
        let Some(data) = self.devices.zero_copy_read(command.device, command.offset, len) else {
            return false;
        };
        if !self.connections.get(connection).is_some_and(|c| c.fabric.supports_zero_copy(&data)) {
            return false;
        }
        let Some(io) = self.requests.present_io(request) else { return false };
        io.request.zero_copy();
        record_device_done(io, now);
        self.stats.zero_copy_read(io.stats_key);
        self.finish(request, Ok(()), Some(Payload::ZeroCopy(data)), now);
        true
    }

    /// Answers the host. A request with data ends only when the data has left.
    pub(super) fn finish(
        &mut self,
        request: SlotKey,
        outcome: Result<(), Failure>,
        data: Option<Payload>,
        now: u64,
    ) {
        let Some(io) = self.requests.present_io(request) else { return };
        let key = io.connection;
        let IoCommand { cid, sgl, .. } = *io.request.io();
        let Some(connection) = self.connections.get_mut(key).filter(|c| c.is_live()) else {
            self.drop_request(request, now);
            return;
        };
        let ended =
            if outcome.is_ok() { CommandOutcome::Completed } else { CommandOutcome::Failed };
        if let Some(waiting) = &mut io.abort {
            waiting.aborted = outcome == Err(Failure::Aborted);
        }
        self.stats.completed(connection.listener);
        let Response { cqe, elidable } = connection.queue.complete(cid, outcome);
        let token = request.token(kind::REQUEST);
        if data.is_some() {
            let op = FabricOp::Respond { token, cqe, sgl, data, elidable };
            self.trace_state(request, State::Sending);
            self.submit_fabric(request, key, op, now);
            return;
        }
        let status = cqe.status();
        let op = FabricOp::Respond { token, cqe, sgl, data: None, elidable };
        // Refused only while closing, and then no host is left to read the response.
        let _ = connection.fabric.submit(op);
        self.stats.answered(connection, io, status, now);
        self.trace_done(request, status);
        self.mark_dirty(key);
        self.end_request(request, ended, now);
    }

    fn submit_fabric(&mut self, request: SlotKey, key: SlotKey, op: FabricOp, now: u64) {
        let Some(connection) = self.connections.present_mut(key) else { return };
        if let Err(rejected) = connection.fabric.submit(op) {
            drop(rejected);
            self.drop_request(request, now);
            return;
        }
        if let Some(io) = self.requests.present_io(request) {
            io.holdings.waits(now);
        }
        self.mark_dirty(key);
    }

    /// Continues a request whose host data has arrived, or failed to arrive.
    #[inline]
    pub(super) fn pulled(
        &mut self,
        token: u64,
        buf: Buffer,
        result: Result<(), FabricError>,
        now: u64,
    ) {
        let (_, request) = SlotKey::from_token(token);
        match self.requests.get_mut(request) {
            Some(Pending::Io(io)) => {
                if result.is_ok()
                    && io.request.io().kind == IoKind::Write
                    && let Some(permit) = io.request.permit_mut()
                {
                    permit.host_data_arrived(now);
                }
                io.holdings.goes_on();
                let step = io.request.pulled(buf, result.map_err(from_fabric));
                self.advance(request, step, now);
            }
            Some(Pending::Admin(_)) => self.admin_pulled(request, &buf, result, now),
            _ => {}
        }
    }

    /// Continues a request whose device has completed an operation.
    #[inline]
    pub(super) fn device_done(&mut self, done: Completed, now: u64) {
        let (_, request) = SlotKey::from_token(done.token);
        let io = match self.requests.get_mut(request) {
            Some(Pending::Io(io)) => io,
            Some(Pending::Flush(_)) => return self.flushed(request, done.result.is_ok(), now),
            _ => return,
        };
        let IoCommand { kind, device, .. } = *io.request.io();
        if io.request.is_flushing()
            && let Err(error) = &done.result
        {
            let (connection, device_flow) = (io.connection, io.device_flow);
            self.flush_failed(connection, device_flow, device, error, now);
        }
        let Some(io) = self.requests.present_io(request) else { return };
        let result = done.result.map_err(|error| {
            let device = device.0;
            limited!(LogCategory::DeviceError, warn, device, ?kind, %error, "a device failed a command");
            from_block(&error, kind)
        });
        if kind == IoKind::Read && result.is_ok() {
            record_device_done(io, now);
            self.stats.read(io.stats_key, io.submitted, now);
        }
        let step = io.request.device_done(done.buf, result);
        self.advance(request, step, now);
    }

    /// Ends a request whose response data has left.
    #[inline]
    pub(super) fn sent(&mut self, token: u64, now: u64) {
        let (_, request) = SlotKey::from_token(token);
        if let Some(Pending::Io(io)) = self.requests.get_mut(request)
            && let Some(connection) = self.connections.get_mut(io.connection)
        {
            self.stats.answered(connection, io, Status::SUCCESS, now);
            self.stats.drained(io.device_done_at, now);
            self.trace_done(request, Status::SUCCESS);
        }
        self.end_request(request, CommandOutcome::Completed, now);
    }

    /// Ends a request as failed and releases all its resources.
    pub(super) fn drop_request(&mut self, request: SlotKey, now: u64) {
        self.end_request(request, CommandOutcome::Failed, now);
    }

    /// Ends a request and releases all its resources.
    #[inline]
    fn end_request(&mut self, request: SlotKey, outcome: CommandOutcome, now: u64) {
        self.trace_end(request);
        let Some(Pending::Io(Io {
            connection: key, device_flow, request, abort, holdings, ..
        })) = self.take_request(request)
        else {
            return;
        };
        // The permit belongs to the flow, so it returns before the device flow can end.
        if let Some(permit) = request.into_permit() {
            self.pacer.release(permit, outcome, now);
        }
        self.let_go(key, holdings);
        if let Some(connection) = self.connections.get_mut(key)
            && connection.leave(device_flow)
        {
            self.end_device_flow(key, device_flow);
        }
        if let Some(waiting) = abort {
            self.abort_over(&waiting);
        }
    }

    /// Removes a request. Its connection then has one command less in flight.
    #[inline]
    pub(super) fn take_request(&mut self, request: SlotKey) -> Option<Pending> {
        let key = self.requests.get(request)?.connection();
        let connection = self.connections.get_mut(key);
        let newest = connection.map(|connection| {
            connection.in_flight -= 1;
            &mut connection.newest
        });
        let pending = self.requests.remove(newest, request)?;
        if let Pending::Admin(_) = pending {
            self.admin_over(request, key);
        }
        Some(pending)
    }
}

/// Records that all data of a read is in memory.
#[inline]
fn record_device_done(io: &mut Io, now: u64) {
    io.device_done_at = now;
    if let Some(permit) = io.request.permit_mut() {
        permit.device_done(now);
    }
}

/// Returns the charge of a command against the limits of its host and its namespace.
///
/// Every command but a flush is an I/O. Its data counts wherever it lies.
#[inline]
fn charge(io: &IoCommand) -> Charge {
    match io.kind {
        IoKind::Read | IoKind::Write | IoKind::Compare | IoKind::Verify => {
            Charge::io(u32::try_from(io.len).unwrap_or(u32::MAX))
        }
        IoKind::WriteZeroes { .. } | IoKind::Deallocate { .. } => Charge::io(0),
        IoKind::Flush => Charge::NONE,
    }
}

/// Moves `len` bytes at `offset` of a capsule's data to the start of its buffer.
fn cut(mut data: Buffer, offset: u32, len: u32) -> Option<Buffer> {
    let start = usize::try_from(offset).ok()?;
    let len = usize::try_from(len).ok()?;
    let end = start.checked_add(len)?;
    if end > data.len() {
        return None;
    }
    if start > 0 {
        data.as_mut_slice().copy_within(start..end, 0);
    }
    data.truncate(len);
    Some(data)
}

fn block_kind(op: DeviceOp) -> BlockOpKind {
    match op {
        DeviceOp::Read => BlockOpKind::Read,
        DeviceOp::Write { fua } => BlockOpKind::Write { fua },
        DeviceOp::Flush => BlockOpKind::Flush,
        DeviceOp::WriteZeroes { fua, deallocate } => BlockOpKind::WriteZeroes { fua, deallocate },
        DeviceOp::Deallocate => BlockOpKind::Deallocate,
    }
}
