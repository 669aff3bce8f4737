//! Adaptive policy: no bound until data in memory is shown to slow the network down, then buffer
//! credit with a controlled budget.
//!
//! [`controller`] computes the budget from sums over all cores. This file keeps the sums and calls
//! it periodically.
//!
//! A command is *charged* for the time in which its data is in memory. A drive that takes long
//! before the data arrives holds no memory, so its commands are charged only the part of their time
//! in flight that a command of the usual device time has. If a trial against a budget in force
//! shows that slow devices hold data that is ready, commands are charged in full.

mod controller;
mod held;
mod ladder;
mod sample;
mod stall_timer;
#[cfg(all(test, not(loom)))]
mod tests;

use std::fmt;
use std::sync::{Arc, Mutex};

pub use controller::{AdaptiveState, AdaptiveStatus};
use controller::{BudgetController, Load};
use sample::{Charging, Totals};
use stall_timer::StallTimer;

use super::{
    Admission, AdmissionPolicy, AdmissionRequest, BudgetTooSmall, BufferCredit, CompletedCommand,
    CreditConfig, Grant, SharedCredit, Waker,
};
use crate::due::is_due;
use crate::permit::CommandOutcome;
use crate::scheduler::VirtualTime;
use crate::sync::{AtomicU64, Ordering};
use crate::{Cost, Nanos};

/// State that the cores share.
pub struct SharedAdaptive {
    credit: Arc<SharedCredit>,
    virtual_time: Arc<VirtualTime>,
    cores: Box<[Arc<CoreCounters>]>,
    /// Charging in force: one of [`OPEN`] to [`FULL`].
    charging: AtomicU64,
    /// Number of the measurement.
    measurement: AtomicU64,
    /// Mean time in ns of a command in the network.
    network_time: AtomicU64,
    /// Time of the controller's last update, and interval until the next.
    last_update: AtomicU64,
    update_interval: AtomicU64,
    /// Time in ns without a completion after which the commands of a core may hang, if others wait
    /// there.
    stall_timeout: AtomicU64,
    controller: Mutex<BudgetController>,
}

/// Sums of one core since the start. Only that core writes them.
#[derive(Debug, Default)]
#[repr(align(128))]
struct CoreCounters {
    commands: AtomicU64,
    bytes: AtomicU64,
    /// Bytes times ns in flight, divided by 2^10.
    residence: AtomicU64,
    /// Charges times ns in flight, divided by 2^10.
    charged: AtomicU64,
    /// Bytes times ns in the network, divided by 2^10.
    network: AtomicU64,
    /// Deferrals of commands.
    deferred: AtomicU64,
    /// Commands that were small relative to the others, and bypassed them.
    small: AtomicU64,
    /// As `residence`, of commands of slow devices.
    slow: AtomicU64,
    /// Bytes of these commands.
    slow_bytes: AtomicU64,
    /// Slow devices of this core with a completion, once in each measurement.
    slow_devices: AtomicU64,
}

/// A budget that bounds nothing.
const NO_BOUND: u64 = 1 << 60;
/// Values of [`SharedAdaptive::charging`]: no bound, no bound but the time of data in the network
/// matters, and the two other kinds of [`Charging`].
const OPEN: u64 = 0;
const LOOKING: u64 = 1;
const USUAL: u64 = 2;
const FULL: u64 = 3;

impl SharedAdaptive {
    /// Creates the state for this number of cores and this largest I/O in bytes.
    ///
    /// # Errors
    /// [`BudgetTooSmall`] cannot happen with a largest I/O above 0.
    pub fn new(cores: usize, largest: u32) -> Result<Arc<Self>, BudgetTooSmall> {
        let controller = BudgetController::new(cores);
        let config = CreditConfig { budget: NO_BOUND, largest, cores };
        Ok(Arc::new(Self {
            credit: BufferCredit::shared(config)?,
            virtual_time: VirtualTime::new(cores),
            cores: (0..cores).map(|_| Arc::default()).collect(),
            charging: AtomicU64::new(OPEN),
            measurement: AtomicU64::new(0),
            network_time: AtomicU64::new(0),
            last_update: AtomicU64::new(0),
            update_interval: AtomicU64::new(0),
            stall_timeout: AtomicU64::new(controller.stall_timeout()),
            controller: Mutex::new(controller),
        }))
    }

