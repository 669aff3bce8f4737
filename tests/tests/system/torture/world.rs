//! State shared by all hosts and the operator of a run: the history, and the writes in flight.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use nvmeof_history::{BLOCK, Block, Content, History, ReadId, Stamp, WriteId};
use nvmeof_tests::GUARD;

/// Hosts of a run; one more reads the result.
pub(crate) const HOSTS: usize = 3;
/// Blocks of a disk: few, so that hosts conflict.
pub(crate) const BLOCKS: u64 = 16;

/// A write that was sent and has not completed.
#[derive(Debug, Clone, Copy)]
struct Pending {
    write: WriteId,
    host: usize,
    disk: u32,
}

#[derive(Debug, Default)]
struct Told {
    history: History,
    pending: Vec<Pending>,
    sequence: u64,
}

#[derive(Debug, Default)]
pub(crate) struct World {
    told: Mutex<Told>,
    /// Counts, for each host, how often it had nothing in flight.
    rests: [AtomicU64; HOSTS],
    is_over: AtomicBool,
}

impl World {
    /// Begins a write of `host` to these blocks; returns the write, and its data.
    pub(crate) fn write(&self, host: usize, disk: u32, lbas: &Range<u64>) -> (WriteId, Vec<u8>) {
        let mut told = self.told();
        told.sequence += 1;
        let (host_number, sequence) = (number(host), told.sequence);
        let stamp = Stamp { host: host_number, sequence };
        let mut data = Vec::new();
        for lba in lbas.clone() {
            let mut block = [0; BLOCK];
            stamp.fill(Block { disk, lba }, &mut block);
            data.extend(block);
        }
        let write = told.history.write(host_number, disk, lbas.clone(), Content::Stamp(stamp));
        told.pending.push(Pending { write, host, disk });
        (write, data)
    }

    /// Begins to zero these blocks for `host`.
    pub(crate) fn zero(&self, host: usize, disk: u32, lbas: &Range<u64>) -> WriteId {
        let mut told = self.told();
        let write = told.history.write(number(host), disk, lbas.clone(), Content::Zero);
        told.pending.push(Pending { write, host, disk });
        write
    }

    /// Records the completion of a write.
    pub(crate) fn answered(&self, write: WriteId, is_success: bool) {
        let mut told = self.told();
        told.pending.retain(|pending| pending.write != write);
        if is_success {
            told.history.acknowledge(write);
        } else {
            told.history.fail(write);
        }
    }

    /// Begins a read of `host`, of blocks from `first` on.
    pub(crate) fn read(&self, host: usize, disk: u32, first: u64) -> ReadId {
        self.told().history.read(number(host), disk, first)
    }

    /// Records the data of a read.
    pub(crate) fn found(&self, read: ReadId, found: &[u8]) {
        self.told().history.found(read, found);
    }

    /// Records a confirmation that commands of a host have ended: all, or those to one disk.
    pub(crate) fn settle(&self, host: Option<usize>, disk: Option<u32>, event: &'static str) {
        let mut told = self.told();
        let Told { history, pending, .. } = &mut *told;
        pending.retain(|one| {
            let is_meant = host.is_none_or(|host| host == one.host)
                && disk.is_none_or(|disk| disk == one.disk);
            if is_meant {
                history.settle(one.write, event);
            }
            !is_meant
        });
    }

    /// Returns the writes of `host` in flight, to be settled later.
    pub(crate) fn pending(&self, host: usize) -> Vec<WriteId> {
        let told = self.told();
        told.pending.iter().filter(|one| one.host == host).map(|one| one.write).collect()
    }

    /// Records a confirmation that these writes have ended.
    pub(crate) fn settle_these(&self, writes: &[WriteId], event: &'static str) {
        let mut told = self.told();
        writes.iter().for_each(|write| told.history.settle(*write, event));
        told.pending.retain(|one| !writes.contains(&one.write));
    }

    /// Records that `host` has nothing in flight.
    pub(crate) fn rests(&self, host: usize) {
        self.rests[host].fetch_add(1, Ordering::SeqCst);
    }

    /// Waits until everything that hosts have sent by now is read and completed, or lost.
    pub(crate) fn wait_for_rests(&self) {
        let until = Instant::now() + GUARD;
        let before = self.rests.each_ref().map(|rests| rests.load(Ordering::SeqCst));
        while (0..HOSTS).any(|host| self.rests[host].load(Ordering::SeqCst) < before[host] + 2) {
            assert!(Instant::now() < until, "a host hangs");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Ends the hosts.
    pub(crate) fn end(&self) {
        self.is_over.store(true, Ordering::SeqCst);
    }

    pub(crate) fn is_over(&self) -> bool {
        self.is_over.load(Ordering::SeqCst)
    }

    /// Returns the history.
    pub(crate) fn into_history(self) -> History {
        self.told.into_inner().unwrap_or_else(PoisonError::into_inner).history
    }

    fn told(&self) -> MutexGuard<'_, Told> {
        self.told.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn number(host: usize) -> u32 {
    u32::try_from(host).expect("a few hosts")
}
