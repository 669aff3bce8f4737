//! Waiting lanes by network port, and the selection between ports.

use super::Lane;
use super::loads::{Loads, PATHS, Way};
use super::queue::Queue;

/// Keys closer than this many commands count as equal. With a larger value, flows with little
/// demand wait too long behind the turns of others.
const ABOUT_EQUAL: u64 = 2;

/// Waiting lanes by path.
#[derive(Debug, Default)]
pub(super) struct Paths {
    queues: [Queue; PATHS as usize],
    /// Paths above this index never had a lane. If all lanes share one path, only this one has any.
    last: usize,
}

impl Paths {
    /// Returns the queue of the lanes that are in and use this path.
    #[inline]
    pub(super) fn queue(&mut self, way: Way) -> &mut Queue {
        &mut self.queues[way.path()]
    }

    /// Returns whether any lane is in.
    pub(super) fn have_lanes(&self) -> bool {
        self.queues[..=self.last].iter().any(|queue| !queue.is_empty())
    }

    /// Records that a path has a lane.
    pub(super) fn open(&mut self, way: Way) {
        self.last = self.last.max(way.path());
    }

    /// Returns the next lane: see [`Residence`](super::Residence). `charge` is the charge of a
    /// command.
    #[inline(always)]
    pub(super) fn first(&mut self, charge: u64, loads: &Loads, lanes: &mut [Lane]) -> Option<u32> {
        // Checked in each branch: the result of the first one then needs no extra word.
        Some(if loads.is_one_way() {
            self.queues[self.last % usize::from(PATHS)].top(lanes)?
        } else {
            self.first_of_some(charge, loads, lanes)?
        })
    }

    #[inline(never)]
    fn first_of_some(&mut self, charge: u64, loads: &Loads, lanes: &mut [Lane]) -> Option<u32> {
        let mut lowest = u64::MAX;
        // Tops of the used paths; an empty path has a key beyond all others.
        let mut tops = [(u64::MAX, 0); PATHS as usize];
        for (queue, top) in self.queues[..=self.last].iter_mut().zip(&mut tops) {
            if let Some(lane) = queue.top(lanes) {
                *top = (lanes[lane as usize].key, lane);
                lowest = lowest.min(top.0);
            }
        }
        let end = lowest.saturating_add((ABOUT_EQUAL * charge).max(1));
        let (mut least, mut chosen) = ((u64::MAX, u64::MAX), None);
        for (path, &(key, lane)) in tops[..=self.last].iter().enumerate() {
            let load = (loads.on_path(path), key);
            if key < end && load < least {
                (least, chosen) = (load, Some((path, lane)));
            }
        }
        let (path, top) = chosen?;
        Some(self.queues[path].least_loaded_from(top, end, loads, lanes))
    }
}
