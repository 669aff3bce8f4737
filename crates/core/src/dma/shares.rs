//! How many hold a part of a buffer that was cut. Plain bookkeeping, no memory is touched here.
//!
//! A count is held by the [`Cut`](super::Cut) and by each of its parts. A part that is cut itself has a
//! count below its parent's, and holds the parent's by that as long as its own is not over.

/// A count's number, from 1; 0 stands for none.
pub(super) type ShareId = u32;

#[derive(Debug, Default)]
pub(super) struct Shares {
    counts: Vec<Share>,
    free: Vec<ShareId>,
}

#[derive(Debug, Clone, Copy)]
struct Share {
    holders: u32,
    /// The count that the cut buffer is itself held by; 0 if it is whole.
    parent: ShareId,
}

impl Shares {
    /// A count with one holder.
    pub(super) fn open(&mut self, parent: ShareId) -> ShareId {
        let share = Share { holders: 1, parent };
        if let Some(id) = self.free.pop() {
            *self.at(id) = share;
            return id;
        }
        self.counts.push(share);
        ShareId::try_from(self.counts.len()).unwrap_or(ShareId::MAX)
    }

    pub(super) fn add(&mut self, id: ShareId) {
        self.at(id).holders += 1;
    }

    /// One holder less, and with the last one the count's own hold of its parent; true if nobody
    /// holds anything of the whole buffer any more.
    pub(super) fn end(&mut self, mut id: ShareId) -> bool {
        loop {
            let share = self.at(id);
            share.holders -= 1;
            let Share { holders, parent } = *share;
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

    /// Ends a count that has one holder left, who goes on with the parent's; false if there are more.
    pub(super) fn close(&mut self, id: ShareId) -> bool {
        let alone = self.at(id).holders == 1;
        if alone {
            self.free.push(id);
        }
        alone
    }

    fn at(&mut self, id: ShareId) -> &mut Share {
        &mut self.counts[id as usize - 1]
    }
}
