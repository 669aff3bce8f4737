//! Operations spread over several members, until the last child completes.

use super::super::{BlockError, Completed};
use crate::dma::SplitBuffer;

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
pub(super) struct SplitOps {
    slots: Vec<Option<Parent>>,
    free: Vec<usize>,
}

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
        Self { slots: Vec::with_capacity(room), free: Vec::with_capacity(room) }
    }

    /// Returns true if there is any parent.
    #[inline]
    pub(super) fn any(&self) -> bool {
        self.slots.len() > self.free.len()
    }

    /// Creates a parent with one child, a placeholder for those that follow. Returns its number and
    /// its children's token.
    pub(super) fn begin(&mut self, token: u64) -> (usize, u64) {
        let parent = Some(Parent { token, left: 1, result: Ok(()), buf: None });
        let number = match self.free.pop() {
            Some(number) => {
                self.slots[number] = parent;
                number
            }
            None => {
                self.slots.push(parent);
                self.slots.len() - 1
            }
        };
        (number, MARK | number as u64)
    }

    /// Returns the tokens of the children of all operations with this token.
    pub(super) fn children_of(&self, token: u64) -> Vec<u64> {
        let numbers = (0_u64..).zip(&self.slots);
        let theirs = numbers.filter(|(_, slot)| slot.as_ref().is_some_and(|p| p.token == token));
        theirs.map(|(number, _)| MARK | number).collect()
    }

    pub(super) fn child_begun(&mut self, number: usize) {
        if let Some(parent) = self.at(number) {
            parent.left += 1;
        }
    }

    /// Stores the split buffer, to be merged when the children are done.
    pub(super) fn keep(&mut self, number: usize, buf: SplitBuffer) {
        if let Some(parent) = self.at(number) {
            parent.buf = Some(buf);
        }
    }

    /// Completes a [child](is_child); returns the completion of the parent if it was the last one.
    pub(super) fn completed(&mut self, child: Completed) -> Option<Completed> {
        let Completed { token, buf, result } = child;
        drop(buf);
        self.child_done(usize::try_from(token & !MARK_BITS).ok()?, result)
    }

    /// Counts one child as done; returns the completion of the parent if it was the last one.
    pub(super) fn child_done(
        &mut self,
        number: usize,
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
        let Parent { token, result, buf, .. } = self.slots.get_mut(number)?.take()?;
        self.free.push(number);
        // A member that is gone may have kept a part, because its device could still write to it.
        // The whole buffer then does not return before that part does.
        let buf = buf.and_then(|cut| cut.merge().ok());
        Some(Completed { token, buf, result })
    }

    fn at(&mut self, number: usize) -> Option<&mut Parent> {
        let parent = self.slots.get_mut(number).and_then(Option::as_mut);
        debug_assert!(parent.is_some(), "a member finished what it was not asked for");
        parent
    }
}
