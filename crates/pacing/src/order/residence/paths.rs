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
    /// Those from here on never had a lane.
    used: usize,
}

impl Paths {
    /// The lanes that are in of those that go this way.
    #[inline]
    pub(super) fn queue(&mut self, way: Way) -> &mut Queue {
        &mut self.queues[way.path()]
    }

    /// A path has a lane.
    pub(super) fn open(&mut self, way: Way) {
        self.used = self.used.max(way.path() + 1);
    }

    /// The lane that is next: see [`Residence`](super::Residence). `charge` is what a command is charged.
    #[inline(always)]
    pub(super) fn first(&mut self, charge: u64, loads: &Loads, lanes: &mut [Lane]) -> Option<u32> {
        if loads.is_one_way() {
            return self.queues[self.used.saturating_sub(1) % usize::from(PATHS)].top(lanes);
        }
        self.first_of_some(charge, loads, lanes)
    }

    #[inline(never)]
    fn first_of_some(&mut self, charge: u64, loads: &Loads, lanes: &mut [Lane]) -> Option<u32> {
        let (mut lowest, mut tops) = (u64::MAX, [None; PATHS as usize]);
        for (top, queue) in tops.iter_mut().zip(&mut self.queues[..self.used]) {
            *top = queue.top(lanes).map(|lane| (lanes[lane as usize].key, lane));
            lowest = top.map_or(lowest, |(key, _)| lowest.min(key));
        }
        let end = lowest.saturating_add((ABOUT_EQUAL * charge).max(1));
        let tops = tops.into_iter().enumerate().filter_map(|(path, top)| Some((path, top?)));
        let near = tops.filter(|(_, (key, _))| *key < end);
        let (path, (_, top)) = near.min_by_key(|(path, (key, _))| (loads.on_path(*path), *key))?;
        Some(self.queues[path].least_loaded_from(top, end, loads, lanes))
    }
}
