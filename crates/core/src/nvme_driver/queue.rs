//! One reactor's queue pair for one namespace: it turns operations into commands and returns
//! completions.
//!
//! ```text
//!  submit -> Parent --split--> commands in slots -> ring --> device
//!               |   ^              |   controller stopped: the slots' commands wait in `again`
//!               |   '--all completed, or failed--'
//!               '--> done
//! ```
//!
//! After construction the queue allocates nothing, takes no lock and makes no call: the
//! [gate](super::gate) is one load per poll. Commands are written as they arrive; the doorbell is
//! rung once per poll.
//!
//! **Interrupts** stay enabled while the reactor polls the queue, since VFIO cannot mask an MSI-X
//! vector. The eventfd of the vector counts without any cost to this thread. After several empty
//! polls in a row (see [`QUIET`]) the queue resets it to zero, so that a reactor can sleep on it.
//! With [`ControllerOptions::interrupts`](super::ControllerOptions) off there are none, for
//! reactors that never sleep.
//!
//! **After a reset** all commands without a completion are submitted again: every command of a
//! queue has the same effect if it executes twice. A command that meets a second reset ends with an
//! error; resets before the doorbell covered it do not count. A [cancelled](IoQueue::cancel)
//! operation is never submitted again, because another host may have written there since.

use std::collections::VecDeque;
use std::fmt;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use nvmeof_wire::Sqe;
use nvmeof_wire::nvm::{BlockIo, DatasetManagement, DsmRange};
use nvmeof_wire::opcode::IoOpcode;
use nvmeof_wire::status::Status;
use nvmeof_wire::zerocopy::IntoBytes;

use super::buffers::BufferMap;
use super::controller::{Controller, QueuePairMemory};
use super::function::Registers;
use super::gate::{Counters, GateState, QueueMode, QueueShared, Violation};
use super::identify::NamespaceInfo;
use super::pooled::Pooled;
use super::split::{IoKind, Limits};
use super::status::{timed_out, to_result};
use crate::block::{BlockError, Completed};
use crate::dma::Buffer;

/// Commands an operation may start before the next operation's turn.
const TURN: usize = 8;

/// Empty polls before the eventfd is cleared the first time, and the interval of later clears.
///
/// An interrupt may arrive after its completion was polled.
const QUIET: u32 = 8;
const QUIET_AGAIN: u32 = 64;

/// An operation on a namespace.
#[derive(Debug)]
pub struct Io {
    /// Token of the caller, returned with the completion.
    pub token: u64,
    /// Kind of operation.
    pub kind: IoKind,
    /// First byte, on a block boundary.
    pub offset: u64,
    /// Bytes, in whole blocks.
    pub len: u64,
    /// Memory of at least `len` bytes for operations with data.
    pub buf: Option<Buffer>,
}

/// A queue pair of a controller, used by one thread for one namespace.
pub struct IoQueue {
    controller: Arc<Controller>,
    /// Returns to the controller on drop.
    queue_pair: Pooled<QueuePairMemory>,
    regs: Option<Arc<dyn Registers>>,
    buffers: Arc<BufferMap>,
    namespace: NamespaceInfo,
    limits: Limits,
    abilities: super::identify::ControllerCapabilities,
    /// Gate state that the queue last processed.
    seen: GateState,
    parents: Box<[Option<Parent>]>,
    free_parents: Vec<u16>,
    commands: Box<[Command]>,
    free_commands: Vec<u16>,
    slot_bits: u32,
    /// Operations with bytes that no command covers yet.
    pending: VecDeque<u16>,
    /// Commands that a reset withdrew.
    again: Vec<Piece>,
    done: Vec<Completed>,
    /// [Losses](super::gate::ControllerGate::losses) that a flush of this queue has reported.
    reported_losses: u64,
    /// Consecutive polls without a completion.
    quiet: u32,
}

/// An operation from submit to completion.
#[derive(Debug)]
struct Parent {
    io: Io,
    /// Device address of the buffer.
    address: u64,
    /// Bytes covered by submitted commands.
    sent: u64,
    /// Commands in flight.
    out: u32,
    /// [Losses](super::gate::ControllerGate::losses) when the operation began.
    losses: u64,
    /// The requester is gone: no further command is sent.
    is_cancelled: bool,
    result: Result<(), BlockError>,
}

