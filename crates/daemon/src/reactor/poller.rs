//! Readiness of sockets, rings and the mailbox: one epoll per reactor.
//!
//! Sockets are registered edge-triggered for input and output once, so that no system call is
//! spent on changing interest; whoever is told of an edge reads until nothing is left.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::event::epoll;
use rustix::io::Errno;
use rustix::time::Timespec;

/// Events taken per look; more are found by the next one.
const BATCH: usize = 64;

/// One reactor's epoll.
pub(crate) struct Poller {
    epoll: OwnedFd,
    events: Vec<epoll::Event>,
}

/// A descriptor that is ready.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ready {
    /// What the descriptor was registered with.
    pub(crate) token: u64,
    /// Input, or the peer is gone.
    pub(crate) readable: bool,
    /// Output fits again.
    pub(crate) writable: bool,
}

impl Poller {
    pub(crate) fn new() -> Result<Self, Errno> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        Ok(Self { epoll, events: Vec::with_capacity(BATCH) })
    }

    /// Registers a socket, edge-triggered both ways. Closing the socket ends the registration.
    pub(crate) fn add_socket(&self, fd: BorrowedFd<'_>, token: u64) -> Result<(), Errno> {
        let flags = epoll::EventFlags::IN
            | epoll::EventFlags::OUT
            | epoll::EventFlags::RDHUP
            | epoll::EventFlags::ET;
        epoll::add(&self.epoll, fd, epoll::EventData::new_u64(token), flags)
    }

    /// Ends a socket's registration, for one that goes on living elsewhere.
    pub(crate) fn remove(&self, fd: BorrowedFd<'_>) {
        // A descriptor that is not registered is already what is wanted.
        let _ = epoll::delete(&self.epoll, fd);
    }

    /// Registers something that only ever becomes readable: a mailbox, a ring.
    pub(crate) fn add_source(&self, source: impl AsFd, token: u64) -> Result<(), Errno> {
        epoll::add(&self.epoll, source, epoll::EventData::new_u64(token), epoll::EventFlags::IN)
    }

    /// Collects what is ready, waiting for at most `timeout` (`None`: until something is).
    pub(crate) fn wait(&mut self, timeout: Option<Duration>, ready: &mut Vec<Ready>) {
        let timeout = timeout.map(|timeout| Timespec {
            tv_sec: i64::try_from(timeout.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: timeout.subsec_nanos().into(),
        });
        self.events.clear();
        let events = rustix::buffer::spare_capacity(&mut self.events);
        if epoll::wait(&self.epoll, events, timeout.as_ref()).is_err() {
            return; // Interrupted: the loop looks again.
        }
        let hup = epoll::EventFlags::RDHUP | epoll::EventFlags::HUP | epoll::EventFlags::ERR;
        ready.extend(self.events.iter().map(|event| Ready {
            token: event.data.u64(),
            readable: { event.flags }.intersects(epoll::EventFlags::IN | hup),
            writable: { event.flags }.intersects(epoll::EventFlags::OUT | hup),
        }));
    }
}

impl std::fmt::Debug for Poller {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Poller").field("epoll", &self.epoll).finish_non_exhaustive()
    }
}
