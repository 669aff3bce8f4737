//! Tests of shares, on one core and on several, with a budget that is always exhausted.

use std::sync::Arc;

use super::core_offset::{MAX_LAG, MAX_LEAD};
use super::{PROBE, ResidenceFairQueue, VirtualTime};
use crate::permit::CommandOutcome;
use crate::policy::CompletedCommand;
use crate::scheduler::{Dispatched, Pause, Scheduler};
use crate::{Cost, FlowConfig};

/// Flows that always wait, each served by a device that takes `device_time` ns.
struct Load {
    scheduler: ResidenceFairQueue,
    virtual_time: Arc<VirtualTime>,
    device_time: Vec<u64>,
    started: Vec<u64>,
    now: u64,
}

const BYTES: u32 = 131_072;

#[test]
fn a_command_that_does_not_complete_tells_no_device_time() {
    let virtual_time = VirtualTime::new(1);
    let mut scheduler = ResidenceFairQueue::new(Arc::clone(&virtual_time), 0);
    scheduler.add(0, FlowConfig::weight(1));
    for (outcome, usual) in [(CommandOutcome::Cancelled, 0), (CommandOutcome::Completed, 80_000)] {
        scheduler.count_start(0, BYTES);
        let cost = Cost::data(BYTES);
        let done = CompletedCommand { cost, device: 0, outcome, started: 1, network: NETWORK };
        scheduler.count_end(0, &done, 1 + 80_000 + NETWORK);
        virtual_time.refresh();
        assert!(virtual_time.usual_device_time().abs_diff(usual) <= 1, "{outcome:?}");
    }
}
/// Time for which the network holds each command of [`Load`], in ns.
const NETWORK: u64 = 10_000;

impl Load {
    fn new(flows: &[(u16, u64)]) -> Self {
        let virtual_time = VirtualTime::new(1);
        let mut scheduler = ResidenceFairQueue::new(Arc::clone(&virtual_time), 0);
        for (flow, (weight, _)) in (0..).zip(flows) {
            scheduler.add(flow, FlowConfig::weight(*weight));
            scheduler.flow_backlogged(flow, Pause::Idle);
        }
        let device_time = flows.iter().map(|flow| flow.1).collect();
        Self { scheduler, virtual_time, device_time, started: vec![0; flows.len()], now: 1 }
    }

    fn run(&mut self, commands: u32) {
        for at in 0..commands {
            let flow = self.scheduler.select(self.now).expect("lanes wait").slot;
            self.scheduler.on_dispatch(flow, BYTES, Dispatched::Selected, self.now);
            self.started[flow as usize] += 1;
            let started = self.now;
            self.now += 1000;
            let network = NETWORK;
            let done = CompletedCommand {
                cost: Cost::data(BYTES),
                device: 0,
                outcome: CommandOutcome::Completed,
                started,
                network,
            };
            self.scheduler.on_complete(
                flow,
                &done,
                started + self.device_time[flow as usize] + network,
            );
            if at % 500 == 0 {
                self.virtual_time.refresh();
            }
        }
    }

    fn share(&self, flow: usize) -> f64 {
        self.started[flow] as f64 / self.started.iter().sum::<u64>() as f64
    }
}

#[test]
fn equal_devices_share_by_weight() {
    let mut load = Load::new(&[(1, 100_000), (2, 100_000), (4, 100_000)]);
    load.run(70_000);
    for (flow, weight) in [(0, 1.0), (1, 2.0), (2, 4.0)] {
        let share = load.share(flow) * 7.0 / weight;
        assert!((share - 1.0).abs() < 0.01, "weight {weight}: {share} of its share");
    }
}

/// Price of slow flows in the tests below.
const PRICE: f64 = 8.0;

/// Checks the shares of flows whose devices take this long, with and without a price for slow ones.
fn assert_shares(device_time: [u64; 3], is_slow: [bool; 3]) {
    for price in [1.0, PRICE] {
        let mut load = Load::new(&device_time.map(|device_time| (1, device_time)));
        load.virtual_time.charge(price, NETWORK);
        load.run(20_000);
        load.started.fill(0);
        load.run(60_000);
        let part = is_slow.map(|is_slow| if is_slow { 1.0 / price } else { 1.0 });
        for flow in 0..3 {
            let share = load.share(flow) / part[flow] * part.iter().sum::<f64>();
            assert!((share - 1.0).abs() < 0.03, "{device_time:?}, {price}: {:?}", load.started);
        }
    }
}