    /// Returns the policy of core number `core`; see [`SharedCredit::core`].
    #[must_use]
    pub fn core(self: &Arc<Self>, core: usize, waker: Waker) -> Adaptive {
        let credit = self.credit.core(core, waker);
        let counters = Arc::clone(&self.cores[core]);
        let shared = Arc::clone(self);
        Adaptive {
            credit,
            core,
            counters,
            devices: Vec::new(),
            stall_timer: StallTimer::default(),
            shared,
        }
    }

    /// Returns the virtual time of the scheduler.
    #[must_use]
    pub fn virtual_time(&self) -> &Arc<VirtualTime> {
        &self.virtual_time
    }

    /// Returns the current budget in bytes; `None` without a bound.
    #[must_use]
    pub fn budget(&self) -> Option<u64> {
        Some(self.credit.budget()).filter(|budget| *budget != NO_BOUND)
    }

    /// Returns the state of the policy; `None` while a core updates it.
    #[must_use]
    pub fn status(&self) -> Option<AdaptiveStatus> {
        self.controller.try_lock().ok().map(|controller| controller.status())
    }

    #[cfg(all(test, not(loom)))]
    pub(crate) fn credit(&self) -> &Arc<SharedCredit> {
        &self.credit
    }

    /// Returns whether an update is due. A clock that jumped back makes it due, and restarts the
    /// interval.
    #[inline]
    fn is_due(&self, now: Nanos) -> bool {
        let last_update = self.last_update.load(Ordering::Relaxed);
        is_due(now, last_update, self.update_interval.load(Ordering::Relaxed), WENT_BACK)
    }

    /// Updates the budget. One core at a time does this; the others continue.
    #[cold]
    fn update(&self, now: Nanos, core: usize) {
        let Ok(mut controller) = self.controller.try_lock() else { return };
        if !self.is_due(now) {
            return;
        }
        self.virtual_time.refresh();
        let load = Load {
            usual: self.virtual_time.usual_device_time(),
            weights_differ: self.virtual_time.weights_differ(),
        };
        let update_interval = controller.update(self.totals(), load, now);
        self.last_update.store(now, Ordering::Relaxed);
        self.update_interval.store(update_interval, Ordering::Relaxed);
        self.network_time.store(controller.network_time(), Ordering::Relaxed);
        self.stall_timeout.store(controller.stall_timeout(), Ordering::Relaxed);
        let charging = controller.charging();
        self.virtual_time.charge(controller.slow_price(), controller.network_time());
        let word = match charging {
            Charging::Open if controller.is_looking() => LOOKING,
            Charging::Open => OPEN,
            Charging::Usual => USUAL,
            Charging::Full => FULL,
        };
        self.set_charging(word);
        self.measurement.store(controller.measurement(), Ordering::Relaxed);
        let budget = controller.budget().unwrap_or(NO_BOUND);
        if budget != self.credit.budget() {
            self.credit.resize(budget, core);
        }
    }

    fn set_charging(&self, word: u64) {
        self.charging.store(word, Ordering::Relaxed);
        self.virtual_time.set_open(word == OPEN);
    }

    /// Enlarges the budget by `bytes` and leases them to `credit`. Fails while another core updates
    /// the budget.
    fn cover_hung(&self, credit: &mut BufferCredit, bytes: u64) -> bool {
        let Ok(mut controller) = self.controller.try_lock() else { return false };
        controller.cover_hung(credit.lease_more(bytes));
        true
    }

    fn totals(&self) -> Totals {
        let sum = |of: fn(&CoreCounters) -> &AtomicU64| {
            self.cores
                .iter()
                .fold(0u64, |sum, core| sum.wrapping_add(of(core).load(Ordering::Relaxed)))
        };
        Totals {
            commands: sum(|s| &s.commands),
            bytes: sum(|s| &s.bytes),
            residence: sum(|s| &s.residence),
            charged: sum(|s| &s.charged),
            network: sum(|s| &s.network),
            deferred: sum(|s| &s.deferred),
            small: sum(|s| &s.small),
            slow: sum(|s| &s.slow),
            slow_bytes: sum(|s| &s.slow_bytes),
            slow_devices: sum(|s| &s.slow_devices),
        }
    }

