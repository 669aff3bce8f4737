//! Readiness of sockets, rings and the mailbox: one epoll per reactor.
//!
//! Sockets are registered edge-triggered for input and output once, so that no system call is
//! spent on changing interest; whoever is told of an edge reads until nothing is left.
//!
//! A timeout of epoll counts in whole milliseconds and ends up to the thread's timer slack (50 us)
//! late. What is due to the microsecond has a timer in the set instead: edge-triggered, so that it
//! is never read, and set only when the time differs from the one it is set to.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::event::epoll;
use rustix::io::Errno;
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
    timerfd_settime,
};

/// Events taken per look; more are found by the next one.
const BATCH: usize = 64;
/// The timer's token, which nothing else has.
const TIMER: u64 = u64::MAX;

/// One reactor's epoll.
pub(crate) struct Poller {
    epoll: OwnedFd,
    timer: OwnedFd,
    /// What the timer is set to; `None` once its edge was seen.
    timer_at: Option<u64>,
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

    /// Ends a socket's registration, for one that goes on living elsewhere.
    pub(crate) fn remove(&self, fd: BorrowedFd<'_>) {
        // A descriptor that is not registered is already what is wanted.
        let _ = epoll::delete(&self.epoll, fd);
    }

    /// Registers something that only ever becomes readable: a mailbox, a ring.
    pub(crate) fn add_source(&self, source: impl AsFd, token: u64) -> Result<(), Errno> {
        epoll::add(&self.epoll, source, epoll::EventData::new_u64(token), epoll::EventFlags::IN)
    }

    /// Has a wait end at `at`, a time of the daemon's clock, if nothing ends it before. A time that
    /// is over ends the next wait at once.
    pub(crate) fn wake_at(&mut self, at: u64) {
        if self.timer_at == Some(at) {
            return;
        }
        self.timer_at = Some(at);
        let it_value = timespec(Duration::from_nanos(at.max(1))); // 0 would turn it off.
        let it_interval = timespec(Duration::ZERO);
        let value = Itimerspec { it_interval, it_value };
        // Refused only for a descriptor that is no timer, or a time that is none.
        let set = timerfd_settime(&self.timer, TimerfdTimerFlags::ABSTIME, &value);
        debug_assert!(set.is_ok(), "{set:?}");
    }

    /// Collects what is ready, waiting for at most `timeout`, rounded up to milliseconds (`None`:
    /// until something is or [`Self::wake_at`] has come).
    pub(crate) fn wait(&mut self, timeout: Option<Duration>, ready: &mut Vec<Ready>) {
        let timeout = timeout.map(timespec);
        self.events.clear();
        let events = rustix::buffer::spare_capacity(&mut self.events);
        if epoll::wait(&self.epoll, events, timeout.as_ref()).is_err() {
            return; // Interrupted: the loop looks again.
        }
        let hup = epoll::EventFlags::RDHUP | epoll::EventFlags::HUP | epoll::EventFlags::ERR;
        if self.events.iter().any(|event| event.data.u64() == TIMER) {
            // There is no second edge: whoever waits for the same time again sets it again.
            self.timer_at = None;
        }
        let others = self.events.iter().filter(|event| event.data.u64() != TIMER);
        ready.extend(others.map(|event| Ready {
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

    /// Far longer than anything waited for here.
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
        // Its edge is seen by a look that does not wait, and still the next wait ends.
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
