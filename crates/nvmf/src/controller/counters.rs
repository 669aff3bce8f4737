//! I/O counts of the SMART log (Base 5.16.1.3) and traffic, per queue.
//!
//! Reactors therefore share no cache line.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use crate::disposition::QueueOwner;

/// Counts of one queue. Only its queue writes them, so a load and a store suffice.
#[derive(Debug, Default)]
#[repr(align(64))]
pub(crate) struct IoCounters {
    reads: AtomicU64,
    read_bytes: AtomicU64,
    writes: AtomicU64,
    written_bytes: AtomicU64,
    media_errors: AtomicU64,
    /// A command arrived or completed since the admin queue last asked.
    traffic: AtomicBool,
    /// [`QueueOwner`] of the queue. An Abort during a change finds nothing, which is allowed.
    reactor: AtomicU32,
    connection: AtomicU64,
}

/// Counts at one point in time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct IoTotals {
    /// Read and Compare commands (SMART: host read commands).
    pub(crate) reads: u64,
    /// Bytes they moved.
    pub(crate) read_bytes: u64,
    /// Write commands.
    pub(crate) writes: u64,
    /// Bytes they moved.
    pub(crate) written_bytes: u64,
    /// Commands that failed with a media error.
    pub(crate) media_errors: u64,
}

impl IoCounters {
    #[inline]
    pub(crate) fn count_read(&self, bytes: u64) {
        bump(&self.reads, 1);
        bump(&self.read_bytes, bytes);
    }

    #[inline]
    pub(crate) fn count_write(&self, bytes: u64) {
        bump(&self.writes, 1);
        bump(&self.written_bytes, bytes);
    }

    pub(crate) fn count_media_error(&self) {
        bump(&self.media_errors, 1);
    }

    /// Records that a command arrived or completed.
    #[inline]
    pub(crate) fn mark_traffic(&self) {
        self.traffic.store(true, Ordering::Relaxed);
    }

    /// Returns true if a command arrived or completed since the last call.
    pub(crate) fn take_traffic(&self) -> bool {
        self.traffic.swap(false, Ordering::Relaxed)
    }

    /// Sets the location that serves the queue.
    pub(crate) fn set_owner(&self, owner: QueueOwner) {
        self.reactor.store(owner.reactor, Ordering::Relaxed);
        self.connection.store(owner.connection, Ordering::Relaxed);
    }

    /// The location that serves the queue.
    ///
    /// During a change the value can be neither the old nor the new location, so the receiver of an
    /// Abort checks which queue it has.
    pub(crate) fn owner(&self) -> QueueOwner {
        QueueOwner {
            reactor: self.reactor.load(Ordering::Relaxed),
            connection: self.connection.load(Ordering::Relaxed),
        }
    }

    pub(crate) fn totals(&self) -> IoTotals {
        IoTotals {
            reads: self.reads.load(Ordering::Relaxed),
            read_bytes: self.read_bytes.load(Ordering::Relaxed),
            writes: self.writes.load(Ordering::Relaxed),
            written_bytes: self.written_bytes.load(Ordering::Relaxed),
            media_errors: self.media_errors.load(Ordering::Relaxed),
        }
    }
}

impl IoTotals {
    pub(crate) fn add(&mut self, other: &Self) {
        self.reads = self.reads.wrapping_add(other.reads);
        self.read_bytes = self.read_bytes.wrapping_add(other.read_bytes);
        self.writes = self.writes.wrapping_add(other.writes);
        self.written_bytes = self.written_bytes.wrapping_add(other.written_bytes);
        self.media_errors = self.media_errors.wrapping_add(other.media_errors);
    }
}

const _: () = assert!(size_of::<IoCounters>() == 64, "one cache line");

#[inline]
fn bump(counter: &AtomicU64, by: u64) {
    counter.store(counter.load(Ordering::Relaxed).wrapping_add(by), Ordering::Relaxed);
}
