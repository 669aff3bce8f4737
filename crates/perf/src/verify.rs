//! Contents of verified blocks, and the log of the blocks that a run wrote.
//!
//! A block is one logical block of the namespace. Its words are little-endian:
//!
//! ```text
//! 0  "NVMEPERF"     1  LBA            2  seed        3  run (random, one a run)
//! 4  generation     5  namespace      6..  payload computed from the words above
//! last 4 bytes: CRC32C of everything before them
//! ```

use nvmeof_random::mix;

const MAGIC: u64 = u64::from_le_bytes(*b"NVMEPERF");
const HEADER_WORDS: usize = 6;
const CRC_LEN: usize = 4;
const PAYLOAD_STEP: u64 = 0x9e37_79b9_7f4a_7c15;

/// Smallest block that can be verified.
pub(crate) const MIN_BLOCK: u32 = 64;

/// Header of a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct BlockHeader {
    pub(crate) lba: u64,
    pub(crate) seed: u64,
    pub(crate) run: u64,
    pub(crate) generation: u64,
    /// Distinguishes namespaces, see [`namespace_tag`].
    pub(crate) namespace: u64,
}

/// A number for a namespace, the same in every run.
pub(crate) fn namespace_tag(subnqn: &str, nsid: u32) -> u64 {
    let hash = subnqn.bytes().fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3)
    });
    mix(hash ^ u64::from(nsid))
}

impl BlockHeader {
    fn words(&self) -> [u64; HEADER_WORDS] {
        [MAGIC, self.lba, self.seed, self.run, self.generation, self.namespace]
    }

    /// Writes the block.
    pub(crate) fn fill(&self, block: &mut [u8]) {
        let words = self.words();
        let mut word = words.iter().fold(0, |sum, &word| mix(sum ^ word));
        let (chunks, _) = block.as_chunks_mut::<8>();
        let (header, payload) = chunks.split_at_mut(HEADER_WORDS);
        for (to, from) in header.iter_mut().zip(words) {
            *to = from.to_le_bytes();
        }
        for to in payload {
            *to = word.to_le_bytes();
            word = word.wrapping_add(PAYLOAD_STEP);
        }
        if let Some((covered, crc)) = block.split_last_chunk_mut::<CRC_LEN>() {
            *crc = crc_fast::crc32_iscsi(covered).to_le_bytes();
        }
    }
}

/// Expected contents of the unit of a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ExpectedBlock {
    /// This run did not write it.
    Anything,
    /// The last write of this run has this generation.
    Generation(u32),
    /// A write of this run failed: the contents are old or new.
    Unclear,
}

/// Result of the check of a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum BlockCheck {
    /// As expected.
    Good,
    /// Never written by this tool with this seed.
    Unwritten,
    /// Wrong.
    Bad(BlockDefect),
}

/// Defect of a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum BlockDefect {
    /// The checksum is wrong.
    Corrupt,
    /// A valid block of another address.
    Misplaced { lba: u64 },
    /// A valid block of another namespace.
    WrongNamespace,
    /// A valid block that was overwritten later.
    Stale { found: u64, this_run: bool },
    /// No block of this tool at a place where this run wrote one.
    Lost,
}

impl std::fmt::Display for BlockDefect {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Corrupt => f.write_str("the checksum does not fit: damaged or torn"),
            Self::Misplaced { lba } => write!(f, "data of LBA {lba} found"),
            Self::WrongNamespace => f.write_str("data of another namespace found"),
            Self::Stale { found, this_run: true } => {
                write!(f, "overwritten generation {found} found: stale or lost write")
            }
            Self::Stale { found, this_run: false } => {
                write!(f, "generation {found} of an earlier run found: lost write")
            }
            Self::Lost => f.write_str("what was written is not there: lost write"),
        }
    }
}

