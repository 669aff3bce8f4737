//! Buffers promised to a queue.

use std::cell::Cell;
use std::fmt;
use std::rc::Rc;

use super::buffer::Buffer;
use super::core_pool::{Core, size_of_class};

/// A promise of `count` buffers of `len` bytes, kept by the reserve part of the pool's cap.
/// Buffers may outlive it: what they hold is given back with the last of them.
pub struct Reserve {
    state: Rc<ReserveState>,
    core: Rc<Core>,
    len: usize,
}

pub(super) struct ReserveState {
    core: Rc<Core>,
    class: usize,
    count: usize,
    out: Cell<usize>,
}

impl Reserve {
    pub(super) fn new(core: &Rc<Core>, class: usize, count: usize, len: usize) -> Self {
        let state = ReserveState { core: Rc::clone(core), class, count, out: Cell::new(0) };
        Self { state: Rc::new(state), core: Rc::clone(core), len }
    }

    /// One of the promised buffers; `None` only when all of them are out.
    pub fn lease(&self) -> Option<Buffer> {
        let out = self.state.out.get();
        if out == self.state.count {
            return None;
        }
        let slot = self.core.pop(self.state.class)?;
        self.state.out.set(out + 1);
        let capacity = size_of_class(self.state.class);
        Some(Buffer::new(&self.core, slot, capacity, self.len, Some(Rc::clone(&self.state))))
    }

    /// Buffers of this reserve that are out.
    pub fn leased(&self) -> usize {
        self.state.out.get()
    }

    /// Buffers promised.
    pub fn count(&self) -> usize {
        self.state.count
    }
}

impl ReserveState {
    pub(super) fn returned(&self) {
        self.out.set(self.out.get() - 1);
    }
}

impl Drop for ReserveState {
    fn drop(&mut self) {
        self.core.unpromise(self.class, self.count);
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
