//! Log lines about the state of the adaptive policy.

use nvmeof_pacing::{AdaptiveState, AdaptiveStatus};

use super::stats::state_words;

/// The state that the log has.
#[derive(Debug, Default)]
pub(crate) struct PacingLog {
    state: AdaptiveState,
}

impl PacingLog {
    /// Logs the state if a budget has come into force or no longer is. `now` is in ns.
    pub(crate) fn update(&mut self, status: Option<AdaptiveStatus>, now: u64) {
        if let Some(line) = status.and_then(|status| self.line(&status, now)) {
            tracing::info!("pacing is {line}");
        }
    }

    /// Returns the line, if there is something to log. Trials are many, and change nothing.
    fn line(&mut self, status: &AdaptiveStatus, now: u64) -> Option<String> {
        if status.state == AdaptiveState::Trial || status.state == self.state {
            return None;
        }
        self.state = status.state;
        Some(state_words(status, now))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_log_has_each_budget_that_comes_and_goes_once() {
        let mut log = PacingLog::default();
        let status = |state| AdaptiveStatus {
            state,
            last_trial: Some(1),
            last_gain_permille: 123,
            ..AdaptiveStatus::default()
        };
        let mut line = |state| log.line(&status(state), 3_000_000_001);
        assert_eq!([line(AdaptiveState::Open), line(AdaptiveState::Trial)], [None, None]);
        assert_eq!(
            line(AdaptiveState::Held).as_deref(),
            Some("held: less in flight gained +12.3 %")
        );
        assert_eq!([line(AdaptiveState::Trial), line(AdaptiveState::Held)], [None, None]);
        assert_eq!(
            line(AdaptiveState::Open).as_deref(),
            Some("open: no overshoot seen, last trial 3 s ago, +12.3 %")
        );
    }
}
