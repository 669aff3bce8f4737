//! What the cores share of the order by residence: the virtual time, and who is fast.

use std::sync::{Arc, Mutex};

use super::loads;
use crate::sync::{AtomicBool, AtomicU64, Ordering};

/// The virtual time of all cores, and how long commands are usually with their devices.
#[derive(Debug)]
pub struct VirtualTime {
    now: AtomicU64,
    /// Mean size of a command in bytes where that is largest; [`u64::MAX`]: nobody told yet.
    largest: AtomicU64,
    /// Harmonic mean of the time commands are with their devices, over all flows, in ns: a
    /// few slow flows do not raise it, and a lucky one does not lower it.
    pub(super) usual_hold: AtomicU64,
    /// What the price of slow flows is multiplied with so that they keep their floor, in 1/65536.
    pub(super) relief: AtomicU64,
    /// The network has enough to do: what slow flows add to it only makes others wait.
    pub(super) network_is_busy: AtomicBool,
    /// What is in flight where.
    pub(super) loads: loads::Shared,
    pub(super) by_core: Box<[Found]>,
    seen: Mutex<Seen>,
}

/// What one core found, written by it alone.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(super) struct Found {
    /// Sum of the inverses of hold times, in 2^40 per ns, over so many commands that returned.
    pub(super) speed: AtomicU64,
    pub(super) returned: AtomicU64,
    /// Bytes started since the start, of all flows and of slow ones.
    pub(super) bytes: AtomicU64,
    pub(super) slow_bytes: AtomicU64,
    /// Mean size of its commands.
    pub(super) size: AtomicU64,
}

impl VirtualTime {
    /// For so many cores.
    #[must_use]
    pub fn new(cores: usize) -> Arc<Self> {
        Arc::new(Self {
            now: AtomicU64::new(0),
            largest: AtomicU64::new(u64::MAX),
            usual_hold: AtomicU64::new(0),
            relief: AtomicU64::new(FULL),
            network_is_busy: AtomicBool::new(false),
            loads: loads::Shared::new(cores),
            by_core: (0..cores).map(|_| Found::default()).collect(),
            seen: Mutex::new(Seen::default()),
        })
    }

    /// Takes in what the cores found since the last call. Called now and then by one core, so that
    /// it is about the recent past.
    pub(crate) fn refresh(&self, network_is_busy: bool) {
        self.network_is_busy.store(network_is_busy, Ordering::Relaxed);
        let Ok(mut seen) = self.seen.try_lock() else { return };
        let sum = |of: fn(&Found) -> &AtomicU64| -> u64 {
            let of_cores = self.by_core.iter().map(|core| of(core).load(Ordering::Relaxed));
            of_cores.fold(0, u64::wrapping_add)
        };
        let (speed, returned) = (sum(|f| &f.speed), sum(|f| &f.returned));
        let (bytes, slow_bytes) = (sum(|f| &f.bytes), sum(|f| &f.slow_bytes));
        let hold = (returned.wrapping_sub(seen.returned) << SPEED_SHIFT)
            .checked_div(speed.wrapping_sub(seen.speed));
        if let Some(usual) = hold {
            self.usual_hold.store(usual, Ordering::Relaxed);
        }
        let sizes = self.by_core.iter().map(|core| core.size.load(Ordering::Relaxed));
        if let Some(largest) = sizes.max().filter(|size| *size > 0) {
            self.largest.store(largest, Ordering::Relaxed);
        }
        let started = bytes.wrapping_sub(seen.bytes);
        let started_slow = slow_bytes.wrapping_sub(seen.slow_bytes);
        let aim = slow_part(started).max(seen.aim - seen.aim / FORGET);
        self.keep_floor(started, started_slow, slow_bytes, aim);
        *seen = Seen { speed, returned, bytes, slow_bytes, aim };
    }

    /// Lowers the price of slow flows while together they get less than is aimed at, and raises it again as fast. `slow` is
    /// what they ever started, `aim` what is aimed at between two refreshes that lie far apart: not less than now.
    fn keep_floor(&self, started: u64, started_slow: u64, slow: u64, aim: u64) {
        let wanted = slow_part(started);
        if wanted == 0 {
            // Nothing is missing where nothing was started.
            return;
        }
        let relief = self.relief.load(Ordering::Relaxed);
        // In proportion to what is missing or too much: what is changed shows only when slow commands
        // are back, and full steps would have them come in crowds that leave little for the others. And in bytes: of the few
        // between two refreshes that are close together a whole command more or less is a large part.
        let relief = if slow > 0 && started_slow < wanted {
            let missing = wanted - started_slow;
            // What takes back a step up by as much.
            (relief - relief / STEP * missing / (aim + missing / STEP)).max(FULL / 16)
        } else {
            let too_much = started_slow.saturating_sub(wanted).min(MOST_TOO_MUCH * aim);
            (relief + relief / STEP * too_much / aim + 1).min(FULL)
        };
        self.relief.store(relief, Ordering::Relaxed);
    }

