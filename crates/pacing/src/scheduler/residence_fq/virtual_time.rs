//! State of the residence scheduler that the cores share: virtual time, usual device time, price of
//! slow devices, and whether weights differ.

use std::sync::Arc;

use super::{BASE_MULTIPLIER, in_flight};
use crate::Nanos;
use crate::sync::{AtomicBool, AtomicU64, Ordering};

/// Virtual time of all cores, and the usual device time of commands.
#[derive(Debug)]
pub struct VirtualTime {
    now: AtomicU64,
    /// There is no bound and none is looked for, so there is no order to keep.
    is_open: AtomicBool,
    /// Largest per-core mean size of a command in bytes; [`u64::MAX`]: none reported yet.
    largest: AtomicU64,
    /// Usual device time of commands in ns: the power mean with exponent -[`POWER`], over all
    /// flows. Slow flows do not raise it, even if most commands are theirs.
    pub(super) typical_device_time: AtomicU64,
    /// Price of flows of slow devices, in units of 1/[`BASE_MULTIPLIER`].
    pub(super) slow_price: AtomicU64,
    /// Mean time of a command in the network in ns.
    pub(super) network_time: AtomicU64,
    /// A weight that flows have, and whether others have another one; see [`VirtualTime::weigh`].
    weights: AtomicU64,
    /// Bytes in flight by device and port.
    pub(super) in_flight_view: in_flight::SharedInFlight,
    pub(super) by_core: Box<[CoreTotals]>,
}

/// Totals of one core. Only that core writes them.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(super) struct CoreTotals {
    /// Mean of the inverse device times in ns of recent commands, to the [`POWER`], as the bits of
    /// an [`f64`]; 0: none completed.
    pub(super) speed: AtomicU64,
    /// Mean size of the core's commands.
    pub(super) size: AtomicU64,
}

impl VirtualTime {
    /// Creates the state for this number of cores.
    #[must_use]
    pub fn new(cores: usize) -> Arc<Self> {
        Arc::new(Self {
            now: AtomicU64::new(0),
            is_open: AtomicBool::new(true),
            largest: AtomicU64::new(u64::MAX),
            typical_device_time: AtomicU64::new(0),
            slow_price: AtomicU64::new(BASE_MULTIPLIER.into()),
            network_time: AtomicU64::new(0),
            weights: AtomicU64::new(0),
            in_flight_view: in_flight::SharedInFlight::new(cores),
            by_core: (0..cores).map(|_| CoreTotals::default()).collect(),
        })
    }

    /// Processes the totals of the cores since the last call. One core calls it periodically, so
    /// that it covers the recent past.
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "positive, and a cast of a float saturates"
    )]
    pub(crate) fn refresh(&self) {
        let speeds =
            self.by_core.iter().map(|core| f64::from_bits(core.speed.load(Ordering::Relaxed)));
        let (sum, count) = speeds
            .filter(|speed| *speed > 0.0)
            .fold((0.0, 0.0), |(sum, count), speed| (sum + speed, count + 1.0));
        if count > 0.0 {
            let usual = (count / sum).powf(1.0 / f64::from(POWER));
            self.typical_device_time.store(usual as u64, Ordering::Relaxed);
        }
        let sizes = self.by_core.iter().map(|core| core.size.load(Ordering::Relaxed));
        if let Some(largest) = sizes.max().filter(|size| *size > 0) {
            self.largest.store(largest, Ordering::Relaxed);
        }
    }

    /// Sets whether there is no bound and none is looked for.
    pub(crate) fn set_open(&self, is_open: bool) {
        self.is_open.store(is_open, Ordering::Relaxed);
    }

    /// Returns whether there is no bound and none is looked for.
    #[inline(always)]
    pub(in crate::scheduler) fn is_open(&self) -> bool {
        self.is_open.load(Ordering::Relaxed)
    }

    /// Returns the usual device time in ns; 0 while unknown.
    pub(crate) fn usual_device_time(&self) -> Nanos {
        self.typical_device_time.load(Ordering::Relaxed)
    }

    /// Records the weight of a flow.
    pub(super) fn weigh(&self, weight: u16) {
        let weight = u64::from(weight);
        let first = self.weights.compare_exchange(0, weight, Ordering::Relaxed, Ordering::Relaxed);
        if first.is_err_and(|other| other != weight) {
            self.weights.store(u64::MAX, Ordering::Relaxed);
        }
    }

    /// Returns whether flows had different weights.
    pub(crate) fn weights_differ(&self) -> bool {
        self.weights.load(Ordering::Relaxed) == u64::MAX
    }

    /// Sets the price of flows of slow devices, by which fewer of their commands start. A
    /// command is in the network for `network` ns.
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "positive, and a cast of a float saturates"
    )]
    pub(crate) fn charge(&self, slow_price: f64, network: Nanos) {
        self.slow_price.store((slow_price * f64::from(BASE_MULTIPLIER)) as u64, Ordering::Relaxed);
        self.network_time.store(network, Ordering::Relaxed);
    }

    #[cfg(all(test, not(loom)))]
    pub(super) fn set(&self, now: u64, largest: u64) {
        self.now.store(now, Ordering::Relaxed);
        self.largest.store(largest, Ordering::Relaxed);
    }

    /// Returns the virtual time, in bytes over weight.
    #[inline(always)]
    pub(super) fn now(&self) -> u64 {
        self.now.load(Ordering::Relaxed)
    }

    /// Returns the mean size of a command in bytes on the core where it is largest.
    #[inline(always)]
    pub(super) fn largest(&self) -> u64 {
        self.largest.load(Ordering::Relaxed)
    }

    /// Advances virtual time to the tag of a flow that starts a command in order. Returns virtual
    /// time if it is ahead of the tag.
    #[inline(always)]
    pub(super) fn advance(&self, start_tag: u64) -> Option<u64> {
        let now = self.now();
        if now < start_tag {
            // Only 1/8 of the way: the core may only have a flow far ahead of the others, and
            // joining flows must not start behind that. A concurrent call may move virtual time
            // back slightly.
            self.now.store(now + ((start_tag - now) >> 3), Ordering::Relaxed);
        }
        (now > start_tag).then_some(now)
    }
}

/// Exponent of the mean: the higher, the more it is the time of the fastest devices.
pub(super) const POWER: i32 = 4;
