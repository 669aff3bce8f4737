//! The bytes of a payload.

use nvmeof_core::dma::Payload;

/// Runs `each` over the bytes of a payload, in order.
pub(crate) fn for_each_slice(payload: &Payload, mut each: impl FnMut(&[u8])) {
    payload.for_each_piece(|at, len| {
        // SAFETY: a payload's pieces are readable and unchanged until it is dropped. The payload
        // owns its buffer, and lent bytes do not change while lent (`ZeroCopyData`'s contract).
        each(unsafe { std::slice::from_raw_parts(at, len) });
    });
}
