//! Life cycle of a queue: completions, connection events, deadlines, and the end.

use std::any::Any;
use std::time::Duration;

use nvmeof_core::dma::{Buffer, Payload};
use nvmeof_verbs::{ConnectionEvent, Device, Endpoint, LastWqe, WcStatus, WorkCompletion};
use nvmeof_wire::Sgl;

use super::RdmaQueue;
use super::outgoing::SendQueue;
use crate::pace::Pace;
use crate::queue::{CloseReason, Event, Nanos, Progress};
use crate::rdma::any_qp::AnyQp;
use crate::rdma::capsule::DataPointer;
use crate::rdma::cm_worker::CmReply;
use crate::rdma::cq_poller::Readiness;
use crate::rdma::kind;
use crate::rdma::params::RdmaParams;
use crate::rdma::qp::{QpStage, QpTransition};
use crate::rdma::receives::{BadLength, ReceivedCapsule};

/// Maximum completions taken in one call of `receive`.
const BUDGET: usize = 256;
/// Intervals between checks for connection events.
///
/// A check is a system call, and urgent changes show in the completions. While completions arrive,
/// the queue checks only every `CALLS_BETWEEN_LOOKS` calls. A spinning reactor checks at most every
/// `SOONEST_LOOK` nanoseconds. A check is never delayed longer than `LATEST_LOOK`.
const CALLS_BETWEEN_LOOKS: u32 = 64;
const SOONEST_LOOK: Nanos = 10_000;
const LATEST_LOOK: Nanos = 100_000_000;
/// Maximum time for which an ending reactor waits for the CM worker to destroy a queue pair.
const LONGEST_GOODBYE: Duration = Duration::from_secs(2);

/// Times and reasons.
#[derive(Debug, Default)]
pub(super) struct QueueLifecycle {
    /// Time of the first call of `receive`.
    begun: Option<Nanos>,
    is_connected: bool,
    /// Calls since the last check for connection events, and its time.
    unasked: u32,
    asked: Nanos,
    /// Time since which a completion is expected and none has arrived.
    waiting_since: Option<Nanos>,
    /// Work requests of the send queue that have ended, the time since which the rest makes no
    /// progress, and true if that rest is unsignaled.
    ended: u64,
    stuck_since: Option<Nanos>,
    is_silent: bool,
    /// Deadline for the data that moves.
    pace: Pace,
    /// Reason of the end, once there is one: the first failure.
    reason: Option<CloseReason>,
    drained_by: Option<Nanos>,
    ended_by: Option<Nanos>,
    /// True if not all posted work will report its end.
    is_mute: bool,
    has_said_closed: bool,
}

impl QueueLifecycle {
    /// Creates the state with the timeouts of `params`.
    pub(super) fn new(params: &RdmaParams) -> Self {
        Self { pace: Pace::new(params.transfer_timeout), ..Self::default() }
    }

    /// Moves every deadline by the time for which the target was stalled.
    pub(super) fn extend_deadlines(&mut self, nanos: Nanos) {
        let times = [
            &mut self.begun,
            &mut self.waiting_since,
            &mut self.stuck_since,
            &mut self.drained_by,
            &mut self.ended_by,
        ];
        for at in times.into_iter().flatten() {
            *at = at.saturating_add(nanos);
        }
        self.pace.extend_deadlines(nanos);
    }

    /// Records that the Connect command was accepted.
    pub(super) fn connected(&mut self) {
        self.is_connected = true;
    }

    /// Records posted work; `awaits` if a completion is expected.
    pub(super) fn posted(&mut self, awaits: bool, now: Nanos) {
        if awaits {
            self.waiting_since.get_or_insert(now);
        } else {
            self.waiting_since = None;
        }
    }

    /// Records the progress of the send queue.
    ///
    /// Most responses are unsignaled. A response that the host does not take shows only in a lack
    /// of completions.
    fn watch(&mut self, outgoing: &SendQueue, now: Nanos) {
        if outgoing.is_quiet() {
            self.stuck_since = None;
        } else if self.stuck_since.is_none() || self.ended != outgoing.ended() {
            self.ended = outgoing.ended();
            self.stuck_since = Some(now);
        }
        self.is_silent = outgoing.is_silent();
        let (moved, owed) = outgoing.progress();
        self.pace.look(moved, owed, now);
    }

    /// Returns the time at which to probe for the end of unsignaled responses.
    fn probe_at(&self, params: &RdmaParams) -> Option<Nanos> {
        let since = self.stuck_since.filter(|_| self.is_silent)?;
        Some(since.saturating_add(params.transfer_timeout / 2))
    }