    #[cfg(all(test, not(loom)))]
    pub(super) fn set(&self, now: u64, largest: u64) {
        self.now.store(now, Ordering::Relaxed);
        self.largest.store(largest, Ordering::Relaxed);
    }

    /// The virtual time, in bytes over weight.
    #[inline(always)]
    pub(super) fn now(&self) -> u64 {
        self.now.load(Ordering::Relaxed)
    }

    /// The mean size of a command in bytes on the core where that is largest.
    #[inline(always)]
    pub(super) fn largest(&self) -> u64 {
        self.largest.load(Ordering::Relaxed)
    }

    /// A lane with this tag starts something in its turn; yields the virtual time if that is ahead of it.
    #[inline(always)]
    pub(super) fn advance(&self, tag: u64) -> Option<u64> {
        let now = self.now();
        if now < tag {
            // Not all the way: a core may have nothing but a lane far ahead of the others, and who
            // joins must not start behind that. Another core may go back a little with this.
            self.now.store(now + ((tag - now) >> 3), Ordering::Relaxed);
        }
        (now > tag).then_some(now)
    }
}

/// Of so many bytes, what slow flows together are to have if they want it: their floor, and a little more, as what they get
/// goes up and down about that.
pub(super) fn slow_part(bytes: u64) -> u64 {
    let floor = bytes / FLOOR;
    floor + floor / ABOVE_FLOOR
}

/// The sums at the last refresh, and the aim then.
#[derive(Debug, Default)]
struct Seen {
    speed: u64,
    returned: u64,
    bytes: u64,
    slow_bytes: u64,
    /// Bytes that slow flows are to start between two refreshes that lie far apart.
    aim: u64,
}

/// Unit of a speed: one in 2^40 ns.
pub(super) const SPEED_SHIFT: u32 = 40;
/// The floor of slow flows: one byte in so many, a twentieth.
const FLOOR: u64 = 20;
/// One part in so many of that is aimed at beside it.
const ABOVE_FLOOR: u64 = 32;
/// Where twice as much is started as is aimed at the relief becomes more by one part in so many.
const STEP: u64 = 8;
/// What is too much counts up to so many times what is aimed at: a crowd at the start, when nobody is known to be slow, is not
/// made up for by a long time with little.
const MOST_TOO_MUCH: u64 = 2;
/// What is aimed at between two refreshes that lie far apart becomes less by one part in so many at each.
const FORGET: u64 = 32;
/// A relief of 1.
pub(super) const FULL: u64 = 1 << 16;

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    const STARTED: u64 = 1 << 26;

    /// With half of the relief.
    fn clock() -> Arc<VirtualTime> {
        let clock = VirtualTime::new(1);
        clock.relief.store(FULL / 2, Ordering::Relaxed);
        clock
    }

    fn has_half(clock: &VirtualTime) {
        let relief = clock.relief.load(Ordering::Relaxed);
        assert!((FULL * 9 / 20..=FULL * 11 / 20).contains(&relief), "{relief} of {FULL}");
    }

    /// Where slow commands come back in crowds, none at one look and twice what is aimed at by the next, the price stays
    /// about where it is.
    #[test]
    fn the_price_goes_up_as_fast_as_down() {
        let clock = clock();
        let aim = slow_part(STARTED);
        for round in 0..1000 {
            let slow = if round % 2 == 0 { 0 } else { 2 * aim };
            clock.keep_floor(STARTED, slow, 1, aim);
        }
        has_half(&clock);
    }

    /// Of two looks one may be after a few commands. A slow one more in those is no large part of both: the price stays where
    /// what both have together is what is aimed at.
    #[test]
    fn a_short_look_counts_as_little_as_it_saw() {
        let clock = clock();
        let core = &clock.by_core[0];
        let start = |bytes, slow| {
            core.bytes.fetch_add(bytes, Ordering::Relaxed);
            core.slow_bytes.fetch_add(slow, Ordering::Relaxed);
            clock.refresh(false);
        };
        let short = STARTED / 16;
        let in_short = 2 * slow_part(short);
        for _ in 0..200 {
            start(STARTED, slow_part(STARTED + short) - in_short);
            start(short, in_short);
        }
        has_half(&clock);
    }

    /// However much comes at once, when nobody is known to be slow, it counts as three times what is aimed at.
    #[test]
    fn a_crowd_is_not_made_up_for_by_a_long_time_with_little() {
        let after = |times: u64| {
            let clock = clock();
            clock.keep_floor(STARTED, times * slow_part(STARTED), 1, slow_part(STARTED));
            clock.relief.load(Ordering::Relaxed)
        };
        assert!(after(2) < after(3), "{} {}", after(2), after(3));
        assert_eq!(after(3), after(20));
    }

    /// Where nothing was started nothing is missing.
    #[test]
    fn a_pause_leaves_the_price_as_it_is() {
        let clock = VirtualTime::new(1);
        clock.relief.store(FULL / 2, Ordering::Relaxed);
        for _ in 0..100 {
            clock.keep_floor(0, 0, 1, slow_part(STARTED));
        }
        assert_eq!(clock.relief.load(Ordering::Relaxed), FULL / 2);
    }
}
