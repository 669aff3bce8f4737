//! Preferred sizes of a namespace (NVM 4.1.5.1: NOIOB, NPWG to NOWS), as numbers of blocks.

use zerocopy::little_endian::U16;

use super::{Namespace, nsfeat};

/// Sizes in logical blocks at which a namespace performs best; `None`: no preference.
///
/// Granularities and alignments of one block are no preference.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PreferredSizes {
    /// Writes should have a multiple of this size (NPWG).
    pub write_granularity: Option<u32>,
    /// Writes should start at a multiple of this (NPWA).
    pub write_alignment: Option<u32>,
    /// Deallocated ranges should have a multiple of this size (NPDG).
    pub deallocate_granularity: Option<u32>,
    /// Deallocated ranges should start at a multiple of this (NPDA).
    pub deallocate_alignment: Option<u32>,
    /// Size of the fastest writes, a multiple of `write_granularity` (NOWS).
    pub optimal_write: Option<u32>,
    /// Reads and writes should not cross a multiple of this (NOIOB).
    pub boundary: Option<u16>,
}

impl Namespace {
    /// The preferred sizes that are reported.
    #[must_use]
    pub fn preferred_sizes(&self) -> PreferredSizes {
        let boundary = self.io_boundary();
        if self.nsfeat & nsfeat::OPTIMAL_IO == 0 {
            return PreferredSizes { boundary, ..PreferredSizes::default() };
        }
        PreferredSizes {
            write_granularity: decoded(self.npwg),
            write_alignment: decoded(self.npwa),
            deallocate_granularity: decoded(self.npdg),
            deallocate_alignment: decoded(self.npda),
            optimal_write: decoded(self.nows),
            boundary,
        }
    }

    /// Reports these sizes; without those that exceed their field of 16 bits.
    pub fn set_preferred_sizes(&mut self, sizes: &PreferredSizes) {
        self.npwg = encoded(sizes.write_granularity);
        self.npwa = encoded(sizes.write_alignment);
        self.npdg = encoded(sizes.deallocate_granularity);
        self.npda = encoded(sizes.deallocate_alignment);
        self.nows = encoded(sizes.optimal_write);
        self.noiob.set(sizes.boundary.unwrap_or(0));
        let zero_based = [self.npwg, self.npwa, self.npdg, self.npda, self.nows];
        if zero_based.iter().all(|field| field.get() == 0) {
            self.nsfeat &= !nsfeat::OPTIMAL_IO;
        } else {
            self.nsfeat |= nsfeat::OPTIMAL_IO;
        }
    }
}

/// Converts a 0's based field; one block is no preference.
fn decoded(field: U16) -> Option<u32> {
    (field.get() != 0).then(|| u32::from(field.get()) + 1)
}

/// Converts to a 0's based field.
fn encoded(blocks: Option<u32>) -> U16 {
    let field = blocks.and_then(|blocks| u16::try_from(blocks.checked_sub(1)?).ok());
    U16::new(field.unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use zerocopy::IntoBytes;

    use super::*;
    use crate::golden;

    #[test]
    fn preferred_sizes_are_zero_based_but_for_the_boundary() {
        let sizes = PreferredSizes {
            write_granularity: Some(8),
            write_alignment: Some(4),
            deallocate_granularity: Some(65536),
            deallocate_alignment: Some(16),
            optimal_write: Some(256),
            boundary: Some(256),
        };
        let mut namespace = Namespace::default();
        namespace.set_preferred_sizes(&sizes);
        let bytes: [u8; 4096] = golden::bytes(&[
            (24, &[1 << 4]),     // NSFEAT.OPTPERF
            (46, &[0, 1]),       // NOIOB
            (64, &[7, 0]),       // NPWG
            (66, &[3, 0]),       // NPWA
            (68, &[0xff, 0xff]), // NPDG
            (70, &[15, 0]),      // NPDA
            (72, &[0xff, 0]),    // NOWS
        ]);
        assert_eq!(namespace.as_bytes(), bytes);
        assert_eq!(namespace.preferred_sizes(), sizes);
    }

    #[test]
    fn nothing_is_reported_of_one_block_or_too_many() {
        let sizes = PreferredSizes {
            write_granularity: Some(1),
            write_alignment: Some(65537),
            boundary: Some(8),
            ..PreferredSizes::default()
        };
        let mut namespace = Namespace::default();
        namespace.set_preferred_sizes(&sizes);
        assert_eq!((namespace.nsfeat, namespace.npwg.get(), namespace.npwa.get()), (0, 0, 0));
        // Without the bit in NSFEAT the fields are undefined, except NOIOB.
        namespace.npwg = U16::new(7);
        let only = PreferredSizes { boundary: Some(8), ..PreferredSizes::default() };
        assert_eq!(namespace.preferred_sizes(), only);
    }
}
