//! What the cores share of the order by residence: the virtual time, and who is fast.

use std::sync::{Arc, Mutex};

use super::loads;
use crate::sync::{AtomicBool, AtomicU64, Ordering};

/// The virtual time of all cores, and how long commands are usually with their devices.
#[derive(Debug)]
pub struct VirtualTime {
    pub(super) now: AtomicU64,
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
}

impl VirtualTime {
    /// For so many cores.
    #[must_use]
    pub fn new(cores: usize) -> Arc<Self> {
        Arc::new(Self {
            now: AtomicU64::new(0),
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
        let now = Seen {
            speed: sum(|f| &f.speed),
            returned: sum(|f| &f.returned),
            bytes: sum(|f| &f.bytes),
            slow_bytes: sum(|f| &f.slow_bytes),
        };
        let (speed, returned) = (now.speed.wrapping_sub(seen.speed), now.returned - seen.returned);
        if let Some(usual) = (returned << SPEED_SHIFT).checked_div(speed) {
            self.usual_hold.store(usual, Ordering::Relaxed);
        }
        self.keep_floor(now.bytes - seen.bytes, now.slow_bytes - seen.slow_bytes, now.slow_bytes);
        *seen = now;
    }

    /// Lowers the price of slow flows while together they get less than the floor, and raises it again as fast, so that
    /// in the long run they get what is aimed at.
    fn keep_floor(&self, started: u64, started_slow: u64, slow: u64) {
        let relief = self.relief.load(Ordering::Relaxed);
        // In proportion to what is missing or too much: what is changed shows only when slow commands
        // are back, and full steps would have them come in crowds that leave little for the others.
        let floor = (started / FLOOR).max(1);
        let wanted = floor + floor / ABOVE_FLOOR;
        let part = |of: u64, by: u64| of * by.min(wanted) / wanted;
        let relief = if slow > 0 && started_slow < wanted {
            (relief - part(relief / STEP, wanted - started_slow)).max(FULL / 16)
        } else {
            (relief + part(relief / STEP, started_slow.saturating_sub(wanted)) + 1).min(FULL)
        };
        self.relief.store(relief, Ordering::Relaxed);
    }

    #[inline]
    pub(super) fn advance(&self, tag: u64) {
        let now = self.now.load(Ordering::Relaxed);
        if now < tag {
            // Not all the way: a core may have nothing but a lane far ahead of the others, and who
            // joins must not start behind that. Another core may go back a little with this.
            self.now.store(now + ((tag - now) >> 3), Ordering::Relaxed);
        }
    }
}

/// The sums at the last refresh.
#[derive(Debug, Default)]
struct Seen {
    speed: u64,
    returned: u64,
    bytes: u64,
    slow_bytes: u64,
}

/// Unit of a speed: one in 2^40 ns.
pub(super) const SPEED_SHIFT: u32 = 40;
/// Slow flows together get one byte in so many, if they want it: a twentieth.
pub(super) const FLOOR: u64 = 20;
/// And one part of that in so many more: it goes up and down about what is aimed at.
const ABOVE_FLOOR: u64 = 16;
/// The relief becomes less or more by one part in so many, at most, at once.
const STEP: u64 = 8;
/// A relief of 1.
pub(super) const FULL: u64 = 1 << 16;
