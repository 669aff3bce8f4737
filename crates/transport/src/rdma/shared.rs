//! The receive queue that the connections of a source share: fewer receives for many idle hosts.
//!
//! A capsule is copied out and its receive posted again by whoever sees its completion. A queue pair that goes
//! leaves its receives here, so nothing of them is waited for.

use std::sync::Arc;

use nvmeof_core::dma::{CorePool, LeaseError};
use nvmeof_verbs::{Completion, Device, VerbsError};

use super::RdmaParams;
use super::post::SharedQueue;
use super::queue::kind;
use super::queue::receives::{Arrived, BadLength, Receives};
use super::registration::Registration;
use crate::queue::TransportError;

/// Receives of a source. The queue is dropped before the memory.
#[derive(Debug)]
pub(super) struct Shared<D: Device> {
    queue: SharedQueue<D::SharedReceives>,
    receives: Receives,
    registration: Arc<Registration<D>>,
    /// A receive could not be posted: the device is going.
    broken: bool,
}

impl<D: Device> Shared<D> {
    /// `None` if the device has no shared receive queues.
    pub(super) fn new(
        registration: &Arc<Registration<D>>,
        params: &RdmaParams,
        pool: &CorePool,
    ) -> Result<Option<Self>, TransportError> {
        let device = registration.device();
        let most = device.limits().shared_receives;
        let count = params.shared_receives.min(most);
        if count == 0 {
            tracing::warn!(
                device = device.name(),
                "no shared receive queue: each queue has its own"
            );
            return Ok(None);
        }
        let failed = |error: VerbsError| TransportError::Io {
            what: format!("cannot share {count} receives at {}", device.name()),
            source: std::io::Error::other(error),
        };
        let Some(queue) = device.shared_receives(count, 2).map_err(failed)? else {
            return Ok(None);
        };
        let no_memory = |error: LeaseError| {
            TransportError::NoMemory(format!("{count} shared receives: {error}"))
        };
        let size = (usize::try_from(count).unwrap_or(usize::MAX), params.in_capsule);
        let receives =
            Receives::new(pool, registration, kind::SHARED_RECEIVE, size, 0).map_err(no_memory)?;
        let mut shared = Self {
            queue: SharedQueue(queue),
            receives,
            registration: Arc::clone(registration),
            broken: false,
        };
        shared.receives.post_all(&mut shared.queue, &shared.registration).map_err(|source| {
            TransportError::Io {
                what: format!("cannot post shared receives at {}", device.name()),
                source,
            }
        })?;
        Ok(Some(shared))
    }

    /// What endpoints are opened with.
    pub(super) fn queue(&self) -> &D::SharedReceives {
        &self.queue.0
    }

    /// Receives there are.
    pub(super) fn count(&self) -> u32 {
        u32::try_from(self.receives.count()).unwrap_or(u32::MAX)
    }

    /// Receives that are posted.
    #[cfg(test)]
    pub(super) fn posted(&self) -> usize {
        self.receives.posted()
    }

    /// The capsule of a receive that has come back well, and whose receive is posted again; `Some(Err)` if it
    /// is no capsule, `None` if the completion belongs to nothing.
    pub(super) fn take(&mut self, completion: &Completion) -> Option<Result<Arrived, BadLength>> {
        let slot = self.receives.came_back(completion.id)?;
        let taken = self.receives.take(slot, completion);
        self.post(slot);
        Some(taken)
    }

    /// Posts the receive of a completion that nobody wants.
    pub(super) fn discard(&mut self, completion: &Completion) {
        if let Some(slot) = self.receives.came_back(completion.id) {
            self.post(slot);
        }
    }

    /// Posts what waits for a buffer.
    pub(super) fn repost(&mut self) {
        if self.receives.has_starved() && !self.broken {
            let posted = self.receives.post_starved(&mut self.queue, &self.registration);
            self.broken = posted.is_err();
        }
    }

    fn post(&mut self, slot: u32) {
        if !self.broken
            && let Err(error) = self.receives.post(slot, &mut self.queue, &self.registration)
        {
            tracing::warn!(%error, "cannot post a shared receive");
            self.broken = true;
        }
    }
}
