//! Buffers promised to a queue.

use std::fmt;
use std::rc::Rc;

use super::buffer::Buffer;
use super::core_pool::Core;
use super::slots::PromiseId;

/// A promise of a number of buffers of one length, kept by the reserve part of the pool's cap.
/// Buffers may outlive it: what they hold is given back with the last of them.
pub struct Reserve {
    core: Rc<Core>,
    promise: PromiseId,
    len: usize,
}

impl Reserve {
    pub(super) fn new(core: &Rc<Core>, promise: PromiseId, len: usize) -> Self {
        Self { core: Rc::clone(core), promise, len }
    }

    /// One of the promised buffers; `None` only when all of them are out.
    #[inline]
    pub fn lease(&self) -> Option<Buffer> {
        self.core.lease_promised(self.promise, self.len)
    }

    /// Has `buffer`, one of this reserve's, count in `to`, which grows by it as this reserve shrinks: when it
    /// is dropped, `to` has one more to lease. False, and nothing happens, if it is not whole, not this
    /// reserve's, or the two are of different sizes or cores.
    pub fn pass(&self, buffer: &mut Buffer, to: &Self) -> bool {
        let is_ours = Rc::ptr_eq(&self.core, buffer.core()) && buffer.promise() == self.promise;
        let passes = is_ours
            && buffer.share() == 0
            && Rc::ptr_eq(&self.core, &to.core)
            && self.core.pass(self.promise, to.promise);
        if passes {
            buffer.set_promise(to.promise);
        }
        passes
    }

    /// Has at most `most` of the buffers that are not out count in `to`; how many did.
    pub fn pass_free(&self, most: usize, to: &Self) -> usize {
        if !Rc::ptr_eq(&self.core, &to.core) {
            return 0;
        }
        self.core.pass_free(self.promise, to.promise, most)
    }

    /// Buffers of this reserve that are out.
    pub fn leased(&self) -> usize {
        self.core.promised(self.promise).0
    }

    /// Buffers promised.
    pub fn count(&self) -> usize {
        self.core.promised(self.promise).1
    }
}

impl Drop for Reserve {
    fn drop(&mut self) {
        self.core.close_promise(self.promise);
    }
}

impl fmt::Debug for Reserve {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reserve")
            .field("count", &self.count())
            .field("leased", &self.leased())
            .field("len", &self.len)
            .finish_non_exhaustive()
    }
}
