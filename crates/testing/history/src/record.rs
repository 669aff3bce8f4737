//! Recorded events, in order.

use std::fmt;
use std::ops::Range;

use crate::stamp::{Content, Damage};

/// A block of a disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Block {
    /// Number that the test assigns to the disk.
    pub disk: u32,
    /// Logical block address.
    pub lba: u64,
}

/// Identifies a write of a [`History`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WriteId(usize);

/// Identifies a read of a [`History`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReadId(usize);

/// Reads and writes, each from its start to its outcome.
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
    /// Event after which the write takes no further effect, with its name.
    pub(crate) settled: Option<(u64, &'static str)>,
    /// The write succeeded, so it has taken effect.
    pub(crate) acknowledged: bool,
    /// The write may take effect again until it is settled.
    pub(crate) repeats: bool,
}

#[derive(Debug, Clone)]
pub(crate) struct Read {
    pub(crate) host: u32,
    pub(crate) disk: u32,
    pub(crate) first: u64,
    pub(crate) begun: u64,
    /// Time of the answer, and the content found.
    pub(crate) found: Option<(u64, Vec<Result<Content, Damage>>)>,
}

impl History {
    /// Records that `host` sends a write of `content` to these blocks.
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

    /// Records that the write may take effect several times until it is settled.
    ///
    /// Its device, or a driver below it, repeats unanswered commands after a reset.
    pub fn repeats(&mut self, write: WriteId) {
        if let Some(write) = self.writes.get_mut(write.0) {
            write.repeats = true;
        }
    }

    /// Records that the write succeeded.
    pub fn acknowledge(&mut self, write: WriteId) {
        self.settle(write, "acknowledged");
        if let Some(write) = self.writes.get_mut(write.0) {
            write.acknowledged = true;
        }
    }

    /// Records that the write failed; it may have taken effect.
    pub fn fail(&mut self, write: WriteId) {
        self.settle(write, "failed");
    }

    /// Records that `event` has informed the host or an operator of the end of the write. An answer
    /// may still follow.
    pub fn settle(&mut self, write: WriteId, event: &'static str) {
        let now = self.event();
        if let Some(write) = self.writes.get_mut(write.0) {
            write.settled.get_or_insert((now, event));
        }
    }

    /// Records that `host` sends a read of blocks from `first` on.
    pub fn read(&mut self, host: u32, disk: u32, first: u64) -> ReadId {
        let begun = self.event();
        self.reads.push(Read { host, disk, first, begun, found: None });
        ReadId(self.reads.len() - 1)
    }

    /// Records that the read returned the bytes of `found`, block by block.
    pub fn found(&mut self, read: ReadId, found: &[u8]) {
        let now = self.event();
        let Some(read) = self.reads.get_mut(read.0) else { return };
        let blocks = found.chunks(crate::BLOCK).zip(read.first..);
        let parse = |(bytes, lba)| Content::parse(Block { disk: read.disk, lba }, bytes);
        read.found = Some((now, blocks.map(parse).collect()));
    }

    /// Returns the number of recorded writes.
    #[must_use]
    pub fn writes(&self) -> usize {
        self.writes.len()
    }

    /// Returns true if the write succeeded.
    #[must_use]
    pub fn is_acknowledged(&self, write: WriteId) -> bool {
        self.writes.get(write.0).is_some_and(|write| write.acknowledged)
    }

    /// Returns the number of a new event.
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
