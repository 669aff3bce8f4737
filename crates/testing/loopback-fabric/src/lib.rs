//! An in-memory fabric for tests: a queue whose host is a handle in the test.
//!
//! It moves data as RDMA does. The target reads and writes host memory that the SGL describes, and
//! a response arrives after its data. Operations end in the order of submission, each after a
//! latency of virtual time. [`Sgl::Transport`] works too: the host offers the data of a write, and
//! gets the data of a read, with the command. [`LoopbackHost::fail_next`] injects faults.

mod host;
mod queue;

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use nvmeof_transport::{CloseReason, DetachedQueue, FabricError, Nanos};
use nvmeof_wire::{Cqe, Sgl, Sqe};
use rustix::event::{EventfdFlags, eventfd};
use rustix::fd::OwnedFd;

pub use host::{Delivery, LoopbackHost};

/// Parameters of a loopback connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LoopbackParams {
    /// Maximum outstanding commands until Connect sets the depth.
    pub depth: u16,
    /// Maximum bytes of in-capsule data.
    pub in_capsule: u32,
    /// Time from an operation's flush to its end.
    pub latency: Nanos,
}

impl Default for LoopbackParams {
    fn default() -> Self {
        Self { depth: 32, in_capsule: 8192, latency: 0 }
    }
}

/// Creates a connection; the target's end is parked.
///
/// # Panics
/// Panics if the system has no eventfd left.
#[must_use]
pub fn connect(params: LoopbackParams) -> (Box<dyn DetachedQueue>, LoopbackHost) {
    let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
    let wake = eventfd(0, flags).unwrap_or_else(|errno| panic!("no eventfd: {errno}"));
    let wire = Arc::new(Wire { shared: Mutex::default(), wake });
    let parked = queue::DetachedLoopback::new(Arc::clone(&wire), params);
    (Box::new(parked), LoopbackHost::new(wire))
}

/// State that both ends share.
#[derive(Debug)]
struct Wire {
    shared: Mutex<LoopbackInner>,
    /// Readable when the host has acted.
    wake: OwnedFd,
}

#[derive(Debug, Default)]
struct LoopbackInner {
    /// Commands, their in-capsule data, and their faults.
    capsules: VecDeque<(Sqe, Vec<u8>, Option<FabricError>)>,
    deliveries: Vec<Delivery>,
    /// Host memory by key.
    regions: HashMap<u32, Vec<u8>>,
    /// Data of writes with [`Sgl::Transport`], by command.
    offered: HashMap<u16, Vec<u8>>,
    failures: VecDeque<FabricError>,
    host_closed: bool,
    closed: Option<CloseReason>,
}

impl Wire {
    fn lock(&self) -> MutexGuard<'_, LoopbackInner> {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wake(&self) {
        // A counter at its maximum is already readable.
        let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
    }

    fn clear(&self) {
        let _ = rustix::io::read(&self.wake, &mut [0; 8]);
    }
}

impl LoopbackInner {
    /// Copies the command's data into `to`; `None` if the host has not offered it yet.
    fn read(&mut self, cid: u16, sgl: Sgl, to: &mut [u8]) -> Option<Result<(), FabricError>> {
        if let Some(error) = self.failures.pop_front() {
            return Some(Err(error));
        }
        let from = match sgl {
            Sgl::Keyed { .. } => self.region(sgl).map(|from| &*from),
            _ => Some(&**self.offered.get(&cid)?),
        };
        Some(match from.and_then(|from| from.get(..to.len())) {
            Some(from) => {
                to.copy_from_slice(from);
                Ok(())
            }
            None => Err(FabricError::Transfer),
        })
    }

    /// Returns the host memory that an SGL describes.
    fn region(&mut self, sgl: Sgl) -> Option<&mut [u8]> {
        let Sgl::Keyed { address, length, key, .. } = sgl else {
            return None;
        };
        let start = usize::try_from(address).ok()?;
        let end = start.checked_add(usize::try_from(length).ok()?)?;
        self.regions.get_mut(&key)?.get_mut(start..end)
    }

    /// Delivers a response and its data to the host.
    fn deliver(&mut self, cqe: Cqe, sgl: Sgl, data: Vec<u8>) {
        if let Some(region) = self.region(sgl) {
            let len = region.len().min(data.len());
            region[..len].copy_from_slice(&data[..len]);
        }
        self.deliveries.push(Delivery { cqe, data });
    }
}

#[cfg(test)]
mod tests;
