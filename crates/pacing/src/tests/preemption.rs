//! Preempted core: one flow with unlimited demand, memory that answers immediately, and a network
//! that takes one command after the other.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::{
    CommandOutcome, Cost, FlowConfig, Nanos, PacedMachine, Pacer, PacerConfig, Permit,
    PolicyConfig, PolicyStatus, SharedPolicy,
};

const US: Nanos = 1_000;
const MS: Nanos = 1_000_000;
const BYTES: u32 = 128 << 10;
/// Time that the network takes per command.
const EACH: Nanos = 100 * US;
/// Time between turns.
const TURN: Nanos = 5 * US;

struct Lone {
    shared: SharedPolicy,
    pacer: Pacer,
    now: Nanos,
    /// Commands in the network, with the time at which each has left.
    sending: VecDeque<(Permit, Nanos)>,
    free: Nanos,
    /// Bytes that the network could have sent while it was empty.
    missed: u64,
}

impl Lone {
    fn new(depth: u32) -> Self {
        let machine = PacedMachine { cores: 1, largest: 1 << 20 };
        let shared = SharedPolicy::new(&PolicyConfig::Adaptive, machine).unwrap();
        let mut pacer = shared.pacer(0, Arc::new(|| ()), PacerConfig::default());
        let flow = pacer.add_flow(FlowConfig::weight(1));
        for _ in 0..depth {
            pacer.enqueue(flow, Cost::data(BYTES), 0).unwrap();
        }
        Self { shared, pacer, now: MS, sending: VecDeque::new(), free: MS, missed: 0 }
    }

    /// Runs a turn: sent commands complete, and their hosts send others.
    fn turn(&mut self, after: Nanos) {
        self.now += after;
        self.pacer.on_turn(self.now, after);
        while self.sending.front().is_some_and(|(_, left)| *left <= self.now) {
            let (permit, _) = self.sending.pop_front().unwrap();
            let flow = permit.flow();
            self.pacer.release(permit, CommandOutcome::Completed, self.now);
            self.pacer.enqueue(flow, Cost::data(BYTES), 0).unwrap();
        }
        if let Some(idle) = self.now.checked_sub(self.free) {
            self.missed += idle * u64::from(BYTES) / EACH;
            self.free = self.now;
        }
        while let Some((_, mut permit)) = self.pacer.next(self.now) {
            permit.device_done(self.now);
            self.free += EACH;
            self.sending.push_back((permit, self.free));
        }
    }

    /// Runs for `lasts`, with a preemption of `away` every `every`.
    fn run(&mut self, lasts: Nanos, away: Nanos, every: Nanos) -> PolicyStatus {
        let end = self.now + lasts;
        while self.now < end {
            let next = self.now + every;
            while self.now < next {
                self.turn(TURN);
            }
            if away > 0 {
                self.turn(away);
            }
        }
        self.shared.status()
    }

    fn end(mut self) {
        while let Some((permit, _)) = self.sending.pop_front() {
            self.pacer.release(permit, CommandOutcome::Completed, self.now);
        }
    }
}

#[test]
fn what_the_network_could_have_sent_meanwhile_is_known_and_made_up_for() {
    let mut lone = Lone::new(256);
    let at_first = lone.run(1000 * MS, 0, 100 * MS);
    assert_eq!(
        (at_first.preemption_missed_bytes, at_first.preemption_reserve_bytes),
        (Some(0), Some(0)),
        "it was always there"
    );
    lone.missed = 0;
    let away = lone.run(1000 * MS, 4 * MS, 50 * MS);
    let (missed, reserved) =
        (away.preemption_missed_bytes.unwrap(), away.preemption_reserve_bytes.unwrap());
    let really = lone.missed;
    assert!(missed > really / 2 && missed < 3 * really / 2, "{missed} bytes, really {really}");
    assert!(reserved > u64::from(BYTES), "{away:?}");
    // Bytes that would be missed without the reserve.
    lone.missed = 0;
    lone.run(1000 * MS, 4 * MS, 50 * MS);
    let could = 19 * (4 * MS / EACH * u64::from(BYTES) - at_first.budget.unwrap());
    assert!(lone.missed < 9 * could / 10, "{} bytes of {could}", lone.missed);
    // The reserve is released when no core is preempted.
    let after = lone.run(60_000 * MS, 0, 100 * MS);
    assert_eq!(after.preemption_reserve_bytes, Some(0), "{after:?}");
    lone.end();
}
