//! Time and waiting: of the system, or of a test.

use std::fmt::Debug;
use std::os::fd::BorrowedFd;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::time::{ClockId, clock_gettime};

const SECOND: u64 = 1_000_000_000;

/// Clock and wait of the driver. Only bring-up, resets and admin commands use it, never an I/O.
pub trait Wait: Debug + Send + Sync {
    /// Returns monotonic nanoseconds.
    fn now(&self) -> u64;

    /// Returns when one of `fds` is readable, or after about `nanos` nanoseconds. It may return
    /// earlier without a reason.
    fn wait(&self, fds: &[BorrowedFd<'_>], nanos: u64);
}

/// The system's monotonic clock, and `poll`.
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemWait;

impl Wait for SystemWait {
    fn now(&self) -> u64 {
        let time = clock_gettime(ClockId::Monotonic);
        debug_assert!(time.tv_sec >= 0 && time.tv_nsec >= 0, "the clock begins with 0: {time:?}");
        let (seconds, nanos) = (time.tv_sec.cast_unsigned(), time.tv_nsec.cast_unsigned());
        seconds.saturating_mul(SECOND).saturating_add(nanos)
    }

    fn wait(&self, fds: &[BorrowedFd<'_>], nanos: u64) {
        let part = |value: u64| i64::try_from(value).unwrap_or(i64::MAX);
        let most = Timespec { tv_sec: part(nanos / SECOND), tv_nsec: part(nanos % SECOND) };
        let mut fds: Vec<_> = fds.iter().map(|fd| PollFd::new(fd, PollFlags::IN)).collect();
        // A signal may end the wait early, which the contract allows.
        let _ = poll(&mut fds, Some(&most));
    }
}
