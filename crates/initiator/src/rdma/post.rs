//! The only module that passes memory to a device; all code around it is safe.
//!
//! A device accesses three kinds of memory, each with its owner:
//!
//! | memory | owner |
//! |---|---|
//! | slots of a QP's [`SlotMemory`]s | the memory tracks the slots that the device has, and gives no access to them; [`Qp`] drops its endpoint before this memory |
//! | buffers of commands, by SGE | the user's slot holds the buffer until its send has completed, or the QP is gone |
//! | buffers of commands, by remote key | the user's slot holds the buffer until the peer has responded, or the QP is gone |
//!
//! A buffer stays registered after its command has completed (see [`Buffer`]). A peer that violates
//! the protocol can therefore still write to it during the connection. Keys for one command only
//! would require a registration or a memory window for each.
#![expect(unsafe_code, reason = "the fence around memory that devices work on")]

use std::io;
use std::sync::Arc;

use nvmeof_verbs::{
    AccessFlags, CompletionQueue as _, Device, Endpoint as _, EndpointSpec, MemoryRegion as _,
    PostError, SendOp, SendWr, Sge, SgeList, VerbsError, WorkCompletion, WrId,
};

use crate::Buffer;

/// Registration of a buffer. The region is dropped before its device.
#[derive(Debug)]
struct Registration<D: Device> {
    region: D::MemoryRegion,
    access: AccessFlags,
    device: Arc<D>,
}

/// Address and keys of registered memory.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct MemoryKeys {
    /// Address of the first byte.
    pub(super) address: u64,
    /// Our key.
    pub(super) lkey: u32,
    /// Key for the peer.
    pub(super) rkey: u32,
}

/// Registers a buffer with `device`, at least for `needed`. It makes a system call only if the
/// present registration is not sufficient.
pub(super) fn register<D: Device>(
    device: &Arc<D>,
    buffer: &mut Buffer,
    needed: AccessFlags,
) -> Result<MemoryKeys, VerbsError> {
    let address = buffer.base().expose_provenance() as u64;
    let mut access = needed;
    if let Some(held) = buffer.registration::<Registration<D>>()
        && Arc::ptr_eq(&held.device, device)
    {
        let union = AccessFlags {
            local_write: held.access.local_write || needed.local_write,
            remote_read: held.access.remote_read || needed.remote_read,
            remote_write: held.access.remote_write || needed.remote_write,
        };
        if union == held.access {
            return Ok(MemoryKeys { address, lkey: held.region.lkey(), rkey: held.region.rkey() });
        }
        access = union;
    }
    buffer.keep(None);
    let (base, len) = (buffer.base(), buffer.len());
    // SAFETY: the buffer itself keeps the region and drops it before its pages, which it never
    // replaces (guaranteed by `Buffer`).
    let region = unsafe { device.register(base, len, access) }?;
    let keys = MemoryKeys { address, lkey: region.lkey(), rkey: region.rkey() };
    buffer.keep(Some(Box::new(Registration { region, access, device: Arc::clone(device) })));
    Ok(keys)
}

/// Registered memory in slots of one size, some of which the device has.
#[derive(Debug)]
pub(super) struct SlotMemory {
    memory: Buffer,
    keys: MemoryKeys,
    stride: usize,
    device_owned: Box<[bool]>,
}

impl SlotMemory {
    fn new<D: Device>(
        device: &Arc<D>,
        slots: u16,
        stride: usize,
        access: AccessFlags,
    ) -> Result<Self, VerbsError> {
        let bytes = usize::from(slots) * stride;
        let mut memory = Buffer::try_zeroed(bytes).ok_or_else(|| VerbsError::Call {
            what: format!("{bytes} bytes for the messages of a queue"),
            source: io::ErrorKind::OutOfMemory.into(),
        })?;
        let keys = register(device, &mut memory, access)?;
        let device_owned = (0..slots).map(|_| false).collect();
        Ok(Self { memory, keys, stride, device_owned })
    }

