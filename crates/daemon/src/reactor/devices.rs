//! Block devices of one reactor, each with a queue and a backlog.
//!
//! The backlog holds operations that a full queue refused. This module also closes the devices that
//! are being removed.

use std::collections::VecDeque;
use std::sync::Arc;

use nvmeof_core::block::{
    BlockDevice, BlockError, BlockOp, BlockQueue, Completed, RejectReason, Rejected,
};
use nvmeof_core::dma::{CorePool, ZeroCopyData};
use nvmeof_nvmf::DeviceId;
use tokio::sync::oneshot;

use super::poller::Poller;

/// All devices of one reactor, by identifier.
#[derive(Debug, Default)]
pub(crate) struct Devices {
    slots: Vec<Option<Device>>,
    /// Identifiers of the devices to poll, each once: they have operations, a time, or an event.
    active: Vec<u32>,
    /// Number of devices that are being removed.
    retiring: usize,
}

#[derive(Debug)]
struct Device {
    queue: Box<dyn BlockQueue>,
    backlog: VecDeque<BlockOp>,
    /// It is in the list of the devices to poll.
    is_active: bool,
    removal: Option<oneshot::Sender<()>>,
    /// Time at which it last failed a flush.
    lost_at: Option<u64>,
    /// The device, open while its queue is.
    device: Arc<dyn BlockDevice>,
}

