//! Permits and memory that each host holds. A host without progress does not delay other hosts.
//!
//! A command has a permit of the pacer's budget, and memory, until the last byte of its data has
//! moved. A host can request much data and read little of it, or announce writes and send no data.
//! Without limits that host would take the whole budget and all memory.
//!
//! * **Permits.** If commands wait and none can start for [`PATIENCE`], the reactor reclaims
//!   permits. It takes those of commands whose data has been with their host for as long. Data that
//!   does not move then delays no other data. A connection whose permits are reclaimed is *slow*.
//!   It starts nothing more until the commands of these permits have ended. Tenant limits still
//!   count them.
//! * **Memory.** While several hosts are connected, each may hold as much as is free (a dynamic
//!   threshold: Choudhury and Hahne, 1998): on each reactor, the free memory divided by the number
//!   of reactors. The next host then finds as much again. A host may always hold the memory of one
//!   command. A single host may hold all but 1/8 of the memory, which is kept for the next host.
//!
//! Hosts that hardly move data can still hold all memory under many names, one command each. If a
//! command waits for a buffer for a second, every reactor notifies its connections that memory is
//! short. Connections that do not move the data of their buffers then end
//! ([`nvmeof_transport::HostQueue::set_memory_short`]).
//!
//! The reactor *defers* commands that must not start for either reason. They wait with their
//! connection, without a permit. As commands of their host end, the reactor puts them back into the
//! pacer. It takes nothing from a host unless another host requests it.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::{Rc, Weak};
use std::sync::atomic::Ordering;

use nvmeof_nvmf::request::Stage;
use nvmeof_pacing::{Charge, CommandOutcome, Cost, Permit};
use nvmeof_wire::Nqn;

use super::Reactor;
use super::gen_slab::SlotKey;
use super::io::{Io, Pending};
use super::kind;

/// Nanoseconds without a start after which the reactor reclaims permits.
///
/// The data of these permits has been with its host for at least as long. The time is well below a
/// delay that a host notices in addition to its device's own, and well above a network's usual
/// pauses.
const PATIENCE: u64 = 10_000_000;
/// Inverse of the share of the memory that a host leaves free while it is alone: 1/8.
const KEPT: u64 = 8;
/// Bytes of the smallest buffer.
const SMALLEST: u64 = 4096;
/// Deferred commands that return to the pacer when a command of their host ends.
///
/// It is more than one, so that the number in flight grows.
const BACK_AT_ONCE: usize = 2;
/// Maximum number of connections that one search for deferred commands visits.
const LOOKS: usize = 8;

/// Holdings of a host on this reactor.
#[derive(Debug)]
pub(super) struct Holdings {
    host: Nqn,
    /// Bytes of memory of its commands that have started and not ended.
    bytes: Cell<u64>,
    /// Its connections with deferred commands, each once, and some that no longer have any.
    deferred: RefCell<VecDeque<SlotKey>>,
}

/// A connection's part of its host's holdings.
#[derive(Debug, Default)]
pub(super) struct ConnectionHoldings {
    /// Holdings of its host.
    of_host: Option<Rc<Holdings>>,
    /// Number of its commands whose permits were reclaimed. The connection is slow unless it is 0.
    slow: u32,
    /// Its commands that must not start yet.
    pub(super) deferred: VecDeque<SlotKey>,
    is_listed: bool,
}

/// A command's part of its host's holdings.
#[derive(Debug, Default)]
pub(super) struct CommandHoldings {
    bytes: u64,
    of_host: Option<Rc<Holdings>>,
    /// Time since which its data is with its host, or it waits for a buffer.
    waits_since: Option<u64>,
    /// Its permit was reclaimed, which makes its connection slow.
    is_slow: bool,
}

impl CommandHoldings {
    /// Records that the command now waits for its host, or for a buffer.
    #[inline]
    pub(super) fn waits(&mut self, now: u64) {
        self.waits_since = Some(now);
    }

    /// Records that the command no longer waits for its host.
    #[inline]
    pub(super) fn goes_on(&mut self) {
        self.waits_since = None;
    }
}

/// Returns the bytes of memory that a command of this cost takes.
#[inline]
fn memory(cost: u64) -> u64 {
    cost.checked_next_power_of_two().unwrap_or(cost).max(SMALLEST)
}

