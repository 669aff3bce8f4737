//! What happened, in the order in which it was recorded.

use std::fmt;
use std::ops::Range;

use crate::stamp::{Content, Damage};

/// A block of a disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Block {
    /// The disk, as the test numbers them.
    pub disk: u32,
    /// Its logical block address.
    pub lba: u64,
}

/// Names a write of a [`History`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WriteId(usize);

/// Names a read of a [`History`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReadId(usize);

/// Reads and writes, from when they began to how they ended.
#[derive(Debug, Clone, Default)]
pub struct History {
    events: u64,
    pub(crate) writes: Vec<Write>,
    pub(crate) reads: Vec<Read>,
}

#[derive(Debug, Clone)]
pub(crate) struct Write {
    pub(crate) host: u32,
    pub(crate) disk: u32,
    pub(crate) lbas: Range<u64>,
    pub(crate) content: Content,
    pub(crate) begun: u64,
    /// The event after which it takes no effect any more, and what that was.
    pub(crate) settled: Option<(u64, &'static str)>,
    /// It was answered with success: it has taken effect.
    pub(crate) acknowledged: bool,
    /// What it did may be done once more until it is settled.
    pub(crate) repeats: bool,
}

#[derive(Debug, Clone)]
pub(crate) struct Read {
    pub(crate) host: u32,
    pub(crate) disk: u32,
    pub(crate) first: u64,
    pub(crate) begun: u64,
    /// When it was answered, and what it found.
    pub(crate) found: Option<(u64, Vec<Result<Content, Damage>>)>,
}

impl History {
    /// `host` sends a write of `content` to these blocks.
    pub fn write(&mut self, host: u32, disk: u32, lbas: Range<u64>, content: Content) -> WriteId {
        let begun = self.event();
        let write = Write {
            host,
            disk,
            lbas,
            content,
            begun,
            settled: None,
            acknowledged: false,
            repeats: false,
        };
        self.writes.push(write);
        WriteId(self.writes.len() - 1)
    }

    /// The write may take effect several times while it is under way: its device, or a driver below it, does what was
    /// not answered once more after a reset.
    pub fn repeats(&mut self, write: WriteId) {
        if let Some(write) = self.writes.get_mut(write.0) {
            write.repeats = true;
        }
    }

    /// The write was answered with success.
    pub fn acknowledge(&mut self, write: WriteId) {
        self.settle(write, "acknowledged");
        if let Some(write) = self.writes.get_mut(write.0) {
            write.acknowledged = true;
        }
    }

    /// The write was answered with an error: it may have taken effect.
    pub fn fail(&mut self, write: WriteId) {
        self.settle(write, "failed");
    }

    /// Somebody was told that the write is over, its host or an operator, by `event`. It may be answered all the same.
    pub fn settle(&mut self, write: WriteId, event: &'static str) {
        let now = self.event();
        if let Some(write) = self.writes.get_mut(write.0) {
            write.settled.get_or_insert((now, event));
        }
    }

    /// `host` sends a read of blocks from `first` on.
    pub fn read(&mut self, host: u32, disk: u32, first: u64) -> ReadId {
        let begun = self.event();
        self.reads.push(Read { host, disk, first, begun, found: None });
        ReadId(self.reads.len() - 1)
    }

    /// The read was answered with the bytes of `found`, block by block.
    pub fn found(&mut self, read: ReadId, found: &[u8]) {
        let now = self.event();
        let Some(read) = self.reads.get_mut(read.0) else { return };
        let blocks = found.chunks(crate::BLOCK).zip(read.first..);
        let parse = |(bytes, lba)| Content::parse(Block { disk: read.disk, lba }, bytes);
        read.found = Some((now, blocks.map(parse).collect()));
    }

    /// Writes recorded.
    #[must_use]
    pub fn writes(&self) -> usize {
        self.writes.len()
    }

    /// Whether the write was answered with success.
    #[must_use]
    pub fn is_acknowledged(&self, write: WriteId) -> bool {
        self.writes.get(write.0).is_some_and(|write| write.acknowledged)
    }

    /// The number of an event that happens now.
    fn event(&mut self) -> u64 {
        self.events += 1;
        self.events
    }
}

impl fmt::Display for Block {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "disk {} block {}", self.disk, self.lba)
    }
}
