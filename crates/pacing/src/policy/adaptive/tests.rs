//! Tests of the controller against machines given by a formula.

mod flood;
mod parts;
mod shifts;

use nvmeof_random::SplitMix64;

use super::controller::{AdaptiveState, BudgetController, Load};
use super::sample::{Charging, Totals};

/// Bytes of a command.
const IO: f64 = 131_072.0;

/// A machine given by a formula: hosts keep commands in flight at fast and slow devices, and all
/// data leaves through one network. Times are in µs, rates in commands per µs.
struct Plant {
    controller: BudgetController,
    /// Rate of the network with this number of commands in memory.
    network: Box<dyn Fn(f64) -> f64>,
    fast: f64,
    slow: f64,
    /// Part of the commands that hosts send to the slow devices.
    slow_part: f64,
    /// Number of slow devices.
    slow_devices: u64,
    /// The last measurement in which they counted.
    measurement: u64,
    /// Slow devices hold ready data: all their commands are in memory.
    holds_ready_data: bool,
    /// Commands that the hosts keep in flight or waiting.
    offered: f64,
    /// Largest deviation of a rate from its mean, as a part of it.
    noise: f64,
    random: SplitMix64,
    weights_differ: bool,
    commands: f64,
    totals: Totals,
    now: u64,
}

/// The plant with one budget.
#[derive(Clone, Copy)]
struct Flow {
    rate: f64,
    in_flight: f64,
    charged: f64,
    in_network: f64,
    slow: f64,
    rate_slow: f64,
    is_bounded: bool,
}

/// Means over a time.
#[derive(Debug, Clone, Copy, Default)]
struct Means {
    rate: f64,
    /// Median of the commands in the network.
    in_network: f64,
    /// Part of the time with a bound.
    bounded: f64,
}

impl Plant {
    /// Devices that take `device`, behind a network of this rate.
    fn new(device: f64, network: impl Fn(f64) -> f64 + 'static) -> Self {
        Self {
            controller: BudgetController::new(4),
            network: Box::new(network),
            fast: device,
            slow: device,
            slow_part: 0.0,
            slow_devices: 0,
            measurement: 0,
            holds_ready_data: false,
            offered: 512.0,
            noise: 0.0,
            random: SplitMix64::new(1),
            weights_differ: false,
            commands: 0.0,
            totals: Totals::default(),
            now: 1,
        }
    }

    fn status(&self) -> AdaptiveState {
        self.controller.status().state
    }

    /// Returns the state in which every command waits `wait` for the network.
    fn with_wait(&self, wait: f64) -> (Flow, f64) {
        let Self { fast, slow, slow_part, .. } = *self;
        // Without a bound each host keeps its number in flight.
        let open = (1.0 - slow_part) * self.offered / (fast + wait).max(1e-9);
        let open_slow = slow_part * self.offered / (slow + wait).max(1e-9);
        let budget = self.controller.budget().map_or(1e9, |budget| budget as f64 / IO);
        // With one they take turns, except for the price. What one leaves the other gets.
        let budget = budget.max(1.0);
        let is_full = self.controller.charging() == Charging::Full;
        let ratio = if slow_part == 0.0 { 0.0 } else { 1.0 / self.controller.slow_price() };
        let time = (fast + wait).max(1e-9);
        let time_of_slow = if is_full { slow + wait } else { time };
        let turns = budget / (time + ratio * time_of_slow);
        let rate_slow = ((budget - turns.min(open) * time) / time_of_slow).min(open_slow);
        let rate_fast = ((budget - rate_slow * time_of_slow) / time).min(open);
        let rate = rate_fast + rate_slow;
        let in_network = rate * wait;
        let at_slow = rate_slow * slow;
        let in_flight = in_network + rate_fast * fast + at_slow;
        let flow = Flow {
            rate,
            in_flight,
            charged: (rate_fast * time + rate_slow * time_of_slow).min(in_flight),
            in_network,
            slow: at_slow + rate_slow * wait,
            rate_slow,
            is_bounded: rate_fast < open || rate_slow < open_slow,
        };
        (flow, (self.network)(in_network + if self.holds_ready_data { at_slow } else { 0.0 }))
    }

