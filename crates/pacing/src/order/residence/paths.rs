//! Ports of the network that data drains to, and which of them has the least to do.

use super::Lane;
use super::queue::Queue;

/// Paths told apart; numbers beyond share them.
const COUNT: u16 = 8;
/// Keys less far apart than this many commands are as good as equal between paths. With more, flows that ask
/// for little wait too long behind others' turns.
const ABOUT_EQUAL: u64 = 2;

/// The lanes that are in, by path.
#[derive(Debug, Default)]
pub(super) struct Paths {
    queues: [Queue; COUNT as usize],
    /// Bytes in flight of all lanes of each path, as they count them.
    in_flight: [u64; COUNT as usize],
    /// Those from here on never had a lane.
    used: usize,
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
        &mut self.queues[index(path)]
    }

    /// A path has a lane.
    pub(super) fn open(&mut self, path: u8) {
        self.used = self.used.max(usize::from(path) + 1);
    }

    /// The lane that is next: of the first lanes of the paths, as far as their keys are within a
    /// few commands of `charge` of the lowest, the one whose path has the least in flight.
    #[inline(always)]
    pub(super) fn first(&mut self, charge: u64, lanes: &mut [Lane]) -> Option<u32> {
        if self.used == 1 {
            return self.queues[0].top(lanes).map(|(lane, _)| lane);
        }
        self.first_of_some(charge, lanes)
    }

    #[inline(never)]
    fn first_of_some(&mut self, charge: u64, lanes: &mut [Lane]) -> Option<u32> {
        let mut tops = [None; COUNT as usize];
        let mut lowest = u64::MAX;
        for (top, queue) in tops.iter_mut().zip(&mut self.queues[..self.used]) {
            *top = queue.top(lanes);
            lowest = top.map_or(lowest, |(_, key)| lowest.min(key));
        }
        let end = lowest.saturating_add((ABOUT_EQUAL * charge).max(1));
        let tops =
            tops.into_iter().zip(self.in_flight).filter_map(|(top, path)| Some((top?, path)));
        let near = tops.filter(|((_, key), _)| *key < end);
        near.min_by_key(|((_, key), in_flight)| (*in_flight, *key)).map(|((lane, _), _)| lane)
    }

    /// So many bytes more are in flight on a path.
    #[inline(always)]
    pub(super) fn started(&mut self, path: u8, bytes: u64) {
        self.in_flight[index(path)] += bytes;
    }

    /// So many bytes less are in flight on a path.
    #[inline(always)]
    pub(super) fn returned(&mut self, path: u8, bytes: u64) {
        self.in_flight[index(path)] -= bytes;
    }

    #[cfg(all(test, not(loom)))]
    pub(super) fn in_flight(&self, path: u8) -> u64 {
        self.in_flight[index(path)]
    }
}

/// Where a path is; its number is below [`COUNT`], which is not checked for each command.
#[inline(always)]
fn index(path: u8) -> usize {
    usize::from(path) % usize::from(COUNT)
}
