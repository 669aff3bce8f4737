//! Completion queues and shared receive queues.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;

use nvmeof_verbs::{Sge, SgeList, VerbsError, WcStatus, WorkCompletion, WrId};
use rustix::io::Errno;

use crate::device::{LoopbackDevice, invalid};
use crate::queue_pair::{Failure, Receive};
use crate::signal::Signal;
use crate::state::State;

/// A completion queue of a [`LoopbackDevice`].
#[derive(Debug)]
pub struct LoopbackCompletions {
    pub(crate) device: Arc<LoopbackDevice>,
    pub(crate) number: u32,
    pub(crate) signal: Arc<Signal>,
}

/// A shared receive queue of a [`LoopbackDevice`].
#[derive(Debug)]
pub struct LoopbackSharedReceives {
    pub(crate) device: Arc<LoopbackDevice>,
    pub(crate) number: u32,
}

#[derive(Debug)]
pub(crate) struct CqInner {
    pub(crate) device: u32,
    /// The owner still holds the queue. Without an owner, the queue lives as long as its queue
    /// pairs.
    owned: bool,
    depth: usize,
    entries: VecDeque<(WorkCompletion, Frees)>,
    armed: bool,
    pub(crate) broken: bool,
    signal: Arc<Signal>,
}

#[derive(Debug)]
pub(crate) struct SrqInner {
    /// As in a completion queue.
    owned: bool,
    depth: usize,
    pieces: usize,
    pub(crate) receives: VecDeque<Receive>,
    /// Entries in use: posted and not polled.
    held: usize,
}

impl SrqInner {
    /// Drops the oldest receive without a completion. Returns false if there is none.
    pub(crate) fn lose(&mut self) -> bool {
        let lost = self.receives.pop_front().is_some();
        self.held -= usize::from(lost);
        lost
    }
}

/// Queue entries that polling a completion frees.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Frees {
    /// Entries of the send queue before this sequence number.
    Sends(u64),
    /// One entry of the queue pair's own receive queue.
    Receive,
    /// One entry of a shared queue.
    FabricInner(u32),
}

impl LoopbackCompletions {
    pub(crate) fn new(device: &Arc<LoopbackDevice>, depth: u32) -> Result<Self, VerbsError> {
        let what = "making a completion queue";
        let mut state = device.fabric.lock();
        state.check_device(device.number, what)?;
        if depth == 0 || depth > device.options.limits.completions {
            return Err(invalid(what));
        }
        let signal = Arc::new(Signal::new()?);
        let number = state.name();
        let queue = CqInner {
            device: device.number,
            owned: true,
            depth: usize::try_from(depth).unwrap_or(usize::MAX),
            entries: VecDeque::new(),
            armed: false,
            broken: false,
            signal: Arc::clone(&signal),
        };
        state.completion_queues.insert(number, queue);
        Ok(Self { device: Arc::clone(device), number, signal })
    }

    /// Number that identifies the queue, for faults.
    #[must_use]
    pub fn number(&self) -> u32 {
        self.number
    }

    pub(crate) fn take(&self, most: usize, into: &mut Vec<WorkCompletion>) -> io::Result<()> {
        let mut state = self.device.fabric.lock();
        let state = &mut *state;
        let Some(queue) = state.completion_queues.get_mut(&self.number) else {
            return Err(Errno::IO.into());
        };
        if queue.broken {
            return Err(Errno::IO.into());
        }
        let count = most.min(queue.entries.len());
        let taken: Vec<_> = queue.entries.drain(..count).collect();
        state.counters.polled += taken.len() as u64;
        for (completion, frees) in taken {
            state.free(completion.queue_pair, frees);
            into.push(completion);
        }
        Ok(())
    }

    pub(crate) fn set_armed(&self) -> io::Result<()> {
        let mut state = self.device.fabric.lock();
        match state.completion_queues.get_mut(&self.number) {
            Some(queue) if !queue.broken => {
                self.signal.lower();
                queue.armed = true;
                Ok(())
            }
            _ => Err(Errno::IO.into()),
        }
    }
}

impl Drop for LoopbackCompletions {
    fn drop(&mut self) {
        let mut state = self.device.fabric.lock();
        if let Some(queue) = state.completion_queues.get_mut(&self.number) {
            queue.owned = false;
        }
        state.drop_queues();
    }
}

impl LoopbackSharedReceives {
    pub(crate) fn new(
        device: &Arc<LoopbackDevice>,
        depth: u32,
        pieces: u32,
    ) -> Result<Option<Self>, VerbsError> {
        let what = "making a shared receive queue";
        let limits = device.options.limits;
        let mut state = device.fabric.lock();
        state.check_device(device.number, what)?;
        if limits.shared_receives == 0 {
            return Ok(None);
        }
        if depth == 0 || depth > limits.shared_receives || pieces == 0 || pieces > limits.pieces {
            return Err(invalid(what));
        }
        let number = state.name();
        let queue = SrqInner {
            owned: true,
            depth: usize::try_from(depth).unwrap_or(usize::MAX),
            pieces: usize::try_from(pieces).unwrap_or(usize::MAX),
            receives: VecDeque::new(),
            held: 0,
        };
        state.shared_queues.insert(number, queue);
        Ok(Some(Self { device: Arc::clone(device), number }))
    }