impl Devices {
    /// Opens a queue to `device` and registers the descriptor that it signals under `token`.
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
        let backlog = VecDeque::new();
        let (is_active, removal, lost_at) = (false, None, None);
        self.slots[index] = Some(Device { queue, backlog, is_active, removal, lost_at, device });
        self.activate(id);
        Ok(())
    }

    /// Closes the device once no operation is in flight on it or waits for it, then replies.
    ///
    /// Returns false if the device is not open here.
    pub(crate) fn remove(&mut self, id: DeviceId, reply: oneshot::Sender<()>) -> bool {
        let Some(device) = self.get(id) else {
            // The device is not in use. A requester that has gone needs no reply.
            let _ = reply.send(());
            return false;
        };
        if device.removal.replace(reply).is_none() {
            self.retiring += 1;
        }
        true
    }

    /// Polls a device whose descriptor is ready, by the token that it was added with.
    pub(crate) fn signalled(&mut self, token: u64) {
        let number = token & u64::from(u32::MAX);
        self.activate(DeviceId(u32::try_from(number).expect("32 bits")));
    }

    /// Puts a device on the list to poll.
    #[inline]
    fn activate(&mut self, id: DeviceId) {
        if let Some(device) = self.slots.get_mut(id.0 as usize).and_then(Option::as_mut)
            && !device.is_active
        {
            device.is_active = true;
            self.active.push(id.0);
        }
    }

    /// Submits an operation, or adds it to the backlog if the queue is full.
    ///
    /// # Errors
    /// The operation, if it can never run.
    #[inline]
    pub(crate) fn submit(
        &mut self,
        id: DeviceId,
        op: BlockOp,
    ) -> Result<(), (BlockOp, BlockError)> {
        self.activate(id);
        let Some(device) = self.get(id) else { return Err((op, BlockError::Gone)) };
        if !device.backlog.is_empty() {
            device.backlog.push_back(op);
            return Ok(());
        }
        match device.queue.submit(op) {
            Ok(()) => Ok(()),
            Err(Rejected { op, reason: RejectReason::QueueFull }) => {
                device.backlog.push_back(op);
                Ok(())
            }
            Err(Rejected { op, reason: RejectReason::Invalid(error) }) => Err((op, error)),
        }
    }

    /// Cancels an operation whose requester is gone.
    ///
    /// Returns true if the device never received the operation, which is dropped then. Otherwise
    /// the operation still completes.
    pub(crate) fn cancel(&mut self, id: DeviceId, token: u64) -> bool {
        self.activate(id);
        let Some(device) = self.get(id) else { return false };
        let before = device.backlog.len();
        device.backlog.retain(|op| op.token != token);
        if device.backlog.len() < before {
            // A command has one operation at a time.
            return true;
        }
        device.queue.cancel(token);
        false
    }

    /// Returns the time at which the device last failed a flush.
    #[inline]
    pub(crate) fn lost_at(&mut self, id: DeviceId) -> Option<u64> {
        self.get(id)?.lost_at
    }

    /// Records that the device has failed a flush now.
    pub(crate) fn set_lost_at(&mut self, id: DeviceId, now: u64) {
        if let Some(device) = self.get(id) {
            device.lost_at = Some(now);
        }
    }

    /// Returns device memory for a zero-copy read, if the device can expose it.
    #[inline]
    pub(crate) fn zero_copy_read(
        &mut self,
        id: DeviceId,
        offset: u64,
        len: u32,
    ) -> Option<ZeroCopyData> {
        self.get(id)?.queue.zero_copy_read(offset, len)
    }

    /// Submits the batched operations, collects the completed ones, and refills from the backlogs.
    ///
    /// Operations that a device turns out unable to run complete with their error. Devices without
    /// work cost nothing.
    #[inline]
    pub(crate) fn poll(&mut self, done: &mut Vec<Completed>) {
        let Self { slots, active, .. } = self;
        active.retain(|&id| {
            let Some(device) = slots[id as usize].as_mut() else { return false };
            device.poll(done);
            device.is_active = device.has_work();
            device.is_active
        });
    }

    /// Returns the time at which a device must be polled even if no event wakes the reactor.
    pub(crate) fn next_due(&self) -> Option<u64> {
        let active = self.active.iter().filter_map(|&id| self.slots[id as usize].as_ref());
        active.filter_map(|device| device.queue.next_due()).min()
    }

    /// Closes the devices that are being removed and have no work left, and returns them.
    ///
    /// `poller` is the one that they were added with: a queue's descriptor may belong to its device
    /// and outlive the queue. `is_wanted` returns true if an accepted command has yet to reach the
    /// device: it waits for admission, a buffer or the host's data. The function is not called for
    /// a missing device, where that command would fail.
    pub(crate) fn retire(
        &mut self,
        poller: &Poller,
        is_wanted: impl Fn(DeviceId) -> bool,
    ) -> Vec<DeviceId> {
        let mut closed = Vec::new();
        if self.retiring == 0 {
            return closed;
        }
        for (id, slot) in (0..).zip(&mut self.slots) {
            let quiet = slot.as_ref().is_some_and(|slot| {
                slot.removal.is_some()
                    && slot.queue.in_flight() == 0
                    && slot.backlog.is_empty()
                    && (slot.device.is_gone() || !is_wanted(DeviceId(id)))
            });
            if quiet && let Some(mut device) = slot.take() {
                let reply = device.removal.take();
                if let Some(fd) = device.queue.event_fd() {
                    poller.remove(fd);
                }
                drop(device);
                if let Some(reply) = reply {
                    let _ = reply.send(());
                }
                closed.push(DeviceId(id));
            }
        }
        self.retiring -= closed.len();
        // Another device may take the place of one that was to be polled.
        self.active.retain(|&id| self.slots[id as usize].is_some());
        closed
    }

    /// Returns the number of operations at the devices and in their backlogs.
    pub(crate) fn in_flight(&self) -> usize {
        self.slots
            .iter()
            .flatten()
            .map(|device| device.queue.in_flight() + device.backlog.len())
            .sum()
    }

    /// Returns true if a device waits for its last operation.
    pub(crate) fn any_retiring(&self) -> bool {
        self.retiring > 0
    }

    #[inline]
    fn get(&mut self, id: DeviceId) -> Option<&mut Device> {
        self.slots.get_mut(id.0 as usize)?.as_mut()
    }
}

