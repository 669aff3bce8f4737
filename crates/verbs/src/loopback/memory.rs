//! The only place where the provider touches bytes of others.
//!
//! Every address that a work request names is looked up in registered memory first, so what is touched is
//! mapped; that nobody else uses it meanwhile is what who posts promises
//! ([`Endpoint::post_receive`](crate::Endpoint::post_receive),
//! [`Endpoint::post_send`](crate::Endpoint::post_send)).

use std::ptr;

use crate::work::Pieces;

/// Registered bytes.
#[derive(Debug)]
pub(super) struct Span {
    base: *mut u8,
    len: usize,
}

// SAFETY: a span is an address and a length; the bytes behind it belong to who registered them, who promised
// with `Device::register` that they stay mapped for every thread.
unsafe impl Send for Span {}

impl Span {
    /// # Safety
    /// `len` bytes at `base` stay mapped until the span is dropped.
    pub(super) unsafe fn new(base: *mut u8, len: usize) -> Self {
        Self { base, len }
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Appends `length` bytes at `address`; false, and nothing is appended, if they are not inside.
    pub(super) fn copy_out(&self, address: u64, length: usize, into: &mut Vec<u8>) -> bool {
        let Some(offset) = self.offset(address, length) else { return false };
        let start = into.len();
        into.resize(start + length, 0);
        // SAFETY: `offset + length` is within the span, which `new` was promised to be mapped; nobody writes
        // these bytes now: who posted the work request, or let the peer read, keeps them still. The
        // destination was just made long enough and is ours.
        unsafe { ptr::copy(self.base.add(offset), into[start..].as_mut_ptr(), length) };
        true
    }

    /// Writes `from` at `address`; false, and nothing is written, if that is not inside.
    pub(super) fn copy_in(&self, address: u64, from: &[u8]) -> bool {
        let Some(offset) = self.offset(address, from.len()) else { return false };
        // SAFETY: as in `copy_out`, and nobody reads these bytes now: who posted the receive or READ, or let
        // the peer write, does not until it is told that it ended.
        unsafe { ptr::copy(from.as_ptr(), self.base.add(offset), from.len()) };
        true
    }

    fn offset(&self, address: u64, length: usize) -> Option<usize> {
        let offset = usize::try_from(address).ok()?.checked_sub(self.base.addr())?;
        (offset.checked_add(length)? <= self.len).then_some(offset)
    }
}

/// The bytes of inline pieces, which need no registration.
///
/// # Safety
/// The pieces are mapped and nobody writes to them during the call.
pub(super) unsafe fn copy_inline(pieces: &Pieces) -> Vec<u8> {
    let mut bytes = Vec::new();
    for piece in pieces.as_slice() {
        let (Ok(address), Ok(length)) =
            (usize::try_from(piece.address), usize::try_from(piece.length))
        else {
            continue;
        };
        let start = bytes.len();
        bytes.resize(start + length, 0);
        let from = ptr::with_exposed_provenance::<u8>(address);
        // SAFETY: the caller promises that the piece may be read; the destination was just made long enough.
        unsafe { ptr::copy(from, bytes[start..].as_mut_ptr(), length) };
    }
    bytes
}
