//! The right to have one command in flight.

use std::marker::PhantomData;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::lanes::{FlowId, Waiting};
use crate::policy::Grants;
use crate::{Cost, Nanos};

/// The right to have one command in flight. It comes from [`crate::Pacer::next`] and goes back,
/// exactly once, through [`crate::Pacer::release`] of the same pacer; it cannot be cloned or sent
/// to another core.
///
/// Dropping it instead loses its grants for good. A debug build panics then; a release build
/// counts it in [`lost_permits`].
#[must_use = "a permit must be given back with Pacer::release"]
#[derive(Debug)]
pub struct Permit {
    pub(crate) started: Nanos,
    /// Which part of its time was the network's; see [`network_part`].
    pub(crate) mark: u64,
    pub(crate) grants: Grants,
    pub(crate) flow: FlowId,
    pub(crate) cost: Cost,
    /// Which set of policies of its pacer granted it.
    pub(crate) era: u32,
    /// The device it is for; the flow may be gone, and its number another's, when it comes back.
    /// (Not beside `cost`: the two would be read as one word, which waits for both stores.)
    pub(crate) device: u32,
    /// Whose it is, to catch one that comes back to another.
    #[cfg(debug_assertions)]
    pub(crate) pacer: u32,
    _one_core: PhantomData<*const ()>,
}

/// How a command ended, told to the policies that granted it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Outcome {
    /// It ran; its time in flight says something about the machine.
    #[default]
    Completed,
    /// It ran and failed, or its host went away; its time in flight says nothing.
    Failed,
    /// It never started: what the policy granted is taken back as if it had never been asked.
    Withdrawn,
}

/// Permits dropped without being given back since the process started; anything but 0 is a defect.
pub fn lost_permits() -> u64 {
    LOST.load(Ordering::Relaxed)
}

static LOST: AtomicU64 = AtomicU64::new(0);

/// In a permit's mark: what is beside it is how long a write's data took to come, in ns. Without it: when
/// a read's data landed, or 0 if nobody told.
const CAME: u64 = 1 << 63;

/// For how long the network had the data of a command that started then and is over now, in ns, by
/// its permit's mark: at least 1 if anybody told, 0 if nobody did.
#[inline(always)]
pub(crate) fn network_part(mark: u64, started: Nanos, now: Nanos) -> Nanos {
    let part = match mark {
        0 => return 0,
        came if came & CAME != 0 => came & !CAME,
        landed => now.saturating_sub(landed),
    };
    // What lands and leaves within a turn took no time by its clock; that is told all the same.
    part.min(now.saturating_sub(started)).max(1)
}

impl Permit {
    #[inline]
    pub(crate) fn new(
        pacer: u32,
        era: u32,
        waiting: Waiting,
        device: u32,
        grants: Grants,
        now: Nanos,
    ) -> Self {
        #[cfg(not(debug_assertions))]
        let _ = pacer;
        Self {
            started: now,
            mark: 0,
            grants,
            flow: waiting.flow,
            cost: waiting.cost,
            era,
            device,
            #[cfg(debug_assertions)]
            pacer,
            _one_core: PhantomData,
        }
    }

    /// A read's data is complete in memory: its device is done, and from here to the release the
    /// network has it. Told at most once; a policy does without where nobody tells.
    #[inline]
    pub fn landed(&mut self, now: Nanos) {
        self.mark = now.max(1) & !CAME;
    }

    /// A write's data has come from its host: up to here the network had it, and from here to the
    /// release its device has. Told at most once, as [`Permit::landed`] is.
    #[inline]
    pub fn came(&mut self, now: Nanos) {
        self.mark = now.saturating_sub(self.started) | CAME;
    }

    /// The flow whose command it admits.
    #[must_use]
    pub fn flow(&self) -> FlowId {
        self.flow
    }

    /// What the command was said to take.
    #[must_use]
    pub fn cost(&self) -> Cost {
        self.cost
    }

    /// When the command was admitted.
    #[must_use]
    pub fn started(&self) -> Nanos {
        self.started
    }
}

impl Drop for Permit {
    #[cold]
    fn drop(&mut self) {
        LOST.fetch_add(1, Ordering::Relaxed);
        if cfg!(debug_assertions) && !std::thread::panicking() {
            panic!("a permit of {:?} was dropped: give it back with Pacer::release", self.flow);
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// The network's part of a command from 100 to 150.
    fn part(mark: u64) -> Nanos {
        network_part(mark, 100, 150)
    }

    #[test]
    fn a_read_is_the_networks_from_when_it_landed_and_a_write_until_it_came() {
        assert_eq!(part(0), 0, "nobody told");
        assert_eq!(part(120), 30, "a read that landed at 120");
        assert_eq!(part(20 | CAME), 20, "a write whose data took 20 to come");
    }

    #[test]
    fn what_took_no_time_is_told_and_clocks_that_jump_make_nothing_of_it() {
        assert_eq!((part(150), part(CAME)), (1, 1));
        assert_eq!(part(50), 50, "landed before it started");
        assert_eq!(part(200), 1, "over before it landed");
        assert_eq!(part(900 | CAME), 50, "came after it was over");
        assert_eq!(network_part(120, 100, 90), 1, "over before it started");
    }
}
