//! Memory of a scripted host for its device: the tests' part of the fence around `unsafe`.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::ptr::NonNull;
use std::sync::Arc;

use nvmeof_loopback_verbs::{LoopbackDevice, LoopbackEndpoint, LoopbackRegion};
use nvmeof_verbs::{AccessFlags, Device, Endpoint, MemoryRegion, SendWr, Sge, WrId};
use nvmeof_wire::Sgl;

/// A run of registered memory, accessed only by copies.
#[derive(Debug)]
pub(super) struct Memory {
    region: Option<LoopbackRegion>,
    base: NonNull<u8>,
    layout: Layout,
}

impl Memory {
    pub(super) fn new(device: &Arc<LoopbackDevice>, len: usize) -> Self {
        let layout = Layout::from_size_align(len.max(1), 64).unwrap();
        // SAFETY: the layout is not of size zero.
        let base = NonNull::new(unsafe { alloc_zeroed(layout) }).unwrap();
        let access = AccessFlags { local_write: true, remote_read: true, remote_write: true };
        // SAFETY: the memory is freed in `drop`, after the region.
        let region = unsafe { device.register(base.as_ptr(), layout.size(), access) }.unwrap();
        Self { region: Some(region), base, layout }
    }

    pub(super) fn with(device: &Arc<LoopbackDevice>, bytes: &[u8]) -> Self {
        let memory = Self::new(device, bytes.len());
        memory.write(0, bytes);
        memory
    }

    pub(super) fn address(&self) -> u64 {
        self.base.as_ptr().expose_provenance() as u64
    }

    pub(super) fn rkey(&self) -> u32 {
        self.region.as_ref().unwrap().rkey()
    }

    /// Returns a descriptor of `len` bytes from `at` on.
    pub(super) fn sgl(&self, at: u32, len: u32, invalidate: bool) -> Sgl {
        let address = self.address() + u64::from(at);
        Sgl::Keyed { address, length: len, key: self.rkey(), invalidate }
    }

    pub(super) fn piece(&self, at: usize, len: usize) -> Sge {
        assert!(at + len <= self.layout.size());
        Sge {
            address: self.address() + at as u64,
            length: u32::try_from(len).unwrap(),
            lkey: self.region.as_ref().unwrap().lkey(),
        }
    }

    pub(super) fn write(&self, at: usize, bytes: &[u8]) {
        assert!(at + bytes.len() <= self.layout.size());
        // SAFETY: within the allocation, to which no reference exists; the in-memory device runs on
        // this thread.
        unsafe {
            self.base.as_ptr().add(at).copy_from_nonoverlapping(bytes.as_ptr(), bytes.len());
        }
    }

    pub(super) fn read(&self, at: usize, len: usize) -> Vec<u8> {
        assert!(at + len <= self.layout.size());
        let mut bytes = vec![0; len];
        // SAFETY: as in `write`.
        unsafe { self.base.as_ptr().add(at).copy_to_nonoverlapping(bytes.as_mut_ptr(), len) };
        bytes
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        drop(self.region.take());
        // SAFETY: allocated with this layout, and no longer registered with the device.
        unsafe { dealloc(self.base.as_ptr(), self.layout) };
    }
}

/// Posts a receive into memory that outlives the endpoint.
pub(super) fn post_receive(endpoint: &mut LoopbackEndpoint, id: WrId, piece: Sge) {
    // SAFETY: the host drops its endpoint before its memory, and reads a slot only once it is
    // complete.
    let _ = unsafe { endpoint.post_receive(id, &[piece]) };
}

/// Posts a send from memory that outlives the endpoint.
pub(super) fn post_send(endpoint: &mut LoopbackEndpoint, work: SendWr) -> bool {
    // SAFETY: as above.
    unsafe { endpoint.post_send(&[work]) }.is_ok()
}