    /// Finds the shortest wait at which the network takes the output of the devices.
    fn flow(&self) -> Flow {
        let is_enough = |wait| {
            let (flow, takes) = self.with_wait(wait);
            flow.rate <= takes
        };
        let (mut low, mut high) = (0.0, 0.0);
        while !is_enough(high) {
            (low, high) = (high, 1.25 * high + 0.1);
        }
        for _ in 0..30 {
            let wait = f64::midpoint(low, high);
            if is_enough(wait) { high = wait } else { low = wait }
        }
        self.with_wait(high).0
    }

    /// Lets `elapsed` ns pass.
    fn pass(&mut self, flow: Flow, elapsed: f64) -> f64 {
        let rate = flow.rate * (1.0 + self.noise * (2.0 * self.random.unit() - 1.0));
        let residence = |commands: f64| whole(commands * IO * elapsed / 1024.0);
        self.commands += rate * elapsed / 1000.0;
        let totals = &mut self.totals;
        totals.commands = whole(self.commands);
        totals.bytes = whole(self.commands * IO);
        totals.residence += residence(flow.in_flight);
        let counts_all = self.controller.charging() == Charging::Open;
        totals.charged += residence(if counts_all { flow.in_flight } else { flow.charged });
        totals.network += residence(flow.in_network);
        totals.slow += residence(flow.slow);
        totals.slow_bytes += whole(flow.rate_slow * elapsed / 1000.0 * IO);
        if std::mem::replace(&mut self.measurement, self.controller.measurement())
            != self.controller.measurement()
        {
            totals.slow_devices += self.slow_devices;
        }
        totals.deferred += u64::from(flow.is_bounded) * whole(rate * elapsed / 1000.0);
        self.now += whole(elapsed);
        rate
    }

    /// Runs for this number of updates, and returns the means of the last half.
    fn run(&mut self, updates: u32) -> Means {
        let (mut means, mut time, mut in_network) = (Means::default(), 0.0, Vec::new());
        for update in 0..updates {
            let load =
                Load { usual: whole(self.fast * 1000.0), weights_differ: self.weights_differ };
            let pause = self.controller.update(self.totals, load, self.now);
            let (flow, is_open) = (self.flow(), self.controller.budget().is_none());
            // An update that needs more commands is repeated.
            let elapsed = (pause as f64).max(80.0 / flow.rate * 1000.0);
            let rate = self.pass(flow, elapsed);
            if update >= updates / 2 {
                time += elapsed;
                means.rate += rate * elapsed;
                in_network.push(flow.in_network);
                means.bounded += if is_open { 0.0 } else { elapsed };
            }
        }
        in_network.sort_by(f64::total_cmp);
        let in_network = in_network[in_network.len() / 2];
        Means { rate: means.rate / time, in_network, bounded: means.bounded / time }
    }
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "positive, and far from the end of what a u64 holds"
)]
fn whole(value: f64) -> u64 {
    value as u64
}

/// A network that slows down gradually with more than `cache` commands in memory.
fn slope(most: f64, cache: f64) -> impl Fn(f64) -> f64 {
    move |memory| most / (1.0 + 0.02 * (memory - cache).max(0.0))
}

/// A network that loses `part` of its rate with more than `cache` commands in memory.
fn cliff(most: f64, cache: f64, part: f64) -> impl Fn(f64) -> f64 {
    move |memory| if memory > cache { most * (1.0 - part) } else { most }
}

/// A machine on which each command in flight gains a little, as on cores that do more per turn.
fn ever_rising() -> Plant {
    Plant::new(30.0, |memory| 3.0 * (memory + 2.0) / (memory + 30.0))
}

