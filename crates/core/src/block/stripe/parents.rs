//! Operations that are spread over several members, until the last child is done.

use super::super::{BlockError, Completed};
use crate::dma::Cut;

/// What a child's token has in its upper half; the parent's number is in the lower one. A caller's
/// token may look like it (a stripe of stripes): such an operation is made a child, too, so that
/// whatever comes back with the mark is one of ours.
const MARK: u64 = 0x73ae_c41d << 32;
const MARK_BITS: u64 = 0xffff_ffff << 32;

/// Whether a completion of a member is a child's.
#[inline]
pub(super) fn is_child(token: u64) -> bool {
    token & MARK_BITS == MARK
}

#[derive(Debug)]
pub(super) struct Parents {
    slots: Vec<Option<Parent>>,
    free: Vec<usize>,
}

#[derive(Debug)]
struct Parent {
    token: u64,
    /// Children that are not done, and one more while they are given out.
    left: u64,
    /// The first error.
    result: Result<(), BlockError>,
    /// The buffer its children have the parts of.
    buf: Option<Cut>,
}

impl Parents {
    pub(super) fn with_room(room: usize) -> Self {
        Self { slots: Vec::with_capacity(room), free: Vec::with_capacity(room) }
    }

    /// Whether there are any.
    #[inline]
    pub(super) fn any(&self) -> bool {
        self.slots.len() > self.free.len()
    }

    /// A parent with one child, which stands for those that follow; and the token its children have.
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

    /// The tokens of the children of all operations with this token.
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

    /// What the parent's buffer is made whole of, once its children are done.
    pub(super) fn keep(&mut self, number: usize, buf: Cut) {
        if let Some(parent) = self.at(number) {
            parent.buf = Some(buf);
        }
    }

    /// A completion [is a child's](is_child): the parent's, if it was the last.
    pub(super) fn completed(&mut self, child: Completed) -> Option<Completed> {
        let Completed { token, buf, result } = child;
        drop(buf);
        self.child_done(usize::try_from(token & !MARK_BITS).ok()?, result)
    }

    /// One child less.
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
        // A member that is gone may have kept a part, since its device could still write to it: then the
        // whole of it does not come back before that does.
        let buf = buf.and_then(|cut| cut.rejoin().ok());
        Some(Completed { token, buf, result })
    }

    fn at(&mut self, number: usize) -> Option<&mut Parent> {
        let parent = self.slots.get_mut(number).and_then(Option::as_mut);
        debug_assert!(parent.is_some(), "a member finished what it was not asked for");
        parent
    }
}
