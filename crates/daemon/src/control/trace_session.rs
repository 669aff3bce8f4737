//! The trace session: one caller traces commands at a time.

use std::time::{Duration, Instant};

/// Time after its planned end at which a trace session is ended anyway.
///
/// By then no caller is left to end it. The caller received the error that the daemon is busy, but
/// the daemon began the session later.
const LATE: Duration = Duration::from_secs(150);

/// The trace session. Only one exists at a time, because reactors support one filter.
#[derive(Debug, Default)]
pub(super) struct TraceSlot {
    /// The current session and its deadline.
    now: Option<(TraceId, Instant)>,
    last: u64,
}

impl TraceSlot {
    /// Begins a session of `seconds`, unless one exists.
    pub(super) fn begin(&mut self, seconds: u32, now: Instant) -> Option<TraceId> {
        if self.now.is_some() {
            return None;
        }
        self.last += 1;
        let session = TraceId(self.last);
        self.now = Some((session, now + Duration::from_secs(seconds.into()) + LATE));
        Some(session)
    }

    pub(super) fn is(&self, session: TraceId) -> bool {
        self.now.is_some_and(|(now, _)| now == session)
    }

    /// Ends this session; returns true if it was the current one.
    pub(super) fn end(&mut self, session: TraceId) -> bool {
        let was = self.is(session);
        if was {
            self.now = None;
        }
        was
    }

    /// Ends an overdue session; returns true if there was one.
    pub(super) fn end_overdue(&mut self, now: Instant) -> bool {
        let overdue = self.now.is_some_and(|(_, until)| now >= until);
        if overdue {
            self.now = None;
        }
        overdue
    }
}

/// ID of a trace session. An old ID cannot end a later session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct TraceId(u64);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_session_that_nobody_ends_is_over_some_time_after_it_should_be() {
        let (mut tracing, start) = (TraceSlot::default(), Instant::now());
        let first = tracing.begin(5, start).unwrap();
        assert!(tracing.begin(5, start).is_none(), "one at a time");
        let due = start + Duration::from_secs(5);
        assert!(!tracing.end_overdue(due + LATE - Duration::from_nanos(1)));
        assert!(tracing.is(first) && tracing.end_overdue(due + LATE));
        assert!(!tracing.end_overdue(due + LATE), "once");
        let second = tracing.begin(1, due).unwrap();
        assert!(!tracing.end(first), "an old name ends nobody else's");
        assert!(tracing.is(second) && tracing.end(second) && !tracing.is(second));
    }
}
