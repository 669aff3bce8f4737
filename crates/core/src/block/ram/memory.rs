//! The bytes of a RAM namespace and the locks that keep a block whole.
//!
//! The range is cut into stripes of 64 KiB; stripe `i` is guarded by lock `i % LOCKS`, held for
//! one copy. A block lies in one stripe, so no block is read half written. A transfer over
//! several stripes takes them one after the other and never two at once: no deadlock, and no
//! more than one block is promised.

use std::hint;
use std::io;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::dma::{Mapping, PAGE};

/// Bytes of a stripe: a multiple of the page and of every block size.
const STRIPE: u64 = 64 << 10;

/// Locks a device has. More stripes share them; enough that two cores rarely meet.
const LOCKS: usize = 256;

/// Spins before the thread that holds a lock is taken to be off its core.
const SPINS: u32 = 200;

#[derive(Debug)]
pub(super) struct Memory {
    mapping: Mapping,
    locks: Box<[StripeLock]>,
}

impl Memory {
    pub(super) fn new(size: u64) -> io::Result<Self> {
        let len = usize::try_from(size.next_multiple_of(STRIPE).max(STRIPE))
            .map_err(|_| io::Error::from_raw_os_error(libc::ENOMEM))?;
        let locks = (0..LOCKS).map(|_| StripeLock::default()).collect();
        Ok(Self { mapping: Mapping::ordinary(len, PAGE)?, locks })
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
        self.mapping.discard(first, last - first)
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
        let offset = to_usize(offset);
        assert!(offset.checked_add(len).is_some_and(|end| end <= self.mapping.len()));
        // SAFETY: offset and length lie in the mapping (asserted).
        unsafe { self.mapping.as_ptr().add(offset) }
    }
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
