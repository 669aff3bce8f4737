//! A device's completion queue (CQ) on one reactor, with the routes of its completions.
//!
//! Every queue pair reserves as many entries as it can have completions concurrently, so that the
//! CQ never overflows. Queue pairs that do not fit get another CQ. The [CM worker](super::usher)
//! creates the CQ; its replies for queue pairs also arrive here.

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::collections::{HashMap, VecDeque};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use nvmeof_core::dma::CorePool;
use nvmeof_verbs::{
    Completion, CompletionStatus, Completions, Device, DeviceLimits, EndpointSpec, Ticket,
    VerbsError,
};
use rustix::event::epoll;

use super::RdmaParams;
use super::numbers::NumberMap;
use super::queue::kind;
use super::queue::receives::{Arrived, BadLength};
use super::registration::Registration;
use super::shared::{Share, Shared};
use super::usher::{Answer, Desk, Slip, Usher};
use crate::queue::{Home, Nanos, Progress, Source, SourceCounts, TransportError};

/// Maximum completions taken from the device in one batch.
const BATCH: usize = 64;
/// Maximum batches in one poll.
const BATCHES: usize = 4;

/// A completion queue and the queues it serves.
#[derive(Debug)]
pub struct DeviceSource<D: Device> {
    hub: Rc<Hub<D>>,
}

/// State that a source and its queues share. Fields are dropped in order: the completion queue
/// last.
#[derive(Debug)]
pub(super) struct Hub<D: Device> {
    device: Arc<D>,
    usher: Arc<Usher<D>>,
    desk: Arc<Desk<D>>,
    /// Readable when the reply queue or the completion queue has something.
    both: OwnedFd,
    routes: RefCell<NumberMap<u32, Rc<Inbox<D>>>>,
    /// Queues, by the number of their slips.
    inboxes: RefCell<HashMap<u64, Rc<Inbox<D>>>>,
    /// Memory of queue pairs that could not be destroyed, by the same number.
    withheld: RefCell<Vec<(u64, Box<dyn Any>)>>,
    /// Entries of the completion queue, and those reserved for queue pairs.
    depth: u32,
    promised: Cell<u32>,
    /// Queues created: distinguishes uses of a queue pair number.
    made: Cell<u64>,
    counts: Cell<SourceCounts>,
    /// Completions that belong to no queue.
    stale: Cell<u64>,
    broken: Cell<bool>,
    /// True if a queue pair that shares receives remains because it cannot be destroyed.
    is_haunted: Cell<bool>,
    shared: RefCell<Option<Shared<D>>>,
    batch: RefCell<Vec<Completion>>,
    /// Tokens found while a queue, not the reactor, polled.
    untold: RefCell<Vec<u64>>,
    /// Reason why there will never be a completion queue.
    failure: RefCell<Option<String>>,
    /// `None` until the CM worker has created it.
    completions: RefCell<Option<D::Completions>>,
}

/// Pending events of one queue.
#[derive(Debug)]
struct Inbox<D: Device> {
    /// Reply of the CM worker.
    answer: RefCell<Option<Answer<D>>>,
    token: Cell<Option<u64>>,
    /// True if the token was reported since the queue last took everything.
    told: Cell<bool>,
    arrived: RefCell<VecDeque<Completion>>,
}

