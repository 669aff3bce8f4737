//! The right to have one command in flight.

use std::marker::PhantomData;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::flow_queues::{FlowId, QueuedCommand};
use crate::policy::Grants;
use crate::{Cost, Nanos};

/// The right to have one command in flight. [`crate::Pacer::next`] issues it, and
/// [`crate::Pacer::release`] of the same pacer takes it exactly once. It cannot be cloned or sent
/// to another core.
///
/// Dropping it instead loses its grants permanently. A debug build panics then; a release build
/// counts the permit in [`leaked_permits`].
#[must_use = "a permit must be returned with Pacer::release"]
#[derive(Debug)]
pub struct Permit {
    pub(crate) started: Nanos,
    /// Encodes the network's part of its time; see [`network_time`].
    pub(crate) mark: u64,
    pub(crate) grants: Grants,
    pub(crate) flow: FlowId,
    pub(crate) cost: Cost,
    /// The set of policies of its pacer that granted it.
    pub(crate) policy_epoch: u32,
    /// The device of the command. When the permit is released, the flow may be gone and its number
    /// reused. (Not next to `cost`: the CPU would read both as one word and wait for both stores.)
    pub(crate) device: u32,
    /// The pacer that issued it, to catch a release at another one.
    #[cfg(debug_assertions)]
    pub(crate) pacer: u32,
    _one_core: PhantomData<*const ()>,
}

/// Result of a command, for the policies that granted it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum CommandOutcome {
    /// It completed; its time in flight is a valid measurement of the machine.
    #[default]
    Completed,
    /// It failed, or its host disconnected; its time in flight is no measurement.
    Failed,
    /// It never started: the grant is withdrawn as if the policy had never been asked.
    Cancelled,
}

/// Returns the permits dropped without a release since the process started. Any value but 0 is a
/// defect.
pub fn leaked_permits() -> u64 {
    LEAKED.load(Ordering::Relaxed)
}

static LEAKED: AtomicU64 = AtomicU64::new(0);

/// Flag in a permit's mark. If set, the other bits are the time in ns until a write's data arrived.
/// Otherwise the mark is the time when a read's data was complete, or 0 if unreported.
const HOST_DATA_ARRIVED: u64 = 1 << 63;

/// Returns the time in ns for which the network had the data of a command from `started` to `now`.
/// The result is at least 1 if the mark was set, and 0 if not.
#[inline(always)]
pub(crate) fn network_time(mark: u64, started: Nanos, now: Nanos) -> Nanos {
    let part = match mark {
        0 => return 0,
        came if came & HOST_DATA_ARRIVED != 0 => came & !HOST_DATA_ARRIVED,
        landed => now.saturating_sub(landed),
    };
    // Data that arrives and leaves within a turn took 0 ns by the turn's clock; the minimum of 1
    // still marks it as reported.
    part.min(now.saturating_sub(started)).max(1)
}

impl Permit {
    #[inline]
    pub(crate) fn new(
        pacer: u32,
        policy_epoch: u32,
        waiting: QueuedCommand,
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
            policy_epoch,
            device,
            #[cfg(debug_assertions)]
            pacer,
            _one_core: PhantomData,
        }
    }

    /// Records that a read's data is complete in memory. The device is done; from now to the
    /// release the data is in the network. Call it at most once. Policies also work without it.
    #[inline]
    pub fn device_done(&mut self, now: Nanos) {
        self.mark = now.max(1) & !HOST_DATA_ARRIVED;
    }

    /// Records that a write's data has arrived from its host. The network had it until now; from
    /// now to the release the device has it. Call it at most once, as [`Permit::device_done`].
    #[inline]
    pub fn host_data_arrived(&mut self, now: Nanos) {
        self.mark = now.saturating_sub(self.started) | HOST_DATA_ARRIVED;
    }

    /// Returns the flow of the admitted command.
    #[must_use]
    pub fn flow(&self) -> FlowId {
        self.flow
    }

    /// Returns the cost that the command was enqueued with.
    #[must_use]
    pub fn cost(&self) -> Cost {
        self.cost
    }

    /// Returns when the command was admitted.
    #[must_use]
    pub fn on_dispatch(&self) -> Nanos {
        self.started
    }
}

impl Drop for Permit {
    #[cold]
    fn drop(&mut self) {
        LEAKED.fetch_add(1, Ordering::Relaxed);
        if cfg!(debug_assertions) && !std::thread::panicking() {
            panic!("a permit of {:?} was dropped: give it back with Pacer::release", self.flow);
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// Network time of a command from 100 to 150.
    fn part(mark: u64) -> Nanos {
        network_time(mark, 100, 150)
    }

    #[test]
    fn a_read_is_the_networks_from_when_it_landed_and_a_write_until_it_came() {
        assert_eq!(part(0), 0, "nobody told");
        assert_eq!(part(120), 30, "a read that landed at 120");
        assert_eq!(part(20 | HOST_DATA_ARRIVED), 20, "a write whose data took 20 to come");
    }

    #[test]
    fn what_took_no_time_is_told_and_clocks_that_jump_make_nothing_of_it() {
        assert_eq!((part(150), part(HOST_DATA_ARRIVED)), (1, 1));
        assert_eq!(part(50), 50, "landed before it started");
        assert_eq!(part(200), 1, "over before it landed");
        assert_eq!(part(900 | HOST_DATA_ARRIVED), 50, "came after it was over");
        assert_eq!(network_time(120, 100, 90), 1, "over before it started");
    }
}
