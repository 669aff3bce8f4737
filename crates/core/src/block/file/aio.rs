//! Linux AIO (`io_submit`, libaio's calls) as a [`FileBackend`]. Reads only.
//!
//! ```text
//!   issue --> waiting --io_submit--> kernel --event--> reap: the buffer is released
//!                |           |          '--dropped: every event is awaited, then released
//!                |           '--takes a part: the rest stays waiting, in order
//!                '--the kernel refuses the first: that one fails, the next is tried
//! ```
//!
//! The kernel takes no more while its ring of events is full (`EAGAIN`). Reads then wait here until
//! events have been reaped. The event descriptor is readable when there are events.

use std::collections::VecDeque;
use std::fmt::Debug;
use std::io;
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, OwnedFd};

use rustix::event::{EventfdFlags, eventfd};
use vmm_sys_util::aio::{IOCB_CMD_PREAD, IOCB_FLAG_RESFD, IoContext, IoControlBlock, IoEvent};

use super::backend::{FileBackend, FileCall, FileResult};
use crate::dma::Buffer;

/// Maximum events that one call reaps.
const EVENTS: usize = 256;

/// The calls of a context; tests script them.
pub(super) trait AioCalls: Debug {
    /// Passes blocks to the kernel; returns how many of them, from the first, it took.
    fn submit(&self, blocks: &[&mut IoControlBlock]) -> io::Result<usize>;

    /// Takes events. Waits until there are `least`.
    fn events(&self, least: usize, events: &mut [IoEvent]) -> io::Result<usize>;
}

impl AioCalls for IoContext {
    fn submit(&self, blocks: &[&mut IoControlBlock]) -> io::Result<usize> {
        Self::submit(self, blocks)
    }

    fn events(&self, least: usize, events: &mut [IoEvent]) -> io::Result<usize> {
        let mut no_time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        let timeout = if least == 0 { Some(&mut no_time) } else { None };
        self.get_events(libc::c_long::try_from(least).unwrap_or(1), events, timeout)
    }
}

/// A context of Linux AIO over a file.
#[derive(Debug)]
pub(super) struct Aio<C: AioCalls = IoContext> {
    context: C,
    /// By slot: `Some` from issue to result. Owns the memory that the kernel writes to.
    calls: Box<[Option<Buffer>]>,
    /// Issued, and not with the kernel yet.
    waiting: VecDeque<IoControlBlock>,
    /// Calls that the kernel has.
    in_kernel: usize,
    refused: Vec<FileResult>,
    event: OwnedFd,
    file: OwnedFd,
}

impl Aio {
    /// Creates a context for calls in `slots` slots.
    pub(super) fn new(file: OwnedFd, slots: usize) -> io::Result<Self> {
        let slots_u32 = u32::try_from(slots).map_err(|_| io::ErrorKind::InvalidInput)?;
        Self::with(IoContext::new(slots_u32)?, file, slots)
    }
}

impl<C: AioCalls> Aio<C> {
    pub(super) fn with(context: C, file: OwnedFd, slots: usize) -> io::Result<Self> {
        Ok(Self {
            context,
            calls: (0..slots).map(|_| None).collect(),
            waiting: VecDeque::with_capacity(slots),
            in_kernel: 0,
            refused: Vec::new(),
            event: eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?,
            file,
        })
    }

    /// Fails the first waiting call.
    fn refuse_first(&mut self, errno: i32) {
        let Some(block) = self.waiting.pop_front() else { return };
        let slot = slot_of(block.aio_data);
        let buf = self.calls.get_mut(slot).and_then(Option::take);
        self.refused.push(FileResult { slot, result: -errno, buf });
    }

