//! The shared receive queue (SRQ) of the I/O queues of a source.
//!
//! Its memory covers the commands that the hosts can have in transit or in work, once, and not for
//! both.
//!
//! ```text
//!   a queue is admitted ------> a share of N: N more receives are posted, N more units of memory,
//!                               all in the stock
//!   a capsule with data ------> its buffer's unit moves from the stock to the queue's share
//!   its command completes ----> the unit is free, and returns to the stock: one more receive is
//!                               posted
//!   the queue has ended ------> units of its share that are not in work are returned; the others
//!                               when their commands complete
//! ```
//!
//! The number of posted receives is therefore always the number of commands that all queues
//! together can still send. A host that keeps to the size of its queue always finds a receive. Slow
//! commands of other hosts and queues that have ended do not change that. A host that exceeds its
//! queue is detected when its capsule is parsed, and its queue ends. The receives of these capsules
//! are posted again immediately.
//!
//! A posted receive cannot be withdrawn. Receives posted for a queue that has ended serve the next
//! queue. Otherwise they leave with the next capsules or with the last queue of the source.
//!
//! Admin queues have their own receives: keep-alives never wait, whatever a host sends on other
//! queues.

use std::cell::RefCell;
use std::rc::{Rc, Weak};
use std::sync::Arc;

use nvmeof_core::dma::{BufferReservation, CorePool, LeaseError};
use nvmeof_verbs::{Device, VerbsError, WorkCompletion};

use super::kind;
use super::params::RdmaParams;
use super::post::SrqPoster;
use super::receives::{BadLength, ReceiveBuffers, ReceivedCapsule};
use super::registration::Registration;
use crate::queue::TransportError;

/// Shared receives of a source. The queue is dropped before the memory.
#[derive(Debug)]
pub(super) struct SrqPool<D: Device> {
    queue: SrqPoster<D::SharedReceiveQueue>,
    receives: ReceiveBuffers,
    /// Slots that are not posted.
    idle: Vec<u32>,
    /// Maximum number of receives, and those reserved for shares.
    capacity: usize,
    promised: usize,
    /// Units in shares: the units in work of each share, and their sum.
    works: Vec<Rc<BufferReservation>>,
    in_work: usize,
    pool: CorePool,
    registration: Arc<Registration<D>>,
    /// True if a receive could not be posted: the device is being removed.
    broken: bool,
}

/// A queue's part of the shared receives.
///
/// Dropping it returns the part. That happens after its queue pair was dropped and all completions
/// of the pair have been processed.
#[derive(Debug)]
pub(super) struct SrqShare<D: Device> {
    pool: Weak<RefCell<Option<SrqPool<D>>>>,
    depth: usize,
    /// Buffers of its commands; `None` if nothing follows commands.
    work: Option<Rc<BufferReservation>>,
}

impl<D: Device> SrqPool<D> {
    /// Creates a queue for up to `capacity` receives, none of them posted. `None` if the device has
    /// no SRQ.
    pub(super) fn new(
        registration: &Arc<Registration<D>>,
        params: &RdmaParams,
        pool: &CorePool,
        capacity: u32,
    ) -> Result<Option<Self>, TransportError> {
        let device = registration.device();
        let pieces = device.limits().pieces.min(2);
        let failed = |error: VerbsError| TransportError::Io {
            what: format!("cannot share {capacity} receives at {}", device.name()),
            source: std::io::Error::other(error),
        };
        let Some(queue) = device.shared_receives(capacity, pieces).map_err(failed)? else {
            return Ok(None);
        };
        let behind = if pieces < 2 { 0 } else { params.in_capsule };
        let receives = ReceiveBuffers::shared(pool, kind::SHARED_RECEIVE, behind)
            .map_err(|error| TransportError::NoMemory(format!("receives to share: {error}")))?;
        Ok(Some(Self {
            queue: SrqPoster(queue),
            receives,
            idle: Vec::new(),
            capacity: capacity as usize,
            promised: 0,
            works: Vec::new(),
            in_work: 0,
            pool: pool.clone(),
            registration: Arc::clone(registration),
            broken: false,
        }))
    }

    /// Returns the SRQ with which endpoints are opened.
    pub(super) fn queue(&self) -> &D::SharedReceiveQueue {
        &self.queue.0
    }

    /// Returns true if a share of `depth` is available.
    pub(super) fn has_room(&self, depth: u32) -> bool {
        let room = self.capacity.saturating_sub(self.promised);
        depth as usize <= room && !self.broken
    }

    /// Returns the number of posted receives.
    #[cfg(test)]
    pub(super) fn posted(&self) -> usize {
        self.receives.posted()
    }

    /// Returns the number of receives that should be posted: commands that hosts can still send.
    pub(super) fn wanted(&self) -> usize {
        self.promised.saturating_sub(self.in_work)
    }

