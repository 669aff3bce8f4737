//! Target cores: each works in turns on what came in since its last.
//!
//! A turn takes `turn + steps x step + waiting x waiting_ns`, where `steps` are the capsules and completions
//! it handles and `waiting` the commands that wait for admission on it in a list that it walks: the
//! prototype's. What it does takes effect when it ends; what comes in meanwhile is for the next turn.

use crate::numbers::{id, nanos};
use crate::platform::Platform;
use crate::scenario::Nanos;

/// Something for a core to work on: a step in the life of a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Work {
    /// A capsule came.
    Capsule(u32),
    /// The device is done with it.
    Device(u32),
    /// A write's data came.
    Data(u32),
    /// What was sent is acknowledged.
    Sent(u32),
}

/// All cores.
#[derive(Debug)]
pub(crate) struct Cores {
    cores: Vec<Core>,
    turn: f64,
    step: f64,
    waiting: f64,
}

#[derive(Debug, Default)]
struct Core {
    inbox: Vec<Work>,
    batch: Vec<Work>,
    in_turn: bool,
    /// When the last turn began.
    began: Nanos,
    /// When a core that goes round and round would have begun its last turn before it has the one for what is in the
    /// inbox, or for the call.
    looked: Option<Nanos>,
    /// Have a turn even with nothing in the inbox.
    called: bool,
    alarm: Option<Nanos>,
    /// No turn begins before.
    stalled_until: Nanos,
}

impl Core {
    /// There is something to do.
    fn note(&mut self, now: Nanos) {
        let looked = if self.in_turn { self.began } else { now };
        self.looked.get_or_insert(looked);
    }
}

impl Cores {
    pub(crate) fn new(platform: &Platform, cores: usize) -> Self {
        Self {
            cores: (0..cores).map(|_| Core::default()).collect(),
            turn: platform.turn_us * 1000.0,
            step: platform.step_us * 1000.0,
            waiting: platform.waiting_ns,
        }
    }

    pub(crate) fn push(&mut self, core: usize, work: Work, now: Nanos) {
        let core = &mut self.cores[core];
        core.inbox.push(work);
        core.note(now);
    }

    /// This core, or all of them, begins no turn before this; those under way end.
    pub(crate) fn stall(&mut self, core: Option<u32>, until: Nanos) {
        let cores = match core {
            Some(core) => std::slice::from_mut(&mut self.cores[core as usize]),
            None => &mut self.cores,
        };
        for core in cores {
            core.stalled_until = core.stalled_until.max(until);
        }
    }

    /// The core shall have a turn though nothing came in.
    pub(crate) fn call(&mut self, core: usize, now: Nanos) {
        let core = &mut self.cores[core];
        core.called = true;
        core.note(now);
    }

    /// Starts a turn if there is something to do and none is under way; yields when it ends, and how long before
    /// it nobody looked.
    pub(crate) fn start(
        &mut self,
        core: usize,
        walked: usize,
        now: Nanos,
    ) -> Option<(Nanos, Nanos)> {
        let core = &mut self.cores[core];
        if now < core.stalled_until || core.in_turn || (core.inbox.is_empty() && !core.called) {
            return None;
        }
        core.in_turn = true;
        core.called = false;
        let after = now - core.looked.take().unwrap_or(now);
        core.began = now;
        std::mem::swap(&mut core.inbox, &mut core.batch);
        let steps = f64::from(id(core.batch.len()));
        let walked = f64::from(id(walked));
        let lasts = nanos(self.turn + steps * self.step + walked * self.waiting).max(1);
        Some((now + lasts, after))
    }

    /// What the turn that ends worked on; to be given back with [`Cores::end`].
    pub(crate) fn batch(&mut self, core: usize) -> Vec<Work> {
        std::mem::take(&mut self.cores[core].batch)
    }

    pub(crate) fn end(&mut self, core: usize, mut batch: Vec<Work>) {
        batch.clear();
        self.cores[core].batch = batch;
        self.cores[core].in_turn = false;
    }

    /// Sets the alarm of a core; true if it has to be put into the future.
    pub(crate) fn set_alarm(&mut self, core: usize, at: Nanos) -> bool {
        let alarm = &mut self.cores[core].alarm;
        if alarm.is_some_and(|set| set <= at) {
            return false;
        }
        *alarm = Some(at);
        true
    }

    /// The alarm rings; false if it was set anew meanwhile.
    pub(crate) fn ring(&mut self, core: usize, now: Nanos) -> bool {
        let alarm = &mut self.cores[core].alarm;
        if *alarm != Some(now) {
            return false;
        }
        *alarm = None;
        self.call(core, now);
        true
    }
}
