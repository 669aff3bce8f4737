//! Data pointers: checks that the transport supports the host's SGL and that it is long enough.
//!
//! The SGL is one descriptor, in the command itself. It may be longer than the data (SGLS bit 18),
//! because hosts send whole pages for short lists of ranges. Over RDMA a host may also send a list
//! of keyed descriptors in the capsule. The transport resolves and keeps that list, and represents
//! it here by one transport descriptor of the whole length.

use nvmeof_wire::{Sgl, Sqe};

use crate::disposition::DataSource;
use crate::failure::Failure;
use crate::spec::TransportKind;

/// Location of `len` bytes from the host; the capsule carried `inline_len` bytes.
#[inline]
pub(super) fn from_host(
    sqe: &Sqe,
    len: u32,
    inline_len: u32,
    transport: TransportKind,
) -> Result<DataSource, Failure> {
    match sqe.dptr.parse() {
        Sgl::InCapsule { offset, length } => {
            let offset = u32::try_from(offset).map_err(|_| Failure::SglOffset)?;
            let there = inline_len.checked_sub(offset).ok_or(Failure::SglOffset)?;
            if length < len || there < len {
                return Err(Failure::SglLength);
            }
            Ok(DataSource::InCapsule { offset })
        }
        sgl => {
            check_host_buffer(sgl, len, transport)?;
            Ok(DataSource::Host(sgl))
        }
    }
}

/// Destination of `len` bytes for the host.
#[inline]
pub(super) fn to_host(sqe: &Sqe, len: u32, transport: TransportKind) -> Result<Sgl, Failure> {
    let sgl = sqe.dptr.parse();
    check_host_buffer(sgl, len, transport)?;
    Ok(sgl)
}

#[inline]
fn check_host_buffer(sgl: Sgl, len: u32, transport: TransportKind) -> Result<(), Failure> {
    let length = match (sgl, transport) {
        (Sgl::Transport { length }, _) | (Sgl::Keyed { length, .. }, TransportKind::Rdma) => length,
        _ => return Err(Failure::SglType),
    };
    if length < len { Err(Failure::SglLength) } else { Ok(()) }
}
