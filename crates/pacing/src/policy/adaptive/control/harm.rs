//! Overshoot detection: more in flight, lower rate.

use super::super::measured::{Measured, whole};
use super::Controller;

/// Elasticity below which a budget overshot.
pub(super) const HARM: f64 = -0.3;
/// It must also exceed this multiple of the noise between measurements of one budget.
const TELLS_HARM: f64 = 2.0;

impl Controller {
    /// Returns whether the mean elasticity since the last move is an overshoot.
    pub(super) fn looks_like_harm(&self) -> bool {
        self.trend.mean() < HARM.min(-self.likely_noise())
    }

    /// Confirms an overshoot. A small one has to show twice around a base budget: an outlier is one
    /// side of two probes, so it may look like an overshoot in both. A large loss is accepted
    /// immediately.
    pub(super) fn confirm_harm(&mut self, measured: &Measured, last: &Measured) -> bool {
        let base = Some(whole(self.base));
        last.lost_with_more(measured, self.search.noise())
            || std::mem::replace(&mut self.suspected, base) == base
    }

    /// Returns the part of a mean elasticity that noise in the rate may explain.
    fn likely_noise(&self) -> f64 {
        let gap = self.trend.gaps / self.trend.count;
        TELLS_HARM * self.search.noise() / (gap * self.trend.count.sqrt())
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::super::Move;
    use super::*;

    const BASE: f64 = 1000.0;

    /// Returns a controller after startup and one probe: `more` is the rate with the larger budget,
    /// relative to 1 with the smaller.
    fn after_a_swing(more: f64) -> (Controller, Measured, Measured) {
        let mut controller = Controller::new(1, 1);
        (controller.starting, controller.base, controller.command) = (false, BASE, 1.0);
        let (less, more) = (Measured::of(0.95 * BASE, 1.0), Measured::of(1.05 * BASE, more));
        see(&mut controller, &more, &less);
        (controller, more, less)
    }

    fn see(controller: &mut Controller, measured: &Measured, last: &Measured) {
        let gap = (measured.in_flight / last.in_flight).ln();
        controller.trend.add((measured.rate / last.rate).ln(), gap);
        controller.decide(measured, last);
    }

    #[test]
    fn harm_by_little_has_to_show_twice() {
        let (mut controller, more, less) = after_a_swing(0.93);
        assert!(controller.ceiling.is_none() && controller.base >= BASE, "{controller:?}");
        see(&mut controller, &more, &less);
        assert!(!controller.ceiling.is_none() && controller.base < BASE, "{controller:?}");
    }

    #[test]
    fn what_was_harm_by_chance_says_nothing_of_another_base() {
        let (mut controller, more, less) = after_a_swing(0.93);
        controller.go_to(1.1 * BASE, Move::Gained);
        see(&mut controller, &more, &less);
        assert!(controller.ceiling.is_none(), "{controller:?}");
    }

    #[test]
    fn much_harm_is_left_at_once() {
        let (controller, ..) = after_a_swing(0.8);
        assert!(!controller.ceiling.is_none() && controller.base < BASE, "{controller:?}");
    }
}
