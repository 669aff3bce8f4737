//! The block devices as one reactor sees them: a queue each, a backlog for what a full queue
//! refused, and the way out for a device that is being removed.

use std::collections::VecDeque;
use std::sync::Arc;

use nvmeof_core::block::{
    BlockDevice, BlockError, BlockOp, BlockQueue, Completed, Rejected, RejectedWhy,
};
use nvmeof_core::dma::{CorePool, Lent};
use nvmeof_nvmf::DeviceId;
use tokio::sync::oneshot;

use super::poller::Poller;

/// Every device of one reactor, by id.
#[derive(Debug, Default)]
pub(crate) struct Devices {
    slots: Vec<Option<Device>>,
    /// Ids of the devices that exist, so that polling skips the holes.
    live: Vec<u32>,
}

#[derive(Debug)]
struct Device {
    queue: Box<dyn BlockQueue>,
    backlog: VecDeque<BlockOp>,
    removal: Option<oneshot::Sender<()>>,
    /// Keeps the device open while its queue is.
    _device: Arc<dyn BlockDevice>,
}

impl Devices {
    /// Opens a queue to `device` and registers what it is woken by under `token`.
    pub(crate) fn add(
        &mut self,
        id: DeviceId,
        device: Arc<dyn BlockDevice>,
        pool: &CorePool,
        poller: &Poller,
        token: u64,
    ) -> Result<(), String> {
        let queue = device.open_queue(pool).map_err(|error| error.to_string())?;
        if let Some(fd) = queue.event_fd() {
            poller
                .add_source(fd, token)
                .map_err(|error| format!("cannot watch the device's completions: {error}"))?;
        }
        let index = id.0 as usize;
        if self.slots.len() <= index {
            self.slots.resize_with(index + 1, || None);
        }
        self.slots[index] =
            Some(Device { queue, backlog: VecDeque::new(), removal: None, _device: device });
        self.live.push(id.0);
        Ok(())
    }

    /// Closes the device once nothing is in flight on it, then answers.
    pub(crate) fn remove(&mut self, id: DeviceId, reply: oneshot::Sender<()>) {
        match self.get(id) {
            Some(device) => device.removal = Some(reply),
            // Not open here: nothing is in use. An asker that has gone needs no answer.
            None => {
                let _ = reply.send(());
            }
        }
    }

    /// Submits an operation; a full queue keeps it in the backlog. Hands the operation back when
    /// it can never run.
    #[inline]
    pub(crate) fn submit(
        &mut self,
        id: DeviceId,
        op: BlockOp,
    ) -> Result<(), (BlockOp, BlockError)> {
        let Some(device) = self.get(id) else { return Err((op, BlockError::Gone)) };
        if !device.backlog.is_empty() {
            device.backlog.push_back(op);
            return Ok(());
        }
        match device.queue.submit(op) {
            Ok(()) => Ok(()),
            Err(Rejected { op, why: RejectedWhy::QueueFull }) => {
                device.backlog.push_back(op);
                Ok(())
            }
            Err(Rejected { op, why: RejectedWhy::Invalid(error) }) => Err((op, error)),
        }
    }

    /// Data the device lends for a read, if it can.
    #[inline]
    pub(crate) fn lend(&mut self, id: DeviceId, offset: u64, len: u32) -> Option<Lent> {
        self.get(id)?.queue.lend(offset, len)
    }

    /// Submits what is batched, takes what is done, refills from the backlogs. Operations the
    /// device turned out unable to run at all are completed with their error.
    #[inline]
    pub(crate) fn poll(&mut self, done: &mut Vec<Completed>) {
        for index in 0..self.live.len() {
            let id = self.live[index];
            if let Some(device) = self.get(DeviceId(id)) {
                device.poll(done);
            }
        }
    }

    /// When a device has to be polled next if nothing wakes the reactor before.
    pub(crate) fn next_due(&self) -> Option<u64> {
        self.slots.iter().flatten().filter_map(|device| device.queue.next_due()).min()
    }

    /// Closes devices that are being removed and have nothing left in flight.
    pub(crate) fn retire(&mut self) {
        let slots = &mut self.slots;
        self.live.retain(|&id| {
            let slot = &mut slots[id as usize];
            let quiet = slot.as_ref().is_some_and(|device| {
                device.removal.is_some()
                    && device.queue.in_flight() == 0
                    && device.backlog.is_empty()
            });
            if quiet && let Some(mut device) = slot.take() {
                let reply = device.removal.take();
                drop(device);
                if let Some(reply) = reply {
                    let _ = reply.send(());
                }
            }
            !quiet
        });
    }

    /// Operations the devices or their backlogs hold.
    pub(crate) fn in_flight(&self) -> usize {
        self.slots
            .iter()
            .flatten()
            .map(|device| device.queue.in_flight() + device.backlog.len())
            .sum()
    }

    /// Whether any device is waiting for its last operation.
    pub(crate) fn any_retiring(&self) -> bool {
        self.slots.iter().flatten().any(|device| device.removal.is_some())
    }

    #[inline]
    fn get(&mut self, id: DeviceId) -> Option<&mut Device> {
        self.slots.get_mut(id.0 as usize)?.as_mut()
    }
}

impl Device {
    #[inline]
    fn poll(&mut self, done: &mut Vec<Completed>) {
        self.queue.poll(done);
        if !self.backlog.is_empty() && self.drain_backlog(done) {
            // What was taken may only be batched, and the reactor may sleep after this.
            self.queue.poll(done);
        }
    }

    /// Submits what waits, as far as there is room; true if the queue has taken any of it.
    #[cold]
    fn drain_backlog(&mut self, done: &mut Vec<Completed>) -> bool {
        let mut taken = false;
        while let Some(op) = self.backlog.pop_front() {
            match self.queue.submit(op) {
                Ok(()) => taken = true,
                Err(Rejected { op, why: RejectedWhy::QueueFull }) => {
                    self.backlog.push_front(op);
                    break;
                }
                Err(Rejected { op, why: RejectedWhy::Invalid(error) }) => {
                    done.push(op.complete(Err(error)));
                }
            }
        }
        taken
    }
}