    /// Sets a budget in which every byte counts, or none. The controller rests until a clock goes
    /// back.
    #[cfg(all(test, not(loom)))]
    pub(crate) fn bound(&self, budget: Option<u64>, core: usize) {
        self.update_interval.store(Nanos::MAX, Ordering::Relaxed);
        self.set_charging(if budget.is_some() { FULL } else { OPEN });
        self.credit.resize(budget.unwrap_or(NO_BOUND), core);
    }
}

impl fmt::Debug for SharedAdaptive {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedAdaptive").field("credit", &self.credit).finish_non_exhaustive()
    }
}

/// A clock that is this many ns behind has jumped back: the longest interval, not a setting.
const WENT_BACK: Nanos = 1_000_000_000;
/// Commands of a core between two checks whether an update is due.
const LOOK_EVERY: u64 = 8;

/// Policy of one core.
#[derive(Debug)]
pub struct Adaptive {
    credit: BufferCredit,
    core: usize,
    counters: Arc<CoreCounters>,
    /// By device.
    devices: Vec<DeviceCharge>,
    stall_timer: StallTimer,
    shared: Arc<SharedAdaptive>,
}

/// Part of its bytes that a command of one device is charged.
#[derive(Debug, Clone, Copy)]
struct DeviceCharge {
    /// Mean device time in ns; 0: none completed.
    time: u64,
    /// In units of 1/[`WHOLE`].
    part: u16,
    /// The last measurement in which it was slow.
    slow_in: u64,
}

impl Default for DeviceCharge {
    fn default() -> Self {
        Self { time: 0, part: WHOLE, slow_in: 0 }
    }
}

/// Devices are slow if their commands take more than this multiple of the usual time.
const SLOW: u64 = 2;
const WHOLE: u16 = 1 << 8;
/// Commands that the mean device time covers, as a power of two.
const MEMORY: u32 = 4;
/// Bits of a grant that the credit uses, and the grant of a command that was not bounded.
const CREDIT_BITS: u32 = 2;
const NOT_BOUNDED: u16 = 3;

/// Adds to a sum that only this core writes.
#[inline(always)]
fn add(sum: &AtomicU64, more: u64) -> u64 {
    let sum_now = sum.load(Ordering::Relaxed).wrapping_add(more);
    sum.store(sum_now, Ordering::Relaxed);
    sum_now
}

#[expect(clippy::cast_possible_truncation, reason = "no more than all of the bytes")]
fn charge(bytes: u32, part: u16) -> u32 {
    if part == WHOLE { bytes } else { ((u64::from(bytes) * u64::from(part)) >> 8).max(1) as u32 }
}

impl Adaptive {
    /// Returns the part that a command of this device is charged.
    fn part(&self, device: u32) -> u16 {
        match self.shared.charging.load(Ordering::Relaxed) {
            FULL => WHOLE,
            _ => self.devices.get(device as usize).map_or(WHOLE, |device| device.part),
        }
    }

    /// Updates the charge of a device after a command that it took `time` for. Returns whether the
    /// device is slow.
    fn note_device(&mut self, device: u32, time: Nanos) -> bool {
        let at = device as usize;
        if self.devices.len() <= at {
            self.devices.resize(at + 1, DeviceCharge::default());
        }
        let (entry, time) = (&mut self.devices[at], time.max(1));
        entry.time = match entry.time {
            0 => time,
            mean => mean - (mean >> MEMORY) + (time >> MEMORY),
        };
        let usual = self.shared.virtual_time.usual_device_time();
        let network = self.shared.network_time.load(Ordering::Relaxed).max(1);
        let part = (usual + network) * u64::from(WHOLE) / (entry.time + network);
        entry.part = u16::try_from(part).unwrap_or(WHOLE).clamp(1, WHOLE);
        if entry.time <= SLOW * usual {
            return false;
        }
        let measurement = self.shared.measurement.load(Ordering::Relaxed);
        if std::mem::replace(&mut entry.slow_in, measurement) != measurement {
            add(&self.counters.slow_devices, 1);
        }
        true
    }

