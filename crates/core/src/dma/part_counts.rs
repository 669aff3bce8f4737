//! Counts of the live parts of split buffers. Plain bookkeeping, no memory is touched here.
//!
//! The [`SplitBuffer`](super::SplitBuffer) and each of its parts hold a count. A part that is split
//! itself has a count below its parent's. Until its own count ends, it holds that of the parent.

/// Number of a count, from 1; 0 stands for none.
pub(super) type PartCountId = u32;

#[derive(Debug, Default)]
pub(super) struct PartCounts {
    counts: Vec<PartCount>,
    free: Vec<PartCountId>,
}

#[derive(Debug, Clone, Copy)]
struct PartCount {
    holders: u32,
    /// Count that the split buffer itself holds; 0 if it is whole.
    parent: PartCountId,
}

impl PartCounts {
    /// Creates a count with one holder.
    pub(super) fn open(&mut self, parent: PartCountId) -> PartCountId {
        let share = PartCount { holders: 1, parent };
        if let Some(id) = self.free.pop() {
            *self.at(id) = share;
            return id;
        }
        self.counts.push(share);
        PartCountId::try_from(self.counts.len()).unwrap_or(PartCountId::MAX)
    }

    pub(super) fn add(&mut self, id: PartCountId) {
        self.at(id).holders += 1;
    }

    /// Removes one holder; the last one also releases the count's hold of its parent. Returns true
    /// if the whole buffer has no holder left.
    pub(super) fn end(&mut self, mut id: PartCountId) -> bool {
        loop {
            let share = self.at(id);
            share.holders -= 1;
            let PartCount { holders, parent } = *share;
            if holders > 0 {
                return false;
            }
            self.free.push(id);
            if parent == 0 {
                return true;
            }
            id = parent;
        }
    }

    /// Ends a count with one remaining holder, which then holds the parent's; returns false if
    /// there are more.
    pub(super) fn close(&mut self, id: PartCountId) -> bool {
        let alone = self.at(id).holders == 1;
        if alone {
            self.free.push(id);
        }
        alone
    }

    fn at(&mut self, id: PartCountId) -> &mut PartCount {
        &mut self.counts[id as usize - 1]
    }
}