    /// Returns a share for a queue of `depth` commands, with its receives posted. There is
    /// [room](Self::has_room). `this` is the pool, to which the share returns.
    pub(super) fn admit(
        &mut self,
        this: Weak<RefCell<Option<Self>>>,
        depth: u32,
    ) -> Result<SrqShare<D>, TransportError> {
        let no_memory = |error: LeaseError| {
            TransportError::NoMemory(format!("{depth} receives more to share: {error}"))
        };
        let depth = depth as usize;
        let work = match self.receives.stock() {
            None => None,
            Some(stock) => {
                // Receives that an ended queue left posted serve this one.
                let left = stock.count().saturating_sub(self.wanted());
                let len = self.receives.behind();
                let more = self.pool.reserve(depth.saturating_sub(left), len).map_err(no_memory)?;
                let work = Rc::new(self.pool.reserve(0, len).map_err(no_memory)?);
                more.pass_free(usize::MAX, stock);
                Some(work)
            }
        };
        let first = self.receives.count();
        let slots = self.receives.grow(&self.pool, &self.registration, self.promised + depth);
        let number = |at| u32::try_from(at).expect("at most the receives of the device");
        self.idle.extend((first..self.receives.count()).map(number));
        self.promised += depth;
        self.works.extend(work.clone());
        let share = (depth, work);
        let posted = slots.map_err(no_memory).and_then(|()| {
            self.fill().map_err(|source| TransportError::Io {
                what: format!("cannot post receives at {}", self.registration.device().name()),
                source,
            })
        });
        match posted {
            Ok(()) => Ok(SrqShare { pool: this, depth: share.0, work: share.1 }),
            Err(error) => {
                self.give_back(share.0, share.1);
                Err(error)
            }
        }
    }

    /// Returns the capsule of a successful receive, for the queue with `share`.
    ///
    /// Returns `Some(Err)` if it is no capsule, `None` if the completion belongs to nothing.
    pub(super) fn take(
        &mut self,
        completion: &WorkCompletion,
        share: &SrqShare<D>,
    ) -> Option<Result<ReceivedCapsule, BadLength>> {
        let slot = self.receives.came_back(completion.id)?;
        let mut taken = self.receives.take(slot, completion);
        if let (Ok(ReceivedCapsule { data: Some(data), .. }), Some(work), Some(stock)) =
            (&mut taken, &share.work, self.receives.stock())
            && stock.pass(data, work)
        {
            self.in_work += 1;
        }
        self.put_back(slot);
        Some(taken)
    }

    /// Handles a completion that belongs to no queue.
    pub(super) fn discard(&mut self, completion: &WorkCompletion) {
        if let Some(slot) = self.receives.came_back(completion.id) {
            self.put_back(slot);
        }
    }

    /// Posts receives for which completed commands have made room.
    pub(super) fn repost(&mut self) {
        if self.idle.is_empty() || self.broken {
            return;
        }
        if let Some(stock) = self.receives.stock() {
            let freed: usize =
                self.works.iter().map(|work| work.pass_free(usize::MAX, stock)).sum();
            self.in_work = self.in_work.saturating_sub(freed);
        }
        self.fill_or_break();
    }

    /// Posts the receives of one queue, before its host receives the responses.
    pub(super) fn refill(&mut self, share: &SrqShare<D>) {
        if self.idle.is_empty() || self.broken {
            return;
        }
        if let (Some(work), Some(stock)) = (&share.work, self.receives.stock()) {
            self.in_work = self.in_work.saturating_sub(work.pass_free(usize::MAX, stock));
        }
        self.fill_or_break();
    }

    /// Posts a slot again, if another receive is needed.
    fn put_back(&mut self, slot: u32) {
        self.idle.push(slot);
        self.fill_or_break();
        if self.idle.last() == Some(&slot) {
            self.receives.empty(slot);
            self.trim();
        }
    }

    fn fill_or_break(&mut self) {
        if !self.broken
            && let Err(error) = self.fill()
        {
            tracing::warn!(%error, "cannot post a shared receive");
            self.broken = true;
        }
    }

    /// Posts receives up to the needed number.
    fn fill(&mut self) -> std::io::Result<()> {
        while self.receives.posted() < self.wanted() {
            let Some(slot) = self.idle.pop() else {
                debug_assert!(false, "fewer receives than promised");
                break;
            };
            let before = self.receives.posted();
            let posted = self.receives.post(slot, &mut self.queue, &self.registration);
            if posted.is_err() || self.receives.posted() == before {
                // A unit was available, or the receive would not be needed.
                debug_assert!(posted.is_err(), "a receive without memory");
                self.idle.push(slot);
                return posted;
            }
        }
        Ok(())
    }

    /// Returns the share of an ended queue.
    fn give_back(&mut self, depth: usize, work: Option<Rc<BufferReservation>>) {
        self.promised = self.promised.saturating_sub(depth);
        if let (Some(work), Some(stock)) = (work, self.receives.stock()) {
            let freed = work.pass_free(usize::MAX, stock);
            // Units of its commands in work return to the pool with the last of them.
            self.in_work = self.in_work.saturating_sub(freed + work.count());
            self.works.retain(|one| !Rc::ptr_eq(one, &work));
        }
        self.trim();
    }

    /// Returns memory that is neither posted nor needed.
    fn trim(&mut self) {
        let Some(stock) = self.receives.stock() else { return };
        let excess = stock.count().saturating_sub(self.wanted());
        if excess == 0 || stock.count() == stock.leased() {
            return;
        }
        if let Ok(leaving) = self.pool.reserve(0, self.receives.behind()) {
            stock.pass_free(excess, &leaving);
        }
    }
}

impl<D: Device> Drop for SrqShare<D> {
    fn drop(&mut self) {
        let Some(pool) = self.pool.upgrade() else { return };
        if let Some(shared) = &mut *pool.borrow_mut() {
            shared.give_back(self.depth, self.work.take());
        }
    }
}
