//! Rate limits and think times of a job.

use std::time::Duration;

use nvmeof_initiator::{Nanos, nanos};

use crate::units::RateLimit;

/// Think time: the interval and length of a job's pauses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ThinkTime {
    /// I/Os before a pause.
    pub(crate) ios: u32,
    /// Length of a pause, from the end of the last I/O before it.
    pub(crate) time: Duration,
}

/// Rate limiter of a job: the state of its rates and pauses.
#[derive(Debug)]
pub(crate) struct RateLimiter {
    limits: Vec<SpacedLimit>,
    /// For reads alone, and for writes alone, in a load that has both.
    reads: Vec<SpacedLimit>,
    writes: Vec<SpacedLimit>,
    think: Option<ThinkTime>,
    /// I/Os since the last pause.
    issued: u32,
    /// End of the current pause.
    until: Option<Nanos>,
}

/// Decision whether one more I/O may start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RateDecision {
    Now(AllowedKinds),
    /// Not before this time.
    At(Nanos),
    /// After all I/Os in flight have completed.
    WhenIdle,
}

/// The I/Os that may start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AllowedKinds {
    All,
    Reads,
    Writes,
}

/// Rates of a job; all of them apply.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct JobRates {
    /// For all I/Os.
    pub(crate) all: Vec<RateLimit>,
    /// For reads alone, and for writes alone: only in a load that has both.
    pub(crate) reads: Vec<RateLimit>,
    pub(crate) writes: Vec<RateLimit>,
}

impl RateLimiter {
    /// `rates` are those of this job, from `origin` on.
    ///
    /// After a pause, the job may catch up on `streams` I/Os of about `bs` bytes, but at least on
    /// 8.
    pub(crate) fn new(
        rates: &JobRates,
        think: Option<ThinkTime>,
        origin: Nanos,
        streams: usize,
        bs: u32,
    ) -> Self {
        let limits = |rates: &[RateLimit]| -> Vec<SpacedLimit> {
            rates.iter().map(|rate| SpacedLimit::new(*rate, origin, streams, bs)).collect()
        };
        let [limits, reads, writes] =
            [&rates.all, &rates.reads, &rates.writes].map(|of| limits(of));
        Self { limits, reads, writes, think, issued: 0, until: None }
    }

    /// Returns true if it always returns [`RateDecision::Now`].
    pub(crate) fn is_free(&self) -> bool {
        let is_limited = [&self.limits, &self.reads, &self.writes].iter().any(|of| !of.is_empty());
        !is_limited && self.think.is_none()
    }

    /// Decides whether one more I/O may start `now`, with `in_flight` I/Os in flight.
    pub(crate) fn look(&mut self, now: Nanos, in_flight: u32) -> RateDecision {
        if let Some(think) = self.think.filter(|think| self.issued >= think.ios) {
            if in_flight > 0 {
                return RateDecision::WhenIdle;
            }
            let until = *self.until.get_or_insert(now.saturating_add(nanos(think.time)));
            if now < until {
                return RateDecision::At(until);
            }
            (self.issued, self.until) = (0, None);
        }
        if let Some(at) = wait(&mut self.limits, now) {
            return RateDecision::At(at);
        }
        match (wait(&mut self.reads, now), wait(&mut self.writes, now)) {
            (None, None) => RateDecision::Now(AllowedKinds::All),
            (Some(_), None) => RateDecision::Now(AllowedKinds::Writes),
            (None, Some(_)) => RateDecision::Now(AllowedKinds::Reads),
            (Some(read), Some(write)) => RateDecision::At(read.min(write)),
        }
    }

    /// Records the start of an I/O of `bytes` bytes.
    pub(crate) fn started(&mut self, bytes: u64, is_read: bool) {
        self.issued = self.issued.saturating_add(1);
        let of_kind = if is_read { &mut self.reads } else { &mut self.writes };
        for limit in self.limits.iter_mut().chain(of_kind) {
            limit.spent += if limit.is_of_bytes { bytes } else { 1 };
        }
    }
}

/// Time at which all limits allow one more I/O; `None` if that is now.
fn wait(limits: &mut [SpacedLimit], now: Nanos) -> Option<Nanos> {
    limits.iter_mut().filter_map(|limit| limit.wait(now)).max()
}

/// Spreads I/Os, or bytes, evenly over time.
#[derive(Debug)]
struct SpacedLimit {
    is_of_bytes: bool,
    /// I/Os or bytes a nanosecond.
    rate: f64,
    origin: Nanos,
    spent: u64,
    /// I/Os or bytes that the job may catch up on after a pause.
    burst: u64,
}

impl SpacedLimit {
    fn new(rate: RateLimit, origin: Nanos, streams: usize, bs: u32) -> Self {
        let ios = streams.max(8) as u64;
        let (is_of_bytes, rate, burst) = match rate {
            RateLimit::Iops(rate) => (false, rate, ios),
            RateLimit::Bytes(rate) => (true, rate, ios * u64::from(bs)),
        };
        Self { is_of_bytes, rate: rate / 1e9, origin, spent: 0, burst }
    }

