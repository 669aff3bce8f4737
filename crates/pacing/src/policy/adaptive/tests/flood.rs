//! Tests of an overflow that lasts: after it, data that waits for the network sustains it until
//! much of that is gone.

use std::cell::Cell;
use std::rc::Rc;

use super::super::controller::AdaptiveState;
use super::Plant;

const MOST: f64 = 0.176;

/// A plant that collapses with more than `edge` commands in the network, until no more than `back`
/// of these are left. That costs two thirds of the rate.
struct Flooding {
    plant: Plant,
    edge: f64,
    back: f64,
    is_flooded: Rc<Cell<bool>>,
}

impl Flooding {
    fn new(device: f64, edge: f64, back: f64) -> Self {
        let is_flooded = Rc::new(Cell::new(false));
        let state = Rc::clone(&is_flooded);
        let plant = Plant::new(device, move |_| MOST * if state.get() { 0.34 } else { 1.0 });
        Self { plant, edge, back, is_flooded }
    }

    /// Runs for this number of updates; returns the mean rate.
    fn run(&mut self, updates: u32) -> f64 {
        let (from, before) = (self.plant.now, self.plant.commands);
        for _ in 0..updates {
            self.plant.run(1);
            let memory = self.plant.flow().in_network;
            let part = if self.is_flooded.get() { self.back } else { 1.0 };
            self.is_flooded.set(memory > part * self.edge);
        }
        (self.plant.commands - before) / ((self.plant.now - from) as f64 / 1000.0)
    }
}

#[test]
fn a_trial_finds_the_way_out_of_a_flood_that_lasts() {
    for (device, edge) in [(100.0, 40.0), (1000.0, 40.0), (1000.0, 150.0)] {
        for back in [0.75, 0.3] {
            let mut flooding = Flooding::new(device, edge, back);
            flooding.run(4000);
            let rate = flooding.run(4000);
            let case = format!("{device} us, edge {edge}, back {back}");
            assert!(rate > 0.85 * MOST, "{case}: {rate}, {:?}", flooding.plant.controller);
        }
    }
}

#[test]
fn a_budget_that_is_held_leaves_a_flood_that_lasts() {
    for (device, edge) in [(100.0, 40.0), (1000.0, 40.0), (1000.0, 150.0)] {
        // A budget is found while memory recovers immediately.
        let mut flooding = Flooding::new(device, edge, 0.6);
        let lasting = std::mem::replace(
            &mut flooding.plant.network,
            Box::new(move |memory| MOST * if memory > edge { 0.34 } else { 1.0 }),
        );
        flooding.plant.run(4000);
        assert_eq!(flooding.plant.status(), AdaptiveState::Held);
        flooding.plant.network = lasting;
        flooding.is_flooded.set(true);
        flooding.run(400);
        let rate = flooding.run(4000);
        let case = format!("{device} us, edge {edge}");
        assert!(rate > 0.85 * MOST, "{case}: {rate}, {:?}", flooding.plant.controller);
    }
}
