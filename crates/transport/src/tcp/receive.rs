//! Bytes from the socket to the parser.
//!
//! All queues of a reactor read into one window that stays in the cache. A queue keeps only the
//! bytes that the parser could not use yet: less than a header, unless the queue is paused. After a
//! header, one system call reads its data directly into its buffer, and the bytes that follow into
//! the window.

use std::cell::Cell;
use std::io::{self, IoSliceMut};
use std::os::fd::BorrowedFd;

use rustix::net::RecvFlags;

use super::pdu_reader::{ParseContext, ParseStop, PduReader};
use super::terminate::FatalPduError;

/// Bytes of the window: enough for a turn's commands with 4 KiB of in-capsule data.
const WINDOW: usize = 64 << 10;
/// Bytes of the window while large data is awaited: bytes in the window are copied once more.
const BULK_WINDOW: usize = 4 << 10;
/// Minimum bytes of large data.
const BULK: usize = 16 << 10;
/// Maximum bytes that one call of `receive` reads before other queues are served.
pub(super) const BUDGET: usize = 256 << 10;

thread_local! {
    static SCRATCH: Cell<Option<Box<[u8]>>> = const { Cell::new(None) };
}

/// Bytes that a queue has read and not used.
#[derive(Debug, Default)]
pub(super) struct Receiver {
    leftover: Vec<u8>,
    /// `leftover` may hold whole PDUs, because parsing was stopped.
    parse_first: bool,
    /// The host has closed its sending side: the stream is read to its end.
    reads_to_end: bool,
}

/// Result of a read.
#[derive(Debug)]
pub(super) enum Outcome {
    /// No bytes are left.
    Drained,
    /// More bytes may be available.
    More,
    /// The host has closed its sending side.
    End,
    ParseStop(ParseStop),
}

/// Failure of a read.
#[derive(Debug)]
pub(super) enum Failure {
    Io(io::Error),
    Fault(FatalPduError),
}

impl Receiver {
    /// Creates a receiver with unused bytes of another one.
    pub(super) fn with_leftover(leftover: Vec<u8>) -> Self {
        Self { parse_first: !leftover.is_empty(), leftover, reads_to_end: false }
    }

    /// Returns the bytes that were read and not used.
    pub(super) fn into_leftover(self) -> Vec<u8> {
        self.leftover
    }

    /// Returns true if part of a header has arrived.
    pub(super) fn has_part_of_header(&self) -> bool {
        !self.leftover.is_empty() && !self.parse_first
    }

    /// Makes each later [`run`](Self::run) read to the end of the stream.
    pub(super) fn read_to_end(&mut self) {
        self.reads_to_end = true;
    }

    /// Reads and parses until no bytes are left or the budget is spent; adds the bytes read to
    /// `read`.
    ///
    /// A short read has taken all bytes. Whatever arrives later, the end of the stream included, is
    /// a new edge, so no second read asks for more. Once the end was reported, no edge follows, and
    /// reads continue until they find it.
    pub(super) fn run(
        &mut self,
        socket: BorrowedFd<'_>,
        inbound: &mut PduReader,
        intake: &mut ParseContext<'_>,
        read: &mut usize,
    ) -> Result<Outcome, Failure> {
        let mut window = take_window();
        let outcome = self.run_in(&mut window, socket, inbound, intake, read);
        SCRATCH.set(Some(window));
        outcome
    }

    fn run_in(
        &mut self,
        window: &mut [u8],
        socket: BorrowedFd<'_>,
        inbound: &mut PduReader,
        intake: &mut ParseContext<'_>,
        read: &mut usize,
    ) -> Result<Outcome, Failure> {
        if std::mem::take(&mut self.parse_first) {
            let kept = std::mem::take(&mut self.leftover);
            if let Some(stop) = self.parse(&kept, inbound, intake)? {
                return Ok(Outcome::ParseStop(stop));
            }
        }
        loop {
            let have = self.leftover.len();
            let end = window.len().min(have + intake.window());
            window[..have].copy_from_slice(&self.leftover);
            let direct = inbound.direct(intake.transfers);
            let direct_len = direct.len();
            let space = &mut window[have..end];
            let wanted = direct_len + space.len();
            let len = match read_into(socket, direct, space) {
                Ok(0) => return Ok(Outcome::End),
                Ok(len) => len,
                Err(rustix::io::Errno::AGAIN) => return Ok(Outcome::Drained),
                Err(rustix::io::Errno::INTR) => continue,
                Err(errno) => return Err(Failure::Io(errno.into())),
            };
            *read += len;
            let placed = len.min(direct_len);
            if placed > 0 {
                inbound.filled(placed, intake);
            }
            let input = &window[..have + len - placed];
            if let Some(stop) = self.parse(input, inbound, intake)? {
                return Ok(Outcome::ParseStop(stop));
            }
            if len < wanted && !self.reads_to_end {
                return Ok(Outcome::Drained);
            }
            if len < wanted || *read >= BUDGET {
                return Ok(Outcome::More);
            }
        }
    }

    /// Parses `input`, and keeps the bytes that could not be used.
    fn parse(
        &mut self,
        input: &[u8],
        inbound: &mut PduReader,
        intake: &mut ParseContext<'_>,
    ) -> Result<Option<ParseStop>, Failure> {
        let (done, stop) = inbound.parse(input, intake).map_err(Failure::Fault)?;
        self.leftover.clear();
        self.leftover.extend_from_slice(&input[done..]);
        self.parse_first = stop.is_some();
        Ok(stop)
    }
}

impl ParseContext<'_> {
    /// Returns the bytes to read in addition to those that belong directly in a buffer.
    fn window(&self) -> usize {
        if self.transfers.mean_awaited() >= BULK { BULK_WINDOW } else { WINDOW }
    }
}

fn read_into(
    socket: BorrowedFd<'_>,
    direct: &mut [u8],
    window: &mut [u8],
) -> rustix::io::Result<usize> {
    if direct.is_empty() {
        return rustix::net::recv(socket, window, RecvFlags::DONTWAIT).map(|(len, _)| len);
    }
    rustix::io::readv(socket, &mut [IoSliceMut::new(direct), IoSliceMut::new(window)])
}

/// Result of discarding input.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Discarded {
    /// No bytes are left.
    Drained,
    /// More bytes may be available.
    More,
    /// The host has closed.
    End,
}

/// Reads and discards bytes.
pub(super) fn discard(socket: BorrowedFd<'_>) -> Discarded {
    let mut window = take_window();
    let mut left = BUDGET;
    let end = loop {
        match rustix::net::recv(socket, &mut window[..], RecvFlags::DONTWAIT) {
            Ok((_, 0)) => break Discarded::End,
            Ok((_, len)) if len < left => left -= len,
            Ok(_) => break Discarded::More,
            Err(rustix::io::Errno::INTR) => {}
            Err(rustix::io::Errno::AGAIN) => break Discarded::Drained,
            Err(_) => break Discarded::End,
        }
    };
    SCRATCH.set(Some(window));
    end
}

fn take_window() -> Box<[u8]> {
    SCRATCH.take().unwrap_or_else(|| vec![0; WINDOW].into_boxed_slice())
}