    /// Bytes of a slot; empty while the device has it, or if the slot does not exist.
    pub(super) fn bytes(&mut self, slot: u16) -> &mut [u8] {
        let at = usize::from(slot);
        if self.device_owned.get(at).is_none_or(|&device_owned| device_owned) {
            return &mut [];
        }
        let base = self.memory.base();
        // SAFETY: the slot exists, so it is within the memory, which is initialized. The device
        // does not have it. No other reference to it exists, because this one borrows the memory.
        // Other slots are not accessed.
        unsafe { std::slice::from_raw_parts_mut(base.add(at * self.stride), self.stride) }
    }

    /// Records that the device has released a slot.
    pub(super) fn reclaim(&mut self, slot: u16) {
        if let Some(device_owned) = self.device_owned.get_mut(usize::from(slot)) {
            *device_owned = false;
        }
    }

    /// Returns the first `len` bytes of a slot, for the device. Returns `None` if the device has
    /// the slot or it does not exist.
    fn piece(&self, slot: u16, len: usize) -> Option<Sge> {
        let at = usize::from(slot);
        if self.device_owned.get(at).is_none_or(|&device_owned| device_owned) || len > self.stride {
            return None;
        }
        let address = self.keys.address + (at * self.stride) as u64;
        Some(Sge { address, length: u32::try_from(len).ok()?, lkey: self.keys.lkey })
    }

    fn give_to_device(&mut self, slot: u16) {
        if let Some(device_owned) = self.device_owned.get_mut(usize::from(slot)) {
            *device_owned = true;
        }
    }
}

/// A work request for the send queue: the first bytes of an outbox slot, and data behind them.
#[derive(Debug, Clone, Copy)]
pub(super) struct SendRequest {
    /// Identifier that the completion carries.
    pub(super) id: WrId,
    /// Operation on the bytes.
    pub(super) operation: SendOp,
    /// Slot of the outbox.
    pub(super) slot: u16,
    /// Bytes of the slot.
    pub(super) len: usize,
    /// Bytes of a buffer with keys from [`register`]. The owner holds the buffer until this work
    /// request has completed.
    pub(super) data: Option<Sge>,
    /// Requests a completion on success.
    pub(super) signaled: bool,
    /// The slot's bytes are copied immediately, and the device never has the slot.
    pub(super) inline: bool,
}

/// Sizes of a QP and its memory.
#[derive(Debug, Clone, Copy)]
pub(super) struct QpSizes {
    /// Maximum posted receives, which is the number of inbox slots.
    pub(super) receives: u16,
    /// Bytes of a receive.
    pub(super) receive_len: usize,
    /// Slots of the outbox.
    pub(super) outbox: u16,
    /// Bytes of an outbox slot.
    pub(super) outbox_len: usize,
    /// Maximum work requests in the send queue.
    pub(super) sends: u32,
    /// SGEs of a send.
    pub(super) send_pieces: u32,
    /// Requested inline bytes.
    pub(super) inline: u32,
}

/// A queue pair with its completion queue and the memory posted to it. Fields are dropped in order.
/// The endpoint is first; after that the device accesses none of the rest.
#[derive(Debug)]
pub(super) struct Qp<D: Device> {
    endpoint: D::Endpoint,
    completions: D::CompletionQueue,
    /// Slots of receives.
    pub(super) inbox: SlotMemory,
    /// Slots of sends.
    pub(super) outbox: SlotMemory,
    works: Vec<SendWr>,
}

