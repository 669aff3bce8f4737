//! The only module of the provider that accesses memory of its users.
//!
//! Every address of a work request is first looked up in registered memory, so only mapped bytes
//! are accessed. The poster promises exclusive use
//! ([`Endpoint::post_receive`](nvmeof_verbs::Endpoint::post_receive),
//! [`Endpoint::post_send`](nvmeof_verbs::Endpoint::post_send)).

use std::ptr;

use nvmeof_verbs::SgeList;

/// Registered bytes.
#[derive(Debug)]
pub(crate) struct Span {
    base: *mut u8,
    len: usize,
}

// SAFETY: a span is an address and a length. Its bytes belong to the caller of `Device::register`.
// That caller promised that they stay mapped for every thread.
unsafe impl Send for Span {}

impl Span {
    /// # Safety
    /// `len` bytes at `base` stay mapped until the span is dropped.
    pub(crate) unsafe fn new(base: *mut u8, len: usize) -> Self {
        Self { base, len }
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Appends `length` bytes at `address`. Returns false, and appends nothing, if they are outside
    /// the span.
    pub(crate) fn copy_out(&self, address: u64, length: usize, into: &mut Vec<u8>) -> bool {
        let Some(offset) = self.offset(address, length) else { return false };
        let start = into.len();
        into.resize(start + length, 0);
        // SAFETY: `offset + length` is within the span, which is mapped as `new` requires. Nothing
        // writes these bytes now: the poster of the work request, or the owner that allowed the
        // peer to read, leaves them unchanged. The destination was just resized and is ours.
        unsafe { ptr::copy(self.base.add(offset), into[start..].as_mut_ptr(), length) };
        true
    }

    /// Writes `from` at `address`. Returns false, and writes nothing, if that is outside the span.
    pub(crate) fn copy_in(&self, address: u64, from: &[u8]) -> bool {
        let Some(offset) = self.offset(address, from.len()) else { return false };
        // SAFETY: as in `copy_out`, and nothing reads these bytes now. The poster of the receive or
        // READ, or the owner that allowed the peer to write, reads them only after the completion.
        unsafe { ptr::copy(from.as_ptr(), self.base.add(offset), from.len()) };
        true
    }

    fn offset(&self, address: u64, length: usize) -> Option<usize> {
        let offset = usize::try_from(address).ok()?.checked_sub(self.base.addr())?;
        (offset.checked_add(length)? <= self.len).then_some(offset)
    }
}

/// Returns the bytes of inline pieces, which need no registration.
///
/// # Safety
/// The pieces are mapped and nothing writes to them during the call.
pub(crate) unsafe fn copy_inline(pieces: &SgeList) -> Vec<u8> {
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
        // SAFETY: the caller promises that the piece can be read; the destination was just resized.
        unsafe { ptr::copy(from, bytes[start..].as_mut_ptr(), length) };
    }
    bytes
}
