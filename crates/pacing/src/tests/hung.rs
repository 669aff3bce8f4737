//! Commands that never complete, and commands of other devices that wait behind them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::{
    CommandOutcome, Cost, FlowConfig, FlowId, Nanos, PacedMachine, Pacer, PacerConfig, Permit,
    PolicyConfig, SharedPolicy,
};

const US: Nanos = 1_000;
const MS: Nanos = 1_000_000;
const SMALL: Cost = Cost::data(4096);
const LARGE: Cost = Cost::data(1 << 20);

/// A core with a flow to each of two devices. Commands take 100 µs, except for hung ones.
struct TwoDevices {
    shared: SharedPolicy,
    pacer: Pacer,
    flows: [FlowId; 2],
    now: Nanos,
    running: Vec<Permit>,
    hung: Vec<Permit>,
    woken: Arc<AtomicBool>,
    neighbour: Option<Neighbour>,
}

/// Another core, whose hosts send one command after the other to the device without hung commands.
struct Neighbour {
    pacer: Pacer,
    flow: FlowId,
    running: Option<Permit>,
    done: usize,
}

impl Neighbour {
    fn new(shared: &SharedPolicy) -> Self {
        let mut pacer = shared.pacer(1, Arc::new(|| ()), PacerConfig::default());
        let flow =
            pacer.add_flow(FlowConfig { device: 1, network_port: 0, ..FlowConfig::weight(1) });
        Self { pacer, flow, running: None, done: 0 }
    }

    fn turn(&mut self, now: Nanos) {
        if let Some(permit) = self.running.take_if(|permit| is_over(permit, now)) {
            self.pacer.release(permit, CommandOutcome::Completed, now);
            self.done += 1;
        }
        if self.running.is_none() && self.pacer.waiting() == 0 {
            self.pacer.enqueue(self.flow, SMALL, 0).unwrap();
        }
        if self.running.is_none() {
            self.running = self.pacer.next(now).map(|(_, permit)| permit);
        }
    }

    fn finish(mut self, now: Nanos) {
        self.pacer.cancel(self.flow, 0);
        if let Some(permit) = self.running {
            self.pacer.release(permit, CommandOutcome::Failed, now);
        }
        assert!(self.pacer.next(now).is_none());
    }
}

fn is_over(permit: &Permit, now: Nanos) -> bool {
    now - permit.on_dispatch() >= 100 * US
}

impl TwoDevices {
    /// A budget of two small commands, on a machine that completed some.
    fn with_little_to_do() -> Self {
        Self::with_little_to_do_of(1)
    }

    /// As above, on the first of `cores` cores.
    fn with_little_to_do_of(cores: usize) -> Self {
        let machine = PacedMachine { cores, largest: LARGE.bytes };
        let shared = SharedPolicy::new(&PolicyConfig::Adaptive, machine).unwrap();
        let woken = Arc::new(AtomicBool::new(false));
        let wake = Arc::clone(&woken);
        let waker = Arc::new(move || wake.store(true, Ordering::Relaxed));
        let mut pacer = shared.pacer(0, waker, PacerConfig::default());
        let flows = [0, 1].map(|device| {
            pacer.add_flow(FlowConfig { device, network_port: 0, ..FlowConfig::weight(1) })
        });
        let (running, hung) = (Vec::new(), Vec::new());
        let mut two = Self { shared, pacer, flows, now: MS, running, hung, woken, neighbour: None };
        for nth in 0..4000 {
            two.ask(nth % 2, SMALL);
            assert_eq!(two.pass(MS), 1);
        }
        two.shared.bound(Some(2 * u64::from(SMALL.bytes)), 0);
        two
    }

    fn budget(&self) -> u64 {
        self.shared.status().budget.expect("it has one")
    }

    fn ask(&mut self, flow: usize, cost: Cost) {
        self.pacer.enqueue(self.flows[flow], cost, 0).unwrap();
    }

    /// Lets `time` pass in turns; returns the number of completions.
    fn pass(&mut self, time: Nanos) -> usize {
        let end = self.now + time;
        let mut back = 0;
        while self.now < end {
            while let Some((_, permit)) = self.pacer.next(self.now) {
                self.running.push(permit);
            }
            self.now += 10 * US;
            if let Some(neighbour) = &mut self.neighbour {
                neighbour.turn(self.now);
            }
            for permit in self.running.extract_if(.., |permit| is_over(permit, self.now)) {
                self.pacer.release(permit, CommandOutcome::Completed, self.now);
                back += 1;
            }
        }
        back
    }

