//! Outstanding commands of a queue pair.
//!
//! ```text
//!          submit              flush                response, and send done if it holds memory
//! (free) ----------> Waiting ---------> Posted -----------------------------------------> (free)
//!                       `--response--> the peer completes an unsent command: the connection ends
//! ```
//!
//! A slot of [`CommandTable`] owns the command's buffer until the end of this sequence. When the
//! connection ends earlier, the QP is dropped first.

use std::collections::VecDeque;
use std::sync::Arc;

use nvmeof_verbs::{AccessFlags, Device, SendOp, Sge, VerbsError, WcStatus, WorkCompletion, WrId};
use nvmeof_wire::cqe::CQE_SIZE;
use nvmeof_wire::sgl::Sgl;
use nvmeof_wire::sqe::SQE_SIZE;
use nvmeof_wire::zerocopy::{FromBytes, IntoBytes};
use nvmeof_wire::{Cqe, U16};

use super::MAX_TRANSFER;
use super::post::{MemoryKeys, Qp, SendRequest, register};
use super::sends::{SEND, SendQueueSlots};
use crate::command_table::CommandTable;
use crate::{
    Command, CommandError, CompletedCommand, Nanos, RejectReason, RejectedCommand, Transfer,
};

/// Kind of a receive's [`WrId`].
const RECEIVE: u8 = 2;
/// Maximum work requests posted with one doorbell.
const CHAIN: usize = 64;

/// Reason for ending a connection.
#[derive(Debug)]
pub(super) enum ConnectionError {
    /// The peer violated the protocol.
    Peer(String),
    /// The connection or the device failed.
    Link(String),
    /// The device or the address has disappeared, which explains all other failures.
    Gone(&'static str),
    /// All posted work is flushed; an event of the connection has the reason.
    Flushed,
    /// An RDMA operation failed.
    Verbs(VerbsError),
}

/// State of a slot's capsule.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Free,
    Waiting { data: Option<Sge> },
    Posted,
}

/// Limits of the two ends and of the device.
#[derive(Debug, Clone, Copy)]
pub(super) struct NegotiatedLimits {
    /// Maximum commands outstanding.
    pub(super) depth: u16,
    /// Maximum commands that are posted and have no response.
    pub(super) window: u16,
    /// Entries of the send queue.
    pub(super) sends: u16,
    /// Posted receives.
    pub(super) receives: u16,
    /// Maximum bytes of in-capsule data.
    pub(super) in_capsule: u32,
    /// Bytes between a command and its in-capsule data.
    pub(super) offset: usize,
    /// Commands without in-capsule data are sent inline.
    pub(super) inline: bool,
}

#[derive(Debug)]
pub(super) struct RdmaCommands {
    limits: NegotiatedLimits,
    table: CommandTable,
    phases: Box<[Phase]>,
    /// Waiting commands, in order.
    waiting: VecDeque<u16>,
    sends: SendQueueSlots,
    /// Commands that are posted and have no response.
    unanswered: u16,
    /// Number of uses of each receive's slot.
    uses: Box<[u32]>,
    chain: Vec<SendRequest>,
    error: Option<ConnectionError>,
}

impl RdmaCommands {
    pub(super) fn new(limits: NegotiatedLimits) -> Self {
        Self {
            limits,
            table: CommandTable::new(limits.depth),
            phases: (0..limits.depth.max(1)).map(|_| Phase::Free).collect(),
            waiting: VecDeque::with_capacity(limits.depth.into()),
            sends: SendQueueSlots::new(limits.sends.into()),
            unanswered: 0,
            uses: (0..limits.receives).map(|_| 0).collect(),
            chain: Vec::with_capacity(CHAIN),
            error: None,
        }
    }

    /// Takes the error of a submission that ends the connection.
    pub(super) fn take_error(&mut self) -> Option<ConnectionError> {
        self.error.take()
    }

    pub(super) fn has_error(&self) -> bool {
        self.error.is_some()
    }

    pub(super) fn table(&self) -> &CommandTable {
        &self.table
    }

    /// Limits the window to the controller's `receives`, so that it has a receive for every
    /// command.
    pub(super) fn bound_window(&mut self, receives: u16) {
        self.limits.window = self.limits.window.min(receives).max(1);
    }

    /// Posts every receive.
    pub(super) fn post_receives<D: Device>(
        &mut self,
        qp: &mut Qp<D>,
    ) -> Result<(), ConnectionError> {
        (0..self.limits.receives).try_for_each(|slot| self.post_receive(qp, slot))
    }

