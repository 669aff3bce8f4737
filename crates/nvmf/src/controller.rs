//! A controller: what one association of a host with a subsystem shares between its queues.
//!
//! Queues live on different reactors. What I/O queues look at with every command is one atomic word,
//! [`Controller::stamp`]; the rest is behind one mutex that only admin commands take.
//!
//! ```text
//!              Property Set CC.EN=1                    CC.SHN
//!   disabled --------------------------> enabled ------------------> shutting down
//!      ^                                    |                            |  quiet, devices flushed
//!      | quiet                              | CC.EN=0                    v
//!      +----------- resetting <-------------+---------- CC.EN=0 ---- shut down
//!
//!   quiet: no command of an I/O queue is with a device (`quiesce`)
//!   any state -- admin queue gone, keep-alive expired, subsystem removed, host not allowed --> dead
//! ```

mod counters;
mod error_log;
mod events;
mod features;
mod properties;

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use nvmeof_wire::Nqn;
use nvmeof_wire::fabrics::Connect;

pub(crate) use counters::{IoCounters, IoTotals};
pub(crate) use error_log::{ErrorLog, ErrorRecord};
pub(crate) use events::{ChangedNamespaces, Event, Events};
pub(crate) use features::FeatureStore;
pub(crate) use properties::CcChange;

use crate::discovery::Bookmark;
use crate::disposition::QueueOwner;
use crate::failure::Failure;
use crate::hosts::Hosts;
use crate::limits::Limits;
use crate::namespace::NamespaceTable;
use crate::quiesce::{Association, Departing, Quiesce, QuiesceGuard};
use crate::spec::{PortId, TransportKind};
use crate::subsystem::{Subsystem, SubsystemKind};
use crate::target::Notifier;

/// Names one controller for as long as the process lives; never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ControllerKey(pub(crate) u64);

/// Why a queue's controller, and with it the connection, is to go.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[repr(u8)]
pub enum DeathReason {
    /// No Connect in time.
    #[error("no Connect command came in time")]
    ConnectTimeout = 1,
    /// The host sent no Keep Alive in time.
    #[error("the keep-alive timer expired")]
    KeepAlive,
    /// Not enabled in time after Connect or reset, not closed after shutdown, or an idle discovery
    /// controller.
    #[error("the association was idle for too long")]
    Idle,
    /// The admin queue's connection is gone.
    #[error("the admin queue is gone")]
    AdminQueueGone,
    /// The host reset the controller, which ends its I/O queues.
    #[error("the controller was reset")]
    Reset,
    /// The host sent Disconnect.
    #[error("the host disconnected the queue")]
    Disconnected,
    /// The transport connection closed.
    #[error("the connection closed")]
    ConnectionClosed,
    /// The subsystem was removed or replaced.
    #[error("the subsystem was removed")]
    SubsystemRemoved,
    /// The host is no longer allowed.
    #[error("the host is no longer allowed")]
    HostNotAllowed,
    /// The listener it came through was removed.
    #[error("the listener was removed")]
    PortRemoved,
    /// More commands outstanding than the queue has entries.
    #[error("the host overran its queue")]
    QueueOverrun,
    /// A discovery controller had to go for a newer one: there were as many as may be.
    #[error("there were too many discovery controllers from its address")]
    MadeRoom,
}

impl DeathReason {
    const ALL: [Self; 12] = [
        Self::ConnectTimeout,
        Self::KeepAlive,
        Self::Idle,
        Self::AdminQueueGone,
        Self::Reset,
        Self::Disconnected,
        Self::ConnectionClosed,
        Self::SubsystemRemoved,
        Self::HostNotAllowed,
        Self::PortRemoved,
        Self::QueueOverrun,
        Self::MadeRoom,
    ];