    pub(crate) fn post(&self, id: WrId, pieces: &[Sge]) -> io::Result<()> {
        let mut state = self.device.fabric.lock();
        if state.check_device(self.device.number, "").is_err() {
            return Err(Errno::IO.into());
        }
        let Some(queue) = state.shared_queues.get_mut(&self.number) else {
            return Err(Errno::INVAL.into());
        };
        let Some(list) = pieces_of(pieces, queue.pieces) else { return Err(Errno::INVAL.into()) };
        if queue.held == queue.depth {
            return Err(Errno::NOMEM.into());
        }
        queue.held += 1;
        queue.receives.push_back(Receive { id, pieces: list });
        state.counters.receives_posted += 1;
        let number = self.number;
        state.wake_senders(|queue_pair| queue_pair.shared == Some(number));
        Ok(())
    }
}

impl Drop for LoopbackSharedReceives {
    fn drop(&mut self) {
        let mut state = self.device.fabric.lock();
        if let Some(queue) = state.shared_queues.get_mut(&self.number) {
            queue.owned = false;
        }
        state.drop_queues();
    }
}

/// Returns the pieces of a receive, unless there are more than `most`.
pub(crate) fn pieces_of(pieces: &[Sge], most: usize) -> Option<SgeList> {
    if pieces.len() > most {
        return None;
    }
    let mut list = SgeList::EMPTY;
    pieces.iter().all(|piece| list.push(*piece)).then_some(list)
}

impl State {
    /// Removes queues that no owner and no queue pair holds.
    pub(crate) fn drop_queues(&mut self) {
        let pairs = &self.queue_pairs;
        self.completion_queues.retain(|number, queue| {
            queue.owned || pairs.values().any(|pair| pair.completions == *number)
        });
        let ended = &mut self.counters.ended;
        self.shared_queues.retain(|number, queue| {
            let keep = queue.owned || pairs.values().any(|pair| pair.shared == Some(*number));
            if !keep {
                *ended += queue.receives.len() as u64;
            }
            keep
        });
    }

    /// Appends a completion to the completion queue of its queue pair.
    pub(crate) fn complete(&mut self, completion: WorkCompletion, frees: Frees) {
        let is_send = matches!(frees, Frees::Sends(_));
        let number = completion.queue_pair;
        let Some(queue_pair) = self.queue_pairs.get(&number) else { return };
        let to = queue_pair.completions;
        if completion.status != WcStatus::Success {
            self.counters.failed += 1;
        }
        if self.faults.lose_completion(number, is_send) {
            self.counters.lost += 1;
            return;
        }
        let Some(queue) = self.completion_queues.get_mut(&to) else { return };
        if queue.broken {
            return;
        }
        if queue.entries.len() == queue.depth {
            self.break_completions(to);
            return;
        }
        queue.entries.push_back((completion, frees));
        if std::mem::take(&mut queue.armed) {
            queue.signal.raise();
        }
        self.counters.completed += 1;
    }

    /// Breaks a completion queue: polling fails from now on, and its queue pairs fail.
    pub(crate) fn break_completions(&mut self, number: u32) {
        let Some(queue) = self.completion_queues.get_mut(&number) else { return };
        if std::mem::replace(&mut queue.broken, true) {
            return;
        }
        // Wakes a sleeping owner, so that it sees the error.
        queue.signal.raise();
        let users = self.queue_pairs.values().filter(|user| user.completions == number);
        for user in users.map(|user| user.number).collect::<Vec<_>>() {
            self.fail(user, Failure::Told);
        }
    }

    /// Drops the unpolled completions of a queue pair.
    pub(crate) fn forget_completions(&mut self, completions: u32, queue_pair: u32) {
        let Some(queue) = self.completion_queues.get_mut(&completions) else { return };
        let mut shared = Vec::new();
        queue.entries.retain(|(completion, frees)| {
            let keep = completion.queue_pair != queue_pair;
            if let (false, Frees::FabricInner(number)) = (keep, frees) {
                shared.push(*number);
            }
            keep
        });
        for number in shared {
            self.free(queue_pair, Frees::FabricInner(number));
        }
    }

    fn free(&mut self, queue_pair: u32, frees: Frees) {
        match frees {
            Frees::FabricInner(number) => {
                if let Some(queue) = self.shared_queues.get_mut(&number) {
                    queue.held = queue.held.saturating_sub(1);
                }
            }
            Frees::Sends(upto) => {
                if let Some(queue_pair) = self.queue_pairs.get_mut(&queue_pair) {
                    queue_pair.sends_freed = queue_pair.sends_freed.max(upto);
                }
            }
            Frees::Receive => {
                if let Some(queue_pair) = self.queue_pairs.get_mut(&queue_pair) {
                    queue_pair.receives_freed += 1;
                }
            }
        }
    }
}