    /// Returns the time at which the queue has to act without an event.
    pub(super) fn deadline(&self, stage: QpStage, params: &RdmaParams) -> Option<Nanos> {
        match stage {
            QpStage::Destroyed => (!self.has_said_closed).then_some(0),
            QpStage::Draining => Some(self.drained_by.unwrap_or(0)),
            QpStage::Destroying => Some(self.ended_by.unwrap_or(0)),
            // The CM worker will reply.
            QpStage::Cancelling => None,
            QpStage::CreatingCq | QpStage::Accepting | QpStage::Accepted | QpStage::Established => {
                let look = (self.unasked > 0).then(|| self.asked.saturating_add(LATEST_LOOK));
                let timeout = self.timeout(params).map(|(at, _)| at);
                look.into_iter().chain(timeout).chain(self.probe_at(params)).min()
            }
        }
    }

    /// Returns the earliest deadline of the host, and its reason.
    fn timeout(&self, params: &RdmaParams) -> Option<(Nanos, &'static str)> {
        let begun = self.begun.filter(|_| !self.is_connected);
        let connect = begun.map(|at| (at.saturating_add(params.handshake_timeout), "no Connect"));
        let waiting = self.waiting_since.map(|at| {
            (at.saturating_add(params.transfer_timeout), "the host neither gives nor takes data")
        });
        let stuck = self.stuck_since.filter(|_| !self.is_silent).map(|at| {
            (at.saturating_add(params.transfer_timeout), "the host receives no responses")
        });
        let slow = self.pace.due().map(|at| (at, "the host gives or takes hardly any data"));
        connect.into_iter().chain(waiting).chain(stuck).chain(slow).min()
    }
}

impl<D: Device> RdmaQueue<D> {
    /// Runs one call of `receive`.
    pub(super) fn live(&mut self, now: Nanos, events: &mut Vec<Event>) -> Progress {
        self.lifecycle.begun.get_or_insert(now);
        if !self.is_paused && self.link.stage().is_live() {
            events.append(&mut self.held);
        }
        if let Some(answer) = self.port.answer() {
            self.answered(answer, events);
        }
        self.make_if_ready();
        let mut progress = Progress::Idle;
        if !matches!(
            self.link.stage(),
            QpStage::CreatingCq | QpStage::Accepting | QpStage::Cancelling
        ) {
            // Capsules of the host that arrive earlier wait until its queue pair returns.
            self.look(now);
            progress = self.take_completions(now, events);
        }
        if self.port.is_broken() {
            self.lose("the completion queue is broken");
        }
        if self.link.stage().is_live() {
            self.repost_unposted();
            if self.outgoing.is_waiting() {
                self.post(events);
            }
            self.lifecycle.posted(self.outgoing.awaits(), now);
            self.watch(now);
            // Completions that exist by now count, so all of them come first.
            if progress == Progress::Idle
                && let Some((_, reason)) =
                    self.lifecycle.timeout(&self.params).filter(|(at, _)| now >= *at)
            {
                self.end(CloseReason::Timeout(reason));
            }
        }
        self.settle(now, events);
        progress
    }

    /// Checks the progress of the send queue, and probes if its work is unsignaled.
    pub(super) fn watch(&mut self, now: Nanos) {
        self.lifecycle.watch(&self.outgoing, now);
        if self.lifecycle.probe_at(&self.params).is_none_or(|at| now < at) {
            return;
        }
        let AnyQp::Established(pair) = &mut self.link else { return };
        if let Err(error) = self.outgoing.probe(pair.sends()) {
            return self
                .end(CloseReason::Lost(format!("the device accepts no work requests: {error}")));
        }
        self.lifecycle.watch(&self.outgoing, now);
        // Half of the timeout is left for the response, however late this probe is.
        self.lifecycle.stuck_since = Some(now.saturating_sub(self.params.transfer_timeout / 2));
    }

    /// Handles a reply of the CM worker.
    fn answered(&mut self, answer: CmReply<D>, events: &mut Vec<Event>) {
        match answer {
            CmReply::Accepted(pair) => match self.link.accepted(pair) {
                Some(QpStage::Accepted) => events.push(Event::RegisterFd),
                Some(_) => self.mark_end(),
                None => debug_assert!(false, "accepted in {:?}", self.link.stage()),
            },
            CmReply::Refused(error) => {
                self.lifecycle.reason.get_or_insert_with(|| {
                    CloseReason::Lost(format!("connection cannot be accepted: {error}"))
                });
                self.step(QpTransition::Destroyed);
                self.gone();
            }
            CmReply::Destroyed => {
                self.step(QpTransition::Destroyed);
                self.gone();
            }
            CmReply::CompletionQueue(_) => debug_assert!(false, "that is the source's"),
        }
    }

