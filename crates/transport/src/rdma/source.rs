//! A device's completion queue on one reactor: whose completion is it?
//!
//! Every queue pair takes as many entries as it could have completions at once, so that the queue never
//! overflows; queue pairs that do not fit get another one.

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::rc::Rc;
use std::sync::Arc;

use nvmeof_verbs::{
    Completion, CompletionStatus, Completions, Device, EndpointSpec, Ticket, VerbsError,
};

use super::RdmaParams;
use super::numbers::NumberMap;
use super::queue::kind;
use super::queue::receives::{Arrived, BadLength};
use super::registration::Registration;
use super::shared::Shared;
use crate::queue::{Home, Nanos, Progress, Source, SourceCounts, TransportError};

/// Completions taken from the device at once.
const BATCH: usize = 64;
/// Such batches in one poll.
const BATCHES: usize = 4;

/// A completion queue and the queues it serves.
#[derive(Debug)]
pub struct DeviceSource<D: Device> {
    hub: Rc<Hub<D>>,
    /// A second descriptor of the completion queue's.
    fd: OwnedFd,
}

/// What a source and its queues share. Fields are dropped in order: the completion queue last.
#[derive(Debug)]
pub(super) struct Hub<D: Device> {
    device: Arc<D>,
    routes: RefCell<NumberMap<u32, Rc<Inbox>>>,
    /// Entries of the completion queue, and those that queue pairs were promised.
    depth: u32,
    promised: Cell<u32>,
    /// Queues made: tells uses of a queue pair number apart.
    made: Cell<u32>,
    counts: Cell<SourceCounts>,
    /// Completions of nobody.
    stale: Cell<u64>,
    broken: Cell<bool>,
    shared: Option<RefCell<Shared<D>>>,
    batch: RefCell<Vec<Completion>>,
    /// Tokens found while a queue, not the reactor, looked.
    untold: RefCell<Vec<u64>>,
    completions: RefCell<D::Completions>,
}

/// Completions of one queue that it has not taken yet.
#[derive(Debug, Default)]
struct Inbox {
    token: Cell<Option<u64>>,
    /// The token was given since the queue last took everything.
    told: Cell<bool>,
    arrived: RefCell<VecDeque<Completion>>,
}