impl Device {
    /// Returns true if it must be polled without an event of its descriptor.
    #[inline]
    fn has_work(&self) -> bool {
        self.queue.in_flight() > 0
            || !self.backlog.is_empty()
            || self.queue.next_due().is_some()
            || self.queue.needs_polls()
    }

    #[inline]
    fn poll(&mut self, done: &mut Vec<Completed>) {
        self.queue.poll(done);
        if !self.backlog.is_empty() && self.drain_backlog(done) {
            // The queue may only have batched the operations, and the reactor may sleep after this.
            self.queue.poll(done);
        }
    }

    /// Submits the backlog until the queue is full. Returns true if the queue took an operation.
    #[cold]
    fn drain_backlog(&mut self, done: &mut Vec<Completed>) -> bool {
        let mut taken = false;
        while let Some(op) = self.backlog.pop_front() {
            match self.queue.submit(op) {
                Ok(()) => taken = true,
                Err(Rejected { op, reason: RejectReason::QueueFull }) => {
                    self.backlog.push_front(op);
                    break;
                }
                Err(Rejected { op, reason: RejectReason::Invalid(error) }) => {
                    done.push(op.complete(Err(error)));
                }
            }
        }
        taken
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::OwnedFd;
    use std::time::Duration;

    use nvmeof_core::block::NvmeDevice;
    use nvmeof_core::dma::{ChunkPool, PoolConfig};
    use nvmeof_core::nvme_driver::{BufferMaps, Controller, ControllerOptions};
    use nvmeof_fake_drive::{FakeDrive, FakeDriveConfig, Mode};

    use super::*;

    const TOKEN: u64 = 17;

    /// Returns the tokens of ready descriptors without waiting.
    fn ready(poller: &mut Poller) -> Vec<u64> {
        let mut ready = Vec::new();
        poller.wait(Some(Duration::ZERO), &mut ready);
        ready.iter().map(|ready| ready.token).collect()
    }

    fn signal_of(devices: &mut Devices, id: DeviceId) -> OwnedFd {
        let device = devices.get(id).expect("the device");
        let fd = device.queue.event_fd().expect("a drive's queue with an interrupt");
        fd.try_clone_to_owned().expect("another descriptor of it")
    }

    /// Descriptors of a drive's queues, which belong to its controller.
    ///
    /// A descriptor that one queue watched must no longer be watched when the next queue opens.
    #[test]
    fn a_drive_that_is_taken_out_and_put_in_again_leaves_nothing_watched() {
        let pool = ChunkPool::new(PoolConfig { cap: 16 << 20, ..PoolConfig::default() }).unwrap();
        let core = CorePool::new(&pool);
        let fake =
            FakeDrive::new(FakeDriveConfig { mode: Mode::Automatic, ..FakeDriveConfig::default() });
        let options = ControllerOptions { io_queues: 1, ..ControllerOptions::default() };
        let controller = Controller::open(fake.function(), options).unwrap();
        let maps = Arc::new(BufferMaps::new(&pool));
        let drive: Arc<dyn BlockDevice> =
            Arc::new(NvmeDevice::new("drive", controller, 1, maps).unwrap());
        let (mut devices, mut poller) = (Devices::default(), Poller::new().unwrap());
        for id in (0..3).map(DeviceId) {
            devices.add(id, Arc::clone(&drive), &core, &poller, TOKEN).unwrap();
            let signal = signal_of(&mut devices, id);
            let (reply, mut answer) = oneshot::channel();
            devices.remove(id, reply);
            assert_eq!(devices.retire(&poller, |_| false), [id]);
            answer.try_recv().expect("nothing was in flight");
            rustix::io::write(&signal, &1_u64.to_ne_bytes()).unwrap();
            let woken = ready(&mut poller);
            assert!(woken.is_empty(), "an interrupt of a drive that is gone wakes: {woken:?}");
            // The driver does the same when it starts the queue again.
            let mut count = [0; 8];
            rustix::io::read(&signal, &mut count).unwrap();
        }
    }
}
