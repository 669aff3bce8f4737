//! The host's end, controlled by a test.

use std::sync::Arc;

use nvmeof_transport::{CloseReason, FabricError};
use nvmeof_wire::{Cqe, Sgl, Sqe};

use crate::Wire;

/// A response that the host received.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Delivery {
    /// The completion queue entry.
    pub cqe: Cqe,
    /// The data before it, if any; also in the host's memory if the SGL describes some.
    pub data: Vec<u8>,
}

/// The host's end of a loopback connection.
#[derive(Debug)]
pub struct LoopbackHost {
    wire: Arc<Wire>,
    next_key: std::sync::atomic::AtomicU32,
}

impl LoopbackHost {
    pub(crate) fn new(wire: Arc<Wire>) -> Self {
        Self { wire, next_key: 1.into() }
    }

    /// Sends a command with its in-capsule data.
    pub fn send(&self, sqe: Sqe, in_capsule: &[u8]) {
        self.wire.lock().capsules.push_back((sqe, in_capsule.to_vec(), None));
        self.wire.wake();
    }

    /// Sends a command whose data or data pointer is invalid.
    pub fn send_bad(&self, sqe: Sqe, error: FabricError) {
        self.wire.lock().capsules.push_back((sqe, Vec::new(), Some(error)));
        self.wire.wake();
    }

    /// Creates memory that the target can read and write; returns the SGL for all of it.
    pub fn register(&self, bytes: Vec<u8>) -> Sgl {
        let key = self.next_key.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let length = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
        self.wire.lock().regions.insert(key, bytes);
        Sgl::Keyed { address: 0, length, key, invalidate: false }
    }

    /// Returns the memory that an SGL describes; empty if it describes none.
    pub fn memory(&self, sgl: Sgl) -> Vec<u8> {
        self.wire.lock().region(sgl).map_or_else(Vec::new, |bytes| bytes.to_vec())
    }

    /// Offers the data of a command with [`Sgl::Transport`]; its pull waits for it.
    pub fn offer(&self, cid: u16, bytes: Vec<u8>) {
        self.wire.lock().offered.insert(cid, bytes);
        self.wire.wake();
    }

    /// Returns the responses since the last call, in order.
    pub fn take(&self) -> Vec<Delivery> {
        std::mem::take(&mut self.wire.lock().deliveries)
    }

    /// Fails the next pull that would succeed; calls accumulate.
    pub fn fail_next(&self, error: FabricError) {
        self.wire.lock().failures.push_back(error);
    }

    /// Ends the connection.
    pub fn close(&self) {
        self.wire.lock().host_closed = true;
        self.wire.wake();
    }

    /// Returns the reason why the target ended the connection, if it did.
    pub fn closed(&self) -> Option<CloseReason> {
        self.wire.lock().closed.clone()
    }
}

impl Drop for LoopbackHost {
    fn drop(&mut self) {
        self.close();
    }
}
