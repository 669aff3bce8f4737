//! Outstanding commands of a queue pair.
//!
//! ```text
//!          submit              flush                response, and send done if it holds memory
//! (free) ----------> Waiting ---------> Posted -----------------------------------------> (free)
//!                       `--response--> the peer completes an unsent command: the connection ends
//! ```
//!
//! A slot of [`Slots`] owns the command's buffer until the end of this sequence. When the
//! connection ends earlier, the pair is dropped first.

use std::collections::VecDeque;
use std::sync::Arc;

use nvmeof_verbs::{AccessFlags, Device, SendOp, Sge, VerbsError, WcStatus, WorkCompletion, WrId};
use nvmeof_wire::cqe::CQE_SIZE;
use nvmeof_wire::sgl::Sgl;
use nvmeof_wire::sqe::SQE_SIZE;
use nvmeof_wire::zerocopy::{FromBytes, IntoBytes};
use nvmeof_wire::{Cqe, U16};

use super::MAX_TRANSFER;
use super::post::{Keys, Outgoing, Pair, register};
use super::sends::{SEND, Sends};
use crate::slots::Slots;
use crate::{Command, CommandError, Completed, Nanos, RejectReason, Rejected, Transfer};

/// Kind of a receive's [`WrId`].
const RECEIVE: u8 = 2;
/// Maximum work requests posted with one doorbell.
const CHAIN: usize = 64;

/// Reason for ending a connection.
#[derive(Debug)]
pub(super) enum Trouble {
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
pub(super) struct Rules {
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
pub(super) struct Commands {
    rules: Rules,
    slots: Slots,
    phases: Box<[Phase]>,
    /// Waiting commands, in order.
    waiting: VecDeque<u16>,
    sends: Sends,
    /// Commands that are posted and have no response.
    unanswered: u16,
    /// Number of uses of each receive's slot.
    uses: Box<[u32]>,
    chain: Vec<Outgoing>,
    trouble: Option<Trouble>,
}

impl Commands {
    pub(super) fn new(rules: Rules) -> Self {
        Self {
            rules,
            slots: Slots::new(rules.depth),
            phases: (0..rules.depth.max(1)).map(|_| Phase::Free).collect(),
            waiting: VecDeque::with_capacity(rules.depth.into()),
            sends: Sends::new(rules.sends.into()),
            unanswered: 0,
            uses: (0..rules.receives).map(|_| 0).collect(),
            chain: Vec::with_capacity(CHAIN),
            trouble: None,
        }
    }

    /// Takes the error of a submission that ends the connection.
    pub(super) fn take_trouble(&mut self) -> Option<Trouble> {
        self.trouble.take()
    }

    pub(super) fn has_trouble(&self) -> bool {
        self.trouble.is_some()
    }

    pub(super) fn slots(&self) -> &Slots {
        &self.slots
    }

    /// Limits the window to the controller's `receives`, so that it has a receive for every
    /// command.
    pub(super) fn bound_window(&mut self, receives: u16) {
        self.rules.window = self.rules.window.min(receives).max(1);
    }

    /// Posts every receive.
    pub(super) fn post_receives<D: Device>(&mut self, pair: &mut Pair<D>) -> Result<(), Trouble> {
        (0..self.rules.receives).try_for_each(|slot| self.post_receive(pair, slot))
    }

    /// Queues a command for sending. [`Self::take_trouble`] returns an error of the device.
    #[expect(clippy::result_large_err, reason = "a submission that fails hands the command back")]
    pub(super) fn submit<D: Device>(
        &mut self,
        pair: &mut Pair<D>,
        device: &Arc<D>,
        mut command: Command,
        deadline: Nanos,
    ) -> Result<(), Rejected> {
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
            _ => return Err(Rejected { command, why: RejectReason::TooLarge }),
        };
        if self.trouble.is_some() {
            return Err(Rejected { command, why: RejectReason::Closed });
        }
        if self.slots.is_full() {
            return Err(Rejected { command, why: RejectReason::Full });
        }
        let in_capsule = is_out && length > 0 && length <= self.rules.in_capsule;
        let needed = if in_capsule { AccessFlags::default() } else { remote };
        let keys =
            match buffer.map_or(Ok(Keys::default()), |buffer| register(device, buffer, needed)) {
                Ok(keys) => keys,
                Err(error) => {
                    self.trouble = Some(Trouble::Verbs(error));
                    return Err(Rejected { command, why: RejectReason::Closed });
                }
            };
        let Keys { address, lkey, rkey: key } = keys;
        let (sgl, data) = if in_capsule {
            (Sgl::InCapsule { offset: 0, length }, Some(Sge { address, length, lkey }))
        } else {
            (Sgl::Keyed { address, length, key, invalidate: false }, None)
        };
        let mut sqe = command.sqe.with_sgl(sgl);
        let Some((cid, busy)) = self.slots.insert(command, deadline) else { return Ok(()) };
        busy.moved = length;
        // The capsule counts as unsent until it is posted inline, or until its send has completed.
        busy.unsent = 1;
        sqe.cid = U16::new(cid);
        let slot = Slots::index(cid);
        if let Some((head, _)) = pair.outbox.bytes(slot).split_at_mut_checked(SQE_SIZE) {
            head.copy_from_slice(sqe.as_bytes());
        }
        self.phases[usize::from(slot)] = Phase::Waiting { data };
        self.waiting.push_back(cid);
        Ok(())
    }