    /// Queues a command for sending. [`Self::take_error`] returns an error of the device.
    #[expect(clippy::result_large_err, reason = "a submission that fails hands the command back")]
    pub(super) fn submit<D: Device>(
        &mut self,
        qp: &mut Qp<D>,
        device: &Arc<D>,
        mut command: Command,
        deadline: Nanos,
    ) -> Result<(), RejectedCommand> {
        let (buffer, remote) = match &mut command.transfer {
            Transfer::None => (None, AccessFlags::default()),
            Transfer::In(buffer) => {
                let to_us =
                    AccessFlags { local_write: true, remote_write: true, remote_read: false };
                (Some(buffer), to_us)
            }
            Transfer::Out(buffer) => {
                (Some(buffer), AccessFlags { remote_read: true, ..AccessFlags::default() })
            }
        };
        let is_out = remote.remote_read;
        let buffer = buffer.filter(|buffer| !buffer.is_empty());
        let length = match buffer.as_ref().map_or(Ok(0), |buffer| u32::try_from(buffer.len())) {
            Ok(length) if u64::from(length) <= MAX_TRANSFER => length,
            _ => return Err(RejectedCommand { command, reason: RejectReason::TooLarge }),
        };
        if self.error.is_some() {
            return Err(RejectedCommand { command, reason: RejectReason::Closed });
        }
        if self.table.is_full() {
            return Err(RejectedCommand { command, reason: RejectReason::Full });
        }
        let in_capsule = is_out && length > 0 && length <= self.limits.in_capsule;
        let needed = if in_capsule { AccessFlags::default() } else { remote };
        let keys = match buffer
            .map_or(Ok(MemoryKeys::default()), |buffer| register(device, buffer, needed))
        {
            Ok(keys) => keys,
            Err(error) => {
                self.error = Some(ConnectionError::Verbs(error));
                return Err(RejectedCommand { command, reason: RejectReason::Closed });
            }
        };
        let MemoryKeys { address, lkey, rkey: key } = keys;
        let (sgl, data) = if in_capsule {
            (Sgl::InCapsule { offset: 0, length }, Some(Sge { address, length, lkey }))
        } else {
            (Sgl::Keyed { address, length, key, invalidate: false }, None)
        };
        let mut sqe = command.sqe.with_sgl(sgl);
        let Some((cid, outstanding)) = self.table.insert(command, deadline) else { return Ok(()) };
        outstanding.moved = length;
        // The capsule counts as unsent until it is posted inline, or until its send has completed.
        outstanding.unsent = 1;
        sqe.cid = U16::new(cid);
        let slot = CommandTable::index(cid);
        if let Some((head, _)) = qp.outbox.bytes(slot).split_at_mut_checked(SQE_SIZE) {
            head.copy_from_slice(sqe.as_bytes());
        }
        self.phases[usize::from(slot)] = Phase::Waiting { data };
        self.waiting.push_back(cid);
        Ok(())
    }

    /// Posts waiting commands while the send queue and the controller have room.
    pub(super) fn flush<D: Device>(&mut self, qp: &mut Qp<D>) -> Result<(), ConnectionError> {
        while !self.waiting.is_empty() {
            let window = self.limits.window.saturating_sub(self.unanswered);
            let most = self.sends.room().min(window.into()).min(CHAIN).min(self.waiting.len());
            if most == 0 {
                return Ok(());
            }
            self.chain.clear();
            for cid in self.waiting.drain(..most) {
                let slot = CommandTable::index(cid);
                let Phase::Waiting { data } = self.phases[usize::from(slot)] else { continue };
                let inline = self.limits.inline && data.is_none();
                let (id, signaled) = self.sends.push(cid, !inline);
                let len = if data.is_some() { SQE_SIZE + self.limits.offset } else { SQE_SIZE };
                let operation = SendOp::Send;
                self.chain.push(SendRequest { id, operation, slot, len, data, signaled, inline });
            }
            let posted = qp.post_send(&self.chain);
            let taken = posted.as_ref().map_or_else(|refused| refused.taken, |()| self.chain.len());
            self.posted(taken);
            posted.map_err(|refused| ConnectionError::Link(refused.to_string()))?;
        }
        Ok(())
    }

    /// Records that the first `taken` of the chain are posted.
    fn posted(&mut self, taken: usize) {
        for out in self.chain.iter().take(taken) {
            self.phases[usize::from(out.slot)] = Phase::Posted;
            self.unanswered += 1;
            if out.inline {
                // The cid is the send's slot. The command cannot complete here, because it has no
                // response yet.
                let cid = u16::try_from(out.id.slot()).unwrap_or(u16::MAX);
                self.table.piece_sent(cid, &mut Vec::new());
            }
        }
        self.sends.pop(self.chain.len().saturating_sub(taken));
    }