impl Reactor {
    /// Accounts for a command that has been granted a permit, or defers it and releases the permit.
    #[inline]
    pub(super) fn take_or_defer(
        &mut self,
        request: SlotKey,
        permit: Permit,
        now: u64,
    ) -> Option<Permit> {
        let cap = self.pool.shared().config().cap as u64;
        if self.memory_held > cap / 4 {
            // Other reactors can have leased much memory within this turn.
            self.look_at_others();
        }
        let free = cap.saturating_sub(self.memory_held).saturating_sub(self.memory_of_others);
        let Some(Pending::Io(io)) = self.requests.get_mut(request) else { return Some(permit) };
        let bytes = match io.request.cost() {
            0 => return Some(permit),
            cost => memory(cost),
        };
        let key = io.connection;
        let Some(connection) = self.connections.get_mut(key) else { return Some(permit) };
        if connection.holdings.of_host.is_none() {
            connection.holdings.of_host =
                connection.info.as_ref().map(|info| holdings_of(&mut self.holdings, &info.hostnqn));
        }
        let of_connection = &mut connection.holdings;
        let Some(holdings) = &of_connection.of_host else { return Some(permit) };
        let is_over = || {
            let has = holdings.bytes.get();
            let is_alone = || self.target.hosts_connected() < 2;
            has > 0
                && has + bytes > free / self.loads.len() as u64
                && (!is_alone() || bytes + cap / KEPT > free)
        };
        if of_connection.slow > 0 || is_over() {
            of_connection.deferred.push_back(request);
            if !std::mem::replace(&mut of_connection.is_listed, true) {
                holdings.deferred.borrow_mut().push_back(key);
            }
            self.pacer.release(permit, CommandOutcome::Cancelled, now);
            return None;
        }
        holdings.bytes.set(holdings.bytes.get() + bytes);
        self.memory_held += bytes;
        io.holdings = CommandHoldings {
            bytes,
            of_host: Some(Rc::clone(holdings)),
            ..CommandHoldings::default()
        };
        self.granted_at = now;
        Some(permit)
    }

    /// Publishes the memory held here to the other reactors.
    ///
    /// If commands wait to start, also reads what the other reactors hold.
    #[inline]
    pub(super) fn exchange_holdings(&mut self) {
        self.load().memory_bytes.store(self.memory_held, Ordering::Relaxed);
        if self.pacer.waiting() > 0 {
            self.look_at_others();
        }
    }

    #[inline]
    fn look_at_others(&mut self) {
        if self.loads.len() > 1 {
            self.load().memory_bytes.store(self.memory_held, Ordering::Relaxed);
            let all: u64 =
                self.loads.iter().map(|load| load.memory_bytes.load(Ordering::Relaxed)).sum();
            self.memory_of_others = all.saturating_sub(self.memory_held);
        }
    }

    /// Releases the holdings of an ended command. Deferred commands of its host can follow.
    #[inline]
    pub(super) fn let_go(&mut self, key: SlotKey, ended: CommandHoldings) {
        let Some(holdings) = ended.of_host else { return };
        holdings.bytes.set(holdings.bytes.get() - ended.bytes);
        self.memory_held -= ended.bytes;
        if ended.is_slow
            && let Some(connection) = self.connections.get_mut(key)
        {
            connection.holdings.slow -= 1;
        }
        if !holdings.deferred.borrow().is_empty() {
            self.resume(key, &holdings);
        }
    }

    /// Puts some deferred commands of a host back into the pacer.
    ///
    /// Commands of the given connection come first.
    #[cold]
    fn resume(&mut self, key: SlotKey, holdings: &Holdings) {
        if self.resume_connection(key) {
            return;
        }
        for _ in 0..LOOKS {
            let Some(next) = holdings.deferred.borrow_mut().pop_front() else { return };
            let resumed = self.resume_connection(next);
            let Some(connection) = self.connections.get_mut(next) else { continue };
            if connection.holdings.deferred.is_empty() {
                connection.holdings.is_listed = false;
            } else {
                holdings.deferred.borrow_mut().push_back(next);
            }
            if resumed {
                return;
            }
        }
    }

    /// Puts some deferred commands of a connection back into the pacer, if it is not slow.
    fn resume_connection(&mut self, key: SlotKey) -> bool {
        let mut resumed = false;
        for _ in 0..BACK_AT_ONCE {
            let Some(connection) = self.connections.get_mut(key) else { return resumed };
            if connection.holdings.slow > 0 || !connection.is_live() {
                return resumed;
            }
            let Some(request) = connection.holdings.deferred.pop_front() else { return resumed };
            let Some(Pending::Io(Io { flow, request: command, .. })) = self.requests.get(request)
            else {
                continue;
            };
            let Ok(bytes) = u32::try_from(command.cost()) else {
                debug_assert!(false, "a command that was admissible costs too much");
                continue;
            };
            let (flow, token) = (*flow, request.token(kind::REQUEST));
            // It has passed its tenant limits already, and its size has not changed.
            let put_back = self.pacer.enqueue_charged(flow, Cost { bytes }, Charge::NONE, token);
            debug_assert!(put_back.is_ok(), "a command that was admissible is not any more");
            resumed = true;
        }
        resumed
    }

