//! Checker that every command is answered once, after its start, and none appears without being
//! issued.

use super::{Checker, SimEvent, slot};
use crate::scenario::Nanos;

/// Tracks every command from its host and back.
#[derive(Debug, Default)]
pub struct Conservation {
    issued: Vec<Option<bool>>,
}

impl Checker for Conservation {
    fn see(&mut self, seen: SimEvent, _now: Nanos) -> Result<(), String> {
        match seen {
            SimEvent::Issued { command } => match slot(&mut self.issued, command).replace(false) {
                None => Ok(()),
                Some(_) => Err(format!("command {command} is issued before its answer came")),
            },
            SimEvent::Starts { command, .. } => match slot(&mut self.issued, command) {
                Some(started) => {
                    *started = true;
                    Ok(())
                }
                None => Err(format!("command {command} starts but no host issued it")),
            },
            SimEvent::Answered { command } => match slot(&mut self.issued, command).take() {
                Some(true) => Ok(()),
                Some(false) => Err(format!("command {command} is answered without having started")),
                None => Err(format!("command {command} is answered but no host waits for it")),
            },
            SimEvent::Waits { .. } | SimEvent::Released { .. } => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ISSUED: SimEvent = SimEvent::Issued { command: 1 };
    const STARTS: SimEvent = SimEvent::Starts { command: 1, core: 0, budget: None };
    const ANSWERED: SimEvent = SimEvent::Answered { command: 1 };

    fn last_of(life: &[SimEvent]) -> Result<(), String> {
        let mut checker = Conservation::default();
        life.iter().map(|seen| checker.see(*seen, 0)).last().unwrap()
    }

    #[test]
    fn a_sound_life_passes() {
        assert_eq!(last_of(&[ISSUED, STARTS, ANSWERED, ISSUED, STARTS, ANSWERED]), Ok(()));
    }

    #[test]
    fn a_machine_that_loses_or_invents_commands_is_caught() {
        assert!(last_of(&[ISSUED, STARTS, ANSWERED, ANSWERED]).is_err());
        assert!(last_of(&[ISSUED, ANSWERED]).is_err());
        assert!(last_of(&[STARTS]).is_err());
        assert!(last_of(&[ISSUED, ISSUED]).is_err());
    }
}
