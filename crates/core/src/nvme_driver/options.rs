//! How a controller is to be used.

use std::time::Duration;

use super::warden::{GRACE, LONGEST, TICKS};

/// Default of [`ControllerOptions::io_timeout`]. A Linux host gives a command up after 30 s
/// (`nvme_core.io_timeout`). Until then a command that the drive does not answer was aborted, the
/// drive was reset, and 8 s are left for the reset and for the command to be done the second time.
pub const DEFAULT_IO_TIMEOUT: Duration = Duration::from_secs(10);

/// Shortest tick.
const TICK_MIN: u64 = 1_000_000;

/// How a controller is to be used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ControllerOptions {
    /// I/O queue pairs that will be open at once: one for each reactor and namespace. A drive may grant fewer; then
    /// opening one more than there are is refused.
    pub io_queues: u16,
    /// Entries of a queue, rounded up to a power of two and cut to 2 to 4096 and what the drive has (MQES). One less
    /// are in flight at once. A queue takes 80 bytes an entry and up to a page for lists of pages.
    pub queue_depth: u16,
    /// After this an I/O command is aborted; after as much again the controller is reset.
    pub io_timeout: Duration,
    /// After this without an answer to an admin command the controller is reset.
    pub admin_timeout: Duration,
    /// How long a controller whose registers read as all ones may take to come back.
    pub absence: Duration,
    /// Resets within ten minutes that a controller may need; with one more it has failed.
    pub resets: u32,
    /// Whether queues have interrupts. Without, reactors must poll all the time. They stay on while a queue is
    /// polled; after a drive was away for a moment they are gone, and the warden wakes reactors that sleep.
    pub interrupts: bool,
    /// Whether shadow doorbells are used where the controller has them.
    pub shadow_doorbells: bool,
    /// Whether SGLs are used where the controller has them.
    pub sgl: bool,
}

impl Default for ControllerOptions {
    fn default() -> Self {
        Self {
            io_queues: 1,
            queue_depth: 256,
            io_timeout: DEFAULT_IO_TIMEOUT,
            admin_timeout: Duration::from_secs(60),
            absence: Duration::from_secs(5),
            resets: 5,
            interrupts: true,
            shadow_doorbells: true,
            sgl: true,
        }
    }
}

impl ControllerOptions {
    /// The unit in which the age of commands is counted.
    pub(super) fn tick_nanos(&self) -> u64 {
        (nanos(self.io_timeout) / u64::from(TICKS)).max(TICK_MIN)
    }

    /// The longest time from the submission of a command that the drive does not answer until the
    /// drive is being stopped for it.
    pub(super) fn reset_after(&self) -> Duration {
        // Its age is seen in whole ticks, and looked at now and then.
        let ticks = self.tick_nanos().saturating_mul(u64::from(2 * TICKS + 1));
        Duration::from_nanos(ticks.saturating_add(LONGEST))
    }

    /// The longest time that a command whose requester is gone can be with a drive which takes
    /// `ready` to become ready or not ready (CAP.TO, CRTO): until it is answered, or the drive is
    /// stopped, by CC.EN or by a reset of its function.
    pub(super) fn quiesce_bound(&self, ready: Duration) -> Duration {
        let stop = ready.saturating_mul(2).saturating_add(Duration::from_nanos(GRACE));
        self.reset_after().saturating_add(self.absence).saturating_add(stop)
    }
}

/// Nanoseconds.
pub(super) fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn by_default_a_command_has_its_second_try_before_a_linux_host_gives_it_up() {
        let options = ControllerOptions::default();
        // What a host waits, less what a drive takes to be reset and to answer.
        assert!(options.reset_after() <= Duration::from_secs(30 - 8));
        let usual = options.quiesce_bound(Duration::from_secs(1));
        assert!(usual < Duration::from_secs(30), "{usual:?}");
    }
}
