//! Lanes by tag: a binary heap that knows where each of its lanes is.

use super::Lane;

/// A heap of lanes, the one with the lowest tag on top.
#[derive(Debug, Default)]
pub(super) struct Heap {
    lanes: Vec<u32>,
}

impl Heap {
    #[inline]
    pub(super) fn top(&self) -> Option<u32> {
        self.lanes.first().copied()
    }

    /// Its lanes for each of so many, at least 1.
    pub(super) fn shared_by(&self, many: u64) -> u64 {
        (self.lanes.len() as u64 / many).max(1)
    }

    pub(super) fn reserve(&mut self, lanes: usize) {
        self.lanes.reserve(lanes.saturating_sub(self.lanes.len()));
    }

    #[inline]
    pub(super) fn contains(&self, lane: u32, all: &[Lane]) -> bool {
        self.lanes.get(all[lane as usize].at as usize) == Some(&lane)
    }

    #[inline]
    pub(super) fn push(&mut self, lane: u32, all: &mut [Lane]) {
        self.lanes.push(lane);
        self.sift_up(self.lanes.len() - 1, all);
    }

    pub(super) fn remove(&mut self, lane: u32, all: &mut [Lane]) {
        let at = all[lane as usize].at as usize;
        let Some(last) = self.lanes.pop() else { return };
        all[lane as usize].at = u32::MAX;
        if last != lane {
            self.place(at, last, all);
            self.sift_up(at, all);
            self.sift_down(all[last as usize].at as usize, all);
        }
    }

    /// The tag of a lane has gone up.
    #[inline]
    pub(super) fn later(&mut self, lane: u32, all: &mut [Lane]) {
        self.sift_down(all[lane as usize].at as usize, all);
    }

    #[inline]
    fn place(&mut self, at: usize, lane: u32, all: &mut [Lane]) {
        self.lanes[at] = lane;
        all[lane as usize].at = u32::try_from(at).unwrap_or(u32::MAX);
    }

    #[inline]
    fn sift_up(&mut self, mut at: usize, all: &mut [Lane]) {
        let lane = self.lanes[at];
        let tag = all[lane as usize].tag;
        while at > 0 {
            let parent = self.lanes[(at - 1) / 2];
            if tag >= all[parent as usize].tag {
                break;
            }
            self.place(at, parent, all);
            at = (at - 1) / 2;
        }
        self.place(at, lane, all);
    }

    #[inline]
    fn sift_down(&mut self, mut at: usize, all: &mut [Lane]) {
        let lane = self.lanes[at];
        let tag = all[lane as usize].tag;
        while let Some(&left) = self.lanes.get(2 * at + 1) {
            let (mut child, mut below) = (2 * at + 1, left);
            if let Some(&right) = self.lanes.get(2 * at + 2)
                && all[right as usize].tag < all[left as usize].tag
            {
                (child, below) = (2 * at + 2, right);
            }
            if tag <= all[below as usize].tag {
                break;
            }
            self.place(at, below, all);
            at = child;
        }
        self.place(at, lane, all);
    }
}
