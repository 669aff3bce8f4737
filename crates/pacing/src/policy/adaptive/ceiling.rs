//! Ceiling of the base budget: an overshoot, and the allowed distance from it.

/// In-flight ceiling, in bytes: a budget above it overshot recently (BBRv2's `inflight_hi`). It
/// rises with growing steps while it limits the base budget, because an old overshoot may no longer
/// apply. If an overshoot is found again in the same place, it rises more slowly each time. A
/// permanent edge is thus met less and less often.
#[derive(Debug)]
pub(super) struct InflightCeiling {
    at: f64,
    /// The budget that overshot.
    overshoot_bytes: f64,
    /// The next rise, as a fraction of the ceiling, and the first rise after the last overshoot.
    raise_step: f64,
    first_raise_step: f64,
    /// Distance below the edge, as a fraction: the edge is not found in exactly the same place each
    /// time.
    margin: f64,
    /// The loss beyond the edge was large, and not small and possibly noise.
    steep: bool,
    /// The rate with the budget that did not overshoot.
    rate: f64,
}

/// Initial rise, its minimum after repeated finds, and the largest rise.
const RAISE_STEP: f64 = 0.005;
const MIN_RAISE_STEP: f64 = 0.0001;
const MAX_RAISE_STEP: f64 = 0.5;
/// Increase of the distance below an edge each time it is found again, and its maximum.
const MARGIN: f64 = 0.01;
const MOST_MARGIN: f64 = 0.04;
/// Growth of the rise, for a new edge and for one that was found again.
const GROWTH: f64 = 1.5;
const KNOWN_GROWTH: f64 = 1.2;
/// Value of [`InflightCeiling::certainty`] for an edge found once.
const FOUND_ONCE: f64 = 1.5;
/// A rate of this multiple of the edge's rate is that of another machine.
const FASTER: f64 = 1.1;
/// Largest distance of two edges of one machine, in logarithms.
const NEAR: f64 = 0.7;
/// Two edges closer than this fraction are the same.
const SAME: f64 = 0.1;

impl InflightCeiling {
    /// Creates a state without an overshoot.
    pub(super) fn none() -> Self {
        Self {
            at: f64::INFINITY,
            overshoot_bytes: f64::INFINITY,
            raise_step: RAISE_STEP,
            first_raise_step: RAISE_STEP,
            margin: 0.0,
            steep: false,
            rate: 0.0,
        }
    }

    /// Returns whether this rate may be that of the machine on which the edge was found.
    pub(super) fn is_of(&self, rate: f64) -> bool {
        rate < FASTER * self.rate
    }

    pub(super) fn is_none(&self) -> bool {
        self.at.is_infinite()
    }

    /// Returns the factor by which noise in the rate must exceed its usual limit before this edge
    /// is taken for noise. An edge found repeatedly is never noise.
    pub(super) fn certainty(&self) -> f64 {
        match (self.is_none(), self.first_raise_step < RAISE_STEP) {
            (true, _) => 1.0,
            (false, false) => FOUND_ONCE,
            (false, true) => f64::INFINITY,
        }
    }

    /// Returns whether the loss beyond the edge is large.
    pub(super) fn is_steep(&self) -> bool {
        self.steep
    }

    /// Records an overshoot: a budget of `bad` bytes overshot, by much if `steep`. One of `good`
    /// bytes did not, at `rate`; if none is known, `good` equals `bad`.
    pub(super) fn set(&mut self, good: f64, bad: f64, steep: bool, rate: f64) {
        // An edge found in a standing queue has a rate below that of the machine.
        let is_near = (bad / self.overshoot_bytes).ln().abs() < NEAR;
        self.rate = if is_near { self.rate.max(rate) } else { rate };
        if (bad / self.overshoot_bytes).ln().abs() >= SAME {
            self.first_raise_step = RAISE_STEP;
            self.margin = 0.0;
            self.steep = steep;
        } else if self.raise_step > self.first_raise_step {
            // The ceiling rose beyond it since. Otherwise this is the same event, still on the way
            // down.
            self.first_raise_step = (self.first_raise_step / 2.0).max(MIN_RAISE_STEP);
            self.margin = if steep { (self.margin + MARGIN).min(MOST_MARGIN) } else { 0.0 };
            self.steep = steep;
        } else {
            self.steep |= steep;
        }
        self.raise_step = self.first_raise_step;
        self.overshoot_bytes = bad;
        self.at = (good * bad).sqrt() * (1.0 - self.margin);
    }

