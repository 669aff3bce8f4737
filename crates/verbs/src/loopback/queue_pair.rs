//! A queue pair: its posted work and the progress of it.
//!
//! ```text
//!         accept            peer is ready
//!   Init ---------> Receiving ----------> Ready
//!     |  connect, answered     |            |
//!     `------------------------|----------->|
//!     |                        |            |
//!     `--- any failure, disconnect, device removed ---> Error: everything posted is flushed
//! ```

use std::collections::VecDeque;
use std::sync::Arc;

use super::completions::{Frees, SrqInner};
use super::connection::Link;
use super::counters::EndpointCounters;
use super::faults::WorkFault;
use super::signal::Signal;
use super::state::{Event, State};
use crate::provider::{ConnectionEvent, EndpointSpec};
use crate::work::{SendOp, SendWr, SgeList, WcStatus, WorkCompletion, WrId};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// Receives can be posted.
    Init,
    /// Messages of the peer are received.
    Receiving,
    /// All operations work.
    Ready,
    /// No operation works.
    Error,
}

/// Cause of a queue pair's failure. It decides whether an event reports the failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Failure {
    /// The owner ended the connection.
    Left,
    /// A completion of the queue pair reports it.
    Completed,
    /// The peer's work caused it, so no completion of this queue pair reports it.
    Silent,
    /// No other cause is visible, so an event always reports it.
    Told,
}

/// Progress of a queue pair with shared receives in returning those it took.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LastStage {
    /// The queue pair works, or has not started.
    Taking,
    /// The queue pair holds unused receives, because hardware fetches them ahead.
    Holding,
    /// All receives are returned. The report follows, or never comes.
    Returned,
    /// The end is reported.
    Said,
}

/// A receive that is still unused.
#[derive(Clone, Copy, Debug)]
pub(super) struct Receive {
    pub(super) id: WrId,
    pub(super) pieces: SgeList,
}

/// A work request of the send queue that has not ended.
#[derive(Debug)]
pub(super) struct Send {
    pub(super) work: SendWr,
    pub(super) stage: Stage,
    /// Inline bytes, bytes gathered early, or the payload of an RDMA READ.
    pub(super) bytes: Option<Vec<u8>>,
    pub(super) fault: Option<WorkFault>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// Not started.
    Waiting,
    /// In transit to the peer.
    Flying,
    /// The peer executed it, or no peer did; the response is in transit.
    Executed,
}

/// A SEND that waits for a receive of the peer.
#[derive(Clone, Copy, Debug)]
pub(super) struct NotReady {
    pub(super) sequence: u64,
    pub(super) since: u64,
    /// Rounds that a fault makes it wait, regardless of the peer's receives.
    pub(super) forced: u64,
}

#[derive(Debug)]
pub(super) struct QueuePair {
    pub(super) number: u32,
    pub(super) device: u32,
    pub(super) completions: u32,
    pub(super) shared: Option<u32>,
    pub(super) spec: EndpointSpec,
    pub(super) phase: Phase,
    pub(super) link: Link,
    pub(super) connection: Option<u32>,
    pub(super) peer: Option<u32>,
    pub(super) events: VecDeque<ConnectionEvent>,
    pub(super) signal: Arc<Signal>,
    pub(super) sends: VecDeque<Send>,
    /// Sequence number of the next work request to be posted. The first of `sends` has this number
    /// minus their count.
    pub(super) sends_posted: u64,
    /// Entries before this sequence number are free.
    pub(super) sends_freed: u64,
    pub(super) receives: VecDeque<Receive>,
    pub(super) receives_posted: u64,
    pub(super) receives_freed: u64,
    /// Sequence number of the next work request to start.
    pub(super) next: u64,
    /// A work request has failed, so no later one starts.
    pub(super) halted: bool,
    /// Epoch of the work requests in transit; those with an older one were called back.
    pub(super) epoch: u32,
    pub(super) line_free: u64,
    pub(super) last_arrival: u64,
    pub(super) last_finish: u64,
    /// Limits of outstanding RDMA READs: ours, and the peer's.
    pub(super) reads_out: u8,
    pub(super) reads_in: u8,
    pub(super) reads: u32,
    /// RDMA READs that the peer has executed and that have not ended.
    pub(super) reads_at_peer: u32,
    pub(super) retries: u8,
    pub(super) rnr_retries: u8,
    pub(super) not_ready: Option<NotReady>,
    pub(super) stalled: Option<u64>,
    pub(super) flushing: bool,
    pub(super) last_receive: LastStage,
    /// The end was reported before all receives were returned.
    pub(super) hurried: bool,
    pub(super) most_reads: u32,
    pub(super) read_stalls: u64,
    pub(super) not_ready_rounds: u64,
}

