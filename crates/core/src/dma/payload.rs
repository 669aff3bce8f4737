//! Data to be sent to a host.

use super::buffer::Buffer;
use super::zero_copy::ZeroCopyData;

/// Data that a transport sends: a buffer that a device filled, or a zero-copy read.
#[derive(Debug)]
pub enum Payload {
    /// A filled buffer; all [`Buffer::len`] bytes are sent.
    Buffer(Buffer),
    /// A zero-copy read.
    ZeroCopy(ZeroCopyData),
}

impl Payload {
    /// Returns the bytes to send.
    pub fn len(&self) -> usize {
        match self {
            Self::Buffer(buffer) => buffer.len(),
            Self::ZeroCopy(data) => data.len(),
        }
    }

    /// Returns true if there is nothing to send.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Calls `piece` with the address and length of each run of bytes, in order. The addresses are
    /// valid for reads until the payload is dropped.
    pub fn for_each_piece(&self, mut piece: impl FnMut(*const u8, usize)) {
        match self {
            Self::Buffer(buffer) => piece(buffer.as_ptr(), buffer.len()),
            Self::ZeroCopy(data) => data.pieces().for_each(|(at, len)| piece(at, len)),
        }
    }

    /// Calls `each` with each run of bytes, in order.
    pub fn for_each_slice(&self, mut each: impl FnMut(&[u8])) {
        self.for_each_piece(|at, len| {
            // SAFETY: a payload's pieces are readable and unchanged until it is dropped. The
            // payload owns its buffer, and bytes of a zero-copy read do not change while it exists
            // (`ZeroCopyData`'s contract).
            each(unsafe { std::slice::from_raw_parts(at, len) });
        });
    }
}

impl From<Buffer> for Payload {
    fn from(buffer: Buffer) -> Self {
        Self::Buffer(buffer)
    }
}

impl From<ZeroCopyData> for Payload {
    fn from(data: ZeroCopyData) -> Self {
        Self::ZeroCopy(data)
    }
}
