//! A device's completion queue (CQ) on one reactor, with the routes of its completions.
//!
//! Every queue pair reserves as many entries as it can have completions concurrently, so that the
//! CQ never overflows. Queue pairs that do not fit get another CQ. The [CM
//! worker](super::cm_worker) creates the CQ; its replies for queue pairs also arrive here.

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::collections::{HashMap, VecDeque};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use nvmeof_core::dma::CorePool;
use nvmeof_verbs::{
    CompletionQueue, Device, DeviceLimits, EndpointSpec, PendingConnection, VerbsError, WcStatus,
    WorkCompletion,
};
use rustix::event::epoll;

use super::cm_worker::{CmReply, CmWorker, ReplyQueue, ReplyTo};
use super::kind;
use super::numbers::NumberMap;
use super::params::RdmaParams;
use super::receives::{BadLength, ReceivedCapsule};
use super::registration::Registration;
use super::srq::{SrqPool, SrqShare};
use crate::queue::{
    CompletionSource, CqCounters, Nanos, Progress, ReactorResources, TransportError,
};

/// Maximum completions taken from the device in one batch.
const BATCH: usize = 64;
/// Maximum batches in one poll.
const BATCHES: usize = 4;

/// A completion queue and the queues it serves.
#[derive(Debug)]
pub struct CqPoller<D: Device> {
    cq_shared: Rc<CqShared<D>>,
}

/// State that a source and its queues share. Fields are dropped in order: the completion queue
/// last.
#[derive(Debug)]
pub(super) struct CqShared<D: Device> {
    device: Arc<D>,
    cm_worker: Arc<CmWorker<D>>,
    replies: Arc<ReplyQueue<D>>,
    /// Readable when the reply queue or the completion queue has something.
    both: OwnedFd,
    routes: RefCell<NumberMap<u32, Rc<QueueInbox<D>>>>,
    /// Queues, by the number of their slips.
    inboxes: RefCell<HashMap<u64, Rc<QueueInbox<D>>>>,
    /// Memory of queue pairs that could not be destroyed, by the same number.
    quarantined: RefCell<Vec<(u64, Box<dyn Any>)>>,
    /// Entries of the completion queue, and those reserved for queue pairs.
    depth: u32,
    promised: Cell<u32>,
    /// Queues created: distinguishes uses of a queue pair number.
    made: Cell<u64>,
    counts: Cell<CqCounters>,
    /// Completions that belong to no queue.
    stale: Cell<u64>,
    broken: Cell<bool>,
    /// True if a queue pair that shares receives remains because it cannot be destroyed.
    has_undestroyed_qp: Cell<bool>,
    shared: Rc<RefCell<Option<SrqPool<D>>>>,
    batch: RefCell<Vec<WorkCompletion>>,
    /// Tokens found while a queue, not the reactor, polled.
    untold: RefCell<Vec<u64>>,
    /// Reason why there will never be a completion queue.
    failure: RefCell<Option<String>>,
    /// `None` until the CM worker has created it.
    completions: RefCell<Option<D::CompletionQueue>>,
}

/// Pending events of one queue.
#[derive(Debug)]
struct QueueInbox<D: Device> {
    /// Reply of the CM worker.
    answer: RefCell<Option<CmReply<D>>>,
    token: Cell<Option<u64>>,
    /// True if the token was reported since the queue last took everything.
    told: Cell<bool>,
    arrived: RefCell<VecDeque<WorkCompletion>>,
}

