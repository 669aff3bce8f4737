//! A search by factors, for where swings tell nothing.
//!
//! ```text
//!                  two measurements of one budget differ by more than a swing could bring
//!   swinging ──────────────────────────────────────────────────────────────────────────────▶ holding
//!      ▲                                                                                      │   ▲
//!      │ they do not any more, or the rate became another one                      long enough │   │ compared
//!      └──────────────────────────────────────────────────────────────────────────────────────┤   │
//!                                                                                              ▼   │
//!                                                                                             trying
//! ```
//!
//! On a machine that does other things beside, the rate wanders by several percent by itself. The budget then stands
//! still, which costs nothing, and now and then one is tried that is larger or smaller by a factor, for long enough to
//! tell. What is better is kept; what is not is tried ever more rarely.

use super::measured::Measured;

/// Two measurements of the same budget that differ by less say that swings tell, and by more that they do not; in
/// logarithms, in the middle of many.
const SIGHTED: f64 = 0.013;
const BLIND: f64 = 0.02;
/// What that is taken to be at first, by which factor it moves towards the next two, and its bounds.
const NOISE: f64 = 0.01;
const NOISE_STEP: f64 = 1.1;
const NOISE_BOUNDS: (f64, f64) = (0.002, 0.2);
/// Budgets no further apart than this part are the same.
const SAME: f64 = 0.01;
/// Budgets are tried that are larger or smaller by the first factor, and, when neither was better, by the second, in turn.
const REACH: [f64; 2] = [2.0, 1.4];
/// Measurements from one trial to the next: at first, by which factor more each time that neither was better, and at
/// most.
const INTERVAL: f64 = 4.0;
const RARER: f64 = 1.5;
const MOST_INTERVAL: f64 = 500.0;
/// Measurements that the rate of the budget that is held is the mean of, at most.
const MEMORY: f64 = 8.0;
/// The rate became another one if it is off by so many times the noise, so many times in a row.
const FAR: f64 = 4.0;
const FAR_IN_A_ROW: u32 = 3;
/// A measurement of a trial is as long as so many others; a trial has at most so many.
pub(super) const TRIAL: f64 = 2.0;
const MOST_TRIALS: f64 = 4.0;
/// What is better by so many times the noise, or worse where that has to be told, is so clearly. A trial that stays
/// unclear to its end is kept only if it is downwards and not worse.
const CLEAR_UP: f64 = 1.0;
const CLEAR_DOWN: f64 = 0.7;

/// What to do next.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Step {
    /// Hold this base.
    Hold(f64),
    /// What was tried is better, and it is more or less than what was held.
    Keep { upwards: bool },
}

/// How far the rate wanders by itself, and what is done where that is too far.
#[derive(Debug)]
pub(super) struct Search {
    noise: f64,
    /// The last budget and rate of either side of the swing.
    seen: [Option<(f64, f64)>; 2],
    state: State,
    /// The next trial is upwards.
    upwards: bool,
}

#[derive(Debug, Clone, Copy)]
enum State {
    Swinging,
    Holding(Hold),
    Trying(Trial),
}

/// Another budget than that of `hold`, which was `from`, is in force.
#[derive(Debug, Clone, Copy)]
struct Trial {
    hold: Hold,
    from: f64,
    /// The sum of what it gained, in logarithms, in so many measurements.
    gains: f64,
    count: f64,
}

impl Trial {
    fn new(hold: Hold, from: f64) -> Self {
        Self { hold, from, gains: 0.0, count: 0.0 }
    }

    /// Is it better? More in flight has to gain, less only has to lose nothing. `None` while that is not clear.
    fn is_better(&self, upwards: bool, noise: f64) -> Option<bool> {
        let gain = self.gains / self.count;
        let doubt = noise / self.count.sqrt();
        let (least, clear) = if upwards {
            (0.0, CLEAR_UP * doubt)
        } else {
            (-CLEAR_DOWN * doubt, CLEAR_DOWN * doubt)
        };
        match gain {
            _ if gain > clear => Some(true),
            _ if gain <= least => Some(false),
            _ if self.count < MOST_TRIALS => None,
            _ => Some(!upwards && gain > 0.0),
        }
    }
}

/// The budget stands still.
#[derive(Debug, Clone, Copy)]
struct Hold {
    /// The mean rate, and of how many measurements.
    rate: f64,
    count: f64,
    /// Measurements since the last trial, and until the next.
    since: f64,
    interval: f64,
    /// Trials in a row that were not better.
    failed: u32,
    /// Measurements in a row that were far from the mean.
    far: u32,
}

impl Hold {
    fn new() -> Self {
        Self { rate: 0.0, count: 0.0, since: 0.0, interval: INTERVAL, failed: 0, far: 0 }
    }