#[test]
fn without_overshoot_nothing_is_bounded_in_the_long_run() {
    for device in [1.0, 20.0, 100.0, 500.0, 2000.0] {
        for (offered, noise) in [(8.0, 0.0), (64.0, 0.0), (512.0, 0.0), (512.0, 0.05), (512.0, 0.2)]
        {
            let mut plant = Plant::new(device, |_| 0.176);
            (plant.offered, plant.noise) = (offered, noise);
            let means = plant.run(60_000);
            let case = format!("{device} us, {offered} offered, noise {noise}: {means:?}");
            assert!(means.bounded < 0.05, "{case}");
            // A budget may cost nothing at present, but later it may.
            let is_open = (0..2000).any(|_| {
                plant.run(1);
                plant.controller.budget().is_none()
            });
            assert!(is_open, "{case}, {:?}", plant.controller);
        }
    }
}

#[test]
fn past_an_overshoot_the_best_budget_is_held() {
    for device in [20.0, 100.0, 500.0, 2000.0] {
        for cache in [12.0, 40.0, 120.0] {
            for (is_cliff, noise) in [(false, 0.0), (false, 0.05), (true, 0.0), (true, 0.05)] {
                let mut plant = match is_cliff {
                    true => Plant::new(device, cliff(0.176, cache, 0.4)),
                    false => Plant::new(device, slope(0.176, cache)),
                };
                plant.noise = noise;
                plant.offered = 1024.0;
                let means = plant.run(20_000);
                let case = format!(
                    "{device} us, cache {cache}, cliff {is_cliff}, noise {noise}: {means:?}"
                );
                assert_eq!(plant.status(), AdaptiveState::Held, "{case}");
                assert!(means.rate > 0.88 * 0.176, "{case}, {:?}", plant.controller);
                assert!(means.in_network < 1.25 * cache + 4.0, "{case}");
            }
        }
    }
}

/// The bound would cost most of the rate once devices are slower.
#[test]
fn an_overshoot_that_is_gone_bounds_no_more() {
    for noise in [0.0, 0.05, 0.1] {
        let mut plant = Plant::new(100.0, slope(0.176, 20.0));
        plant.noise = noise;
        plant.run(5000);
        assert_eq!(plant.status(), AdaptiveState::Held, "noise {noise}");
        plant.network = Box::new(|_| 0.176);
        (plant.fast, plant.slow) = (1000.0, 1000.0);
        let means = plant.run(20_000);
        assert!(means.rate > 0.93 * 0.176, "noise {noise}: {means:?}, {:?}", plant.controller);
    }
}

#[test]
fn where_each_command_in_flight_gains_none_is_held_back_for_long() {
    for noise in [0.0, 0.1] {
        for seed in 0..8 {
            let mut plant = ever_rising();
            (plant.noise, plant.random) = (noise, SplitMix64::new(seed));
            let most = plant.flow().rate;
            plant.run(2000);
            for part in 0..20 {
                let means = plant.run(4000);
                assert!(
                    means.rate > 0.9 * most,
                    "noise {noise}, seed {seed}, part {part}: {means:?} of {most}, {:?}",
                    plant.controller
                );
            }
        }
    }
}

#[test]
fn where_no_data_waits_for_the_network_nothing_is_tried() {
    for (device, offered) in [(100.0, 8.0), (100.0, 15.0), (2000.0, 64.0), (2000.0, 300.0)] {
        let mut plant = Plant::new(device, |_| 0.176);
        plant.offered = offered;
        for _ in 0..4000 {
            plant.run(1);
            assert_eq!(plant.controller.budget(), None, "{device} us, {offered} offered");
        }
        assert_eq!(plant.controller.status().trials, 0, "{device} us, {offered} offered");
    }
}

#[test]
fn hosts_that_offer_less_than_the_budget_are_not_bounded() {
    let mut plant = Plant::new(100.0, slope(0.176, 20.0));
    plant.run(5000);
    assert_eq!(plant.status(), AdaptiveState::Held);
    plant.offered = 4.0;
    plant.run(2000);
    assert_eq!((plant.status(), plant.controller.budget()), (AdaptiveState::Open, None));
    // They are bounded again when they come back.
    plant.offered = 512.0;
    let means = plant.run(5000);
    assert!(means.rate > 0.93 * 0.176, "{means:?}, {:?}", plant.controller);
}

