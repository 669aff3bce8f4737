//! I/O command set specific structures: CNS 05h and 06h for the NVM command set (NVM 4.1.5),
//! CNS 1Ch (Base 5.17.2.21).

use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::Csi;
use crate::open::zero_default;

/// Identify Namespace of the NVM command set, CNS 05h with CSI 00h (NVM Figure 100): 4096 bytes.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
pub struct NvmNamespace {
    /// Bytes 0-7, Logical Block Storage Tag Mask.
    pub lbstm: U64,
    /// Byte 8, Protection Information Capabilities.
    pub pic: u8,
    /// Bytes 9-11, reserved.
    pub reserved9: [u8; 3],
    /// Bytes 12-267, Extended LBA Formats: Storage Tag Size in bits 6:0, Protection Information
    /// Format in bits 8:7.
    pub elbaf: [U32; 64],
    /// Bytes 268-4095, reserved.
    pub reserved268: [u8; 3828],
}
const _: () = assert!(size_of::<NvmNamespace>() == 4096);

/// Identify Controller of the NVM command set, CNS 06h with CSI 00h: 4096 bytes.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
pub struct NvmController {
    /// Byte 0, Verify Size Limit: 2 to this, in units of CAP.MPSMIN; 0 is no limit.
    pub vsl: u8,
    /// Byte 1, Write Zeroes Size Limit, as VSL.
    pub wzsl: u8,
    /// Byte 2, Write Uncorrectable Size Limit, as VSL.
    pub wusl: u8,
    /// Byte 3, Dataset Management Ranges Limit; 0 is no limit.
    pub dmrl: u8,
    /// Bytes 4-7, Dataset Management Range Size Limit in logical blocks; 0 is no limit.
    pub dmrsl: U32,
    /// Bytes 8-15, Dataset Management Size Limit in logical blocks; 0 is no limit.
    pub dmsl: U64,
    /// Bytes 16-4095, reserved.
    pub reserved16: [u8; 4080],
}
const _: () = assert!(size_of::<NvmController>() == 4096);

/// Identify I/O Command Set, CNS 1Ch (Base 5.17.2.21, Figure 289): 4096 bytes. Each vector is one
/// combination of command sets that can be enabled together.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
pub struct CommandSetCombinations {
    /// I/O Command Set Combinations: bit `n` is the command set with CSI `n`; unused vectors at the
    /// end are 0.
    pub vectors: [U64; 512],
}
const _: () = assert!(size_of::<CommandSetCombinations>() == 4096);

impl CommandSetCombinations {
    /// Creates one combination of these command sets. A CSI of 64 or more has no bit and is
    /// skipped.
    #[must_use]
    pub fn only(command_sets: &[Csi]) -> Self {
        let vector = command_sets
            .iter()
            .filter_map(|csi| 1u64.checked_shl(csi.0.into()))
            .fold(0, |all, bit| all | bit);
        let mut this = Self::default();
        this.vectors[0].set(vector);
        this
    }
}

zero_default!(NvmNamespace, NvmController, CommandSetCombinations);