    fn add(&mut self, rate: f64, noise: f64) {
        self.since += 1.0;
        // What is far off must not move the mean by which the next is judged: it may have been a pause of the machine.
        if self.count > 1.0 && (rate / self.rate).ln().abs() > FAR * noise {
            self.far += 1;
            return;
        }
        self.far = 0;
        self.count = (self.count + 1.0).min(MEMORY);
        self.rate += (rate - self.rate) / self.count;
    }

    /// The factor of the next trial.
    fn reach(&self) -> f64 {
        REACH[usize::from(self.failed / 2 % 2 == 1)]
    }

    fn failed(mut self) -> Self {
        self.since = 0.0;
        self.failed += 1;
        if self.failed.is_multiple_of(2) {
            self.interval = (RARER * self.interval).min(MOST_INTERVAL);
        }
        self
    }

    /// Holds what was tried.
    fn of(trial: &Trial) -> Self {
        let rate = trial.hold.rate * (trial.gains / trial.count).exp();
        Self { rate, count: (TRIAL * trial.count).min(MEMORY), ..Self::new() }
    }
}

impl Search {
    pub(super) fn new() -> Self {
        Self { noise: NOISE, seen: [None; 2], state: State::Swinging, upwards: true }
    }

    /// By how much two measurements of the same budget differ, in logarithms.
    pub(super) fn noise(&self) -> f64 {
        self.noise
    }

    /// The budget stands still, but for trials.
    pub(super) fn is_blind(&self) -> bool {
        !matches!(self.state, State::Swinging)
    }

    pub(super) fn is_trying(&self) -> bool {
        matches!(self.state, State::Trying(_))
    }

    /// Takes in a measurement on the high side of the swing or on the low one. The rate has to wander `certainty` times as
    /// far as else to be taken for noise: near an edge it does so, too.
    pub(super) fn see(&mut self, measured: &Measured, high: bool, certainty: f64) {
        if self.is_trying() {
            return;
        }
        let before = self.seen[usize::from(high)].replace((measured.budget, measured.rate));
        if let Some((_, rate)) =
            before.filter(|(other, _)| (measured.budget / other).ln().abs() < SAME)
        {
            let differs = (measured.rate / rate).ln().abs();
            self.noise *= if differs > self.noise { NOISE_STEP } else { 1.0 / NOISE_STEP };
            self.noise = self.noise.clamp(NOISE_BOUNDS.0, NOISE_BOUNDS.1);
        }
        match &self.state {
            State::Swinging if self.noise > certainty * BLIND => {
                self.state = State::Holding(Hold::new());
            }
            State::Holding(_) if self.noise < SIGHTED => self.state = State::Swinging,
            _ => {}
        }
    }

    /// What is known of this budget says nothing about the next.
    pub(super) fn swing(&mut self) {
        self.state = State::Swinging;
    }

    /// The budget goes elsewhere: what was tried, and what was held, was of another machine.
    pub(super) fn hold_anew(&mut self) {
        if self.is_blind() {
            self.state = State::Holding(Hold::new());
        }
    }

