//! The only module of this fabric with `unsafe`.
//!
//! Sends use addresses and lengths of memory that only the owner of a [`Payload`] keeps valid.

use std::io;
use std::marker::PhantomData;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd};

use nvmeof_core::dma::Payload;

/// Maximum memory ranges of one vectored send, well below the kernel's limit of 1024.
const MAX_PIECES: usize = 512;

/// Memory ranges to send in one system call, in order.
///
/// Invariant: `pieces[..len]` are initialized, and each refers to memory that is readable for `'a`.
pub(super) struct IoSlices<'a> {
    pieces: [MaybeUninit<libc::iovec>; MAX_PIECES],
    len: usize,
    bytes: usize,
    lives: PhantomData<&'a Payload>,
}

impl<'a> IoSlices<'a> {
    pub(super) fn new() -> Self {
        Self {
            pieces: [const { MaybeUninit::uninit() }; MAX_PIECES],
            len: 0,
            bytes: 0,
            lives: PhantomData,
        }
    }

    /// Returns the number of bytes gathered.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Adds bytes of the target; returns `false`, and adds nothing, if there is no room.
    pub(super) fn add_slice(&mut self, bytes: &'a [u8]) -> bool {
        bytes.is_empty() || self.add(bytes.as_ptr(), bytes.len())
    }

    /// Adds a payload from its byte `skip` on; returns `false` if not all of it had room.
    pub(super) fn add_payload(&mut self, payload: &'a Payload, skip: usize) -> bool {
        let mut skip = skip;
        let mut whole = true;
        payload.for_each_piece(|at, len| {
            let skipped = skip.min(len);
            skip -= skipped;
            if skipped < len && whole {
                whole = self.add(at.wrapping_add(skipped), len - skipped);
            }
        });
        whole
    }

    fn add(&mut self, at: *const u8, len: usize) -> bool {
        let Some(piece) = self.pieces.get_mut(self.len) else {
            return false;
        };
        piece.write(libc::iovec { iov_base: at.cast_mut().cast(), iov_len: len });
        self.len += 1;
        self.bytes += len;
        true
    }

    /// Sends without blocking, and returns the bytes taken; `more` delays the tail until the next
    /// send.
    pub(super) fn send(&mut self, socket: BorrowedFd<'_>, more: bool) -> io::Result<usize> {
        // SAFETY: all-zero is a valid msghdr: null pointers with zero lengths. It has padding on
        // some targets, which a literal cannot name.
        let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
        message.msg_iov = self.pieces.as_mut_ptr().cast();
        message.msg_iovlen = self.len as _;
        let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL | if more { libc::MSG_MORE } else { 0 };
        // SAFETY: `msg_iov` has `len` initialized entries, each of memory readable for `'a`, which
        // outlives `self`. That is the type's invariant: entries are borrowed slices and pieces of
        // borrowed payloads, whose owner keeps them readable. The kernel only reads them, so it
        // does not matter that a device may expose the same memory to others. The safe form
        // of rustix takes slices, and the pieces of a payload are addresses.
        let sent = unsafe { libc::sendmsg(socket.as_raw_fd(), &raw const message, flags) };
        usize::try_from(sent).map_err(|_| io::Error::last_os_error())
    }
}

/// Returns the bytes in the socket's send queue that have not been sent yet (`SIOCOUTQNSD`).
///
/// Returns 0 for a kind of socket that does not report them.
pub(super) fn unsent(socket: BorrowedFd<'_>) -> u64 {
    /// From linux/sockios.h; the `libc` crate does not define it.
    const SIOCOUTQNSD: libc::Ioctl = 0x894b;
    let mut bytes: libc::c_int = 0;
    // SAFETY: SIOCOUTQNSD writes one int, and the pointer is valid for the duration of the call.
    // No crate in use has a safe form of this request.
    let outcome = unsafe { libc::ioctl(socket.as_raw_fd(), SIOCOUTQNSD, &raw mut bytes) };
    if outcome == 0 { u64::try_from(bytes).unwrap_or(0) } else { 0 }
}

/// Returns monotonic nanoseconds, to measure the cost of a send.
pub(super) fn clock() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    time.tv_sec.unsigned_abs().wrapping_mul(1_000_000_000).wrapping_add(time.tv_nsec.unsigned_abs())
}

/// Sends `len` bytes of `file` from `offset` without a copy and without blocking; returns the bytes
/// taken.
pub(super) fn send_file(
    socket: BorrowedFd<'_>,
    file: BorrowedFd<'_>,
    offset: u64,
    len: usize,
) -> io::Result<usize> {
    let mut offset = offset;
    Ok(rustix::fs::sendfile(socket, file, Some(&mut offset), len)?)
}
