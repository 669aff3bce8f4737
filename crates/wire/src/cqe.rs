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
    /// Returns a completion with this status and result 0.
    #[inline]
    #[must_use]
    pub fn new(cid: u16, status: Status) -> Self {
        Self { cid: U16::new(cid), status: U16::new(status.to_field(false)), ..Self::default() }
    }

    /// Returns a successful completion with this result (DW0 in the low half).
    #[inline]
    #[must_use]
    pub fn success(cid: u16, result: u64) -> Self {
        Self { result: U64::new(result), cid: U16::new(cid), ..Self::default() }
    }

    /// Sets the result (DW0 in the low half).
    #[inline]
    #[must_use]
    pub fn with_result(mut self, result: u64) -> Self {
        self.result = U64::new(result);
        self
    }

    /// Returns an entry with this status, and result 0.
    #[inline]
    #[must_use]
    pub fn with_status(mut self, status: Status) -> Self {
        self.status = U16::new(status.to_field(false));
        self.with_result(0)
    }

    /// Sets the SQ head pointer.
    #[inline]
    #[must_use]
    pub fn with_sqhd(mut self, sqhd: u16) -> Self {
        self.sqhd = U16::new(sqhd);
        self
    }

    /// Sets the SQ identifier (PCIe).
    #[inline]
    #[must_use]
    pub fn with_sqid(mut self, sqid: u16) -> Self {
        self.sqid = U16::new(sqid);
        self
    }

    /// Sets the phase tag (PCIe).
    #[inline]
    #[must_use]
    pub fn with_phase(mut self, phase: bool) -> Self {
        self.status = U16::new(self.status.get() & !1 | u16::from(phase));
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

#[cfg(test)]
mod tests {
    use zerocopy::{FromBytes, IntoBytes};

    use super::*;

    #[test]
    fn fields_are_where_the_specification_has_them() {
        // Base 3.3.3.2: DW0, DW1, SQHD, SQID, CID, status with phase tag.
        let bytes: [u8; 16] = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 0x05, 0x82];
        let cqe = Cqe::read_from_bytes(&bytes).unwrap();
        assert_eq!((cqe.dw0(), cqe.dw1()), (0x0403_0201, 0x0807_0605));
        assert_eq!((cqe.sqhd.get(), cqe.sqid.get(), cqe.cid.get()), (0x0a09, 0x0c0b, 0x0e0d));
        assert!(cqe.phase());
        assert_eq!(cqe.status(), Status::new(1, 0x02).with_dnr());
        let mut built = Cqe::new(0x0e0d, Status::new(1, 2).with_dnr())
            .with_result(0x0807_0605_0403_0201)
            .with_sqhd(0x0a09);
        built.sqid.set(0x0c0b);
        built.status.set(built.status.get() | 1);
        assert_eq!(built.as_bytes(), bytes);
    }

    #[test]
    fn phase_and_queue_of_a_pcie_completion() {
        let status = Status::new(1, 0x02).with_dnr();
        let cqe = Cqe::new(0x0e0d, status).with_sqid(0x0c0b).with_sqhd(0x0a09).with_phase(true);
        let bytes = [0, 0, 0, 0, 0, 0, 0, 0, 9, 10, 11, 12, 13, 14, 0x05, 0x82];
        assert_eq!(cqe.as_bytes(), bytes);
        assert!(!cqe.with_phase(false).phase());
        assert_eq!(cqe.with_phase(false).status(), status);
    }

    #[test]
    fn success_has_no_status() {
        let cqe = Cqe::success(7, 0xffff);
        assert_eq!(cqe.as_bytes(), [0xff, 0xff, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 7, 0, 0, 0]);
        assert!(cqe.status().is_success() && !cqe.phase());
    }
}
