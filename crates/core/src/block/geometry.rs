//! Geometry: the sizes at which a device performs best.

use nvmeof_wire::identify::PreferredSizes;

/// Sizes in bytes at which a device performs best; `None`: not known, or no preference.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Geometry {
    /// Writes should have a multiple of this size.
    pub write_granularity: Option<u64>,
    /// Writes should start at a multiple of this.
    pub write_alignment: Option<u64>,
    /// Deallocated ranges should have a multiple of this size.
    pub deallocate_granularity: Option<u64>,
    /// Deallocated ranges should start at a multiple of this.
    pub deallocate_alignment: Option<u64>,
    /// Size of the fastest writes.
    pub optimal_write: Option<u64>,
    /// Reads and writes should not cross a multiple of this.
    pub boundary: Option<u64>,
}

impl Geometry {
    /// Converts the sizes that a drive reports for blocks of `block_size` bytes.
    #[must_use]
    pub fn from_blocks(sizes: &PreferredSizes, block_size: u32) -> Self {
        let bytes = |blocks: Option<u32>| Some(u64::from(blocks?) * u64::from(block_size));
        Self {
            write_granularity: bytes(sizes.write_granularity),
            write_alignment: bytes(sizes.write_alignment),
            deallocate_granularity: bytes(sizes.deallocate_granularity),
            deallocate_alignment: bytes(sizes.deallocate_alignment),
            optimal_write: bytes(sizes.optimal_write),
            boundary: bytes(sizes.boundary.map(u32::from)),
        }
    }

    /// Converts to logical blocks of `block_size` bytes.
    ///
    /// A size that is not a whole number of blocks is omitted, as is an optimal write that is not a
    /// multiple of the write granularity.
    #[must_use]
    pub fn to_blocks(&self, block_size: u32) -> PreferredSizes {
        let block_size = u64::from(block_size.max(1));
        let blocks = |bytes: Option<u64>| {
            let whole = bytes.filter(|bytes| bytes.is_multiple_of(block_size))? / block_size;
            u32::try_from(whole).ok().filter(|blocks| *blocks > 1)
        };
        let write_granularity = blocks(self.write_granularity);
        let optimal_write = blocks(self.optimal_write)
            .filter(|size| size.is_multiple_of(write_granularity.unwrap_or(1)));
        PreferredSizes {
            write_granularity,
            write_alignment: blocks(self.write_alignment),
            deallocate_granularity: blocks(self.deallocate_granularity),
            deallocate_alignment: blocks(self.deallocate_alignment),
            optimal_write,
            boundary: blocks(self.boundary).and_then(|boundary| u16::try_from(boundary).ok()),
        }
    }

    /// Returns the geometry of the part that starts at `offset`.
    ///
    /// An alignment or a boundary remains if the part starts at a multiple of it.
    #[must_use]
    pub fn at_offset(self, offset: u64) -> Self {
        let kept = |bytes: Option<u64>| bytes.filter(|bytes| offset.is_multiple_of(*bytes));
        Self {
            write_alignment: kept(self.write_alignment),
            deallocate_alignment: kept(self.deallocate_alignment),
            boundary: kept(self.boundary),
            ..self
        }
    }

    /// Returns the geometry of stripes of `chunk` bytes over members with these geometries.
    #[must_use]
    pub(super) fn of_stripe(members: &[Self], chunk: u64) -> Self {
        let common = |size: fn(&Self) -> Option<u64>| {
            let sizes = members.iter().filter_map(size);
            let largest = sizes.clone().max()?;
            let divides = |size: u64| largest.is_multiple_of(size);
            (sizes.clone().all(divides) && chunk.is_multiple_of(largest)).then_some(largest)
        };
        let smallest = members.iter().filter_map(|member| member.boundary).min();
        let within = smallest.filter(|boundary| chunk.is_multiple_of(*boundary));
        Self {
            write_granularity: common(|member| member.write_granularity),
            write_alignment: common(|member| member.write_alignment),
            deallocate_granularity: common(|member| member.deallocate_granularity),
            deallocate_alignment: common(|member| member.deallocate_alignment),
            optimal_write: chunk.checked_mul(members.len() as u64),
            // The chunk is none: hosts would split what the stripe splits at less cost.
            boundary: within,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KIB: u64 = 1024;

    fn drive() -> Geometry {
        Geometry {
            write_granularity: Some(16 * KIB),
            write_alignment: Some(16 * KIB),
            deallocate_granularity: Some(64 * KIB),
            deallocate_alignment: Some(32 * KIB),
            optimal_write: Some(128 * KIB),
            boundary: Some(128 * KIB),
        }
    }

    #[test]
    fn sizes_in_blocks_and_bytes() {
        let sizes = drive().to_blocks(4096);
        let expected = PreferredSizes {
            write_granularity: Some(4),
            write_alignment: Some(4),
            deallocate_granularity: Some(16),
            deallocate_alignment: Some(8),
            optimal_write: Some(32),
            boundary: Some(32),
        };
        assert_eq!(sizes, expected);
        assert_eq!(Geometry::from_blocks(&sizes, 4096), drive());
    }

    #[test]
    fn sizes_that_are_no_whole_blocks_are_omitted() {
        let odd = Geometry {
            write_granularity: Some(512),
            write_alignment: Some(4096),
            deallocate_granularity: Some(6144),
            deallocate_alignment: None,
            optimal_write: Some(u64::MAX),
            boundary: Some(4096 * 65536),
        };
        assert_eq!(odd.to_blocks(4096), PreferredSizes::default());
        // A USB bridge that reports 65535 sectors.
        let odd = Geometry {
            write_granularity: Some(4096),
            optimal_write: Some(65535 * 512),
            ..Geometry::default()
        };
        let sizes = odd.to_blocks(512);
        assert_eq!((sizes.write_granularity, sizes.optimal_write), (Some(8), None));
    }

    #[test]
    fn a_part_keeps_the_alignments_that_its_start_has() {
        assert_eq!(drive().at_offset(0), drive());
        assert_eq!(drive().at_offset(256 * KIB), drive());
        let part = drive().at_offset(48 * KIB);
        let expected = Geometry { deallocate_alignment: None, boundary: None, ..drive() };
        assert_eq!(part, expected);
        assert_eq!(drive().at_offset(4 * KIB).write_alignment, None);
    }

    #[test]
    fn a_stripe_has_the_boundaries_of_its_members() {
        let four = [drive(); 4];
        let stripe = Geometry::of_stripe(&four, 128 * KIB);
        assert_eq!(stripe, Geometry { optimal_write: Some(512 * KIB), ..drive() });
        // Only members' boundaries within the chunks are boundaries of the stripe.
        assert_eq!(Geometry::of_stripe(&four, 256 * KIB).boundary, Some(128 * KIB));
        assert_eq!(Geometry::of_stripe(&four, 64 * KIB).boundary, None);
        // Chunks that are no multiple of the drives' granularity.
        assert_eq!(Geometry::of_stripe(&four, 24 * KIB).write_granularity, None);
        let other = Geometry { write_granularity: Some(4 * KIB), ..Geometry::default() };
        let mixed = Geometry::of_stripe(&[drive(), other, Geometry::default()], 128 * KIB);
        assert_eq!(mixed.write_granularity, Some(16 * KIB));
        let other = Geometry { write_granularity: Some(12 * KIB), ..Geometry::default() };
        assert_eq!(Geometry::of_stripe(&[drive(), other], 128 * KIB).write_granularity, None);
    }
}
