//! Descriptors that are readable while a signal is raised.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::{EventfdFlags, epoll};

/// Returns a descriptor that is readable while any of these is; `None` for an empty list.
pub(super) fn any_of<'f>(
    fds: impl IntoIterator<Item = BorrowedFd<'f>>,
) -> io::Result<Option<OwnedFd>> {
    let mut watch = None;
    for (number, fd) in (0_u64..).zip(fds) {
        let watch = match &mut watch {
            Some(watch) => watch,
            none => none.insert(epoll::create(epoll::CreateFlags::CLOEXEC)?),
        };
        epoll::add(watch, fd, epoll::EventData::new_u64(number), epoll::EventFlags::IN)?;
    }
    Ok(watch)
}

/// An eventfd as a flag. It is raised and cleared only for a reactor that sleeps on it, not on
/// every turn.
#[derive(Debug)]
pub(super) struct Signal(OwnedFd);

impl Signal {
    pub(super) fn new() -> io::Result<Self> {
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        Ok(Self(rustix::event::eventfd(0, flags)?))
    }

    pub(super) fn raise(&self) {
        // A failed write means that the counter is at its limit, so the signal is raised anyway.
        let _ = rustix::io::write(&self.0, &1_u64.to_ne_bytes());
    }

    pub(super) fn clear(&self) {
        // WouldBlock: the signal was not raised.
        let _ = rustix::io::read(&self.0, &mut [0_u8; 8]);
    }
}

impl AsFd for Signal {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