/// A part of an operation that is one command.
#[derive(Debug, Clone, Copy, Default)]
struct Piece {
    parent: u16,
    /// Bytes from the start of the operation.
    at: u64,
    len: u64,
    /// The doorbell covered it before a reset.
    is_again: bool,
}

/// A command slot.
#[derive(Debug, Clone, Copy, Default)]
struct Command {
    piece: Piece,
    cid: u16,
    /// Position in the submission queue.
    at: u16,
    is_out: bool,
}

impl IoQueue {
    /// Creates a queue on `queue_pair`, which the controller provided.
    pub(super) fn new(
        controller: Arc<Controller>,
        queue_pair: Pooled<QueuePairMemory>,
        buffers: Arc<BufferMap>,
        namespace: NamespaceInfo,
    ) -> Self {
        let slots = queue_pair.ring.entries() - 1;
        let abilities = *controller.abilities();
        Self {
            regs: controller.registers(),
            limits: Limits::new(&abilities, &namespace),
            abilities,
            seen: GateState::NONE,
            parents: (0..slots).map(|_| None).collect(),
            free_parents: (0..slots).rev().collect(),
            commands: (0..slots).map(|_| Command::default()).collect(),
            free_commands: (0..slots).rev().collect(),
            slot_bits: u32::from(queue_pair.ring.entries()).ilog2(),
            pending: VecDeque::with_capacity(slots.into()),
            again: Vec::with_capacity(slots.into()),
            done: Vec::with_capacity(slots.into()),
            reported_losses: controller.shared().losses.load(Ordering::Acquire),
            quiet: 0,
            controller,
            queue_pair,
            buffers,
            namespace,
        }
    }

    /// Returns the namespace of the queue.
    pub fn namespace(&self) -> &NamespaceInfo {
        &self.namespace
    }

    /// Submits an operation; one that can never succeed is taken too and completes with its error.
    ///
    /// # Errors
    /// Returns the operation if the queue is full.
    #[inline]
    pub fn submit(&mut self, io: Io) -> Result<(), Io> {
        if self.seen.mode() == QueueMode::Failed || self.seen.mode() == QueueMode::Abandoned {
            let result = Err(BlockError::Gone);
            self.done.push(Completed { token: io.token, buf: io.buf, result });
            return Ok(());
        }
        let address = match self.check(&io) {
            Ok(Some(address)) => address,
            Ok(None) => {
                self.done.push(Completed { token: io.token, buf: io.buf, result: Ok(()) });
                return Ok(());
            }
            Err(error) => {
                self.done.push(Completed { token: io.token, buf: io.buf, result: Err(error) });
                return Ok(());
            }
        };
        let Some(index) = self.free_parents.pop() else { return Err(io) };
        let losses = self.shared().losses.load(Ordering::Acquire);
        let result = Ok(());
        let parent = Parent { io, address, sent: 0, out: 0, losses, is_cancelled: false, result };
        self.parents[usize::from(index)] = Some(parent);
        let is_next = self.pending.is_empty() && self.again.is_empty();
        if !is_next || self.seen.mode() != QueueMode::Running || self.send_some(index) {
            self.pending.push_back(index);
        }
        Ok(())
    }

    /// Announces submitted commands to the device, and appends completed operations to `done`.
    #[inline]
    pub fn poll(&mut self, done: &mut Vec<Completed>) {
        let word = self.shared().word();
        if word != self.seen {
            self.gate_changed(word);
        }
        self.work();
        if self.done.is_empty() {
            self.found_nothing();
        } else {
            self.quiet = 0;
        }
        done.append(&mut self.done);
    }

    /// Sends no further command of the operations with this token, whose requester is gone.
    ///
    /// Commands at the device complete as usual; a reset ends them. See
    /// [`BlockQueue::cancel`](crate::block::BlockQueue::cancel).
    pub fn cancel(&mut self, token: u64) {
        let mut any = false;
        for (index, place) in self.parents.iter_mut().enumerate() {
            let Some(parent) = place.as_mut().filter(|parent| parent.io.token == token) else {
                continue;
            };
            parent.is_cancelled = true;
            let waits = parent.sent < parent.io.len
                || (parent.io.kind == IoKind::Flush && parent.out == 0)
                || self.again.iter().any(|piece| usize::from(piece.parent) == index);
            if waits && parent.result.is_ok() {
                parent.result = Err(BlockError::Cancelled);
                any = true;
            }
        }
        if any {
            self.drop_failed();
            self.queue_shared().wake();
        }
    }

