//! Detects that data which the socket took has left it.
//!
//! The socket copies its input into a queue of megabytes. That data occupies memory as much as the
//! data that waits in front of the socket. A response therefore counts as sent when its last byte
//! is on the network. No event announces that. The connection asks the kernel for the bytes left,
//! first after a send. The next check is when the next response should have left, by the rate at
//! which the queue drained so far. See `mod` for the measurements.

use std::collections::VecDeque;

use crate::queue::{Event, Nanos};

/// Minimum bytes since the queue was last empty that justify a check.
///
/// Fewer bytes count as sent. A check costs up to 20 % of a small command.
const SMALL: u64 = 128 << 10;
/// Minimum nanoseconds between two checks: each costs a system call.
const SOONEST: Nanos = 20_000;
/// Maximum nanoseconds between two checks: a permit is never delayed longer than this.
const LATEST: Nanos = 1_000_000;

/// Responses in the socket's queue.
#[derive(Debug, Default)]
pub(super) struct TxTracker {
    /// Checks are needed; otherwise all responses count as sent when the socket has taken them.
    pub(super) is_on: bool,
    /// Bytes the socket has taken since the start.
    pub(super) taken: u64,
    /// Tokens of responses in order, and the stream position where each ends.
    waiting: VecDeque<(u64, u64)>,
    /// At the last check: bytes that had left, bytes that had not, and its time.
    left: u64,
    unsent: u64,
    looked: Nanos,
    /// Time of the first check that found no further byte sent.
    still: Option<Nanos>,
    /// Bytes per [`LATEST`] at which the queue drains; 0 while unknown.
    rate: u64,
    due: Nanos,
}

impl TxTracker {
    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Returns true if a check after a send is worth its cost.
    pub(super) fn worth_a_look(&self) -> bool {
        self.is_on && (self.unsent > 0 || self.taken - self.left >= SMALL)
    }

    /// Counts all responses as sent: too few bytes followed the last empty queue for a check.
    pub(super) fn all_gone(&mut self, events: &mut Vec<Event>) {
        self.still = None;
        events.extend(self.waiting.drain(..).map(|(token, _)| Event::Sent { token, data: None }));
    }

    /// Returns the time of the next check.
    pub(super) fn due(&self) -> Option<Nanos> {
        (!self.is_empty()).then_some(self.due)
    }

    /// Returns the time since which nothing has left although data waits.
    pub(super) fn stalled(&self) -> Option<Nanos> {
        if self.is_empty() { None } else { self.still }
    }

    /// Returns the bytes that had left at the last check.
    pub(super) fn left(&self) -> u64 {
        self.left
    }

    /// Adds the time for which the target was stalled.
    pub(super) fn extend_deadlines(&mut self, nanos: Nanos) {
        self.still = self.still.map(|since| since.saturating_add(nanos));
    }

    /// Records that the socket has all of a response, and `beyond` bytes that follow it.
    #[inline]
    pub(super) fn taken_whole(&mut self, token: u64, beyond: u64) {
        self.waiting.push_back((token, self.taken - beyond));
    }

    /// Records that the socket has `unsent` bytes left to send.
    pub(super) fn look(&mut self, unsent: u64, now: Nanos, events: &mut Vec<Event>) {
        let left = self.taken.saturating_sub(unsent);
        let gone = left.saturating_sub(self.left);
        let passed = now.saturating_sub(self.looked);
        if unsent > 0 && gone == 0 {
            self.still.get_or_insert(now);
        } else {
            self.still = None;
        }
        // A queue that was empty, before or now, does not show its drain rate.
        if unsent > 0
            && self.unsent > 0
            && let Some(rate) = gone.saturating_mul(LATEST).checked_div(passed)
        {
            self.rate = if self.rate == 0 { rate } else { (self.rate * 3 + rate) / 4 };
        }
        (self.left, self.unsent, self.looked) = (left, unsent, now);
        while let Some((token, end)) = self.waiting.front() {
            if *end > left {
                break;
            }
            events.push(Event::Sent { token: *token, data: None });
            self.waiting.pop_front();
        }
        if let Some((_, end)) = self.waiting.front() {
            let wait = (end - left).saturating_mul(LATEST).checked_div(self.rate);
            self.due = now + wait.unwrap_or(SOONEST).clamp(SOONEST, LATEST);
        }
    }

