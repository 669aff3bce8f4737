//! Startup as in BBR: the base budget doubles until that gains little.

use super::super::BudgetMove;
use super::super::sample::{RateSample, whole};
use super::BudgetController;
use super::overshoot::OVERSHOOT;
use super::regime::COLLAPSE;

/// Growth of the base budget in startup, until the elasticity falls below [`START_GAIN`].
pub(super) const START: f64 = 2.0;
pub(super) const START_GAIN: f64 = 0.3;
/// A gain below this is measured twice. A gain between the two limits ends startup immediately.
/// There the gain declines gradually, as with many fast drives, and a startup that continues for a
/// second measurement goes too far.
const NEXT_TO_NOTHING: f64 = 0.15;

impl BudgetController {
    /// Restarts startup. The base budget had shrunk to the demand of the hosts, which is no
    /// evidence about the machine, and is far below their demand now. Where probes are
    /// inconclusive, the base budget moves to the BDP estimate instead.
    pub(super) fn restart_startup(&mut self, sample: RateSample) {
        if self.coarse_search.is_noise_limited() {
            self.coarse_search.hold_again();
            self.set_base(self.bdp_estimate(&sample), BudgetMove::MoreThroughput);
            return;
        }
        self.in_startup = true;
        self.suspect_base = None;
        self.peak = None;
        self.standing_queue_streak = 0;
        self.reason = BudgetMove::Startup;
        self.elasticity.forget();
        self.last = None;
        self.evaluate_probe(sample);
    }

    /// Returns whether the last doubling in startup lost much.
    pub(super) fn started_too_far(&self, sample: &RateSample) -> bool {
        let noise = self.coarse_search.noise();
        self.in_startup && self.last.is_some_and(|last| last.slower_with_more(sample, noise))
    }

    /// Continues startup after two measurements that cannot be compared, for example because hosts
    /// connected during one. Only a proven loss ends startup; staying would gain no information.
    pub(super) fn continue_startup_unmeasured(&mut self, sample: &RateSample, last: &RateSample) {
        if last.slower_with_more(sample, self.coarse_search.noise()) {
            self.continue_startup(OVERSHOOT, sample, last);
        } else {
            self.base *= START;
        }
    }

    /// Ends startup if the last doubling gained little; next to no gain has to show twice.
    pub(super) fn continue_startup(
        &mut self,
        elasticity: f64,
        sample: &RateSample,
        last: &RateSample,
    ) {
        if elasticity > START_GAIN {
            self.base *= START;
            self.reason = BudgetMove::MoreThroughput;
            return;
        }
        // Few commands are measured here, so a short preemption of a core shows, too.
        let base = Some(whole(self.base));
        if elasticity < NEXT_TO_NOTHING && std::mem::replace(&mut self.suspect_base, base) != base {
            self.last = Some(*last);
            return;
        }
        let has_lost = sample.rate < COLLAPSE * last.rate;
        self.in_startup = false;
        let bdp_estimate = if has_lost {
            self.peak = Some(*last);
            self.bdp_estimate(last).min(last.in_flight)
        } else if sample.rate < last.rate {
            self.bdp_estimate(last)
        } else {
            self.bdp_estimate(sample)
        };
        self.base = bdp_estimate.max(self.least);
    }
}
