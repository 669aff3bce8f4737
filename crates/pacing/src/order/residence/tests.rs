//! Shares, on one core and on several, with a budget that is always short.

use std::sync::Arc;

use super::{Residence, VirtualTime};
use crate::order::Order;
use crate::permit::Outcome;
use crate::policy::Done;
use crate::{Cost, FlowConfig};

/// Lanes that always wait, each served by a device that takes `hold` ns.
struct Load {
    order: Residence,
    clock: Arc<VirtualTime>,
    hold: Vec<u64>,
    started: Vec<u64>,
    now: u64,
}

const BYTES: u32 = 131_072;

impl Load {
    fn new(lanes: &[(u16, u64)]) -> Self {
        let clock = VirtualTime::new(1);
        let mut order = Residence::new(Arc::clone(&clock), 0);
        for (lane, (weight, _)) in (0..).zip(lanes) {
            order.add(lane, FlowConfig::weight(*weight));
            order.join(lane);
        }
        let hold = lanes.iter().map(|lane| lane.1).collect();
        Self { order, clock, hold, started: vec![0; lanes.len()], now: 1 }
    }

    fn run(&mut self, commands: u32) {
        for at in 0..commands {
            let lane = self.order.pick().expect("lanes wait").lane;
            self.order.started(lane, BYTES);
            self.started[lane as usize] += 1;
            let started = self.now;
            self.now += 1000;
            let network = 10_000;
            let done = Done {
                cost: Cost::data(BYTES),
                device: 0,
                outcome: Outcome::Completed,
                started,
                network,
            };
            self.order.returned(lane, &done, started + self.hold[lane as usize] + network);
            if at % 500 == 0 {
                self.clock.refresh();
            }
        }
    }

    fn share(&self, lane: usize) -> f64 {
        self.started[lane] as f64 / self.started.iter().sum::<u64>() as f64
    }
}

#[test]
fn equal_devices_share_by_weight() {
    let mut load = Load::new(&[(1, 100_000), (2, 100_000), (4, 100_000)]);
    load.run(70_000);
    for (lane, weight) in [(0, 1.0), (1, 2.0), (2, 4.0)] {
        let share = load.share(lane) * 7.0 / weight;
        assert!((share - 1.0).abs() < 0.01, "weight {weight}: {share} of its share");
    }
}

#[test]
fn devices_that_are_about_equal_share_evenly() {
    let mut load = Load::new(&[(1, 100_000), (1, 180_000), (1, 120_000)]);
    load.run(60_000);
    for lane in 0..3 {
        assert!((load.share(lane) * 3.0 - 1.0).abs() < 0.02, "{:?}", load.started);
    }
}

#[test]
fn slow_flows_hold_little_and_keep_their_floor() {
    let lanes: Vec<_> = (0..48).map(|at| (1, if at < 32 { 1_200_000 } else { 100_000 })).collect();
    let mut load = Load::new(&lanes);
    load.run(200_000);
    load.started.fill(0);
    load.run(200_000);
    let slow: f64 = (0..32).map(|lane| load.share(lane)).sum();
    assert!(slow > 0.05, "slow flows together got {slow}");
    assert!(slow < 0.15, "slow flows together got {slow}");
    assert!(load.started.iter().all(|started| *started > 0), "{:?}", load.started);
}

#[test]
fn nobody_saves_up_while_it_has_nothing_to_do() {
    let mut load = Load::new(&[(1, 100_000), (1, 100_000)]);
    load.order.leave(1);
    load.run(10_000);
    load.order.join(1);
    load.started.fill(0);
    load.run(1000);
    assert!(load.started[1] <= 520, "{:?}", load.started);
}
