//! A simulated medium in memory that completes late, out of order, partially or with errors;
//! seeded.

use std::os::fd::BorrowedFd;

use nvmeof_random::SplitMix64;

use super::super::backend::{FileBackend, FileCall, FileResult};
use crate::dma::Buffer;

/// Limitations and errors of the medium.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Whims {
    pub(super) short: bool,
    pub(super) again: bool,
    pub(super) no_dsync: bool,
    pub(super) no_keep_allocated: bool,
    pub(super) no_free: bool,
    /// Number of the sync that fails, from 1.
    pub(super) failing_sync: u32,
}

#[derive(Debug)]
pub(super) struct Sim {
    image: Vec<u8>,
    pending: Vec<(usize, FileCall, Option<Buffer>)>,
    submitted: usize,
    whims: Whims,
    syncs: u32,
    rng: SplitMix64,
}

impl Sim {
    pub(super) fn new(size: usize, seed: u64, whims: Whims) -> Self {
        let rng = SplitMix64::new(seed ^ 0x51);
        Self { image: vec![0; size], pending: Vec::new(), submitted: 0, whims, syncs: 0, rng }
    }

    /// Returns the bytes that a transfer of `len` moves this time: whole blocks, except an
    /// occasional half.
    fn moved(&mut self, len: u32) -> u32 {
        if self.whims.short && self.rng.below(4) == 0 && len > 512 {
            let some = u32::try_from(self.rng.below(u64::from(len))).unwrap();
            return (some - some % 256).max(512);
        }
        len
    }

    fn execute(&mut self, call: FileCall, buf: Option<&mut Buffer>) -> i32 {
        if self.whims.again && self.rng.below(8) == 0 {
            return if self.rng.below(2) == 0 { -libc::EAGAIN } else { -libc::EINTR };
        }
        match call {
            FileCall::Read { offset, skip, len } => {
                let len = self.moved(len);
                let from = &self.image[at(offset)..][..len as usize];
                buf.unwrap().as_mut_slice()[skip as usize..][..len as usize].copy_from_slice(from);
                len.cast_signed()
            }
            FileCall::Write { dsync: true, .. } if self.whims.no_dsync => -libc::EOPNOTSUPP,
            FileCall::Write { offset, skip, len, .. } => {
                let len = self.moved(len);
                let from = &buf.unwrap().as_slice()[skip as usize..][..len as usize];
                self.image[at(offset)..][..len as usize].copy_from_slice(from);
                len.cast_signed()
            }
            FileCall::WriteZeroes { offset, len } => {
                let len = self.moved(len);
                let len = len - len % 512;
                self.image[at(offset)..][..len as usize].fill(0);
                len.cast_signed()
            }
            FileCall::Zero { free: true, .. } if self.whims.no_free => -libc::EOPNOTSUPP,
            FileCall::Zero { free: false, .. } if self.whims.no_keep_allocated => -libc::EOPNOTSUPP,
            FileCall::Zero { offset, len, .. } => {
                self.image[at(offset)..][..at(len)].fill(0);
                0
            }
            FileCall::Sync => {
                self.syncs += 1;
                if self.syncs == self.whims.failing_sync { -libc::EIO } else { 0 }
            }
        }
    }
}

impl FileBackend for Sim {
    fn issue(&mut self, slot: usize, call: FileCall, buf: Option<Buffer>) {
        assert!(self.pending.iter().all(|(other, ..)| *other != slot), "slot {slot} is taken");
        self.pending.push((slot, call, buf));
    }

    fn submit(&mut self) {
        self.submitted = self.pending.len();
    }

    fn reap(&mut self, answers: &mut Vec<FileResult>) {
        for _ in 0..self.submitted {
            if self.rng.below(3) == 0 {
                let pick = self.rng.index(self.submitted);
                let (slot, call, mut buf) = self.pending.remove(pick);
                self.submitted -= 1;
                let result = self.execute(call, buf.as_mut());
                answers.push(FileResult { slot, result, buf });
            }
        }
    }

    fn event_fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}

fn at(offset: u64) -> usize {
    usize::try_from(offset).unwrap()
}