    /// Posts waiting commands while the send queue and the controller have room.
    pub(super) fn flush<D: Device>(&mut self, pair: &mut Pair<D>) -> Result<(), Trouble> {
        while !self.waiting.is_empty() {
            let window = self.rules.window.saturating_sub(self.unanswered);
            let most = self.sends.room().min(window.into()).min(CHAIN).min(self.waiting.len());
            if most == 0 {
                return Ok(());
            }
            self.chain.clear();
            for cid in self.waiting.drain(..most) {
                let slot = Slots::index(cid);
                let Phase::Waiting { data } = self.phases[usize::from(slot)] else { continue };
                let inline = self.rules.inline && data.is_none();
                let (id, signaled) = self.sends.push(cid, !inline);
                let len = if data.is_some() { SQE_SIZE + self.rules.offset } else { SQE_SIZE };
                let operation = SendOp::Send;
                self.chain.push(Outgoing { id, operation, slot, len, data, signaled, inline });
            }
            let posted = pair.post_send(&self.chain);
            let taken = posted.as_ref().map_or_else(|refused| refused.taken, |()| self.chain.len());
            self.posted(taken);
            posted.map_err(|refused| Trouble::Link(refused.to_string()))?;
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
                self.slots.piece_sent(cid, &mut Vec::new());
            }
        }
        self.sends.pop(self.chain.len().saturating_sub(taken));
    }

    /// Processes a completion. It posts a receive again if the connection `goes_on`.
    pub(super) fn completed<D: Device>(
        &mut self,
        pair: &mut Pair<D>,
        completion: &WorkCompletion,
        goes_on: bool,
        done: &mut Vec<Completed>,
    ) -> Result<(), Trouble> {
        let (id, status) = (completion.id, completion.status);
        if status != WcStatus::Success {
            return Err(failure(id, status));
        }
        if id.kind() == SEND {
            let slots = &mut self.slots;
            let is_known = self.sends.complete(id, |sent| {
                if sent.holds_memory {
                    pair.outbox.take_back(Slots::index(sent.cid));
                    slots.piece_sent(sent.cid, done);
                }
            });
            return if is_known { Ok(()) } else { Err(stray(id)) };
        }
        let cqe = self.received(pair, completion)?;
        if goes_on {
            // The receive is posted before the response is processed, so that slow work never
            // delays it.
            self.post_receive(pair, u16::try_from(id.slot()).unwrap_or(u16::MAX))?;
        }
        self.answered(&cqe, done)
    }

    /// Copies a response out of its receive.
    fn received<D: Device>(
        &mut self,
        pair: &mut Pair<D>,
        completion: &WorkCompletion,
    ) -> Result<Cqe, Trouble> {
        let id = completion.id;
        let slot = u16::try_from(id.slot()).map_err(|_| stray(id))?;
        let uses = self.uses.get_mut(usize::from(slot)).ok_or_else(|| stray(id))?;
        if id != WrId::new(RECEIVE, *uses, slot.into()) {
            return Err(stray(id));
        }
        *uses = uses.wrapping_add(1);
        pair.inbox.take_back(slot);
        if completion.bytes as usize != CQE_SIZE {
            let bytes = completion.bytes;
            return Err(Trouble::Peer(format!("a response of {bytes} bytes, not {CQE_SIZE}")));
        }
        if let Some(key) = completion.invalidated {
            let what =
                format!("a response that invalidates key {key:#x}, which no command asks for");
            return Err(Trouble::Peer(what));
        }
        let (cqe, _) = Cqe::read_from_prefix(pair.inbox.bytes(slot)).map_err(|_| stray(id))?;
        Ok(cqe)
    }

    /// Processes a response of the controller.
    fn answered(&mut self, cqe: &Cqe, done: &mut Vec<Completed>) -> Result<(), Trouble> {
        let cid = cqe.cid.get();
        let slot = usize::from(Slots::index(cid));
        let status = cqe.status();
        let result = if status.is_success() {
            Ok(cqe.result.get())
        } else {
            Err(CommandError::Status { status, dw0: cqe.dw0() })
        };
        let was_sent = self.phases.get(slot) == Some(&Phase::Posted);
        if !was_sent || !self.slots.complete(cid, result, done) {
            let what = format!("a response to command {cid:#06x}, which is not outstanding");
            return Err(Trouble::Peer(what));
        }
        self.phases[slot] = Phase::Free;
        self.unanswered = self.unanswered.saturating_sub(1);
        Ok(())
    }

    /// Ends every command. The pair is dropped, so no device accesses their buffers.
    pub(super) fn fail_all(&mut self, now: Nanos, done: &mut Vec<Completed>) {
        self.waiting.clear();
        self.slots.fail_all(now, done);
    }

    fn post_receive<D: Device>(&self, pair: &mut Pair<D>, slot: u16) -> Result<(), Trouble> {
        let uses = self.uses.get(usize::from(slot)).copied().unwrap_or(0);
        let id = WrId::new(RECEIVE, uses, slot.into());
        let posted = pair.post_receive(id, slot);
        posted.map_err(|error| Trouble::Link(format!("a receive cannot be posted: {error}")))
    }
}

fn stray(id: WrId) -> Trouble {
    Trouble::Link(format!("the device reports the end of work it was not given ({id:?})"))
}

/// Converts the status of a failed work request.
fn failure(id: WrId, status: WcStatus) -> Trouble {
    let what = if id.kind() == SEND { "a command" } else { "a receive" };
    match status {
        WcStatus::Success | WcStatus::Flushed => Trouble::Flushed,
        WcStatus::RemoteAccess => {
            Trouble::Link(format!("{what} was refused by the target's device"))
        }
        WcStatus::ReceiverNotReady => {
            Trouble::Link("the target had no receive for a command for too long".into())
        }
        WcStatus::Unreachable => Trouble::Link(
            "the target does not answer any more; check the network and the target".into(),
        ),
        WcStatus::Other(status) => {
            Trouble::Link(format!("{what} ended with work completion status {status}"))
        }
    }
}