#[test]
fn slow_devices_get_an_even_share_unless_they_have_a_price() {
    assert_shares([100_000, 1_200_000, 10_000_000], [false, true, true]);
}

#[test]
fn devices_that_are_about_equal_share_evenly() {
    assert_shares([100_000, 180_000, 120_000], [false; 3]);
}

#[test]
fn devices_that_answer_at_once_are_not_told_apart() {
    assert_shares([1, 40, 2000], [false; 3]);
}

#[test]
fn many_slow_flows_with_a_price_leave_the_others_most_and_are_all_served() {
    let flows: Vec<_> = (0..48).map(|at| (1, if at < 32 { 1_200_000 } else { 100_000 })).collect();
    let mut load = Load::new(&flows);
    load.virtual_time.charge(PRICE, NETWORK);
    load.run(200_000);
    load.started.fill(0);
    load.run(200_000);
    let slow: f64 = (0..32).map(|flow| load.share(flow)).sum();
    let expected = 32.0 / PRICE / (16.0 + 32.0 / PRICE);
    assert!((slow - expected).abs() < 0.02, "slow flows together got {slow}");
    assert!(load.started.iter().all(|started| *started > 0), "{:?}", load.started);
}

#[test]
fn nobody_saves_up_while_it_has_nothing_to_do() {
    let mut load = Load::new(&[(1, 100_000), (1, 100_000)]);
    load.scheduler.flow_idle(1, Pause::Idle);
    load.run(10_000);
    load.scheduler.flow_backlogged(1, Pause::Idle);
    load.started.fill(0);
    load.run(1000);
    assert!(load.started[1] <= 520, "{:?}", load.started);
}

/// A command that completed 1 ns after its start.
fn done() -> CompletedCommand {
    let (cost, outcome) = (Cost::data(BYTES), CommandOutcome::Completed);
    CompletedCommand { cost, device: 0, outcome, started: 1, network: 1 }
}

/// The only flow of a core stays busy while more urgent flows wait elsewhere, and is soon far ahead
/// of them. A flow that resumes after a pause does not wait until all have caught up with that.
#[test]
fn who_goes_out_of_turn_does_not_take_the_virtual_time_along() {
    let virtual_time = VirtualTime::new(2);
    let [mut ahead, mut behind] =
        [0, 1].map(|core| ResidenceFairQueue::new(Arc::clone(&virtual_time), core));
    ahead.add(0, FlowConfig::weight(1));
    ahead.flow_backlogged(0, Pause::Idle);
    for flow in 0..2 {
        behind.add(flow, FlowConfig::weight(4));
        behind.flow_backlogged(flow, Pause::Idle);
    }
    let urgency =
        |scheduler: &mut ResidenceFairQueue| scheduler.select(1).expect("a lane waits").urgency;
    for _ in 0..100 {
        ahead.on_dispatch(0, BYTES, Dispatched::OutOfOrder, 1);
        ahead.on_complete(0, &done(), 2);
    }
    assert!(urgency(&mut ahead) > 90 * u64::from(BYTES));
    behind.flow_idle(0, Pause::Idle);
    behind.flow_idle(1, Pause::Idle);
    behind.flow_backlogged(1, Pause::Idle);
    assert_eq!(urgency(&mut behind), 0);
    // In order it advances, and no flow accumulates credit.
    for _ in 0..100 {
        ahead.on_dispatch(0, BYTES, Dispatched::Selected, 1);
        ahead.on_complete(0, &done(), 2);
    }
    behind.flow_backlogged(0, Pause::Idle);
    behind.flow_idle(1, Pause::Idle);
    assert!(urgency(&mut behind) > 90 * u64::from(BYTES));
}

/// Two cores that work at their own speed while no budget is exhausted. One has a single flow, the
/// other as many flows as devices that take turns.
struct Uneven {
    virtual_time: Arc<VirtualTime>,
    quick: ResidenceFairQueue,
    busy: ResidenceFairQueue,
    now: u64,
}

impl Uneven {
    const FLOWS: u32 = 8;
    /// Time of each command.
    const HOLD: u64 = 1000;

    fn new() -> Self {
        let virtual_time = VirtualTime::new(2);
        let [mut quick, mut busy] =
            [0, 1].map(|core| ResidenceFairQueue::new(Arc::clone(&virtual_time), core));
        quick.add(0, FlowConfig::weight(1));
        quick.flow_backlogged(0, Pause::Idle);
        for flow in 0..Self::FLOWS {
            busy.add(flow, FlowConfig::weight(1));
            busy.flow_backlogged(flow, Pause::Idle);
        }
        let mut uneven = Self { virtual_time, quick, busy, now: 1 };
        for _ in 0..10_000 {
            let flow = uneven.step();
            uneven.comes_back(flow);
        }
        uneven
    }