/// Checks a block that was read; `ours` is the expected header.
#[inline]
pub(crate) fn check(block: &[u8], ours: &BlockHeader, expected: ExpectedBlock) -> BlockCheck {
    let mut words = [0; HEADER_WORDS];
    for (word, bytes) in words.iter_mut().zip(block.as_chunks::<8>().0) {
        *word = u64::from_le_bytes(*bytes);
    }
    let [magic, lba, seed, run, generation, namespace] = words;
    let was_written = matches!(expected, ExpectedBlock::Generation(_));
    if magic != MAGIC || seed != ours.seed {
        // Two more matching words: a block of this tool with damage.
        let resemblance = usize::from(magic == MAGIC)
            + usize::from(lba == ours.lba)
            + usize::from(seed == ours.seed)
            + usize::from(namespace == ours.namespace);
        return match (was_written, resemblance) {
            (_, 3..) if !is_sound(block) => BlockCheck::Bad(BlockDefect::Corrupt),
            (true, _) => BlockCheck::Bad(BlockDefect::Lost),
            (false, _) => BlockCheck::Unwritten,
        };
    }
    if !is_sound(block) {
        return BlockCheck::Bad(BlockDefect::Corrupt);
    }
    if namespace != ours.namespace {
        return BlockCheck::Bad(BlockDefect::WrongNamespace);
    }
    if lba != ours.lba {
        return BlockCheck::Bad(BlockDefect::Misplaced { lba });
    }
    match expected {
        ExpectedBlock::Generation(wanted) if run != ours.run || generation != u64::from(wanted) => {
            BlockCheck::Bad(BlockDefect::Stale { found: generation, this_run: run == ours.run })
        }
        _ => BlockCheck::Good,
    }
}

fn is_sound(block: &[u8]) -> bool {
    block
        .split_last_chunk::<CRC_LEN>()
        .is_some_and(|(covered, crc)| u32::from_le_bytes(*crc) == crc_fast::crc32_iscsi(covered))
}

/// Log of the units that this run wrote, one number per unit.
#[derive(Debug)]
pub(crate) struct WriteLog {
    first: u64,
    generations: Vec<u32>,
}

/// Marks a unit whose last write failed.
const UNCLEAR: u32 = u32::MAX;

impl WriteLog {
    /// A log for the `count` units from `first` on. Memory becomes resident as units are written.
    pub(crate) fn new(first: u64, count: u64) -> Self {
        Self { first, generations: vec![0; usize::try_from(count).unwrap_or(usize::MAX)] }
    }

    /// Expected result of a read of `unit`.
    pub(crate) fn expected(&self, unit: u64) -> ExpectedBlock {
        match self.entry(unit) {
            0 => ExpectedBlock::Anything,
            UNCLEAR => ExpectedBlock::Unclear,
            generation => ExpectedBlock::Generation(generation),
        }
    }

    /// Returns the generation for the next write of `unit`; until it succeeds, the contents are
    /// unclear.
    pub(crate) fn begin_write(&mut self, unit: u64, counter: &mut u32) -> u32 {
        // One counter per stream: generations differ between units too, and are never 0 or UNCLEAR.
        *counter = counter.wrapping_add(1).clamp(1, UNCLEAR - 1);
        self.set(unit, UNCLEAR);
        *counter
    }

    /// Records a successful write.
    pub(crate) fn written(&mut self, unit: u64, generation: u32) {
        self.set(unit, generation);
    }

    /// Returns the next unit that this run wrote, from index `at` on, with the index after it.
    pub(crate) fn next_written(&self, at: usize) -> Option<(usize, u64)> {
        let rest = self.generations.get(at..)?;
        let found = at + rest.iter().position(|&generation| generation != 0)?;
        Some((found + 1, self.first + found as u64))
    }

    fn index(&self, unit: u64) -> Option<usize> {
        usize::try_from(unit.checked_sub(self.first)?).ok()
    }

    fn entry(&self, unit: u64) -> u32 {
        self.index(unit).and_then(|at| self.generations.get(at)).copied().unwrap_or(0)
    }