impl QueuePair {
    /// Returns the sequence number of the first work request that has not ended.
    pub(super) fn first(&self) -> u64 {
        self.sends_posted - self.sends.len() as u64
    }

    pub(super) fn send(&mut self, sequence: u64) -> Option<&mut Send> {
        let index = sequence.checked_sub(self.first())?;
        self.sends.get_mut(usize::try_from(index).ok()?)
    }

    pub(super) fn counters(&self) -> EndpointCounters {
        EndpointCounters {
            sends_posted: self.sends_posted,
            sends_held: self.sends_posted - self.sends_freed,
            sends_waiting: self.sends.len(),
            receives_posted: self.receives_posted,
            receives_held: self.receives_posted - self.receives_freed,
            receives_waiting: self.receives.len(),
            reads: self.reads,
            most_reads: self.most_reads,
            read_stalls: self.read_stalls,
            not_ready_rounds: self.not_ready_rounds,
        }
    }

    /// Reports an event to the endpoint's owner.
    pub(super) fn tell(&mut self, event: ConnectionEvent) {
        self.events.push_back(event);
        self.signal.raise();
    }

    /// Calls back all work requests in transit from `sequence` on.
    pub(super) fn call_back(&mut self, sequence: u64) {
        self.epoch = self.epoch.wrapping_add(1);
        let first = self.first();
        let mut reads = 0;
        for (send, number) in self.sends.iter_mut().zip(first..) {
            let is_read = matches!(send.work.operation, SendOp::Read { .. });
            if number >= sequence && send.stage == Stage::Flying {
                send.stage = Stage::Waiting;
                reads += u32::from(is_read);
            }
        }
        self.reads -= reads;
        self.next = self.next.min(sequence);
        self.line_free = 0;
        self.last_arrival = 0;
    }
}

impl State {
    /// Fails a queue pair; its posted work will be flushed.
    pub(super) fn fail(&mut self, number: u32, failure: Failure) {
        let Some(queue_pair) = self.queue_pairs.get_mut(&number) else { return };
        if queue_pair.phase == Phase::Error {
            return;
        }
        queue_pair.phase = Phase::Error;
        let options = self.devices.get(&queue_pair.device).map(|device| device.options);
        let shared = queue_pair.shared.is_some();
        let tells = match failure {
            Failure::Left => false,
            // A queue pair's own receives are flushed, shared ones are not. Only an event reports
            // that it gets no more of them.
            Failure::Completed => shared,
            Failure::Silent => shared || options.is_some_and(|options| options.tells_failures),
            Failure::Told => true,
        };
        if tells {
            queue_pair.tell(ConnectionEvent::QueuePairError);
        }
        if shared && let Some(queue_pair) = self.queue_pairs.get_mut(&number) {
            queue_pair.last_receive = LastStage::Holding;
            if self.faults.hurry_last_receive(number) {
                self.say_last_receive(number);
            }
        }
        self.flush_soon(number);
        // A sender that waits for a receive of this queue pair gets no response to its next retry.
        self.wake_senders(|sender| sender.number == number);
    }

    /// Schedules the flush of a failed queue pair's posted work.
    pub(super) fn flush_soon(&mut self, number: u32) {
        let Some(queue_pair) = self.queue_pairs.get_mut(&number) else { return };
        let removed = self.devices.get(&queue_pair.device).is_none_or(|device| device.removed);
        if removed || std::mem::replace(&mut queue_pair.flushing, true) {
            return;
        }
        let delay = self.random.up_to(self.costs.flush);
        self.at(self.now + delay, Event::Flush { queue_pair: number });
    }

