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
