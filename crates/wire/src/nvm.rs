//! Commands of the NVM command set (NVM 3.2).

use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::opcode::IoOpcode;
use crate::sqe::Sqe;

/// A range of logical blocks: `blocks` of them, starting at `slba`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct BlockRange {
    /// Starting LBA.
    pub slba: u64,
    /// Number of blocks; NLB of a command is 0's based, this is not.
    pub blocks: u32,
}

impl BlockRange {
    /// The LBA after the last block, or `None` if that is beyond 2^64 - 1.
    #[inline]
    #[must_use]
    pub const fn end(self) -> Option<u64> {
        self.slba.checked_add(self.blocks as u64)
    }

    /// Returns true if the whole range is below `size` blocks.
    #[inline]
    #[must_use]
    pub const fn is_within(self, size: u64) -> bool {
        match self.end() {
            Some(end) => end <= size,
            None => false,
        }
    }
}

/// Read, Write, Compare, Write Zeroes or Verify: their CDW10 to CDW15 have the same layout (NVM
/// 3.2.1, 3.2.4, 3.2.5, 3.2.6, 3.2.8).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockIo {
    /// The blocks, 1 to 65536.
    pub range: BlockRange,
    /// Force Unit Access (CDW12 bit 30).
    pub fua: bool,
    /// Limited Retry (CDW12 bit 31).
    pub limited_retry: bool,
    /// Write Zeroes: Deallocate (CDW12 bit 25, DEAC).
    pub deallocate: bool,
    /// Storage Tag Check (CDW12 bit 24).
    pub storage_tag_check: bool,
    /// Protection Information (CDW12 bits 29:26): PRACT in bit 3, PRCHK in bits 2:0.
    pub prinfo: u8,
    /// Write: Directive Type (CDW12 bits 23:20).
    pub dtype: u8,
    /// Write: Directive Specific (CDW13 bits 31:16).
    pub dspec: u16,
    /// Read and Write: Dataset Management hints (CDW13 bits 7:0).
    pub dsm: u8,
}

const LR: u32 = 1 << 31;
const FUA: u32 = 1 << 30;
const PRINFO_SHIFT: u32 = 26;
const DEAC: u32 = 1 << 25;
const STC: u32 = 1 << 24;
const DTYPE_SHIFT: u32 = 20;

impl BlockIo {
    /// Creates a command for `blocks` from `slba` on; all other fields are zero.
    #[inline]
    #[must_use]
    pub const fn new(slba: u64, blocks: u32) -> Self {
        Self {
            range: BlockRange { slba, blocks },
            fua: false,
            limited_retry: false,
            deallocate: false,
            storage_tag_check: false,
            prinfo: 0,
            dtype: 0,
            dspec: 0,
            dsm: 0,
        }
    }

    /// Parses the fields of `sqe`, which is one of these commands.
    #[inline]
    #[must_use]
    #[expect(clippy::cast_possible_truncation, reason = "each field is cut out of its dword")]
    pub fn parse(sqe: &Sqe) -> Self {
        let cdw12 = sqe.cdw12.get();
        let cdw13 = sqe.cdw13.get();
        Self {
            range: BlockRange { slba: sqe.cdw10_11(), blocks: (cdw12 & 0xffff) + 1 },
            fua: cdw12 & FUA != 0,
            limited_retry: cdw12 & LR != 0,
            deallocate: cdw12 & DEAC != 0,
            storage_tag_check: cdw12 & STC != 0,
            prinfo: (cdw12 >> PRINFO_SHIFT & 0xf) as u8,
            dtype: (cdw12 >> DTYPE_SHIFT & 0xf) as u8,
            dspec: (cdw13 >> 16) as u16,
            dsm: cdw13 as u8,
        }
    }

    /// Returns the command, without a data pointer. `blocks` is clamped to 1 to 65536.
    #[inline]
    #[must_use]
    #[expect(clippy::cast_possible_truncation, reason = "the LBA is split into its halves")]
    pub fn encode(&self, opcode: IoOpcode, cid: u16, nsid: u32) -> Sqe {
        let bit = |set: bool, bit: u32| if set { bit } else { 0 };
        let slba = self.range.slba;
        let cdw12 = (self.range.blocks.clamp(1, 1 << 16) - 1)
            | bit(self.fua, FUA)
            | bit(self.limited_retry, LR)
            | bit(self.deallocate, DEAC)
            | bit(self.storage_tag_check, STC)
            | u32::from(self.prinfo & 0xf) << PRINFO_SHIFT
            | u32::from(self.dtype & 0xf) << DTYPE_SHIFT;
        Sqe::io(opcode, cid, nsid).with_cdw10([
            slba as u32,
            (slba >> 32) as u32,
            cdw12,
            u32::from(self.dsm) | u32::from(self.dspec) << 16,
        ])
    }
}

