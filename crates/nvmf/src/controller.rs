//! A controller: the state of one association of a host with a subsystem, shared by its queues.
//!
//! Its queues live on different reactors. I/O queues read one atomic word with every command,
//! [`Controller::incarnation`]. The rest is behind a mutex that only admin commands take.
//!
//! ```text
//!              Property Set CC.EN=1                    CC.SHN
//!   disabled --------------------------> enabled ------------------> shutting down
//!      ^                                    |                            |  quiet, devices flushed
//!      | quiet                              | CC.EN=0                    v
//!      +----------- resetting <-------------+---------- CC.EN=0 ---- shut down
//!
//!   quiet: no command of an I/O queue is at a device (`quiesce`)
//!   any state -- admin queue gone, keep-alive expired, subsystem removed, host denied --> dead
//! ```

mod counters;
mod error_log;
mod events;
mod features;
mod host_clock;
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
pub(crate) use host_clock::HostClock;
pub(crate) use properties::CcChange;

use crate::discovery::Bookmark;
use crate::disposition::QueueOwner;
use crate::failure::Failure;
use crate::hosts::HostRegistry;
use crate::limits::Limits;
use crate::namespace::NamespaceTable;
use crate::quiesce::{Association, Quiesce, QuiesceGuard, QuiescingControllers};
use crate::spec::{PortId, TransportKind};
use crate::subsystem::{Subsystem, SubsystemKind};
use crate::target::Notifier;

/// Identifies one controller for the lifetime of the process; never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ControllerKey(pub(crate) u64);

/// Reason to end a controller or queue, and with it the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[repr(u8)]
pub enum TeardownReason {
    /// No Connect arrived in time.
    #[error("no Connect command came in time")]
    ConnectTimeout = 1,
    /// The host sent no Keep Alive in time.
    #[error("the keep-alive timer expired")]
    KeepAlive,
    /// Idle for too long.
    ///
    /// The controller was not enabled in time after Connect or reset, or not closed after shutdown.
    /// Or it is an idle discovery controller.
    #[error("the association was idle for too long")]
    Idle,
    /// The admin queue's connection is gone.
    #[error("the admin queue was deleted")]
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
    /// The listener of the connection was removed.
    #[error("the listener was removed")]
    PortRemoved,
    /// More commands are outstanding than the queue has entries.
    #[error("the host overran its queue")]
    QueueOverrun,
    /// A discovery controller was ended for a newer one, because the maximum was reached.
    #[error("too many discovery controllers from this address")]
    MadeRoom,
}

impl TeardownReason {
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

/// State of one association. See the module.
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
    pub(crate) hosts: Arc<HostRegistry>,
    /// The target's address that the admin queue connected to.
    local_address: OnceLock<IpAddr>,
    /// Bit 0: I/O commands may run. Bits 31:1: incarnation, incremented by reset and death.
    incarnation: AtomicU32,
    /// A [`TeardownReason`], 0 while alive.
    death: AtomicU8,
    cc: AtomicU32,
    csts: AtomicU32,
    /// CC.EN was cleared; CSTS.RDY clears when the controller is quiet.
    resetting: AtomicBool,
    /// Commands that can still change a device.
    quiesce: Quiesce,
    quiescing: Arc<QuiescingControllers>,
    /// Effective keep-alive timeout in milliseconds, 0: none (feature 0Fh).
    kato_ms: AtomicU32,
    /// Every write must be durable at completion: feature 06h is off, or the host sees no cache.
    write_through: AtomicBool,
    /// Identify Controller reports a volatile write cache (VWC).
    ///
    /// Fixed when the host enables the controller, because hosts read it once.
    volatile_cache: AtomicBool,
    /// An event waits for an Asynchronous Event Request.
    attention: AtomicBool,
    notifier: Arc<Notifier>,
    admin: Mutex<AdminState>,
}

/// State that only admin and fabrics commands use.
#[derive(Debug)]
pub(crate) struct AdminState {
    pub(crate) features: FeatureStore,
    pub(crate) errors: ErrorLog,
    pub(crate) events: Events,
    pub(crate) changed: ChangedNamespaces,
    /// Connected I/O queues.
    pub(crate) io_queues: BTreeMap<u16, Arc<IoCounters>>,
    /// Counts of the I/O queues that have ended.
    pub(crate) retired: IoTotals,
    /// One of them had traffic since [`Controller::take_io_traffic`].
    pub(crate) retired_traffic: bool,
    /// Position of the host in the discovery log.
    pub(crate) bookmark: Option<Bookmark>,
}

