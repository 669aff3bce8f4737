//! Tests of shares, on one core and on several, with a budget that is always exhausted.

use std::sync::Arc;

use super::level::{LAG, LEAD};
use super::{PROBE, Residence, VirtualTime};
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
            let lane = self.order.pick(self.now).expect("lanes wait").lane;
            self.order.started(lane, BYTES, self.now);
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
                self.clock.refresh(false);
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

fn assert_shared_evenly(hold: [u64; 3]) {
    let mut load = Load::new(&hold.map(|hold| (1, hold)));
    load.run(60_000);
    for lane in 0..3 {
        assert!((load.share(lane) * 3.0 - 1.0).abs() < 0.02, "{:?}", load.started);
    }
}

#[test]
fn devices_that_are_about_equal_share_evenly() {
    assert_shared_evenly([100_000, 180_000, 120_000]);
}

#[test]
fn devices_that_answer_at_once_are_not_told_apart() {
    // The network holds each command for 10 µs.
    assert_shared_evenly([1, 40, 200]);
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

/// A command that completed 1 ns after its start.
fn done() -> Done {
    let (cost, outcome) = (Cost::data(BYTES), Outcome::Completed);
    Done { cost, device: 0, outcome, started: 1, network: 1 }
}

/// The only lane of a core stays busy while more urgent lanes wait elsewhere, and is soon far ahead
/// of them. A lane that resumes after a pause does not wait until all have caught up with that.
#[test]
fn who_goes_out_of_turn_does_not_take_the_virtual_time_along() {
    let clock = VirtualTime::new(2);
    let [mut ahead, mut behind] = [0, 1].map(|core| Residence::new(Arc::clone(&clock), core));
    ahead.add(0, FlowConfig::weight(1));
    ahead.join(0);
    for lane in 0..2 {
        behind.add(lane, FlowConfig::weight(4));
        behind.join(lane);
    }
    let urgency = |order: &mut Residence| order.pick(1).expect("a lane waits").urgency;
    for _ in 0..100 {
        ahead.started_out_of_turn(0, BYTES, 1);
        ahead.returned(0, &done(), 2);
    }
    assert!(urgency(&mut ahead) > 90 * u64::from(BYTES));
    behind.leave(0);
    behind.leave(1);
    behind.join(1);
    assert_eq!(urgency(&mut behind), 0);
    // In order it advances, and no lane accumulates credit.
    for _ in 0..100 {
        ahead.started(0, BYTES, 1);
        ahead.returned(0, &done(), 2);
    }
    behind.join(0);
    behind.leave(1);
    assert!(urgency(&mut behind) > 90 * u64::from(BYTES));
}

/// Two cores that work at their own speed while no budget is exhausted. One has a single lane, the
/// other as many lanes as devices that take turns.
struct Uneven {
    clock: Arc<VirtualTime>,
    quick: Residence,
    busy: Residence,
    now: u64,
}

impl Uneven {
    const LANES: u32 = 8;
    /// Time of each command.
    const HOLD: u64 = 1000;

    fn new() -> Self {
        let clock = VirtualTime::new(2);
        let [mut quick, mut busy] = [0, 1].map(|core| Residence::new(Arc::clone(&clock), core));
        quick.add(0, FlowConfig::weight(1));
        quick.join(0);
        for lane in 0..Self::LANES {
            busy.add(lane, FlowConfig::weight(1));
            busy.join(lane);
        }
        let mut uneven = Self { clock, quick, busy, now: 1 };
        for _ in 0..10_000 {
            let lane = uneven.step();
            uneven.comes_back(lane);
        }
        uneven
    }

    /// Starts a command on either core, which completes immediately on the quick one; returns the
    /// lane of the busy one.
    fn step(&mut self) -> u32 {
        self.now += Self::HOLD;
        let started = [&mut self.quick, &mut self.busy].map(|order| {
            let lane = order.pick(self.now).expect("lanes wait").lane;
            order.started(lane, BYTES, self.now);
            lane
        });
        self.quick.returned(started[0], &self.done(), self.now + Self::HOLD);
        self.clock.refresh(false);
        started[1]
    }

    fn comes_back(&mut self, lane: u32) {
        self.busy.returned(lane, &self.done(), self.now + Self::HOLD);
    }

    fn done(&self) -> Done {
        Done { started: self.now, ..done() }
    }

    /// Counts the commands of the busy core that start before one of this lane.
    fn passed_over(&mut self, lane: u32) -> u64 {
        let mut others = 0;
        loop {
            let next = self.step();
            self.comes_back(next);
            if next == lane {
                return others;
            }
            others += 1;
        }
    }
}

/// Commands that all lanes of a core together may start before one that joins as near as allowed,
/// plus some more.
const A_FEW: u64 = Uneven::LANES as u64 * (2 * LEAD);

#[test]
fn who_pauses_on_a_core_that_is_behind_goes_on_with_its_neighbours() {
    let mut uneven = Uneven::new();
    uneven.busy.leave(3);
    uneven.busy.join(3);
    let others = uneven.passed_over(3);
    assert!(others < A_FEW, "{others} commands of the others went before it");
}

#[test]
fn whose_device_pauses_on_a_core_that_is_behind_goes_on_with_its_neighbours() {
    let mut uneven = Uneven::new();
    let silent = uneven.step();
    for _ in 0..50 {
        let lane = uneven.step();
        assert_ne!(lane, silent, "nothing of it comes back");
        uneven.comes_back(lane);
    }
    uneven.comes_back(silent);
    let others = uneven.passed_over(silent);
    assert!(others < A_FEW, "{others} commands of the others went before it");
}

/// A core that fell behind is not served alone until it has caught up, if the budget becomes
/// exhausted later.
#[test]
fn a_core_that_does_what_it_can_saves_nothing_up() {
    let mut uneven = Uneven::new();
    let urgency = |order: &mut Residence| order.pick(1).expect("lanes wait").urgency;
    let ahead = urgency(&mut uneven.quick) - urgency(&mut uneven.busy);
    // Virtual time itself is about eight commands behind a lone lane.
    assert!(ahead < (LAG + 16) * u64::from(BYTES), "{ahead} bytes");
}

/// Small commands bypass all lanes, however far ahead that puts their own. When they are no longer
/// small, the lane does not wait until the others have caught up completely. A lane that joins in
/// that time is not put behind it.
#[test]
fn what_went_first_as_small_is_not_paid_for_for_long() {
    let small = BYTES / 32;
    let mut order = Residence::new(VirtualTime::new(1), 0);
    for lane in 0..3 {
        order.add(lane, FlowConfig::weight(1));
    }
    order.join(0);
    order.join(1);
    for _ in 0..1_000_000 {
        for lane in [0, 2] {
            order.started_small(lane, small, 1);
            order.returned(lane, &Done { cost: Cost::data(small), ..done() }, 2);
        }
    }
    order.join(2);
    let mut alone = 0;
    while order.pick(1).expect("they wait").lane == 1 {
        order.started(1, BYTES, 1);
        order.returned(1, &done(), 2);
        alone += 1;
        assert!(alone <= Residence::MOST_CHARGES, "the small ones' lanes are not served");
    }
    assert!(alone > 1, "what they had as small counts");
}

/// The more urgent lanes of another core are never served, for example because the whole budget
/// hangs. A new lane is then not served alone for as long as that lasted.
#[test]
fn who_goes_out_of_turn_for_long_is_still_served_beside_a_new_lane() {
    let mut order = Residence::new(VirtualTime::new(2), 0);
    order.add(0, FlowConfig::weight(1));
    order.join(0);
    for _ in 0..100_000 {
        order.started_out_of_turn(0, BYTES, 1);
        order.returned(0, &done(), 2);
    }
    // On another port: the lanes of one port stay within a ring of keys anyway.
    order.add(1, FlowConfig { path: 1, ..FlowConfig::weight(1) });
    order.join(1);
    let mut alone = 0;
    while order.pick(1).expect("two lanes wait").lane == 1 {
        order.started_out_of_turn(1, BYTES, 1);
        order.returned(1, &done(), 2);
        alone += 1;
        assert!(alone <= Residence::MOST_CHARGES + 1, "the first is not served");
    }
    // From then on by their weights, although virtual time does not advance.
    let mut started = [0_u32; 2];
    for _ in 0..10_000 {
        let lane = order.pick(1).expect("two lanes wait").lane;
        order.started_out_of_turn(lane, BYTES, 1);
        order.returned(lane, &done(), 2);
        started[lane as usize] += 1;
    }
    assert!(started[0].abs_diff(started[1]) < 200, "{started:?}");
}

/// Counts the commands of 100 that lane 1 starts until none may start.
fn starts(load: &mut Load) -> u32 {
    let mut count = 0;
    while count < 100 && load.order.pick(load.now).is_some() {
        load.order.started(1, BYTES, load.now);
        count += 1;
    }
    count
}

#[test]
fn where_the_network_is_busy_slow_lanes_start_their_floor_though_nobody_else_waits() {
    for (is_busy, is_another_there) in [(true, true), (true, false), (false, true)] {
        let mut load = Load::new(&[(1, 100_000), (1, 1_600_000)]);
        load.run(10_000);
        let done = Done {
            cost: Cost::data(BYTES),
            device: 0,
            outcome: Outcome::Completed,
            started: load.now,
            network: 0,
        };
        load.clock.refresh(is_busy);
        load.order.started(0, BYTES, load.now);
        load.order.leave(0);
        if !is_another_there {
            load.now += 10_000_000;
            load.order.returned(0, &Done { started: load.now, ..done }, load.now);
            load.now += 10_000_000;
        }
        let starts = starts(&mut load);
        let all = !is_busy || !is_another_there;
        assert_eq!(starts == 100, all, "{starts}, busy {is_busy}, another {is_another_there}");
        assert!(starts <= 8 || all, "{starts}");
        // No completion would ask again: one may start.
        (0..starts).for_each(|_| load.order.returned(1, &done, load.now));
        if is_another_there {
            load.order.returned(0, &done, load.now);
        }
        assert!(load.order.pick(load.now).is_some(), "nothing is in flight");
    }
}

/// Lanes whose commands complete when the test says so.
struct Busy {
    order: Residence,
    now: u64,
}

impl Busy {
    fn new(weights: &[u16]) -> Self {
        let mut order = Residence::new(VirtualTime::new(1), 0);
        for (lane, weight) in (0..).zip(weights) {
            order.add(lane, FlowConfig::weight(*weight));
            order.join(lane);
        }
        Self { order, now: 1 }
    }

    fn start(&mut self) -> u32 {
        let lane = self.order.pick(self.now).expect("lanes wait").lane;
        self.order.started(lane, BYTES, self.now);
        lane
    }

    fn over(&mut self, lane: u32, outcome: Outcome) {
        let cost = Cost::data(BYTES);
        let started = self.now.saturating_sub(HOLD);
        let done = Done { cost, device: 0, outcome, started, network: 0 };
        self.order.returned(lane, &done, self.now);
    }
}

/// Time of a command of [`Busy`], in ns.
const HOLD: u64 = 100_000;
/// Commands, of 16, that a stalled lane may hold before its first probe.
const MOST_HELD: u32 = 12;
/// Probes in 6250 times [`HOLD`].
const PROBES: u32 = 2;

#[test]
fn of_lanes_served_alike_the_one_with_the_least_in_flight_is_next() {
    for outcome in [Outcome::Completed, Outcome::Failed, Outcome::Withdrawn] {
        let mut busy = Busy::new(&[1; 4]);
        let mut started: Vec<u32> = (0..12).map(|_| busy.start()).collect();
        started.sort_unstable();
        assert_eq!(started, [0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 3]);
        // By its tag alone lane 1 would be one of four; its device has no work.
        for _ in 0..3 {
            busy.over(1, outcome);
        }
        assert_eq!([busy.start(), busy.start()], [1, 1], "{outcome:?}");
    }
}

/// Commands of lane 0 complete immediately, those of lane 1 after eight more of that lane.
fn assert_shared_evenly_where_one_is_quicker(mut busy: Busy) {
    let mut started = [0_u32; 2];
    let mut out = std::collections::VecDeque::new();
    for _ in 0..20_000 {
        let lane = busy.start();
        started[lane as usize] += 1;
        if lane == 0 {
            busy.over(0, Outcome::Completed);
        } else {
            out.push_back(lane);
        }
        if out.len() > 8 {
            busy.over(out.pop_front().expect("it was asked"), Outcome::Completed);
        }
    }
    assert!(started[0].abs_diff(started[1]) <= 20, "{started:?}");
}

/// Bytes in flight are released: they shift the order, not the shares.
#[test]
fn a_device_that_is_quicker_gets_no_more_of_a_budget_for_it() {
    assert_shared_evenly_where_one_is_quicker(Busy::new(&[1, 1]));
}

#[test]
fn a_weight_that_changes_moves_who_waits() {
    let mut busy = Busy::new(&[1, 1]);
    for _ in 0..16 {
        busy.start();
    }
    busy.order.set_weight(1, 16);
    assert_eq!([busy.start(), busy.start(), busy.start()], [1, 1, 1]);
    busy.order.set_weight(1, 1);
    assert_eq!([busy.start(), busy.start()], [0, 0]);
}

/// Makes a lane on each of these paths, all served alike, with nothing in flight.
fn on_paths(paths: &[u16]) -> Busy {
    let mut busy = Busy { order: Residence::new(VirtualTime::new(1), 0), now: 1 };
    for (lane, path) in (0..).zip(paths) {
        busy.order.add(lane, FlowConfig { path: *path, ..FlowConfig::weight(1) });
        busy.order.join(lane);
    }
    // This establishes the charge of a command.
    for _ in 0..100 * paths.len() {
        let lane = busy.start();
        busy.over(lane, Outcome::Completed);
    }
    busy
}

#[test]
fn of_paths_about_equally_urgent_the_one_with_the_least_in_flight_is_next() {
    let mut busy = on_paths(&[0, 0, 1]);
    for lane in [0, 0, 1, 1, 2, 2, 2] {
        busy.order.started(lane, BYTES, busy.now);
    }
    busy.over(2, Outcome::Completed);
    // Lane 2 is one command ahead of the others, but they have four in flight and it has two.
    assert_eq!(busy.start(), 2);
    // Now it is three ahead, including its bytes in flight.
    assert_eq!([busy.start(), busy.start()].map(|lane| lane < 2), [true; 2]);
}

/// Makes core `core` with a lane to each of these devices, and with known commands.
fn to_devices(devices: &[u32], clock: &Arc<VirtualTime>, core: usize) -> Busy {
    let mut busy = Busy { order: Residence::new(Arc::clone(clock), core), now: 1 };
    for (lane, device) in (0..).zip(devices) {
        busy.order.add(lane, FlowConfig { device: *device, ..FlowConfig::weight(1) });
        busy.order.join(lane);
    }
    for _ in 0..100 * devices.len() {
        let lane = busy.start();
        busy.now += HOLD;
        busy.over(lane, Outcome::Completed);
    }
    busy
}

/// Bytes in flight of another core count.
#[test]
fn of_lanes_about_equally_urgent_the_one_whose_device_has_the_least_in_flight_is_next() {
    let clock = VirtualTime::new(2);
    let mut one = to_devices(&[0, 1, 2], &clock, 0);
    let mut other = to_devices(&[0, 1, 2], &clock, 1);
    for lane in [0, 0, 0, 2, 2] {
        other.order.started(lane, BYTES, other.now);
    }
    one.now = other.now + HOLD;
    assert_eq!(one.start(), 1);
    // That one is ahead of the others now.
    assert_eq!(one.start(), 2);
}

/// A device that answers immediately gets no larger share for having little in flight.
#[test]
fn a_device_with_little_in_flight_gets_no_more_in_the_long_run() {
    assert_shared_evenly_where_one_is_quicker(to_devices(&[0, 1], &VirtualTime::new(1), 0));
}

/// A port that drains immediately gets no larger share for it.
#[test]
fn a_path_that_drains_quicker_gets_no_more_in_the_long_run() {
    assert_shared_evenly_where_one_is_quicker(on_paths(&[0, 1]));
}

#[test]
fn what_a_flow_that_was_removed_has_in_flight_is_nothing_of_its_path() {
    let mut busy = on_paths(&[0, 1]);
    busy.order.add(2, FlowConfig::weight(1));
    for _ in 0..16 {
        busy.order.started(2, BYTES, busy.now);
    }
    busy.order.remove(2);
    assert_eq!([0, 1].map(|path| busy.order.loads.on_path(path)), [0, 0]);
    assert_eq!(busy.order.loads.at_device(busy.order.lanes[2].way), 0);
}

/// Keeps 16 in flight; lane 0 stalls from now on. Returns the largest number that it has in flight.
fn stand_still(busy: &mut Busy, rounds: u32) -> u32 {
    let mut out = std::collections::VecDeque::new();
    let mut held = 0;
    for _ in 0..rounds {
        while out.len() + (held as usize) < 16 {
            match busy.start() {
                0 => held += 1,
                lane => out.push_back(lane),
            }
        }
        busy.now += HOLD / 16;
        let Some(lane) = out.pop_front() else { break };
        busy.over(lane, Outcome::Completed);
    }
    for lane in out {
        busy.over(lane, Outcome::Completed);
    }
    held
}

#[test]
fn a_lane_that_stands_still_does_not_fill_the_memory() {
    for weights in [[1; 4], [2, 4, 4, 4]] {
        let mut busy = Busy::new(&weights);
        for lane in 0..4 {
            busy.order.started(lane, BYTES, busy.now);
        }
        busy.now += HOLD;
        (0..4).for_each(|lane| busy.over(lane, Outcome::Completed));
        let held = stand_still(&mut busy, 100_000);
        assert!((1..=MOST_HELD + PROBES).contains(&held), "{held} of 16 with {weights:?}");
        // When it resumes it does not catch up on that time, except for its last delay.
        (0..held).for_each(|_| busy.over(0, Outcome::Completed));
        let mut lanes = [0; 4];
        for _ in 0..400 {
            let lane = busy.start();
            lanes[lane as usize] += 1;
            busy.over(lane, Outcome::Completed);
        }
        let fair = 400 * u32::from(weights[0]) / weights.iter().map(|w| u32::from(*w)).sum::<u32>();
        assert!(lanes[0] <= fair + 8 * held, "{lanes:?} with {weights:?}");
    }
}

/// No other lane waits: a stalled lane gets everything available.
#[test]
fn a_lane_alone_is_next_however_long_it_stands_still() {
    let mut busy = Busy::new(&[1]);
    busy.start();
    busy.now += HOLD;
    busy.over(0, Outcome::Completed);
    for _ in 0..1000 {
        busy.now += 100 * HOLD;
        assert_eq!(busy.start(), 0);
    }
}

/// A flow to a drive that never answered is judged by the time of commands elsewhere.
#[test]
fn a_lane_that_never_answered_does_not_fill_the_memory() {
    let mut busy = Busy::new(&[1, 1, 1]);
    for _ in 0..100 {
        let lane = busy.start();
        busy.now += HOLD;
        busy.over(lane, Outcome::Completed);
    }
    busy.order.leave(0);
    busy.order.add(0, FlowConfig::weight(1));
    busy.order.join(0);
    let held = stand_still(&mut busy, 100_000);
    assert!((1..=MOST_HELD + PROBES).contains(&held), "{held} of 16");
}

/// Runs many lanes with few in flight at a time, so that each is idle for long between its turns.
/// The first commands of lane 0 never complete, all others do. Returns the commands that lane 0
/// starts in the second half, relative to its even share.
fn share_while_some_hang(weight: u16, hang: u32) -> f64 {
    const LANES: u32 = 256;
    let mut busy = Busy::new(&[weight; LANES as usize]);
    let (mut held, mut started) = (0, 0);
    let mut out = std::collections::VecDeque::new();
    let rounds = 2000 * LANES;
    for round in 0..rounds {
        while out.len() + (held as usize) < 16 {
            let lane = busy.start();
            if lane == 0 && held < hang {
                held += 1;
                continue;
            }
            started += u32::from(lane == 0 && round >= rounds / 2);
            out.push_back(lane);
        }
        busy.now += HOLD / 16;
        busy.over(out.pop_front().expect("some are out"), Outcome::Completed);
    }
    f64::from(started) * f64::from(LANES) / f64::from(rounds / 2)
}

#[test]
fn a_command_that_hangs_holds_up_no_other_of_its_lane() {
    // Of two, the second is the first probe.
    for (weight, hang) in [(1, 1), (1, 2), (4, 2), (u16::MAX, 2)] {
        let share = share_while_some_hang(weight, hang);
        assert!((0.9..1.1).contains(&share), "{share} of its share, weight {weight}, {hang} hang");
    }
}

/// Hung commands are no longer counted as hung once they end, with any outcome.
#[test]
fn what_hung_and_came_back_hangs_no_more() {
    for outcome in [Outcome::Completed, Outcome::Failed, Outcome::Withdrawn] {
        let mut busy = Busy::new(&[1, 1]);
        for lane in [0, 0, 0, 1] {
            busy.order.started(lane, BYTES, busy.now);
        }
        busy.now += HOLD;
        busy.over(1, Outcome::Completed);
        busy.now += HOLD << PROBE;
        while busy.start() != 0 {
            busy.over(1, Outcome::Completed);
        }
        assert_eq!(busy.order.lanes[0].probes, 1);
        busy.over(0, Outcome::Completed);
        assert!(!busy.order.lanes[0].is_at_work(), "{:?}", busy.order.lanes[0]);
        for left in (0..3).rev() {
            busy.over(0, outcome);
            assert_eq!(u32::from(busy.order.lanes[0].hangs), left * BYTES / 4096);
        }
    }
}

/// Lanes without any completion use the first known time of another lane.
#[test]
fn a_drive_that_is_dead_from_the_start_does_not_fill_the_memory() {
    let mut busy = Busy::new(&[1; 4]);
    let held = stand_still(&mut busy, 100_000);
    assert!((1..=MOST_HELD + PROBES).contains(&held), "{held} of 16");
}
