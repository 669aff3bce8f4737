//! State of the residence scheduler that the cores share: virtual time and device times.

use std::sync::{Arc, Mutex};

use super::in_flight;
use crate::sync::{AtomicBool, AtomicU64, Ordering};

/// Virtual time of all cores, and the usual device time of commands.
#[derive(Debug)]
pub struct VirtualTime {
    now: AtomicU64,
    /// Largest per-core mean size of a command in bytes; [`u64::MAX`]: none reported yet.
    largest: AtomicU64,
    /// Harmonic mean of the device time of commands, over all flows, in ns. A few slow flows do not
    /// raise it, and one fast outlier does not lower it.
    pub(super) typical_device_time: AtomicU64,
    /// Factor on the price of slow flows that keeps their minimum share, in units of 1/65536.
    pub(super) slow_flow_discount: AtomicU64,
    /// The network has enough to do: data of slow flows would only make others wait.
    pub(super) network_is_busy: AtomicBool,
    /// Bytes in flight by device and port.
    pub(super) in_flight_view: in_flight::SharedInFlight,
    pub(super) by_core: Box<[CoreTotals]>,
    seen: Mutex<RefreshTotals>,
}

/// Totals of one core. Only that core writes them.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(super) struct CoreTotals {
    /// Sum of the inverse device times, in 2^40 per ns, over `returned` completed commands.
    pub(super) speed: AtomicU64,
    pub(super) returned: AtomicU64,
    /// Bytes started since the start, of all flows and of slow ones.
    pub(super) bytes: AtomicU64,
    pub(super) slow_bytes: AtomicU64,
    /// Mean size of the core's commands.
    pub(super) size: AtomicU64,
}

impl VirtualTime {
    /// Creates the state for this number of cores.
    #[must_use]
    pub fn new(cores: usize) -> Arc<Self> {
        Arc::new(Self {
            now: AtomicU64::new(0),
            largest: AtomicU64::new(u64::MAX),
            typical_device_time: AtomicU64::new(0),
            slow_flow_discount: AtomicU64::new(FULL),
            network_is_busy: AtomicBool::new(false),
            in_flight_view: in_flight::SharedInFlight::new(cores),
            by_core: (0..cores).map(|_| CoreTotals::default()).collect(),
            seen: Mutex::new(RefreshTotals::default()),
        })
    }

    /// Processes the totals of the cores since the last call. One core calls it periodically, so
    /// that it covers the recent past.
    pub(crate) fn refresh(&self, network_is_busy: bool) {
        self.network_is_busy.store(network_is_busy, Ordering::Relaxed);
        let Ok(mut seen) = self.seen.try_lock() else { return };
        let sum = |of: fn(&CoreTotals) -> &AtomicU64| -> u64 {
            let of_cores = self.by_core.iter().map(|core| of(core).load(Ordering::Relaxed));
            of_cores.fold(0, u64::wrapping_add)
        };
        let (speed, returned) = (sum(|f| &f.speed), sum(|f| &f.returned));
        let (bytes, slow_bytes) = (sum(|f| &f.bytes), sum(|f| &f.slow_bytes));
        let device_time = (returned.wrapping_sub(seen.returned) << SPEED_SHIFT)
            .checked_div(speed.wrapping_sub(seen.speed));
        if let Some(usual) = device_time {
            self.typical_device_time.store(usual, Ordering::Relaxed);
        }
        let sizes = self.by_core.iter().map(|core| core.size.load(Ordering::Relaxed));
        if let Some(largest) = sizes.max().filter(|size| *size > 0) {
            self.largest.store(largest, Ordering::Relaxed);
        }
        let started = bytes.wrapping_sub(seen.bytes);
        let started_slow = slow_bytes.wrapping_sub(seen.slow_bytes);
        let aim = slow_part(started).max(seen.aim - seen.aim / FORGET);
        self.update_slow_flow_discount(started, started_slow, slow_bytes, aim);
        *seen = RefreshTotals { speed, returned, bytes, slow_bytes, aim };
    }