    /// Takes the available events, at least `least`.
    fn take_events(&mut self, least: usize, answers: &mut Vec<FileResult>) -> io::Result<()> {
        let mut events = [IoEvent::default(); EVENTS];
        let mut least = least;
        while self.in_kernel > 0 {
            let count = match self.context.events(least, &mut events) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                count => count?,
            };
            for event in &events[..count] {
                let slot = slot_of(event.data);
                let Some(buf) = self.calls.get_mut(slot).and_then(Option::take) else {
                    debug_assert!(false, "an event for slot {slot}, which has no call out");
                    continue;
                };
                self.in_kernel -= 1;
                // A read returns at most the 32-bit length of its call.
                let result = i32::try_from(event.res).unwrap_or(-libc::EIO);
                answers.push(FileResult { slot, result, buf: Some(buf) });
            }
            least = 0;
            if count < events.len() {
                break;
            }
        }
        Ok(())
    }

    /// Makes the event descriptor readable, because no event of the kernel will.
    fn wake(&self) {
        // It fails only if the descriptor is readable already.
        let _ = rustix::io::write(&self.event, &1u64.to_ne_bytes());
    }

    fn block(&self, slot: usize, offset: u64, at: *mut u8, len: u32) -> Option<IoControlBlock> {
        let raw = |fd: &OwnedFd| u32::try_from(fd.as_raw_fd()).ok();
        Some(IoControlBlock {
            aio_data: slot as u64,
            aio_lio_opcode: u16::try_from(IOCB_CMD_PREAD).ok()?,
            aio_fildes: raw(&self.file)?,
            aio_buf: at.expose_provenance() as u64,
            aio_nbytes: len.into(),
            aio_offset: i64::try_from(offset).ok()?,
            aio_flags: IOCB_FLAG_RESFD,
            aio_resfd: raw(&self.event)?,
            ..IoControlBlock::default()
        })
    }
}

impl<C: AioCalls> FileBackend for Aio<C> {
    fn issue(&mut self, slot: usize, call: FileCall, buf: Option<Buffer>) {
        assert!(self.calls[slot].is_none(), "slot {slot} has a call out");
        let refuse = |errno: i32, buf| FileResult { slot, result: -errno, buf };
        match (call, buf) {
            (FileCall::Read { offset, skip, len }, Some(mut buf)) => {
                let fits = skip as usize + len as usize <= buf.capacity();
                assert!(fits, "a call runs past its buffer");
                let at = buf.as_mut_ptr().wrapping_add(skip as usize);
                match self.block(slot, offset, at, len) {
                    Some(block) => {
                        self.waiting.push_back(block);
                        self.calls[slot] = Some(buf);
                    }
                    None => self.refused.push(refuse(libc::EINVAL, Some(buf))),
                }
            }
            // Nothing is ever written.
            (FileCall::Sync, buf) => self.refused.push(refuse(0, buf)),
            (_, buf) => self.refused.push(refuse(libc::EOPNOTSUPP, buf)),
        }
    }

    fn submit(&mut self) {
        while !self.waiting.is_empty() {
            // The kernel copies the blocks.
            let blocks: Vec<&mut IoControlBlock> = self.waiting.iter_mut().collect();
            match self.context.submit(&blocks) {
                Ok(0) => break,
                Ok(count) => {
                    self.in_kernel += count;
                    self.waiting.drain(..count);
                }
                Err(error) => match error.raw_os_error() {
                    Some(libc::EAGAIN | libc::EINTR) => break,
                    errno => self.refuse_first(errno.unwrap_or(libc::EIO)),
                },
            }
        }
        if !self.refused.is_empty() || self.in_kernel == 0 && !self.waiting.is_empty() {
            self.wake();
        }
    }

    fn reap(&mut self, answers: &mut Vec<FileResult>) {
        answers.append(&mut self.refused);
        // Before the events: one that arrives later makes it readable again.
        let _ = rustix::io::read(&self.event, &mut [0; 8]);
        if let Err(error) = self.take_events(0, answers) {
            tracing::error!(%error, "io_getevents failed");
        }
        if self.in_kernel == 0 && !self.waiting.is_empty() {
            self.wake();
        }
    }

    fn event_fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.event.as_fd())
    }
}

impl<C: AioCalls> Drop for Aio<C> {
    fn drop(&mut self) {
        // Calls that the kernel does not have release their buffers.
        for block in std::mem::take(&mut self.waiting) {
            self.calls[slot_of(block.aio_data)] = None;
        }
        let mut answers = Vec::new();
        while self.in_kernel > 0 {
            if let Err(error) = self.take_events(1, &mut answers) {
                tracing::error!(%error, calls = self.in_kernel, "AIO: buffers abandoned");
                // The kernel may still write there: never lease that memory again.
                self.calls.iter_mut().for_each(|call| std::mem::forget(call.take()));
                return;
            }
        }
    }
}

fn slot_of(data: u64) -> usize {
    usize::try_from(data).unwrap_or(usize::MAX)
}
