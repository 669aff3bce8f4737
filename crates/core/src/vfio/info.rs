//! Parser of the kernel's variable-length results: a fixed part, followed by a chain of
//! capabilities.
//!
//! Offsets: `include/uapi/linux/vfio.h`. The parser reads the valid part of a result that is
//! shorter than declared, or has a circular chain.

use std::mem::offset_of;

use vfio_bindings::bindings::vfio::{
    VFIO_IOMMU_INFO_CAPS, VFIO_IOMMU_INFO_PGSIZES, VFIO_IOMMU_TYPE1_INFO_CAP_IOVA_RANGE,
    VFIO_IOMMU_TYPE1_INFO_DMA_AVAIL, VFIO_REGION_INFO_CAP_SPARSE_MMAP, VFIO_REGION_INFO_FLAG_CAPS,
    VFIO_REGION_INFO_FLAG_MMAP, VFIO_REGION_INFO_FLAG_READ, VFIO_REGION_INFO_FLAG_WRITE,
    vfio_iommu_type1_info, vfio_iommu_type1_info_cap_iova_range, vfio_iommu_type1_info_dma_avail,
    vfio_region_info, vfio_region_info_cap_sparse_mmap,
};

/// Limit of capabilities, more than any kernel has.
const CHAIN: usize = 64;

/// Capabilities of an IOMMU.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct IommuInfo {
    /// First and last address of each mappable range; empty if the kernel does not report them.
    pub(super) ranges: Vec<(u64, u64)>,
    /// One bit for each page size.
    pub(super) page_sizes: u64,
    /// Number of further mappings allowed.
    pub(super) mappings_left: Option<u32>,
}

impl IommuInfo {
    /// Parses the result of `VFIO_IOMMU_GET_INFO`.
    pub(super) fn parse(answer: &Answer) -> Self {
        let flags = answer.u32(offset_of!(vfio_iommu_type1_info, flags));
        let mut info = Self::default();
        if flags & VFIO_IOMMU_INFO_PGSIZES != 0 {
            info.page_sizes = answer.u64(offset_of!(vfio_iommu_type1_info, iova_pgsizes));
        }
        if flags & VFIO_IOMMU_INFO_CAPS == 0 {
            return info;
        }
        let first = answer.u32(offset_of!(vfio_iommu_type1_info, cap_offset));
        for (id, at) in answer.capabilities(first) {
            match id {
                VFIO_IOMMU_TYPE1_INFO_CAP_IOVA_RANGE => {
                    let count =
                        answer.u32(at + offset_of!(vfio_iommu_type1_info_cap_iova_range, nr_iovas));
                    let list = at + offset_of!(vfio_iommu_type1_info_cap_iova_range, iova_ranges);
                    info.ranges = answer.pairs(list, count);
                }
                VFIO_IOMMU_TYPE1_INFO_DMA_AVAIL => {
                    let avail = at + offset_of!(vfio_iommu_type1_info_dma_avail, avail);
                    info.mappings_left = Some(answer.u32(avail));
                }
                _ => {}
            }
        }
        info
    }
}

/// A region of a device's file: a BAR, or its config space.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct RegionInfo {
    /// Offset in the device's file.
    pub(super) offset: u64,
    /// Length in bytes.
    pub(super) size: u64,
    /// True if it can be read and written.
    pub(super) accessible: bool,
    /// Mappable bytes from its start.
    pub(super) mappable: u64,
}