    fn from_u8(value: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|reason| *reason as u8 == value)
    }
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Controller {
    pub(crate) key: ControllerKey,
    pub(crate) cntlid: u16,
    pub(crate) subsystem: Arc<Subsystem>,
    pub(crate) host_nqn: Nqn,
    pub(crate) host_id: [u8; 16],
    pub(crate) port: PortId,
    pub(crate) transport: TransportKind,
    pub(crate) limits: Limits,
    pub(crate) hosts: Arc<Hosts>,
    /// The target's address the admin queue's connection came to.
    local_address: OnceLock<IpAddr>,
    /// Bit 0: I/O commands may run. Above it the incarnation, bumped by reset and death.
    stamp: AtomicU32,
    /// A [`DeathReason`], 0 while alive.
    death: AtomicU8,
    cc: AtomicU32,
    csts: AtomicU32,
    /// CC.EN was cleared: CSTS.RDY falls when it is quiet.
    resetting: AtomicBool,
    /// Its commands that can still change a device.
    quiesce: Quiesce,
    departing: Arc<Departing>,
    /// Effective keep-alive timeout in milliseconds, 0: none (feature 0Fh).
    kato_ms: AtomicU32,
    /// Every write is to be on the medium at once: feature 06h is off, or the host knows of no cache.
    write_through: AtomicBool,
    /// Identify Controller reports a volatile write cache (VWC). Settled when the host enables the
    /// controller, because hosts read it once.
    volatile_cache: AtomicBool,
    /// An event waits for an Asynchronous Event Request.
    attention: AtomicBool,
    notifier: Arc<Notifier>,
    admin: Mutex<AdminState>,
}

/// What only admin and fabrics commands look at.
#[derive(Debug)]
pub(crate) struct AdminState {
    pub(crate) features: FeatureStore,
    pub(crate) errors: ErrorLog,
    pub(crate) events: Events,
    pub(crate) changed: ChangedNamespaces,
    /// Connected I/O queues.
    pub(crate) io_queues: BTreeMap<u16, Arc<IoCounters>>,
    /// Counts of the I/O queues that are gone.
    pub(crate) retired: IoTotals,
    /// Where the host reads on in the discovery log.
    pub(crate) bookmark: Option<Bookmark>,
}

/// What a new controller is made of.
#[derive(Debug)]
pub(crate) struct NewController {
    pub(crate) key: ControllerKey,
    pub(crate) host_nqn: Nqn,
    pub(crate) host_id: [u8; 16],
    pub(crate) port: PortId,
    pub(crate) transport: TransportKind,
    pub(crate) limits: Limits,
    pub(crate) hosts: Arc<Hosts>,
    pub(crate) departing: Arc<Departing>,
    /// As the host asked; rounded here.
    pub(crate) kato_ms: u32,
}

impl Controller {
    pub(crate) fn new(
        cntlid: u16,
        subsystem: Arc<Subsystem>,
        notifier: Arc<Notifier>,
        new: NewController,
    ) -> Self {
        let limits = new.limits;
        let association = Association {
            subnqn: subsystem.nqn.clone(),
            host_nqn: new.host_nqn.clone(),
            host_id: new.host_id,
        };
        Self {
            quiesce: Quiesce::new(association, Some(new.port), Arc::clone(&notifier)),
            departing: new.departing,
            resetting: AtomicBool::new(false),
            key: new.key,
            cntlid,
            subsystem,
            host_nqn: new.host_nqn,
            host_id: new.host_id,
            port: new.port,
            transport: new.transport,
            limits,
            hosts: new.hosts,
            local_address: OnceLock::new(),
            stamp: AtomicU32::new(0),
            death: AtomicU8::new(0),
            cc: AtomicU32::new(0),
            csts: AtomicU32::new(0),
            kato_ms: AtomicU32::new(limits.keep_alive(new.kato_ms)),
            write_through: AtomicBool::new(false),
            volatile_cache: AtomicBool::new(false),
            attention: AtomicBool::new(false),
            notifier,
            admin: Mutex::new(AdminState {
                features: FeatureStore::new(&limits),
                errors: ErrorLog::default(),
                events: Events::default(),
                changed: ChangedNamespaces::default(),
                io_queues: BTreeMap::new(),
                retired: IoTotals::default(),
                bookmark: None,
            }),
        }
    }