    #[inline(never)]
    fn admit_bounded(&mut self, request: &AdmissionRequest, now: Nanos) -> Admission {
        let part = self.part(request.device);
        let cost = Cost { bytes: charge(request.cost.bytes, part) };
        let carry = |grant: Grant| Grant(grant.0 | part << CREDIT_BITS);
        match self.credit.admit(&AdmissionRequest { cost, ..*request }, now) {
            Admission::Granted(grant) => Admission::Granted(carry(grant)),
            Admission::GrantedOutOfOrder(grant) => Admission::GrantedOutOfOrder(carry(grant)),
            Admission::WaitForRelease => {
                self.note_deferred(cost.bytes, now);
                Admission::WaitForRelease
            }
            other => other,
        }
    }

    fn release_bounded(&mut self, done: &CompletedCommand, grant: Grant, now: Nanos) -> u16 {
        let part = grant.0 >> CREDIT_BITS;
        let cost = Cost { bytes: charge(done.cost.bytes, part) };
        let grant = Grant(grant.0 & ((1 << CREDIT_BITS) - 1));
        self.credit.release(&CompletedCommand { cost, ..*done }, grant, now);
        part
    }

    /// Counts a deferral. If all commands in flight of the core may hang, it enlarges the budget,
    /// so that other commands need not wait for them. The core has the credit when it asks again.
    #[inline(never)]
    fn note_deferred(&mut self, bytes: u32, now: Nanos) {
        add(&self.counters.deferred, 1);
        let stall_timeout = self.shared.stall_timeout.load(Ordering::Relaxed);
        if self.stall_timer.has_expired(now, stall_timeout)
            && self.shared.cover_hung(&mut self.credit, bytes.into())
        {
            self.stall_timer.back_off(now);
        }
    }

    /// Adds the times of a command to the sums, of which it was charged `part`.
    #[inline(never)]
    fn note_times(&mut self, done: &CompletedCommand, part: u16, now: Nanos) {
        let in_flight = now.saturating_sub(done.started);
        let is_slow = self.note_device(done.device, in_flight.saturating_sub(done.network));
        let (counters, bytes) = (&*self.counters, u64::from(done.cost.bytes));
        let residence = bytes.wrapping_mul(in_flight) >> 10;
        add(&counters.residence, residence);
        add(&counters.charged, (residence * u64::from(part)) >> 8);
        if is_slow {
            add(&counters.slow, residence);
            add(&counters.slow_bytes, bytes);
        }
        add(&counters.network, bytes.wrapping_mul(done.network) >> 10);
    }
}

impl AdmissionPolicy for Adaptive {
    fn needs_network_times(&self) -> bool {
        self.shared.charging.load(Ordering::Relaxed) != OPEN
    }

    fn largest(&self) -> u32 {
        self.credit.largest()
    }

    #[inline(always)]
    fn admit(&mut self, request: &AdmissionRequest, now: Nanos) -> Admission {
        if request.small {
            add(&self.counters.small, 1);
        }
        if self.shared.charging.load(Ordering::Relaxed) <= LOOKING {
            return Admission::Granted(Grant(NOT_BOUNDED));
        }
        self.admit_bounded(&request.copy_fields(), now)
    }

    #[inline(always)]
    fn release(&mut self, done: &CompletedCommand, grant: Grant, now: Nanos) {
        let part = match grant.0 {
            NOT_BOUNDED => WHOLE,
            _ => self.release_bounded(&done.copy_fields(), grant, now),
        };
        if done.outcome != CommandOutcome::Completed {
            return;
        }
        self.stall_timer.on_completion(now);
        let counters = &*self.counters;
        let commands = add(&counters.commands, 1);
        let bytes = u64::from(done.cost.bytes);
        add(&counters.bytes, bytes);
        if self.shared.charging.load(Ordering::Relaxed) != OPEN {
            self.note_times(done, part, now);
        }
        if commands.is_multiple_of(LOOK_EVERY) && self.shared.is_due(now) {
            self.shared.update(now, self.core);
        }
    }

    #[inline]
    fn on_turn(&mut self, now: Nanos, after: Nanos) {
        if after > self.shared.stall_timeout.load(Ordering::Relaxed) / 2 {
            // The core itself was preempted; commands that completed since are not processed yet.
            self.stall_timer.restart(now);
        }
    }

    #[inline]
    fn return_unused(&mut self) {
        self.stall_timer.on_idle();
        self.credit.return_unused();
    }
}
