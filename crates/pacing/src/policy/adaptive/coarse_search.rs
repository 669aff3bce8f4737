//! Coarse search by factors, for rates that are too noisy for probes.
//!
//! ```text
//!                two measurements of one budget differ by more than a probe could gain
//!   probing ─────────────────────────────────────────────────────────────────────────▶ holding
//!      ▲                                                                                │   ▲
//!      │ they no longer do, or the rate has changed                       interval ends │   │ done
//!      └────────────────────────────────────────────────────────────────────────────────┤   │
//!                                                                                       ▼   │
//!                                                                                      trying
//! ```
//!
//! On a machine with other work the rate varies by several percent. The budget is then held, which
//! costs nothing. From time to time a budget larger or smaller by a factor is tried, for long
//! enough to be significant. A better budget is kept; a worse one is tried less and less often.

use super::sample::RateSample;

/// Probes are conclusive while two measurements of one budget differ by less than the first value,
/// and inconclusive above the second. Both are logarithms, for the median of many.
const SIGHTED: f64 = 0.013;
const BLIND: f64 = 0.02;
/// Initial noise estimate, factor by which it moves towards the next two measurements, and its
/// bounds.
const NOISE: f64 = 0.01;
const NOISE_STEP: f64 = 1.1;
const NOISE_BOUNDS: (f64, f64) = (0.002, 0.2);
/// Budgets closer than this fraction are the same.
const SAME: f64 = 0.01;
/// Factors of a trial, up or down in turn: the first, and after neither direction was better, the
/// second.
const REACH: [f64; 2] = [2.0, 1.4];
/// Measurements between trials: initial value, growth each time neither direction was better, and
/// maximum.
const INTERVAL: f64 = 4.0;
const RARER: f64 = 1.5;
const MOST_INTERVAL: f64 = 500.0;
/// Largest number of measurements in the mean rate of the held budget.
const MEMORY: f64 = 8.0;
/// The rate has changed if it is off by this multiple of the noise, this many times in a row.
const FAR: f64 = 4.0;
const FAR_IN_A_ROW: u32 = 3;
/// Length of a trial's measurement, as a multiple of a normal one, and the largest number of them
/// per trial.
pub(super) const TRIAL: f64 = 2.0;
const MOST_TRIALS: f64 = 4.0;
/// A difference is significant above this multiple of the noise, upwards and downwards. A trial
/// that stays inconclusive is kept only if it is downwards and not worse.
const CLEAR_UP: f64 = 1.0;
const CLEAR_DOWN: f64 = 0.7;

/// Next action of the search.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum SearchAction {
    /// Hold this base budget.
    Hold(f64),
    /// The tried budget is better, and above or below the held one.
    Keep { upwards: bool },
}

/// Noise of the rate, and the search that runs while the noise is too high.
#[derive(Debug)]
pub(super) struct CoarseSearch {
    noise: f64,
    /// The last budget and rate of each side of the probe.
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

/// A trial: another budget than that of `hold`, which was `from`, is in force.
#[derive(Debug, Clone, Copy)]
struct Trial {
    hold: Hold,
    from: f64,
    /// Sum of its gains, in logarithms, and number of measurements.
    gains: f64,
    count: f64,
}

impl Trial {
    fn new(hold: Hold, from: f64) -> Self {
        Self { hold, from, gains: 0.0, count: 0.0 }
    }

    /// Returns whether the trial is better: a larger budget has to gain, a smaller one only must
    /// not lose. `None` while inconclusive.
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

/// The held budget.
#[derive(Debug, Clone, Copy)]
struct Hold {
    /// Mean rate, and number of measurements in it.
    rate: f64,
    count: f64,
    /// Measurements since the last trial, and from one trial to the next.
    since: f64,
    interval: f64,
    /// Consecutive trials that were not better.
    failed: u32,
    /// Consecutive measurements far from the mean.
    far: u32,
}

impl Hold {
    fn new() -> Self {
        Self { rate: 0.0, count: 0.0, since: 0.0, interval: INTERVAL, failed: 0, far: 0 }
    }

