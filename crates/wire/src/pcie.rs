//! Registers of PCIe controllers only, and the offsets of doorbells (Base 3.1.3, PCIe 3.1).
//!
//! [`crate::properties`] has the registers that fabrics controllers have, too.

use bitfield_struct::bitfield;

/// Offset of a register in bytes into BAR0 (Base 3.1.3), in addition to
/// [`crate::properties::offset`].
pub mod offset {
    /// Interrupt Mask Set, 4 bytes; not used with MSI-X.
    pub const INTMS: u32 = 0x0c;
    /// Interrupt Mask Clear, 4 bytes; not used with MSI-X.
    pub const INTMC: u32 = 0x10;
    /// Admin Queue Attributes, 4 bytes.
    pub const AQA: u32 = 0x24;
    /// Admin Submission Queue Base Address, 8 bytes.
    pub const ASQ: u32 = 0x28;
    /// Admin Completion Queue Base Address, 8 bytes.
    pub const ACQ: u32 = 0x30;
    /// Controller Memory Buffer Location, 4 bytes.
    pub const CMBLOC: u32 = 0x38;
    /// Controller Memory Buffer Size, 4 bytes.
    pub const CMBSZ: u32 = 0x3c;
    /// Start of the doorbells (PCIe 3.1.2).
    pub const DOORBELLS: u32 = 0x1000;
}

/// Admin Queue Attributes (Base 3.1.3.8).
#[bitfield(u32)]
#[derive(PartialEq, Eq)]
pub struct Aqa {
    /// Admin Submission Queue Size, 0's based.
    #[bits(12)]
    pub asqs: u16,
    #[bits(4)]
    __: u8,
    /// Admin Completion Queue Size, 0's based.
    #[bits(12)]
    pub acqs: u16,
    #[bits(4)]
    __: u8,
}

impl Aqa {
    /// Returns the attributes of two queues with these numbers of entries, clamped to 1 to 4096.
    #[must_use]
    pub const fn with_entries(submission: u16, completion: u16) -> Self {
        Self::new().with_asqs(zeroes_based(submission)).with_acqs(zeroes_based(completion))
    }
}

const fn zeroes_based(entries: u16) -> u16 {
    match entries {
        0 | 1 => 0,
        2..=4096 => entries - 1,
        _ => 4095,
    }
}

/// A doorbell (PCIe 3.1.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Doorbell {
    /// Submission Queue y Tail.
    SubmissionTail(u16),
    /// Completion Queue y Head.
    CompletionHead(u16),
}

impl Doorbell {
    /// Index among the doorbells: tail and head of queue 0, tail and head of queue 1, ...
    #[inline]
    #[must_use]
    pub const fn index(self) -> u32 {
        match self {
            Self::SubmissionTail(qid) => 2 * qid as u32,
            Self::CompletionHead(qid) => 2 * qid as u32 + 1,
        }
    }

    /// Bytes from the first doorbell to this one, for CAP.DSTRD `dstrd` (4 bits). This is also the
    /// offset into the two buffers of Doorbell Buffer Config.
    #[inline]
    #[must_use]
    pub const fn stride_offset(self, dstrd: u8) -> u64 {
        (self.index() as u64) << (2 + (dstrd & 0xf))
    }

    /// Offset into BAR0, for CAP.DSTRD `dstrd` (4 bits), if that is below 4 GiB.
    #[inline]
    #[must_use]
    pub const fn offset(self, dstrd: u8) -> Option<u32> {
        let offset = offset::DOORBELLS as u64 + self.stride_offset(dstrd);
        if offset >> 32 == 0 {
            let [b0, b1, b2, b3, ..] = offset.to_le_bytes();
            Some(u32::from_le_bytes([b0, b1, b2, b3]))
        } else {
            None
        }
    }

    /// Returns the doorbell at `offset` into BAR0, if there is one.
    #[inline]
    #[must_use]
    pub fn at(offset: u32, dstrd: u8) -> Option<Self> {
        let offset = offset.checked_sub(offset::DOORBELLS)?;
        let shift = 2 + u32::from(dstrd & 0xf);
        if offset & ((1 << shift) - 1) != 0 {
            return None;
        }
        let index = offset >> shift;
        let qid = u16::try_from(index / 2).ok()?;
        Some(if index % 2 == 0 { Self::SubmissionTail(qid) } else { Self::CompletionHead(qid) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn admin_queue_attributes() {
        // Base 3.1.3.8.
        assert_eq!(Aqa::new().with_asqs(0xfff).into_bits(), 0xfff);
        assert_eq!(Aqa::new().with_acqs(0xfff).into_bits(), 0xfff << 16);
        assert_eq!(Aqa::with_entries(32, 64).into_bits(), 31 | 63 << 16);
        assert_eq!(Aqa::with_entries(0, u16::MAX).into_bits(), 0xfff << 16);
    }

    #[test]
    fn doorbells_are_where_the_stride_puts_them() {
        // PCIe 3.1.2: 1000h + (2y * (4 << CAP.DSTRD)), 1000h + ((2y + 1) * (4 << CAP.DSTRD)).
        let cases = [
            (Doorbell::SubmissionTail(0), 0, 0x1000),
            (Doorbell::CompletionHead(0), 0, 0x1004),
            (Doorbell::SubmissionTail(3), 0, 0x1018),
            (Doorbell::CompletionHead(3), 0, 0x101c),
            (Doorbell::SubmissionTail(1), 4, 0x1080),
            (Doorbell::CompletionHead(1), 4, 0x10c0),
        ];
        for (doorbell, dstrd, offset) in cases {
            assert_eq!(doorbell.offset(dstrd), Some(offset), "{doorbell:?}");
            assert_eq!(Doorbell::at(offset, dstrd), Some(doorbell));
        }
        assert_eq!(Doorbell::at(0x1040, 5), None);
        assert_eq!(Doorbell::at(0x0ffc, 0), None);
        assert_eq!(Doorbell::CompletionHead(0xffff).offset(15), None);
        assert_eq!(Doorbell::at(0x1000 + (0x2_0000 << 2), 0), None);
    }
}