    /// Creates the queue pair when there is a completion queue.
    fn make_if_ready(&mut self) {
        if self.link.stage() != QpStage::CreatingCq {
            return;
        }
        let failed = match self.port.readiness() {
            Readiness::Wait => return,
            Readiness::Ready => self.make().err().map(|error| error.to_string()),
            Readiness::Failed(reason) => Some(reason),
        };
        if let Some(reason) = failed {
            tracing::warn!(peer = %self.peer, why = reason, "connection refused");
            self.lifecycle.reason.get_or_insert(CloseReason::Lost(reason));
            self.step(QpTransition::End);
        }
    }

    fn step(&mut self, step: QpTransition) -> Option<QpStage> {
        let (cm_worker, reply_to) = self.port.cm_worker();
        self.link.step(step, cm_worker, reply_to)
    }

    /// Checks for connection events, if a check is due.
    fn look(&mut self, now: Nanos) {
        let since = now.saturating_sub(self.lifecycle.asked);
        let is_due = self.link.stage() != QpStage::Established
            || self.lifecycle.unasked >= CALLS_BETWEEN_LOOKS
            || since >= LATEST_LOOK
            || (self.port.is_empty() && since >= SOONEST_LOOK);
        if !is_due {
            self.lifecycle.unasked += 1;
            return;
        }
        (self.lifecycle.unasked, self.lifecycle.asked) = (0, now);
        self.take_events();
    }

    fn take_events(&mut self) {
        while let Some(event) = self.link.next_event() {
            match event {
                ConnectionEvent::Established { .. } => {
                    self.step(QpTransition::Established);
                }
                ConnectionEvent::Disconnected => self.end(CloseReason::PeerClosed),
                ConnectionEvent::Rejected { status, .. } | ConnectionEvent::Failed { status } => {
                    self.end(CloseReason::Lost(format!("not established: status {status}")));
                }
                ConnectionEvent::DeviceRemoved => self.lose("the RDMA device was removed"),
                ConnectionEvent::AddressChanged => {
                    self.end(CloseReason::Lost("our address is at another device".to_owned()));
                }
                ConnectionEvent::QueuePairError => {
                    self.end(CloseReason::Lost("the queue pair failed".to_owned()));
                }
            }
        }
    }

    fn take_completions(&mut self, now: Nanos, events: &mut Vec<Event>) -> Progress {
        for _ in 0..BUDGET {
            let Some(completion) = self.port.next() else { return Progress::Idle };
            if self.link.stage() == QpStage::Accepted && completion.status == WcStatus::Success {
                // Only the host's capsules arrive this early: it has the acceptance, even if its
                // confirmation was lost.
                self.link.communication_established();
                self.take_events();
                self.step(QpTransition::Established);
            }
            match completion.id.kind() {
                kind::RECEIVE => self.received(&completion, events),
                kind::SHARED_RECEIVE => {
                    if let Some(arrived) = self.port.take_shared(&completion)
                        && self.is_good(&completion)
                    {
                        self.arrived(arrived, events);
                    }
                }
                _ => {
                    self.lifecycle.waiting_since = None;
                    if !self.outgoing.complete(completion.id, completion.status, events) {
                        self.port.count_stale();
                    } else {
                        self.is_good(&completion);
                    }
                }
            }
        }
        self.lifecycle.posted(self.outgoing.awaits(), now);
        Progress::More
    }

    /// Handles a completed receive of the queue itself.
    fn received(&mut self, completion: &WorkCompletion, events: &mut Vec<Event>) {
        let Some(receives) = &mut self.receives else { return self.port.count_stale() };
        let Some(slot) = receives.came_back(completion.id) else {
            return self.port.count_stale();
        };
        if !self.is_good(completion) {
            return;
        }
        let Some(receives) = &mut self.receives else {
            unreachable!("a receive came back to them");
        };
        let arrived = receives.take(slot, completion);
        let posted = match &mut self.link {
            AnyQp::Accepted(pair) => receives.post(slot, pair, &self.registration),
            AnyQp::Established(pair) => receives.post(slot, pair, &self.registration),
            _ => Ok(()),
        };
        if let Err(error) = posted {
            self.end(CloseReason::Lost(format!("cannot post a receive: {error}")));
        }
        self.arrived(arrived, events);
    }