impl<D: Device> DeviceSource<D> {
    /// Returns a source of `home` for the registration's device with room for a queue pair.
    ///
    /// The pair has `entries` completions in addition to those of shared receives, of which it
    /// needs `shares`. Creates a new source if there is no room.
    pub(super) fn find(
        home: &mut Home<'_>,
        registration: &Arc<Registration<D>>,
        params: &RdmaParams,
        entries: u32,
        shares: Option<u32>,
    ) -> Result<Rc<Hub<D>>, TransportError> {
        let device = registration.device();
        let capacity = most_shared(params, device.limits());
        let suits = |source: &Self| {
            let hub = &source.hub;
            let room = hub.depth.saturating_sub(hub.promised.get());
            let shared = hub.shared.borrow();
            let (has_share, more) = match (shares, &*shared) {
                (None, _) => (true, 0),
                (Some(share), Some(shared)) => (shared.has_room(share), 0),
                // Shared receives also complete there.
                (Some(_), None) => (true, capacity),
            };
            let has_room = has_share && room >= entries.saturating_add(more);
            Arc::ptr_eq(&hub.device, device) && !hub.broken.get() && has_room
        };
        if let Some(source) = home.sources.find::<Self>(suits) {
            return Ok(Rc::clone(&source.hub));
        }
        let shared = if shares.is_some() { capacity } else { 0 };
        let needed = entries.saturating_add(shared);
        let depth = params.cq_depth.max(needed).min(device.limits().completions);
        if depth < needed {
            let what = format!(
                "{}: a queue needs {needed} completions ({shared} for shared receives), a completion queue \
                 has {depth}",
                device.name()
            );
            return Err(TransportError::NoMemory(what));
        }
        let source = Self::new(registration, depth)?;
        let hub = Rc::clone(&source.hub);
        home.sources.add(device.name().to_owned(), Box::new(source));
        Ok(hub)
    }

    fn new(registration: &Arc<Registration<D>>, depth: u32) -> Result<Self, TransportError> {
        let device = registration.device();
        let failed = |source| TransportError::Io {
            what: format!("cannot watch a completion queue of {}", device.name()),
            source,
        };
        let desk = Desk::new().map_err(failed)?;
        let both = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(|e| failed(e.into()))?;
        watch(&both, desk.bell()).map_err(failed)?;
        let usher = Arc::clone(registration.usher());
        let slip = Slip { desk: Arc::clone(&desk), number: 0 };
        usher.make_completions(depth, device, slip);
        let hub = Hub {
            device: Arc::clone(device),
            usher,
            desk,
            both,
            routes: RefCell::default(),
            inboxes: RefCell::default(),
            withheld: RefCell::default(),
            depth,
            promised: Cell::new(0),
            made: Cell::new(0),
            counts: Cell::default(),
            stale: Cell::new(0),
            broken: Cell::new(false),
            is_haunted: Cell::new(false),
            shared: RefCell::new(None),
            batch: RefCell::new(Vec::with_capacity(BATCH)),
            untold: RefCell::default(),
            failure: RefCell::default(),
            completions: RefCell::new(None),
        };
        Ok(Self { hub: Rc::new(hub) })
    }

    /// Returns the completions that belonged to nothing: late ones, of destroyed queues or of ended
    /// work.
    pub fn stale(&self) -> u64 {
        self.hub.stale.get()
    }

    /// Returns the numbers of the queue pairs that the source serves.
    #[cfg(test)]
    pub(super) fn numbers(&self) -> Vec<u32> {
        let mut numbers: Vec<_> = self.hub.routes.borrow().keys().copied().collect();
        numbers.sort_unstable();
        numbers
    }

    /// Returns the number of posted shared receives.
    #[cfg(test)]
    pub(super) fn shared_posted(&self) -> Option<usize> {
        self.hub.shared.borrow().as_ref().map(Shared::posted)
    }

    /// Returns the number of shared receives that should be posted.
    #[cfg(test)]
    pub(super) fn shared_wanted(&self) -> Option<usize> {
        self.hub.shared.borrow().as_ref().map(Shared::wanted)
    }

    /// Returns the completion queue, for fault injection.
    #[cfg(test)]
    pub(super) fn completions(&self) -> std::cell::Ref<'_, D::Completions> {
        std::cell::Ref::map(self.hub.completions.borrow(), |made| made.as_ref().unwrap())
    }
}

/// Makes `both` readable when `fd` is.
fn watch(both: &OwnedFd, fd: BorrowedFd<'_>) -> std::io::Result<()> {
    Ok(epoll::add(both, fd, epoll::EventData::new_u64(0), epoll::EventFlags::IN)?)
}

