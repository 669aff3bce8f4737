//! When a core was away, and what the network could have sent meanwhile.
//!
//! A core that others take the processor from sees nothing for a while. What it had on the way leaves meanwhile, and
//! then the network has nothing of it until the core is back.
//!
//! ```text
//!   turn          away             turn    turn
//!  ──┼───────────────────────────────┼───────┼────▶
//!    │◀─ the network has enough ─▶│  │
//!    │                            │◀─┼── missed
//!    │◀──── what left meanwhile comes back ──▶│
//! ```
//!
//! A turn that takes long because there is much to do is no absence: much comes back then.

use crate::Nanos;

/// An absence is so many times as long as what usually is between turns.
const SELDOM: Nanos = 8;
/// What is usual looks back on about so many turns.
const USUAL: Nanos = 16;
/// The rate of a core is that of so many times the shortest absence.
const WINDOW: Nanos = 16;
/// Bits of the time that rates are counted in: about a millisecond.
const TIME: u32 = 20;

/// When a core was there, and what it sends.
#[derive(Debug, Default)]
pub(super) struct Attendance {
    /// When this turn began; nothing while nothing waits.
    began: Option<Nanos>,
    /// Bytes sent until then.
    sent: u64,
    /// The last turn began so long after the one before, which sent so many bytes.
    late: Option<(Nanos, u64)>,
    /// What was missed was told in the last turn.
    has_told: bool,
    /// Usual time from one turn to the next, where the first sent something; 0 while that is not known.
    usual: Nanos,
    /// Since when the rate is measured anew, and bytes sent until then.
    since: Option<(Nanos, u64)>,
    /// Bytes that the core sends in 2^[`TIME`] ns, while it is there and commands wait.
    rate: u64,
}

impl Attendance {
    /// A turn begins at `now` with so many bytes sent since the start, so long after the last began; what the network has
    /// `lasts` so long. Yields how many more bytes could have been sent by the turn before.
    pub(super) fn turn(&mut self, now: Nanos, after: Nanos, sent: u64, lasts: Nanos) -> u64 {
        let had_sent = std::mem::replace(&mut self.sent, sent);
        let back = if self.began.is_some() { sent.wrapping_sub(had_sent) } else { 0 };
        self.began = Some(now);
        if let Some((late, had_back)) = self.late.take() {
            self.leave_out(after, back);
            self.has_told = true;
            // What left meanwhile is known by now.
            let time = late.saturating_add(after);
            return self.missed(time, had_back.saturating_add(back), lasts);
        }
        if self.is_absence(after, lasts) {
            self.late = Some((after, back));
            self.leave_out(after, back);
            // What happens often is usual.
            self.usual += self.usual / USUAL + 1;
            return 0;
        }
        if back > 0 && after > 0 {
            let usual = if self.usual == 0 { after } else { self.usual };
            self.usual = usual - usual / USUAL + after / USUAL;
        }
        self.measure(now, sent, lasts);
        0
    }

    /// Was it told in the last turn what was missed? By now other cores that were away at the same time told it, too. Asked
    /// once.
    pub(super) fn has_told(&mut self) -> bool {
        std::mem::take(&mut self.has_told)
    }

    /// Is it still to be told what was missed, or is this turn itself an absence? Until that is told nothing can be made
    /// of what was sent lately.
    pub(super) fn is_unclear(&self, now: Nanos, lasts: Nanos) -> bool {
        let is_absence = |began| self.is_absence(now.saturating_sub(began), lasts);
        self.late.is_some() || self.began.is_some_and(is_absence)
    }

    /// The budget holds nothing back here, so what comes next was not missed.
    pub(super) fn rest(&mut self) {
        (self.began, self.late, self.since, self.has_told) = (None, None, None, false);
    }

    fn is_absence(&self, after: Nanos, lasts: Nanos) -> bool {
        self.usual > 0 && after > self.shortest(lasts)
    }

    /// The shortest absence.
    fn shortest(&self, lasts: Nanos) -> Nanos {
        lasts.max(self.usual.saturating_mul(SELDOM))
    }

    /// Bytes that could have been sent in this time beyond those that were. Up to a quarter more is what turns differ
    /// by.
    fn missed(&self, time: Nanos, sent: u64, lasts: Nanos) -> u64 {
        let bytes = |time: Nanos| time.saturating_mul(self.rate) >> TIME;
        let (could, had) = (bytes(time), sent.max(bytes(lasts)));
        if could > had.saturating_add(had / 4) { could - had } else { 0 }
    }

