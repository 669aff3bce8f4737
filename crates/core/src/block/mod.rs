//! Block devices: a [`BlockDevice`] is shared by all reactors, each of which opens a
//! [`BlockQueue`] of its own, submits [`BlockOp`]s and polls for [`Completed`] ones.
//!
//! An operation owns its buffer until it is completed or rejected. A queue that is dropped waits
//! until the kernel is done with the buffers of what is still in flight.

mod delay;
pub mod fault;
mod file;
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
    Backing, Claim, DEFAULT_DEPTH, Direct, FileConfig, FileDevice, OpenError, OpenErrorWhy,
    OpenFile, start_kernel_worker,
};
pub use null::NullDevice;
pub use nvme::NvmeDevice;
pub use op::{BlockError, BlockOp, BlockOpKind, Completed, Rejected, RejectedWhy};
pub use ram::RamDevice;
pub use split::{SplitDevice, SplitError};
pub use stripe::{StripeDevice, StripeError};

use crate::dma::{CorePool, Lent};

/// What a device is and can do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceInfo {
    /// Name in the configuration.
    pub name: String,
    /// Bytes; a multiple of `block_size`.
    pub size: u64,
    /// Bytes of a logical block, a power of two.
    pub block_size: u32,
    /// Whether writes are refused.
    pub read_only: bool,
    /// Whether a completed write may be lost with the power until a flush.
    pub volatile_cache: bool,
    /// Whether `Deallocate` frees anything.
    pub deallocate: bool,
    /// Whether deallocated blocks read as zeroes.
    pub deallocate_reads_zero: bool,
    /// Whether `WriteZeroes` works.
    pub write_zeroes: bool,
    /// The identity that the medium itself has, wherever it is plugged in and whatever its name is:
    /// a drive's namespace has the text that Linux has for it in sysfs (`wwid`), whoever drives it.
    /// `None` for what has none: files, memory, and what stands on those. Not sure to be unique:
    /// some drives are sold with the same identifiers.
    pub medium: Option<String>,
}

/// A device that any reactor can open a queue to.
pub trait BlockDevice: Send + Sync + Debug {
    /// What the device is; the same for as long as it lives.
    fn info(&self) -> &DeviceInfo;

    /// A queue for the calling thread, independent of all others.
    ///
    /// # Errors
    /// What the queue needs (memory, descriptors) is not to be had.
    fn open_queue(&self, pool: &CorePool) -> Result<Box<dyn BlockQueue>, BlockError>;

    /// The longest time that an operation can be with the device after it was
    /// [cancelled](BlockQueue::cancel), if its queue is polled: who waits for the end of what was
    /// cancelled waits no longer. `None`: that is for the kernel to say, there is no bound.
    fn quiesce_bound(&self) -> Option<Duration> {
        None
    }

    /// Whether it is no longer there: every operation fails with [`BlockError::Gone`] until the device
    /// is opened anew. So is what stands on it.
    fn is_gone(&self) -> bool {
        false
    }
}

/// One reactor's way to a device. Every operation taken by [`submit`](Self::submit) comes out of
/// [`poll`](Self::poll) exactly once, in any order.
pub trait BlockQueue: Debug {
    /// Takes an operation. It may start at once or with the next [`poll`](Self::poll): poll
    /// once more before sleeping on [`event_fd`](Self::event_fd).
    ///
    /// # Errors
    /// Hands the operation back: the queue is full (poll, then try again) or broken.
    fn submit(&mut self, op: BlockOp) -> Result<(), Rejected>;

    /// Starts what is batched, then appends what is done to `done`.
    fn poll(&mut self, done: &mut Vec<Completed>);

    /// Operations taken and not yet handed out by [`poll`](Self::poll).
    fn in_flight(&self) -> usize;

    /// The requester of these operations is gone: nobody wants them done any more.
    ///
    /// All operations with this token are meant; a token that no operation has changes nothing.
    /// What the device does not have yet never gets there, also not when a reset of the device
    /// replays what it had: it completes with [`BlockError::Cancelled`] in a later
    /// [`poll`](Self::poll), so poll once more before sleeping. What the device has completes as
    /// usual; of an operation that takes several steps no further step begins. A queue that gives
    /// every operation to its device at once has nothing to do.
    fn cancel(&mut self, token: u64) {
        let _ = token;
    }

    /// Readable when there may be completions to poll for; register it level-triggered. A queue
    /// without one completes with each poll all that was submitted before, but for what
    /// [`next_due`](Self::next_due) speaks of.
    fn event_fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    /// When to poll again even if [`event_fd`](Self::event_fd) is silent, as of the last poll: a
    /// time of the device's own clock in nanoseconds. `None`: no time brings anything about.
    fn next_due(&self) -> Option<u64> {
        None
    }

    /// Lends the bytes of a read without a buffer or an operation. They do not change until the
    /// lease is dropped. `None`: submit a read.
    fn lend(&mut self, offset: u64, len: u32) -> Option<Lent> {
        let _ = (offset, len);
        None
    }
}