/// Parameters of a new controller.
#[derive(Debug)]
pub(crate) struct NewController {
    pub(crate) key: ControllerKey,
    pub(crate) host_nqn: Nqn,
    pub(crate) host_id: [u8; 16],
    pub(crate) port: PortId,
    pub(crate) transport: TransportKind,
    pub(crate) limits: Limits,
    pub(crate) hosts: Arc<HostRegistry>,
    pub(crate) quiescing: Arc<QuiescingControllers>,
    /// As requested by the host; rounded here.
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
            quiescing: new.quiescing,
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
            incarnation: AtomicU32::new(0),
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
                retired_traffic: false,
                bookmark: None,
            }),
        }
    }

    /// The target's address that the host used, if its fabric has addresses.
    pub(crate) fn local_address(&self) -> Option<IpAddr> {
        self.local_address.get().copied()
    }

    /// Sets the target's address that the host used; the first call counts.
    ///
    /// An IPv4 address mapped into IPv6 is stored as IPv4.
    pub(crate) fn set_local_address(&self, address: IpAddr) {
        let _ = self.local_address.set(address.to_canonical());
    }

    /// Returns true for a discovery controller.
    pub(crate) fn is_discovery(&self) -> bool {
        self.subsystem.kind == SubsystemKind::Discovery
    }

    /// The state that only admin commands use. Never hold it while calling another controller.
    pub(crate) fn admin(&self) -> MutexGuard<'_, AdminState> {
        self.admin.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The current namespaces.
    pub(crate) fn namespaces(&self) -> Arc<NamespaceTable> {
        self.subsystem.namespaces()
    }

    /// A word that changes whenever I/O queues must stop; bit 0: I/O commands may run.
    #[inline]
    pub(crate) fn incarnation(&self) -> u32 {
        self.incarnation.load(Ordering::Acquire)
    }

    /// Reason for its end, if it has ended.
    #[inline]
    pub(crate) fn death(&self) -> Option<TeardownReason> {
        TeardownReason::from_u8(self.death.load(Ordering::Acquire))
    }

    /// Ends the controller, so that every queue of it closes.
    ///
    /// Returns true the first time; that reason is kept.
    pub(crate) fn kill(&self, reason: TeardownReason) -> bool {
        let first = self
            .death
            .compare_exchange(0, reason as u8, Ordering::AcqRel, Ordering::Acquire)
            .is_ok();
        if first {
            self.end_incarnation();
            // Before another controller can take its place.
            self.quiescing.add(&self.quiesce);
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

    /// Sets the keep-alive timeout (feature 0Fh), rounded by [`Limits::keep_alive`].
    pub(crate) fn set_kato_ms(&self, kato_ms: u32) {
        self.kato_ms.store(self.limits.keep_alive(kato_ms), Ordering::Relaxed);
    }

    /// Returns true if every write must be durable before it completes (feature 06h off).
    #[inline]
    pub(crate) fn write_through(&self) -> bool {
        self.write_through.load(Ordering::Relaxed)
    }

    /// Returns true if Identify Controller reports a volatile write cache.
    pub(crate) fn reports_volatile_cache(&self) -> bool {
        self.volatile_cache.load(Ordering::Relaxed)
    }

    /// Decides if this controller reports a volatile write cache.
    ///
    /// A host that sees no cache sends no Flush, so a namespace with a cache that is added later is
    /// written through.
    pub(super) fn settle_write_cache(&self) {
        let present = self.subsystem.has_volatile_cache();
        self.volatile_cache.store(present, Ordering::Relaxed);
        self.set_write_cache(present);
    }

    /// Turns the volatile write cache on or off (feature 06h).
    pub(crate) fn set_write_cache(&self, enabled: bool) {
        self.write_through.store(!enabled, Ordering::Relaxed);
    }

    /// Adds an I/O queue, if [`Self::incarnation`] of the controller still equals `incarnation`.
    ///
    /// # Errors
    /// [`Failure::ConnectParameter`] if `qid` exceeds the granted Number of Queues;
    /// [`Failure::ConnectTooSoon`] if the ID is in use or the controller was reset since;
    /// [`Failure::Quiescing`] while commands of a queue with a lost connection are at a device.
    pub(crate) fn add_io_queue(
        &self,
        qid: u16,
        incarnation: u32,
    ) -> Result<(Arc<IoCounters>, QuiesceGuard), Failure> {
        let mut admin = self.admin();
        if qid > admin.features.io_queues {
            return Err(Failure::ConnectParameter { offset: Connect::QID_OFFSET, in_data: false });
        }
        // The incarnation changes before the lock is taken to clear the queues, so this check
        // cannot be late.
        if self.incarnation() != incarnation || admin.io_queues.contains_key(&qid) {
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

    /// Removes an I/O queue. After a reset, another queue can have its ID.
    pub(crate) fn remove_io_queue(&self, qid: u16, counters: &Arc<IoCounters>) {
        let mut admin = self.admin();
        if admin.io_queues.get(&qid).is_some_and(|known| Arc::ptr_eq(known, counters)) {
            admin.io_queues.remove(&qid);
            admin.retired_traffic |= counters.take_traffic();
            let totals = counters.totals();
            admin.retired.add(&totals);
        }
    }

    /// Returns true if a command of any I/O queue arrived or completed since the last call.
    ///
    /// Traffic-based keep-alive (Base 3.9): only an expired timer asks, so that commands on other
    /// reactors cost no shared cache line.
    pub(crate) fn take_io_traffic(&self) -> bool {
        let mut admin = self.admin();
        let mut traffic = std::mem::take(&mut admin.retired_traffic);
        for counters in admin.io_queues.values() {
            traffic |= counters.take_traffic();
        }
        traffic
    }

    /// The location that serves an I/O queue; `None` if the queue does not exist.
    pub(crate) fn owner_of(&self, qid: u16) -> Option<QueueOwner> {
        self.admin().io_queues.get(&qid).map(|queue| queue.owner())
    }

    /// I/O counts of all its queues, including the ended ones.
    pub(crate) fn io_totals(&self) -> IoTotals {
        let admin = self.admin();
        let mut totals = admin.retired;
        for counters in admin.io_queues.values() {
            totals.add(&counters.totals());
        }
        totals
    }

    /// Commands that can still change a device.
    pub(crate) fn quiesce(&self) -> &Quiesce {
        &self.quiesce
    }

    /// Records that the namespaces of these IDs were added, removed or changed.
    pub(crate) fn namespaces_changed(&self, nsids: &[u32]) {
        let mut admin = self.admin();
        for nsid in nsids {
            admin.changed.push(*nsid);
        }
        self.post(&mut admin, Event::NamespaceChanged);
    }

    /// Posts an event that the host can have enabled. The caller notifies the reactors.
    pub(crate) fn post_event(&self, event: Event) {
        self.post(&mut self.admin(), event);
    }

    fn post(&self, admin: &mut AdminState, event: Event) {
        let enabled = admin.features.async_event_config;
        if admin.events.post(event, enabled) {
            self.attention.store(true, Ordering::Release);
        }
    }

    /// Returns true if an event waits for an Asynchronous Event Request.
    pub(crate) fn has_event(&self) -> bool {
        self.attention.load(Ordering::Acquire)
    }

    /// Takes an event for an Asynchronous Event Request: DW0 of its completion.
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

    /// Clears an event after the host has read its log page with RAE clear (Base 5.2).
    ///
    /// From then on, events of this type can be reported again.
    pub(crate) fn clear_event(&self, event: Event) {
        self.admin().events.clear(event);
    }

    /// Ends every I/O queue connected so far.
    fn end_incarnation(&self) {
        // Even: not ready; the bits above are the next incarnation.
        let next = |incarnation: u32| Some((incarnation | 1).wrapping_add(1));
        self.quiesce.await_quiet();
        let _ = self.incarnation.fetch_update(Ordering::AcqRel, Ordering::Acquire, next);
        let mut admin = self.admin();
        let queues = std::mem::take(&mut admin.io_queues);
        for counters in queues.into_values() {
            admin.retired.add(&counters.totals());
        }
    }
}