    /// Returns the highest base budget whose upper probe stays below the ceiling; `probe_amplitude`
    /// is the probe amplitude as a fraction of the base budget.
    pub(super) fn base(&self, probe_amplitude: f64) -> f64 {
        self.at / (1.0 + probe_amplitude)
    }

    /// Raises the ceiling because it limits the base budget.
    pub(super) fn raise(&mut self) {
        self.at *= 1.0 + self.raise_step;
        let growth = if self.first_raise_step < RAISE_STEP { KNOWN_GROWTH } else { GROWTH };
        self.raise_step = (growth * self.raise_step).min(MAX_RAISE_STEP);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::InflightCeiling;

    #[test]
    fn a_rate_tells_whether_it_is_the_machine_that_the_edge_was_found_on() {
        let mut ceiling = InflightCeiling::none();
        assert!(!ceiling.is_of(1.0), "there is none");
        ceiling.set(90.0, 100.0, true, 10.0);
        assert!(ceiling.is_of(10.5) && !ceiling.is_of(12.0));
        ceiling.set(80.0, 90.0, true, 6.0);
        assert!(ceiling.is_of(10.5), "found again in a flood");
        ceiling.set(30.0, 40.0, true, 5.0);
        assert!(!ceiling.is_of(10.0), "of a slower machine");
    }

    /// Counts the rises from just below an edge until the ceiling reaches it.
    fn pushes(ceiling: &mut InflightCeiling, overshoot_bytes: f64) -> u32 {
        ceiling.set(0.9 * overshoot_bytes, overshoot_bytes, false, 1.0);
        let mut count = 0;
        while ceiling.base(0.0) < overshoot_bytes {
            ceiling.raise();
            count += 1;
        }
        count
    }

    #[test]
    fn it_lies_between_what_did_harm_and_what_did_none() {
        let mut ceiling = InflightCeiling::none();
        assert!(ceiling.is_none());
        ceiling.set(90.0, 100.0, false, 1.0);
        assert!(!ceiling.is_none());
        assert!((90.0..100.0).contains(&ceiling.base(0.0)));
        assert!(ceiling.base(0.05) * 1.05 < 100.0);
    }

    #[test]
    fn an_edge_that_stays_is_met_less_often_each_time() {
        let mut ceiling = InflightCeiling::none();
        let mut before = 0;
        for overshoot_bytes in [100.0, 101.0, 98.0, 104.0] {
            let count = pushes(&mut ceiling, overshoot_bytes);
            assert!(count > before, "{count} after {before}");
            before = count;
        }
        let most = (0..100).map(|_| pushes(&mut ceiling, 100.0)).max();
        assert!(most < Some(30), "{most:?}: it is found out in the end whether it is still there");
    }

    #[test]
    fn it_keeps_further_below_a_steep_edge_each_time_that_is_found() {
        let mut ceiling = InflightCeiling::none();
        let mut before = f64::INFINITY;
        for _ in 0..4 {
            ceiling.set(90.0, 100.0, true, 1.0);
            assert!(ceiling.base(0.0) < before, "{ceiling:?}");
            before = ceiling.base(0.0);
            ceiling.raise();
        }
        for _ in 0..10 {
            ceiling.set(90.0, 100.0, true, 1.0);
            ceiling.raise();
        }
        assert!(before > 0.9 * (90.0_f64 * 100.0).sqrt());
        // An edge that is not steep may be noise.
        ceiling.set(90.0, 100.0, false, 1.0);
        assert!((ceiling.base(0.0) - (90.0_f64 * 100.0).sqrt()).abs() < 1e-9);
    }

    /// On the way down from an overshoot it is met at each step; that does not count as found
    /// again.
    #[test]
    fn a_descent_is_one_event() {
        let mut ceiling = InflightCeiling::none();
        let first = pushes(&mut ceiling, 100.0);
        let mut ceiling = InflightCeiling::none();
        for overshoot_bytes in [116.0, 108.0] {
            ceiling.set(0.9 * overshoot_bytes, overshoot_bytes, false, 1.0);
        }
        assert_eq!(pushes(&mut ceiling, 100.0), first);
    }

    #[test]
    fn an_edge_elsewhere_is_a_new_one() {
        let mut ceiling = InflightCeiling::none();
        let first = pushes(&mut ceiling, 100.0);
        (0..5).for_each(|_| _ = pushes(&mut ceiling, 100.0));
        assert_eq!(pushes(&mut ceiling, 200.0), first);
    }
}