    /// Starts or queues a command for the first device; it hangs if it starts.
    fn hang(&mut self, cost: Cost) {
        self.ask(0, cost);
        self.hung.extend(self.pacer.next(self.now).map(|(_, permit)| permit));
    }

    /// Checks that nearly all commands of one second for the device without hung commands complete
    /// in it.
    fn serves_the_other(&mut self) {
        let one = |_| {
            self.ask(1, SMALL);
            self.pass(MS)
        };
        let back: usize = (0..1000).map(one).sum();
        assert!(back > 900, "{back} of 1000");
    }

    /// Completes everything; the budget is complete again.
    fn finish(mut self) {
        while self.pacer.waiting() > 0 || !self.running.is_empty() {
            self.pass(10 * MS);
        }
        for permit in self.hung.drain(..) {
            self.pacer.release(permit, CommandOutcome::Failed, self.now);
        }
        self.pass(MS);
        if let Some(neighbour) = self.neighbour.take() {
            neighbour.finish(self.now);
        }
        assert!(self.pacer.next(self.now).is_none());
        assert_eq!(self.shared.credit().expect("it has one").unused(), self.budget());
    }
}

/// If all commands that the budget has room for hang, other commands still start, at the speed of
/// the demand.
#[test]
fn a_command_that_hangs_holds_up_no_other_device() {
    let mut two = TwoDevices::with_little_to_do();
    while two.pacer.waiting() == 0 {
        two.hang(SMALL);
    }
    assert!(!two.woken.load(Ordering::Relaxed));
    two.serves_the_other();
    assert!(two.woken.load(Ordering::Relaxed), "a core that sleeps does not find out by itself");
    two.finish();
}

/// The extra budget is not spent on a large command that hangs, either.
#[test]
fn a_large_command_that_hangs_holds_up_no_other_device() {
    let mut two = TwoDevices::with_little_to_do();
    two.hang(LARGE);
    two.serves_the_other();
    two.finish();
}

/// Nor if another core works at the same time, which is visible here only by the credit that it
/// gives. That core continues, too.
#[test]
fn what_hangs_on_one_core_holds_up_neither_it_nor_the_others() {
    for cost in [SMALL, LARGE] {
        let mut two = TwoDevices::with_little_to_do_of(2);
        two.neighbour = Some(Neighbour::new(&two.shared));
        while two.pacer.waiting() == 0 && two.hung.len() < 8 {
            two.hang(cost);
        }
        two.serves_the_other();
        let done = two.neighbour.as_ref().expect("at work").done;
        // One by one they are 10 000 in that second.
        assert!(done > 8000, "{done} of 10000, {cost:?}");
        two.finish();
    }
}

/// Nor for a command larger than the whole budget, behind a small one that hangs.
#[test]
fn what_is_larger_than_the_budget_does_not_wait_for_what_hangs() {
    let mut two = TwoDevices::with_little_to_do();
    two.hang(SMALL);
    assert!(two.budget() < u64::from(LARGE.bytes));
    two.ask(1, LARGE);
    assert_eq!(two.pass(MS), 1);
    two.finish();
}

/// If nothing at all completes for half a minute, only a few more commands start, whether hosts
/// send all of them together or one every 20 ms.
#[test]
fn a_machine_that_stands_still_is_not_filled() {
    for at_once in [true, false] {
        let mut two = TwoDevices::with_little_to_do();
        for ms in 0..30_000 {
            if (at_once && ms == 0) || (!at_once && ms % 20 == 0) {
                (0..if at_once { 200 } else { 1 }).for_each(|nth| two.ask(nth % 2, SMALL));
            }
            while let Some((_, permit)) = two.pacer.next(two.now) {
                two.hung.push(permit);
            }
            two.now += MS;
        }
        assert!((2..40).contains(&two.hung.len()), "{} in flight", two.hung.len());
        for permit in std::mem::take(&mut two.hung) {
            two.pacer.release(permit, CommandOutcome::Completed, two.now);
        }
        two.finish();
    }
}
