//! Completion queue entry (Base 3.3.3.2).

use zerocopy::little_endian::{U16, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::status::Status;

/// Size of a completion queue entry in bytes.
pub const CQE_SIZE: usize = 16;

/// A completion queue entry: 16 bytes.
#[derive(
    Clone,
    Copy,
    Debug,
    Default,
    PartialEq,
    Eq,
    FromBytes,
    IntoBytes,
    Immutable,
    KnownLayout,
    Unaligned,
)]
#[repr(C)]
pub struct Cqe {
    /// Bytes 0-7: command specific (DW0, and DW1 for fabrics commands).
    pub result: U64,
    /// Bytes 8-9, SQ Head Pointer; reserved if SQ flow control is disabled.
    pub sqhd: U16,
    /// Bytes 10-11, SQ Identifier; reserved over fabrics.
    pub sqid: U16,
    /// Bytes 12-13, Command Identifier.
    pub cid: U16,
    /// Bytes 14-15: phase tag in bit 0 (reserved over fabrics), status field above it.
    pub status: U16,
}
const _: () = assert!(size_of::<Cqe>() == CQE_SIZE);

impl Cqe {
    /// A completion with this status and result 0.
    #[inline]
    #[must_use]
    pub fn new(cid: u16, status: Status) -> Self {
        Self { cid: U16::new(cid), status: U16::new(status.to_field(false)), ..Self::default() }
    }

    /// A successful completion with this result (DW0 in the low half).
    #[inline]
    #[must_use]
    pub fn success(cid: u16, result: u64) -> Self {
        Self { result: U64::new(result), cid: U16::new(cid), ..Self::default() }
    }

    /// With this result (DW0 in the low half).
    #[inline]
    #[must_use]
    pub fn with_result(mut self, result: u64) -> Self {
        self.result = U64::new(result);
        self
    }

    /// With this SQ head pointer.
    #[inline]
    #[must_use]
    pub fn with_sqhd(mut self, sqhd: u16) -> Self {
        self.sqhd = U16::new(sqhd);
        self
    }

    /// The status, without the phase tag.
    #[inline]
    #[must_use]
    pub fn status(&self) -> Status {
        Status::from_field(self.status.get())
    }

    /// The phase tag.
    #[inline]
    #[must_use]
    pub fn phase(&self) -> bool {
        self.status.get() & 1 == 1
    }

    /// Dword 0.
    #[inline]
    #[must_use]
    #[expect(clippy::cast_possible_truncation, reason = "the low half is what is asked for")]
    pub fn dw0(&self) -> u32 {
        self.result.get() as u32
    }

    /// Dword 1.
    #[inline]
    #[must_use]
    pub fn dw1(&self) -> u32 {
        (self.result.get() >> 32) as u32
    }
}
