//! The bytes of a RAM namespace, and the locks that make block accesses atomic.
//!
//! The range is divided into stripes of 64 KiB. Lock `i % LOCKS` guards stripe `i` during one copy.
//! A block lies in one stripe, so no block is read half written. A transfer over several stripes
//! locks them one after the other and never two concurrently. That rules out deadlocks and
//! guarantees atomicity of one block only.

use std::hint;
use std::io;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use crate::dma::{Mapping, PAGE};

/// Bytes per stripe, a multiple of the page size and of every block size.
const STRIPE: u64 = 64 << 10;

/// Locks per device. Several stripes share a lock; 256 are enough that two cores rarely collide.
const LOCKS: usize = 256;

/// Spins before the thread that holds a lock is assumed to be preempted.
const SPINS: u32 = 200;

/// The bytes of a device. A resized device shares them with its predecessor until that is dropped.
#[derive(Debug)]
pub(super) struct Memory {
    size: u64,
    /// Contiguous segments, each of whole stripes; most devices have one.
    segments: Box<[Segment]>,
    locks: Arc<[StripeLock]>,
    /// Bytes of the newest device that shares the segments: no operation starts beyond.
    extent: Arc<Mutex<u64>>,
}

#[derive(Debug, Clone)]
struct Segment {
    start: usize,
    mapping: Arc<Mapping>,
}

impl Memory {
    pub(super) fn new(size: u64) -> io::Result<Self> {
        let mapping = Arc::new(Mapping::ordinary(whole_stripes(size)?, PAGE)?);
        Ok(Self {
            size,
            segments: [Segment { start: 0, mapping }].into(),
            locks: (0..LOCKS).map(|_| StripeLock::default()).collect(),
            extent: Arc::new(Mutex::new(size)),
        })
    }

    /// Returns a larger or smaller view of the same bytes. Added bytes are zero; removed bytes are
    /// freed with the last use of the predecessor.
    pub(super) fn resized(&self, size: u64) -> io::Result<Self> {
        let mut extent = self.extent.lock().unwrap_or_else(PoisonError::into_inner);
        let mut segments = self.segments.to_vec();
        let (wanted, end) = (whole_stripes(size)?, self.end());
        if wanted > end {
            let mapping = Arc::new(Mapping::ordinary(wanted - end, PAGE)?);
            segments.push(Segment { start: end, mapping });
        }
        // Bytes of a larger device: its drop has discarded whole pages, if it is no longer in use.
        let zeroed = if Arc::strong_count(&self.extent) == 1 {
            extent.next_multiple_of(PAGE as u64)
        } else {
            end as u64
        };
        self.zero(*extent, size.min(zeroed).min(end as u64).saturating_sub(*extent))?;
        *extent = size;
        let (locks, extent) = (Arc::clone(&self.locks), Arc::clone(&self.extent));
        Ok(Self { size, segments: segments.into(), locks, extent })
    }

    /// Makes this the newest view again: its successor is discarded.
    pub(super) fn revert_resize(&self) {
        *self.extent.lock().unwrap_or_else(PoisonError::into_inner) = self.size;
    }

    /// Mapped bytes.
    fn end(&self) -> usize {
        self.segments.last().map_or(0, |last| last.start + last.mapping.len())
    }

    /// Returns the segment of a byte and the offset of the byte in it.
    fn segment(&self, offset: usize) -> (&Mapping, usize) {
        let at = self.segments.partition_point(|segment| segment.start <= offset);
        let segment = &self.segments[at.saturating_sub(1)];
        (&segment.mapping, offset - segment.start)
    }

    /// Copies bytes from `offset` to `out`. The caller has checked the range.
    pub(super) fn read(&self, offset: u64, out: &mut [u8]) {
        let mut done = 0;
        for (start, len) in stripes(offset, out.len() as u64) {
            let lock = self.lock(start);
            let to = &mut out[done..done + len];
            lock.lock_shared();
            // SAFETY: `at` bounds the run inside the mapping. The shared lock of its stripe
            // excludes writers of these bytes. `to` is a Rust slice, so it cannot overlap them.
            unsafe {
                to.as_mut_ptr().copy_from_nonoverlapping(self.at(start, len), len);
            };
            lock.unlock_shared();
            done += len;
        }
    }

    /// Copies `data` to `offset`. The caller has checked the range.
    pub(super) fn write(&self, offset: u64, data: &[u8]) {
        let mut done = 0;
        for (start, len) in stripes(offset, data.len() as u64) {
            let lock = self.lock(start);
            let from = &data[done..done + len];
            lock.lock();
            // SAFETY: `at` bounds the run inside the mapping; its stripe is locked exclusively.
            unsafe { self.at(start, len).copy_from_nonoverlapping(from.as_ptr(), len) };
            lock.unlock();
            done += len;
        }
    }

