//! Preemption of a core, and the data that the network could have sent until it resumed.
//!
//! A preempted core processes nothing. Its data in the network leaves, and then the network has no
//! data of it until the core runs again.
//!
//! ```text
//!   turn        preempted           turn    turn
//!  ──┼───────────────────────────────┼───────┼────▶
//!    │◀─ the network has data ────▶│ │
//!    │                             │◀┼── missed
//!    │◀── completions of that data arrive ──▶│
//! ```
//!
//! A long turn with much work is no preemption: many commands complete then.

use crate::Nanos;

/// A preemption is at least this multiple of the usual time between turns.
const SELDOM: Nanos = 8;
/// Turns that the usual time averages over.
const USUAL: Nanos = 16;
/// Window of the core's rate, as a multiple of the shortest preemption.
const WINDOW: Nanos = 16;
/// Time unit of the rate, as a power of two in ns: about 1 ms.
const TIME: u32 = 20;

/// Detects preemptions of a core and measures its send rate.
#[derive(Debug, Default)]
pub(super) struct PreemptionMonitor {
    /// Start of this turn; `None` while nothing waits.
    began: Option<Nanos>,
    /// Bytes sent until then.
    sent: u64,
    /// Length of a late gap that preceded the last turn, and bytes sent in it.
    late: Option<(Nanos, u64)>,
    /// Missed bytes were reported in the last turn.
    take_reported: bool,
    /// Usual time between turns, if the first one sent something; 0 while unknown.
    usual: Nanos,
    /// Start of the current rate window, and bytes sent until then.
    since: Option<(Nanos, u64)>,
    /// Bytes that the core sends per 2^[`TIME`] ns, while it runs and commands wait.
    rate: u64,
}

impl PreemptionMonitor {
    /// Starts a turn at `now`, `after` ns after the last one, with `sent` bytes since the start;
    /// `network_queue_ns` is the time for which the data in the network lasts. Returns the bytes
    /// that could have been sent in addition until the previous turn.
    pub(super) fn on_turn(
        &mut self,
        now: Nanos,
        after: Nanos,
        sent: u64,
        network_queue_ns: Nanos,
    ) -> u64 {
        let had_sent = std::mem::replace(&mut self.sent, sent);
        let back = if self.began.is_some() { sent.wrapping_sub(had_sent) } else { 0 };
        self.began = Some(now);
        if let Some((late, had_back)) = self.late.take() {
            self.leave_out(after, back);
            self.take_reported = true;
            // All data that left in that time is known by now.
            let time = late.saturating_add(after);
            return self.missed(time, had_back.saturating_add(back), network_queue_ns);
        }
        if self.is_preemption(after, network_queue_ns) {
            self.late = Some((after, back));
            self.leave_out(after, back);
            // A frequent gap becomes usual.
            self.usual += self.usual / USUAL + 1;
            return 0;
        }
        if back > 0 && after > 0 {
            let usual = if self.usual == 0 { after } else { self.usual };
            self.usual = usual - usual / USUAL + after / USUAL;
        }
        self.measure(now, sent, network_queue_ns);
        0
    }

    /// Takes the flag that the last turn reported missed bytes. By now other cores that were
    /// preempted at the same time have reported theirs, too.
    pub(super) fn take_reported(&mut self) -> bool {
        std::mem::take(&mut self.take_reported)
    }

    /// Returns whether missed bytes are still to be reported, or this turn itself is a preemption.
    /// Until then recent bytes sent are no valid measurement.
    pub(super) fn is_pending(&self, now: Nanos, network_queue_ns: Nanos) -> bool {
        let is_preemption = |began| self.is_preemption(now.saturating_sub(began), network_queue_ns);
        self.late.is_some() || self.began.is_some_and(is_preemption)
    }

    /// Resets the state: the budget defers nothing here, so a later gap misses nothing.
    pub(super) fn on_idle(&mut self) {
        (self.began, self.late, self.since, self.take_reported) = (None, None, None, false);
    }

    fn is_preemption(&self, after: Nanos, network_queue_ns: Nanos) -> bool {
        self.usual > 0 && after > self.shortest(network_queue_ns)
    }

    /// Returns the shortest preemption.
    fn shortest(&self, network_queue_ns: Nanos) -> Nanos {
        network_queue_ns.max(self.usual.saturating_mul(SELDOM))
    }

    /// Returns the bytes that could have been sent in `time` beyond those that were. Up to 25 %
    /// more is the normal variation of turns.
    fn missed(&self, time: Nanos, sent: u64, network_queue_ns: Nanos) -> u64 {
        let bytes = |time: Nanos| time.saturating_mul(self.rate) >> TIME;
        let (could, had) = (bytes(time), sent.max(bytes(network_queue_ns)));
        if could > had.saturating_add(had / 4) { could - had } else { 0 }
    }