/// Maximum ranges of a Dataset Management command.
pub const DSM_RANGES_MAX: u16 = 256;

/// Dataset Management (NVM 3.2.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DatasetManagement {
    /// Ranges in the data, 1 to 256 (NR is 0's based).
    pub ranges: u16,
    /// Attribute - Deallocate (AD).
    pub deallocate: bool,
    /// Attribute - Integral Dataset for Write (IDW).
    pub integral_write: bool,
    /// Attribute - Integral Dataset for Read (IDR).
    pub integral_read: bool,
}

const DSM_IDR: u32 = 1 << 0;
const DSM_IDW: u32 = 1 << 1;
const DSM_AD: u32 = 1 << 2;

impl DatasetManagement {
    /// Parses the fields of `sqe`, which is a Dataset Management.
    #[must_use]
    pub fn parse(sqe: &Sqe) -> Self {
        let cdw11 = sqe.cdw11.get();
        Self {
            ranges: u16::from(sqe.cdw10.get().to_le_bytes()[0]) + 1,
            deallocate: cdw11 & DSM_AD != 0,
            integral_write: cdw11 & DSM_IDW != 0,
            integral_read: cdw11 & DSM_IDR != 0,
        }
    }

    /// Returns the command, without a data pointer. `ranges` is clamped to 1 to 256.
    #[must_use]
    pub fn encode(&self, cid: u16, nsid: u32) -> Sqe {
        let bit = |set: bool, bit: u32| if set { bit } else { 0 };
        Sqe::io(IoOpcode::DATASET_MANAGEMENT, cid, nsid).with_cdw10([
            u32::from(self.ranges.clamp(1, DSM_RANGES_MAX) - 1),
            bit(self.deallocate, DSM_AD)
                | bit(self.integral_write, DSM_IDW)
                | bit(self.integral_read, DSM_IDR),
        ])
    }

    /// Bytes of the command's data.
    #[must_use]
    pub const fn data_len(&self) -> u32 {
        self.ranges as u32 * DSM_RANGE_SIZE
    }
}

/// Bytes of a [`DsmRange`].
pub const DSM_RANGE_SIZE: u32 = 16;

/// A range of a Dataset Management command's data: 16 bytes.
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
pub struct DsmRange {
    /// Bytes 0-3, Context Attributes.
    pub context: U32,
    /// Bytes 4-7, length in logical blocks; not 0's based.
    pub blocks: U32,
    /// Bytes 8-15, Starting LBA.
    pub slba: U64,
}
const _: () = assert!(size_of::<DsmRange>() == DSM_RANGE_SIZE as usize);

impl DsmRange {
    /// Returns a range of `blocks` blocks, starting at `slba`.
    #[must_use]
    pub const fn new(slba: u64, blocks: u32) -> Self {
        Self { context: U32::ZERO, blocks: U32::new(blocks), slba: U64::new(slba) }
    }

