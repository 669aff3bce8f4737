//! Dispositions: actions that a command requires from the caller.

use nvmeof_wire::{Cqe, Sgl};

use crate::controller::ControllerKey;
use crate::spec::DeviceId;

/// A completion to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Response {
    /// The completion queue entry, including SQHD.
    pub cqe: Cqe,
    /// The completion reports only success, and the host needs no SQHD.
    ///
    /// A transport may omit it if its data already reported success to the host (the SUCCESS flag
    /// of NVMe/TCP).
    pub elidable: bool,
}

/// Location of a command's data from the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DataSource {
    /// In the capsule of the command.
    InCapsule {
        /// Bytes from the start of the in-capsule data.
        ///
        /// Offset and length were checked against the received data.
        offset: u32,
    },
    /// In the host's memory: the transport fetches it.
    Host(Sgl),
}

/// Action that a command requires.
///
/// Unless the disposition is [`Respond`](Self::Respond), the command stays with its
/// [`Queue`](crate::Queue) until the call that completes it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use]
pub enum Disposition {
    /// Send this response.
    Respond(Response),
    /// Lease a buffer of this length, then call [`Queue::fill`](crate::Queue::fill).
    ///
    /// Both calls get the same command. The data for the host is generated then, so a command that
    /// waits for a buffer holds nothing.
    Send {
        /// Number of bytes, at least 1 and within MDTS and the SGL.
        len: u32,
        /// Destination in the host's memory.
        sgl: Sgl,
    },
    /// Fetch the host's data, then call [`Queue::handle_data`](crate::Queue::handle_data).
    ///
    /// Both calls get the same command. If the fetch fails, call
    /// [`Queue::complete`](crate::Queue::complete) with the failure.
    Receive {
        /// Number of bytes.
        len: u32,
        /// Location of the data.
        source: DataSource,
    },
    /// Execute this on its device, then call [`Queue::complete`](crate::Queue::complete).
    Io(IoCommand),
    /// Nothing now.
    ///
    /// [`Queue::poll_event`](crate::Queue::poll_event) completes an Asynchronous Event Request.
    Held,
    /// Flush these devices, then call [`Queue::complete_flush`](crate::Queue::complete_flush).
    ///
    /// The admin command completes when the written data is durable.
    Flush {
        /// The devices.
        devices: Vec<DeviceId>,
        /// Result of the completion.
        result: u64,
    },
    /// Abort a command of an I/O queue of this controller, if the caller finds it.
    ///
    /// Then call [`Queue::complete_abort`](crate::Queue::complete_abort).
    Abort {
        /// Key of the controller, as in [`QueueInfo::controller`](crate::QueueInfo::controller).
        controller: ControllerKey,
        /// ID of the command's queue.
        sqid: u16,
        /// Identifier of the command.
        cid: u16,
        /// Location of the queue, as last passed to [`Queue::set_owner`](crate::Queue::set_owner).
        ///
        /// The queue can be moving to another reactor.
        owner: QueueOwner,
    },
}

/// Location that serves a queue, in the caller's terms.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QueueOwner {
    /// The reactor.
    pub reactor: u32,
    /// The connection on that reactor.
    pub connection: u64,
}

/// A checked I/O command. Offsets and lengths are bytes of the device, within the namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IoCommand {
    /// Command identifier on its queue.
    pub cid: u16,
    /// Its NSID.
    pub nsid: u32,
    /// The device of the namespace.
    pub device: DeviceId,
    /// Type of the command.
    pub kind: IoKind,
    /// First byte; 0 for Flush and Deallocate.
    pub offset: u64,
    /// Bytes of the medium; 0 for Flush and Deallocate.
    pub len: u64,
    /// Force Unit Access: durable before the completion.
    pub fua: bool,
    /// The data pointer, at least [`Self::data_len`] long; the destination of a Read's data.
    pub sgl: Sgl,
    /// Location of the data of a Write, Compare or Deallocate.
    pub source: Option<DataSource>,
}

impl IoCommand {
    /// Bytes transferred between host and target.
    #[must_use]
    pub fn data_len(&self) -> u32 {
        match self.kind {
            IoKind::Read | IoKind::Write | IoKind::Compare => {
                // Limited by MDTS.
                u32::try_from(self.len).unwrap_or(u32::MAX)
            }
            IoKind::Deallocate { ranges } => u32::from(ranges) * 16,
            IoKind::Flush | IoKind::WriteZeroes { .. } | IoKind::Verify => 0,
        }
    }
}

/// Type of an I/O command (NVM 3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IoKind {
    /// Device to host.
    Read,
    /// Host to device.
    Write,
    /// Makes all completed writes of the namespace durable.
    Flush,
    /// Writes zeroes.
    WriteZeroes {
        /// The blocks may be deallocated if they then read as zeroes.
        deallocate: bool,
    },
    /// Compares the host's data with the medium; [`Failure::CompareMismatch`](crate::Failure).
    Compare,
    /// Reads from the medium, without data for the host.
    Verify,
    /// Deallocates the ranges that [`Queue::parse_ranges`](crate::Queue::parse_ranges) returns.
    Deallocate {
        /// Ranges in the data, 16 bytes each; 1 to 256.
        ranges: u16,
    },
}

impl IoKind {
    /// Returns true if it changes the contents of the medium.
    #[must_use]
    pub fn is_write(&self) -> bool {
        match self {
            Self::Write | Self::WriteZeroes { .. } | Self::Deallocate { .. } => true,
            Self::Read | Self::Flush | Self::Compare | Self::Verify => false,
        }
    }
}

/// A range of a device in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Extent {
    /// First byte.
    pub offset: u64,
    /// Bytes.
    pub len: u64,
}
