//! Options of a controller.

use std::time::Duration;

/// Default of [`ControllerOptions::io_timeout`].
///
/// A Linux host times a command out after 30 s (`nvme_core.io_timeout`). By then a command without
/// a completion was aborted and the drive was reset. That leaves 8 s for the reset and for the
/// second attempt.
pub const DEFAULT_IO_TIMEOUT: Duration = Duration::from_secs(10);

const MILLISECOND: u64 = 1_000_000;
/// Minimum tick in nanoseconds.
const TICK_MIN: u64 = MILLISECOND;
/// Ticks that an I/O command may take.
pub(super) const TICKS: u32 = 8;
/// Maximum time between two turns of the supervisor, in nanoseconds.
pub(super) const LONGEST: u64 = 250 * MILLISECOND;
/// Maximum time for queues to acknowledge a halt before the device is stopped regardless, in
/// nanoseconds.
pub(super) const GRACE: u64 = 20 * MILLISECOND;

/// Options of a controller.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ControllerOptions {
    /// I/O queue pairs open concurrently: one for each reactor and namespace. If the drive grants
    /// fewer, opening one more than it granted fails.
    pub io_queues: u16,
    /// Entries of a queue, rounded up to a power of two and limited to 2 to 4096 and by the drive
    /// (MQES).
    ///
    /// One fewer commands can be in flight. A queue takes 80 bytes per entry and up to a page for
    /// PRP lists.
    pub queue_depth: u16,
    /// Time after which an I/O command is aborted; after twice this time the controller is reset.
    pub io_timeout: Duration,
    /// Time after which an admin command without a completion causes a controller reset.
    pub admin_timeout: Duration,
    /// Maximum time for a controller whose registers read as all ones to return.
    pub absence: Duration,
    /// Maximum resets within 10 minutes; with one more the controller has failed.
    pub resets: u32,
    /// Enables interrupts of queues. Without them, reactors must poll constantly.
    ///
    /// They stay enabled while a queue is polled. A briefly disconnected drive loses them; the
    /// supervisor then wakes sleeping reactors.
    pub interrupts: bool,
    /// Enables shadow doorbells if the controller supports them.
    pub shadow_doorbells: bool,
    /// Enables SGLs if the controller supports them.
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
    /// Returns the unit of command ages, in nanoseconds.
    pub(super) fn tick_nanos(&self) -> u64 {
        (nanos(self.io_timeout) / u64::from(TICKS)).max(TICK_MIN)
    }

    /// Returns the maximum time from the submission of a command that never completes until the
    /// drive is stopped.
    pub(super) fn reset_after(&self) -> Duration {
        // The age is known in whole ticks, and checked once per turn.
        let ticks = self.tick_nanos().saturating_mul(u64::from(2 * TICKS + 1));
        Duration::from_nanos(ticks.saturating_add(LONGEST))
    }

    /// Returns the maximum time that a command without a requester can stay with the drive.
    ///
    /// It ends with its completion, or when the drive is stopped by CC.EN or a function reset.
    /// `ready` is the drive's maximum time to become ready or not ready (CAP.TO, CRTO).
    pub(super) fn quiesce_bound(&self, ready: Duration) -> Duration {
        let stop = ready.saturating_mul(2).saturating_add(Duration::from_nanos(GRACE));
        self.reset_after().saturating_add(self.absence).saturating_add(stop)
    }
}

/// Converts a duration to nanoseconds.
pub(super) fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn by_default_a_command_has_its_second_try_before_a_linux_host_gives_it_up() {
        let options = ControllerOptions::default();
        // The timeout of the host, minus the time a drive takes for the reset and the command.
        assert!(options.reset_after() <= Duration::from_secs(30 - 8));
        let usual = options.quiesce_bound(Duration::from_secs(1));
        assert!(usual < Duration::from_secs(30), "{usual:?}");
    }
}
