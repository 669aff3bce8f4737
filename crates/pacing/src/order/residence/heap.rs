//! Lanes by tag: a binary heap that knows where each of its lanes is.

use super::Lane;

/// A heap of lanes, the one with the lowest tag on top.
#[derive(Debug, Default)]
pub(super) struct Heap {
    entries: Vec<Entry>,
}

/// A lane and a copy of its tag, so that to compare two takes no look at the lanes.
#[derive(Debug, Clone, Copy)]
struct Entry {
    tag: u64,
    lane: u32,
}

impl Heap {
    /// The lane on top and its tag.
    #[inline]
    pub(super) fn top(&self) -> Option<(u32, u64)> {
        self.entries.first().map(|entry| (entry.lane, entry.tag))
    }

    /// Its lanes for each of so many, at least 1.
    pub(super) fn shared_by(&self, many: u64) -> u64 {
        (self.entries.len() as u64 / many).max(1)
    }

    pub(super) fn reserve(&mut self, lanes: usize) {
        self.entries.reserve(lanes.saturating_sub(self.entries.len()));
    }

    #[inline]
    pub(super) fn contains(&self, lane: u32, all: &[Lane]) -> bool {
        let at = all[lane as usize].at as usize;
        self.entries.get(at).is_some_and(|entry| entry.lane == lane)
    }

    #[inline]
    pub(super) fn push(&mut self, lane: u32, all: &mut [Lane]) {
        let at = u32::try_from(self.entries.len()).unwrap_or(u32::MAX);
        self.entries.push(Entry { tag: all[lane as usize].tag, lane });
        self.sift_up(at, all);
    }

    pub(super) fn remove(&mut self, lane: u32, all: &mut [Lane]) {
        let at = all[lane as usize].at;
        let Some(last) = self.entries.pop() else { return };
        all[lane as usize].at = u32::MAX;
        if last.lane != lane {
            self.entries[at as usize] = last;
            self.sift_up(at, all);
            self.sift_down(all[last.lane as usize].at, all);
        }
    }

    /// The tag of a lane has gone up.
    #[inline]
    pub(super) fn later(&mut self, lane: u32, all: &mut [Lane]) {
        let Lane { at, tag, .. } = all[lane as usize];
        self.entries[at as usize].tag = tag;
        self.sift_down(at, all);
    }

    #[inline]
    fn sift_up(&mut self, mut at: u32, all: &mut [Lane]) {
        let entries = self.entries.as_mut_slice();
        let moved = entries[at as usize];
        while at > 0 {
            let above = (at - 1) >> 1;
            let parent = entries[above as usize];
            if moved.tag >= parent.tag {
                break;
            }
            entries[at as usize] = parent;
            all[parent.lane as usize].at = at;
            at = above;
        }
        entries[at as usize] = moved;
        all[moved.lane as usize].at = at;
    }

    #[inline]
    fn sift_down(&mut self, mut at: u32, all: &mut [Lane]) {
        let entries = self.entries.as_mut_slice();
        let moved = entries[at as usize];
        loop {
            let left = at << 1 | 1;
            let (child, below) = match entries.get(left as usize..) {
                Some([one, other, ..]) => {
                    let is_other = other.tag < one.tag;
                    let child = left.wrapping_add(u32::from(is_other));
                    (child, *if is_other { other } else { one })
                }
                Some(&[one]) => (left, one),
                _ => break,
            };
            if moved.tag <= below.tag {
                break;
            }
            entries[at as usize] = below;
            all[below.lane as usize].at = at;
            at = child;
        }
        entries[at as usize] = moved;
        all[moved.lane as usize].at = at;
    }
}
