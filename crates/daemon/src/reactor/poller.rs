//! Readiness of sockets, rings and the mailbox: one epoll descriptor per reactor.
//!
//! Sockets are registered once, edge-triggered for input and output, so that no system call is
//! spent on changing interest. After an edge the reactor reads until nothing is left.
//!
//! A timeout of epoll counts in whole milliseconds and ends up to the thread's timer slack (50 us)
//! late. Deadlines that are precise to the microsecond use a timer in the set instead. It is
//! edge-triggered, so that it is never read, and it is set only when its time changes.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::event::epoll;
use rustix::io::Errno;
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
    timerfd_settime,
};

/// Maximum number of events per wait. The next wait returns the rest.
const BATCH: usize = 64;
/// Token of the timer, which no other descriptor has.
const TIMER: u64 = u64::MAX;

/// Epoll descriptor and timer of one reactor.
pub(crate) struct Poller {
    epoll: OwnedFd,
    timer: OwnedFd,
    /// Time that the timer is set to, or `None` after its edge was seen.
    timer_at: Option<u64>,
    events: Vec<epoll::Event>,
}

/// A descriptor that is ready.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ready {
    /// Token that the descriptor was registered with.
    pub(crate) token: u64,
    /// It has input, or the peer is gone.
    pub(crate) readable: bool,
    /// It has room for output again.
    pub(crate) writable: bool,
    /// The peer has closed: no other edge follows for input.
    pub(crate) hung_up: bool,
}

impl Poller {
    pub(crate) fn new() -> Result<Self, Errno> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let flags = TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC;
        let timer = timerfd_create(TimerfdClockId::Monotonic, flags)?;
        let edge = epoll::EventFlags::IN | epoll::EventFlags::ET;
        epoll::add(&epoll, &timer, epoll::EventData::new_u64(TIMER), edge)?;
        Ok(Self { epoll, timer, timer_at: None, events: Vec::with_capacity(BATCH) })
    }

    /// Registers a socket, edge-triggered both ways. Closing the socket ends the registration.
    pub(crate) fn add_socket(&self, fd: BorrowedFd<'_>, token: u64) -> Result<(), Errno> {
        let flags = epoll::EventFlags::IN
            | epoll::EventFlags::OUT
            | epoll::EventFlags::RDHUP
            | epoll::EventFlags::ET;
        epoll::add(&self.epoll, fd, epoll::EventData::new_u64(token), flags)
    }

    /// Ends the registration of a socket that stays open elsewhere.
    pub(crate) fn remove(&self, fd: BorrowedFd<'_>) {
        // A descriptor that is not registered needs no removal.
        let _ = epoll::delete(&self.epoll, fd);
    }

    /// Registers a descriptor that only becomes readable: a mailbox, a ring.
    pub(crate) fn add_source(&self, source: impl AsFd, token: u64) -> Result<(), Errno> {
        epoll::add(&self.epoll, source, epoll::EventData::new_u64(token), epoll::EventFlags::IN)
    }

    /// Sets the timer so that a wait ends at `at`, a time of the daemon's clock, if not earlier.
    ///
    /// A time in the past ends the next wait immediately.
    pub(crate) fn wake_at(&mut self, at: u64) {
        if self.timer_at == Some(at) {
            return;
        }
        self.timer_at = Some(at);
        let it_value = timespec(Duration::from_nanos(at.max(1))); // 0 would disarm the timer.
        let it_interval = timespec(Duration::ZERO);
        let value = Itimerspec { it_interval, it_value };
        // The call fails only for a descriptor that is not a timer, or for an invalid time.
        let set = timerfd_settime(&self.timer, TimerfdTimerFlags::ABSTIME, &value);
        debug_assert!(set.is_ok(), "{set:?}");
    }

    /// Collects the ready descriptors, and waits for them at most `timeout`.
    ///
    /// The timeout is rounded up to milliseconds. With `None` the wait ends when a descriptor is
    /// ready or the time of [`Self::wake_at`] has come.
    pub(crate) fn wait(&mut self, timeout: Option<Duration>, ready: &mut Vec<Ready>) {
        let timeout = timeout.map(timespec);
        self.events.clear();
        let events = rustix::buffer::spare_capacity(&mut self.events);
        if epoll::wait(&self.epoll, events, timeout.as_ref()).is_err() {
            return; // Interrupted: the loop polls again.
        }
        let hup = epoll::EventFlags::RDHUP | epoll::EventFlags::HUP | epoll::EventFlags::ERR;
        if self.events.iter().any(|event| event.data.u64() == TIMER) {
            // There is no second edge: a caller that waits for the same time again sets the timer
            // again.
            self.timer_at = None;
        }
        let others = self.events.iter().filter(|event| event.data.u64() != TIMER);
        ready.extend(others.map(|event| Ready {
            token: event.data.u64(),
            readable: { event.flags }.intersects(epoll::EventFlags::IN | hup),
            writable: { event.flags }.intersects(epoll::EventFlags::OUT | hup),
            hung_up: { event.flags }.intersects(hup),
        }));
    }
}

impl std::fmt::Debug for Poller {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Poller").field("epoll", &self.epoll).finish_non_exhaustive()
    }
}

fn timespec(duration: Duration) -> Timespec {
    Timespec {
        tv_sec: i64::try_from(duration.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: duration.subsec_nanos().into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock;

    /// Far longer than any wait of these tests.
    const GUARD: Duration = Duration::from_secs(60);

    fn wait(poller: &mut Poller) {
        let (begin, mut ready) = (clock::now(), Vec::new());
        poller.wait(Some(GUARD), &mut ready);
        assert!(ready.is_empty(), "the timer is nobody's descriptor");
        let waited = Duration::from_nanos(clock::now() - begin);
        assert!(waited < GUARD, "the timer did not end the wait");
    }

    #[test]
    fn a_wait_ends_at_its_time_again_and_again_and_not_before() {
        let mut poller = Poller::new().unwrap();
        for micros in [300, 1, 50, 2500, 700] {
            let at = clock::now() + micros * 1000;
            poller.wake_at(at);
            // Setting it once more changes nothing.
            poller.wake_at(at);
            wait(&mut poller);
            assert!(clock::now() >= at, "{micros} us");
        }
    }

    #[test]
    fn a_time_that_is_over_ends_the_next_wait_and_a_later_one_replaces_it() {
        let mut poller = Poller::new().unwrap();
        poller.wake_at(clock::now() - 1);
        wait(&mut poller);
        poller.wake_at(clock::now() - 1);
        let at = clock::now() + 3_000_000;
        poller.wake_at(at);
        wait(&mut poller);
        assert!(clock::now() >= at);
        // A wait of zero length sees its edge, and the next wait still ends.
        poller.wake_at(at);
        wait(&mut poller);
        poller.wake_at(at);
        while poller.timer_at.is_some() {
            poller.wait(Some(Duration::ZERO), &mut Vec::new());
        }
        poller.wake_at(at);
        wait(&mut poller);
        poller.wake_at(u64::MAX);
        poller.wake_at(0);
        wait(&mut poller);
    }
}
