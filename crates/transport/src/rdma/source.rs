//! A device's completion queue on one reactor: whose completion is it?
//!
//! Every queue pair takes as many entries as it could have completions at once, so that the queue never
//! overflows; queue pairs that do not fit get another one. The [usher](super::usher) makes it, and what the
//! usher has done for queue pairs comes back here, too.

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

/// Completions taken from the device at once.
const BATCH: usize = 64;
/// Such batches in one poll.
const BATCHES: usize = 4;

/// A completion queue and the queues it serves.
#[derive(Debug)]
pub struct DeviceSource<D: Device> {
    hub: Rc<Hub<D>>,
}

/// What a source and its queues share. Fields are dropped in order: the completion queue last.
#[derive(Debug)]
pub(super) struct Hub<D: Device> {
    device: Arc<D>,
    usher: Arc<Usher<D>>,
    desk: Arc<Desk<D>>,
    /// Readable when the desk or the completion queue has something.
    both: OwnedFd,
    routes: RefCell<NumberMap<u32, Rc<Inbox<D>>>>,
    /// Queues, by the number of their slips.
    inboxes: RefCell<HashMap<u64, Rc<Inbox<D>>>>,
    /// Memory of queue pairs that could not be taken away, by the same number.
    withheld: RefCell<Vec<(u64, Box<dyn Any>)>>,
    /// Entries of the completion queue, and those that queue pairs were promised.
    depth: u32,
    promised: Cell<u32>,
    /// Queues made: tells uses of a queue pair number apart.
    made: Cell<u64>,
    counts: Cell<SourceCounts>,
    /// Completions of nobody.
    stale: Cell<u64>,
    broken: Cell<bool>,
    /// A queue pair was left that could not be taken away, and shares receives.
    is_haunted: Cell<bool>,
    shared: RefCell<Option<Shared<D>>>,
    batch: RefCell<Vec<Completion>>,
    /// Tokens found while a queue, not the reactor, looked.
    untold: RefCell<Vec<u64>>,
    /// Why there is none, if there never will be.
    failure: RefCell<Option<String>>,
    /// `None` until the usher has made it.
    completions: RefCell<Option<D::Completions>>,
}

/// What came for one queue that it has not taken yet.
#[derive(Debug)]
struct Inbox<D: Device> {
    /// Of the usher.
    answer: RefCell<Option<Answer<D>>>,
    token: Cell<Option<u64>>,
    /// The token was given since the queue last took everything.
    told: Cell<bool>,
    arrived: RefCell<VecDeque<Completion>>,
}

impl<D: Device> DeviceSource<D> {
    /// Room at a source of `home` for the registration's device: for a queue pair with `entries` completions
    /// besides those of shared receives, of which it wants `shares`. A new source if there is no room.
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
                // Shared receives complete there, too.
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
        self.hub.shared.borrow().as_ref().map(Shared::posted)
    }

    /// Shared receives that should be.
    #[cfg(test)]
    pub(super) fn shared_wanted(&self) -> Option<usize> {
        self.hub.shared.borrow().as_ref().map(Shared::wanted)
    }

    /// The completion queue, for faults.
    #[cfg(test)]
    pub(super) fn completions(&self) -> std::cell::Ref<'_, D::Completions> {
        std::cell::Ref::map(self.hub.completions.borrow(), |made| made.as_ref().unwrap())
    }
}

/// Has `both` become readable when `fd` is.
fn watch(both: &OwnedFd, fd: BorrowedFd<'_>) -> std::io::Result<()> {
    Ok(epoll::add(both, fd, epoll::EventData::new_u64(0), epoll::EventFlags::IN)?)
}

/// Most receives that queues share at one source.
pub(super) fn most_shared(params: &RdmaParams, limits: DeviceLimits) -> u32 {
    params.shared_receives.min(limits.shared_receives)
}

impl<D: Device> Hub<D> {
    /// A share of `depth` receives, where [`DeviceSource::find`] found room for one; `None` if the device makes no
    /// queue to share.
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

