//! The start: the base doubles until that brings little.

use super::super::Move;
use super::super::measured::{Measured, whole};
use super::Controller;
use super::harm::HARM;
use super::lately::COLLAPSE;

/// Growth of the budget at the start, until it brings less than [`START_GAIN`] of its share.
pub(super) const START: f64 = 2.0;
pub(super) const START_GAIN: f64 = 0.3;
/// Less than this is measured twice. What lies between the two ends the start at once: there the gain goes down by and by, as with
/// many fast drives, and a start that goes on because it was looked at twice goes too far.
const NEXT_TO_NOTHING: f64 = 0.15;

impl Controller {
    /// The base came down to what hosts asked for, which says nothing about the machine, and is far below what
    /// they ask for now: it doubles again until that brings little, or goes to what should be enough where swings tell
    /// nothing.
    pub(super) fn start_over(&mut self, measured: Measured) {
        if self.search.is_blind() {
            self.search.hold_anew();
            self.go_to(self.enough(&measured), Move::Gained);
            return;
        }
        self.starting = true;
        self.doubted = None;
        self.best = None;
        self.flooded = 0;
        self.reason = Move::Start;
        self.trend.forget();
        self.last = None;
        self.judge(measured);
    }

    /// At the start, did the budget that was doubled last bring much less?
    pub(super) fn started_too_far(&self, measured: &Measured) -> bool {
        let noise = self.search.noise();
        self.starting && self.last.is_some_and(|last| last.lost_with_more(measured, noise))
    }

    /// At the start, two measurements that cannot be compared, as where hosts came in the midst of one: what is not known
    /// to be harm does not end it, and nothing is found out by staying.
    pub(super) fn go_on_blindly(&mut self, measured: &Measured, last: &Measured) {
        if last.lost_with_more(measured, self.search.noise()) {
            self.go_on_starting(HARM, measured, last);
        } else {
            self.base *= START;
        }
    }

    /// What the doubled base brought ends the start if it is little; next to nothing has to show twice.
    pub(super) fn go_on_starting(&mut self, elasticity: f64, measured: &Measured, last: &Measured) {
        if elasticity > START_GAIN {
            self.base *= START;
            self.reason = Move::Gained;
            return;
        }
        // So few commands are measured here that this shows, too, where a core was away for a moment.
        let base = Some(whole(self.base));
        if elasticity < NEXT_TO_NOTHING && std::mem::replace(&mut self.doubted, base) != base {
            self.last = Some(*last);
            return;
        }
        let has_lost = measured.rate < COLLAPSE * last.rate;
        self.starting = false;
        let enough = if has_lost {
            self.best = Some(*last);
            self.enough(last).min(last.in_flight)
        } else if measured.rate < last.rate {
            self.enough(last)
        } else {
            self.enough(measured)
        };
        self.base = enough.max(self.least);
    }
}
