//! Where a budget did harm, and how close to that one may go.

/// A budget beyond which it was too much lately, in bytes. It rises while it is in the way, faster and
/// faster, since what did harm once may do none any more. Where harm is found again in the same place it
/// rises more slowly each time, so that an edge that stays is met ever less often.
#[derive(Debug)]
pub(super) struct Ceiling {
    at: f64,
    /// The budget that did harm.
    edge: f64,
    /// How much it rises next, as a part of it, and how much it did first since it was found.
    push: f64,
    first_push: f64,
    /// How far below the edge it is, as a part of it, since that is not found in quite the same place each time.
    margin: f64,
    /// Much was lost beyond it, and not little that may have been chance.
    steep: bool,
    /// The rate with the budget that did no harm.
    rate: f64,
}

/// How much a ceiling rises at first, at least where it was found again and again, and at most.
const PUSH: f64 = 0.005;
const LEAST_PUSH: f64 = 0.0001;
const MOST_PUSH: f64 = 0.5;
/// How much further below an edge a ceiling is each time that it is found again, and at most.
const MARGIN: f64 = 0.01;
const MOST_MARGIN: f64 = 0.04;
/// Growth of that each time, of a new edge and of one that was found again.
const GROWTH: f64 = 1.5;
const KNOWN_GROWTH: f64 = 1.2;
/// See [`Ceiling::certainty`].
const FOUND_ONCE: f64 = 1.5;
/// A rate so many times that of the machine that an edge was found on is that of another.
const FASTER: f64 = 1.1;
/// Edges no further apart than this, in logarithms, may be those of one machine.
const NEAR: f64 = 0.7;
/// Edges no further apart than this part of them are the same.
const SAME: f64 = 0.1;

impl Ceiling {
    /// Nothing did harm yet.
    pub(super) fn none() -> Self {
        Self {
            at: f64::INFINITY,
            edge: f64::INFINITY,
            push: PUSH,
            first_push: PUSH,
            margin: 0.0,
            steep: false,
            rate: 0.0,
        }
    }

    /// Is a machine with this rate, as far as can be told, the one that it was found on?
    pub(super) fn is_of(&self, rate: f64) -> bool {
        rate < FASTER * self.rate
    }

    pub(super) fn is_none(&self) -> bool {
        self.at.is_infinite()
    }

    /// How many times as far as else a rate has to wander that this edge is taken for chance: what was found in the same
    /// place again never is.
    pub(super) fn certainty(&self) -> f64 {
        match (self.is_none(), self.first_push < PUSH) {
            (true, _) => 1.0,
            (false, false) => FOUND_ONCE,
            (false, true) => f64::INFINITY,
        }
    }

    /// Is it below an edge beyond which much is lost?
    pub(super) fn is_steep(&self) -> bool {
        self.steep
    }

    /// A budget of `bad` bytes did harm, `steep` if much, one of `good` did not, with this rate, or is as much if none is
    /// known.
    pub(super) fn set(&mut self, good: f64, bad: f64, steep: bool, rate: f64) {
        // One found in a flood is at a rate that is not the machine's.
        let is_near = (bad / self.edge).ln().abs() < NEAR;
        self.rate = if is_near { self.rate.max(rate) } else { rate };
        if (bad / self.edge).ln().abs() >= SAME {
            self.first_push = PUSH;
            self.margin = 0.0;
            self.steep = steep;
        } else if self.push > self.first_push {
            // It was tried beyond the ceiling in between; else this is the same event, still on the way down.
            self.first_push = (self.first_push / 2.0).max(LEAST_PUSH);
            self.margin = if steep { (self.margin + MARGIN).min(MOST_MARGIN) } else { 0.0 };
            self.steep = steep;
        } else {
            self.steep |= steep;
        }
        self.push = self.first_push;
        self.edge = bad;
        self.at = (good * bad).sqrt() * (1.0 - self.margin);
    }

