//! Identify Namespace, CNS 00h (NVM 4.1.5.1) and CNS 08h (Base 5.17.2.8, Figure 280).

use zerocopy::little_endian::{U16, U32, U64, U128};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::open::zero_default;

/// Identify Namespace for the NVM command set, CNS 00h: 4096 bytes.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
pub struct Namespace {
    /// Bytes 0-7, Namespace Size in logical blocks; 0: the namespace is not active.
    pub nsze: U64,
    /// Bytes 8-15, Namespace Capacity in logical blocks.
    pub ncap: U64,
    /// Bytes 16-23, Namespace Utilization in logical blocks.
    pub nuse: U64,
    /// Byte 24, Namespace Features, see [`nsfeat`].
    pub nsfeat: u8,
    /// Byte 25, Number of LBA Formats, 0's based.
    pub nlbaf: u8,
    /// Byte 26, Formatted LBA Size: format index in bits 3:0 and (high part) 6:5; bit 4 metadata
    /// inline.
    pub flbas: u8,
    /// Byte 27, Metadata Capabilities.
    pub mc: u8,
    /// Byte 28, End-to-end Data Protection Capabilities.
    pub dpc: u8,
    /// Byte 29, End-to-end Data Protection Type Settings.
    pub dps: u8,
    /// Byte 30, Namespace Multi-path I/O and Namespace Sharing Capabilities, see [`nmic`].
    pub nmic: u8,
    /// Byte 31, Reservation Capabilities.
    pub rescap: u8,
    /// Byte 32, Format Progress Indicator.
    pub fpi: u8,
    /// Byte 33, Deallocate Logical Block Features, see [`dlfeat`].
    pub dlfeat: u8,
    /// Bytes 34-35, Namespace Atomic Write Unit Normal in logical blocks, 0's based.
    pub nawun: U16,
    /// Bytes 36-37, Namespace Atomic Write Unit Power Fail in logical blocks, 0's based.
    pub nawupf: U16,
    /// Bytes 38-39, Namespace Atomic Compare & Write Unit in logical blocks, 0's based.
    pub nacwu: U16,
    /// Bytes 40-41, Namespace Atomic Boundary Size Normal in logical blocks, 0's based.
    pub nabsn: U16,
    /// Bytes 42-43, Namespace Atomic Boundary Offset in logical blocks.
    pub nabo: U16,
    /// Bytes 44-45, Namespace Atomic Boundary Size Power Fail in logical blocks, 0's based.
    pub nabspf: U16,
    /// Bytes 46-47, Namespace Optimal I/O Boundary in logical blocks.
    pub noiob: U16,
    /// Bytes 48-63, NVM Capacity in bytes.
    pub nvmcap: U128,
    /// Bytes 64-65, Namespace Preferred Write Granularity in logical blocks, 0's based.
    pub npwg: U16,
    /// Bytes 66-67, Namespace Preferred Write Alignment in logical blocks, 0's based.
    pub npwa: U16,
    /// Bytes 68-69, Namespace Preferred Deallocate Granularity in logical blocks, 0's based.
    pub npdg: U16,
    /// Bytes 70-71, Namespace Preferred Deallocate Alignment in logical blocks, 0's based.
    pub npda: U16,
    /// Bytes 72-73, Namespace Optimal Write Size in logical blocks, 0's based.
    pub nows: U16,
    /// Bytes 74-75, Maximum Single Source Range Length in logical blocks.
    pub mssrl: U16,
    /// Bytes 76-79, Maximum Copy Length in logical blocks.
    pub mcl: U32,
    /// Byte 80, Maximum Source Range Count, 0's based.
    pub msrc: u8,
    /// Bytes 81-91, reserved.
    pub reserved81: [u8; 11],
    /// Bytes 92-95, ANA Group Identifier.
    pub anagrpid: U32,
    /// Bytes 96-98, reserved.
    pub reserved96: [u8; 3],
    /// Byte 99, Namespace Attributes, see [`nsattr`].
    pub nsattr: u8,
    /// Bytes 100-101, NVM Set Identifier.
    pub nvmsetid: U16,
    /// Bytes 102-103, Endurance Group Identifier.
    pub endgid: U16,
    /// Bytes 104-119, Namespace Globally Unique Identifier, most significant byte first.
    pub nguid: [u8; 16],
    /// Bytes 120-127, IEEE Extended Unique Identifier, most significant byte first.
    pub eui64: [u8; 8],
    /// Bytes 128-383, LBA Formats.
    pub lbaf: [LbaFormat; 64],
    /// Bytes 384-4095, vendor specific.
    pub vendor: [u8; 3712],
}
const _: () = assert!(size_of::<Namespace>() == 4096);
const _: () = {
    use core::mem::offset_of;
    assert!(offset_of!(Namespace, nawun) == 34);
    assert!(offset_of!(Namespace, nvmcap) == 48);
    assert!(offset_of!(Namespace, mcl) == 76);
    assert!(offset_of!(Namespace, anagrpid) == 92);
    assert!(offset_of!(Namespace, nguid) == 104);
    assert!(offset_of!(Namespace, lbaf) == 128);
};

