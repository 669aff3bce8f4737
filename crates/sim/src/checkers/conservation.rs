//! Checker that every command is answered once, after its start, and none appears without being
//! issued.

use super::{Checker, Seen, slot};
use crate::scenario::Nanos;

/// Tracks every command from its host and back.
#[derive(Debug, Default)]
pub struct Conservation {
    issued: Vec<Option<bool>>,
}

impl Checker for Conservation {
    fn see(&mut self, seen: Seen, _now: Nanos) -> Result<(), String> {
        match seen {
            Seen::Issued { command } => match slot(&mut self.issued, command).replace(false) {
                None => Ok(()),
                Some(_) => Err(format!("command {command} is issued before its answer came")),
            },
            Seen::Starts { command, .. } => match slot(&mut self.issued, command) {
                Some(started) => {
                    *started = true;
                    Ok(())
                }
                None => Err(format!("command {command} starts but no host issued it")),
            },
            Seen::Answered { command } => match slot(&mut self.issued, command).take() {
                Some(true) => Ok(()),
                Some(false) => Err(format!("command {command} is answered without having started")),
                None => Err(format!("command {command} is answered but no host waits for it")),
            },
            Seen::Waits { .. } | Seen::Released { .. } => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ISSUED: Seen = Seen::Issued { command: 1 };
    const STARTS: Seen = Seen::Starts { command: 1, core: 0, budget: None };
    const ANSWERED: Seen = Seen::Answered { command: 1 };

    fn last_of(life: &[Seen]) -> Result<(), String> {
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
