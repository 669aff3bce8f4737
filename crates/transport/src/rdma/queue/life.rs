//! What happens to a queue: completions, events of the connection, deadlines, and the end.

use std::any::Any;
use std::time::Duration;

use nvmeof_core::dma::{Buffer, Payload};
use nvmeof_verbs::{Completion, CompletionStatus, ConnectionEvent, Device, Endpoint, LastReceive};
use nvmeof_wire::Sgl;

use super::outgoing::Outgoing;
use super::receives::{Arrived, BadLength};
use super::{RdmaQueue, kind};
use crate::pace::Pace;
use crate::queue::{CloseReason, Event, Nanos, Progress};
use crate::rdma::RdmaParams;
use crate::rdma::capsule::DataPointer;
use crate::rdma::pair::{Link, Stage, Step};
use crate::rdma::source::Readiness;
use crate::rdma::usher::Answer;

/// Completions taken in one call of `receive`.
const BUDGET: usize = 256;
/// Asking for events of the connection is a system call, and what is urgent shows in the completions. So it is
/// done only every so many calls while completions keep coming, and not twice within so many nanoseconds by a
/// reactor that spins. It is never put off for longer than the last of them.
const CALLS_BETWEEN_LOOKS: u32 = 64;
const SOONEST_LOOK: Nanos = 10_000;
const LATEST_LOOK: Nanos = 100_000_000;
/// How long a reactor that ends waits for the usher to take a queue pair away.
const LONGEST_GOODBYE: Duration = Duration::from_secs(2);

/// Times and reasons.
#[derive(Debug, Default)]
pub(super) struct Life {
    /// The first call of `receive`.
    begun: Option<Nanos>,
    is_connected: bool,
    /// Calls since events of the connection were asked for, and when they were.
    unasked: u32,
    asked: Nanos,
    /// Since when a completion is awaited and none has come.
    waiting_since: Option<Nanos>,
    /// Work requests of the send queue that have ended, since when there are others and none of them has, and
    /// whether that would be told.
    ended: u64,
    stuck_since: Option<Nanos>,
    is_silent: bool,
    /// Whether data moves fast enough.
    pace: Pace,
    /// Why it ends, once it does; what went wrong first.
    reason: Option<CloseReason>,
    drained_by: Option<Nanos>,
    ended_by: Option<Nanos>,
    /// Not all that is posted will be heard of.
    is_mute: bool,
    has_said_closed: bool,
}

impl Life {
    /// With patience as these say.
    pub(super) fn new(params: &RdmaParams) -> Self {
        Self { pace: Pace::new(params.transfer_timeout), ..Self::default() }
    }

    /// The target stood still for so long: every deadline is that much later.
    pub(super) fn excuse(&mut self, nanos: Nanos) {
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
        self.pace.excuse(nanos);
    }

    /// The Connect command was accepted.
    pub(super) fn connected(&mut self) {
        self.is_connected = true;
    }

    /// Work was posted; `awaits` if something is heard of it only when it is done.
    pub(super) fn posted(&mut self, awaits: bool, now: Nanos) {
        if awaits {
            self.waiting_since.get_or_insert(now);
        } else {
            self.waiting_since = None;
        }
    }