    /// An absence, and what left in it, is no part of the rate.
    fn leave_out(&mut self, time: Nanos, back: u64) {
        if let Some((since, sent)) = &mut self.since {
            *since = since.saturating_add(time);
            *sent = sent.wrapping_add(back);
        }
    }

    fn measure(&mut self, now: Nanos, sent: u64, lasts: Nanos) {
        let (then, had_sent) = *self.since.get_or_insert((now, sent));
        let time = now.saturating_sub(then);
        if time > self.shortest(lasts).saturating_mul(WINDOW) {
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
    /// A command in 1024 ns.
    const EACH: Nanos = 1024;
    /// The network has ten commands.
    const LASTS: Nanos = 10 * EACH;

    /// A core that has turns, in units of commands and of their time.
    struct Turns {
        attendance: Attendance,
        now: Nanos,
        sent: u64,
    }

    impl Turns {
        /// One that has sent a command a turn for long.
        fn at_work() -> Self {
            let mut turns = Self { attendance: Attendance::default(), now: 5_000_000, sent: 7 };
            (0..1000).for_each(|_| assert_eq!(turns.turn(1, 1), 0));
            turns
        }

        /// So long after the last, which had so much sent; commands missed.
        fn turn(&mut self, after: u64, sent: u64) -> u64 {
            self.now += after * EACH;
            self.sent += sent;
            let sent = self.sent * COMMAND;
            self.attendance.turn(self.now, after * EACH, sent, LASTS).div_ceil(COMMAND)
        }

        fn all(&mut self, turns: &[(u64, u64)]) -> u64 {
            turns.iter().map(|&(after, sent)| self.turn(after, sent)).sum()
        }
    }

    #[test]
    fn what_could_have_left_while_a_core_was_away_is_missed() {
        // Away for 19, of which the network had enough for ten; that these left is known a turn later.
        assert_eq!(Turns::at_work().all(&[(19, 0), (1, 10), (1, 1)]), 10);
        assert_eq!(Turns::at_work().all(&[(19, 9), (1, 1), (1, 1)]), 10);
        // Away for no longer than what the network has lasts.
        assert_eq!(Turns::at_work().all(&[(9, 0), (1, 9), (10, 1), (1, 10)]), 0);
    }

    #[test]
    fn a_turn_with_much_to_do_is_no_absence() {
        assert_eq!(Turns::at_work().all(&[(19, 1), (1, 20), (30, 1), (30, 50)]), 0);
    }

    /// Neither a core that is slow from its first turn on, nor one that becomes so, has been away.
    #[test]
    fn what_happens_all_the_time_is_no_absence() {
        let mut turns = Turns { attendance: Attendance::default(), now: 1, sent: 0 };
        (0..1000).for_each(|_| assert_eq!(turns.turn(20, 10), 0));
        let mut turns = Turns::at_work();
        (0..1000).for_each(|_| _ = turns.turn(100, 10));
        (0..1000).for_each(|_| assert_eq!(turns.turn(100, 5), 0));
    }

    #[test]
    fn nothing_is_missed_where_nothing_is_held_back() {
        let mut turns = Turns::at_work();
        assert_eq!(turns.turn(100, 0), 0);
        turns.attendance.rest();
        assert_eq!(turns.turn(1, 10), 0);
        // However long it was.
        let Turns { mut attendance, sent, .. } = Turns::at_work();
        assert_eq!(attendance.turn(u64::MAX, u64::MAX, sent * COMMAND, LASTS), 0);
        assert!(attendance.turn(u64::MAX, u64::MAX, (sent + 10) * COMMAND, LASTS) > 0);
    }

    #[test]
    fn a_turn_that_is_an_absence_itself_makes_things_unclear() {
        let mut turns = Turns::at_work();
        let is_unclear = |turns: &Turns, later: u64| {
            turns.attendance.is_unclear(turns.now + later * EACH, LASTS)
        };
        assert!(!is_unclear(&turns, 9) && is_unclear(&turns, 19));
        turns.turn(19, 0);
        assert!(is_unclear(&turns, 0), "what left is not known yet");
        turns.turn(1, 10);
        assert!(!is_unclear(&turns, 0));
        turns.attendance.rest();
        assert!(!is_unclear(&turns, 1000), "it may be asleep");
    }
}
