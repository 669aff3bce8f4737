//! Overshoot detection: more in flight, lower rate.

use super::super::sample::{RateSample, whole};
use super::BudgetController;

/// Elasticity below which a budget overshot.
pub(super) const OVERSHOOT: f64 = -0.3;
/// It must also exceed this multiple of the noise between measurements of one budget.
const OVERSHOOT_CONFIDENCE: f64 = 2.0;

impl BudgetController {
    /// Returns whether the mean elasticity since the last move is an overshoot.
    pub(super) fn is_overshoot(&self) -> bool {
        self.elasticity.mean() < OVERSHOOT.min(-self.likely_noise())
    }

    /// Confirms an overshoot. A small one has to show twice around a base budget: an outlier is one
    /// side of two probes, so it may look like an overshoot in both. A large loss is accepted
    /// immediately.
    pub(super) fn confirm_overshoot(&mut self, sample: &RateSample, last: &RateSample) -> bool {
        let base = Some(whole(self.base));
        last.slower_with_more(sample, self.coarse_search.noise())
            || std::mem::replace(&mut self.suspected, base) == base
    }

    /// Returns the part of a mean elasticity that noise in the rate may explain.
    fn likely_noise(&self) -> f64 {
        let gap = self.elasticity.gaps / self.elasticity.count;
        OVERSHOOT_CONFIDENCE * self.coarse_search.noise() / (gap * self.elasticity.count.sqrt())
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::super::BudgetMove;
    use super::*;

    const BASE: f64 = 1000.0;

    /// Returns a controller after startup and one probe: `more` is the rate with the larger budget,
    /// relative to 1 with the smaller.
    fn after_a_swing(more: f64) -> (BudgetController, RateSample, RateSample) {
        let mut controller = BudgetController::new(1, 1);
        (controller.in_startup, controller.base, controller.command) = (false, BASE, 1.0);
        let (less, more) = (RateSample::of(0.95 * BASE, 1.0), RateSample::of(1.05 * BASE, more));
        observe(&mut controller, &more, &less);
        (controller, more, less)
    }

    fn observe(controller: &mut BudgetController, sample: &RateSample, last: &RateSample) {
        let gap = (sample.in_flight / last.in_flight).ln();
        controller.elasticity.add((sample.rate / last.rate).ln(), gap);
        controller.update_base(sample, last);
    }

    #[test]
    fn harm_by_little_has_to_show_twice() {
        let (mut controller, more, less) = after_a_swing(0.93);
        assert!(controller.ceiling.is_none() && controller.base >= BASE, "{controller:?}");
        observe(&mut controller, &more, &less);
        assert!(!controller.ceiling.is_none() && controller.base < BASE, "{controller:?}");
    }

    #[test]
    fn what_was_harm_by_chance_says_nothing_of_another_base() {
        let (mut controller, more, less) = after_a_swing(0.93);
        controller.set_base(1.1 * BASE, BudgetMove::MoreThroughput);
        observe(&mut controller, &more, &less);
        assert!(controller.ceiling.is_none(), "{controller:?}");
    }

    #[test]
    fn much_harm_is_left_at_once() {
        let (controller, ..) = after_a_swing(0.8);
        assert!(!controller.ceiling.is_none() && controller.base < BASE, "{controller:?}");
    }
}
