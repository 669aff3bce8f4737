//! Preemption reserve: extra commands in flight that cover part of the data
//! [missed](super::preemption) by preempted cores.

/// Largest reserve in commands.
const MOST: f64 = 24.0;
/// Largest increase per measurement.
const RISE: f64 = 8.0;
/// Tolerated fraction of missed commands: the reserve falls by it and rises by the missed commands.
/// It is small, so that the reserve lasts from one long preemption to the next, because these cause
/// the slowest commands.
const MISSED: f64 = 0.0001;

/// After an overshoot, the maximum is this fraction of the reserve in force.
const AFTER_HARM: f64 = 0.5;
/// Growth of that maximum per measurement.
const RECOVERY: f64 = 1.003;

/// Preemption reserve, in commands.
#[derive(Debug)]
pub(super) struct PreemptionReserve {
    commands: f64,
    /// Maximum of the reserve.
    most: f64,
}

impl PreemptionReserve {
    pub(super) fn new() -> Self {
        Self { commands: 0.0, most: MOST }
    }

    pub(super) fn commands(&self) -> f64 {
        self.commands
    }

    /// Updates the reserve after `commands` completed and `missed` more could have. A larger
    /// reserve only helps where data waits for the network.
    pub(super) fn update(&mut self, commands: f64, missed: f64, network_is_busy: bool) {
        let may_be = MISSED * commands;
        let missed = missed.min(if network_is_busy { RISE } else { may_be });
        self.most = (RECOVERY * self.most).min(MOST);
        self.commands = (self.commands + missed - may_be).clamp(0.0, self.most);
    }

    /// Clears the reserve after an overflow of the LLC with `in_force` reserved commands, and
    /// lowers its maximum.
    pub(super) fn back_off(&mut self, in_force: f64) {
        self.most = AFTER_HARM * in_force;
        self.commands = 0.0;
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn the_reserve_follows_what_is_missed_both_ways() {
        const COMMANDS: f64 = 600.0;
        let may_be = MISSED * COMMANDS;
        let mut preemption_reserve = PreemptionReserve::new();
        let mut after = |missed: f64| {
            preemption_reserve.update(COMMANDS, missed, true);
            preemption_reserve.commands()
        };
        assert!(after(0.0).abs() < 1e-9, "nothing missed");
        assert!((after(5.0 + may_be) - 5.0).abs() < 1e-9);
        (0..10).for_each(|_| _ = after(1e9));
        assert!((after(1e9) - MOST).abs() < 1e-9, "bounded");
        assert!(
            (after(may_be) - MOST).abs() < 1e-9,
            "as much as may be missed keeps it where it is"
        );
        (0..200).for_each(|_| _ = after(0.0));
        assert!((after(0.0) - (MOST - 201.0 * may_be)).abs() < 1e-9, "it is given back slowly");
        (0..200).for_each(|_| _ = after(0.0));
        assert!(after(0.0).abs() < 1e-9, "and all of it");
        after(5.0 + may_be);
        preemption_reserve.update(COMMANDS, 5.0, false);
        assert!(
            (preemption_reserve.commands() - 5.0).abs() < 1e-9,
            "more of it would be of no use"
        );
        preemption_reserve.update(COMMANDS, 0.0, false);
        assert!(preemption_reserve.commands() < 5.0 - may_be / 2.0, "nor is what nobody misses");
    }

    #[test]
    fn what_did_harm_is_halved_and_comes_back_slowly() {
        let mut preemption_reserve = PreemptionReserve::new();
        (0..10).for_each(|_| preemption_reserve.update(600.0, 1e9, true));
        preemption_reserve.back_off(20.0);
        assert!(preemption_reserve.commands() <= 0.0);
        (0..10).for_each(|_| preemption_reserve.update(600.0, 1e9, true));
        assert!((10.0..11.0).contains(&preemption_reserve.commands()), "{preemption_reserve:?}");
        (0..1000).for_each(|_| preemption_reserve.update(600.0, 1e9, true));
        assert!((preemption_reserve.commands() - MOST).abs() < 1e-9, "{preemption_reserve:?}");
    }
}