#[test]
fn a_clock_that_stands_still_or_goes_back_does_no_harm() {
    let mut plant = Plant::new(100.0, slope(0.176, 20.0));
    for _ in 0..20 {
        plant.run(277);
        let load = Load { usual: 100_000, weights_differ: false };
        plant.controller.update(plant.totals, load, plant.now);
        let before = plant.controller.budget();
        for _ in 0..100 {
            assert_eq!(plant.controller.update(plant.totals, load, plant.now), 0);
        }
        assert_eq!(plant.controller.budget(), before);
        plant.now = 5;
    }
    let means = plant.run(5000);
    assert_eq!(plant.status(), AdaptiveState::Held);
    assert!(means.rate > 0.93 * 0.176, "{means:?}");
}

/// Half of the commands are for 16 devices that take 20 times as long as the others. Without a
/// bound far too much is in memory.
fn with_slow_devices(holds_ready_data: bool) -> Plant {
    let mut plant = Plant::new(100.0, slope(0.1, 40.0));
    (plant.slow, plant.slow_part, plant.holds_ready_data) = (2000.0, 0.5, holds_ready_data);
    plant.slow_devices = 16;
    plant
}

#[test]
fn slow_devices_that_hold_no_memory_are_charged_in_part() {
    let mut plant = with_slow_devices(false);
    let means = plant.run(20_000);
    assert!(means.rate > 0.93 * 0.1, "{means:?}, {:?}", plant.controller);
    assert_eq!(plant.status(), AdaptiveState::Held);
    assert_eq!(plant.controller.charging(), Charging::Usual, "{:?}", plant.controller);
}

#[test]
fn slow_devices_that_hold_ready_data_are_charged_in_full() {
    let mut plant = with_slow_devices(true);
    let means = plant.run(20_000);
    assert!(means.rate > 0.9 * 0.1, "{means:?}, {:?}", plant.controller);
    assert!(plant.controller.status().charges_slow_devices, "{:?}", plant.controller);
}

/// One slow device pays alone for the gain of the full charge, or 16 share it.
#[test]
fn no_slow_device_loses_more_than_all_gain() {
    for (devices, is_full) in [(1, false), (16, true)] {
        let mut plant = with_slow_devices(true);
        (plant.slow, plant.slow_devices) = (1000.0, devices);
        plant.run(4_000);
        let status = plant.controller.status();
        assert_eq!(status.charges_slow_devices, is_full, "{devices}: {:?}", plant.controller);
    }
}

#[test]
fn for_different_weights_a_budget_is_held_that_costs_about_nothing() {
    for device in [20.0, 100.0, 500.0] {
        for noise in [0.0, 0.05] {
            let mut plant = Plant::new(device, |_| 0.176);
            (plant.weights_differ, plant.noise) = (true, noise);
            let means = plant.run(10_000);
            let case = format!("{device} us, noise {noise}: {means:?}, {:?}", plant.controller);
            assert_eq!(plant.status(), AdaptiveState::ShortQueue, "{case}");
            assert!(means.rate > 0.95 * 0.176, "{case}");
            let commands = plant.controller.budget().expect("it is held") as f64 / IO;
            assert!(commands < 3.0 * device * 0.176 + 16.0, "{commands} commands, {case}");
        }
    }
}

#[test]
fn what_covers_hung_commands_is_forgotten() {
    let mut plant = Plant::new(100.0, slope(0.176, 20.0));
    plant.run(5000);
    let before = plant.controller.budget().expect("it is held");
    plant.controller.cover_hung(1 << 24);
    let covered = plant.controller.budget().expect("it is held");
    assert!(covered.abs_diff(before + (1 << 24)) <= 1, "{covered}, {before} before");
    let means = plant.run(5000);
    let after = plant.controller.budget().expect("it is held");
    assert!(after < 2 * before, "{after}, {before} before");
    assert!(means.rate > 0.93 * 0.176, "{means:?}, {:?}", plant.controller);
}
