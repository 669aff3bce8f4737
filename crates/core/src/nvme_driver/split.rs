//! Splitting an operation into commands.

use super::identify::{ControllerCapabilities, NamespaceInfo};

/// Maximum blocks of a command: NLB is 16 bits, 0's based (NVM 3.2).
const BLOCKS_MAX: u64 = 1 << 16;

/// Maximum bytes of a Deallocate command. Longer ranges are split at multiples of it.
///
/// A range takes time, and a drive that exceeds the command timeout may be reset.
const DEALLOCATE_MAX: u64 = 1 << 30;

/// Kind of an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IoKind {
    /// Reads into the buffer.
    Read,
    /// Writes the buffer.
    Write {
        /// Completes only when the data is on the medium.
        fua: bool,
    },
    /// Compares the buffer with the blocks. A difference completes with
    /// [`BlockError::Media`](crate::block::BlockError::Media) and `EILSEQ`.
    Compare,
    /// Reads and verifies the blocks, without moving data.
    Verify,
    /// Makes the range read as zeroes.
    WriteZeroes {
        /// Completes only when the zeroes are on the medium.
        fua: bool,
        /// Allows the device to free the range.
        deallocate: bool,
    },
    /// Declares the contents of the range unused.
    Deallocate,
    /// Puts every write completed before on the medium.
    Flush,
}

impl IoKind {
    /// Returns true if the operation has a buffer.
    #[inline]
    pub fn moves_data(self) -> bool {
        matches!(self, Self::Read | Self::Write { .. } | Self::Compare)
    }

    /// Returns true if the operation changes the device.
    #[inline]
    pub fn is_write(self) -> bool {
        matches!(self, Self::Write { .. } | Self::WriteZeroes { .. } | Self::Deallocate)
    }
}

/// Maximum command sizes of a namespace, in bytes and whole blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Limits {
    /// Base-2 logarithm of the block size in bytes.
    pub(super) block_shift: u32,
    transfer: u64,
    verify: u64,
    zeroes: u64,
    deallocate: u64,
    boundary: Boundary,
}

/// Boundary that commands with data do not cross.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Boundary {
    None,
    /// Multiples of a power of two; the mask is one less.
    Mask(u64),
    Multiple(u64),
}

impl Limits {
    pub(super) fn new(abilities: &ControllerCapabilities, namespace: &NamespaceInfo) -> Self {
        let block = u64::from(namespace.block_size);
        let most = BLOCKS_MAX * block;
        let whole = |bytes: u64| (bytes - bytes % block).clamp(block, most);
        let transfer = whole(abilities.max_transfer);
        let boundary = match namespace.preferred.boundary.map(|blocks| u64::from(blocks) * block) {
            None => Boundary::None,
            Some(bytes) if bytes.is_power_of_two() => Boundary::Mask(bytes - 1),
            Some(bytes) => Boundary::Multiple(bytes),
        };
        Self {
            block_shift: block.ilog2(),
            transfer,
            verify: abilities.verify_bytes.map_or(most, whole),
            zeroes: abilities.zeroes_bytes.map_or(most, whole),
            deallocate: u64::from(abilities.range_blocks) * block,
            boundary,
        }
    }

    /// Returns the bytes of the first command for `left` bytes at `offset`.
    #[inline]
    pub(super) fn piece(&self, kind: IoKind, offset: u64, left: u64) -> u64 {
        let most = match kind {
            IoKind::Read | IoKind::Write { .. } | IoKind::Compare => self.transfer,
            IoKind::Verify => self.verify,
            IoKind::WriteZeroes { .. } => return left.min(self.zeroes),
            IoKind::Deallocate => {
                let to_cut = DEALLOCATE_MAX - offset % DEALLOCATE_MAX;
                return left.min(self.deallocate).min(to_cut);
            }
            IoKind::Flush => return left,
        };
        let to_boundary = match self.boundary {
            Boundary::None => u64::MAX,
            Boundary::Mask(mask) => mask + 1 - (offset & mask),
            Boundary::Multiple(bytes) => bytes - offset % bytes,
        };
        left.min(most).min(to_boundary)
    }
}

#[cfg(test)]
mod tests {
    use nvmeof_random::SplitMix64;

    use super::*;
    use crate::nvme_driver::identify::tests_support::{abilities, namespace_info};

    /// Returns the pieces of `len` bytes at `offset`.
    fn pieces(limits: &Limits, kind: IoKind, offset: u64, len: u64) -> Vec<(u64, u64)> {
        let (mut at, end) = (offset, offset + len);
        std::iter::from_fn(|| {
            let piece = limits.piece(kind, at, end - at);
            let this = (at, piece);
            at += piece;
            (piece > 0).then_some(this)
        })
        .collect()
    }

    #[test]
    fn pieces_keep_to_transfer_size_and_boundary_and_leave_nothing_out() {
        for seed in 0..200 {
            let mut rng = SplitMix64::new(seed);
            let block = 512 << rng.below(4);
            let boundary = [None, Some(8), Some(100), Some(256), Some(1)][rng.index(5)];
            let mut info = namespace_info(1 << 20, block);
            info.preferred.boundary = boundary;
            let transfer = 4096 << rng.below(8);
            let limits = Limits::new(&abilities(transfer), &info);
            let block = u64::from(block);
            let (offset, len) = (rng.below(1000) * block, (1 + rng.below(700)) * block);
            let mut at = offset;
            for (start, piece) in pieces(&limits, IoKind::Read, offset, len) {
                assert_eq!(start, at, "seed {seed}");
                assert!(piece > 0 && piece <= transfer && piece % block == 0, "seed {seed}");
                if let Some(boundary) = boundary {
                    let bytes = u64::from(boundary) * block;
                    assert_eq!(start / bytes, (start + piece - 1) / bytes, "seed {seed}");
                }
                at += piece;
            }
            assert_eq!(at, offset + len, "seed {seed}");
        }
    }

    #[test]
    fn zeroes_go_as_far_as_16_bits_of_blocks_say() {
        let info = namespace_info(1 << 30, 512);
        let limits = Limits::new(&abilities(4096), &info);
        let kind = IoKind::WriteZeroes { fua: false, deallocate: true };
        assert_eq!(limits.piece(kind, 512, 1 << 38), 65536 * 512);
        let small = ControllerCapabilities { zeroes_bytes: Some(8192), ..abilities(4096) };
        assert_eq!(Limits::new(&small, &info).piece(kind, 512, 1 << 38), 8192);
    }

    #[test]
    fn long_ranges_are_deallocated_in_commands_that_end_soon() {
        let info = namespace_info(1 << 40, 512);
        let limits = Limits::new(&abilities(4096), &info);
        const GIB: u64 = 1 << 30;
        let cut = pieces(&limits, IoKind::Deallocate, 512, 2 * GIB);
        assert_eq!(cut, [(512, GIB - 512), (GIB, GIB), (2 * GIB, 512)]);
        let few = ControllerCapabilities { range_blocks: 8, ..abilities(4096) };
        let cut = pieces(&Limits::new(&few, &info), IoKind::Deallocate, GIB - 512, 5 * 1024);
        assert_eq!(cut, [(GIB - 512, 512), (GIB, 4096), (GIB + 4096, 512)]);
    }
}