    /// After a measurement while blind: what next. No budget below `least` is tried.
    pub(super) fn step(&mut self, measured: &Measured, base: f64, least: f64) -> Step {
        match self.state {
            State::Swinging => Step::Hold(base),
            State::Trying(mut trial) => {
                trial.gains += (measured.rate / trial.hold.rate).ln();
                trial.count += 1.0;
                let upwards = base > trial.from;
                match trial.is_better(upwards, self.noise) {
                    None => {
                        self.state = State::Trying(trial);
                        Step::Hold(base)
                    }
                    Some(true) => {
                        self.state = State::Holding(Hold::of(&trial));
                        Step::Keep { upwards }
                    }
                    Some(false) => {
                        self.upwards = !upwards;
                        self.state = State::Holding(trial.hold.failed());
                        Step::Hold(trial.from)
                    }
                }
            }
            State::Holding(mut hold) => {
                hold.add(measured.rate, self.noise);
                if hold.far >= FAR_IN_A_ROW {
                    self.noise = NOISE;
                    self.swing();
                    return Step::Hold(base);
                }
                if hold.since < hold.interval {
                    self.state = State::Holding(hold);
                    return Step::Hold(base);
                }
                let less = base / hold.reach();
                let next = if self.upwards || less < least { base * hold.reach() } else { less };
                self.state = State::Trying(Trial::new(hold, base));
                Step::Hold(next)
            }
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// Rates of a machine that wanders by this part to either side.
    const WANDERS: f64 = 0.04;

    /// Searches from `base`, with noise that comes and goes; yields where it ends up.
    fn ends_at(base: f64, seed: u64, rate: impl Fn(f64) -> f64) -> f64 {
        let mut search = Search::new();
        let (mut base, mut state) = (base, seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
        for turn in 0..1000 {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            let chance = f64::from((state >> 40) as u32) / f64::from(1 << 24);
            let around = if search.is_trying() { WANDERS / 2.0 } else { WANDERS };
            let measured = Measured::of(base, rate(base) * (1.0 + around * (2.0 * chance - 1.0)));
            search.see(&measured, turn % 2 == 0, 1.0);
            if search.is_blind()
                && let Step::Hold(next) = search.step(&measured, base, 2.0)
            {
                base = next;
            }
        }
        match search.state {
            State::Trying(trial) => trial.from,
            _ => base,
        }
    }

    #[test]
    fn it_grows_to_where_most_goes_through() {
        for seed in 0..32 {
            let end = ends_at(10.0, seed, |base| base.min(90.0));
            assert!(end > 70.0, "seed {seed}: {end}");
        }
    }

    #[test]
    fn it_comes_down_to_where_more_goes_through() {
        for seed in 0..32 {
            let end = ends_at(64.0, seed, |base| if base < 10.0 { 130.0 } else { 100.0 });
            assert!(end < 10.0, "seed {seed}: {end}");
        }
    }

    #[test]
    fn a_trial_lasts_until_it_is_clear() {
        let hold = Hold { rate: 100.0, count: 8.0, ..Hold::new() };
        let decided = |upwards: bool, gain: f64| {
            let mut trial = Trial::new(hold, 10.0);
            (1..10).find_map(|turn| {
                trial.gains += gain;
                trial.count += 1.0;
                trial.is_better(upwards, 0.02).map(|is_better| (is_better, turn))
            })
        };
        // More in flight that gains nothing is left at once, and so is less that loses much.
        assert_eq!(decided(true, -0.001), Some((false, 1)));
        assert_eq!(decided(false, -0.03), Some((false, 1)));
        assert_eq!(decided(true, 0.03), Some((true, 1)));
        assert_eq!(decided(false, 0.03), Some((true, 1)));
        // A little tells little.
        assert_eq!(decided(true, 0.015), Some((true, 2)));
        assert_eq!(decided(true, 0.001), Some((false, 4)));
        assert_eq!(decided(false, 0.001), Some((true, 4)));
        assert_eq!(decided(false, -0.001), Some((false, 4)));
    }

    #[test]
    fn what_is_found_is_held_and_trials_become_rare() {
        let mut search = Search::new();
        let (mut base, mut trials) = (10.0, Vec::new());
        for turn in 0..2000 {
            // The peak is at 10; two in turn differ by more than is clear.
            let rate =
                if base == 10.0 { 100.0 } else { 70.0 } * if turn % 4 < 2 { 1.0 } else { 1.04 };
            let measured = Measured::of(base, rate);
            search.see(&measured, turn % 2 == 0, 1.0);
            if search.is_blind() {
                assert_ne!(search.step(&measured, base, 2.0), Step::Keep { upwards: base > 10.0 });
                base = if search.is_trying() {
                    trials.push(turn);
                    20.0
                } else {
                    10.0
                };
            }
        }
        assert!((4..40).contains(&trials.len()), "{trials:?}");
        let gaps: Vec<i32> = trials.windows(2).map(|pair| pair[1] - pair[0]).collect();
        assert!(gaps.is_sorted(), "{gaps:?}");
    }

    #[test]
    fn another_rate_ends_it() {
        for scale in [0.5, 2.0] {
            let mut search = Search::new();
            let mut see = |turn: u32, scale: f64| {
                let base = if search.is_trying() { 20.0 } else { 10.0 };
                let rate = scale * if turn % 4 < 2 { 100.0 } else { 104.0 };
                let measured = Measured::of(base, if base == 10.0 { rate } else { 0.7 * rate });
                search.see(&measured, turn.is_multiple_of(2), 1.0);
                if search.is_blind() {
                    search.step(&measured, base, 2.0);
                }
                search.is_blind()
            };
            assert!(!see(0, 1.0) && (1..20).all(|turn| see(turn, 1.0) || turn < 12));
            assert!((20..30).any(|turn| !see(turn, scale)), "{search:?}");
        }
    }

    #[test]
    fn a_machine_that_paused_is_still_the_same() {
        for count in 2..12 {
            let mut hold = Hold::new();
            (0..count).for_each(|_| hold.add(100.0, 0.02));
            hold.add(1.0, 0.02);
            assert_eq!(hold.far, 1);
            hold.add(100.0, 0.02);
            assert_eq!((hold.far, hold.rate), (0, 100.0), "after {count}");
        }
    }

    #[test]
    fn an_edge_that_is_known_is_not_taken_for_noise() {
        for (certainty, is_blind) in [(1.0, true), (f64::INFINITY, false)] {
            let mut search = Search::new();
            for turn in 0..100 {
                let measured = Measured::of(10.0, if turn % 4 < 2 { 100.0 } else { 110.0 });
                search.see(&measured, turn % 2 == 0, certainty);
            }
            assert_eq!(search.is_blind(), is_blind, "{search:?}");
        }
    }
}
