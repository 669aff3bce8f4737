//! Startup as in BBR: the base budget doubles until that gains little.

use super::super::Move;
use super::super::measured::{Measured, whole};
use super::Controller;
use super::harm::HARM;
use super::lately::COLLAPSE;

/// Growth of the base budget in startup, until the elasticity falls below [`START_GAIN`].
pub(super) const START: f64 = 2.0;
pub(super) const START_GAIN: f64 = 0.3;
/// A gain below this is measured twice. A gain between the two limits ends startup immediately.
/// There the gain declines gradually, as with many fast drives, and a startup that continues for a
/// second measurement goes too far.
const NEXT_TO_NOTHING: f64 = 0.15;

impl Controller {
    /// Restarts startup. The base budget had shrunk to the demand of the hosts, which is no
    /// evidence about the machine, and is far below their demand now. Where probes are
    /// inconclusive, the base budget moves to the BDP estimate instead.
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

    /// Returns whether the last doubling in startup lost much.
    pub(super) fn started_too_far(&self, measured: &Measured) -> bool {
        let noise = self.search.noise();
        self.starting && self.last.is_some_and(|last| last.lost_with_more(measured, noise))
    }

    /// Continues startup after two measurements that cannot be compared, for example because hosts
    /// connected during one. Only a proven loss ends startup; staying would gain no information.
    pub(super) fn go_on_blindly(&mut self, measured: &Measured, last: &Measured) {
        if last.lost_with_more(measured, self.search.noise()) {
            self.go_on_starting(HARM, measured, last);
        } else {
            self.base *= START;
        }
    }

    /// Ends startup if the last doubling gained little; next to no gain has to show twice.
    pub(super) fn go_on_starting(&mut self, elasticity: f64, measured: &Measured, last: &Measured) {
        if elasticity > START_GAIN {
            self.base *= START;
            self.reason = Move::Gained;
            return;
        }
        // Few commands are measured here, so a short preemption of a core shows, too.
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