    /// Posts receives that had no buffer.
    pub(super) fn repost_unposted(&mut self) {
        if self.receives.is_none() {
            return self.port.refill();
        }
        let Some(receives) = self.receives.as_mut().filter(|receives| receives.has_unposted())
        else {
            return;
        };
        let posted = match &mut self.link {
            AnyQp::Accepted(pair) => receives.post_unposted(pair, &self.registration),
            AnyQp::Established(pair) => receives.post_unposted(pair, &self.registration),
            _ => Ok(()),
        };
        if let Err(error) = posted {
            self.end(CloseReason::Lost(format!("cannot post a receive: {error}")));
        }
    }

    /// Delivers a received capsule, if the connection is still live.
    fn arrived(&mut self, arrived: Result<ReceivedCapsule, BadLength>, events: &mut Vec<Event>) {
        if !self.link.stage().is_live() {
            return;
        }
        let ReceivedCapsule { sqe, pointer, data } = match arrived {
            Ok(arrived) => arrived,
            Err(BadLength(bytes)) => {
                return self.end(CloseReason::Protocol(format!("a capsule of {bytes} bytes")));
            }
        };
        let (pointer, error) = match pointer {
            Ok(pointer) => (pointer, None),
            Err(error) => (DataPointer::default(), Some(error)),
        };
        let length = pointer.list.is_some().then_some(pointer.length);
        let unsent = self.outgoing.unsent();
        if self.commands.take(sqe.cid.get(), pointer, unsent).is_err() {
            let depth = self.commands.depth();
            let what = format!("more commands than the queue's {depth} entries");
            return self.end(CloseReason::Protocol(what));
        }
        let event = match (error, length) {
            // No other check rejects this pointer: its fault is `error`.
            (Some(error), _) => {
                let sqe = sqe.with_sgl(Sgl::Transport { length: u32::MAX });
                Event::CommandFailed { sqe, error }
            }
            // The list stays here; the command carries its length.
            (None, Some(length)) => {
                Event::Command { sqe: sqe.with_sgl(Sgl::Transport { length }), data: None }
            }
            (None, None) => Event::Command { sqe, data },
        };
        if self.is_paused { self.held.push(event) } else { events.push(event) }
    }

    /// Checks a completion; a failure ends the queue.
    fn is_good(&mut self, completion: &WorkCompletion) -> bool {
        if completion.status == WcStatus::Success {
            return true;
        }
        if !self.link.stage().is_live() {
            return false;
        }
        // The connection events may contain the cause.
        self.take_events();
        let is_receive = matches!(completion.id.kind(), kind::RECEIVE | kind::SHARED_RECEIVE);
        self.end(match completion.status {
            WcStatus::RemoteAccess => CloseReason::Protocol(
                "the host's memory is not at the address in its command".to_owned(),
            ),
            WcStatus::Other(status) if is_receive => {
                CloseReason::Protocol(format!("a capsule could not be received: status {status}"))
            }
            WcStatus::Other(status) => {
                CloseReason::Lost(format!("the device failed: status {status}"))
            }
            WcStatus::ReceiverNotReady => {
                CloseReason::Lost("the host posts no receives".to_owned())
            }
            WcStatus::Unreachable => CloseReason::Lost("the host does not respond".to_owned()),
            WcStatus::Flushed | WcStatus::Success => {
                CloseReason::Lost("the queue pair failed".to_owned())
            }
        });
        false
    }

    /// Ends the connection: posted work returns. A second call changes nothing.
    pub(super) fn end(&mut self, reason: CloseReason) {
        if self.step(QpTransition::End).is_none() {
            return;
        }
        self.lifecycle.reason.get_or_insert(reason);
        self.held.clear();
        self.mark_end();
    }

    /// Makes sure that all posted work returns.
    fn mark_end(&mut self) {
        if let AnyQp::Draining(pair) = &mut self.link {
            // The return of the whole send queue also gives information about shared receives.
            let always = self.receives.is_none();
            self.lifecycle.is_mute = !self.outgoing.mark_end(pair, always);
        }
    }

    /// Handles the loss of the device: posted work will not return.
    fn lose(&mut self, reason: &str) {
        if !self.link.stage().is_live() && self.link.stage() != QpStage::Draining {
            return;
        }
        self.lifecycle.reason.get_or_insert_with(|| CloseReason::Lost(reason.to_owned()));
        self.held.clear();
        self.leave(QpTransition::Lost);
    }