    /// Returns the number of operations submitted and not returned.
    #[inline]
    pub fn in_flight(&self) -> usize {
        self.parents.len() - self.free_parents.len() + self.done.len()
    }

    /// Returns a descriptor that is readable when completions may be available; `None` without
    /// interrupts.
    pub fn event_fd(&self) -> Option<BorrowedFd<'_>> {
        self.queue_shared().event().map(AsFd::as_fd)
    }

    /// Reaps completions, submits commands for free slots, and rings both doorbells.
    #[inline]
    fn work(&mut self) {
        if self.seen.mode() != QueueMode::Running {
            return;
        }
        self.reap();
        self.send_pending();
        if let Some(regs) = &self.regs {
            self.queue_pair.ring.ring(regs.as_ref());
        }
    }

    fn shared(&self) -> &super::gate::ControllerGate {
        self.controller.shared()
    }

    fn queue_shared(&self) -> &QueueShared {
        &self.controller.shared().queues[self.queue_pair.index]
    }

    /// Checks an operation. Returns the buffer's address (0 without one), or `None` if there is
    /// nothing to do.
    #[inline]
    fn check(&self, io: &Io) -> Result<Option<u64>, BlockError> {
        let (offset, len) = (io.offset, io.len);
        match io.kind {
            IoKind::Flush => return Ok(self.abilities.volatile_cache.then_some(0)),
            // Deallocation is advisory, and not every drive supports it.
            IoKind::Deallocate if !self.abilities.deallocate => return Ok(None),
            IoKind::WriteZeroes { .. } if !self.abilities.write_zeroes => {
                return Err(BlockError::Unsupported);
            }
            IoKind::Compare if !self.abilities.compare => return Err(BlockError::Unsupported),
            IoKind::Verify if !self.abilities.verify => return Err(BlockError::Unsupported),
            _ => {}
        }
        if self.namespace.read_only && io.kind.is_write() {
            return Err(BlockError::ReadOnly);
        }
        if offset.checked_add(len).is_none_or(|end| end > self.namespace.size()) {
            return Err(BlockError::OutOfRange { offset, len });
        }
        let inside = u64::from(self.namespace.block_size) - 1;
        if (offset | len) & inside != 0 {
            return Err(BlockError::Misaligned { offset, len });
        }
        if len == 0 {
            return Ok(None);
        }
        if !io.kind.moves_data() {
            return Ok(Some(0));
        }
        let fitting = io.buf.as_ref().filter(|buf| buf.len() as u64 >= len);
        let Some(buf) = fitting else { return Err(BlockError::Misaligned { offset, len }) };
        match self.buffers.address_of(buf) {
            // PRPs and SGLs are whole dwords (Base 4.1.1).
            Some(address) if address % 4 == 0 => Ok(Some(address)),
            Some(_) => Err(BlockError::Misaligned { offset, len }),
            None => Err(self.unreachable()),
        }
    }

    /// Returns the reason why a buffer has no address: it was unmapped when the controller failed,
    /// or never mapped.
    #[cold]
    fn unreachable(&self) -> BlockError {
        match self.shared().word().mode() {
            QueueMode::Failed | QueueMode::Abandoned => BlockError::Gone,
            _ => BlockError::NoMemory,
        }
    }

    #[inline]
    fn send_pending(&mut self) {
        while !self.again.is_empty() && !self.free_commands.is_empty() {
            if let Some(piece) = self.again.pop() {
                self.send(piece);
            }
        }
        while !self.free_commands.is_empty() {
            let Some(index) = self.pending.pop_front() else { return };
            if self.send_some(index) {
                self.pending.push_back(index);
            }
        }
    }

    /// Sends a few commands of one operation; returns true if there are more to send.
    #[inline]
    fn send_some(&mut self, index: u16) -> bool {
        for _ in 0..TURN {
            let Some(parent) = parent_of(&mut self.parents, index) else { return false };
            let left = parent.io.len - parent.sent;
            let is_over = left == 0 && (parent.io.kind != IoKind::Flush || parent.out > 0);
            if is_over || parent.result.is_err() {
                self.finish_if_over(index);
                return false;
            }
            if self.free_commands.is_empty() {
                return true;
            }
            let at = parent.sent;
            let len = self.limits.piece(parent.io.kind, parent.io.offset + at, left);
            parent.sent += len;
            parent.out += 1;
            self.send(Piece { parent: index, at, len, is_again: false });
        }
        self.parents[usize::from(index)].as_ref().is_some_and(|parent| parent.sent < parent.io.len)
    }

    /// Writes the command of a piece, which its parent counts as in flight.
    #[inline]
    fn send(&mut self, piece: Piece) {
        let Some(parent) = &self.parents[usize::from(piece.parent)] else {
            debug_assert!(false, "a piece outlives its operation");
            return;
        };
        let Some(index) = self.free_commands.pop() else {
            debug_assert!(false, "a piece is sent without a free slot");
            self.again.push(piece);
            return;
        };
        let slot = usize::from(index);
        let command = &mut self.commands[slot];
        // Slot in the low bits, generation in the high bits: a late completion does not match the
        // reused slot.
        let at = self.queue_pair.ring.tail();
        let cid = (command.cid & !(self.queue_pair.ring.entries() - 1))
            .wrapping_add(1 << self.slot_bits)
            | index;
        *command = Command { piece, cid, at, is_out: true };
        let sqe = self.entry(parent, slot, piece, cid);
        let shared = self.controller.shared();
        shared.queues[self.queue_pair.index].begin(slot, cid, shared.tick());
        self.queue_pair.ring.push(&sqe);
    }

    /// Builds the submission queue entry of a piece.
    #[inline]
    fn entry(&self, parent: &Parent, slot: usize, piece: Piece, cid: u16) -> Sqe {
        let (nsid, io) = (self.namespace.nsid, &parent.io);
        let slba = (io.offset + piece.at) >> self.limits.block_shift;
        let blocks = piece.len >> self.limits.block_shift;
        debug_assert!(blocks <= u64::from(u32::MAX), "a piece is within the limits");
        let blocks = u32::try_from(blocks).unwrap_or(u32::MAX);
        let mut command = BlockIo::new(slba, blocks);
        let (opcode, has_data) = match io.kind {
            IoKind::Read => (IoOpcode::READ, true),
            IoKind::Write { fua } => {
                command.fua = fua;
                (IoOpcode::WRITE, true)
            }
            IoKind::Compare => (IoOpcode::COMPARE, true),
            IoKind::Verify => (IoOpcode::VERIFY, false),
            IoKind::WriteZeroes { fua, deallocate } => {
                command.fua = fua;
                command.deallocate = deallocate && self.namespace.zeroes_deallocate;
                (IoOpcode::WRITE_ZEROES, false)
            }
            IoKind::Deallocate => {
                let range = DsmRange::new(slba, blocks);
                let command = DatasetManagement {
                    ranges: 1,
                    deallocate: true,
                    integral_write: false,
                    integral_read: false,
                };
                return self.queue_pair.lists.carry(
                    command.encode(cid, nsid),
                    slot,
                    range.as_bytes(),
                );
            }
            IoKind::Flush => return Sqe::io(IoOpcode::FLUSH, cid, nsid).without_data(),
        };
        let sqe = command.encode(opcode, cid, nsid);
        if !has_data {
            return sqe.without_data();
        }
        self.queue_pair.lists.point(
            sqe,
            slot,
            parent.address + piece.at,
            piece.len,
            self.queue_pair.sgl,
        )
    }

    /// Processes the available completions.
    #[inline]
    fn reap(&mut self) {
        // More completions than the queue has entries match no command.
        for _ in 0..self.queue_pair.ring.entries() {
            let Some(cqe) = self.queue_pair.ring.pop() else { return };
            let cid = cqe.cid.get();
            let slot = usize::from(cid & (self.queue_pair.ring.entries() - 1));
            let command = self.commands.get_mut(slot);
            let Some(command) = command.filter(|command| command.is_out && command.cid == cid)
            else {
                return self.broken(Violation::UnknownCommand);
            };
            if cqe.sqid.get() != self.queue_pair.ring.qid() {
                return self.broken(Violation::OtherQueue);
            }
            command.is_out = false;
            let piece = command.piece;
            self.queue_shared().end(slot);
            self.free_commands.push(cid & (self.queue_pair.ring.entries() - 1));
            self.answered(piece, cqe.status());
        }
    }

    #[inline]
    fn answered(&mut self, piece: Piece, status: Status) {
        let Some(parent) = parent_of(&mut self.parents, piece.parent) else { return };
        parent.out -= 1;
        if !status.is_success() && parent.result.is_ok() {
            parent.result = to_result(status, parent.io.offset + piece.at, piece.len);
        }
        self.finish_if_over(piece.parent);
    }

    /// Completes an operation with no command in flight and none to send.
    #[inline]
    fn finish_if_over(&mut self, index: u16) {
        let losses = self.controller.shared().losses.load(Ordering::Acquire);
        let place = &mut self.parents[usize::from(index)];
        let is_over = |parent: &&mut Parent| {
            parent.out == 0 && (parent.sent == parent.io.len || parent.result.is_err())
        };
        let Some(parent) = place.as_mut().filter(is_over) else { return };
        if parent.sent < parent.io.len && self.pending.contains(&index) {
            // It failed before all of it was sent, and ends when `pending` reaches it.
        } else if parent.begins_anew(losses) {
            self.pending.push_back(index);
        } else if let Some(parent) = place.take() {
            self.free_parents.push(index);
            let mut result = parent.result;
            if parent.io.kind == IoKind::Flush {
                result = self.flushed(result);
            }
            self.done.push(Completed { token: parent.io.token, buf: parent.io.buf, result });
        }
    }

    /// Returns the result of a flush that the device completed with `result`. Each queue reports a
    /// loss once: with every flush that it has in flight when it detects the loss.
    fn flushed(&mut self, result: Result<(), BlockError>) -> Result<(), BlockError> {
        let losses = &self.controller.shared().losses;
        if let Err(BlockError::Media { .. } | BlockError::Io(libc::EIO)) = result {
            // Flushes cover the whole namespace: the lost write may belong to another queue.
            losses.fetch_add(1, Ordering::AcqRel);
        }
        let losses = losses.load(Ordering::Acquire);
        if losses == self.reported_losses {
            return result;
        }
        self.reported_losses = losses;
        let flushes = self.parents.iter_mut().flatten();
        for flush in flushes.filter(|parent| parent.io.kind == IoKind::Flush) {
            if flush.result.is_ok() {
                flush.result = Err(BlockError::FlushLost);
            }
        }
        result.and(Err(BlockError::FlushLost))
    }

    /// Records a protocol violation of the device, for which the supervisor resets it.
    #[cold]
    fn broken(&self, violation: Violation) {
        self.queue_shared().set_violation(violation);
        self.shared().supervisor.raise();
    }

    #[cold]
    fn found_nothing(&mut self) {
        self.quiet = self.quiet.wrapping_add(1);
        if (self.quiet == QUIET || self.quiet.is_multiple_of(QUIET_AGAIN))
            && let Some(event) = self.queue_shared().event()
        {
            event.clear();
            // Nothing signals again what arrived before the clear: a gate change, completions, or
            // the free slots they make.
            let word = self.shared().word();
            if word != self.seen {
                self.gate_changed(word);
            }
            self.work();
        }
    }

    /// Processes a change of the gate, then acknowledges it.
    #[cold]
    fn gate_changed(&mut self, word: GateState) {
        match word.mode() {
            QueueMode::Running => self.queue_pair.ring.begin(word.generation()),
            QueueMode::Halted => {}
            QueueMode::Stopped => self.take_back(),
            QueueMode::Failed | QueueMode::Abandoned => {
                self.end_all(word.mode() == QueueMode::Abandoned);
                // The function returns to the system when no queue holds its registers.
                self.regs = None;
            }
        }
        self.seen = word;
        self.queue_shared().ack(word);
        self.shared().supervisor.raise();
    }

    /// Withdraws commands, because the device cannot write: they are sent again, or fail if that
    /// was tried before.
    fn take_back(&mut self) {
        for (index, slot) in (0_u16..).zip(0..self.commands.len()) {
            let command = &mut self.commands[slot];
            if !std::mem::take(&mut command.is_out) {
                continue;
            }
            let mut piece = command.piece;
            // A command that the doorbell did not cover loses no attempt.
            let is_shown = self.queue_pair.ring.is_shown(command.at);
            self.queue_shared().end(slot);
            self.free_commands.push(index);
            let Some(parent) = parent_of(&mut self.parents, piece.parent) else { continue };
            let is_wanted = parent.result.is_ok() && !parent.is_cancelled;
            if !(piece.is_again && is_shown) && is_wanted {
                if is_shown {
                    Counters::add(&self.controller.shared().counters.resubmitted, 1);
                }
                piece.is_again |= is_shown;
                self.again.push(piece);
                continue;
            }
            parent.out -= 1;
            if parent.result.is_ok() {
                let cancelled = parent.is_cancelled;
                parent.result = Err(if cancelled { BlockError::Cancelled } else { timed_out() });
            }
            self.finish_if_over(piece.parent);
        }
        self.drop_failed();
    }

    /// Drops the unsent commands of failed operations.
    fn drop_failed(&mut self) {
        let mut again = std::mem::take(&mut self.again);
        again.retain(|piece| {
            let Some(parent) = parent_of(&mut self.parents, piece.parent) else { return false };
            if parent.result.is_ok() {
                return true;
            }
            parent.out -= 1;
            self.finish_if_over(piece.parent);
            false
        });
        self.again = again;
        for _ in 0..self.pending.len() {
            let Some(index) = self.pending.pop_front() else { break };
            let is_ok = self.parents[usize::from(index)].as_ref().is_some_and(|p| p.result.is_ok());
            if is_ok {
                self.pending.push_back(index);
            } else {
                self.finish_if_over(index);
            }
        }
    }

    /// Ends all operations, because the controller has failed. If the device may still write to
    /// buffers (`abandoned`), those of commands in flight are never reused.
    fn end_all(&mut self, abandoned: bool) {
        let mut lost = vec![false; self.parents.len()];
        for (index, slot) in (0_u16..).zip(0..self.commands.len()) {
            let command = &mut self.commands[slot];
            if std::mem::take(&mut command.is_out) {
                lost[usize::from(command.piece.parent)] = abandoned;
                self.free_commands.push(index);
                self.queue_shared().end(slot);
            }
        }
        self.pending.clear();
        self.again.clear();
        for (index, place) in (0_u16..).zip(&mut self.parents) {
            let Some(mut parent) = place.take() else { continue };
            self.free_parents.push(index);
            if lost[usize::from(index)]
                && let Some(buf) = parent.io.buf.take()
            {
                let counters = &self.controller.shared().counters;
                Counters::add(&counters.leaked_buffers, 1);
                Counters::add(&counters.leaked_bytes, buf.capacity() as u64);
                tracing::error!(
                    drive = self.controller.address(),
                    bytes = buf.capacity(),
                    "buffer abandoned: nothing proves that the drive cannot write to its memory"
                );
                // Deliberate: dropping it would lease it again.
                std::mem::forget(buf);
            }
            let result = Err(BlockError::Gone);
            self.done.push(Completed { token: parent.io.token, buf: parent.io.buf, result });
        }
    }
}

