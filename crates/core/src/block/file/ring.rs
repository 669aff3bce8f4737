//! io_uring as a [`FileBackend`].
//!
//! Calls are written to the submission ring as they arrive and passed to the kernel with one system
//! call per turn. Results are read from the shared ring without one. The kernel has the address of
//! a buffer from the submission to the result; the ring owns the buffer during that time.
//!
//! ```text
//!   issue --> submission ring --enter--> kernel --result--> reap: the buffer is released
//!                   |                      |
//!                   |                      '--dropped: cancelled and awaited, then released
//!                   |                          '--no result at all: abandoned permanently
//!                   '--the kernel takes nothing any more: completed with EIO, never entered again
//! ```

use std::fmt;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};

use io_uring::types::{CancelBuilder, Fixed, FsyncFlags};
use io_uring::{IoUring, opcode, squeue};

use super::backend::{FileBackend, FileCall, FileResult, ZERO_WRITE};
use crate::dma::{Buffer, Mapping};

/// The ring's only registered file.
const FILE: Fixed = Fixed(0);

pub(super) struct Ring {
    ring: IoUring,
    /// By slot: `Some` from issue to result.
    calls: Box<[Option<InKernel>]>,
    /// Calls issued and not completed.
    out: usize,
    /// Calls pushed to the submission ring since the start.
    issued: u64,
    /// Entering the kernel polls the drive for completions.
    polled: bool,
    /// The kernel was entered, and so polled the drive, since results were last reaped.
    has_looked: bool,
    /// The kernel accepts no more calls: new ones fail here, and it never takes those in the
    /// submission ring.
    broken: bool,
    refused: Vec<FileResult>,
    /// Source of zeroes to write.
    zeroes: Option<Mapping>,
    /// Keeps the file open; the kernel also holds it as a registered file.
    _file: OwnedFd,
}

/// Memory that must stay valid until a call completes.
struct InKernel {
    buf: Option<Buffer>,
    /// Sequence number of the call.
    number: u64,
}

impl Ring {
    /// Creates a ring over `file` for calls in `slots` slots. Only the calling thread may use it.
    /// With `polled`, nothing signals results: the caller polls for them on each turn.
    pub(super) fn new(file: OwnedFd, slots: usize, polled: bool) -> io::Result<Self> {
        let entries = u32::try_from(slots.next_power_of_two())
            .map_err(|_| io::Error::from_raw_os_error(libc::EINVAL))?;
        start_kernel_worker()?;
        let ring = build(entries, polled)?;
        ring.submitter().register_files(&[file.as_raw_fd()])?;
        let calls = (0..slots).map(|_| None).collect();
        Ok(Self {
            ring,
            calls,
            out: 0,
            issued: 0,
            polled,
            has_looked: false,
            broken: false,
            refused: Vec::new(),
            zeroes: None,
            _file: file,
        })
    }

    /// Builds the submission entry of a call; its buffer bounds the bytes.
    fn entry(&mut self, call: FileCall, buf: Option<&mut Buffer>) -> squeue::Entry {
        let (base, capacity) = match buf {
            Some(buf) => (buf.as_mut_ptr(), buf.capacity()),
            None => (std::ptr::null_mut(), 0),
        };
        let run = |skip: u32, len: u32| {
            assert!(skip as usize + len as usize <= capacity, "a call runs past its buffer");
            base.wrapping_add(skip as usize)
        };
        match call {
            FileCall::Read { offset, skip, len } => {
                opcode::Read::new(FILE, run(skip, len), len).offset(offset).build()
            }
            FileCall::Write { offset, skip, len, dsync } => {
                opcode::Write::new(FILE, run(skip, len).cast_const(), len)
                    .offset(offset)
                    .rw_flags(if dsync { libc::RWF_DSYNC } else { 0 })
                    .build()
            }
            FileCall::WriteZeroes { offset, len } => {
                assert!(u64::from(len) <= ZERO_WRITE, "a write of zeroes runs past the zeroes");
                let zeroes =
                    self.zeroes.as_ref().map_or(std::ptr::null(), |z| z.as_ptr().cast_const());
                opcode::Write::new(FILE, zeroes, len).offset(offset).build()
            }
            FileCall::Zero { offset, len, free } => {
                let how =
                    if free { libc::FALLOC_FL_PUNCH_HOLE } else { libc::FALLOC_FL_ZERO_RANGE };
                opcode::Fallocate::new(FILE, len)
                    .offset(offset)
                    .mode(how | libc::FALLOC_FL_KEEP_SIZE)
                    .build()
            }
            FileCall::Sync => opcode::Fsync::new(FILE).flags(FsyncFlags::DATASYNC).build(),
        }
    }