impl RegionInfo {
    /// Parses the result of `VFIO_DEVICE_GET_REGION_INFO`.
    pub(super) fn parse(answer: &Answer) -> Self {
        let flags = answer.u32(offset_of!(vfio_region_info, flags));
        let size = answer.u64(offset_of!(vfio_region_info, size));
        let both = VFIO_REGION_INFO_FLAG_READ | VFIO_REGION_INFO_FLAG_WRITE;
        let mut mappable = if flags & VFIO_REGION_INFO_FLAG_MMAP == 0 { 0 } else { size };
        if flags & VFIO_REGION_INFO_FLAG_CAPS != 0 {
            let first = answer.u32(offset_of!(vfio_region_info, cap_offset));
            for (id, at) in answer.capabilities(first) {
                // Only areas can be mapped: the first one holds the registers.
                if id == VFIO_REGION_INFO_CAP_SPARSE_MMAP {
                    let count =
                        answer.u32(at + offset_of!(vfio_region_info_cap_sparse_mmap, nr_areas));
                    let list = at + offset_of!(vfio_region_info_cap_sparse_mmap, areas);
                    let areas = answer.pairs(list, count);
                    let head = areas.iter().find(|(offset, _)| *offset == 0);
                    mappable = head.map_or(0, |(_, len)| mappable.min(*len));
                }
            }
        }
        Self {
            offset: answer.u64(offset_of!(vfio_region_info, offset)),
            size,
            accessible: flags & both == both,
            mappable,
        }
    }
}

/// Bytes of a result. Bytes beyond its end read as zero.
#[derive(Debug)]
pub(super) struct Answer(Vec<u64>);

impl Answer {
    /// Creates a buffer of at least `len` bytes, whose first field holds this length.
    pub(super) fn sized(len: usize) -> Self {
        let mut answer = Self(vec![0; len.div_ceil(8).max(1)]);
        let bytes = u32::try_from(answer.0.len() * 8).unwrap_or(u32::MAX);
        answer.put_u32(0, bytes);
        answer
    }

    /// Returns the bytes that the kernel needs for the complete result.
    pub(super) fn wanted(&self) -> usize {
        self.u32(0) as usize
    }

    /// Returns the bytes, aligned to 8.
    pub(super) fn words_mut(&mut self) -> &mut [u64] {
        &mut self.0
    }

    /// Sets a 32-bit number at an offset that is a multiple of 4.
    pub(super) fn put_u32(&mut self, at: usize, value: u32) {
        let Some(word) = self.0.get_mut(at / 8) else {
            debug_assert!(false, "offset {at} is outside of the result");
            return;
        };
        let mut bytes = word.to_ne_bytes();
        bytes[at % 8..][..4].copy_from_slice(&value.to_ne_bytes());
        *word = u64::from_ne_bytes(bytes);
    }

    fn u32(&self, at: usize) -> u32 {
        let word = self.0.get(at / 8).copied().unwrap_or(0).to_ne_bytes();
        let mut bytes = [0; 4];
        bytes.copy_from_slice(&word[at % 8 / 4 * 4..][..4]);
        u32::from_ne_bytes(bytes)
    }

    fn u64(&self, at: usize) -> u64 {
        let mut bytes = [0; 8];
        bytes[..4].copy_from_slice(&self.u32(at).to_ne_bytes());
        bytes[4..].copy_from_slice(&self.u32(at + 4).to_ne_bytes());
        u64::from_ne_bytes(bytes)
    }

    /// Returns up to `count` pairs of numbers at an offset.
    fn pairs(&self, at: usize, count: u32) -> Vec<(u64, u64)> {
        let fit = (self.0.len() * 8).saturating_sub(at) / 16;
        let count = fit.min(count as usize);
        (0..count).map(|n| (self.u64(at + n * 16), self.u64(at + n * 16 + 8))).collect()
    }

    /// Returns identifier and offset of each capability in the chain from `first`. Each begins with
    /// its identifier and version (16 bits each) and the offset of the next.
    fn capabilities(&self, first: u32) -> impl Iterator<Item = (u32, usize)> {
        let mut next = first as usize;
        let inside = move |at: usize| at > 0 && at.is_multiple_of(4) && at + 8 <= self.0.len() * 8;
        std::iter::from_fn(move || {
            let at = next;
            if !inside(at) {
                return None;
            }
            next = self.u32(at + 4) as usize;
            let mut id = [0; 2];
            id.copy_from_slice(&self.u32(at).to_ne_bytes()[..2]);
            Some((u32::from(u16::from_ne_bytes(id)), at))
        })
        .take(CHAIN)
    }
}