    /// Starts a command on either core, which completes immediately on the quick one; returns the
    /// flow of the busy one.
    fn step(&mut self) -> u32 {
        self.now += Self::HOLD;
        let started = [&mut self.quick, &mut self.busy].map(|scheduler| {
            let flow = scheduler.select(self.now).expect("lanes wait").slot;
            scheduler.on_dispatch(flow, BYTES, Dispatched::Selected, self.now);
            flow
        });
        self.quick.on_complete(started[0], &self.done(), self.now + Self::HOLD);
        self.virtual_time.refresh();
        started[1]
    }

    fn comes_back(&mut self, flow: u32) {
        self.busy.on_complete(flow, &self.done(), self.now + Self::HOLD);
    }

    fn done(&self) -> CompletedCommand {
        CompletedCommand { started: self.now, ..done() }
    }

    /// Counts the commands of the busy core that start before one of this flow.
    fn passed_over(&mut self, flow: u32) -> u64 {
        let mut others = 0;
        loop {
            let next = self.step();
            self.comes_back(next);
            if next == flow {
                return others;
            }
            others += 1;
        }
    }
}

/// Commands that all flows of a core together may start before one that joins as near as allowed,
/// plus some more.
const A_FEW: u64 = Uneven::FLOWS as u64 * (2 * MAX_LEAD);

#[test]
fn who_pauses_on_a_core_that_is_behind_goes_on_with_its_neighbours() {
    let mut uneven = Uneven::new();
    uneven.busy.flow_idle(3, Pause::Idle);
    uneven.busy.flow_backlogged(3, Pause::Idle);
    let others = uneven.passed_over(3);
    assert!(others < A_FEW, "{others} commands of the others went before it");
}