    /// Has the queue pair destroyed; afterwards the device uses no memory of the target.
    fn leave(&mut self, by: QpTransition) {
        if !self.link.stage().is_away() {
            if self.receives.is_none() {
                // Capsules in shared receives would be lost with it, unless they are processed
                // first.
                self.port.settle();
            }
            self.port.close();
        }
        self.step(by);
    }

    /// Handles the end of the queue pair, which has taken its last shared receive, reported or not.
    fn gone(&mut self) {
        if self.receives.is_none() {
            self.port.settle();
        }
        self.port.take_share();
    }

    /// Returns true if the receives that the queue pair took have completed, to the extent known.
    fn has_receives_back(&mut self) -> bool {
        match &self.receives {
            Some(receives) => receives.posted() == 0,
            None => self.link.last_receive() != LastWqe::Awaited,
        }
    }

    /// Continues the teardown, if it has begun.
    pub(super) fn settle(&mut self, now: Nanos, events: &mut Vec<Event>) {
        if self.link.stage() == QpStage::Draining {
            let until = now.saturating_add(self.params.drain_timeout);
            let until = *self.lifecycle.drained_by.get_or_insert(until);
            if self.has_receives_back() && (self.lifecycle.is_mute || self.outgoing.is_quiet()) {
                self.leave(QpTransition::Flushed);
            } else if now >= until {
                tracing::warn!(
                    peer = %self.peer,
                    "queue pair did not return its work requests in time"
                );
                self.leave(QpTransition::Overdue);
            }
        }
        if self.link.stage() == QpStage::Destroying {
            let until = now.saturating_add(self.params.drain_timeout);
            if now >= *self.lifecycle.ended_by.get_or_insert(until) {
                self.quarantine_memory(now, events);
            }
        }
        if self.link.stage() == QpStage::Destroyed && !self.lifecycle.has_said_closed {
            self.lifecycle.has_said_closed = true;
            self.outgoing.give_back(events);
            let reason = self.lifecycle.reason.clone().unwrap_or(CloseReason::Shutdown);
            events.push(Event::Closed { reason });
        }
    }

    /// Gives up on a queue pair that cannot be destroyed and may still use its memory.
    ///
    /// Operations return with other buffers; theirs are quarantined.
    fn quarantine_memory(&mut self, now: Nanos, events: &mut Vec<Event>) {
        let wanted = 0..self.outgoing.operations();
        let Some(mut empty) = wanted.map(|_| self.pool.lease(0).ok()).collect::<Option<Vec<_>>>()
        else {
            // Operations cannot return without replacement buffers.
            self.lifecycle.ended_by = Some(now.saturating_add(self.params.drain_timeout));
            return;
        };
        let memory = self.take_memory(&mut empty, events);
        self.port.quarantine_memory(memory);
        self.step(QpTransition::Withheld);
    }

    /// Removes all memory that the queue pair may still use.
    ///
    /// Its operations return with buffers of `empty` in place of theirs, until `empty` runs out.
    pub(super) fn take_memory(
        &mut self,
        empty: &mut Vec<Buffer>,
        events: &mut Vec<Event>,
    ) -> Box<dyn Any> {
        let mut kept = Vec::new();
        let given = events.len();
        self.outgoing.give_back(events);
        for event in events.iter_mut().skip(given) {
            let Some(none) = empty.pop() else { break };
            match event {
                Event::HostDataArrived { buf, .. } => {
                    kept.push(Payload::Buffer(std::mem::replace(buf, none)));
                }
                Event::Sent { data: Some(data), .. } => {
                    kept.push(std::mem::replace(data, Payload::Buffer(none)));
                }
                _ => {}
            }
        }
        // Shared receives that it may still take are not reserved for others before it is
        // destroyed.
        let receives = (self.receives.take(), self.port.take_share());
        Box::new((receives, self.outgoing.take_slots(), kept))
    }

    /// Destroys the queue pair synchronously; false if that fails.
    pub(super) fn take_pair_away(&mut self) -> bool {
        let stage = self.link.stage();
        if stage == QpStage::Accepting {
            self.step(QpTransition::End);
        }
        let mut endpoint = self.link.take_endpoint();
        if endpoint.is_none() && stage.is_away() {
            match self.port.wait_for_answer(LONGEST_GOODBYE) {
                Some(CmReply::Accepted(pair)) => endpoint = Some(pair.into_endpoint()),
                Some(_) => {}
                None => return false,
            }
        }
        endpoint.is_none_or(|endpoint| endpoint.destroy().is_ok())
    }
}
