//! Tests of buffer credit alone: bytes in use, their recipients, and their return.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::machine::PacedMachine;
use super::{KIB, scattered};
use crate::policy::{Admission, AdmissionRequest, CompletedCommand, CreditConfig};
use crate::{AdmissionPolicy, BufferCredit, CommandOutcome, Cost, PolicyConfig};
use proptest::prelude::*;

fn credit(cores: usize, flows: usize, budget: u64) -> PacedMachine {
    PacedMachine::new(&PolicyConfig::BufferCredit { budget }, cores, flows)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    /// Small I/O is counted: at most the budget of it is in flight, and one more (the minimum
    /// grant).
    #[test]
    fn small_io_is_counted(bytes in 1u32..=4096, count in 1u64..400) {
        let budget = 256 * 1024;
        let mut machine = credit(1, 1, budget);
        for _ in 0..count {
            machine.enqueue(0, 0, bytes);
        }
        let started = machine.turn(0) as u64;
        prop_assert_eq!(started, count.min(budget / u64::from(bytes)));
        machine.drain();
    }

    /// With the whole budget in use on one core, every other core starts exactly one I/O. It starts
    /// another when that one has completed, while the first core keeps everything.
    #[test]
    fn a_core_that_holds_nothing_starts_one(cores in 2usize..9, rounds in 1usize..5) {
        let mut machine = credit(cores, 2, 1024 * 1024);
        for _ in 0..4 {
            machine.enqueue(0, 0, 256 * KIB);
        }
        prop_assert_eq!(machine.turn(0), 4);
        for core in 1..cores {
            for _ in 0..=rounds {
                machine.enqueue(core, 0, 128 * KIB);
            }
            prop_assert_eq!(machine.turn(core), 1);
            for _ in 0..rounds {
                machine.end_one(core, 0);
                prop_assert_eq!(machine.turn(core), 1);
                machine.check();
            }
        }
        machine.drain();
    }

    /// No core starves. While all cores wait and I/Os end in no particular order, the budget serves
    /// the cores in equal parts, within a constant. That constant does not grow with the length of
    /// the run.
    #[test]
    fn waiting_cores_share_the_budget_evenly(
        cores in 2usize..6,
        ends in 200usize..2000,
        seed in any::<u64>(),
    ) {
        let io = 128 * KIB;
        let per_core = 16usize;
        let budget = u64::from(io) * (per_core * cores) as u64;
        let mut machine = credit(cores, 2, budget);
        // The first core comes first and takes everything; the others find nothing.
        for core in 0..cores {
            for _ in 0..ends + per_core * cores {
                machine.enqueue(core, 0, io);
            }
            machine.turn(core);
        }
        let before: Vec<u64> = machine.cores.iter().map(|core| core.started).collect();
        for nth in 0..ends {
            let running: Vec<usize> =
                machine.cores.iter().map(|core| core.running.len()).collect();
            let mut at = scattered(seed, nth) % running.iter().sum::<usize>();
            let mut core = 0;
            while at >= running[core] {
                at -= running[core];
                core += 1;
            }
            machine.finish_one(core, at);
            machine.check();
        }
        let got: Vec<u64> =
            machine.cores.iter().zip(&before).map(|(core, before)| core.started - before).collect();
        let (least, most) = (got.iter().min().unwrap(), got.iter().max().unwrap());
        prop_assert!(most - least <= 4, "{:?}", got);
    }

    /// A growth of the budget is for all waiting cores, although only one of them has a turn just
    /// then and the others requested one I/O each.
    #[test]
    fn what_a_budget_grows_by_is_for_all_that_wait(cores in 3usize..9, each in 3usize..12) {
        let io = 128 * KIB;
        let budget = u64::from(io) * (each * cores) as u64;
        let mut machine = credit(cores, 1, budget);
        for core in 0..cores {
            for _ in 0..4 * each * cores {
                machine.enqueue(core, 0, io);
            }
            machine.turn(core);
        }
        machine.resize(2 * budget, 0);
        for core in 0..cores {
            // Its part, and the part of a core that does not wait.
            prop_assert!(machine.turn(core) <= 2 * each, "core {} had the others' part", core);
        }
        machine.check();
        machine.drain();
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    /// Free credit covers the minimum grant of a core before another command starts. Precondition:
    /// all cores have commands waiting, and commands end in the order of their starts. The bytes in
    /// flight then end at the budget, or at one command per core if that is more.
    #[test]
    fn the_floor_is_no_part_beside_a_budget_that_has_room_for_it(
        cores in 2usize..9, budget in 2usize..24, ends in 100usize..200,
    ) {
        let io = 128 * KIB;
        let mut machine = credit(cores, 1, u64::from(io) * budget as u64);
        for core in 0..cores {
            for _ in 0..200 {
                machine.enqueue(core, 0, io);
            }
            machine.turn(core);
        }
        for _ in 0..ends {
            let core = machine.oldest().unwrap();
            machine.finish_one(core, 0);
        }
        let running: Vec<usize> = machine.cores.iter().map(|core| core.running.len()).collect();
        prop_assert_eq!(running.iter().sum::<usize>(), budget.max(cores), "{:?}", running);
        prop_assert!(running.iter().all(|running| *running > 0), "{:?}", running);
        machine.check();
        machine.drain();
    }
}

/// Of two waiting cores, the one with the more urgent command is served first if the difference is
/// more than a few I/Os. Otherwise it is the one whose flow has fewer in flight, and then the next
/// in turn.
#[test]
fn cores_that_wait_for_something_about_equally_urgent_take_turns() {
    let io = 128 * KIB;
    // Requests of the two cores: urgency, and bytes in flight of the flow.
    let first_served = |waits: [(u64, u64); 2]| {
        let config = CreditConfig { budget: 3 * u64::from(io), largest: io, cores: 3 };
        let shared = BufferCredit::shared(config).unwrap();
        let mut cores = [0, 1, 2].map(|core| shared.core(core, Arc::new(|| ())));
        let cost = Cost::data(io);
        let ask =
            |(urgency, load)| AdmissionRequest { cost, device: 0, urgency, load, small: false };
        let admitted = |answer: Admission| answer.grant().is_some();
        let [grant, ..] = cores.each_mut().map(|core| match core.admit(&ask((0, 0)), 0) {
            Admission::Granted(grant) => grant,
            other => panic!("there is one for each: {other:?}"),
        });
        for (core, waits) in cores[1..].iter_mut().zip(waits) {
            assert!(!admitted(core.admit(&ask(waits), 0)), "nothing is left");
        }
        let outcome = CommandOutcome::Completed;
        let done = CompletedCommand { cost, device: 0, outcome, started: 0, network: 0 };
        cores[0].release(&done, grant, 0);
        let served = [1, 2].map(|core| admitted(cores[core].admit(&ask(waits[core - 1]), 0)));
        assert_eq!(served.iter().filter(|served| **served).count(), 1, "{served:?}");
        served[1]
    };
    let io = u64::from(io);
    assert!(!first_served([(4 * io, 0), (0, 0)]), "about equal: it is the first one's turn");
    assert!(first_served([(4 * io + 1, 0), (0, 0)]), "the second is more urgent");
    assert!(!first_served([(0, 0), (10 * io, 0)]), "the first is more urgent, and it is its turn");
    assert!(first_served([(0, io), (4 * io, 0)]), "about equal: the second has less in flight");
    assert!(!first_served([(0, io), (4 * io, io)]), "and as much: it is the first one's turn");
    assert!(!first_served([(0, io), (10 * io, 0)]), "what is in flight does not outweigh urgency");
}

/// A core with uncovered bytes in flight is served before one with a far more urgent request: its
/// grant covers those bytes.
#[test]
fn what_is_in_flight_beside_the_budget_comes_into_it_first() {
    let io = 128 * KIB;
    let config = CreditConfig { budget: 2 * u64::from(io), largest: io, cores: 3 };
    let shared = BufferCredit::shared(config).unwrap();
    let [mut first, mut second, mut third] =
        [0, 1, 2].map(|core| shared.core(core, Arc::new(|| ())));
    let cost = Cost::data(io);
    let ask = |urgency| AdmissionRequest { cost, device: 0, urgency, load: 0, small: false };
    let done = CompletedCommand {
        cost,
        device: 0,
        outcome: CommandOutcome::Completed,
        started: 0,
        network: 0,
    };
    let of = |answer: Admission| answer.grant().expect("there is one for it");
    let [in_first, _in_second] = [&mut first, &mut second].map(|core| of(core.admit(&ask(0), 0)));
    let beside = of(third.admit(&ask(0), 0));
    assert_eq!(second.admit(&ask(0), 0), Admission::WaitForRelease);
    assert_eq!(third.admit(&ask(1 << 40), 0), Admission::WaitForRelease);
    first.release(&done, in_first, 0);
    assert_eq!(third.admit(&ask(1 << 40), 0), Admission::WaitForRelease, "that was for the first");
    assert_eq!(second.admit(&ask(0), 0), Admission::WaitForRelease, "the third had it");
    third.release(&done, beside, 0);
    assert!(matches!(second.admit(&ask(0), 0), Admission::Granted(_)), "it came back");
}

/// Uncovered bytes come first, but a core with a hung command still starts others, although all
/// cores together have more uncovered bytes than the budget.
#[test]
fn a_core_with_a_command_that_hangs_is_served_though_others_have_something_beside_the_budget() {
    let io = 128 * KIB;
    let mut machine = credit(8, 1, 4 * u64::from(io));
    for core in 0..8 {
        (0..600).for_each(|_| _ = machine.enqueue(core, 0, io));
        machine.turn(core);
    }
    // The first command of core 0 never ends.
    let mut ended = 0;
    for step in 0..2000 {
        let core = step % 8;
        let which = usize::from(core == 0);
        if machine.cores[core].running.len() > which {
            machine.finish_one(core, which);
            ended += usize::from(core == 0);
        }
    }
    assert!(ended >= 5, "{ended} of core 0 went by the one that hangs");
    machine.drain();
}

/// The minimum grant of a core does not advance virtual time if others wait for something more
/// urgent by more than a few I/Os.
#[test]
fn a_core_kept_at_work_with_something_less_urgent_is_out_of_turn() {
    let io = 128 * KIB;
    let config = CreditConfig { budget: u64::from(io), largest: io, cores: 3 };
    let shared = BufferCredit::shared(config).unwrap();
    let [mut first, mut second, mut third] =
        [0, 1, 2].map(|core| shared.core(core, Arc::new(|| ())));
    let cost = Cost::data(io);
    let ask = |urgency| AdmissionRequest { cost, device: 0, urgency, load: 0, small: false };
    assert!(matches!(first.admit(&ask(1 << 40), 0), Admission::Granted(_)), "it is free");
    assert!(matches!(second.admit(&ask(1 << 40), 0), Admission::Granted(_)), "nobody waits");
    assert_eq!(second.admit(&ask(7), 0), Admission::WaitForRelease);
    let late = 7 + 4 * u64::from(io) + 1;
    let Admission::GrantedOutOfOrder(grant) = third.admit(&ask(late), 0) else {
        panic!("the second comes first")
    };
    let done = CompletedCommand {
        cost,
        device: 0,
        outcome: CommandOutcome::Completed,
        started: 0,
        network: 0,
    };
    third.release(&done, grant, 0);
    assert!(
        matches!(third.admit(&ask(late - 1), 0), Admission::Granted(_)),
        "it is about as urgent"
    );
}

#[test]
fn a_budget_below_one_io_is_refused_at_the_start() {
    let config = CreditConfig { budget: 4096, largest: 8192, cores: 1 };
    let error = BufferCredit::shared(config).unwrap_err();
    assert!(error.to_string().contains("4096") && error.to_string().contains("8192"), "{error}");
}

#[test]
fn credit_laid_open_by_an_idle_core_serves_another_without_it_running() {
    let mut machine = credit(2, 1, 1024 * 1024);
    for _ in 0..4 {
        machine.enqueue(0, 0, 256 * KIB);
    }
    assert_eq!(machine.turn(0), 4);
    for _ in 0..4 {
        machine.end_one(0, 0);
    }
    // The last turn of core 0: nothing waits, so it keeps no credit.
    machine.turn(0);
    for _ in 0..4 {
        machine.enqueue(1, 0, 256 * KIB);
    }
    assert_eq!(machine.turn(1), 4);
    machine.drain();
}

#[test]
fn credit_granted_to_a_core_that_no_longer_wants_it_goes_on() {
    let mut machine = credit(3, 1, 512 * 1024);
    machine.enqueue(0, 0, 256 * KIB);
    machine.enqueue(0, 0, 256 * KIB);
    machine.turn(0);
    for core in 1..3 {
        machine.enqueue(core, 0, 256 * KIB);
        machine.enqueue(core, 0, 256 * KIB);
        assert_eq!(machine.turn(core), 1, "the floor");
    }
    // Credit is granted to core 1, whose command is cancelled before it runs.
    machine.end_one(0, 0);
    assert!(machine.cores[1].woken.load(Ordering::Relaxed));
    assert!(machine.cancel(1, 0));
    machine.run_ready();
    // The minimum grant of core 2 is covered first.
    assert_eq!(machine.cores[2].waiting.len(), 1);
    machine.finish_one(0, 0);
    assert!(machine.cores[2].waiting.is_empty(), "core 2 was next in line");
    machine.drain();
}

#[test]
fn a_core_whose_last_command_was_cancelled_is_out_of_the_line_at_once() {
    let mut machine = credit(3, 1, 512 * 1024);
    machine.enqueue(0, 0, 256 * KIB);
    machine.enqueue(0, 0, 256 * KIB);
    machine.turn(0);
    for core in 1..3 {
        machine.enqueue(core, 0, 256 * KIB);
        machine.enqueue(core, 0, 256 * KIB);
        assert_eq!(machine.turn(core), 1, "the floor");
    }
    assert!(machine.cancel(1, 0));
    // Core 1 has no turn before the credit arrives.
    machine.end_one(0, 0);
    let woken = |core: usize| machine.cores[core].woken.load(Ordering::Relaxed);
    assert!(!woken(1) && woken(2));
    machine.drain();
}

#[test]
fn credit_that_one_core_waits_for_is_not_taken_past_it() {
    let mut machine = credit(3, 1, 512 * 1024);
    for _ in 0..4 {
        machine.enqueue(0, 0, 128 * KIB);
    }
    assert_eq!(machine.turn(0), 4);
    machine.enqueue(1, 0, 64 * KIB);
    machine.enqueue(1, 0, 256 * KIB);
    assert_eq!(machine.turn(1), 1, "the floor");
    machine.enqueue(2, 0, 64 * KIB);
    assert_eq!(machine.turn(2), 1, "the floor");
    // Half of core 1's request is free: too little for it, enough for core 2.
    machine.finish_one(0, 0);
    machine.enqueue(2, 0, 64 * KIB);
    assert_eq!(machine.turn(2), 0, "core 1 was first");
    machine.finish_one(0, 0);
    // The minimum grants are covered first; then it is core 2's turn.
    machine.finish_one(0, 0);
    assert!(machine.cores[1].waiting.is_empty() && !machine.cores[2].waiting.is_empty());
    machine.finish_one(0, 0);
    assert!(machine.cores[2].waiting.is_empty());
    machine.drain();
}

#[test]
fn a_core_that_goes_away_gives_its_credit_back() {
    let mut machine = credit(2, 1, 512 * 1024);
    machine.enqueue(0, 0, 256 * KIB);
    machine.turn(0);
    machine.end_one(0, 0);
    let gone = machine.cores.remove(0);
    drop(gone);
    let credit = machine.credit().unwrap();
    assert_eq!(credit.unused(), credit.budget());
}