    /// Flushes all posted work; from now on the device accesses none of its memory.
    pub(super) fn flush(&mut self, number: u32) {
        let Some(queue_pair) = self.queue_pairs.get_mut(&number) else { return };
        queue_pair.flushing = false;
        queue_pair.epoch = queue_pair.epoch.wrapping_add(1);
        queue_pair.not_ready = None;
        queue_pair.reads = 0;
        queue_pair.reads_at_peer = 0;
        let first = queue_pair.first();
        queue_pair.next = queue_pair.sends_posted;
        let sends = std::mem::take(&mut queue_pair.sends);
        let receives = std::mem::take(&mut queue_pair.receives);
        self.counters.ended += (sends.len() + receives.len()) as u64;
        let flushed = |id| WorkCompletion {
            id,
            status: WcStatus::Flushed,
            queue_pair: number,
            bytes: 0,
            invalidated: None,
        };
        if queue_pair.last_receive != LastStage::Taking {
            self.give_back_shared(number);
        }
        // There is no order between the two queues.
        let receives_first = self.random.coin();
        let sends = || sends.iter().zip(first + 1..).map(|(send, upto)| (send.work.id, upto));
        for turn in [receives_first, !receives_first] {
            if turn {
                for receive in &receives {
                    self.complete(flushed(receive.id), Frees::Receive);
                }
            } else {
                for (id, upto) in sends() {
                    self.complete(flushed(id), Frees::Sends(upto));
                }
            }
        }
    }

    /// Completes the shared receive that a failed queue pair had fetched, if any, and reports that
    /// it was the last.
    fn give_back_shared(&mut self, number: u32) {
        let Some(queue_pair) = self.queue_pairs.get_mut(&number) else { return };
        let options = self.devices.get(&queue_pair.device).map(|device| device.options);
        let fetched = options.is_some_and(|options| options.fetches_ahead) && self.random.coin();
        if queue_pair.last_receive == LastStage::Holding {
            queue_pair.last_receive = LastStage::Returned;
        } else if !std::mem::take(&mut queue_pair.hurried) {
            return;
        }
        let Some(shared) = queue_pair.shared else { return };
        let queue = self.shared_queues.get_mut(&shared);
        if let Some(receive) =
            queue.filter(|_| fetched).and_then(|queue| queue.receives.pop_front())
        {
            self.counters.ended += 1;
            let completion = WorkCompletion {
                id: receive.id,
                status: WcStatus::Flushed,
                queue_pair: number,
                bytes: 0,
                invalidated: None,
            };
            self.complete(completion, Frees::FabricInner(shared));
        }
        match self.faults.hold_last_receive(number) {
            Some(u64::MAX) => {}
            Some(late) => self.at(self.now + late, Event::LastWqe { queue_pair: number }),
            None => self.say_last_receive(number),
        }
    }

    /// Reports to the owner that the queue pair takes no more shared receives.
    pub(super) fn say_last_receive(&mut self, number: u32) {
        let Some(queue_pair) = self.queue_pairs.get_mut(&number) else { return };
        queue_pair.hurried = queue_pair.last_receive == LastStage::Holding;
        queue_pair.last_receive = LastStage::Said;
        queue_pair.signal.raise();
    }

    /// Drops the fetched shared receives of a queue pair that is removed too early.
    pub(super) fn lose_fetched(&mut self, queue_pair: &QueuePair) {
        let options = self.devices.get(&queue_pair.device).map(|device| device.options);
        let holds = options.is_some_and(|options| options.fetches_ahead)
            && (queue_pair.last_receive == LastStage::Holding || queue_pair.hurried);
        let queue = queue_pair.shared.filter(|_| holds);
        let queue = queue.and_then(|shared| self.shared_queues.get_mut(&shared));
        if queue.is_some_and(SrqInner::lose) {
            self.counters.receives_lost += 1;
            self.counters.ended += 1;
        }
    }
}