    /// Starts issued calls; in polled mode, also polls for results.
    fn enter(&mut self) {
        let entered = if self.broken { self.look(0) } else { self.ring.submit().map(drop) };
        match entered {
            Ok(()) => {}
            // Temporarily out of memory. Sleeping on it would mean sleeping permanently.
            Err(error) if is_transient(&error) => std::thread::yield_now(),
            Err(error) if !self.broken => {
                tracing::error!(%error, "io_uring failed; the queue accepts no further operations");
                self.broken = true;
                self.take_back();
            }
            Err(_) => {}
        }
    }

    /// Makes the kernel write at least `least` results, without taking anything from the submission
    /// ring.
    fn look(&self, least: u32) -> io::Result<()> {
        const GETEVENTS: u32 = 1;
        let nothing = None::<&libc::sigset_t>;
        // SAFETY: nothing is submitted, so the kernel receives no address; there is no argument.
        unsafe { self.ring.submitter().enter(0, least, GETEVENTS, nothing) }.map(drop)
    }

    /// Fails the calls that the kernel has not taken and, as the ring is broken, never will.
    fn take_back(&mut self) {
        let untaken = self.ring.submission().len() as u64;
        let first = self.issued.saturating_sub(untaken);
        for (slot, call) in self.calls.iter_mut().enumerate() {
            if let Some(InKernel { buf, .. }) = call.take_if(|call| call.number >= first) {
                self.out -= 1;
                self.refused.push(FileResult { slot, result: -libc::EIO, buf });
            }
        }
    }

    /// Returns true if a system call is necessary: for entries to submit, or for results the kernel
    /// only writes on request.
    fn needs_enter(&mut self) -> bool {
        let sq = self.ring.submission();
        !sq.is_empty() || sq.taskrun() || sq.cq_overflow()
    }

    /// Cancels calls where possible and waits for every result. `Err`: calls are still in the
    /// kernel.
    fn drain(&mut self) -> io::Result<()> {
        let mut answers = Vec::new();
        while self.out > 0 {
            self.submit();
            // Not every kernel or call supports cancelling; the result then arrives without it.
            let _ = self.ring.submitter().register_sync_cancel(None, CancelBuilder::any());
            self.reap(&mut answers);
            answers.clear();
            if self.out > 0 {
                self.wait()?;
                self.reap(&mut answers);
                answers.clear();
            }
        }
        Ok(())
    }

    /// Sleeps until there is a result.
    fn wait(&self) -> io::Result<()> {
        loop {
            match self.look(1) {
                Err(error) if is_transient(&error) => std::thread::yield_now(),
                waited => return waited,
            }
        }
    }

    /// Replaces the ring's descriptor by another file: the kernel keeps its calls but is out of
    /// reach.
    #[cfg(test)]
    pub(super) fn sever(&self) {
        let null = std::fs::File::open("/dev/null").unwrap();
        // SAFETY: the descriptor stays open and the ring still closes it; its memory is mapped
        // separately.
        let at = unsafe { libc::dup2(null.as_raw_fd(), self.ring.as_raw_fd()) };
        assert_eq!(at, self.ring.as_raw_fd());
    }

    /// Returns the address range of the zeroes.
    #[cfg(test)]
    pub(super) fn zeroes(&self) -> Option<std::ops::Range<usize>> {
        let at = self.zeroes.as_ref()?.as_ptr().addr();
        Some(at..at + usize::try_from(ZERO_WRITE).unwrap())
    }
}

impl FileBackend for Ring {
    fn issue(&mut self, slot: usize, call: FileCall, mut buf: Option<Buffer>) {
        assert!(self.calls[slot].is_none(), "slot {slot} has a call out");
        if self.broken {
            self.refused.push(FileResult { slot, result: -libc::EIO, buf });
            return;
        }
        if matches!(call, FileCall::WriteZeroes { .. }) && self.zeroes.is_none() {
            let len = usize::try_from(ZERO_WRITE).unwrap_or(usize::MAX);
            // If this fails, the write faults and completes with EFAULT.
            self.zeroes = Mapping::zeroes(len).ok();
        }
        let entry = self.entry(call, buf.as_mut()).user_data(slot as u64);
        self.calls[slot] = Some(InKernel { buf, number: self.issued });
        self.issued += 1;
        self.out += 1;
        // SAFETY: the entry names a run of a buffer (bounded by `entry`), or of the ring's zeroes.
        // `self.calls` owns the buffer until the kernel has completed the call; `drop` awaits every
        // result, or abandons that memory. The file is registered with the ring.
        let pushed = unsafe { self.ring.submission().push(&entry) };
        assert!(pushed.is_ok(), "the submission ring has an entry for every slot");
    }