    fn add(&mut self, rate: f64, noise: f64) {
        self.since += 1.0;
        // An outlier must not change the mean that judges the next measurement: it may have been a
        // pause of the machine.
        if self.count > 1.0 && (rate / self.rate).ln().abs() > FAR * noise {
            self.far += 1;
            return;
        }
        self.far = 0;
        self.count = (self.count + 1.0).min(MEMORY);
        self.rate += (rate - self.rate) / self.count;
    }

    /// Returns the factor of the next trial.
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

    /// Holds the tried budget.
    fn of(trial: &Trial) -> Self {
        let rate = trial.hold.rate * (trial.gains / trial.count).exp();
        Self { rate, count: (TRIAL * trial.count).min(MEMORY), ..Self::new() }
    }
}

impl CoarseSearch {
    pub(super) fn new() -> Self {
        Self { noise: NOISE, seen: [None; 2], state: State::Swinging, upwards: true }
    }

    /// Returns the usual difference of two measurements of one budget, in logarithms.
    pub(super) fn noise(&self) -> f64 {
        self.noise
    }

    /// Returns whether the budget is held, except for trials.
    pub(super) fn is_noise_limited(&self) -> bool {
        !matches!(self.state, State::Swinging)
    }

    pub(super) fn is_trying(&self) -> bool {
        matches!(self.state, State::Trying(_))
    }