    /// How the send queue gets on. Of most responses nothing is heard, so that one that the host does not take
    /// shows in nothing ending any more.
    fn watch(&mut self, outgoing: &Outgoing, now: Nanos) {
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

    /// When to ask whether responses have been taken of which nothing is heard.
    fn probe_at(&self, params: &RdmaParams) -> Option<Nanos> {
        let since = self.stuck_since.filter(|_| self.is_silent)?;
        Some(since.saturating_add(params.transfer_timeout / 2))
    }

    /// When something is to be done though nothing happens.
    pub(super) fn deadline(&self, stage: Stage, params: &RdmaParams) -> Option<Nanos> {
        match stage {
            Stage::Gone => (!self.has_said_closed).then_some(0),
            Stage::Draining => Some(self.drained_by.unwrap_or(0)),
            Stage::Ending => Some(self.ended_by.unwrap_or(0)),
            // The usher's answer comes.
            Stage::Recalled => None,
            Stage::Asking | Stage::Accepting | Stage::Accepted | Stage::Open => {
                let look = (self.unasked > 0).then(|| self.asked.saturating_add(LATEST_LOOK));
                let timeout = self.timeout(params).map(|(at, _)| at);
                look.into_iter().chain(timeout).chain(self.probe_at(params)).min()
            }
        }
    }

    /// When patience ends, and with what.
    fn timeout(&self, params: &RdmaParams) -> Option<(Nanos, &'static str)> {
        let begun = self.begun.filter(|_| !self.is_connected);
        let connect = begun.map(|at| (at.saturating_add(params.handshake_timeout), "no Connect"));
        let waiting = self.waiting_since.map(|at| {
            (at.saturating_add(params.transfer_timeout), "the host neither gives nor takes data")
        });
        let stuck = self
            .stuck_since
            .filter(|_| !self.is_silent)
            .map(|at| (at.saturating_add(params.transfer_timeout), "the host takes no responses"));
        let slow = self.pace.due().map(|at| (at, "the host gives or takes hardly any data"));
        connect.into_iter().chain(waiting).chain(stuck).chain(slow).min()
    }
}

impl<D: Device> RdmaQueue<D> {
    /// Everything that `receive` does.
    pub(super) fn live(&mut self, now: Nanos, events: &mut Vec<Event>) -> Progress {
        self.life.begun.get_or_insert(now);
        if !self.is_paused && self.link.stage().is_live() {
            events.append(&mut self.held);
        }
        if let Some(answer) = self.port.answer() {
            self.answered(answer, events);
        }
        self.make_if_ready();
        let mut progress = Progress::Idle;
        if !matches!(self.link.stage(), Stage::Asking | Stage::Accepting | Stage::Recalled) {
            // What the host has sent meanwhile waits until its queue pair is back.
            self.look(now);
            progress = self.take_completions(now, events);
        }
        if self.port.is_broken() {
            self.lose("the completion queue is broken");
        }
        if self.link.stage().is_live() {
            self.repost_starved();
            if self.outgoing.is_waiting() {
                self.post(events);
            }
            self.life.posted(self.outgoing.awaits(), now);
            self.watch(now);
            // What has completed by now counts, so all of it comes first.
            if progress == Progress::Idle
                && let Some((_, why)) = self.life.timeout(&self.params).filter(|(at, _)| now >= *at)
            {
                self.end(CloseReason::Timeout(why));
            }
        }
        self.settle(now, events);
        progress
    }

    /// Looks how the send queue gets on, and asks where nothing would be heard.
    pub(super) fn watch(&mut self, now: Nanos) {
        self.life.watch(&self.outgoing, now);
        if self.life.probe_at(&self.params).is_none_or(|at| now < at) {
            return;
        }
        let Link::Open(pair) = &mut self.link else { return };
        if let Err(error) = self.outgoing.probe(pair.sends()) {
            return self.end(CloseReason::Lost(format!("the device takes no work: {error}")));
        }
        self.life.watch(&self.outgoing, now);
        // The other half of the time is left for the answer, however late this is.
        self.life.stuck_since = Some(now.saturating_sub(self.params.transfer_timeout / 2));
    }

    /// The usher has done something.
    fn answered(&mut self, answer: Answer<D>, events: &mut Vec<Event>) {
        match answer {
            Answer::Accepted(pair) => match self.link.accepted(pair) {
                Some(Stage::Accepted) => events.push(Event::Watch),
                Some(_) => self.mark_end(),
                None => debug_assert!(false, "accepted in {:?}", self.link.stage()),
            },
            Answer::Refused(error) => {
                self.life.reason.get_or_insert_with(|| {
                    CloseReason::Lost(format!("it could not be accepted: {error}"))
                });
                self.step(Step::Destroyed);
                self.gone();
            }
            Answer::Destroyed => {
                self.step(Step::Destroyed);
                self.gone();
            }
            Answer::Completions(_) => debug_assert!(false, "that is the source's"),
        }
    }

    /// Makes the queue pair when there is a completion queue.
    fn make_if_ready(&mut self) {
        if self.link.stage() != Stage::Asking {
            return;
        }
        let failed = match self.port.readiness() {
            Readiness::Wait => return,
            Readiness::Ready => self.make().err().map(|error| error.to_string()),
            Readiness::Failed(why) => Some(why),
        };
        if let Some(why) = failed {
            tracing::warn!(peer = %self.peer, why, "connection refused");
            self.life.reason.get_or_insert(CloseReason::Lost(why));
            self.step(Step::End);
        }
    }

    fn step(&mut self, step: Step) -> Option<Stage> {
        let (usher, slip) = self.port.usher();
        self.link.step(step, usher, slip)
    }

    /// Asks for events of the connection, if it is time to.
    fn look(&mut self, now: Nanos) {
        let since = now.saturating_sub(self.life.asked);
        let is_due = self.link.stage() != Stage::Open
            || self.life.unasked >= CALLS_BETWEEN_LOOKS
            || since >= LATEST_LOOK
            || (self.port.is_empty() && since >= SOONEST_LOOK);
        if !is_due {
            self.life.unasked += 1;
            return;
        }
        (self.life.unasked, self.life.asked) = (0, now);
        self.take_events();
    }