impl<D: Device> CqPoller<D> {
    /// Returns a source of `home` for the registration's device with room for a queue pair.
    ///
    /// The pair has `entries` completions in addition to those of shared receives, of which it
    /// needs `shares`. Creates a new source if there is no room.
    pub(super) fn find(
        home: &mut ReactorResources<'_>,
        registration: &Arc<Registration<D>>,
        params: &RdmaParams,
        entries: u32,
        shares: Option<u32>,
    ) -> Result<Rc<CqShared<D>>, TransportError> {
        let device = registration.device();
        let capacity = most_shared(params, device.limits());
        let suits = |source: &Self| {
            let cq_shared = &source.cq_shared;
            let room = cq_shared.depth.saturating_sub(cq_shared.promised.get());
            let shared = cq_shared.shared.borrow();
            let (has_share, more) = match (shares, &*shared) {
                (None, _) => (true, 0),
                (Some(share), Some(shared)) => (shared.has_room(share), 0),
                // Shared receives also complete there.
                (Some(_), None) => (true, capacity),
            };
            let has_room = has_share && room >= entries.saturating_add(more);
            Arc::ptr_eq(&cq_shared.device, device) && !cq_shared.broken.get() && has_room
        };
        if let Some(source) = home.sources.find::<Self>(suits) {
            return Ok(Rc::clone(&source.cq_shared));
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
        let cq_shared = Rc::clone(&source.cq_shared);
        home.sources.add(device.name().to_owned(), Box::new(source));
        Ok(cq_shared)
    }

    fn new(registration: &Arc<Registration<D>>, depth: u32) -> Result<Self, TransportError> {
        let device = registration.device();
        let failed = |source| TransportError::Io {
            what: format!("cannot watch a completion queue of {}", device.name()),
            source,
        };
        let replies = ReplyQueue::new().map_err(failed)?;
        let both = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(|e| failed(e.into()))?;
        watch(&both, replies.event_fd()).map_err(failed)?;
        let cm_worker = Arc::clone(registration.cm_worker());
        let reply_to = ReplyTo { replies: Arc::clone(&replies), number: 0 };
        cm_worker.make_completions(depth, device, reply_to);
        let cq_shared = CqShared {
            device: Arc::clone(device),
            cm_worker,
            replies,
            both,
            routes: RefCell::default(),
            inboxes: RefCell::default(),
            quarantined: RefCell::default(),
            depth,
            promised: Cell::new(0),
            made: Cell::new(0),
            counts: Cell::default(),
            stale: Cell::new(0),
            broken: Cell::new(false),
            has_undestroyed_qp: Cell::new(false),
            shared: Rc::default(),
            batch: RefCell::new(Vec::with_capacity(BATCH)),
            untold: RefCell::default(),
            failure: RefCell::default(),
            completions: RefCell::new(None),
        };
        Ok(Self { cq_shared: Rc::new(cq_shared) })
    }

    /// Returns the completions that belonged to nothing: late ones, of destroyed queues or of ended
    /// work.
    pub fn stale(&self) -> u64 {
        self.cq_shared.stale.get()
    }

    /// Returns the numbers of the queue pairs that the source serves.
    #[cfg(test)]
    pub(super) fn numbers(&self) -> Vec<u32> {
        let mut numbers: Vec<_> = self.cq_shared.routes.borrow().keys().copied().collect();
        numbers.sort_unstable();
        numbers
    }

    /// Returns the number of posted shared receives.
    #[cfg(test)]
    pub(super) fn shared_posted(&self) -> Option<usize> {
        self.cq_shared.shared.borrow().as_ref().map(SrqPool::posted)
    }

    /// Returns the number of shared receives that should be posted.
    #[cfg(test)]
    pub(super) fn shared_wanted(&self) -> Option<usize> {
        self.cq_shared.shared.borrow().as_ref().map(SrqPool::wanted)
    }

    /// Returns the completion queue, for fault injection.
    #[cfg(test)]
    pub(super) fn completions(&self) -> std::cell::Ref<'_, D::CompletionQueue> {
        std::cell::Ref::map(self.cq_shared.completions.borrow(), |made| made.as_ref().unwrap())
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

impl<D: Device> CqShared<D> {
    /// Returns a share of `depth` receives, for which [`CqPoller::find`] found room.
    ///
    /// Returns `None` if the device creates no queue to share.
    pub(super) fn share(
        &self,
        registration: &Arc<Registration<D>>,
        params: &RdmaParams,
        pool: &CorePool,
        depth: u32,
    ) -> Result<Option<SrqShare<D>>, TransportError> {
        let mut shared = self.shared.borrow_mut();
        if shared.is_none() {
            let capacity = most_shared(params, self.device.limits());
            match SrqPool::new(registration, params, pool, capacity) {
                Ok(None) => return Ok(None),
                Ok(made) => *shared = made,
                Err(error) => {
                    tracing::warn!(%error, "queues have receives of their own");
                    return Ok(None);
                }
            }
            self.promised.set(self.promised.get() + capacity);
        }
        let this = Rc::downgrade(&self.shared);
        shared.as_mut().map(|shared| shared.admit(this, depth)).transpose()
    }

    /// Returns the number of queues created so far.
    pub(super) fn made(&self) -> u64 {
        self.made.get()
    }

    /// Creates the port of a queue whose queue pair has at most `entries` concurrent completions.
    ///
    /// Completions of its share are not counted.
    pub(super) fn port(self: &Rc<Self>, entries: u32, share: Option<SrqShare<D>>) -> CqHandle<D> {
        let number = self.made.get() + 1;
        self.made.set(number);
        self.promised.set(self.promised.get() + entries);
        let inbox = Rc::new(QueueInbox {
            answer: RefCell::new(None),
            token: Cell::new(None),
            told: Cell::new(false),
            arrived: RefCell::default(),
        });
        self.inboxes.borrow_mut().insert(number, Rc::clone(&inbox));
        let reply_to = ReplyTo { replies: Arc::clone(&self.replies), number };
        CqHandle {
            cq_shared: Rc::clone(self),
            inbox,
            reply_to,
            pair: Cell::new(None),
            entries,
            share,
        }
    }

    /// Handles a completion that belongs to no queue.
    fn discard(&self, completion: &WorkCompletion) {
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
        counts.busy_polls += u64::from(!batch.is_empty());
        counts.completions += batch.len() as u64;
        let routes = self.routes.borrow();
        for completion in batch.iter() {
            let is_capsule = matches!(completion.id.kind(), kind::RECEIVE | kind::SHARED_RECEIVE);
            if is_capsule && completion.status == WcStatus::Success {
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
    fn answered(&self, number: u64, answer: CmReply<D>, mut ready: impl FnMut(u64)) {
        let CmReply::CompletionQueue(made) = answer else {
            if let Some(inbox) = self.inboxes.borrow().get(&number) {
                inbox.answer.replace(Some(answer));
                inbox.tell(&mut ready);
            }
            self.quarantined.borrow_mut().retain(|(whose, _)| *whose != number);
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

impl<D: Device> Drop for CqShared<D> {
    fn drop(&mut self) {
        if let Some(completions) = self.completions.get_mut().take() {
            self.cm_worker.dispose(completions);
        }
        let quarantined = self.quarantined.get_mut();
        if self.has_undestroyed_qp.get() || !quarantined.is_empty() {
            // This queue pair can have taken any of the shared receives.
            std::mem::forget(self.shared.take());
        }
        for (_, memory) in quarantined.drain(..) {
            tracing::error!(
                device = self.device.name(),
                "cannot destroy queue pair; its memory stays quarantined until the process ends"
            );
            std::mem::forget(memory);
        }
    }
}

impl<D: Device> QueueInbox<D> {
    fn tell(&self, ready: &mut impl FnMut(u64)) {
        if let Some(token) = self.token.get()
            && !self.told.replace(true)
        {
            ready(token);
        }
    }
}

impl<D: Device> CompletionSource for CqPoller<D> {
    fn poll(&mut self, _now: Nanos, ready: &mut Vec<u64>) -> Progress {
        for (number, answer) in self.cq_shared.replies.take() {
            self.cq_shared.answered(number, answer, |token| ready.push(token));
        }
        if let Some(shared) = &mut *self.cq_shared.shared.borrow_mut() {
            shared.repost();
        }
        ready.append(&mut self.cq_shared.untold.borrow_mut());
        for _ in 0..BATCHES {
            if !self.cq_shared.poll_batch(|token| ready.push(token)) {
                return Progress::Idle;
            }
        }
        Progress::More
    }

    fn arm(&mut self) {
        if self.cq_shared.broken.get() {
            return;
        }
        let mut completions = self.cq_shared.completions.borrow_mut();
        if let Some(Err(error)) = completions.as_mut().map(CompletionQueue::arm) {
            // The next poll detects the cause, and notifies the queues.
            tracing::warn!(device = self.cq_shared.device.name(), %error, "cannot arm a completion queue");
        }
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.cq_shared.both.as_fd()
    }

    fn is_used(&self) -> bool {
        !self.cq_shared.inboxes.borrow().is_empty()
            || !self.cq_shared.quarantined.borrow().is_empty()
    }

    fn counts(&self) -> CqCounters {
        self.cq_shared.counts.get()
    }

    fn as_any(&mut self) -> &mut dyn Any {
        self
    }
}

/// A queue's handle of its source. Dropped after the endpoint.
#[derive(Debug)]
pub(super) struct CqHandle<D: Device> {
    cq_shared: Rc<CqShared<D>>,
    inbox: Rc<QueueInbox<D>>,
    reply_to: ReplyTo<D>,
    /// Number of the queue pair whose completions arrive here.
    pair: Cell<Option<u32>>,
    entries: u32,
    share: Option<SrqShare<D>>,
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

impl<D: Device> CqHandle<D> {
    /// Returns the state of the completion queue.
    pub(super) fn readiness(&self) -> Readiness {
        match &*self.cq_shared.failure.borrow() {
            Some(reason) => Readiness::Failed(reason.clone()),
            None if self.cq_shared.completions.borrow().is_some() => Readiness::Ready,
            None => Readiness::Wait,
        }
    }

    /// Creates the queue pair of a ticket, whose completions arrive here.
    pub(super) fn open(
        &self,
        ticket: D::PendingConnection,
        spec: &EndpointSpec,
    ) -> Result<D::Endpoint, (VerbsError, D::PendingConnection)> {
        debug_assert!(
            Arc::ptr_eq(ticket.device(), &self.cq_shared.device),
            "another device's ticket"
        );
        let completions = self.cq_shared.completions.borrow();
        let Some(completions) = completions.as_ref() else {
            let none = std::io::ErrorKind::NotConnected.into();
            let what = "making a queue pair without a completion queue".to_owned();
            return Err((VerbsError::Call { what, source: none }, ticket));
        };
        let shared = self.cq_shared.shared.borrow();
        let shared = shared.as_ref().filter(|_| self.share.is_some()).map(SrqPool::queue);
        let endpoint = self.cq_shared.device.open(ticket, completions, shared, spec)?;
        let number = nvmeof_verbs::Endpoint::number(&endpoint);
        self.pair.set(Some(number));
        self.cq_shared.routes.borrow_mut().insert(number, Rc::clone(&self.inbox));
        Ok(endpoint)
    }

    /// Ends the delivery of completions: the queue pair will be destroyed, and its number can be
    /// reused.
    pub(super) fn close(&self) {
        let Some(number) = self.pair.take() else { return };
        let mut routes = self.cq_shared.routes.borrow_mut();
        if routes.get(&number).is_some_and(|inbox| Rc::ptr_eq(inbox, &self.inbox)) {
            routes.remove(&number);
        }
    }

    /// Returns the CM worker and where it replies.
    pub(super) fn cm_worker(&self) -> (&CmWorker<D>, &ReplyTo<D>) {
        (&self.cq_shared.cm_worker, &self.reply_to)
    }

    /// Returns the CM worker's reply. Afterwards the source reports the next event.
    pub(super) fn answer(&self) -> Option<CmReply<D>> {
        self.inbox.told.set(false);
        self.inbox.answer.take()
    }

    /// Waits for the CM worker's reply, for `most` at most.
    pub(super) fn wait_for_answer(&self, most: Duration) -> Option<CmReply<D>> {
        self.cq_shared.cm_worker.run();
        self.answer().or_else(|| self.cq_shared.replies.wait_for(self.reply_to.number, most))
    }

    /// Keeps memory that the queue pair may use until it is destroyed, for ever if it never is.
    pub(super) fn quarantine_memory(&self, memory: Box<dyn Any>) {
        self.cq_shared.quarantined.borrow_mut().push((self.reply_to.number, memory));
        let mut counts = self.cq_shared.counts.get();
        counts.quarantined_qps += 1;
        self.cq_shared.counts.set(counts);
    }

    /// Records that the queue pair is never destroyed.
    pub(super) fn set_undestroyed_qp(&self) {
        self.cq_shared
            .has_undestroyed_qp
            .set(self.share.is_some() || self.cq_shared.has_undestroyed_qp.get());
    }

    /// Returns the share of the receives.
    ///
    /// The caller drops it when the queue pair is destroyed and its completions have been [taken
    /// in](Self::settle).
    pub(super) fn take_share(&mut self) -> Option<SrqShare<D>> {
        self.share.take()
    }

    pub(super) fn set_token(&self, token: u64) {
        self.inbox.token.set(Some(token));
    }

    /// Returns the next completion. After `None`, the source reports the next one.
    pub(super) fn next(&self) -> Option<WorkCompletion> {
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
        self.cq_shared.broken.get()
    }

    /// Takes the completions that the device has now.
    ///
    /// The queue pair will be destroyed, which would also discard its completions.
    pub(super) fn settle(&self) {
        let mut untold = self.cq_shared.untold.borrow_mut();
        let batches = self.cq_shared.depth as usize / BATCH + 1;
        for _ in 0..batches {
            if !self.cq_shared.poll_batch(|token| untold.push(token)) {
                break;
            }
        }
    }

    /// Takes a capsule out of a shared receive, which is posted again immediately.
    pub(super) fn take_shared(
        &self,
        completion: &WorkCompletion,
    ) -> Option<Result<ReceivedCapsule, BadLength>> {
        let arrived = match (&mut *self.cq_shared.shared.borrow_mut(), &self.share) {
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
        if let (Some(shared), Some(share)) = (&mut *self.cq_shared.shared.borrow_mut(), &self.share)
        {
            shared.refill(share);
        }
    }

    /// Counts a completion that belongs to nothing of this queue.
    pub(super) fn count_stale(&self) {
        self.cq_shared.stale.set(self.cq_shared.stale.get() + 1);
    }
}

impl<D: Device> Drop for CqHandle<D> {
    fn drop(&mut self) {
        self.close();
        self.cq_shared.inboxes.borrow_mut().remove(&self.reply_to.number);
        self.cq_shared.promised.set(self.cq_shared.promised.get().saturating_sub(self.entries));
        while let Some(completion) = self.next() {
            self.cq_shared.discard(&completion);
        }
    }
}
