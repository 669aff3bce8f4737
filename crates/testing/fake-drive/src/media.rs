//! Contents of a namespace, with a volatile write cache in front of them.

use std::collections::BTreeMap;

use nvmeof_wire::identify::Namespace;
use nvmeof_wire::nvm::BlockRange;

/// Maximum size of a namespace with contents; reads of a larger one fail.
const BYTES_MAX: u64 = 1 << 30;

/// A namespace and its contents.
#[derive(Debug)]
pub(crate) struct Media {
    pub(crate) nsid: u32,
    pub(crate) identify: Box<Namespace>,
    pub(crate) uuid: [u8; 16],
    pub(crate) attached: bool,
    bytes: Vec<u8>,
    /// By block, the contents before writes that are only in the cache.
    before: BTreeMap<u64, Vec<u8>>,
}

impl Media {
    pub(crate) fn new(nsid: u32, identify: Box<Namespace>, uuid: [u8; 16]) -> Self {
        let (bytes, before) = (Vec::new(), BTreeMap::new());
        let mut this = Self { nsid, identify, uuid, attached: true, bytes, before };
        this.erase();
        this
    }

    /// Returns the bytes per block; 0 if the format is invalid.
    pub(crate) fn block(&self) -> u64 {
        self.identify.block_size().map_or(0, u64::from)
    }

    pub(crate) fn blocks(&self) -> u64 {
        self.identify.nsze.get()
    }

    /// Zeroes all contents, in the current format.
    pub(crate) fn erase(&mut self) {
        self.before.clear();
        let len = self.blocks().saturating_mul(self.block());
        let len = if len > BYTES_MAX { 0 } else { len };
        self.bytes = vec![0; usize::try_from(len).unwrap_or(0)];
    }

    /// Changes the LBA format at the same capacity; all contents are lost.
    pub(crate) fn format(&mut self, index: u8) {
        let capacity = self.blocks().saturating_mul(self.block());
        self.identify.flbas = index & 0xf | (index >> 4 & 3) << 5;
        if let Some(blocks) = capacity.checked_div(self.block()) {
            for size in [&mut self.identify.nsze, &mut self.identify.ncap, &mut self.identify.nuse]
            {
                size.set(blocks);
            }
        }
        self.erase();
    }

    /// Returns the bytes of `range`, if present.
    pub(crate) fn get(&self, range: BlockRange) -> Option<&[u8]> {
        let (start, end) = self.span(range)?;
        self.bytes.get(start..end)
    }

    /// Writes `data` to `range`; with `cached`, only to the cache.
    pub(crate) fn put(&mut self, range: BlockRange, data: &[u8], cached: bool) -> Option<()> {
        let (start, end) = self.span(range)?;
        let block = usize::try_from(self.block()).ok()?;
        let to = self.bytes.get_mut(start..end)?;
        for (lba, old) in (range.slba..).zip(to.chunks(block)) {
            if cached {
                self.before.entry(lba).or_insert_with(|| old.to_vec());
            } else {
                self.before.remove(&lba);
            }
        }
        to.copy_from_slice(data);
        Some(())
    }

    /// Makes the contents of the cache durable.
    pub(crate) fn flush(&mut self) {
        self.before.clear();
    }

    /// Discards the contents of the cache.
    pub(crate) fn lose_power(&mut self) {
        for (lba, old) in std::mem::take(&mut self.before) {
            let Some((start, end)) = self.span(BlockRange { slba: lba, blocks: 1 }) else {
                continue;
            };
            if let Some(to) = self.bytes.get_mut(start..end) {
                to.copy_from_slice(&old);
            }
        }
    }

    fn span(&self, range: BlockRange) -> Option<(usize, usize)> {
        let block = self.block();
        let start = range.slba.checked_mul(block)?;
        let end = range.end()?.checked_mul(block)?;
        Some((usize::try_from(start).ok()?, usize::try_from(end).ok()?))
    }
}