impl Namespace {
    /// Index of the LBA format in use: FLBAS bits 6:5 above bits 3:0. At most 63.
    #[must_use]
    pub const fn format_index(&self) -> u8 {
        (self.flbas & 0x0f) | (self.flbas >> 5 & 0b11) << 4
    }

    /// The LBA format in use.
    #[must_use]
    pub fn format(&self) -> LbaFormat {
        self.lbaf[usize::from(self.format_index())]
    }

    /// Bytes of a logical block, if its format has a size of 512 bytes to 2 GiB.
    #[must_use]
    pub fn block_size(&self) -> Option<u32> {
        self.format().block_size()
    }

    /// The available LBA formats by index: NLBAF, which is 0's based, of at most 64.
    #[must_use]
    pub fn formats(&self) -> &[LbaFormat] {
        let count = usize::from(self.nlbaf) + 1;
        &self.lbaf[..count.min(self.lbaf.len())]
    }

    /// Returns true if metadata, if the format has any, is the last part of the data instead of
    /// separate (FLBAS bit 4).
    #[must_use]
    pub const fn metadata_inline(&self) -> bool {
        self.flbas & flbas::METADATA_INLINE != 0
    }

    /// Type of the protection information in use, 0 none (DPS bits 2:0).
    #[must_use]
    pub const fn protection(&self) -> u8 {
        self.dps & 7
    }

    /// Logical blocks between two boundaries that reads and writes should not cross (NOIOB), if
    /// reported.
    #[must_use]
    pub fn io_boundary(&self) -> Option<u16> {
        (self.noiob.get() != 0).then_some(self.noiob.get())
    }

    /// Logical blocks that are written atomically unless they cross an atomic boundary (NAWUN), if
    /// this namespace reports its own value.
    #[must_use]
    pub fn atomic_write_blocks(&self) -> Option<u32> {
        let reported = self.nsfeat & nsfeat::ATOMIC_UNITS != 0;
        reported.then_some(u32::from(self.nawun.get()) + 1)
    }

    /// Remaining part of a format in percent (FPI bits 6:0), if progress is reported (bit 7).
    #[must_use]
    pub fn format_remaining(&self) -> Option<u8> {
        (self.fpi & fpi::SUPPORTED != 0).then_some(self.fpi & fpi::REMAINING)
    }
}

/// LBA Format: 4 bytes.
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
pub struct LbaFormat {
    /// Bytes 0-1, Metadata Size in bytes.
    pub ms: U16,
    /// Byte 2, LBA Data Size, as a power of two; 0: the format is not available.
    pub lbads: u8,
    /// Byte 3, Relative Performance in bits 1:0; 0 is best.
    pub rp: u8,
}
const _: () = assert!(size_of::<LbaFormat>() == 4);

impl LbaFormat {
    /// Creates a format with blocks of 2 to the `lbads` bytes and no metadata.
    #[must_use]
    pub const fn new(lbads: u8) -> Self {
        Self { ms: U16::ZERO, lbads, rp: 0 }
    }

    /// Bytes of a logical block, if that is 512 bytes to 2 GiB.
    #[must_use]
    pub const fn block_size(self) -> Option<u32> {
        match self.lbads {
            lbads @ 9..=31 => Some(1 << lbads),
            _ => None,
        }
    }

