//! Devices and the memory registered with them.

use std::io;
use std::net::IpAddr;
use std::sync::Arc;

use nvmeof_verbs::{AccessFlags, DeviceKind, DeviceLimits, VerbsError};
use rustix::io::Errno;

use crate::fabric::{Fabric, address_of};
use crate::memory::Span;
use crate::state::State;

/// Properties of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceOptions {
    /// Transport. It does not change the behavior.
    pub kind: DeviceKind,
    /// Limits of the device.
    pub limits: DeviceLimits,
    /// Maximum bytes of an inline send.
    pub inline: u32,
    /// Maximum bytes of all registrations.
    pub locked_memory: u64,
    /// Allows a peer to invalidate a region's remote key. Hardware allows this for memory windows
    /// and fast registrations only.
    pub invalidation: bool,
    /// Reports to an endpoint that its peer's wrong access has failed its queue pair
    /// ([`QueuePairError`](nvmeof_verbs::ConnectionEvent::QueuePairError)). Not every device does.
    /// An endpoint with its own receives notices when they are flushed. With shared receives every
    /// failure is reported.
    pub tells_failures: bool,
    /// Reports that a failed queue pair takes no more shared receives. Older versions of Soft-RoCE
    /// do not.
    pub tells_last_receive: bool,
    /// Makes a queue pair fetch a shared receive before it is used, as hardware does. When the
    /// queue pair fails, that receive is flushed; if the queue pair is dropped earlier, it is lost.
    pub fetches_ahead: bool,
}

impl Default for DeviceOptions {
    fn default() -> Self {
        Self {
            kind: DeviceKind::InfiniBand,
            limits: DeviceLimits {
                queue_depth: 4_096,
                completions: 65_536,
                pieces: 4,
                message: 1 << 30,
                reads_out: 16,
                reads_in: 16,
                shared_receives: 8_192,
            },
            inline: 128,
            locked_memory: u64::MAX,
            invalidation: true,
            tells_failures: true,
            tells_last_receive: true,
            fetches_ahead: false,
        }
    }
}

/// A device of a [`Fabric`].
#[derive(Debug)]
pub struct LoopbackDevice {
    pub(crate) fabric: Fabric,
    pub(crate) number: u32,
    pub(crate) name: String,
    pub(crate) options: DeviceOptions,
}

#[derive(Debug)]
pub(crate) struct DeviceState {
    pub(crate) options: DeviceOptions,
    pub(crate) removed: bool,
}

/// State of a region in the fabric.
#[derive(Debug)]
pub(crate) struct RegionState {
    pub(crate) device: u32,
    pub(crate) span: Span,
    pub(crate) access: AccessFlags,
    /// The peer has invalidated the region.
    pub(crate) dead: bool,
}

/// Registered memory of a [`LoopbackDevice`].
#[derive(Debug)]
pub struct LoopbackRegion {
    device: Arc<LoopbackDevice>,
    pub(crate) lkey: u32,
    pub(crate) rkey: u32,
}

impl LoopbackDevice {
    pub(crate) fn new(fabric: &Fabric, name: &str, options: DeviceOptions) -> Arc<Self> {
        let mut state = fabric.lock();
        let number = state.name();
        state.devices.insert(number, DeviceState { options, removed: false });
        drop(state);
        Arc::new(Self { fabric: fabric.clone(), number, name: name.to_owned(), options })
    }

    /// Fabric of the device.
    #[must_use]
    pub fn fabric(&self) -> &Fabric {
        &self.fabric
    }

    /// Address of the device.
    #[must_use]
    pub fn address(&self) -> IpAddr {
        address_of(self.number)
    }

    pub(crate) fn register_span(
        self: &Arc<Self>,
        span: Span,
        access: AccessFlags,
    ) -> Result<LoopbackRegion, VerbsError> {
        let bytes = span.len();
        let mut state = self.fabric.lock();
        state.check_device(self.number, "registering memory")?;
        if bytes == 0 || (access.remote_write && !access.local_write) {
            return Err(invalid("registering memory"));
        }
        let locked: u64 = state.registered_with(self.number);
        let too_much = locked.saturating_add(bytes as u64) > self.options.locked_memory;
        if state.faults.refuse_register(self.number) || too_much {
            return Err(VerbsError::LockedMemory { bytes, device: self.name.clone() });
        }
        let (lkey, rkey) = (state.key(), state.key());
        let region = RegionState { device: self.number, span, access, dead: false };
        state.regions.insert(lkey, region);
        state.remote_keys.insert(rkey, lkey);
        Ok(LoopbackRegion { device: Arc::clone(self), lkey, rkey })
    }
}

impl Drop for LoopbackDevice {
    fn drop(&mut self) {
        self.fabric.lock().devices.remove(&self.number);
    }
}

impl Drop for LoopbackRegion {
    fn drop(&mut self) {
        let mut state = self.device.fabric.lock();
        if state.is_posted(self.lkey) {
            state.counters.misuses += 1;
        }
        state.regions.remove(&self.lkey);
        state.remote_keys.remove(&self.rkey);
    }
}

impl State {
    /// Returns an error if the device has been removed.
    pub(crate) fn check_device(&self, device: u32, what: &str) -> Result<(), VerbsError> {
        match self.devices.get(&device) {
            Some(state) if !state.removed => Ok(()),
            _ => Err(VerbsError::call(what, Errno::NODEV.into())),
        }
    }

    fn registered_with(&self, device: u32) -> u64 {
        let own = self.regions.values().filter(|region| region.device == device);
        own.map(|region| region.span.len() as u64).sum()
    }

    /// Returns true if `lkey` is in work that the device can still execute.
    fn is_posted(&self, lkey: u32) -> bool {
        let shared = self.shared_queues.values().flat_map(|queue| &queue.receives);
        let own = self.queue_pairs.values().flat_map(|queue_pair| &queue_pair.receives);
        let sends = self.queue_pairs.values().flat_map(|queue_pair| &queue_pair.sends);
        let sends = sends.filter(|send| !send.work.inline).map(|send| send.work.pieces);
        own.chain(shared)
            .map(|receive| receive.pieces)
            .chain(sends)
            .any(|pieces| pieces.as_slice().iter().any(|piece| piece.lkey == lkey))
    }

    /// Returns the live region with this local key, if it belongs to `device`.
    pub(crate) fn local_region(&self, device: u32, lkey: u32) -> Option<&RegionState> {
        self.regions.get(&lkey).filter(|region| region.device == device && !region.dead)
    }

    /// Returns the live region with this remote key, if it belongs to `device`.
    pub(crate) fn remote_region(&self, device: u32, rkey: u32) -> Option<&RegionState> {
        self.local_region(device, *self.remote_keys.get(&rkey)?)
    }

    /// Invalidates a remote key. Returns false if the device lacks the key or does not allow it.
    pub(crate) fn invalidate(&mut self, device: u32, rkey: u32) -> bool {
        let allowed = self.devices.get(&device).is_some_and(|state| state.options.invalidation);
        let Some(lkey) = self.remote_keys.get(&rkey) else { return false };
        let Some(region) = self.regions.get_mut(lkey) else { return false };
        let remote = region.access.remote_read || region.access.remote_write;
        if !allowed || region.device != device || region.dead || !remote {
            return false;
        }
        region.dead = true;
        self.counters.invalidated += 1;
        true
    }
}

/// Returns the system's error for invalid arguments.
pub(crate) fn invalid(what: &str) -> VerbsError {
    VerbsError::call(what, io::Error::from(Errno::INVAL))
}