impl<D: Device> DeviceSource<D> {
    /// The source of `home` for the registration's device that has room for `entries` completions; a new one
    /// if there is none.
    pub(super) fn find<'a>(
        home: &'a mut Home<'_>,
        registration: &Arc<Registration<D>>,
        params: &RdmaParams,
        entries: u32,
    ) -> Result<&'a mut Self, TransportError> {
        let device = registration.device();
        let shared = params.shared_receives.min(device.limits().shared_receives);
        let suits = |source: &Self| {
            let hub = &source.hub;
            let room = hub.depth.saturating_sub(hub.promised.get());
            // What a queue takes of the completion queue depends on whose receives it uses.
            let is_alike = hub.shared.is_some() == (shared > 0);
            Arc::ptr_eq(&hub.device, device) && is_alike && !hub.broken.get() && room >= entries
        };
        let pool = home.pool;
        let found = home.sources.find::<Self>(suits).is_some();
        if !found {
            // Shared receives complete there, too.
            let needed = entries.saturating_add(shared);
            let depth = params.cq_depth.max(needed).min(device.limits().completions);
            if depth < needed {
                let what = format!(
                    "{}: a queue needs {needed} completions ({shared} for shared receives), a completion \
                     queue has {depth}",
                    device.name()
                );
                return Err(TransportError::NoMemory(what));
            }
            let source = Self::new(registration, params, depth, pool)?;
            home.sources.add(device.name().to_owned(), Box::new(source));
        }
        home.sources.find::<Self>(suits).ok_or_else(|| {
            TransportError::NoMemory(format!("{}: no completion queue", device.name()))
        })
    }

    fn new(
        registration: &Arc<Registration<D>>,
        params: &RdmaParams,
        depth: u32,
        pool: &nvmeof_core::dma::CorePool,
    ) -> Result<Self, TransportError> {
        let device = registration.device();
        let failed = |error: VerbsError| TransportError::Io {
            what: format!("cannot make a completion queue of {depth} entries at {}", device.name()),
            source: std::io::Error::other(error),
        };
        let completions = device.completions(depth).map_err(failed)?;
        let fd = completions.fd().try_clone_to_owned().map_err(|source| TransportError::Io {
            what: format!("cannot watch a completion queue of {}", device.name()),
            source,
        })?;
        let shared = match params.shared_receives {
            0 => None,
            _ => Shared::new(registration, params, pool)?,
        };
        let promised = shared.as_ref().map_or(0, Shared::count);
        let hub = Hub {
            device: Arc::clone(device),
            routes: RefCell::default(),
            depth,
            promised: Cell::new(promised),
            made: Cell::new(0),
            counts: Cell::default(),
            stale: Cell::new(0),
            broken: Cell::new(false),
            shared: shared.map(RefCell::new),
            batch: RefCell::new(Vec::with_capacity(BATCH)),
            untold: RefCell::default(),
            completions: RefCell::new(completions),
        };
        Ok(Self { hub: Rc::new(hub), fd })
    }

    /// Completions that belonged to nothing: late ones, of queues that are gone or of work that was over.
    pub fn stale(&self) -> u64 {
        self.hub.stale.get()
    }

    /// Numbers of the queue pairs it serves.
    #[cfg(test)]
    pub(super) fn numbers(&self) -> Vec<u32> {
        let mut numbers: Vec<_> = self.hub.routes.borrow().keys().copied().collect();
        numbers.sort_unstable();
        numbers
    }

    /// Shared receives that are posted.
    #[cfg(test)]
    pub(super) fn shared_posted(&self) -> Option<usize> {
        self.hub.shared.as_ref().map(|shared| shared.borrow().posted())
    }

    /// The completion queue, for faults.
    #[cfg(test)]
    pub(super) fn completions(&self) -> std::cell::Ref<'_, D::Completions> {
        self.hub.completions.borrow()
    }

    /// Whether connections share receives here.
    pub(super) fn has_shared(&self) -> bool {
        self.hub.shared.is_some()
    }

    /// Queues made so far.
    pub(super) fn made(&self) -> u32 {
        self.hub.made.get()
    }

    /// Makes the queue pair of a ticket.
    pub(super) fn open(
        &mut self,
        ticket: D::Ticket,
        spec: &EndpointSpec,
    ) -> Result<D::Endpoint, (VerbsError, D::Ticket)> {
        debug_assert!(Arc::ptr_eq(ticket.device(), &self.hub.device), "another device's ticket");
        let shared = self.hub.shared.as_ref().map(RefCell::borrow);
        let completions = self.hub.completions.borrow();
        let shared = shared.as_ref().map(|shared| shared.queue());
        self.hub.device.open(ticket, &completions, shared, spec)
    }

    /// Has completions of queue pair `number` kept for the caller, `entries` at most at once.
    pub(super) fn port(&mut self, number: u32, entries: u32) -> Port<D> {
        let inbox = Rc::new(Inbox::default());
        self.hub.routes.borrow_mut().insert(number, Rc::clone(&inbox));
        self.hub.promised.set(self.hub.promised.get() + entries);
        self.hub.made.set(self.hub.made.get().wrapping_add(1));
        Port { hub: Rc::clone(&self.hub), inbox, number, entries }
    }
}

impl<D: Device> Hub<D> {
    /// Takes a batch from the device; whether it was a full one.
    fn poll_batch(&self, mut ready: impl FnMut(u64)) -> bool {
        if self.broken.get() {
            return false;
        }
        let mut batch = self.batch.borrow_mut();
        batch.clear();
        let polled = self.completions.borrow_mut().poll(BATCH, &mut batch);
        let mut counts = self.counts.get();
        counts.polls += 1;
        counts.found += u64::from(!batch.is_empty());
        counts.completions += u64::try_from(batch.len()).unwrap_or(0);
        let routes = self.routes.borrow();
        for completion in batch.iter() {
            let is_capsule = matches!(completion.id.kind(), kind::RECEIVE | kind::SHARED_RECEIVE);
            if is_capsule && completion.status == CompletionStatus::Success {
                counts.requests += 1;
            }
            match routes.get(&completion.queue_pair) {
                Some(inbox) => {
                    inbox.arrived.borrow_mut().push_back(*completion);
                    inbox.tell(&mut ready);
                }
                None => {
                    self.stale.set(self.stale.get() + 1);
                    if let Some(shared) = &self.shared {
                        shared.borrow_mut().discard(completion);
                    }
                }
            }
        }
        self.counts.set(counts);
        if let Err(error) = polled {
            tracing::warn!(device = self.device.name(), %error, "a completion queue is broken");
            self.broken.set(true);
            routes.values().for_each(|inbox| inbox.tell(&mut ready));
            return false;
        }
        batch.len() == BATCH
    }
}