/// Returns the maximum receives that queues share at one source.
pub(super) fn most_shared(params: &RdmaParams, limits: DeviceLimits) -> u32 {
    params.shared_receives.min(limits.shared_receives)
}

impl<D: Device> Hub<D> {
    /// Returns a share of `depth` receives, for which [`DeviceSource::find`] found room.
    ///
    /// Returns `None` if the device creates no queue to share.
    pub(super) fn share(
        self: &Rc<Self>,
        registration: &Arc<Registration<D>>,
        params: &RdmaParams,
        pool: &CorePool,
        depth: u32,
    ) -> Result<Option<Share<D>>, TransportError> {
        let mut shared = self.shared.borrow_mut();
        if shared.is_none() {
            let capacity = most_shared(params, self.device.limits());
            match Shared::new(registration, params, pool, capacity) {
                Ok(None) => return Ok(None),
                Ok(made) => *shared = made,
                Err(error) => {
                    tracing::warn!(%error, "queues have receives of their own");
                    return Ok(None);
                }
            }
            self.promised.set(self.promised.get() + capacity);
        }
        shared.as_mut().map(|shared| shared.admit(self, depth)).transpose()
    }

    /// Returns the shared receives, if there are any.
    pub(super) fn shared(&self) -> &RefCell<Option<Shared<D>>> {
        &self.shared
    }

    /// Returns the number of queues created so far.
    pub(super) fn made(&self) -> u64 {
        self.made.get()
    }

    /// Creates the port of a queue whose queue pair has at most `entries` concurrent completions.
    ///
    /// Completions of its share are not counted.
    pub(super) fn port(self: &Rc<Self>, entries: u32, share: Option<Share<D>>) -> Port<D> {
        let number = self.made.get() + 1;
        self.made.set(number);
        self.promised.set(self.promised.get() + entries);
        let inbox = Rc::new(Inbox {
            answer: RefCell::new(None),
            token: Cell::new(None),
            told: Cell::new(false),
            arrived: RefCell::default(),
        });
        self.inboxes.borrow_mut().insert(number, Rc::clone(&inbox));
        let slip = Slip { desk: Arc::clone(&self.desk), number };
        Port { hub: Rc::clone(self), inbox, slip, pair: Cell::new(None), entries, share }
    }

    /// Handles a completion that belongs to no queue.
    fn discard(&self, completion: &Completion) {
        if let Some(shared) = &mut *self.shared.borrow_mut() {
            shared.discard(completion);
        }
    }

    /// Takes a batch from the device; returns true if the batch was full.
    fn poll_batch(&self, mut ready: impl FnMut(u64)) -> bool {
        if self.broken.get() {
            return false;
        }
        let mut made = self.completions.borrow_mut();
        let Some(completions) = made.as_mut() else { return false };
        let mut batch = self.batch.borrow_mut();
        batch.clear();
        let polled = completions.poll(BATCH, &mut batch);
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
                    self.discard(completion);
                }
            }
        }
        self.counts.set(counts);
        if let Err(error) = polled {
            tracing::warn!(device = self.device.name(), %error, "a completion queue is broken");
            self.broken.set(true);
            self.inboxes.borrow().values().for_each(|inbox| inbox.tell(&mut ready));
            return false;
        }
        batch.len() == BATCH
    }

    /// Handles a reply of the CM worker.
    fn answered(&self, number: u64, answer: Answer<D>, mut ready: impl FnMut(u64)) {
        let Answer::Completions(made) = answer else {
            if let Some(inbox) = self.inboxes.borrow().get(&number) {
                inbox.answer.replace(Some(answer));
                inbox.tell(&mut ready);
            }
            self.withheld.borrow_mut().retain(|(whose, _)| *whose != number);
            return;
        };
        let watched = made.map_err(|error| error.to_string()).and_then(|completions| {
            watch(&self.both, completions.fd()).map_err(|error| error.to_string())?;
            Ok(completions)
        });
        match watched {
            Ok(completions) => *self.completions.borrow_mut() = Some(completions),
            Err(error) => {
                tracing::warn!(device = self.device.name(), error, "no completion queue");
                self.broken.set(true);
                self.failure.replace(Some(error));
            }
        }
        self.inboxes.borrow().values().for_each(|inbox| inbox.tell(&mut ready));
    }
}