    fn take_events(&mut self) {
        while let Some(event) = self.link.next_event() {
            match event {
                ConnectionEvent::Established { .. } => {
                    self.step(Step::Established);
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
            if self.link.stage() == Stage::Accepted
                && completion.status == CompletionStatus::Success
            {
                // Only the host's capsules come so early: it has our acceptance, whatever became of its answer.
                self.link.heard();
                self.take_events();
                self.step(Step::Established);
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
                    self.life.waiting_since = None;
                    if !self.outgoing.complete(completion.id, completion.status, events) {
                        self.port.count_stale();
                    } else {
                        self.is_good(&completion);
                    }
                }
            }
        }
        self.life.posted(self.outgoing.awaits(), now);
        Progress::More
    }

    /// A receive of our own came back.
    fn received(&mut self, completion: &Completion, events: &mut Vec<Event>) {
        let Some(receives) = &mut self.receives else { return self.port.count_stale() };
        let Some(slot) = receives.came_back(completion.id) else {
            return self.port.count_stale();
        };
        if !self.is_good(completion) {
            return;
        }
        let Some(receives) = &mut self.receives else { return };
        let arrived = receives.take(slot, completion);
        let posted = match &mut self.link {
            Link::Accepted(pair) => receives.post(slot, pair, &self.registration),
            Link::Open(pair) => receives.post(slot, pair, &self.registration),
            _ => Ok(()),
        };
        if let Err(error) = posted {
            self.end(CloseReason::Lost(format!("cannot post a receive: {error}")));
        }
        self.arrived(arrived, events);
    }

    /// Posts receives that had no buffer.
    pub(super) fn repost_starved(&mut self) {
        if self.receives.is_none() {
            return self.port.refill();
        }
        let Some(receives) = self.receives.as_mut().filter(|receives| receives.has_starved())
        else {
            return;
        };
        let posted = match &mut self.link {
            Link::Accepted(pair) => receives.post_starved(pair, &self.registration),
            Link::Open(pair) => receives.post_starved(pair, &self.registration),
            _ => Ok(()),
        };
        if let Err(error) = posted {
            self.end(CloseReason::Lost(format!("cannot post a receive: {error}")));
        }
    }

    /// A capsule came: hands it on, if the connection is one still.
    fn arrived(&mut self, arrived: Result<Arrived, BadLength>, events: &mut Vec<Event>) {
        if !self.link.stage().is_live() {
            return;
        }
        let Arrived { sqe, pointer, data } = match arrived {
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
            // A pointer that no check refuses for another reason: what is wrong with it is `error`.
            (Some(error), _) => {
                let sqe = sqe.with_sgl(Sgl::Transport { length: u32::MAX });
                Event::CommandFailed { sqe, error }
            }
            // The list stays here; the command says how long it is.
            (None, Some(length)) => {
                Event::Command { sqe: sqe.with_sgl(Sgl::Transport { length }), data: None }
            }
            (None, None) => Event::Command { sqe, data },
        };
        if self.is_paused { self.held.push(event) } else { events.push(event) }
    }

    /// Whether something ended well; if not, so does the queue.
    fn is_good(&mut self, completion: &Completion) -> bool {
        if completion.status == CompletionStatus::Success {
            return true;
        }
        if !self.link.stage().is_live() {
            return false;
        }
        // The connection may know better why.
        self.take_events();
        let is_receive = matches!(completion.id.kind(), kind::RECEIVE | kind::SHARED_RECEIVE);
        self.end(match completion.status {
            CompletionStatus::RemoteAccess => {
                CloseReason::Protocol("the host's memory is not where its command says".to_owned())
            }
            CompletionStatus::Other(status) if is_receive => {
                CloseReason::Protocol(format!("a capsule could not be received: status {status}"))
            }
            CompletionStatus::Other(status) => {
                CloseReason::Lost(format!("the device failed: status {status}"))
            }
            CompletionStatus::ReceiverNotReady => {
                CloseReason::Lost("the host posts no receives".to_owned())
            }
            CompletionStatus::Unreachable => {
                CloseReason::Lost("the host does not answer".to_owned())
            }
            CompletionStatus::Flushed | CompletionStatus::Success => {
                CloseReason::Lost("the queue pair failed".to_owned())
            }
        });
        false
    }

    /// Ends the connection: what is posted comes back. Afterwards it changes nothing.
    pub(super) fn end(&mut self, why: CloseReason) {
        if self.step(Step::End).is_none() {
            return;
        }
        self.life.reason.get_or_insert(why);
        self.held.clear();
        self.mark_end();
    }

    /// Sees to it that all that is posted comes back.
    fn mark_end(&mut self) {
        if let Link::Draining(pair) = &mut self.link {
            // That everything is back of the send queue says something of shared receives, too.
            let always = self.receives.is_none();
            self.life.is_mute = !self.outgoing.mark_end(pair, always);
        }
    }

    /// The device does not answer any more: what is posted will not come back.
    fn lose(&mut self, why: &str) {
        if !self.link.stage().is_live() && self.link.stage() != Stage::Draining {
            return;
        }
        self.life.reason.get_or_insert_with(|| CloseReason::Lost(why.to_owned()));
        self.held.clear();
        self.leave(Step::Lost);
    }

    /// Has the queue pair taken away: once that is done the device uses none of our memory.
    fn leave(&mut self, by: Step) {
        if !self.link.stage().is_away() {
            if self.receives.is_none() {
                // Capsules that came into shared receives go with it, unless they are taken in first.
                self.port.settle();
            }
            self.port.close();
        }
        self.step(by);
    }

    /// The queue pair is gone: of shared receives it has taken the last, said so or not.
    fn gone(&mut self) {
        if self.receives.is_none() {
            self.port.settle();
        }
        self.port.take_share();
    }

    /// Whether what the queue pair took of the receives has completed, as far as that is ever known.
    fn has_receives_back(&mut self) -> bool {
        match &self.receives {
            Some(receives) => receives.posted() == 0,
            None => self.link.last_receive() != LastReceive::Awaited,
        }
    }

    /// Goes on with the end, if it has come.
    pub(super) fn settle(&mut self, now: Nanos, events: &mut Vec<Event>) {
        if self.link.stage() == Stage::Draining {
            let until = now.saturating_add(self.params.drain_timeout);
            let until = *self.life.drained_by.get_or_insert(until);
            if self.has_receives_back() && (self.life.is_mute || self.outgoing.is_quiet()) {
                self.leave(Step::Flushed);
            } else if now >= until {
                tracing::warn!(peer = %self.peer, "a queue pair did not give back its work in time");
                self.leave(Step::Overdue);
            }
        }
        if self.link.stage() == Stage::Ending {
            let until = now.saturating_add(self.params.drain_timeout);
            if now >= *self.life.ended_by.get_or_insert(until) {
                self.withhold(now, events);
            }
        }
        if self.link.stage() == Stage::Gone && !self.life.has_said_closed {
            self.life.has_said_closed = true;
            self.outgoing.give_back(events);
            let reason = self.life.reason.clone().unwrap_or(CloseReason::Shutdown);
            events.push(Event::Closed { reason });
        }
    }

    /// The queue pair cannot be taken away, and may be using our memory: operations are given back without
    /// theirs, which is kept where nobody uses it.
    fn withhold(&mut self, now: Nanos, events: &mut Vec<Event>) {
        let wanted = 0..self.outgoing.operations();
        let Some(mut empty) = wanted.map(|_| self.pool.lease(0).ok()).collect::<Option<Vec<_>>>()
        else {
            // They cannot be given back without something in their place.
            self.life.ended_by = Some(now.saturating_add(self.params.drain_timeout));
            return;
        };
        let memory = self.take_memory(&mut empty, events);
        self.port.withhold(memory);
        self.step(Step::Withheld);
    }

    /// Takes all memory that the queue pair may be using. Its operations are given back with buffers of
    /// `empty`, as far as there are any, in the place of theirs.
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
                Event::Pulled { buf, .. } => {
                    kept.push(Payload::Buffer(std::mem::replace(buf, none)));
                }
                Event::Sent { data: Some(data), .. } => {
                    kept.push(std::mem::replace(data, Payload::Buffer(none)));
                }
                _ => {}
            }
        }
        // What it may still take of shared receives is not promised to others before it is gone.
        let receives = (self.receives.take(), self.port.take_share());
        Box::new((receives, self.outgoing.take_slots(), kept))
    }

    /// Takes the queue pair away here and now; false if that does not work.
    pub(super) fn take_pair_away(&mut self) -> bool {
        let stage = self.link.stage();
        if stage == Stage::Accepting {
            self.step(Step::End);
        }
        let mut endpoint = self.link.take_endpoint();
        if endpoint.is_none() && stage.is_away() {
            match self.port.wait_for_answer(LONGEST_GOODBYE) {
                Some(Answer::Accepted(pair)) => endpoint = Some(pair.into_endpoint()),
                Some(_) => {}
                None => return false,
            }
        }
        endpoint.is_none_or(|endpoint| endpoint.destroy().is_ok())
    }
}