    /// The highest base that stays below it when the budget swings so far to either side, as a part of the base.
    pub(super) fn base(&self, swing: f64) -> f64 {
        self.at / (1.0 + swing)
    }

    /// It is in the way.
    pub(super) fn push(&mut self) {
        self.at *= 1.0 + self.push;
        let growth = if self.first_push < PUSH { KNOWN_GROWTH } else { GROWTH };
        self.push = (growth * self.push).min(MOST_PUSH);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::Ceiling;

    #[test]
    fn a_rate_tells_whether_it_is_the_machine_that_the_edge_was_found_on() {
        let mut ceiling = Ceiling::none();
        assert!(!ceiling.is_of(1.0), "there is none");
        ceiling.set(90.0, 100.0, true, 10.0);
        assert!(ceiling.is_of(10.5) && !ceiling.is_of(12.0));
        ceiling.set(80.0, 90.0, true, 6.0);
        assert!(ceiling.is_of(10.5), "found again in a flood");
        ceiling.set(30.0, 40.0, true, 5.0);
        assert!(!ceiling.is_of(10.0), "of a slower machine");
    }

    /// Times it is in the way until it is where harm was, from just below.
    fn pushes(ceiling: &mut Ceiling, edge: f64) -> u32 {
        ceiling.set(0.9 * edge, edge, false, 1.0);
        let mut count = 0;
        while ceiling.base(0.0) < edge {
            ceiling.push();
            count += 1;
        }
        count
    }

    #[test]
    fn it_lies_between_what_did_harm_and_what_did_none() {
        let mut ceiling = Ceiling::none();
        assert!(ceiling.is_none());
        ceiling.set(90.0, 100.0, false, 1.0);
        assert!(!ceiling.is_none());
        assert!((90.0..100.0).contains(&ceiling.base(0.0)));
        assert!(ceiling.base(0.05) * 1.05 < 100.0);
    }

    #[test]
    fn an_edge_that_stays_is_met_less_often_each_time() {
        let mut ceiling = Ceiling::none();
        let mut before = 0;
        for edge in [100.0, 101.0, 98.0, 104.0] {
            let count = pushes(&mut ceiling, edge);
            assert!(count > before, "{count} after {before}");
            before = count;
        }
        let most = (0..100).map(|_| pushes(&mut ceiling, 100.0)).max();
        assert!(most < Some(30), "{most:?}: it is found out in the end whether it is still there");
    }

    #[test]
    fn it_keeps_further_below_a_steep_edge_each_time_that_is_found() {
        let mut ceiling = Ceiling::none();
        let mut before = f64::INFINITY;
        for _ in 0..4 {
            ceiling.set(90.0, 100.0, true, 1.0);
            assert!(ceiling.base(0.0) < before, "{ceiling:?}");
            before = ceiling.base(0.0);
            ceiling.push();
        }
        for _ in 0..10 {
            ceiling.set(90.0, 100.0, true, 1.0);
            ceiling.push();
        }
        assert!(before > 0.9 * (90.0_f64 * 100.0).sqrt());
        // One that is not steep may be chance.
        ceiling.set(90.0, 100.0, false, 1.0);
        assert!((ceiling.base(0.0) - (90.0_f64 * 100.0).sqrt()).abs() < 1e-9);
    }

    /// On the way down from harm it is met at each step, which is not being found again.
    #[test]
    fn a_descent_is_one_event() {
        let mut ceiling = Ceiling::none();
        let first = pushes(&mut ceiling, 100.0);
        let mut ceiling = Ceiling::none();
        for edge in [116.0, 108.0] {
            ceiling.set(0.9 * edge, edge, false, 1.0);
        }
        assert_eq!(pushes(&mut ceiling, 100.0), first);
    }

    #[test]
    fn an_edge_elsewhere_is_a_new_one() {
        let mut ceiling = Ceiling::none();
        let first = pushes(&mut ceiling, 100.0);
        (0..5).for_each(|_| _ = pushes(&mut ceiling, 100.0));
        assert_eq!(pushes(&mut ceiling, 200.0), first);
    }
}
