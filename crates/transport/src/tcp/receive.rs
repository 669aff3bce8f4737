//! Bytes from the socket to the parser.
//!
//! All queues of a reactor read into one window that stays in the cache; a queue keeps only what the
//! parser could not use yet, which is less than a header unless it is paused. Once a header is known,
//! its data is read straight to its buffer, and what follows it to the window, in one system call.

use std::cell::Cell;
use std::io::{self, IoSliceMut};
use std::os::fd::BorrowedFd;

use rustix::net::RecvFlags;

use super::pdu_in::{Inbound, Intake, Stop};
use super::terminate::Fault;

/// Bytes of the window: a turn's worth of commands with 4 KiB of in-capsule data.
const WINDOW: usize = 64 << 10;
/// Bytes of the window used while large data is awaited: what lands here is copied once more.
const BULK_WINDOW: usize = 4 << 10;
/// Data that is large in this sense, in bytes.
const BULK: usize = 16 << 10;
/// Bytes read in one call of `receive`, after which other queues have their turn.
pub(super) const BUDGET: usize = 256 << 10;

thread_local! {
    static SCRATCH: Cell<Option<Box<[u8]>>> = const { Cell::new(None) };
}

/// Bytes a queue has read and not used.
#[derive(Debug, Default)]
pub(super) struct Receiver {
    leftover: Vec<u8>,
    /// `leftover` may hold whole PDUs, because parsing was stopped.
    parse_first: bool,
}

/// How reading ended.
#[derive(Debug)]
pub(super) enum Outcome {
    /// Nothing more is there.
    Drained,
    /// There may be more.
    More,
    /// The host sent all it will.
    End,
    Stop(Stop),
}

/// Why reading failed.
#[derive(Debug)]
pub(super) enum Failure {
    Io(io::Error),
    Fault(Fault),
}

impl Receiver {
    /// With bytes that another one left.
    pub(super) fn with_leftover(leftover: Vec<u8>) -> Self {
        Self { parse_first: !leftover.is_empty(), leftover }
    }

    /// What was read and not used.
    pub(super) fn into_leftover(self) -> Vec<u8> {
        self.leftover
    }

    /// Part of a header is there, and the rest is to come.
    pub(super) fn has_part_of_header(&self) -> bool {
        !self.leftover.is_empty() && !self.parse_first
    }

    /// Reads and parses until nothing is there, or the budget is spent; adds to `read` what came.
    ///
    /// A read that gave less than it could may still have the end of the stream behind it, of which
    /// an edge-triggered wait would say nothing: only a read that gave nothing is `Drained`.
    pub(super) fn run(
        &mut self,
        socket: BorrowedFd<'_>,
        inbound: &mut Inbound,
        intake: &mut Intake<'_>,
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
        inbound: &mut Inbound,
        intake: &mut Intake<'_>,
        read: &mut usize,
    ) -> Result<Outcome, Failure> {
        if std::mem::take(&mut self.parse_first) {
            let kept = std::mem::take(&mut self.leftover);
            if let Some(stop) = self.parse(&kept, inbound, intake)? {
                return Ok(Outcome::Stop(stop));
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
                return Ok(Outcome::Stop(stop));
            }
            if len < wanted || *read >= BUDGET {
                return Ok(Outcome::More);
            }
        }
    }

    /// Parses and keeps what could not be used.
    fn parse(
        &mut self,
        input: &[u8],
        inbound: &mut Inbound,
        intake: &mut Intake<'_>,
    ) -> Result<Option<Stop>, Failure> {
        let (done, stop) = inbound.parse(input, intake).map_err(Failure::Fault)?;
        self.leftover.clear();
        self.leftover.extend_from_slice(&input[done..]);
        self.parse_first = stop.is_some();
        Ok(stop)
    }
}

impl Intake<'_> {
    /// Bytes to read beyond what belongs in a buffer already.
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

/// How throwing away ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Discarded {
    /// Nothing more is there.
    Drained,
    /// There may be more.
    More,
    /// The host has closed.
    End,
}

/// Reads and throws away.
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