impl Inbox {
    fn tell(&self, ready: &mut impl FnMut(u64)) {
        if let Some(token) = self.token.get()
            && !self.told.replace(true)
        {
            ready(token);
        }
    }
}

impl<D: Device> Source for DeviceSource<D> {
    fn poll(&mut self, _now: Nanos, ready: &mut Vec<u64>) -> Progress {
        if let Some(shared) = &self.hub.shared {
            shared.borrow_mut().repost();
        }
        ready.append(&mut self.hub.untold.borrow_mut());
        for _ in 0..BATCHES {
            if !self.hub.poll_batch(|token| ready.push(token)) {
                return Progress::Idle;
            }
        }
        Progress::More
    }

    fn arm(&mut self) {
        if self.hub.broken.get() {
            return;
        }
        if let Err(error) = self.hub.completions.borrow_mut().arm() {
            // The next poll finds out what it is, and tells the queues.
            tracing::warn!(device = self.hub.device.name(), %error, "cannot arm a completion queue");
        }
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    fn is_used(&self) -> bool {
        !self.hub.routes.borrow().is_empty()
    }

    fn counts(&self) -> SourceCounts {
        self.hub.counts.get()
    }

    fn as_any(&mut self) -> &mut dyn Any {
        self
    }
}

/// A queue's end of its source. Dropped after the endpoint.
#[derive(Debug)]
pub(super) struct Port<D: Device> {
    hub: Rc<Hub<D>>,
    inbox: Rc<Inbox>,
    number: u32,
    entries: u32,
}

impl<D: Device> Port<D> {
    pub(super) fn set_token(&self, token: u64) {
        self.inbox.token.set(Some(token));
    }

    /// The next completion that has come. After `None` the source tells of the next one.
    pub(super) fn next(&self) -> Option<Completion> {
        let next = self.inbox.arrived.borrow_mut().pop_front();
        if next.is_none() {
            self.inbox.told.set(false);
        }
        next
    }

    pub(super) fn is_empty(&self) -> bool {
        self.inbox.arrived.borrow().is_empty()
    }

    /// The completion queue gives nothing any more.
    pub(super) fn is_broken(&self) -> bool {
        self.hub.broken.get()
    }

    /// Takes in what the device has now, for the queue pair is about to go, and what is there of it would go,
    /// too.
    pub(super) fn settle(&self) {
        let mut untold = self.hub.untold.borrow_mut();
        let batches = usize::try_from(self.hub.depth).unwrap_or(usize::MAX) / BATCH + 1;
        for _ in 0..batches {
            if !self.hub.poll_batch(|token| untold.push(token)) {
                break;
            }
        }
    }

    /// Takes a capsule out of a shared receive, which is posted again at once.
    pub(super) fn take_shared(
        &self,
        completion: &Completion,
    ) -> Option<Result<Arrived, BadLength>> {
        let arrived = self.hub.shared.as_ref()?.borrow_mut().take(completion);
        if arrived.is_none() {
            self.count_stale();
        }
        arrived
    }

    /// A completion that belongs to nothing of this queue.
    pub(super) fn count_stale(&self) {
        self.hub.stale.set(self.hub.stale.get() + 1);
    }
}

impl<D: Device> Drop for Port<D> {
    fn drop(&mut self) {
        self.hub.routes.borrow_mut().remove(&self.number);
        self.hub.promised.set(self.hub.promised.get().saturating_sub(self.entries));
        while let Some(completion) = self.next() {
            if let Some(shared) = &self.hub.shared {
                shared.borrow_mut().discard(&completion);
            }
        }
    }
}
