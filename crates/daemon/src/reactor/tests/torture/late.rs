//! A device that executes each operation at some later time, even if no requester is left.
//!
//! A drive does the same: no host can withdraw a write from it. In contrast, the operations that
//! `fault` holds have not reached the device, and `delay` only delays completions.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use nvmeof_core::block::{
    BlockDevice, BlockError, BlockOp, BlockQueue, Completed, DeviceInfo, Rejected,
};
use nvmeof_core::dma::CorePool;
use nvmeof_random::SplitMix64;

use super::site::now;

#[derive(Debug)]
pub(super) struct Late {
    base: Arc<dyn BlockDevice>,
    most: Arc<AtomicU64>,
    seed: u64,
    queues: AtomicU64,
}

impl Late {
    /// Wraps `base` so that each operation is late by at most `most` nanoseconds.
    pub(super) fn new(base: Arc<dyn BlockDevice>, seed: u64, most: &Arc<AtomicU64>) -> Self {
        Self { base, most: Arc::clone(most), seed, queues: AtomicU64::new(0) }
    }
}

#[derive(Debug)]
struct LateQueue {
    base: Box<dyn BlockQueue>,
    most: Arc<AtomicU64>,
    dice: SplitMix64,
    /// Operations, and the times at which they execute.
    waiting: Vec<(u64, BlockOp)>,
}

impl BlockDevice for Late {
    fn info(&self) -> &DeviceInfo {
        self.base.info()
    }

    fn open_queue(&self, pool: &CorePool) -> Result<Box<dyn BlockQueue>, BlockError> {
        let base = self.base.open_queue(pool)?;
        let number = self.queues.fetch_add(1, Ordering::Relaxed);
        let dice = SplitMix64::new(self.seed.wrapping_mul(1009) + number);
        Ok(Box::new(LateQueue { base, most: Arc::clone(&self.most), dice, waiting: Vec::new() }))
    }
}

impl BlockQueue for LateQueue {
    fn submit(&mut self, op: BlockOp) -> Result<(), Rejected> {
        // Only some operations are late, so that others overtake them.
        let most = if self.dice.chance(300_000) { self.most.load(Ordering::Relaxed) } else { 0 };
        let late = self.dice.within(0..most + 1);
        self.waiting.push((now() + late, op));
        Ok(())
    }

    fn poll(&mut self, done: &mut Vec<Completed>) {
        self.waiting.sort_by_key(|(due, _)| *due);
        let due = self.waiting.partition_point(|(due, _)| *due <= now());
        for (_, op) in self.waiting.drain(..due) {
            self.base.submit(op).expect("room for a few");
        }
        self.base.poll(done);
    }

    fn in_flight(&self) -> usize {
        self.waiting.len() + self.base.in_flight()
    }

    fn needs_polls(&self) -> bool {
        self.base.needs_polls()
    }

    fn next_due(&self) -> Option<u64> {
        self.waiting.iter().map(|(due, _)| *due).min()
    }
}
