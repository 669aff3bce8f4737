//! The lanes that are in, by the port of the network that their data drains to, and which of them is next.

use super::Lane;
use super::loads::{Loads, PATHS, Way};
use super::queue::Queue;

/// Keys less far apart than this many commands are as good as equal. With more, flows that ask for little wait too
/// long behind others' turns.
const ABOUT_EQUAL: u64 = 2;

/// The lanes that are in, by path.
#[derive(Debug, Default)]
pub(super) struct Paths {
    queues: [Queue; PATHS as usize],
    /// Those behind this one never had a lane. Where all lanes go the same way it is the only one that has any.
    last: usize,
}

impl Paths {
    /// The lanes that are in of those that go this way.
    #[inline]
    pub(super) fn queue(&mut self, way: Way) -> &mut Queue {
        &mut self.queues[way.path()]
    }

    /// Is any lane in?
    pub(super) fn have_lanes(&self) -> bool {
        self.queues[..=self.last].iter().any(|queue| !queue.is_empty())
    }

    /// A path has a lane.
    pub(super) fn open(&mut self, way: Way) {
        self.last = self.last.max(way.path());
    }

    /// The lane that is next: see [`Residence`](super::Residence). `charge` is what a command is charged.
    #[inline(always)]
    pub(super) fn first(&mut self, charge: u64, loads: &Loads, lanes: &mut [Lane]) -> Option<u32> {
        // Each asked for itself whether there is one: the answer of the first needs no word for that.
        Some(if loads.is_one_way() {
            self.queues[self.last % usize::from(PATHS)].top(lanes)?
        } else {
            self.first_of_some(charge, loads, lanes)?
        })
    }

    #[inline(never)]
    fn first_of_some(&mut self, charge: u64, loads: &Loads, lanes: &mut [Lane]) -> Option<u32> {
        let mut lowest = u64::MAX;
        // Of the paths that are used; a path where nobody is has a key beyond all others.
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