/// Returns the operation of a piece or a pending index, which lives until its last piece ended.
#[inline]
fn parent_of(parents: &mut [Option<Parent>], index: u16) -> Option<&mut Parent> {
    let parent = parents[usize::from(index)].as_mut();
    debug_assert!(parent.is_some(), "operation {index} ended before its pieces");
    parent
}

impl Parent {
    /// Returns true if a write must be repeated from the start, unless its requester is gone: a
    /// loss followed completions of its commands, so a later flush may not cover them.
    #[inline]
    fn begins_anew(&mut self, losses: u64) -> bool {
        if self.losses == losses || self.result.is_err() {
            return false;
        }
        self.losses = losses;
        let is_in_doubt = matches!(
            self.io.kind,
            IoKind::Write { fua: false } | IoKind::WriteZeroes { fua: false, .. }
        );
        if is_in_doubt && self.is_cancelled {
            self.result = Err(BlockError::Cancelled);
        }
        let again = is_in_doubt && !self.is_cancelled;
        if again {
            self.sent = 0;
        }
        again
    }
}

impl fmt::Debug for IoQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("IoQueue")
            .field("drive", &self.controller.address())
            .field("nsid", &self.namespace.nsid)
            .field("ring", &self.queue_pair.ring)
            .field("gate", &self.seen)
            .field("in_flight", &self.in_flight())
            .field("pending", &self.pending.len())
            .field("again", &self.again.len())
            .finish_non_exhaustive()
    }
}

impl Drop for IoQueue {
    fn drop(&mut self) {
        for parent in self.parents.iter_mut().flatten() {
            parent.result = Err(BlockError::Cancelled);
        }
        self.drop_failed();
        let mut done = Vec::new();
        // The loop ends: the supervisor ensures that every command completes, or the controller
        // stops.
        while self.in_flight() > 0 {
            self.poll(&mut done);
            done.clear();
            if self.in_flight() > 0 {
                self.controller.pass_time(self.event_fd());
            }
        }
        self.queue_shared().set_claimed(false);
        self.shared().supervisor.raise();
    }
}
