//! Checker that no permit is lost or issued twice.

use super::{Checker, SimEvent, slot};
use crate::scenario::Nanos;

/// Tracks the permit of every command.
#[derive(Debug, Default)]
pub struct Permits {
    stages: Vec<Stage>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum Stage {
    #[default]
    Away,
    Waiting,
    Started,
}

impl Checker for Permits {
    fn see(&mut self, seen: SimEvent, _now: Nanos) -> Result<(), String> {
        let (command, from, to, what) = match seen {
            SimEvent::Waits { command, .. } => (command, Stage::Away, Stage::Waiting, "waits"),
            SimEvent::Starts { command, .. } => (command, Stage::Waiting, Stage::Started, "starts"),
            SimEvent::Released { command } => (command, Stage::Started, Stage::Away, "is released"),
            _ => return Ok(()),
        };
        let stage = slot(&mut self.stages, command);
        let was = std::mem::replace(stage, to);
        if was == from {
            Ok(())
        } else {
            Err(format!("command {command} {what}, but it was {was:?}, not {from:?}"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn waits(command: u32) -> SimEvent {
        SimEvent::Waits { command, core: 0, flow: 0, bytes: 1 }
    }

    fn starts(command: u32) -> SimEvent {
        SimEvent::Starts { command, core: 0, budget: None }
    }

    #[test]
    fn a_sound_life_passes() {
        let mut permits = Permits::default();
        for _ in 0..2 {
            for seen in [waits(3), starts(3), SimEvent::Released { command: 3 }] {
                assert_eq!(permits.see(seen, 0), Ok(()));
            }
        }
    }

    #[test]
    fn a_machine_that_gives_a_permit_twice_is_caught() {
        let mut permits = Permits::default();
        assert!(permits.see(waits(0), 0).is_ok());
        assert!(permits.see(starts(0), 0).is_ok());
        assert!(permits.see(starts(0), 0).is_err());
    }

    #[test]
    fn a_machine_that_loses_a_permit_is_caught_when_the_number_comes_again() {
        let mut permits = Permits::default();
        assert!(permits.see(waits(0), 0).is_ok());
        assert!(permits.see(starts(0), 0).is_ok());
        assert!(permits.see(waits(0), 0).is_err());
    }

    #[test]
    fn a_permit_that_goes_back_twice_is_caught() {
        let mut permits = Permits::default();
        for seen in [waits(0), starts(0), SimEvent::Released { command: 0 }] {
            assert!(permits.see(seen, 0).is_ok());
        }
        assert!(permits.see(SimEvent::Released { command: 0 }, 0).is_err());
    }
}
