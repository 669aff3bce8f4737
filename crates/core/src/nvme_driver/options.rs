//! How a controller is to be used.

use std::time::Duration;

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
            io_timeout: Duration::from_secs(30),
            admin_timeout: Duration::from_secs(60),
            absence: Duration::from_secs(5),
            resets: 5,
            interrupts: true,
            shadow_doorbells: true,
            sgl: true,
        }
    }
}

/// Nanoseconds.
pub(super) fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}