    /// The target's address the host used, if its fabric has such.
    pub(crate) fn local_address(&self) -> Option<IpAddr> {
        self.local_address.get().copied()
    }

    /// Says which of the target's addresses the host used; the first stays. An IPv4 address mapped into
    /// IPv6 is the IPv4 one.
    pub(crate) fn set_local_address(&self, address: IpAddr) {
        let _ = self.local_address.set(address.to_canonical());
    }

    /// A discovery controller?
    pub(crate) fn is_discovery(&self) -> bool {
        self.subsystem.kind == SubsystemKind::Discovery
    }

    /// The state only admin commands use. Never hold it while calling another controller.
    pub(crate) fn admin(&self) -> MutexGuard<'_, AdminState> {
        self.admin.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The namespaces now.
    pub(crate) fn namespaces(&self) -> Arc<NamespaceTable> {
        self.subsystem.namespaces()
    }

    /// One word that changes whenever I/O queues must stop; bit 0: I/O commands may run.
    #[inline]
    pub(crate) fn stamp(&self) -> u32 {
        self.stamp.load(Ordering::Acquire)
    }

    /// Why it is dead, if it is.
    #[inline]
    pub(crate) fn death(&self) -> Option<DeathReason> {
        DeathReason::from_u8(self.death.load(Ordering::Acquire))
    }

    /// Ends it: every queue of it is to close. True the first time, whose reason stays.
    pub(crate) fn kill(&self, reason: DeathReason) -> bool {
        let first = self
            .death
            .compare_exchange(0, reason as u8, Ordering::AcqRel, Ordering::Acquire)
            .is_ok();
        if first {
            self.end_incarnation();
            // Before another can take its place.
            self.departing.add(&self.quiesce);
            self.subsystem.remove_controller(self);
            self.notifier.notify();
        }
        first
    }

    /// Effective keep-alive timeout in milliseconds; 0: none.
    #[inline]
    pub(crate) fn kato_ms(&self) -> u32 {
        self.kato_ms.load(Ordering::Relaxed)
    }

    /// Sets the keep-alive timeout (feature 0Fh); rounded, see [`Limits::keep_alive`].
    pub(crate) fn set_kato_ms(&self, kato_ms: u32) {
        self.kato_ms.store(self.limits.keep_alive(kato_ms), Ordering::Relaxed);
    }

    /// Must every write be on the medium before it completes (feature 06h off)?
    #[inline]
    pub(crate) fn write_through(&self) -> bool {
        self.write_through.load(Ordering::Relaxed)
    }

    /// Does Identify Controller report a volatile write cache?
    pub(crate) fn reports_volatile_cache(&self) -> bool {
        self.volatile_cache.load(Ordering::Relaxed)
    }

    /// Settles whether this host is told of a volatile write cache. One that is not sends no Flush, so
    /// a namespace with a cache that is added later is written through.
    pub(super) fn settle_write_cache(&self) {
        let present = self.subsystem.has_volatile_cache();
        self.volatile_cache.store(present, Ordering::Relaxed);
        self.set_write_cache(present);
    }

    /// Turns the volatile write cache on or off (feature 06h).
    pub(crate) fn set_write_cache(&self, enabled: bool) {
        self.write_through.store(!enabled, Ordering::Relaxed);
    }

