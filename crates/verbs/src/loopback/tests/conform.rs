//! The loopback provider against what every provider has to do.

use super::super::Counters;
use super::fixture::{ANSWER, ASK, Lab};
use crate::conformance::checks;

#[test]
fn every_check_holds_for_many_seeds() {
    for seed in 0..50 {
        for (name, check) in checks() {
            println!("seed {seed}: {name}");
            let mut lab = Lab::new(seed);
            let before = living(lab.fabric.counters());
            let mut pair =
                if seed % 2 == 0 { lab.pair() } else { lab.pair_with(&ASK, &ANSWER, true) };
            check(&mut pair);
            drop(pair);
            assert_eq!(living(lab.fabric.counters()), before);
            assert_eq!(lab.fabric.counters().misuses, 0);
        }
    }
}

fn living(counters: Counters) -> [usize; 5] {
    let Counters { endpoints, completion_queues, shared_queues, regions, tickets, .. } = counters;
    [endpoints, completion_queues, shared_queues, regions, tickets]
}
