//! A descriptor that is readable or not.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use nvmeof_verbs::VerbsError;
use rustix::event::{EventfdFlags, eventfd};

#[derive(Debug)]
pub(crate) struct Signal(OwnedFd);

impl Signal {
    pub(crate) fn new() -> Result<Self, VerbsError> {
        let fd = eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)
            .map_err(|error| VerbsError::call("making an eventfd", error.into()))?;
        Ok(Self(fd))
    }

    /// Makes the descriptor readable. The write fails only if the count is full, which cannot
    /// happen.
    pub(crate) fn raise(&self) {
        let _ = rustix::io::write(&self.0, &1u64.to_ne_bytes());
    }

    /// Makes the descriptor unreadable.
    pub(crate) fn lower(&self) {
        let _ = rustix::io::read(&self.0, &mut [0; 8]);
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