    /// Adds an I/O queue, if the controller's [`Self::stamp`] is still this one.
    ///
    /// # Errors
    /// [`Failure::ConnectParameter`] beyond what Number of Queues granted;
    /// [`Failure::ConnectTooSoon`] if the ID is in use or the controller was reset meanwhile;
    /// [`Failure::Quiescing`] while commands of a queue whose connection was lost are with a device.
    pub(crate) fn add_io_queue(
        &self,
        qid: u16,
        stamp: u32,
    ) -> Result<(Arc<IoCounters>, QuiesceGuard), Failure> {
        let mut admin = self.admin();
        if qid > admin.features.io_queues {
            return Err(Failure::ConnectParameter { offset: Connect::QID_OFFSET, in_data: false });
        }
        // The stamp changes before the lock is taken to clear the queues, so this cannot be late.
        if self.stamp() != stamp || admin.io_queues.contains_key(&qid) {
            return Err(Failure::ConnectTooSoon);
        }
        if self.quiesce.has_closing_queue() {
            return Err(Failure::Quiescing);
        }
        let guard = self.quiesce.guard(qid).ok_or(Failure::Quiescing)?;
        let counters = Arc::new(IoCounters::default());
        admin.io_queues.insert(qid, Arc::clone(&counters));
        Ok((counters, guard))
    }

    /// Forgets an I/O queue. After a reset another queue may have its ID by now.
    pub(crate) fn remove_io_queue(&self, qid: u16, counters: &Arc<IoCounters>) {
        let mut admin = self.admin();
        if admin.io_queues.get(&qid).is_some_and(|known| Arc::ptr_eq(known, counters)) {
            admin.io_queues.remove(&qid);
            let totals = counters.totals();
            admin.retired.add(&totals);
        }
    }

    /// Where an I/O queue is served; `None` if there is no such queue.
    pub(crate) fn owner_of(&self, qid: u16) -> Option<QueueOwner> {
        self.admin().io_queues.get(&qid).map(|queue| queue.owner())
    }

    /// I/O counts of all its queues, those that are gone included.
    pub(crate) fn io_totals(&self) -> IoTotals {
        let admin = self.admin();
        let mut totals = admin.retired;
        for counters in admin.io_queues.values() {
            totals.add(&counters.totals());
        }
        totals
    }

    /// Its commands that can still change a device.
    pub(crate) fn quiesce(&self) -> &Quiesce {
        &self.quiesce
    }

    /// The namespaces of these IDs were added, removed or changed.
    pub(crate) fn namespaces_changed(&self, nsids: &[u32]) {
        let mut admin = self.admin();
        for nsid in nsids {
            admin.changed.push(*nsid);
        }
        self.post(&mut admin, Event::NamespaceChanged);
    }

    /// Something happened that the host may have asked to be told of. The caller notifies.
    pub(crate) fn post_event(&self, event: Event) {
        self.post(&mut self.admin(), event);
    }

    fn post(&self, admin: &mut AdminState, event: Event) {
        let enabled = admin.features.async_event_config;
        if admin.events.post(event, enabled) {
            self.attention.store(true, Ordering::Release);
        }
    }

    /// Does an event wait for an Asynchronous Event Request?
    pub(crate) fn has_event(&self) -> bool {
        self.attention.load(Ordering::Acquire)
    }

    /// Takes an event for an Asynchronous Event Request: its completion's DW0.
    pub(crate) fn take_event(&self) -> Option<u32> {
        if !self.has_event() {
            return None;
        }
        let mut admin = self.admin();
        let event = admin.events.take();
        if !admin.events.any_ready() {
            self.attention.store(false, Ordering::Release);
        }
        event.map(Event::dw0)
    }

    /// The host read the log page of this event with RAE clear: it is known, and further ones may be
    /// reported (Base 5.2).
    pub(crate) fn clear_event(&self, event: Event) {
        self.admin().events.clear(event);
    }

    /// Ends every I/O queue connected so far.
    fn end_incarnation(&self) {
        // Even: not ready; the incarnation above it is another.
        let next = |stamp: u32| Some((stamp | 1).wrapping_add(1));
        self.quiesce.await_quiet();
        let _ = self.stamp.fetch_update(Ordering::AcqRel, Ordering::Acquire, next);
        let mut admin = self.admin();
        let queues = std::mem::take(&mut admin.io_queues);
        for counters in queues.into_values() {
            admin.retired.add(&counters.totals());
        }
    }
}