    fn submit(&mut self) {
        while !self.broken && self.needs_enter() {
            self.has_looked = true;
            self.enter();
        }
    }

    fn reap(&mut self, answers: &mut Vec<FileResult>) {
        if self.polled && self.out > 0 && !std::mem::take(&mut self.has_looked) {
            self.enter();
        }
        answers.append(&mut self.refused);
        for entry in self.ring.completion() {
            let slot = usize::try_from(entry.user_data()).unwrap_or(usize::MAX);
            let Some(call) = self.calls.get_mut(slot).and_then(Option::take) else {
                debug_assert!(false, "an answer for slot {slot}, which has no call out");
                continue;
            };
            self.out -= 1;
            answers.push(FileResult { slot, result: entry.result(), buf: call.buf });
        }
    }

    fn event_fd(&self) -> Option<BorrowedFd<'_>> {
        if self.polled {
            return None;
        }
        // SAFETY: the descriptor belongs to the ring and is open as long as `self` is borrowed.
        Some(unsafe { BorrowedFd::borrow_raw(self.ring.as_raw_fd()) })
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        if let Err(error) = self.drain() {
            tracing::error!(
                %error, calls = self.out,
                "io_uring does not respond; buffers abandoned"
            );
            for call in &mut self.calls {
                // The kernel may still write there: never lease that memory again.
                std::mem::forget(call.take());
            }
            // The kernel may still write from there to the file: that address range must never be
            // reused.
            std::mem::forget(self.zeroes.take());
        }
    }
}

impl fmt::Debug for Ring {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ring").field("out", &self.out).finish_non_exhaustive()
    }
}

/// Checks whether this process may use io_uring at all.
pub(super) fn probe() -> io::Result<()> {
    build(1, false).map(drop)
}

/// Makes the kernel start its worker thread (io-wq) for blocking io_uring calls of the calling
/// thread.
///
/// The kernel keeps the first worker during the lifetime of the calling thread. Without any worker
/// it cancels a call that needs one: a thread limit that is reached later would fail writes and
/// flushes. Opening a file calls this function. A reactor calls it at start, so files that are
/// opened later need no new thread.
///
/// # Errors
/// ECANCELED if no thread can be started, or the system's error if io_uring is not available.
pub fn start_kernel_worker() -> io::Result<()> {
    let mut ring = build(1, false)?;
    let aside = opcode::Nop::new().build().flags(squeue::Flags::ASYNC);
    // SAFETY: the call names no memory.
    let pushed = unsafe { ring.submission().push(&aside) };
    assert!(pushed.is_ok(), "a new ring has an entry");
    while let Err(error) = ring.submit_and_wait(1) {
        if !is_transient(&error) {
            return Err(error);
        }
    }
    match ring.completion().next().map(|answer| answer.result()) {
        Some(result) if result < 0 => Err(io::Error::from_raw_os_error(-result)),
        _ => Ok(()),
    }
}

/// Creates a ring with the best flags of this kernel: results are written when this thread enters
/// the kernel anyway, not by an interrupt.
///
/// `DEFER_TASKRUN` is not used: on Linux 6.18 a result did not wake a thread that slept in
/// `epoll_wait` on the ring.
fn build(entries: u32, polled: bool) -> io::Result<IoUring> {
    let plain = || {
        let mut builder = IoUring::builder();
        builder.dontfork();
        if polled {
            builder.setup_iopoll();
        }
        builder
    };
    let mut builder = plain();
    builder.setup_coop_taskrun().setup_taskrun_flag().setup_single_issuer();
    builder.build(entries).or_else(|error| match error.raw_os_error() {
        Some(libc::EINVAL) => plain().build(entries),
        _ => Err(error),
    })
}

/// Submission errors that are temporary.
fn is_transient(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EINTR | libc::EAGAIN | libc::EBUSY))
}