#[test]
fn whose_device_pauses_on_a_core_that_is_behind_goes_on_with_its_neighbours() {
    let mut uneven = Uneven::new();
    let silent = uneven.step();
    for _ in 0..50 {
        let flow = uneven.step();
        assert_ne!(flow, silent, "nothing of it comes back");
        uneven.comes_back(flow);
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
    let urgency =
        |scheduler: &mut ResidenceFairQueue| scheduler.select(1).expect("lanes wait").urgency;
    let ahead = urgency(&mut uneven.quick) - urgency(&mut uneven.busy);
    // Virtual time itself is about eight commands behind a lone flow.
    assert!(ahead < (MAX_LAG + 16) * u64::from(BYTES), "{ahead} bytes");
}

/// Small commands bypass all flows, however far ahead that puts their own. When they are no longer
/// small, the flow does not wait until the others have caught up completely. A flow that joins in
/// that time is not put behind it.
#[test]
fn what_went_first_as_small_is_not_paid_for_for_long() {
    let small = BYTES / 32;
    let mut scheduler = ResidenceFairQueue::new(VirtualTime::new(1), 0);
    for flow in 0..3 {
        scheduler.add(flow, FlowConfig::weight(1));
    }
    scheduler.flow_backlogged(0, Pause::Idle);
    scheduler.flow_backlogged(1, Pause::Idle);
    for _ in 0..1_000_000 {
        for flow in [0, 2] {
            scheduler.on_dispatch(flow, small, Dispatched::Small, 1);
            scheduler.on_complete(flow, &CompletedCommand { cost: Cost::data(small), ..done() }, 2);
        }
    }
    scheduler.flow_backlogged(2, Pause::Idle);
    let mut alone = 0;
    while scheduler.select(1).expect("they wait").slot == 1 {
        scheduler.on_dispatch(1, BYTES, Dispatched::Selected, 1);
        scheduler.on_complete(1, &done(), 2);
        alone += 1;
        assert!(alone <= ResidenceFairQueue::MOST_CHARGES, "the small ones' lanes are not served");
    }
    assert!(alone > 1, "what they had as small counts");
}

/// The more urgent flows of another core are never served, for example because the whole budget
/// hangs. A new flow is then not served alone for as long as that lasted.
#[test]
fn who_goes_out_of_turn_for_long_is_still_served_beside_a_new_flow() {
    let mut scheduler = ResidenceFairQueue::new(VirtualTime::new(2), 0);
    scheduler.add(0, FlowConfig::weight(1));
    scheduler.flow_backlogged(0, Pause::Idle);
    for _ in 0..100_000 {
        scheduler.on_dispatch(0, BYTES, Dispatched::OutOfOrder, 1);
        scheduler.on_complete(0, &done(), 2);
    }
    // On another port: the flows of one port stay within a ring of keys anyway.
    scheduler.add(1, FlowConfig { network_port: 1, ..FlowConfig::weight(1) });
    scheduler.flow_backlogged(1, Pause::Idle);
    let mut alone = 0;
    while scheduler.select(1).expect("two lanes wait").slot == 1 {
        scheduler.on_dispatch(1, BYTES, Dispatched::OutOfOrder, 1);
        scheduler.on_complete(1, &done(), 2);
        alone += 1;
        assert!(alone <= ResidenceFairQueue::MOST_CHARGES + 1, "the first is not served");
    }
    // From then on by their weights, although virtual time does not advance.
    let mut started = [0_u32; 2];
    for _ in 0..10_000 {
        let flow = scheduler.select(1).expect("two lanes wait").slot;
        scheduler.on_dispatch(flow, BYTES, Dispatched::OutOfOrder, 1);
        scheduler.on_complete(flow, &done(), 2);
        started[flow as usize] += 1;
    }
    assert!(started[0].abs_diff(started[1]) < 200, "{started:?}");
}

/// Flows whose commands complete when the test says so.
struct Busy {
    scheduler: ResidenceFairQueue,
    now: u64,
}

impl Busy {
    fn new(weights: &[u16]) -> Self {
        let mut scheduler = ResidenceFairQueue::new(VirtualTime::new(1), 0);
        for (flow, weight) in (0..).zip(weights) {
            scheduler.add(flow, FlowConfig::weight(*weight));
            scheduler.flow_backlogged(flow, Pause::Idle);
        }
        Self { scheduler, now: 1 }
    }

    fn start(&mut self) -> u32 {
        let flow = self.scheduler.select(self.now).expect("lanes wait").slot;
        self.scheduler.on_dispatch(flow, BYTES, Dispatched::Selected, self.now);
        flow
    }

    fn over(&mut self, flow: u32, outcome: CommandOutcome) {
        let cost = Cost::data(BYTES);
        let started = self.now.saturating_sub(HOLD);
        let done = CompletedCommand { cost, device: 0, outcome, started, network: 0 };
        self.scheduler.on_complete(flow, &done, self.now);
    }
}

/// Time of a command of [`Busy`], in ns.
const HOLD: u64 = 100_000;
/// Commands, of 16, that a stalled flow may hold before its first probe.
const MOST_HELD: u32 = 12;
/// Probes in 6250 times [`HOLD`].
const PROBES: u32 = 2;

#[test]
fn of_flows_served_alike_the_one_with_the_least_in_flight_is_next() {
    for outcome in [CommandOutcome::Completed, CommandOutcome::Failed, CommandOutcome::Cancelled] {
        let mut busy = Busy::new(&[1; 4]);
        let mut started: Vec<u32> = (0..12).map(|_| busy.start()).collect();
        started.sort_unstable();
        assert_eq!(started, [0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 3]);
        // By its tag alone flow 1 would be one of four; its device has no work.
        for _ in 0..3 {
            busy.over(1, outcome);
        }
        assert_eq!([busy.start(), busy.start()], [1, 1], "{outcome:?}");
    }
}

/// Commands of flow 0 complete immediately, those of flow 1 after eight more of that flow.
fn assert_shared_evenly_where_one_is_quicker(mut busy: Busy) {
    let mut started = [0_u32; 2];
    let mut out = std::collections::VecDeque::new();
    for _ in 0..20_000 {
        let flow = busy.start();
        started[flow as usize] += 1;
        if flow == 0 {
            busy.over(0, CommandOutcome::Completed);
        } else {
            out.push_back(flow);
        }
        if out.len() > 8 {
            busy.over(out.pop_front().expect("it was asked"), CommandOutcome::Completed);
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
    busy.scheduler.set_weight(1, 16);
    assert_eq!([busy.start(), busy.start(), busy.start()], [1, 1, 1]);
    busy.scheduler.set_weight(1, 1);
    assert_eq!([busy.start(), busy.start()], [0, 0]);
}

/// Makes a flow on each of these ports, all served alike, with nothing in flight.
fn on_paths(port_queues: &[u16]) -> Busy {
    let mut busy = Busy { scheduler: ResidenceFairQueue::new(VirtualTime::new(1), 0), now: 1 };
    for (flow, network_port) in (0..).zip(port_queues) {
        busy.scheduler
            .add(flow, FlowConfig { network_port: *network_port, ..FlowConfig::weight(1) });
        busy.scheduler.flow_backlogged(flow, Pause::Idle);
    }
    // This establishes the charge of a command.
    for _ in 0..100 * port_queues.len() {
        let flow = busy.start();
        busy.over(flow, CommandOutcome::Completed);
    }
    busy
}

#[test]
fn of_paths_about_equally_urgent_the_one_with_the_least_in_flight_is_next() {
    let mut busy = on_paths(&[0, 0, 1]);
    for flow in [0, 0, 1, 1, 2, 2, 2] {
        busy.scheduler.on_dispatch(flow, BYTES, Dispatched::Selected, busy.now);
    }
    busy.over(2, CommandOutcome::Completed);
    // Flow 2 is one command ahead of the others, but they have four in flight and it has two.
    assert_eq!(busy.start(), 2);
    // Now it is three ahead, including its bytes in flight.
    assert_eq!([busy.start(), busy.start()].map(|flow| flow < 2), [true; 2]);
}

/// Makes core `core` with a flow to each of these devices, and with known commands.
fn to_devices(devices: &[u32], virtual_time: &Arc<VirtualTime>, core: usize) -> Busy {
    let mut busy =
        Busy { scheduler: ResidenceFairQueue::new(Arc::clone(virtual_time), core), now: 1 };
    for (flow, device) in (0..).zip(devices) {
        busy.scheduler.add(flow, FlowConfig { device: *device, ..FlowConfig::weight(1) });
        busy.scheduler.flow_backlogged(flow, Pause::Idle);
    }
    for _ in 0..100 * devices.len() {
        let flow = busy.start();
        busy.now += HOLD;
        busy.over(flow, CommandOutcome::Completed);
    }
    busy
}

/// Bytes in flight of another core count.
#[test]
fn of_flows_about_equally_urgent_the_one_whose_device_has_the_least_in_flight_is_next() {
    let virtual_time = VirtualTime::new(2);
    let mut one = to_devices(&[0, 1, 2], &virtual_time, 0);
    let mut other = to_devices(&[0, 1, 2], &virtual_time, 1);
    for flow in [0, 0, 0, 2, 2] {
        other.scheduler.on_dispatch(flow, BYTES, Dispatched::Selected, other.now);
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
    busy.scheduler.add(2, FlowConfig::weight(1));
    for _ in 0..16 {
        busy.scheduler.on_dispatch(2, BYTES, Dispatched::Selected, busy.now);
    }
    busy.scheduler.remove(2);
    assert_eq!(
        [0, 1].map(|network_port| busy.scheduler.in_flight_view.on_network_port(network_port)),
        [0, 0]
    );
    assert_eq!(busy.scheduler.in_flight_view.at_device(busy.scheduler.flows[2].device_port), 0);
}

/// Keeps 16 in flight; flow 0 stalls from now on. Returns the largest number that it has in flight.
fn stand_still(busy: &mut Busy, rounds: u32) -> u32 {
    let mut out = std::collections::VecDeque::new();
    let mut held = 0;
    for _ in 0..rounds {
        while out.len() + (held as usize) < 16 {
            match busy.start() {
                0 => held += 1,
                flow => out.push_back(flow),
            }
        }
        busy.now += HOLD / 16;
        let Some(flow) = out.pop_front() else { break };
        busy.over(flow, CommandOutcome::Completed);
    }
    for flow in out {
        busy.over(flow, CommandOutcome::Completed);
    }
    held
}

#[test]
fn a_flow_that_stands_still_does_not_fill_the_memory() {
    for weights in [[1; 4], [2, 4, 4, 4]] {
        let mut busy = Busy::new(&weights);
        for flow in 0..4 {
            busy.scheduler.on_dispatch(flow, BYTES, Dispatched::Selected, busy.now);
        }
        busy.now += HOLD;
        (0..4).for_each(|flow| busy.over(flow, CommandOutcome::Completed));
        let held = stand_still(&mut busy, 100_000);
        assert!((1..=MOST_HELD + PROBES).contains(&held), "{held} of 16 with {weights:?}");
        // When it resumes it does not catch up on that time, except for its last delay.
        (0..held).for_each(|_| busy.over(0, CommandOutcome::Completed));
        let mut flows = [0; 4];
        for _ in 0..400 {
            let flow = busy.start();
            flows[flow as usize] += 1;
            busy.over(flow, CommandOutcome::Completed);
        }
        let fair = 400 * u32::from(weights[0]) / weights.iter().map(|w| u32::from(*w)).sum::<u32>();
        assert!(flows[0] <= fair + 8 * held, "{flows:?} with {weights:?}");
    }
}

/// No other flow waits: a stalled flow gets everything available.
#[test]
fn a_flow_alone_is_next_however_long_it_stands_still() {
    let mut busy = Busy::new(&[1]);
    busy.start();
    busy.now += HOLD;
    busy.over(0, CommandOutcome::Completed);
    for _ in 0..1000 {
        busy.now += 100 * HOLD;
        assert_eq!(busy.start(), 0);
    }
}

/// A flow to a drive that never answered is judged by the time of commands elsewhere.
#[test]
fn a_flow_that_never_answered_does_not_fill_the_memory() {
    let mut busy = Busy::new(&[1, 1, 1]);
    for _ in 0..100 {
        let flow = busy.start();
        busy.now += HOLD;
        busy.over(flow, CommandOutcome::Completed);
    }
    busy.scheduler.flow_idle(0, Pause::Idle);
    busy.scheduler.add(0, FlowConfig::weight(1));
    busy.scheduler.flow_backlogged(0, Pause::Idle);
    let held = stand_still(&mut busy, 100_000);
    assert!((1..=MOST_HELD + PROBES).contains(&held), "{held} of 16");
}

/// Runs many flows with few in flight at a time, so that each is idle for long between its turns.
/// The first commands of flow 0 never complete, all others do. Returns the commands that flow 0
/// starts in the second half, relative to its even share.
fn share_while_some_hang(weight: u16, hang: u32) -> f64 {
    const FLOWS: u32 = 256;
    let mut busy = Busy::new(&[weight; FLOWS as usize]);
    let (mut held, mut started) = (0, 0);
    let mut out = std::collections::VecDeque::new();
    let rounds = 2000 * FLOWS;
    for round in 0..rounds {
        while out.len() + (held as usize) < 16 {
            let flow = busy.start();
            if flow == 0 && held < hang {
                held += 1;
                continue;
            }
            started += u32::from(flow == 0 && round >= rounds / 2);
            out.push_back(flow);
        }
        busy.now += HOLD / 16;
        busy.over(out.pop_front().expect("some are out"), CommandOutcome::Completed);
    }
    f64::from(started) * f64::from(FLOWS) / f64::from(rounds / 2)
}

#[test]
fn a_command_that_hangs_holds_up_no_other_of_its_flow() {
    // Of two, the second is the first probe.
    for (weight, hang) in [(1, 1), (1, 2), (4, 2), (u16::MAX, 2)] {
        let share = share_while_some_hang(weight, hang);
        assert!((0.9..1.1).contains(&share), "{share} of its share, weight {weight}, {hang} hang");
    }
}

/// Hung commands are no longer counted as hung once they end, with any outcome.
#[test]
fn what_hung_and_came_back_hangs_no_more() {
    for outcome in [CommandOutcome::Completed, CommandOutcome::Failed, CommandOutcome::Cancelled] {
        let mut busy = Busy::new(&[1, 1]);
        for flow in [0, 0, 0, 1] {
            busy.scheduler.on_dispatch(flow, BYTES, Dispatched::Selected, busy.now);
        }
        busy.now += HOLD;
        busy.over(1, CommandOutcome::Completed);
        busy.now += HOLD << PROBE;
        while busy.start() != 0 {
            busy.over(1, CommandOutcome::Completed);
        }
        assert_eq!(busy.scheduler.flows[0].stall_probes, 1);
        busy.over(0, CommandOutcome::Completed);
        assert!(!busy.scheduler.flows[0].is_serving(), "{:?}", busy.scheduler.flows[0]);
        for left in (0..3).rev() {
            busy.over(0, outcome);
            assert_eq!(u32::from(busy.scheduler.flows[0].hung_charges), left * BYTES / 4096);
        }
    }
}

/// Flows without any completion use the first known time of another flow.
#[test]
fn a_drive_that_is_dead_from_the_start_does_not_fill_the_memory() {
    let mut busy = Busy::new(&[1; 4]);
    let held = stand_still(&mut busy, 100_000);
    assert!((1..=MOST_HELD + PROBES).contains(&held), "{held} of 16");
}
