//! What happens to a queue: completions, events of the connection, deadlines, and the end.

use nvmeof_verbs::{Completion, CompletionStatus, ConnectionEvent, Device};
use nvmeof_wire::Sgl;

use super::receives::{Arrived, BadLength};
use super::{RdmaQueue, kind};
use crate::queue::{CloseReason, Event, Nanos, Progress};
use crate::rdma::RdmaParams;
use crate::rdma::capsule::DataPointer;
use crate::rdma::pair::{Link, Stage, Step};

/// Completions taken in one call of `receive`.
const BUDGET: usize = 256;
/// Asking for events of the connection is a system call, and what is urgent shows in the completions. So it is
/// done only every so many calls while completions keep coming, and not twice within so many nanoseconds by a
/// reactor that spins. It is never put off for longer than the last of them.
const CALLS_BETWEEN_LOOKS: u32 = 64;
const SOONEST_LOOK: Nanos = 10_000;
const LATEST_LOOK: Nanos = 100_000_000;

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
    /// Why it ends, once it does; what went wrong first.
    reason: Option<CloseReason>,
    drained_by: Option<Nanos>,
    /// Not all that is posted will be heard of.
    is_mute: bool,
    has_said_closed: bool,
}

impl Life {
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

    /// When something is to be done though nothing happens.
    pub(super) fn deadline(&self, stage: Stage, params: &RdmaParams) -> Option<Nanos> {
        match stage {
            Stage::Gone => (!self.has_said_closed).then_some(0),
            Stage::Draining => Some(self.drained_by.unwrap_or(0)),
            Stage::Accepting | Stage::Open => {
                let look = (self.unasked > 0).then(|| self.asked.saturating_add(LATEST_LOOK));
                let timeout = self.timeout(params).map(|(at, _)| at);
                look.into_iter().chain(timeout).min()
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
        connect.into_iter().chain(waiting).min()
    }
}

impl<D: Device> RdmaQueue<D> {
    /// Everything that `receive` does.
    pub(super) fn live(&mut self, now: Nanos, events: &mut Vec<Event>) -> Progress {
        self.life.begun.get_or_insert(now);
        if !self.is_paused && matches!(self.link.stage(), Stage::Accepting | Stage::Open) {
            events.append(&mut self.held);
        }
        self.look(now);
        let progress = self.take_completions(now, events);
        if self.port.is_broken() {
            self.lose("the completion queue is broken");
        }
        if matches!(self.link.stage(), Stage::Accepting | Stage::Open) {
            self.repost_starved();
            if self.outgoing.is_waiting() {
                self.post(events);
            }
            self.life.posted(self.outgoing.awaits(), now);
            if let Some((_, why)) = self.life.timeout(&self.params).filter(|(at, _)| now >= *at) {
                self.end(CloseReason::Timeout(why));
            }
        }
        self.settle(now, events);
        progress
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
                    self.link.step(Step::Established);
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
            Link::Accepting(pair) => receives.post(slot, pair, &self.registration),
            Link::Open(pair) => receives.post(slot, pair, &self.registration),
            Link::Draining(_) | Link::Gone => Ok(()),
        };
        if let Err(error) = posted {
            self.end(CloseReason::Lost(format!("cannot post a receive: {error}")));
        }
        self.arrived(arrived, events);
    }

    /// Posts receives that had no buffer.
    pub(super) fn repost_starved(&mut self) {
        let Some(receives) = self.receives.as_mut().filter(|receives| receives.has_starved())
        else {
            return;
        };
        let posted = match &mut self.link {
            Link::Accepting(pair) => receives.post_starved(pair, &self.registration),
            Link::Open(pair) => receives.post_starved(pair, &self.registration),
            Link::Draining(_) | Link::Gone => Ok(()),
        };
        if let Err(error) = posted {
            self.end(CloseReason::Lost(format!("cannot post a receive: {error}")));
        }
    }

    /// A capsule came: hands it on, if the connection is one still.
    fn arrived(&mut self, arrived: Result<Arrived, BadLength>, events: &mut Vec<Event>) {
        if !matches!(self.link.stage(), Stage::Accepting | Stage::Open) {
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
        if self.commands.take(sqe.cid.get(), pointer).is_err() {
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
        if !matches!(self.link.stage(), Stage::Accepting | Stage::Open) {
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
        if self.link.step(Step::End).is_none() {
            return;
        }
        self.life.reason.get_or_insert(why);
        self.held.clear();
        if let Link::Draining(pair) = &mut self.link {
            self.life.is_mute = !self.outgoing.mark_end(pair);
        }
    }

    /// The device does not answer any more: what is posted will not come back.
    fn lose(&mut self, why: &str) {
        if self.link.stage() == Stage::Gone {
            return;
        }
        self.life.reason.get_or_insert_with(|| CloseReason::Lost(why.to_owned()));
        self.held.clear();
        self.leave(Step::Lost);
    }

    /// Takes the queue pair away: from then on the device uses none of our memory.
    fn leave(&mut self, by: Step) {
        if self.receives.is_none() {
            // Capsules that came into shared receives go with it, unless they are taken in first.
            self.port.settle();
        }
        self.link.step(by);
    }

    /// Goes on with the end, if it has come.
    pub(super) fn settle(&mut self, now: Nanos, events: &mut Vec<Event>) {
        if self.link.stage() == Stage::Draining {
            let until = now.saturating_add(self.params.drain_timeout);
            let until = *self.life.drained_by.get_or_insert(until);
            let received = self.receives.as_ref().is_none_or(|receives| receives.posted() == 0);
            if received && (self.life.is_mute || self.outgoing.is_quiet()) {
                self.leave(Step::Flushed);
            } else if now >= until {
                tracing::warn!(peer = %self.peer, "a queue pair did not give back its work in time");
                self.leave(Step::Overdue);
            }
        }
        if self.link.stage() == Stage::Gone && !self.life.has_said_closed {
            self.life.has_said_closed = true;
            self.outgoing.give_back(events);
            let reason = self.life.reason.clone().unwrap_or(CloseReason::Shutdown);
            events.push(Event::Closed { reason });
        }
    }
}
