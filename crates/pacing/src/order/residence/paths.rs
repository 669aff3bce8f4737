//! Ports of the network that data drains to, and which of them are in want of it.

use super::Lane;
use super::queue::Queue;
use crate::Nanos;

/// Paths told apart; numbers beyond share them.
const COUNT: u16 = 8;
/// Commands the mean drain time of a path looks back on, as a power of two.
const MEMORY: u32 = 4;

/// Commands that a path goes ahead of, per mean drain time that it is faster.
const AHEAD: u64 = 8;

/// The lanes that are in, by path.
#[derive(Debug, Default)]
pub(super) struct Paths {
    paths: [Path; COUNT as usize],
    /// Those from here on never had a lane.
    used: usize,
}

/// Flows whose data leaves through the same port.
#[derive(Debug, Default)]
struct Path {
    queue: Queue,
    /// Mean time that the network had its last commands (a write's while it came), in ns; 0: none told.
    drain: Nanos,
    /// How far its keys are moved on.
    lag: u64,
}

impl Paths {
    /// The path of this number.
    pub(super) fn of(number: u16) -> u8 {
        let [path, _] = (number % COUNT).to_le_bytes();
        path
    }

    /// The lanes of a path that are in.
    #[inline]
    pub(super) fn queue(&mut self, path: u8) -> &mut Queue {
        &mut self.paths[usize::from(path)].queue
    }

    /// A path has a lane.
    pub(super) fn open(&mut self, path: u8) {
        self.used = self.used.max(usize::from(path) + 1);
    }

    /// The lane with the lowest key, its path's lag counted, and that figure.
    #[inline(always)]
    pub(super) fn first(&mut self, lanes: &mut [Lane]) -> Option<(u32, u64)> {
        if self.used == 1 {
            // Nobody to lag behind.
            return self.paths[0].queue.top(lanes);
        }
        let tops = self.paths.iter_mut().take(self.used).filter_map(|path| {
            let (lane, key) = path.queue.top(lanes)?;
            Some((lane, key + path.lag))
        });
        tops.min_by_key(|(_, urgency)| *urgency)
    }

    /// The network had a command of this path for so many ns.
    #[inline]
    pub(super) fn drained(&mut self, path: u8, took: Nanos) {
        let drain = &mut self.paths[usize::from(path)].drain;
        *drain = (*drain + (took >> MEMORY)).saturating_sub(*drain >> MEMORY).max(1);
    }

    /// Sets the lag of a path: what it drains slower than the others, but at most twice their mean,
    /// in commands of `charge` ([`AHEAD`] of them, for all of its flows together). Where commands are long with
    /// their devices (`with_device`, in ns) what starts now
    /// helps a path only after so long, and the lag is less for it, or it would overshoot.
    pub(super) fn settle(&mut self, path: u8, charge: u64, with_device: Nanos) {
        if self.used == 1 {
            return;
        }
        let known = self.paths.iter().map(|path| path.drain).filter(|drain| *drain > 0);
        let (sum, count) = known.fold((0, 0), |(sum, count), drain| (sum + drain, count + 1));
        let path = &mut self.paths[usize::from(path)];
        if count < 2 {
            path.lag = 0;
            return;
        }
        let mean = sum / count;
        let most = charge.saturating_mul(path.drain.min(2 * mean)) / (mean + with_device);
        path.lag = most / path.queue.shared_by(AHEAD);
    }
}