impl<D: Device> Drop for Hub<D> {
    fn drop(&mut self) {
        if let Some(completions) = self.completions.get_mut().take() {
            self.usher.dispose(completions);
        }
        let withheld = self.withheld.get_mut();
        if self.is_haunted.get() || !withheld.is_empty() {
            // This queue pair can have taken any of the shared receives.
            std::mem::forget(self.shared.get_mut().take());
        }
        for (_, memory) in withheld.drain(..) {
            tracing::error!(
                device = self.device.name(),
                "a queue pair is left that cannot be destroyed: its memory is never used again"
            );
            std::mem::forget(memory);
        }
    }
}

impl<D: Device> Inbox<D> {
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
        for (number, answer) in self.hub.desk.take() {
            self.hub.answered(number, answer, |token| ready.push(token));
        }
        if let Some(shared) = &mut *self.hub.shared.borrow_mut() {
            shared.repost();
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
        let mut completions = self.hub.completions.borrow_mut();
        if let Some(Err(error)) = completions.as_mut().map(Completions::arm) {
            // The next poll detects the cause, and notifies the queues.
            tracing::warn!(device = self.hub.device.name(), %error, "cannot arm a completion queue");
        }
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.hub.both.as_fd()
    }

    fn is_used(&self) -> bool {
        !self.hub.inboxes.borrow().is_empty() || !self.hub.withheld.borrow().is_empty()
    }

    fn counts(&self) -> SourceCounts {
        self.hub.counts.get()
    }

    fn as_any(&mut self) -> &mut dyn Any {
        self
    }
}

/// A queue's handle of its source. Dropped after the endpoint.
#[derive(Debug)]
pub(super) struct Port<D: Device> {
    hub: Rc<Hub<D>>,
    inbox: Rc<Inbox<D>>,
    slip: Slip<D>,
    /// Number of the queue pair whose completions arrive here.
    pair: Cell<Option<u32>>,
    entries: u32,
    share: Option<Share<D>>,
}

/// Readiness for the creation of queue pairs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Readiness {
    /// Not yet.
    Wait,
    Ready,
    /// Never.
    Failed(String),
}

impl<D: Device> Port<D> {
    /// Returns the state of the completion queue.
    pub(super) fn readiness(&self) -> Readiness {
        match &*self.hub.failure.borrow() {
            Some(why) => Readiness::Failed(why.clone()),
            None if self.hub.completions.borrow().is_some() => Readiness::Ready,
            None => Readiness::Wait,
        }
    }

    /// Creates the queue pair of a ticket, whose completions arrive here.
    pub(super) fn open(
        &self,
        ticket: D::Ticket,
        spec: &EndpointSpec,
    ) -> Result<D::Endpoint, (VerbsError, D::Ticket)> {
        debug_assert!(Arc::ptr_eq(ticket.device(), &self.hub.device), "another device's ticket");
        let completions = self.hub.completions.borrow();
        let Some(completions) = completions.as_ref() else {
            let none = std::io::ErrorKind::NotConnected.into();
            let what = "making a queue pair without a completion queue".to_owned();
            return Err((VerbsError::Call { what, source: none }, ticket));
        };
        let shared = self.hub.shared.borrow();
        let shared = shared.as_ref().filter(|_| self.share.is_some()).map(Shared::queue);
        let endpoint = self.hub.device.open(ticket, completions, shared, spec)?;
        let number = nvmeof_verbs::Endpoint::number(&endpoint);
        self.pair.set(Some(number));
        self.hub.routes.borrow_mut().insert(number, Rc::clone(&self.inbox));
        Ok(endpoint)
    }

