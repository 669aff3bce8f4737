//! Runs the conformance checks against the loopback provider.

use nvmeof_verbs_conformance::checks;

use super::fixture::{Lab, Setup, living};

#[test]
fn every_check_holds_for_many_seeds() {
    for seed in 0..40 {
        for (name, check) in checks() {
            println!("seed {seed}: {name}");
            let mut lab = Lab::new(seed);
            let before = living(&lab.fabric);
            let mut pair = lab.pair_with(&Setup { shared: seed % 2 == 1, ..Setup::default() });
            check(&mut pair);
            drop(pair);
            assert_eq!(living(&lab.fabric), before);
            assert_eq!(lab.fabric.counters().misuses, 0);
        }
    }
}