    /// Processes a completion. It posts a receive again if the connection `goes_on`.
    pub(super) fn completed<D: Device>(
        &mut self,
        qp: &mut Qp<D>,
        completion: &WorkCompletion,
        goes_on: bool,
        done: &mut Vec<CompletedCommand>,
    ) -> Result<(), ConnectionError> {
        let (id, status) = (completion.id, completion.status);
        if status != WcStatus::Success {
            return Err(failure(id, status));
        }
        if id.kind() == SEND {
            let table = &mut self.table;
            let is_known = self.sends.complete(id, |sent| {
                if sent.holds_memory {
                    qp.outbox.reclaim(CommandTable::index(sent.cid));
                    table.piece_sent(sent.cid, done);
                }
            });
            return if is_known { Ok(()) } else { Err(stray(id)) };
        }
        let cqe = self.received(qp, completion)?;
        if goes_on {
            // The receive is posted before the response is processed, so that slow work never
            // delays it.
            self.post_receive(qp, u16::try_from(id.slot()).unwrap_or(u16::MAX))?;
        }
        self.answered(&cqe, done)
    }

    /// Copies a response out of its receive.
    fn received<D: Device>(
        &mut self,
        qp: &mut Qp<D>,
        completion: &WorkCompletion,
    ) -> Result<Cqe, ConnectionError> {
        let id = completion.id;
        let slot = u16::try_from(id.slot()).map_err(|_| stray(id))?;
        let uses = self.uses.get_mut(usize::from(slot)).ok_or_else(|| stray(id))?;
        if id != WrId::new(RECEIVE, *uses, slot.into()) {
            return Err(stray(id));
        }
        *uses = uses.wrapping_add(1);
        qp.inbox.reclaim(slot);
        if completion.bytes as usize != CQE_SIZE {
            let bytes = completion.bytes;
            return Err(ConnectionError::Peer(format!(
                "a response of {bytes} bytes, not {CQE_SIZE}"
            )));
        }
        if let Some(key) = completion.invalidated {
            let what =
                format!("a response that invalidates key {key:#x}, which no command asks for");
            return Err(ConnectionError::Peer(what));
        }
        let (cqe, _) = Cqe::read_from_prefix(qp.inbox.bytes(slot)).map_err(|_| stray(id))?;
        Ok(cqe)
    }

    /// Processes a response of the controller.
    fn answered(
        &mut self,
        cqe: &Cqe,
        done: &mut Vec<CompletedCommand>,
    ) -> Result<(), ConnectionError> {
        let cid = cqe.cid.get();
        let slot = usize::from(CommandTable::index(cid));
        let status = cqe.status();
        let result = if status.is_success() {
            Ok(cqe.result.get())
        } else {
            Err(CommandError::Status { status, dw0: cqe.dw0() })
        };
        let was_sent = self.phases.get(slot) == Some(&Phase::Posted);
        if !was_sent || !self.table.complete(cid, result, done) {
            let what = format!("a response to command {cid:#06x}, which is not outstanding");
            return Err(ConnectionError::Peer(what));
        }
        self.phases[slot] = Phase::Free;
        self.unanswered = self.unanswered.saturating_sub(1);
        Ok(())
    }

    /// Ends every command. The QP is dropped, so no device accesses their buffers.
    pub(super) fn fail_all(&mut self, now: Nanos, done: &mut Vec<CompletedCommand>) {
        self.waiting.clear();
        self.table.fail_all(now, done);
    }

    fn post_receive<D: Device>(&self, qp: &mut Qp<D>, slot: u16) -> Result<(), ConnectionError> {
        let uses = self.uses.get(usize::from(slot)).copied().unwrap_or(0);
        let id = WrId::new(RECEIVE, uses, slot.into());
        let posted = qp.post_receive(id, slot);
        posted
            .map_err(|error| ConnectionError::Link(format!("a receive cannot be posted: {error}")))
    }
}

fn stray(id: WrId) -> ConnectionError {
    ConnectionError::Link(format!("device completed an unknown work request ({id:?})"))
}

/// Converts the status of a failed work request.
fn failure(id: WrId, status: WcStatus) -> ConnectionError {
    let what = if id.kind() == SEND { "a command" } else { "a receive" };
    match status {
        WcStatus::Success | WcStatus::Flushed => ConnectionError::Flushed,
        WcStatus::RemoteAccess => {
            ConnectionError::Link(format!("{what} was refused by the target's device"))
        }
        WcStatus::ReceiverNotReady => {
            ConnectionError::Link("the target had no receive for a command for too long".into())
        }
        WcStatus::Unreachable => ConnectionError::Link(
            "the target stopped responding; check the network and the target".into(),
        ),
        WcStatus::Other(status) => {
            ConnectionError::Link(format!("{what} ended with work completion status {status}"))
        }
    }
}