    /// Ends the delivery of completions: the queue pair will be destroyed, and its number can be
    /// reused.
    pub(super) fn close(&self) {
        let Some(number) = self.pair.take() else { return };
        let mut routes = self.hub.routes.borrow_mut();
        if routes.get(&number).is_some_and(|inbox| Rc::ptr_eq(inbox, &self.inbox)) {
            routes.remove(&number);
        }
    }

    /// Returns the CM worker and the slip for its replies.
    pub(super) fn usher(&self) -> (&Usher<D>, &Slip<D>) {
        (&self.hub.usher, &self.slip)
    }

    /// Returns the CM worker's reply. Afterwards the source reports the next event.
    pub(super) fn answer(&self) -> Option<Answer<D>> {
        self.inbox.told.set(false);
        self.inbox.answer.take()
    }

    /// Waits for the CM worker's reply, for `most` at most.
    pub(super) fn wait_for_answer(&self, most: Duration) -> Option<Answer<D>> {
        self.hub.usher.run();
        self.answer().or_else(|| self.hub.desk.wait_for(self.slip.number, most))
    }

    /// Keeps memory that the queue pair may use until it is destroyed, for ever if it never is.
    pub(super) fn withhold(&self, memory: Box<dyn Any>) {
        self.hub.withheld.borrow_mut().push((self.slip.number, memory));
        let mut counts = self.hub.counts.get();
        counts.withheld += 1;
        self.hub.counts.set(counts);
    }

    /// Records that the queue pair is never destroyed.
    pub(super) fn haunt(&self) {
        self.hub.is_haunted.set(self.share.is_some() || self.hub.is_haunted.get());
    }

    /// Returns the share of the receives.
    ///
    /// The caller drops it when the queue pair is destroyed and its completions have been [taken
    /// in](Self::settle).
    pub(super) fn take_share(&mut self) -> Option<Share<D>> {
        self.share.take()
    }

    pub(super) fn set_token(&self, token: u64) {
        self.inbox.token.set(Some(token));
    }

    /// Returns the next completion. After `None`, the source reports the next one.
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

    /// Returns true if the completion queue has failed.
    pub(super) fn is_broken(&self) -> bool {
        self.hub.broken.get()
    }

    /// Takes the completions that the device has now.
    ///
    /// The queue pair will be destroyed, which would also discard its completions.
    pub(super) fn settle(&self) {
        let mut untold = self.hub.untold.borrow_mut();
        let batches = usize::try_from(self.hub.depth).unwrap_or(usize::MAX) / BATCH + 1;
        for _ in 0..batches {
            if !self.hub.poll_batch(|token| untold.push(token)) {
                break;
            }
        }
    }

    /// Takes a capsule out of a shared receive, which is posted again immediately.
    pub(super) fn take_shared(
        &self,
        completion: &Completion,
    ) -> Option<Result<Arrived, BadLength>> {
        let arrived = match (&mut *self.hub.shared.borrow_mut(), &self.share) {
            (Some(shared), Some(share)) => shared.take(completion, share),
            (Some(shared), None) => {
                shared.discard(completion);
                None
            }
            _ => None,
        };
        if arrived.is_none() {
            self.count_stale();
        }
        arrived
    }

    /// Posts receives for the completed commands of this queue.
    pub(super) fn refill(&self) {
        if let (Some(shared), Some(share)) = (&mut *self.hub.shared.borrow_mut(), &self.share) {
            shared.refill(share);
        }
    }

    /// Counts a completion that belongs to nothing of this queue.
    pub(super) fn count_stale(&self) {
        self.hub.stale.set(self.hub.stale.get() + 1);
    }
}

impl<D: Device> Drop for Port<D> {
    fn drop(&mut self) {
        self.close();
        self.hub.inboxes.borrow_mut().remove(&self.slip.number);
        self.hub.promised.set(self.hub.promised.get().saturating_sub(self.entries));
        while let Some(completion) = self.next() {
            self.hub.discard(&completion);
        }
    }
}