    fn set(&mut self, unit: u64, value: u32) {
        if let Some(entry) = self.index(unit).and_then(|at| self.generations.get_mut(at)) {
            *entry = value;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OURS: BlockHeader = BlockHeader { lba: 77, seed: 1, run: 5, generation: 3, namespace: 9 };

    fn block(header: BlockHeader) -> Vec<u8> {
        let mut block = vec![0; 512];
        header.fill(&mut block);
        block
    }

    #[test]
    fn a_block_is_what_it_says() {
        let good = block(OURS);
        assert_eq!(check(&good, &OURS, ExpectedBlock::Generation(3)), BlockCheck::Good);
        assert_eq!(check(&good, &OURS, ExpectedBlock::Anything), BlockCheck::Good);
        assert_eq!(check(&good, &OURS, ExpectedBlock::Unclear), BlockCheck::Good);
    }

    #[test]
    fn every_damaged_byte_is_seen() {
        let good = block(OURS);
        for at in 0..good.len() {
            let mut bad = good.clone();
            bad[at] ^= 0x10;
            for expected in [ExpectedBlock::Generation(3), ExpectedBlock::Anything] {
                let check = check(&bad, &OURS, expected);
                assert_eq!(check, BlockCheck::Bad(BlockDefect::Corrupt), "byte {at}, {expected:?}");
            }
        }
    }

    #[test]
    fn a_torn_block_is_seen() {
        let old = block(BlockHeader { generation: 2, ..OURS });
        let mut torn = block(OURS);
        torn[256..].copy_from_slice(&old[256..]);
        let check = check(&torn, &OURS, ExpectedBlock::Generation(3));
        assert_eq!(check, BlockCheck::Bad(BlockDefect::Corrupt));
    }

    #[test]
    fn stale_misplaced_foreign_and_lost_blocks_are_told_apart() {
        let judge = |header, expected| check(&block(header), &OURS, expected);
        let bad = BlockCheck::Bad;
        assert_eq!(
            judge(BlockHeader { generation: 2, ..OURS }, ExpectedBlock::Generation(3)),
            bad(BlockDefect::Stale { found: 2, this_run: true })
        );
        assert_eq!(
            judge(BlockHeader { run: 4, ..OURS }, ExpectedBlock::Generation(3)),
            bad(BlockDefect::Stale { found: 3, this_run: false })
        );
        assert_eq!(
            judge(BlockHeader { run: 4, ..OURS }, ExpectedBlock::Anything),
            BlockCheck::Good
        );
        assert_eq!(
            judge(BlockHeader { lba: 78, ..OURS }, ExpectedBlock::Anything),
            bad(BlockDefect::Misplaced { lba: 78 })
        );
        assert_eq!(
            judge(BlockHeader { namespace: 8, ..OURS }, ExpectedBlock::Anything),
            bad(BlockDefect::WrongNamespace)
        );
        let zeros = [0; 512];
        assert_eq!(check(&zeros, &OURS, ExpectedBlock::Generation(3)), bad(BlockDefect::Lost));
        assert_eq!(check(&zeros, &OURS, ExpectedBlock::Anything), BlockCheck::Unwritten);
        assert_eq!(check(&zeros, &OURS, ExpectedBlock::Unclear), BlockCheck::Unwritten);
        // Another seed: written by this tool, but unknown to this run.
        assert_eq!(
            judge(BlockHeader { seed: 2, ..OURS }, ExpectedBlock::Anything),
            BlockCheck::Unwritten
        );
        assert_eq!(
            judge(BlockHeader { seed: 2, ..OURS }, ExpectedBlock::Generation(3)),
            bad(BlockDefect::Lost)
        );
    }

    #[test]
    fn the_ledger_remembers_what_was_written() {
        let mut write_log = WriteLog::new(100, 10);
        let mut counter = 0;
        assert_eq!(write_log.expected(105), ExpectedBlock::Anything);
        let first = write_log.begin_write(105, &mut counter);
        assert_eq!(write_log.expected(105), ExpectedBlock::Unclear);
        write_log.written(105, first);
        assert_eq!(write_log.expected(105), ExpectedBlock::Generation(first));
        let second = write_log.begin_write(105, &mut counter);
        assert_ne!(first, second);
        assert_eq!(write_log.next_written(0), Some((6, 105)));
        assert_eq!(write_log.next_written(6), None);
        assert_eq!(write_log.expected(99), ExpectedBlock::Anything);
        assert_eq!(write_log.expected(110), ExpectedBlock::Anything);
    }

    #[test]
    fn namespaces_have_tags_of_their_own() {
        assert_ne!(namespace_tag("a", 1), namespace_tag("a", 2));
        assert_ne!(namespace_tag("a", 1), namespace_tag("b", 1));
        assert_eq!(namespace_tag("a", 1), namespace_tag("a", 1));
    }
}
