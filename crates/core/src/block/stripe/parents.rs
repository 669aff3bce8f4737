//! Operations spread over several members, until the last child completes.

use super::super::{BlockError, Completed};
use crate::dma::SplitBuffer;
use crate::slot_table::SlotTable;

/// Upper half of a child's token; the lower half is the number of the parent.
///
/// The token of a caller may look the same (a stripe of stripes). That operation becomes a child,
/// too, so every completion with the mark belongs to this queue.
const MARK: u64 = 0x73ae_c41d << 32;
const MARK_BITS: u64 = 0xffff_ffff << 32;

/// Returns true if a member's completion is that of a child.
#[inline]
pub(super) fn is_child(token: u64) -> bool {
    token & MARK_BITS == MARK
}

#[derive(Debug)]
pub(super) struct SplitOps(SlotTable<Parent>);

#[derive(Debug)]
struct Parent {
    token: u64,
    /// Children not completed, plus one while they are being submitted.
    left: u64,
    /// The first error.
    result: Result<(), BlockError>,
    /// The buffer that is split among the children.
    buf: Option<SplitBuffer>,
}

impl SplitOps {
    pub(super) fn with_room(room: usize) -> Self {
        Self(SlotTable::with_capacity(room))
    }

    /// Returns true if there is any parent.
    #[inline]
    pub(super) fn any(&self) -> bool {
        !self.0.is_empty()
    }

    /// Creates a parent with one child, a placeholder for those that follow. Returns its number and
    /// its children's token.
    pub(super) fn begin(&mut self, token: u64) -> (u32, u64) {
        let number = self.0.insert(Parent { token, left: 1, result: Ok(()), buf: None });
        (number, MARK | u64::from(number))
    }

    /// Returns the tokens of the children of all operations with this token.
    pub(super) fn children_of(&self, token: u64) -> Vec<u64> {
        let theirs = self.0.iter().filter(|(_, parent)| parent.token == token);
        theirs.map(|(number, _)| MARK | u64::from(number)).collect()
    }

    pub(super) fn child_begun(&mut self, number: u32) {
        if let Some(parent) = self.at(number) {
            parent.left += 1;
        }
    }

    /// Stores the split buffer, to be merged when the children are done.
    pub(super) fn keep(&mut self, number: u32, buf: SplitBuffer) {
        if let Some(parent) = self.at(number) {
            parent.buf = Some(buf);
        }
    }

    /// Completes a [child](is_child); returns the completion of the parent if it was the last one.
    pub(super) fn completed(&mut self, child: Completed) -> Option<Completed> {
        let Completed { token, buf, result } = child;
        drop(buf);
        self.child_done(u32::try_from(token & !MARK_BITS).ok()?, result)
    }

    /// Counts one child as done; returns the completion of the parent if it was the last one.
    pub(super) fn child_done(
        &mut self,
        number: u32,
        result: Result<(), BlockError>,
    ) -> Option<Completed> {
        let parent = self.at(number)?;
        parent.left -= 1;
        if parent.result.is_ok() {
            parent.result = result;
        }
        if parent.left > 0 {
            return None;
        }
        let Parent { token, result, buf, .. } = self.0.remove(number)?;
        // A member that is gone may have kept a part, because its device could still write to it.
        // The whole buffer then does not return before that part does.
        let buf = buf.and_then(|cut| cut.merge().ok());
        Some(Completed { token, buf, result })
    }

    fn at(&mut self, number: u32) -> Option<&mut Parent> {
        let parent = self.0.get_mut(number);
        debug_assert!(parent.is_some(), "a member completed an unknown operation");
        parent
    }
}