    /// Zeroes a range: whole pages return to the kernel, the rest is overwritten.
    pub(super) fn zero(&self, offset: u64, len: u64) -> io::Result<()> {
        for (start, len) in stripes(offset, len) {
            let lock = self.lock(start);
            lock.lock();
            let result = self.zero_locked(start, len);
            lock.unlock();
            result?;
        }
        Ok(())
    }

    fn zero_locked(&self, start: u64, len: usize) -> io::Result<()> {
        let start = to_usize(start);
        let end = start + len;
        let (first, last) = (start.next_multiple_of(PAGE), end - end % PAGE);
        if first >= last {
            self.fill_zero(start, len);
            return Ok(());
        }
        self.fill_zero(start, first - start);
        self.fill_zero(last, end - last);
        let (mapping, at) = self.segment(first);
        mapping.discard(at, last - first)
    }

    fn fill_zero(&self, start: usize, len: usize) {
        // SAFETY: `at` bounds the run inside the mapping; the caller holds its stripe's lock.
        unsafe { self.at(start as u64, len).write_bytes(0, len) };
    }

    fn lock(&self, offset: u64) -> &StripeLock {
        &self.locks[to_usize(offset / STRIPE) % LOCKS]
    }

    /// Returns the address of a run of bytes.
    fn at(&self, offset: u64, len: usize) -> *mut u8 {
        let (mapping, at) = self.segment(to_usize(offset));
        assert!(at.checked_add(len).is_some_and(|end| end <= mapping.len()));
        // SAFETY: offset and length lie in the mapping (asserted).
        unsafe { mapping.as_ptr().add(at) }
    }
}

impl Drop for Memory {
    /// Frees the bytes beyond the one remaining view, which never accesses them. No other thread
    /// can: creating a view requires the lock.
    fn drop(&mut self) {
        let extent = self.extent.lock().unwrap_or_else(PoisonError::into_inner);
        if Arc::strong_count(&self.extent) != 2 {
            return;
        }
        let keep = to_usize(*extent).next_multiple_of(PAGE);
        for segment in &self.segments {
            let from = keep.saturating_sub(segment.start).min(segment.mapping.len());
            // A failed discard leaves bytes that are zeroed when the device grows again.
            let _ = segment.mapping.discard(from, segment.mapping.len() - from);
        }
    }
}

/// Returns the bytes of the stripes that hold `size` bytes.
fn whole_stripes(size: u64) -> io::Result<usize> {
    let whole = size.max(1).checked_next_multiple_of(STRIPE);
    let whole = whole.and_then(|bytes| usize::try_from(bytes).ok());
    whole.ok_or_else(|| io::Error::from_raw_os_error(libc::ENOMEM))
}

/// Returns the runs of a range, split at stripe boundaries.
fn stripes(offset: u64, len: u64) -> impl Iterator<Item = (u64, usize)> {
    let end = offset + len;
    let mut at = offset;
    std::iter::from_fn(move || {
        let start = at;
        at = end.min((start / STRIPE + 1) * STRIPE);
        (start < end).then(|| (start, to_usize(at - start)))
    })
}

/// Converts an offset. Offsets are less than the length of a mapping, which is a `usize`.
fn to_usize(value: u64) -> usize {
    usize::try_from(value).unwrap_or(usize::MAX)
}

/// A spinning reader-writer lock on its own cache line. A waiting writer keeps new readers out, so
/// that a constantly read block can still be written.
#[derive(Debug, Default)]
#[repr(align(64))]
struct StripeLock {
    /// Number of readers, and the two bits below.
    state: AtomicU32,
}

/// A writer holds the lock.
const WRITER: u32 = 1 << 31;

/// A writer is waiting.
const WAITING: u32 = 1 << 30;

impl StripeLock {
    fn lock_shared(&self) {
        spin_until(|| {
            let seen = self.state.load(Ordering::Relaxed);
            seen & (WRITER | WAITING) == 0
                && self
                    .state
                    .compare_exchange_weak(seen, seen + 1, Ordering::Acquire, Ordering::Relaxed)
                    .is_ok()
        });
    }

    fn unlock_shared(&self) {
        self.state.fetch_sub(1, Ordering::Release);
    }

    fn lock(&self) {
        let enter = |seen| {
            let entered =
                self.state.compare_exchange(seen, WRITER, Ordering::Acquire, Ordering::Relaxed);
            entered.is_ok()
        };
        if enter(0) {
            return;
        }
        spin_until(|| {
            // Repeated on every attempt: a writer that entered has cleared the bit.
            self.state.fetch_or(WAITING, Ordering::Relaxed);
            enter(WAITING)
        });
    }

    fn unlock(&self) {
        self.state.fetch_and(!WRITER, Ordering::Release);
    }
}

fn spin_until(mut attempt: impl FnMut() -> bool) {
    let mut spins = 0;
    while !attempt() {
        spins += 1;
        if spins < SPINS {
            hint::spin_loop();
        } else {
            std::thread::yield_now();
        }
    }
}
