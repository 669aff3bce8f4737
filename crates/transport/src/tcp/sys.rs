//! The one place of this fabric with `unsafe`: what is sent lies in memory that only a
//! [`Payload`]'s owner vouches for, as addresses and lengths.

use std::io;
use std::marker::PhantomData;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd};

use nvmeof_core::dma::Payload;

/// Pieces of one vectored send, well below the kernel's limit of 1024.
const MAX_PIECES: usize = 512;

/// Pieces of memory to send in one system call, in order.
///
/// Invariant: `pieces[..len]` are initialised, and each names memory that is readable for `'a`.
pub(super) struct Gather<'a> {
    pieces: [MaybeUninit<libc::iovec>; MAX_PIECES],
    len: usize,
    bytes: usize,
    lives: PhantomData<&'a Payload>,
}

impl<'a> Gather<'a> {
    pub(super) fn new() -> Self {
        Self {
            pieces: [const { MaybeUninit::uninit() }; MAX_PIECES],
            len: 0,
            bytes: 0,
            lives: PhantomData,
        }
    }

    /// Bytes gathered.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Adds bytes of ours; `false` (and nothing is added) if there is no room.
    pub(super) fn add_slice(&mut self, bytes: &'a [u8]) -> bool {
        bytes.is_empty() || self.add(bytes.as_ptr(), bytes.len())
    }

    /// Adds a payload from its byte `skip` on; `false` if not all of it had room.
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

    /// Sends without blocking; `more` keeps the tail back for what is sent next. Bytes taken.
    pub(super) fn send(&mut self, socket: BorrowedFd<'_>, more: bool) -> io::Result<usize> {
        // SAFETY: all-zero is a valid msghdr: null pointers with zero lengths.
        let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
        message.msg_iov = self.pieces.as_mut_ptr().cast();
        message.msg_iovlen = self.len as _;
        let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL | if more { libc::MSG_MORE } else { 0 };
        // SAFETY: `msg_iov` has `len` initialised entries, each naming memory readable for `'a`,
        // which outlives `self` (the type's invariant: borrowed slices, and pieces of borrowed
        // payloads, whose owner keeps them readable). The kernel only reads them, so it does not
        // matter that a device may show the same memory to others.
        let sent = unsafe { libc::sendmsg(socket.as_raw_fd(), &raw const message, flags) };
        usize::try_from(sent).map_err(|_| io::Error::last_os_error())
    }
}

/// Bytes in the socket's send queue that have not been sent yet (`SIOCOUTQNSD`); nothing where the
/// socket is of a kind that does not say.
pub(super) fn unsent(socket: BorrowedFd<'_>) -> u64 {
    /// From linux/sockios.h; the `libc` crate has no name for it.
    const SIOCOUTQNSD: libc::Ioctl = 0x894b;
    let mut bytes: libc::c_int = 0;
    // SAFETY: SIOCOUTQNSD writes one int, to which the pointer is good for the length of the call.
    let outcome = unsafe { libc::ioctl(socket.as_raw_fd(), SIOCOUTQNSD, &raw mut bytes) };
    if outcome == 0 { u64::try_from(bytes).unwrap_or(0) } else { 0 }
}

/// Nanoseconds, to see what a send cost.
pub(super) fn clock() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    time.tv_sec.unsigned_abs().wrapping_mul(1_000_000_000).wrapping_add(time.tv_nsec.unsigned_abs())
}

/// Sends `len` bytes of `file` from `offset` without copying them, without blocking. Bytes taken.
pub(super) fn send_file(
    socket: BorrowedFd<'_>,
    file: BorrowedFd<'_>,
    offset: u64,
    len: usize,
) -> io::Result<usize> {
    let mut offset = offset;
    Ok(rustix::fs::sendfile(socket, file, Some(&mut offset), len)?)
}