    /// Counts all responses as sent, because the connection ends.
    pub(super) fn give_up(&mut self, events: &mut Vec<Event>) {
        self.all_gone(events);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tokens(events: &mut Vec<Event>) -> Vec<u64> {
        let sent = events.drain(..).map(|event| match event {
            Event::Sent { token, data: None } => token,
            other => panic!("{other:?}"),
        });
        sent.collect()
    }

    /// Creates three responses of 1000 bytes, taken whole.
    fn three() -> TxTracker {
        let mut tx_tracker = TxTracker { is_on: true, ..TxTracker::default() };
        for token in 1..=3 {
            tx_tracker.taken += 1000;
            tx_tracker.taken_whole(token, 0);
        }
        tx_tracker
    }

    #[test]
    fn what_left_at_once_is_never_waited_for() {
        let (mut tx_tracker, mut events) = (three(), Vec::new());
        tx_tracker.look(0, 50, &mut events);
        assert_eq!(tokens(&mut events), [1, 2, 3]);
        assert_eq!((tx_tracker.due(), tx_tracker.stalled()), (None, None));
    }

    #[test]
    fn little_is_not_worth_a_look_until_it_adds_up() {
        let (mut tx_tracker, mut events) = (three(), Vec::new());
        assert!(!tx_tracker.worth_a_look());
        tx_tracker.all_gone(&mut events);
        assert_eq!(tokens(&mut events), [1, 2, 3]);
        tx_tracker.taken += SMALL - 3000;
        tx_tracker.taken_whole(4, 0);
        assert!(tx_tracker.worth_a_look());
        tx_tracker.look(1, 10, &mut events);
        // From now on every send justifies a check, until one finds the queue empty.
        tx_tracker.taken += 1;
        assert!(tx_tracker.worth_a_look());
        tx_tracker.look(0, 20, &mut events);
        tx_tracker.taken += 1;
        assert!(!tx_tracker.worth_a_look());
    }

    #[test]
    fn each_leaves_with_its_last_byte() {
        let (mut tx_tracker, mut events) = (three(), Vec::new());
        tx_tracker.look(2001, 50, &mut events);
        assert_eq!(tokens(&mut events), [0_u64; 0]);
        tx_tracker.look(2000, 60, &mut events);
        assert_eq!(tokens(&mut events), [1]);
        tx_tracker.look(1, 70, &mut events);
        assert_eq!(tokens(&mut events), [2]);
        tx_tracker.look(0, 80, &mut events);
        assert_eq!(tokens(&mut events), [3]);
    }

    #[test]
    fn the_next_look_is_when_the_next_should_have_left_and_never_far_off() {
        let (mut tx_tracker, mut events) = (TxTracker::default(), Vec::new());
        for token in 1..=4 {
            tx_tracker.taken += 100_000;
            tx_tracker.taken_whole(token, 0);
        }
        // The rate is unknown: check soon.
        tx_tracker.look(400_000, 1_000_000, &mut events);
        assert_eq!(tx_tracker.due(), Some(1_000_000 + SOONEST));
        // 100 kB in 100 us: the next response takes as long.
        tx_tracker.look(300_000, 1_100_000, &mut events);
        assert_eq!(tx_tracker.due(), Some(1_200_000));
        assert_eq!(tx_tracker.stalled(), None);
        // The queue stalls: checks continue, and the host is reported as stalled.
        tx_tracker.look(300_000, 1_200_000, &mut events);
        assert_eq!(tx_tracker.stalled(), Some(1_200_000));
        let due = tx_tracker.due().unwrap();
        assert!((1_200_000 + SOONEST..=1_200_000 + LATEST).contains(&due));
        tx_tracker.look(0, 9_000_000, &mut events);
        assert_eq!(tokens(&mut events), [1, 2, 3, 4]);
    }

    #[test]
    fn the_end_gives_back_what_waits() {
        let (mut tx_tracker, mut events) = (three(), Vec::new());
        tx_tracker.look(1500, 50, &mut events);
        tx_tracker.give_up(&mut events);
        assert_eq!(tokens(&mut events), [1, 2, 3]);
        assert!(tx_tracker.is_empty());
    }
}
