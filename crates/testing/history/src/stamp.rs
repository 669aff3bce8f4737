//! Data that a test writes into a block and reads back.

use std::fmt;

use crate::record::Block;

/// Bytes of a block.
pub const BLOCK: usize = 512;

/// Bytes of one copy of a stamp; copies fill a block.
const COPY: usize = 32;
const _: () = assert!(BLOCK.is_multiple_of(COPY));

const MAGIC: u32 = u32::from_le_bytes(*b"hist");

/// Writer of a block and number of its write; no two writes share a stamp.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Stamp {
    /// The host.
    pub host: u32,
    /// Number of the write, counted per host.
    pub sequence: u64,
}

/// Content of a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Content {
    /// Zeroes: never written, or Write Zeroes or Deallocate was last.
    Zero,
    /// Data of this write.
    Stamp(Stamp),
}

/// Content that no write to the block can have left.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Damage {
    /// Parts of different writes.
    Torn,
    /// Data written for another block.
    Misplaced(Block),
    /// Neither zeroes nor a stamp.
    Foreign,
}

impl Stamp {
    /// Fills the bytes of `block`, so that any part of them identifies the block and the writer.
    pub fn fill(self, block: Block, bytes: &mut [u8]) {
        let copy = self.copy(block);
        for part in bytes.chunks_mut(COPY) {
            part.copy_from_slice(&copy[..part.len()]);
        }
    }

    fn copy(self, block: Block) -> [u8; COPY] {
        let mut copy = [0; COPY];
        copy[..4].copy_from_slice(&MAGIC.to_le_bytes());
        copy[4..8].copy_from_slice(&block.disk.to_le_bytes());
        copy[8..16].copy_from_slice(&block.lba.to_le_bytes());
        copy[16..20].copy_from_slice(&self.host.to_le_bytes());
        copy[24..].copy_from_slice(&self.sequence.to_le_bytes());
        copy
    }
}

impl Content {
    /// Parses `bytes` that were read from `block`.
    ///
    /// # Errors
    /// No write to that block can have left these bytes.
    pub fn parse(block: Block, bytes: &[u8]) -> Result<Self, Damage> {
        if bytes.iter().all(|byte| *byte == 0) {
            return Ok(Self::Zero);
        }
        let (first, _) = bytes.split_first_chunk::<COPY>().ok_or(Damage::Foreign)?;
        if bytes.chunks(COPY).any(|part| part != &first[..part.len()]) {
            return Err(Damage::Torn);
        }
        let stamp = Stamp { host: four(first, 16), sequence: eight(first, 24) };
        let written = Block { disk: four(first, 4), lba: eight(first, 8) };
        if stamp.copy(written) != *first {
            return Err(Damage::Foreign);
        }
        if written == block { Ok(Self::Stamp(stamp)) } else { Err(Damage::Misplaced(written)) }
    }
}

fn four(bytes: &[u8; COPY], at: usize) -> u32 {
    u32::from_le_bytes(std::array::from_fn(|byte| bytes[at + byte]))
}

fn eight(bytes: &[u8; COPY], at: usize) -> u64 {
    u64::from_le_bytes(std::array::from_fn(|byte| bytes[at + byte]))
}

impl fmt::Display for Content {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Zero => f.write_str("zeroes"),
            Self::Stamp(Stamp { host, sequence }) => write!(f, "host {host} #{sequence}"),
        }
    }
}

impl fmt::Display for Damage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Torn => f.write_str("parts of different writes"),
            Self::Misplaced(block) => write!(f, "what was written to {block}"),
            Self::Foreign => f.write_str("bytes that nobody wrote"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HERE: Block = Block { disk: 2, lba: 77 };
    const STAMP: Stamp = Stamp { host: 3, sequence: 1 << 40 };

    fn filled() -> [u8; BLOCK] {
        let mut bytes = [0; BLOCK];
        STAMP.fill(HERE, &mut bytes);
        bytes
    }

    #[test]
    fn a_stamp_is_read_back() {
        assert_eq!(Content::parse(HERE, &filled()), Ok(Content::Stamp(STAMP)));
        assert_eq!(Content::parse(HERE, &[0; BLOCK]), Ok(Content::Zero));
    }

    #[test]
    fn what_was_not_written_here_is_told() {
        let elsewhere = Block { lba: 78, ..HERE };
        assert_eq!(Content::parse(elsewhere, &filled()), Err(Damage::Misplaced(HERE)));
        assert_eq!(Content::parse(HERE, &[7; BLOCK]), Err(Damage::Foreign));
        let mut torn = filled();
        torn[300..].fill(0);
        assert_eq!(Content::parse(HERE, &torn), Err(Damage::Torn));
        let mut turned = filled();
        turned[511] ^= 1;
        assert_eq!(Content::parse(HERE, &turned), Err(Damage::Torn));
    }
}