    /// Removes a command from the deferred ones. Returns false if it is not among them.
    pub(super) fn cancel_deferred(&mut self, key: SlotKey, request: SlotKey) -> bool {
        let Some(connection) = self.connections.get_mut(key) else { return false };
        let deferred = &mut connection.holdings.deferred;
        let Some(at) = deferred.iter().position(|one| *one == request) else { return false };
        deferred.remove(at);
        true
    }

    /// Returns the time at which the reactor reclaims permits if nothing starts before.
    pub(super) fn patience_ends(&self) -> Option<u64> {
        self.is_blocked().then(|| self.granted_at.saturating_add(PATIENCE))
    }

    /// Returns true if commands wait that commands in flight can block.
    ///
    /// If nothing is in flight, they wait for a rate: a reactor may always start one command,
    /// whatever the budget.
    #[inline]
    fn is_blocked(&self) -> bool {
        self.pacer.waiting() > 0 && self.pacer.outstanding() > 0
    }

    /// Reclaims permits, here and on other reactors, if commands wait and none starts.
    #[inline]
    pub(super) fn watch_admission(&mut self, now: u64) {
        if !self.is_blocked() {
            self.granted_at = now;
        } else if now.saturating_sub(self.granted_at) >= PATIENCE {
            self.granted_at = now;
            for (index, (load, peer)) in self.loads.iter().zip(&self.peers).enumerate() {
                load.is_pressed.store(true, Ordering::Relaxed);
                if index != self.index {
                    peer.wake();
                }
            }
        }
        if self.load().is_pressed.load(Ordering::Relaxed) {
            self.load().is_pressed.store(false, Ordering::Relaxed);
            self.take_permits_back(now);
        }
    }

    /// Notifies connections while a command of some reactor has waited long for buffer memory.
    ///
    /// The fabric then reclaims the memory of hosts that hardly move their data.
    pub(super) fn watch_memory(&mut self, now: u64) {
        let is_short_here = self.buffer_wait.is_memory_short(now);
        self.load().is_memory_short.store(is_short_here, Ordering::Relaxed);
        let is_short = self.loads.iter().any(|load| load.is_memory_short.load(Ordering::Relaxed));
        if is_short || self.was_memory_short {
            for (key, connection) in self.connections.iter_mut() {
                connection.fabric.set_memory_short(is_short, now);
                self.timers.touch(key, &mut connection.timer);
            }
        }
        self.was_memory_short = is_short;
    }

    #[cold]
    fn take_permits_back(&mut self, now: u64) {
        let Self { requests, connections, pacer, .. } = self;
        let mut taken = 0;
        for (_, pending) in requests.iter_mut() {
            let Pending::Io(io) = pending else { continue };
            let is_due =
                io.holdings.waits_since.is_some_and(|at| now.saturating_sub(at) >= PATIENCE);
            if !is_due || io.holdings.of_host.is_none() {
                continue;
            }
            let needs_buffer = io.request.stage() == Stage::NeedsBuffer;
            let Some(permit) = io.request.permit_mut() else { continue };
            if !pacer.release_early(permit, now) {
                continue;
            }
            taken += 1;
            // A missing buffer is not its host's fault.
            if !needs_buffer && let Some(connection) = connections.get_mut(io.connection) {
                connection.holdings.slow += 1;
                io.holdings.is_slow = true;
            }
        }
        if taken > 0 {
            let reactor = self.index;
            tracing::debug!(
                reactor,
                taken,
                "permits of commands that wait for their hosts are taken back"
            );
            self.admit(now);
        }
    }
}

/// Returns the holdings of a host, and creates them if there are none yet.
#[cold]
fn holdings_of(all: &mut Vec<Weak<Holdings>>, host: &Nqn) -> Rc<Holdings> {
    let mut found = None;
    all.retain(|one| match one.upgrade() {
        Some(holdings) => {
            if holdings.host == *host {
                found = Some(holdings);
            }
            true
        }
        None => false,
    });
    found.unwrap_or_else(|| {
        let holdings = Rc::new(Holdings {
            host: host.clone(),
            bytes: Cell::default(),
            deferred: RefCell::default(),
        });
        all.push(Rc::downgrade(&holdings));
        holdings
    })
}
