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

use nvmeof_verbs::{
    ConnectionEvent, EndpointSpec, SendOp, SendWr, SgeList, WcStatus, WorkCompletion, WrId,
};

use crate::completions::{Frees, SrqInner};
use crate::connection::Link;
use crate::counters::EndpointCounters;
use crate::faults::WorkFault;
use crate::signal::Signal;
use crate::state::{Event, State};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
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
pub(crate) enum Failure {
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
pub(crate) enum LastStage {
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
pub(crate) struct Receive {
    pub(crate) id: WrId,
    pub(crate) pieces: SgeList,
}

/// A work request of the send queue that has not ended.
#[derive(Debug)]
pub(crate) struct Send {
    pub(crate) work: SendWr,
    pub(crate) stage: Stage,
    /// Inline bytes, bytes gathered early, or the payload of an RDMA READ.
    pub(crate) bytes: Option<Vec<u8>>,
    pub(crate) fault: Option<WorkFault>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    /// Not started.
    Waiting,
    /// In transit to the peer.
    Flying,
    /// The peer executed it, or no peer did; the response is in transit.
    Executed,
}

/// A SEND that waits for a receive of the peer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NotReady {
    pub(crate) sequence: u64,
    pub(crate) since: u64,
    /// Rounds that a fault makes it wait, regardless of the peer's receives.
    pub(crate) forced: u64,
}

#[derive(Debug)]
pub(crate) struct QueuePair {
    pub(crate) number: u32,
    pub(crate) device: u32,
    pub(crate) completions: u32,
    pub(crate) shared: Option<u32>,
    pub(crate) spec: EndpointSpec,
    pub(crate) phase: Phase,
    pub(crate) link: Link,
    pub(crate) connection: Option<u32>,
    pub(crate) peer: Option<u32>,
    pub(crate) events: VecDeque<ConnectionEvent>,
    pub(crate) signal: Arc<Signal>,
    pub(crate) sends: VecDeque<Send>,
    /// Sequence number of the next work request to be posted. The first of `sends` has this number
    /// minus their count.
    pub(crate) sends_posted: u64,
    /// Entries before this sequence number are free.
    pub(crate) sends_freed: u64,
    pub(crate) receives: VecDeque<Receive>,
    pub(crate) receives_posted: u64,
    pub(crate) receives_freed: u64,
    /// Sequence number of the next work request to start.
    pub(crate) next: u64,
    /// A work request has failed, so no later one starts.
    pub(crate) halted: bool,
    /// Epoch of the work requests in transit; those with an older one were called back.
    pub(crate) epoch: u32,
    pub(crate) line_free: u64,
    pub(crate) last_arrival: u64,
    pub(crate) last_finish: u64,
    /// Limits of outstanding RDMA READs: ours, and the peer's.
    pub(crate) reads_out: u8,
    pub(crate) reads_in: u8,
    pub(crate) reads: u32,
    /// RDMA READs that the peer has executed and that have not ended.
    pub(crate) reads_at_peer: u32,
    pub(crate) retries: u8,
    pub(crate) rnr_retries: u8,
    pub(crate) not_ready: Option<NotReady>,
    pub(crate) stalled: Option<u64>,
    pub(crate) flushing: bool,
    pub(crate) last_receive: LastStage,
    /// The end was reported before all receives were returned.
    pub(crate) hurried: bool,
    pub(crate) most_reads: u32,
    pub(crate) read_stalls: u64,
    pub(crate) not_ready_rounds: u64,
}

impl QueuePair {
    /// Returns the sequence number of the first work request that has not ended.
    pub(crate) fn first(&self) -> u64 {
        self.sends_posted - self.sends.len() as u64
    }

    pub(crate) fn send(&mut self, sequence: u64) -> Option<&mut Send> {
        let index = sequence.checked_sub(self.first())?;
        self.sends.get_mut(usize::try_from(index).ok()?)
    }

    pub(crate) fn counters(&self) -> EndpointCounters {
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
    pub(crate) fn tell(&mut self, event: ConnectionEvent) {
        self.events.push_back(event);
        self.signal.raise();
    }

    /// Calls back all work requests in transit from `sequence` on.
    pub(crate) fn call_back(&mut self, sequence: u64) {
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
    pub(crate) fn fail(&mut self, number: u32, failure: Failure) {
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
    pub(crate) fn flush_soon(&mut self, number: u32) {
        let Some(queue_pair) = self.queue_pairs.get_mut(&number) else { return };
        let removed = self.devices.get(&queue_pair.device).is_none_or(|device| device.removed);
        if removed || std::mem::replace(&mut queue_pair.flushing, true) {
            return;
        }
        let delay = self.random.below(self.costs.flush.saturating_add(1));
        self.at(self.now + delay, Event::Flush { queue_pair: number });
    }

    /// Flushes all posted work; from now on the device accesses none of its memory.
    pub(crate) fn flush(&mut self, number: u32) {
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
    pub(crate) fn say_last_receive(&mut self, number: u32) {
        let Some(queue_pair) = self.queue_pairs.get_mut(&number) else { return };
        queue_pair.hurried = queue_pair.last_receive == LastStage::Holding;
        queue_pair.last_receive = LastStage::Said;
        queue_pair.signal.raise();
    }

    /// Drops the fetched shared receives of a queue pair that is removed too early.
    pub(crate) fn lose_fetched(&mut self, queue_pair: &QueuePair) {
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
