//! Parameters of the fabric.

use crate::queue::Nanos;

/// Parameters that a target offers its RDMA hosts, and the timeouts for them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RdmaParams {
    /// Maximum bytes after the command in a capsule (IOCCSZ without the command): data or
    /// descriptors.
    ///
    /// IOCCSZ is defined for I/O queues, but hosts apply it to an admin queue, too.
    pub in_capsule: u32,
    /// Maximum bytes of data of a command.
    pub max_transfer: u32,
    /// Maximum entries of an I/O queue.
    pub queue_depth: u16,
    /// Maximum entries of an admin queue.
    pub admin_depth: u16,
    /// Maximum time from a host's request to an accepted Connect command.
    pub handshake_timeout: Nanos,
    /// Time in which the device has to return the work of an ended connection.
    ///
    /// Afterwards the target destroys the queue pair regardless.
    pub drain_timeout: Nanos,
    /// Maximum time for which a host can delay a transfer or a response.
    pub transfer_timeout: Nanos,
    /// Receives that the connections of a completion queue share; 0 gives each queue its own.
    pub shared_receives: u32,
    /// Entries of a completion queue; connections that do not fit get another queue.
    pub cq_depth: u32,
    /// Retries if a host has no receive posted; 7 is unlimited.
    pub rnr_retries: u8,
    /// Retries if a host does not respond, 0 to 7; `None` uses the host's value.
    pub retries: Option<u8>,
    /// Traffic class (RoCE: DSCP and ECN); `None` uses the system's.
    pub traffic_class: Option<u8>,
}

const SECOND: Nanos = 1_000_000_000;

impl Default for RdmaParams {
    fn default() -> Self {
        Self {
            in_capsule: 8192,
            max_transfer: 1 << 20,
            queue_depth: 128,
            admin_depth: 32,
            handshake_timeout: 10 * SECOND,
            drain_timeout: 2 * SECOND,
            transfer_timeout: 30 * SECOND,
            shared_receives: 0,
            cq_depth: 16384,
            rnr_retries: 7,
            traffic_class: None,
            retries: None,
        }
    }
}