impl<D: Device> Qp<D> {
    /// Opens `ticket`; nothing is posted yet.
    pub(super) fn open(
        device: &Arc<D>,
        ticket: D::PendingConnection,
        sizes: QpSizes,
    ) -> Result<Self, VerbsError> {
        let depth = sizes.sends + u32::from(sizes.receives);
        let completions = device.completions(depth)?;
        let local = AccessFlags { local_write: true, ..AccessFlags::default() };
        let inbox = SlotMemory::new(device, sizes.receives, sizes.receive_len, local)?;
        let outbox = SlotMemory::new(device, sizes.outbox, sizes.outbox_len, local)?;
        let spec = EndpointSpec {
            sends: sizes.sends,
            receives: sizes.receives.into(),
            send_pieces: sizes.send_pieces,
            receive_pieces: 1,
            inline: sizes.inline,
            traffic_class: None,
            retries: None,
        };
        let opened = device.open(ticket, &completions, None, &spec);
        let endpoint = opened.map_err(|(error, _)| error)?;
        Ok(Self { endpoint, completions, inbox, outbox, works: Vec::new() })
    }

    /// The endpoint, for all operations except posting.
    pub(super) fn endpoint(&mut self) -> &mut D::Endpoint {
        &mut self.endpoint
    }

    /// The completion queue.
    pub(super) fn completions(&mut self) -> &mut D::CompletionQueue {
        &mut self.completions
    }

    /// Descriptors to wait on: the completion queue, and the connection.
    pub(super) fn descriptors(
        &self,
    ) -> (std::os::fd::BorrowedFd<'_>, Option<std::os::fd::BorrowedFd<'_>>) {
        (self.completions.fd(), self.endpoint.fd())
    }

    /// Appends at most `most` completions.
    pub(super) fn poll(&mut self, most: usize, into: &mut Vec<WorkCompletion>) -> io::Result<()> {
        self.completions.poll(most, into)
    }

    /// Posts a receive into a slot of the inbox.
    pub(super) fn post_receive(&mut self, id: WrId, slot: u16) -> io::Result<()> {
        let stride = self.inbox.stride;
        let piece = self.inbox.piece(slot, stride).ok_or(io::ErrorKind::InvalidInput)?;
        self.inbox.give_to_device(slot);
        // SAFETY: the slot belongs to the inbox, which is registered for local writing. The inbox
        // gives no access to it until `reclaim`, which the user of the QP calls after the receive
        // has completed. The endpoint is dropped before the inbox (guaranteed by `Qp`).
        let posted = unsafe { self.endpoint.post_receive(id, &[piece]) };
        if posted.is_err() {
            self.inbox.reclaim(slot);
        }
        posted
    }

    /// Posts a chain with one doorbell.
    pub(super) fn post_send(&mut self, chain: &[SendRequest]) -> Result<(), PostError> {
        self.works.clear();
        for out in chain {
            let Some(piece) = self.outbox.piece(out.slot, out.len) else {
                self.reclaim_unposted(chain, 0);
                return Err(PostError { taken: 0, source: io::ErrorKind::InvalidInput.into() });
            };
            let mut pieces = SgeList::one(piece);
            if let Some(data) = out.data {
                pieces.push(data);
            }
            if !out.inline {
                self.outbox.give_to_device(out.slot);
            }
            self.works.push(SendWr {
                id: out.id,
                operation: out.operation,
                pieces,
                signaled: out.signaled,
                inline: out.inline,
                fence: false,
            });
        }
        // SAFETY: slots belong to the outbox. A slot that is not inline belongs to the device, so
        // the outbox gives no access to it until `reclaim`. The user of the QP calls that after the
        // work has completed, and the endpoint is dropped before the outbox (guaranteed by `Qp`).
        // Inline bytes are valid during the call. SGEs of buffers are from `register`. The buffers
        // stay in place until the work has completed or the QP is dropped (guaranteed by the user's
        // slots, see the table above).
        let posted = unsafe { self.endpoint.post_send(&self.works) };
        if let Err(refused) = &posted {
            self.reclaim_unposted(chain, refused.taken);
        }
        posted
    }

    /// Returns the slots of unposted work requests: all but the first `taken`.
    fn reclaim_unposted(&mut self, chain: &[SendRequest], taken: usize) {
        let prepared = self.works.len();
        for out in chain.iter().take(prepared).skip(taken).filter(|out| !out.inline) {
            self.outbox.reclaim(out.slot);
        }
    }
}