#[cfg(test)]
mod tests {
    use nvmeof_random::SplitMix64;

    use super::*;

    fn answer(words: &[(usize, u32)], len: usize) -> Answer {
        let mut answer = Answer::sized(len);
        for &(at, value) in words {
            answer.put_u32(at, value);
        }
        answer
    }

    #[test]
    fn ranges_and_what_is_left_are_read_from_the_chain() {
        let answer = answer(
            &[
                (4, 3),
                (8, 0x1000),
                (16, 24),
                // One list of two ranges.
                (24, 1 | 1 << 16),
                (28, 72),
                (32, 2),
                (44, 0),
                (48, 0xfedf_ffff),
                (56, 0xfef0_0000),
                (64, 0xffff_ffff),
                (68, 0x7f),
                // Number of mappings left.
                (72, 3 | 1 << 16),
                (76, 0),
                (80, 65535),
            ],
            88,
        );
        let info = IommuInfo::parse(&answer);
        assert_eq!(info.page_sizes, 0x1000);
        assert_eq!(info.ranges, [(0, 0xfedf_ffff), (0xfef0_0000, 0x7f_ffff_ffff)]);
        assert_eq!(info.mappings_left, Some(65535));
    }

    #[test]
    fn a_kernel_without_capabilities_tells_nothing() {
        let info = IommuInfo::parse(&answer(&[(4, 1), (8, 0x1000), (16, 24), (24, 1)], 64));
        assert_eq!(info, IommuInfo { page_sizes: 0x1000, ..IommuInfo::default() });
    }

    #[test]
    fn a_region_can_be_mapped_as_far_as_its_first_area() {
        let flags =
            VFIO_REGION_INFO_FLAG_READ | VFIO_REGION_INFO_FLAG_WRITE | VFIO_REGION_INFO_FLAG_MMAP;
        let whole = answer(&[(4, flags), (16, 0x4000), (28, 7)], 32);
        let expected =
            RegionInfo { offset: 7 << 32, size: 0x4000, accessible: true, mappable: 0x4000 };
        assert_eq!(RegionInfo::parse(&whole), expected);
        let words = [
            (4, flags | VFIO_REGION_INFO_FLAG_CAPS),
            (12, 32),
            (16, 0x8000),
            (32, 1 | 1 << 16),
            (40, 2),
            (48, 0x4000),
            (56, 0x4000),
            (64, 0),
            (72, 0x2000),
        ];
        assert_eq!(RegionInfo::parse(&answer(&words, 80)).mappable, 0x2000);
        // The same without an area at the start.
        let mut words = words;
        words[7].1 = 0x1000;
        assert_eq!(RegionInfo::parse(&answer(&words, 80)).mappable, 0);
        let plain = answer(&[(4, VFIO_REGION_INFO_FLAG_READ), (16, 0x4000)], 32);
        let region = RegionInfo::parse(&plain);
        assert_eq!((region.mappable, region.accessible), (0, false));
    }

    #[test]
    fn a_chain_in_a_circle_ends() {
        let answer = answer(&[(4, 3), (16, 24), (24, 9), (28, 24)], 64);
        assert_eq!(IommuInfo::parse(&answer).ranges, []);
    }

    #[test]
    fn noise_is_read_to_its_end() {
        for seed in 0..2000 {
            let mut rng = SplitMix64::new(seed);
            let mut answer = Answer::sized(rng.index(200));
            for word in answer.words_mut() {
                *word = if rng.below(2) == 0 { rng.next_u64() } else { rng.below(64) };
            }
            let ranges = IommuInfo::parse(&answer).ranges.len();
            assert!(ranges * 16 <= 200, "seed {seed}");
            let region = RegionInfo::parse(&answer);
            assert!(region.mappable <= region.size, "seed {seed}");
        }
    }
}