    /// The blocks.
    #[must_use]
    pub const fn range(&self) -> BlockRange {
        BlockRange { slba: self.slba.get(), blocks: self.blocks.get() }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use zerocopy::{FromBytes, IntoBytes};

    use super::*;
    use crate::golden;

    #[test]
    fn block_io_bytes() {
        // NVM 3.2.6 (Write), with every field set.
        let bytes: [u8; 64] = golden::bytes(&[
            (0, &[0x01, 0x40, 0x34, 0x12, 1]),
            (40, &[0x88, 0x77, 0x66, 0x55, 0x44, 0x33, 0x22, 0x11]), // SLBA
            (48, &[0x07, 0x00, 0xa0, 0xd7]), // NLB 7, DTYPE Ah, STC, DEAC, PRINFO 5h, FUA, LR
            (52, &[0x5a, 0x00, 0xcd, 0xab]), // DSM, DSPEC
        ]);
        let io = BlockIo {
            range: BlockRange { slba: 0x1122_3344_5566_7788, blocks: 8 },
            fua: true,
            limited_retry: true,
            deallocate: true,
            storage_tag_check: true,
            prinfo: 0x5,
            dtype: 0xa,
            dspec: 0xabcd,
            dsm: 0x5a,
        };
        assert_eq!(io.encode(IoOpcode::WRITE, 0x1234, 1).as_bytes(), bytes);
        assert_eq!(BlockIo::parse(&Sqe::read_from_bytes(&bytes).unwrap()), io);
    }

    #[test]
    fn each_flag_is_its_own_bit() {
        let cdw12 = |edit: fn(&mut BlockIo)| {
            let mut io = BlockIo::new(0, 1);
            edit(&mut io);
            io.encode(IoOpcode::WRITE_ZEROES, 1, 1).cdw12.get()
        };
        assert_eq!(cdw12(|_| ()), 0);
        assert_eq!(cdw12(|io| io.limited_retry = true), 1 << 31);
        assert_eq!(cdw12(|io| io.fua = true), 1 << 30);
        assert_eq!(cdw12(|io| io.prinfo = 0xf), 0xf << 26);
        assert_eq!(cdw12(|io| io.deallocate = true), 1 << 25);
        assert_eq!(cdw12(|io| io.storage_tag_check = true), 1 << 24);
        assert_eq!(cdw12(|io| io.dtype = 0xf), 0xf << 20);
        assert_eq!(cdw12(|io| io.range.blocks = 1 << 16), 0xffff);
    }

    #[test]
    fn ranges_do_not_wrap() {
        let range = |slba, blocks| BlockRange { slba, blocks };
        assert!(range(0, 8).is_within(8));
        assert!(!range(1, 8).is_within(8));
        assert!(range(u64::MAX - 1, 1).is_within(u64::MAX));
        assert_eq!(range(u64::MAX, 1).end(), None);
        assert!(!range(u64::MAX, 1).is_within(u64::MAX));
        assert!(!range(u64::MAX, u32::MAX).is_within(0));
    }

    #[test]
    fn dataset_management_bytes() {
        // NVM 3.2.3: NR 0's based; IDR bit 0, IDW bit 1, AD bit 2.
        let bytes: [u8; 64] =
            golden::bytes(&[(0, &[0x09, 0x40, 1, 0, 2]), (40, &[255]), (44, &[0b100])]);
        let dsm = DatasetManagement {
            ranges: 256,
            deallocate: true,
            integral_write: false,
            integral_read: false,
        };
        assert_eq!(dsm.encode(1, 2).as_bytes(), bytes);
        assert_eq!(DatasetManagement::parse(&Sqe::read_from_bytes(&bytes).unwrap()), dsm);
        assert_eq!(dsm.data_len(), 4096);
        let hints = DatasetManagement::parse(&Sqe::default().with_cdw10([0, 0b011]));
        assert!(hints.integral_read && hints.integral_write && !hints.deallocate);
        assert_eq!(hints.ranges, 1);
    }

    #[test]
    fn dsm_range_bytes() {
        let bytes = [0, 0, 0, 0, 0x02, 0, 0, 0xa2, 0x03, 0, 0, 0, 0, 0, 0, 0xa3];
        let range = DsmRange::new(0xa3 << 56 | 3, 0xa200_0002);
        assert_eq!(range.as_bytes(), bytes);
        let read = DsmRange::read_from_bytes(&bytes).unwrap();
        assert_eq!(read.range(), BlockRange { slba: 0xa3 << 56 | 3, blocks: 0xa200_0002 });
    }

    proptest! {
        #[test]
        fn block_io_round_trip(
            slba: u64, blocks in 1u32..=65536, fua: bool, limited_retry: bool, deallocate: bool,
            storage_tag_check: bool, prinfo in 0u8..16, dtype in 0u8..16, dspec: u16, dsm: u8,
        ) {
            let range = BlockRange { slba, blocks };
            let io = BlockIo {
                range, fua, limited_retry, deallocate, storage_tag_check, prinfo, dtype, dspec, dsm,
            };
            prop_assert_eq!(BlockIo::parse(&io.encode(IoOpcode::READ, 1, 1)), io);
        }

        #[test]
        fn any_command_is_parsed(bytes in proptest::array::uniform32(any::<u8>()), size: u64) {
            let mut all = [0u8; 64];
            all[32..].copy_from_slice(&bytes);
            let sqe = Sqe::read_from_bytes(&all).unwrap();
            let io = BlockIo::parse(&sqe);
            prop_assert!((1..=65536).contains(&io.range.blocks));
            if io.range.is_within(size) {
                prop_assert!(io.range.slba < size);
            }
            prop_assert!((1..=256).contains(&DatasetManagement::parse(&sqe).ranges));
        }
    }
}
