//! Block devices.
//!
//! All reactors share a [`BlockDevice`]. Each reactor opens its own [`BlockQueue`], submits
//! [`BlockOp`]s and polls for [`Completed`] ones.
//!
//! An operation owns its buffer until it is completed or rejected. Dropping a queue waits until the
//! kernel has released the buffers of all operations in flight.

mod delay;
pub mod fault;
mod file;
mod geometry;
mod null;
mod nvme;
mod op;
mod ram;
mod signal;
mod split;
mod stripe;
#[cfg(test)]
mod tests;

use std::fmt::Debug;
use std::os::fd::BorrowedFd;
use std::time::Duration;

pub use delay::{Clock, DelayDevice, Latency};
pub use file::{
    Backing, Claim, DEFAULT_DEPTH, Direct, FileConfig, FileDevice, OpenError, OpenErrorReason,
    OpenFile, start_kernel_worker,
};
pub use geometry::Geometry;
pub use null::NullDevice;
pub use nvme::NvmeDevice;
pub use op::{BlockError, BlockOp, BlockOpKind, Completed, RejectReason, Rejected};
pub use ram::RamDevice;
pub use split::{SplitDevice, SplitError};
pub use stripe::{StripeDevice, StripeError};

use crate::dma::{CorePool, ZeroCopyData};

/// Properties and capabilities of a device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceInfo {
    /// Name in the configuration.
    pub name: String,
    /// Size in bytes, a multiple of `block_size`.
    pub size: u64,
    /// Bytes per logical block, a power of two.
    pub block_size: u32,
    /// True if the device refuses writes.
    pub read_only: bool,
    /// True if a power loss can lose a completed write until the next flush.
    pub volatile_cache: bool,
    /// True if `Deallocate` frees space.
    pub deallocate: bool,
    /// True if deallocated blocks read as zeroes.
    pub deallocate_reads_zero: bool,
    /// True if the device supports `WriteZeroes`.
    pub write_zeroes: bool,
    /// Sizes at which the device performs best.
    pub geometry: Geometry,
    /// Identity of the medium, independent of the slot, the device name and the driver.
    ///
    /// A drive's namespace has the text of its sysfs attribute `wwid`. `None` for files, memory and
    /// devices layered on those. The identity may not be unique: some drives are sold with the same
    /// identifiers.
    pub medium: Option<String>,
}

/// A device that any reactor can open a queue to.
pub trait BlockDevice: Send + Sync + Debug {
    /// Returns the properties of the device, which never change.
    fn info(&self) -> &DeviceInfo;

    /// Opens a queue for the calling thread, independent of all other queues.
    ///
    /// # Errors
    /// The resources of the queue (memory, descriptors) are not available.
    fn open_queue(&self, pool: &CorePool) -> Result<Box<dyn BlockQueue>, BlockError>;

    /// Maximum time that an operation can stay with the device after it was
    /// [cancelled](BlockQueue::cancel), if its queue is polled.
    ///
    /// A caller that waits for cancelled operations waits no longer than this. `None`: there is no
    /// bound, because only the kernel can end the operation.
    fn quiesce_bound(&self) -> Option<Duration> {
        None
    }

    /// Returns true if the device has disappeared. Every operation then fails with
    /// [`BlockError::Gone`] until the device is reopened. Devices layered on it are gone, too.
    fn is_gone(&self) -> bool {
        false
    }
}

/// Interface of one reactor to a device. [`poll`](Self::poll) returns every operation that
/// [`submit`](Self::submit) took exactly once, in any order.
pub trait BlockQueue: Debug {
    /// Submits an operation. It starts immediately or with the next [`poll`](Self::poll). Poll once
    /// more before sleeping on [`event_fd`](Self::event_fd).
    ///
    /// # Errors
    /// Returns the operation if the queue is full (poll, then retry) or broken.
    fn submit(&mut self, op: BlockOp) -> Result<(), Rejected>;

    /// Starts batched operations, then appends completed ones to `done`.
    fn poll(&mut self, done: &mut Vec<Completed>);

    /// Number of submitted operations that [`poll`](Self::poll) has not returned yet.
    fn in_flight(&self) -> usize;

    /// Cancels all operations with this token, because their requester is gone.
    ///
    /// An unknown token has no effect. Operations that the device does not have yet never reach it,
    /// not even when a device reset replays earlier operations. They complete with
    /// [`BlockError::Cancelled`] in a later [`poll`](Self::poll), so poll once more before
    /// sleeping. Operations at the device complete as usual; an operation of several steps begins
    /// no further step. The default does nothing: it is for queues that pass every operation to the
    /// device immediately.
    fn cancel(&mut self, token: u64) {
        let _ = token;
    }

    /// Descriptor that is readable when completions may be available; register it level-triggered.
    ///
    /// A queue without one completes, with each poll, everything submitted before, except
    /// operations that [`next_due`](Self::next_due) covers.
    fn event_fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    /// Time of the next required poll, even if [`event_fd`](Self::event_fd) is not readable, as of
    /// the last poll.
    ///
    /// The time is in nanoseconds of the device's own clock. `None`: no poll is due at a particular
    /// time.
    fn next_due(&self) -> Option<u64> {
        None
    }

    /// Returns true if the queue must be polled all the time, even without an operation in flight
    /// and with nothing due.
    ///
    /// The default is for queues to which nothing happens without an operation or their descriptor.
    fn needs_polls(&self) -> bool {
        false
    }

    /// Returns the bytes of a read without a buffer or an operation (zero-copy read). The bytes do
    /// not change until the lease is dropped. `None`: submit a read.
    fn zero_copy_read(&mut self, offset: u64, len: u32) -> Option<ZeroCopyData> {
        let _ = (offset, len);
        None
    }
}