    /// Adds a measurement of the upper or lower side of a probe. `certainty` scales the noise
    /// limit: near an edge the rate varies, too.
    pub(super) fn observe(&mut self, sample: &RateSample, probing_up: bool, certainty: f64) {
        if self.is_trying() {
            return;
        }
        let before = self.seen[usize::from(probing_up)].replace((sample.budget, sample.rate));
        if let Some((_, rate)) =
            before.filter(|(other, _)| (sample.budget / other).ln().abs() < SAME)
        {
            let differs = (sample.rate / rate).ln().abs();
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

    /// Discards the state: it is no evidence for the next budget.
    pub(super) fn probe_amplitude(&mut self) {
        self.state = State::Swinging;
    }

    /// Restarts the hold because the budget moves elsewhere: previous trials were for another
    /// machine.
    pub(super) fn hold_again(&mut self) {
        if self.is_noise_limited() {
            self.state = State::Holding(Hold::new());
        }
    }

    /// Returns the next action after a measurement while the budget is held. No budget below
    /// `least` is tried.
    pub(super) fn step(&mut self, sample: &RateSample, base: f64, least: f64) -> SearchAction {
        match self.state {
            State::Swinging => SearchAction::Hold(base),
            State::Trying(mut trial) => {
                trial.gains += (sample.rate / trial.hold.rate).ln();
                trial.count += 1.0;
                let upwards = base > trial.from;
                match trial.is_better(upwards, self.noise) {
                    None => {
                        self.state = State::Trying(trial);
                        SearchAction::Hold(base)
                    }
                    Some(true) => {
                        self.state = State::Holding(Hold::of(&trial));
                        SearchAction::Keep { upwards }
                    }
                    Some(false) => {
                        self.upwards = !upwards;
                        self.state = State::Holding(trial.hold.failed());
                        SearchAction::Hold(trial.from)
                    }
                }
            }
            State::Holding(mut hold) => {
                hold.add(sample.rate, self.noise);
                if hold.far >= FAR_IN_A_ROW {
                    self.noise = NOISE;
                    self.probe_amplitude();
                    return SearchAction::Hold(base);
                }
                if hold.since < hold.interval {
                    self.state = State::Holding(hold);
                    return SearchAction::Hold(base);
                }
                let less = base / hold.reach();
                let next = if self.upwards || less < least { base * hold.reach() } else { less };
                self.state = State::Trying(Trial::new(hold, base));
                SearchAction::Hold(next)
            }
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use nvmeof_random::SplitMix64;

    use super::*;

    /// Noise of the test machine, as a fraction to either side.
    const WANDERS: f64 = 0.04;

    /// Searches from `base`, with random noise; returns the final base budget.
    fn ends_at(base: f64, seed: u64, rate: impl Fn(f64) -> f64) -> f64 {
        let mut coarse_search = CoarseSearch::new();
        let (mut base, mut random) = (base, SplitMix64::new(seed));
        for turn in 0..1000 {
            let around = if coarse_search.is_trying() { WANDERS / 2.0 } else { WANDERS };
            let noise = around * (2.0 * random.unit() - 1.0);
            let sample = RateSample::of(base, rate(base) * (1.0 + noise));
            coarse_search.observe(&sample, turn % 2 == 0, 1.0);
            if coarse_search.is_noise_limited()
                && let SearchAction::Hold(next) = coarse_search.step(&sample, base, 2.0)
            {
                base = next;
            }
        }
        match coarse_search.state {
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
        // A larger budget that gains nothing is left immediately, and so is a smaller one that
        // loses much.
        assert_eq!(decided(true, -0.001), Some((false, 1)));
        assert_eq!(decided(false, -0.03), Some((false, 1)));
        assert_eq!(decided(true, 0.03), Some((true, 1)));
        assert_eq!(decided(false, 0.03), Some((true, 1)));
        // A small difference is inconclusive.
        assert_eq!(decided(true, 0.015), Some((true, 2)));
        assert_eq!(decided(true, 0.001), Some((false, 4)));
        assert_eq!(decided(false, 0.001), Some((true, 4)));
        assert_eq!(decided(false, -0.001), Some((false, 4)));
    }

    #[test]
    fn what_is_found_is_held_and_trials_become_rare() {
        let mut coarse_search = CoarseSearch::new();
        let (mut base, mut trials) = (10.0, Vec::new());
        for turn in 0..2000 {
            // The peak is at 10; two consecutive measurements differ by more than the limit.
            let rate =
                if base == 10.0 { 100.0 } else { 70.0 } * if turn % 4 < 2 { 1.0 } else { 1.04 };
            let sample = RateSample::of(base, rate);
            coarse_search.observe(&sample, turn % 2 == 0, 1.0);
            if coarse_search.is_noise_limited() {
                assert_ne!(
                    coarse_search.step(&sample, base, 2.0),
                    SearchAction::Keep { upwards: base > 10.0 }
                );
                base = if coarse_search.is_trying() {
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
            let mut coarse_search = CoarseSearch::new();
            let mut see = |turn: u32, scale: f64| {
                let base = if coarse_search.is_trying() { 20.0 } else { 10.0 };
                let rate = scale * if turn % 4 < 2 { 100.0 } else { 104.0 };
                let sample = RateSample::of(base, if base == 10.0 { rate } else { 0.7 * rate });
                coarse_search.observe(&sample, turn.is_multiple_of(2), 1.0);
                if coarse_search.is_noise_limited() {
                    coarse_search.step(&sample, base, 2.0);
                }
                coarse_search.is_noise_limited()
            };
            assert!(!see(0, 1.0) && (1..20).all(|turn| see(turn, 1.0) || turn < 12));
            assert!((20..30).any(|turn| !see(turn, scale)), "{coarse_search:?}");
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
        for (certainty, is_noise_limited) in [(1.0, true), (f64::INFINITY, false)] {
            let mut coarse_search = CoarseSearch::new();
            for turn in 0..100 {
                let sample = RateSample::of(10.0, if turn % 4 < 2 { 100.0 } else { 110.0 });
                coarse_search.observe(&sample, turn % 2 == 0, certainty);
            }
            assert_eq!(coarse_search.is_noise_limited(), is_noise_limited, "{coarse_search:?}");
        }
    }
}
