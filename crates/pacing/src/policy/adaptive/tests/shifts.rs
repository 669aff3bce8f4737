//! Tests of a machine whose speed changes.

use std::cell::Cell;
use std::rc::Rc;

use nvmeof_random::SplitMix64;

use super::super::controller::AdaptiveState;
use super::Plant;

/// Rate of the network in commands per us with ever more of them in memory.
const MOST: f64 = 0.4;
/// Factor of the slow state.
const SLOW: f64 = 0.4;

/// A plant that changes between two speeds, each for 50 ms to 2 s. Eight commands in memory reach
/// half of its rate.
struct Shifting {
    plant: Plant,
    speed: Rc<Cell<f64>>,
    until: u64,
    random: SplitMix64,
}

impl Shifting {
    fn new(seed: u64) -> Self {
        let speed = Rc::new(Cell::new(1.0));
        let now = Rc::clone(&speed);
        let network = move |memory: f64| MOST * now.get() * (memory + 1.0) / (memory + 9.0);
        let mut plant = Plant::new(5.0, network);
        (plant.offered, plant.noise) = (256.0, 0.1);
        Self { plant, speed, until: 0, random: SplitMix64::new(seed) }
    }

    /// Runs until this time in ns. Returns the rate as a part of that without a bound, and whether
    /// a bound was ever held.
    fn run(&mut self, end: u64) -> (f64, bool) {
        let (mut done, mut ideal, mut was_held) = (0.0, 0.0, false);
        while self.plant.now < end {
            if self.plant.now >= self.until {
                self.speed.set(if self.speed.get() < 1.0 { 1.0 } else { SLOW });
                let dwell = 0.05 + 2.0 * self.random.unit().powi(3);
                self.until = self.plant.now + super::whole(dwell * 1e9);
            }
            let (from, before) = (self.plant.now, self.plant.commands);
            self.plant.run(1);
            done += self.plant.commands - before;
            let open = MOST * self.speed.get() * 257.0 / 265.0;
            ideal += open * (self.plant.now - from) as f64 / 1000.0;
            was_held |= self.plant.status() == AdaptiveState::Held;
        }
        (done / ideal, was_held)
    }
}

/// A trial cannot tell a faster machine from a better budget. What it finds must not last.
#[test]
fn a_bound_found_while_the_machine_changed_ends() {
    let mut holds = 0;
    for seed in 1..=20 {
        let (rate, was_held) = Shifting::new(seed).run(120_000_000_000);
        holds += u32::from(was_held);
        assert!(rate > 0.98, "seed {seed}: {rate} of the rate without a bound");
    }
    assert!(holds > 0, "no trial was wrong: the test shows nothing");
}
