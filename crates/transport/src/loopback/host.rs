//! The host's end, in the hands of a test.

use std::sync::Arc;

use nvmeof_wire::{Cqe, Sgl, Sqe};

use super::Wire;
use crate::queue::{CloseReason, FabricError};

/// A response the host got.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Delivery {
    /// The completion queue entry.
    pub cqe: Cqe,
    /// The data that came before it, if any; it is in the host's memory, too, if the SGL named some.
    pub data: Vec<u8>,
}

/// The host's end of a loopback connection.
#[derive(Debug)]
pub struct LoopbackHost {
    wire: Arc<Wire>,
    next_key: std::sync::atomic::AtomicU32,
}

impl LoopbackHost {
    pub(super) fn new(wire: Arc<Wire>) -> Self {
        Self { wire, next_key: 1.into() }
    }

    /// Sends a command with its in-capsule data.
    pub fn send(&self, sqe: Sqe, in_capsule: &[u8]) {
        self.wire.lock().capsules.push_back((sqe, in_capsule.to_vec(), None));
        self.wire.wake();
    }

    /// Sends a command whose data or data pointer is bad.
    pub fn send_bad(&self, sqe: Sqe, error: FabricError) {
        self.wire.lock().capsules.push_back((sqe, Vec::new(), Some(error)));
        self.wire.wake();
    }

    /// Makes memory for the target to read and write; the SGL that names all of it.
    pub fn register(&self, bytes: Vec<u8>) -> Sgl {
        let key = self.next_key.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let length = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
        self.wire.lock().regions.insert(key, bytes);
        Sgl::Keyed { address: 0, length, key, invalidate: false }
    }

    /// What is in memory that an SGL names; nothing if it names none.
    pub fn memory(&self, sgl: Sgl) -> Vec<u8> {
        self.wire.lock().region(sgl).map_or_else(Vec::new, |bytes| bytes.to_vec())
    }

    /// Has the data of a command with [`Sgl::Transport`] ready; until then its pull waits.
    pub fn offer(&self, cid: u16, bytes: Vec<u8>) {
        self.wire.lock().offered.insert(cid, bytes);
        self.wire.wake();
    }

    /// The responses that came since the last call, in order.
    pub fn take(&self) -> Vec<Delivery> {
        std::mem::take(&mut self.wire.lock().deliveries)
    }

    /// Fails the next pull that would succeed; calls add up.
    pub fn fail_next(&self, error: FabricError) {
        self.wire.lock().failures.push_back(error);
    }

    /// Ends the connection.
    pub fn close(&self) {
        self.wire.lock().host_closed = true;
        self.wire.wake();
    }

    /// Why the target ended the connection, if it did.
    pub fn closed(&self) -> Option<CloseReason> {
        self.wire.lock().closed.clone()
    }
}

impl Drop for LoopbackHost {
    fn drop(&mut self) {
        self.close();
    }
}