    /// Returns true if the format is available and has no metadata.
    #[must_use]
    pub const fn is_plain(self) -> bool {
        self.block_size().is_some() && self.ms.get() == 0
    }

    /// Index of the fastest format with blocks of `block_size` bytes and no metadata.
    #[must_use]
    pub fn fastest(formats: &[Self], block_size: u32) -> Option<u8> {
        let of_size = |(_, f): &(usize, &Self)| f.is_plain() && f.block_size() == Some(block_size);
        let best = formats.iter().enumerate().filter(of_size).min_by_key(|(_, f)| f.rp & 3);
        best.and_then(|(number, _)| u8::try_from(number).ok())
    }
}

/// I/O Command Set Independent Identify Namespace, CNS 08h: 4096 bytes.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
pub struct IndependentNamespace {
    /// Byte 0, Common Namespace Features; bit 3 as [`nsfeat::UID_REUSE`].
    pub nsfeat: u8,
    /// Byte 1, Namespace Multi-path I/O and Namespace Sharing Capabilities, see [`nmic`].
    pub nmic: u8,
    /// Byte 2, Reservation Capabilities.
    pub rescap: u8,
    /// Byte 3, Format Progress Indicator.
    pub fpi: u8,
    /// Bytes 4-7, ANA Group Identifier.
    pub anagrpid: U32,
    /// Byte 8, Namespace Attributes, see [`nsattr`].
    pub nsattr: u8,
    /// Byte 9, reserved.
    pub reserved9: u8,
    /// Bytes 10-11, NVM Set Identifier.
    pub nvmsetid: U16,
    /// Bytes 12-13, Endurance Group Identifier.
    pub endgid: U16,
    /// Byte 14, Namespace Status, see [`nstat`].
    pub nstat: u8,
    /// Bytes 15-4095, reserved.
    pub reserved15: [u8; 4081],
}
const _: () = assert!(size_of::<IndependentNamespace>() == 4096);

/// Bits of FLBAS.
pub mod flbas {
    /// Metadata is the last part of the data of a block.
    pub const METADATA_INLINE: u8 = 1 << 4;
}

/// Fields of FPI.
pub mod fpi {
    /// Format progress is reported.
    pub const SUPPORTED: u8 = 1 << 7;
    /// Remaining percent of a format.
    pub const REMAINING: u8 = 0x7f;
}

/// Bits of NSFEAT.
pub mod nsfeat {
    /// Thin provisioning: NCAP may be below NSZE, and NUSE is tracked.
    pub const THIN: u8 = 1 << 0;
    /// NAWUN, NAWUPF and NACWU are defined for this namespace.
    pub const ATOMIC_UNITS: u8 = 1 << 1;
    /// Deallocated or unwritten blocks can be reported as an error.
    pub const DEALLOCATED_ERROR: u8 = 1 << 2;
    /// NGUID and EUI64 are never reused.
    pub const UID_REUSE: u8 = 1 << 3;
    /// NPWG, NPWA, NPDG, NPDA and NOWS are defined.
    pub const OPTIMAL_IO: u8 = 1 << 4;
}

/// Bits of NMIC.
pub mod nmic {
    /// The namespace may be attached to more than one controller.
    pub const SHARED: u8 = 1 << 0;
}

/// Fields of DLFEAT.
pub mod dlfeat {
    /// Deallocated blocks read as zeroes (bits 2:0 = 001b).
    pub const READ_ZEROES: u8 = 0b001;
    /// Deallocated blocks read as FFh (bits 2:0 = 010b).
    pub const READ_ONES: u8 = 0b010;
    /// Write Zeroes may deallocate (its Deallocate bit).
    pub const WRITE_ZEROES_DEALLOCATES: u8 = 1 << 3;
}

/// Bits of NSATTR.
pub mod nsattr {
    /// The namespace is write protected.
    pub const WRITE_PROTECTED: u8 = 1 << 0;
}

/// Bits of NSTAT.
pub mod nstat {
    /// The namespace is ready.
    pub const READY: u8 = 1 << 0;
}

zero_default!(Namespace, IndependentNamespace);