    /// Time at which one more I/O may start; `None` if that is `now`.
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        clippy::cast_precision_loss,
        reason = "a rate; the product is not negative"
    )]
    fn wait(&mut self, now: Nanos) -> Option<Nanos> {
        let due = ((now.saturating_sub(self.origin)) as f64 * self.rate) as u64 + 1;
        // I/Os that were late because the queue depth was exhausted are not caught up on.
        self.spent = self.spent.max(due.saturating_sub(self.burst));
        if due > self.spent {
            return None;
        }
        let after = (self.spent as f64 / self.rate).ceil() as u64;
        Some(self.origin.saturating_add(after).max(now + 1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Nanos = 1_000_000_000;

    fn all(rates: &[RateLimit]) -> JobRates {
        JobRates { all: rates.to_vec(), ..JobRates::default() }
    }

    /// Counts the I/Os of 4 KiB that start until `until` under these limits alone.
    fn count(pace: &mut RateLimiter, from: Nanos, until: Nanos) -> u64 {
        let (mut now, mut issued) = (from, 0);
        while now < until {
            match pace.look(now, 0) {
                RateDecision::Now(_) => {
                    pace.started(4096, false);
                    issued += 1;
                }
                RateDecision::At(later) => {
                    assert!(later > now);
                    now = later;
                }
                RateDecision::WhenIdle => panic!("nothing is under way"),
            }
        }
        issued
    }

    #[test]
    fn a_rate_is_kept_and_not_much_is_made_up_for() {
        let mut pace = RateLimiter::new(&all(&[RateLimit::Iops(1_000_000.0)]), None, 0, 1, 4096);
        let issued = count(&mut pace, 0, SECOND / 1000);
        assert!((999..=1001).contains(&issued), "{issued}");
        let mut after_pause = 0;
        while pace.look(SECOND, 0) == RateDecision::Now(AllowedKinds::All) {
            pace.started(4096, true);
            after_pause += 1;
        }
        assert_eq!(after_pause, 8);
    }

    #[test]
    fn of_several_rates_the_lowest_holds() {
        let bytes = RateLimit::Bytes(4096.0 * 500.0);
        let mut pace =
            RateLimiter::new(&all(&[RateLimit::Iops(10_000.0), bytes]), None, 0, 1, 4096);
        let issued = count(&mut pace, 0, SECOND);
        assert!((499..=502).contains(&issued), "{issued}");
        let mut pace = RateLimiter::new(&all(&[RateLimit::Iops(300.0), bytes]), None, 0, 1, 4096);
        let issued = count(&mut pace, 0, SECOND);
        assert!((299..=302).contains(&issued), "{issued}");
    }

    #[test]
    fn reads_and_writes_have_rates_of_their_own() {
        let (reads, writes) =
            (vec![RateLimit::Iops(100.0)], vec![RateLimit::Bytes(4096.0 * 700.0)]);
        let mut pace =
            RateLimiter::new(&JobRates { reads, writes, all: Vec::new() }, None, 0, 1, 4096);
        let (mut now, mut issued, mut turn) = (0, [0, 0], 0);
        while now < SECOND {
            let is_read = match pace.look(now, 0) {
                RateDecision::Now(AllowedKinds::All) => turn % 2 == 0,
                RateDecision::Now(kinds) => kinds == AllowedKinds::Reads,
                RateDecision::At(later) => {
                    assert!(later > now);
                    now = later;
                    continue;
                }
                RateDecision::WhenIdle => panic!("nothing is under way"),
            };
            pace.started(4096, is_read);
            issued[usize::from(is_read)] += 1;
            turn += 1;
        }
        let [writes, reads] = issued;
        assert!((99..=102).contains(&reads) && (699..=702).contains(&writes), "{issued:?}");
    }

    #[test]
    fn it_thinks_after_so_many_ios_when_they_are_back() {
        let think = ThinkTime { ios: 3, time: Duration::from_millis(10) };
        let mut pace = RateLimiter::new(&all(&[]), Some(think), 0, 1, 4096);
        for now in 0..3 {
            assert_eq!(pace.look(now, 2), RateDecision::Now(AllowedKinds::All));
            pace.started(4096, true);
        }
        assert_eq!(pace.look(3, 1), RateDecision::WhenIdle);
        assert_eq!(pace.look(1000, 0), RateDecision::At(10_001_000));
        assert_eq!(pace.look(2000, 0), RateDecision::At(10_001_000));
        assert_eq!(pace.look(10_001_000, 0), RateDecision::Now(AllowedKinds::All));
        // 3 I/Os in each 10 ms.
        let mut pace = RateLimiter::new(&all(&[]), Some(think), 0, 1, 4096);
        assert_eq!(count(&mut pace, 0, SECOND), 300);
    }
}
