//! Target cores: each works in turns on the events since its last turn.
//!
//! A turn takes `turn + steps x step + waiting x waiting_ns`. `steps` are the capsules and
//! completions that it handles. `waiting` are the commands that wait for admission on it in a list
//! that it walks, as in io_pacing. The effects of a turn occur when it ends; events in that time
//! are for the next turn.

use crate::numbers::{id, whole};
use crate::platform::Platform;
use crate::scenario::Nanos;

/// One step in the life of a command that a core has to process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Work {
    /// A capsule arrived.
    Capsule(u32),
    /// The device completed it.
    Device(u32),
    /// The data of a write arrived.
    Data(u32),
    /// The host acknowledged the data sent.
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
    /// Start of the last turn.
    began: Nanos,
    /// Time at which a continuously polling core would have begun its last turn before the one that
    /// handles the inbox, or the call.
    looked: Option<Nanos>,
    /// Run a turn even with nothing in the inbox.
    called: bool,
    alarm: Option<Nanos>,
    /// No turn begins before this time.
    stalled_until: Nanos,
}

impl Core {
    /// Records that there is work.
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

    /// Lets this core, or all, begin no turn before `until`; turns in progress end.
    pub(crate) fn stall(&mut self, core: Option<u32>, until: Nanos) {
        let cores = match core {
            Some(core) => std::slice::from_mut(&mut self.cores[core as usize]),
            None => &mut self.cores,
        };
        for core in cores {
            core.stalled_until = core.stalled_until.max(until);
        }
    }

    /// Requests a turn of a core although no event arrived.
    pub(crate) fn call(&mut self, core: usize, now: Nanos) {
        let core = &mut self.cores[core];
        core.called = true;
        core.note(now);
    }

    /// Starts a turn if there is work and none is in progress. Returns its end, and the time since
    /// the core last polled.
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
        let lasts = whole(self.turn + steps * self.step + walked * self.waiting).max(1);
        Some((now + lasts, after))
    }

    /// Takes the work of the turn that ends; the caller returns it with [`Cores::end`].
    pub(crate) fn batch(&mut self, core: usize) -> Vec<Work> {
        std::mem::take(&mut self.cores[core].batch)
    }

    pub(crate) fn end(&mut self, core: usize, mut batch: Vec<Work>) {
        batch.clear();
        self.cores[core].batch = batch;
        self.cores[core].in_turn = false;
    }

    /// Sets the alarm of a core; true if the caller has to schedule the event.
    pub(crate) fn set_alarm(&mut self, core: usize, at: Nanos) -> bool {
        let alarm = &mut self.cores[core].alarm;
        if alarm.is_some_and(|set| set <= at) {
            return false;
        }
        *alarm = Some(at);
        true
    }

    /// Handles an alarm; false if it was changed since.
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
