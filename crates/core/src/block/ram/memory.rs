//! The bytes of a RAM namespace and the locks that keep a block whole.
//!
//! The range is cut into stripes of 64 KiB; stripe `i` is guarded by lock `i % LOCKS`, held for
//! one copy. A block lies in one stripe, so no block is read half written. A transfer over
//! several stripes takes them one after the other and never two at once: no deadlock, and no
//! more than one block is promised.

use std::hint;
use std::io;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use crate::dma::{Mapping, PAGE};

/// Bytes of a stripe: a multiple of the page and of every block size.
const STRIPE: u64 = 64 << 10;

/// Locks a device has. More stripes share them; enough that two cores rarely meet.
const LOCKS: usize = 256;

/// Spins before the thread that holds a lock is taken to be off its core.
const SPINS: u32 = 200;

/// The bytes of a device. One that grew or shrank shares them with what it was before, until nothing
/// uses that any more.
#[derive(Debug)]
pub(super) struct Memory {
    size: u64,
    /// One behind the other, each of whole stripes; most devices have one.
    segments: Box<[Segment]>,
    locks: Arc<[StripeLock]>,
    /// Bytes of the newest of those that share the segments: nothing starts beyond.
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

    /// The same bytes, more of them or fewer. What comes is zero; what goes is given back with the last
    /// use of what was before.
    pub(super) fn resized(&self, size: u64) -> io::Result<Self> {
        let mut extent = self.extent.lock().unwrap_or_else(PoisonError::into_inner);
        let mut segments = self.segments.to_vec();
        let (wanted, end) = (whole_stripes(size)?, self.end());
        if wanted > end {
            let mapping = Arc::new(Mapping::ordinary(wanted - end, PAGE)?);
            segments.push(Segment { start: end, mapping });
        }
        // Left by a larger one: whole pages went when that one did, if it is not still in use.
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

    /// This is the newest again: what was made of it is not to be.
    pub(super) fn prevail(&self) {
        *self.extent.lock().unwrap_or_else(PoisonError::into_inner) = self.size;
    }

    /// Bytes that are mapped.
    fn end(&self) -> usize {
        self.segments.last().map_or(0, |last| last.start + last.mapping.len())
    }

    /// The segment of a byte, and where in it the byte is.
    fn segment(&self, offset: usize) -> (&Mapping, usize) {
        let at = self.segments.partition_point(|segment| segment.start <= offset);
        let segment = &self.segments[at.saturating_sub(1)];
        (&segment.mapping, offset - segment.start)
    }

    /// Copies out from `offset` on. The caller has checked the range.
    pub(super) fn read(&self, offset: u64, out: &mut [u8]) {
        let mut done = 0;
        for (start, len) in stripes(offset, out.len() as u64) {
            let lock = self.lock(start);
            let to = &mut out[done..done + len];
            lock.lock_shared();
            // SAFETY: `at` bounds the run inside the mapping. The shared lock of its stripe keeps
            // writers of these bytes away, and `out` is a Rust slice, so it cannot overlap them.
            unsafe {
                to.as_mut_ptr().copy_from_nonoverlapping(self.at(start, len), len);
            };
            lock.unlock_shared();
            done += len;
        }
    }

    /// Copies `data` in at `offset`. The caller has checked the range.
    pub(super) fn write(&self, offset: u64, data: &[u8]) {
        let mut done = 0;
        for (start, len) in stripes(offset, data.len() as u64) {
            let lock = self.lock(start);
            let from = &data[done..done + len];
            lock.lock();
            // SAFETY: `at` bounds the run inside the mapping; its stripe is locked for us alone.
            unsafe { self.at(start, len).copy_from_nonoverlapping(from.as_ptr(), len) };
            lock.unlock();
            done += len;
        }
    }

    /// Zeroes a range: whole pages go back to the kernel, the rest is overwritten.
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

    /// Address of a run of bytes.
    fn at(&self, offset: u64, len: usize) -> *mut u8 {
        let (mapping, at) = self.segment(to_usize(offset));
        assert!(at.checked_add(len).is_some_and(|end| end <= mapping.len()));
        // SAFETY: offset and length lie in the mapping (asserted).
        unsafe { mapping.as_ptr().add(at) }
    }
}

impl Drop for Memory {
    /// Gives back what is beyond the one that is left, which never looks there. Nobody else can: whoever
    /// makes another holds the lock.
    fn drop(&mut self) {
        let extent = self.extent.lock().unwrap_or_else(PoisonError::into_inner);
        if Arc::strong_count(&self.extent) != 2 {
            return;
        }
        let keep = to_usize(*extent).next_multiple_of(PAGE);
        for segment in &self.segments {
            let from = keep.saturating_sub(segment.start).min(segment.mapping.len());
            // What stays is zeroed when the device grows again.
            let _ = segment.mapping.discard(from, segment.mapping.len() - from);
        }
    }
}

/// Bytes of the stripes that hold `size` bytes.
fn whole_stripes(size: u64) -> io::Result<usize> {
    let whole = size.max(1).checked_next_multiple_of(STRIPE);
    let whole = whole.and_then(|bytes| usize::try_from(bytes).ok());
    whole.ok_or_else(|| io::Error::from_raw_os_error(libc::ENOMEM))
}

/// The runs of a range, cut at stripe borders.
fn stripes(offset: u64, len: u64) -> impl Iterator<Item = (u64, usize)> {
    let end = offset + len;
    let mut at = offset;
    std::iter::from_fn(move || {
        let start = at;
        at = end.min((start / STRIPE + 1) * STRIPE);
        (start < end).then(|| (start, to_usize(at - start)))
    })
}

/// Offsets are below a mapping's length, which is a `usize`.
fn to_usize(value: u64) -> usize {
    usize::try_from(value).unwrap_or(usize::MAX)
}

/// A spinning reader-writer lock, alone on its cache line. A writer that waits keeps new readers
/// out, so that a block everybody reads can still be written.
#[derive(Debug, Default)]
#[repr(align(64))]
struct StripeLock {
    /// Readers in, and the two bits below.
    state: AtomicU32,
}

/// A writer is in.
const WRITER: u32 = 1 << 31;

/// A writer waits.
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
            // Each time anew: a writer that entered took the bit with it.
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