    /// Lowers the price of slow flows while they get less than the target, and raises it at the
    /// same speed. `slow` is their total of bytes started. `aim` is the target between two distant
    /// refreshes: at least the current one.
    fn update_slow_flow_discount(&self, started: u64, started_slow: u64, slow: u64, aim: u64) {
        let wanted = slow_part(started);
        if wanted == 0 {
            // Nothing is missing if nothing started.
            return;
        }
        let slow_flow_discount = self.slow_flow_discount.load(Ordering::Relaxed);
        // In proportion to the deviation: a change shows only when slow commands complete. Full
        // steps would make them arrive in crowds that leave little for other flows. The deviation
        // is in bytes: between two close refreshes few commands start, so one command is a large
        // fraction of them.
        let slow_flow_discount = if slow > 0 && started_slow < wanted {
            let missing = wanted - started_slow;
            // The inverse of a step up by the same deviation.
            (slow_flow_discount - slow_flow_discount / STEP * missing / (aim + missing / STEP))
                .max(FULL / 16)
        } else {
            let too_much = started_slow.saturating_sub(wanted).min(MOST_TOO_MUCH * aim);
            (slow_flow_discount + slow_flow_discount / STEP * too_much / aim + 1).min(FULL)
        };
        self.slow_flow_discount.store(slow_flow_discount, Ordering::Relaxed);
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

/// Returns the target of slow flows out of `bytes`, if they have demand: their minimum share, and
/// slightly more, because their rate oscillates around it.
pub(super) fn slow_part(bytes: u64) -> u64 {
    let floor = bytes / FLOOR;
    floor + floor / ABOVE_FLOOR
}

/// Totals and target at the last refresh.
#[derive(Debug, Default)]
struct RefreshTotals {
    speed: u64,
    returned: u64,
    bytes: u64,
    slow_bytes: u64,
    /// Target bytes of slow flows between two distant refreshes.
    aim: u64,
}

/// Unit of a speed: 1 per 2^40 ns.
pub(super) const SPEED_SHIFT: u32 = 40;
/// Minimum share of slow flows: 1/20 of the bytes.
const FLOOR: u64 = 20;
/// The target exceeds that by 1/`ABOVE_FLOOR`.
const ABOVE_FLOOR: u64 = 32;
/// If twice the target is started, the factor rises by 1/`STEP`.
const STEP: u64 = 8;
/// Limit of an excess, as a multiple of the target. A crowd at the start, when no flow is known to
/// be slow, is not compensated by a long time with little.
const MOST_TOO_MUCH: u64 = 2;
/// The target between two distant refreshes decays by 1/`FORGET` per refresh.
const FORGET: u64 = 32;
/// A factor of 1.
pub(super) const FULL: u64 = 1 << 16;

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    const STARTED: u64 = 1 << 26;

    /// Returns a clock with half of the full factor.
    fn virtual_time() -> Arc<VirtualTime> {
        let virtual_time = VirtualTime::new(1);
        virtual_time.slow_flow_discount.store(FULL / 2, Ordering::Relaxed);
        virtual_time
    }

    fn has_half(virtual_time: &VirtualTime) {
        let slow_flow_discount = virtual_time.slow_flow_discount.load(Ordering::Relaxed);
        assert!(
            (FULL * 9 / 20..=FULL * 11 / 20).contains(&slow_flow_discount),
            "{slow_flow_discount} of {FULL}"
        );
    }

    /// Slow commands come in crowds: none at one refresh, and twice the target by the next. The
    /// price stays about the same.
    #[test]
    fn the_price_goes_up_as_fast_as_down() {
        let virtual_time = virtual_time();
        let aim = slow_part(STARTED);
        for round in 0..1000 {
            let slow = if round % 2 == 0 { 0 } else { 2 * aim };
            virtual_time.update_slow_flow_discount(STARTED, slow, 1, aim);
        }
        has_half(&virtual_time);
    }

    /// One of two refreshes may be after few commands. One more slow command in it is a small
    /// fraction of both. The price stays if both together meet the target.
    #[test]
    fn a_short_look_counts_as_little_as_it_saw() {
        let virtual_time = virtual_time();
        let core = &virtual_time.by_core[0];
        let start = |bytes, slow| {
            core.bytes.fetch_add(bytes, Ordering::Relaxed);
            core.slow_bytes.fetch_add(slow, Ordering::Relaxed);
            virtual_time.refresh(false);
        };
        let short = STARTED / 16;
        let in_short = 2 * slow_part(short);
        for _ in 0..200 {
            start(STARTED, slow_part(STARTED + short) - in_short);
            start(short, in_short);
        }
        has_half(&virtual_time);
    }

    /// When no flow is known to be slow, an excess counts as at most three times the target.
    #[test]
    fn a_crowd_is_not_made_up_for_by_a_long_time_with_little() {
        let after = |times: u64| {
            let virtual_time = virtual_time();
            virtual_time.update_slow_flow_discount(
                STARTED,
                times * slow_part(STARTED),
                1,
                slow_part(STARTED),
            );
            virtual_time.slow_flow_discount.load(Ordering::Relaxed)
        };
        assert!(after(2) < after(3), "{} {}", after(2), after(3));
        assert_eq!(after(3), after(20));
    }

    /// Nothing is missing if nothing started.
    #[test]
    fn a_pause_leaves_the_price_as_it_is() {
        let virtual_time = VirtualTime::new(1);
        virtual_time.slow_flow_discount.store(FULL / 2, Ordering::Relaxed);
        for _ in 0..100 {
            virtual_time.update_slow_flow_discount(0, 0, 1, slow_part(STARTED));
        }
        assert_eq!(virtual_time.slow_flow_discount.load(Ordering::Relaxed), FULL / 2);
    }
}
