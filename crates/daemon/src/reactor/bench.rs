//! A reactor without a thread or a clock, driven by a benchmark.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use anyhow::{Context as _, anyhow};
use nvmeof_core::block::BlockDevice;
use nvmeof_core::dma::{ChunkPool, PoolConfig};
use nvmeof_nvmf::{DeviceId, PortId, Queue, Target};
use nvmeof_pacing::{PacedMachine, PolicyConfig, SharedPolicy};
use nvmeof_transport::DetachedQueue;
use tokio::sync::oneshot;

use super::mailbox::{Message, Sender, mailbox};
use super::{Reactor, ReactorConfig, ReactorLoad};

/// Simulated nanoseconds per turn.
const TURN: u64 = 1000;
const MAX_TRANSFER: usize = 1 << 20;
const MAX_TRANSFER_BYTES: u32 = 1 << 20;

thread_local! {
    static NOW: Cell<u64> = const { Cell::new(0) };
}

/// One reactor that runs a turn per call, with hosts on a fabric that the benchmark has.
pub struct OneReactor {
    reactor: Reactor,
    sender: Sender,
    now: u64,
}

impl OneReactor {
    /// Creates a reactor of `target` that admits by this policy.
    ///
    /// # Errors
    /// No memory or no descriptors, or a policy that could never admit the largest command.
    pub fn new(target: &Arc<Target>, policy: &PolicyConfig) -> anyhow::Result<Self> {
        let pool = ChunkPool::new(PoolConfig {
            cap: 256 << 20,
            reserve: 64 << 20,
            max_lease: MAX_TRANSFER,
            huge_pages: false,
        })?;
        let (sender, mailbox) = mailbox()?;
        let reactor = Reactor::new(ReactorConfig {
            index: 0,
            cpu: None,
            busy_poll: true,
            pool,
            pacing: SharedPolicy::new(
                policy,
                PacedMachine { cores: 1, largest: MAX_TRANSFER_BYTES },
            )?
            .parts(0, Arc::new(|| {})),
            target: Arc::clone(target),
            peers: vec![sender.clone()],
            mailbox,
            admin_buffers: 4,
            max_transfer: MAX_TRANSFER,
            loads: std::iter::once(ReactorLoad::default()).collect(),
            flow_depth: 128,
            requests: 1024,
            clock: || NOW.get(),
        })?;
        Ok(Self { reactor, sender, now: 1 })
    }

    /// Opens a queue to a device.
    ///
    /// # Errors
    /// The device refuses.
    pub fn add_device(&mut self, id: DeviceId, device: Arc<dyn BlockDevice>) -> anyhow::Result<()> {
        let (reply, mut answer) = oneshot::channel();
        self.sender.send(Message::AddDevice { id, device, reply });
        self.turn();
        answer.try_recv().context("no answer from the reactor")?.map_err(|text| anyhow!(text))
    }

    /// Attaches a new connection of a host. Later turns serve its commands.
    pub fn attach(&mut self, target: &Arc<Target>, port: PortId, parked: Box<dyn DetachedQueue>) {
        let queue = Box::new(Queue::new(target, port, &parked.peer(), self.now));
        self.reactor.load().connections.fetch_add(1, Ordering::Relaxed);
        self.sender.send(Message::Attach { parked, queue });
        self.turn();
    }

    /// Runs one turn. Returns false if it found no work.
    pub fn turn(&mut self) -> bool {
        self.now += TURN;
        NOW.set(self.now);
        self.reactor.turn(self.now)
    }
}

impl Drop for OneReactor {
    fn drop(&mut self) {
        self.reactor.close_all(self.now);
    }
}

impl std::fmt::Debug for OneReactor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("OneReactor").field("now", &self.now).finish_non_exhaustive()
    }
}