    /// Excludes a preemption, and the data that left in it, from the rate.
    fn leave_out(&mut self, time: Nanos, back: u64) {
        if let Some((since, sent)) = &mut self.since {
            *since = since.saturating_add(time);
            *sent = sent.wrapping_add(back);
        }
    }

    fn measure(&mut self, now: Nanos, sent: u64, network_queue_ns: Nanos) {
        let (then, had_sent) = *self.since.get_or_insert((now, sent));
        let time = now.saturating_sub(then);
        if time > self.shortest(network_queue_ns).saturating_mul(WINDOW) {
            let bytes = u128::from(sent.wrapping_sub(had_sent));
            let rate = (bytes << TIME) / u128::from(time);
            self.rate = u64::try_from(rate).unwrap_or(u64::MAX);
            self.since = Some((now, sent));
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    const COMMAND: u64 = 1000;
    /// Time of one command: 1024 ns.
    const EACH: Nanos = 1024;
    /// The network holds ten commands.
    const LASTS: Nanos = 10 * EACH;

    /// Turns of a core, in units of commands and of their time.
    struct Turns {
        preemption: PreemptionMonitor,
        now: Nanos,
        sent: u64,
    }

    impl Turns {
        /// A core that has sent one command per turn for a long time.
        fn at_work() -> Self {
            let mut turns =
                Self { preemption: PreemptionMonitor::default(), now: 5_000_000, sent: 7 };
            (0..1000).for_each(|_| assert_eq!(turns.on_turn(1, 1), 0));
            turns
        }

        /// Turn `after` units after the last, with `sent` commands sent since; returns the commands
        /// missed.
        fn on_turn(&mut self, after: u64, sent: u64) -> u64 {
            self.now += after * EACH;
            self.sent += sent;
            let sent = self.sent * COMMAND;
            self.preemption.on_turn(self.now, after * EACH, sent, LASTS).div_ceil(COMMAND)
        }

        fn all(&mut self, turns: &[(u64, u64)]) -> u64 {
            turns.iter().map(|&(after, sent)| self.on_turn(after, sent)).sum()
        }
    }

    #[test]
    fn what_could_have_left_while_a_core_was_away_is_missed() {
        // Preempted for 19; the network had data for ten. A turn later it is known that these left.
        assert_eq!(Turns::at_work().all(&[(19, 0), (1, 10), (1, 1)]), 10);
        assert_eq!(Turns::at_work().all(&[(19, 9), (1, 1), (1, 1)]), 10);
        // Preempted for no longer than the data in the network lasts.
        assert_eq!(Turns::at_work().all(&[(9, 0), (1, 9), (10, 1), (1, 10)]), 0);
    }

    #[test]
    fn a_turn_with_much_to_do_is_no_absence() {
        assert_eq!(Turns::at_work().all(&[(19, 1), (1, 20), (30, 1), (30, 50)]), 0);
    }

    /// A core that is slow from its first turn on, or becomes so, was not preempted.
    #[test]
    fn what_happens_all_the_time_is_no_absence() {
        let mut turns = Turns { preemption: PreemptionMonitor::default(), now: 1, sent: 0 };
        (0..1000).for_each(|_| assert_eq!(turns.on_turn(20, 10), 0));
        let mut turns = Turns::at_work();
        (0..1000).for_each(|_| _ = turns.on_turn(100, 10));
        (0..1000).for_each(|_| assert_eq!(turns.on_turn(100, 5), 0));
    }

    #[test]
    fn nothing_is_missed_where_nothing_is_held_back() {
        let mut turns = Turns::at_work();
        assert_eq!(turns.on_turn(100, 0), 0);
        turns.preemption.on_idle();
        assert_eq!(turns.on_turn(1, 10), 0);
        // However long the gap.
        let Turns { mut preemption, sent, .. } = Turns::at_work();
        assert_eq!(preemption.on_turn(u64::MAX, u64::MAX, sent * COMMAND, LASTS), 0);
        assert!(preemption.on_turn(u64::MAX, u64::MAX, (sent + 10) * COMMAND, LASTS) > 0);
    }

    #[test]
    fn a_turn_that_is_an_absence_itself_makes_things_unclear() {
        let mut turns = Turns::at_work();
        let is_pending = |turns: &Turns, later: u64| {
            turns.preemption.is_pending(turns.now + later * EACH, LASTS)
        };
        assert!(!is_pending(&turns, 9) && is_pending(&turns, 19));
        turns.on_turn(19, 0);
        assert!(is_pending(&turns, 0), "what left is not known yet");
        turns.on_turn(1, 10);
        assert!(!is_pending(&turns, 0));
        turns.preemption.on_idle();
        assert!(!is_pending(&turns, 1000), "it may be asleep");
    }
}
