//! What is to be done with a command.

use nvmeof_wire::{Cqe, Sgl};

use crate::controller::ControllerKey;
use crate::spec::DeviceId;

/// A completion to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Response {
    /// The completion queue entry, SQHD and all.
    pub cqe: Cqe,
    /// It says nothing but success and the host needs no SQHD: a transport may leave it out where its
    /// data already told the host so (NVMe/TCP's SUCCESS flag).
    pub elidable: bool,
}

/// Where the host's data of a command is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DataSource {
    /// In the capsule that brought the command.
    InCapsule {
        /// Bytes from the start of the in-capsule data; offset and length were checked against what
        /// came.
        offset: u32,
    },
    /// At the host: the transport fetches it.
    Host(Sgl),
}

/// What is to be done with a command. A command whose disposition is not [`Respond`](Self::Respond)
/// stays with its [`Queue`](crate::Queue) until the call that completes it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use]
pub enum Disposition {
    /// Send this.
    Respond(Response),
    /// Data for the host: get a buffer of this length, then [`Queue::fill`](crate::Queue::fill)
    /// with the same command. The data is made then: a command that waits for a buffer holds
    /// nothing.
    Send {
        /// Bytes, never 0 and no more than MDTS and the SGL allow.
        len: u32,
        /// Where the host wants them.
        sgl: Sgl,
    },
    /// Get the host's data, then [`Queue::handle_data`](crate::Queue::handle_data) with the same
    /// command; if it cannot be had, [`Queue::complete`](crate::Queue::complete) with the failure.
    Receive {
        /// Bytes wanted.
        len: u32,
        /// Where they are.
        source: DataSource,
    },
    /// Do this on its device, then [`Queue::complete`](crate::Queue::complete).
    Io(IoCommand),
    /// Nothing now: an Asynchronous Event Request, completed by
    /// [`Queue::poll_event`](crate::Queue::poll_event).
    Held,
    /// Flush these devices, then [`Queue::complete_flush`](crate::Queue::complete_flush): an admin command is
    /// answered when what was written is on the medium.
    Flush {
        /// The devices.
        devices: Vec<DeviceId>,
        /// The completion's result.
        result: u64,
    },
    /// Abort a command of an I/O queue of this controller if it can be found, then
    /// [`Queue::complete_abort`](crate::Queue::complete_abort).
    Abort {
        /// The controller; [`QueueInfo::controller`](crate::QueueInfo::controller) of its queues.
        controller: ControllerKey,
        /// Queue of the command.
        sqid: u16,
        /// The command.
        cid: u16,
        /// Where the queue is: what was last passed to
        /// [`Queue::set_owner`](crate::Queue::set_owner) for it. It may be on its way elsewhere.
        owner: QueueOwner,
    },
}

/// Where a queue is served, in the caller's terms.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QueueOwner {
    /// The reactor.
    pub reactor: u32,
    /// The connection there.
    pub connection: u64,
}

/// A checked I/O command. Offsets and lengths are bytes of the device, inside the namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IoCommand {
    /// Its identifier on its queue.
    pub cid: u16,
    /// Its namespace.
    pub nsid: u32,
    /// The device behind it.
    pub device: DeviceId,
    /// What to do.
    pub kind: IoKind,
    /// First byte; 0 for Flush and Deallocate.
    pub offset: u64,
    /// Bytes of the medium; 0 for Flush and Deallocate.
    pub len: u64,
    /// Force Unit Access: on the medium before the completion.
    pub fua: bool,
    /// The data pointer, at least as long as [`Self::data_len`]. Where to send a Read's data.
    pub sgl: Sgl,
    /// Where a Write's, Compare's or Deallocate's data is.
    pub source: Option<DataSource>,
}

impl IoCommand {
    /// Bytes that move between host and target.
    #[must_use]
    pub fn data_len(&self) -> u32 {
        match self.kind {
            IoKind::Read | IoKind::Write | IoKind::Compare => {
                // Bounded by MDTS.
                u32::try_from(self.len).unwrap_or(u32::MAX)
            }
            IoKind::Deallocate { ranges } => u32::from(ranges) * 16,
            IoKind::Flush | IoKind::WriteZeroes { .. } | IoKind::Verify => 0,
        }
    }
}

/// What an I/O command does (NVM 3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IoKind {
    /// Device to host.
    Read,
    /// Host to device.
    Write,
    /// All completed writes of the namespace to the medium.
    Flush,
    /// Zeroes.
    WriteZeroes {
        /// The blocks may be deallocated, as long as they read as zeroes.
        deallocate: bool,
    },
    /// Compare the host's data with the medium; [`Failure::CompareMismatch`](crate::Failure).
    Compare,
    /// Read from the medium, no data to the host.
    Verify,
    /// Deallocate the ranges that [`Queue::parse_ranges`](crate::Queue::parse_ranges) gives for the data.
    Deallocate {
        /// Ranges in the data, 16 bytes each; 1 to 256.
        ranges: u16,
    },
}

impl IoKind {
    /// Whether it changes what is on the medium.
    #[must_use]
    pub fn is_write(&self) -> bool {
        match self {
            Self::Write | Self::WriteZeroes { .. } | Self::Deallocate { .. } => true,
            Self::Read | Self::Flush | Self::Compare | Self::Verify => false,
        }
    }
}

/// A piece of a device in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Extent {
    /// First byte.
    pub offset: u64,
    /// Bytes.
    pub len: u64,
}