    /// The shared receives, if there are any.
    pub(super) fn shared(&self) -> &RefCell<Option<Shared<D>>> {
        &self.shared
    }

    /// Queues made so far.
    pub(super) fn made(&self) -> u64 {
        self.made.get()
    }

    /// Has a place for a queue whose queue pair has `entries` completions at most at once besides those of its
    /// share.
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

    /// A completion that belongs to no queue.
    fn discard(&self, completion: &Completion) {
        if let Some(shared) = &mut *self.shared.borrow_mut() {
            shared.discard(completion);
        }
    }

    /// Takes a batch from the device; whether it was a full one.
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

    /// The usher has done something.
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
            // Such a queue pair may have taken any of them.
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
            // The next poll finds out what it is, and tells the queues.
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

/// A queue's end of its source. Dropped after the endpoint.
#[derive(Debug)]
pub(super) struct Port<D: Device> {
    hub: Rc<Hub<D>>,
    inbox: Rc<Inbox<D>>,
    slip: Slip<D>,
    /// Number of the queue pair whose completions come here.
    pair: Cell<Option<u32>>,
    entries: u32,
    share: Option<Share<D>>,
}

/// Whether queue pairs can be made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Readiness {
    /// Not yet.
    Wait,
    Ready,
    /// Never.
    Failed(String),
}

impl<D: Device> Port<D> {
    /// Whether there is a completion queue.
    pub(super) fn readiness(&self) -> Readiness {
        match &*self.hub.failure.borrow() {
            Some(why) => Readiness::Failed(why.clone()),
            None if self.hub.completions.borrow().is_some() => Readiness::Ready,
            None => Readiness::Wait,
        }
    }

    /// Makes the queue pair of a ticket, whose completions come here.
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

    /// No completion is for this queue any more: its queue pair goes, and its number may come again.
    pub(super) fn close(&self) {
        let Some(number) = self.pair.take() else { return };
        let mut routes = self.hub.routes.borrow_mut();
        if routes.get(&number).is_some_and(|inbox| Rc::ptr_eq(inbox, &self.inbox)) {
            routes.remove(&number);
        }
    }

    /// Who does what may wait, and where the answers go.
    pub(super) fn usher(&self) -> (&Usher<D>, &Slip<D>) {
        (&self.hub.usher, &self.slip)
    }

    /// What the usher has done. Afterwards the source tells of the next thing.
    pub(super) fn answer(&self) -> Option<Answer<D>> {
        self.inbox.told.set(false);
        self.inbox.answer.take()
    }

    /// The same, waited for, for `most` at most.
    pub(super) fn wait_for_answer(&self, most: Duration) -> Option<Answer<D>> {
        self.hub.usher.run();
        self.answer().or_else(|| self.hub.desk.wait_for(self.slip.number, most))
    }

    /// Keeps memory that the queue pair may be using until it is gone, for ever if it never is.
    pub(super) fn withhold(&self, memory: Box<dyn Any>) {
        self.hub.withheld.borrow_mut().push((self.slip.number, memory));
        let mut counts = self.hub.counts.get();
        counts.withheld += 1;
        self.hub.counts.set(counts);
    }

    /// The queue pair is left where it is, for good.
    pub(super) fn haunt(&self) {
        self.hub.is_haunted.set(self.share.is_some() || self.hub.is_haunted.get());
    }

    /// The share of the receives: to be given back, by dropping it, when the queue pair is gone and what it took
    /// has been [taken in](Self::settle).
    pub(super) fn take_share(&mut self) -> Option<Share<D>> {
        self.share.take()
    }

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

    /// Posts receives for the commands of this queue that are done.
    pub(super) fn refill(&self) {
        if let (Some(shared), Some(share)) = (&mut *self.hub.shared.borrow_mut(), &self.share) {
            shared.refill(share);
        }
    }

    /// A completion that belongs to nothing of this queue.
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
