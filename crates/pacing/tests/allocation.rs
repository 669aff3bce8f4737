//! Test that nothing is allocated once flows are added, with a counting allocator on a separate
//! thread.
#![cfg(not(loom))]

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

use nvmeof_allocations::allocations;
use nvmeof_pacing::{
    AdaptiveState, CommandOutcome, Cost, FlowConfig, FlowId, Nanos, PacedMachine, Pacer,
    PacerConfig, Permit, PolicyConfig, PrototypeConfig, PrototypePacer, PrototypePool, RateSpec,
    SharedPolicy, TokenBucketConfig,
};

const CORES: usize = 2;
const FLOWS: u16 = 64;
/// Maximum number of commands that wait on a core, which is also the room of each flow.
const DEPTH: usize = 16;
const LARGEST: u32 = 1 << 20;
/// Steps in which the adaptive policy finds a budget, and first sees the devices.
const WARM_UP: usize = 200_000;
/// Sizes in turn, among them 0 and one that is small relative to the others.
const SIZES: [u32; 5] = [128 << 10, 0, 4 << 10, 512 << 10, 64 << 10];

/// A core with flows over several devices and ports, and its commands in flight.
struct CoreHandle {
    pacer: Pacer,
    flows: Vec<FlowId>,
    in_flight: VecDeque<Permit>,
}

impl CoreHandle {
    fn new(shared: &SharedPolicy, core: usize) -> Self {
        let config = PacerConfig { flow_depth: DEPTH };
        let mut pacer = shared.pacer(core, Arc::new(|| ()), config);
        let flow = |number: u16| FlowConfig {
            weight: 1 + number % 3,
            device: u32::from(number % 16),
            network_port: number % 2,
        };
        let flows = (0..FLOWS).map(|number| pacer.add_flow(flow(number))).collect();
        let in_flight = VecDeque::with_capacity(usize::from(FLOWS) * DEPTH * 2);
        Self { pacer, flows, in_flight }
    }

    /// Fills up the queue of waiting commands.
    fn enqueue(&mut self, step: usize) {
        for number in step..step + DEPTH - self.pacer.waiting() {
            let flow = self.flows[number * 7 % self.flows.len()];
            let bytes = SIZES[number % SIZES.len()];
            let cost = if bytes == 0 { Cost::NO_DATA } else { Cost::data(bytes) };
            self.pacer.enqueue(flow, cost, number as u64).expect("not too large");
        }
    }

    /// Starts every command that may start, and completes the oldest.
    fn turn(&mut self, now: Nanos) {
        self.pacer.on_turn(now, 1000);
        while self.in_flight.len() < self.in_flight.capacity() {
            let Some((_, mut permit)) = self.pacer.next(now) else { break };
            permit.device_done(now);
            self.in_flight.push_back(permit);
        }
        if let Some(permit) = self.in_flight.pop_front() {
            self.pacer.release(permit, CommandOutcome::Completed, now);
        }
    }

    fn finish(mut self, now: Nanos) {
        for permit in self.in_flight.drain(..) {
            self.pacer.release(permit, CommandOutcome::Completed, now);
        }
    }
}

fn policies() -> Vec<PolicyConfig> {
    let pace = RateSpec::Rate(50_000_000_000);
    let bucket = TokenBucketConfig { pace, burst: None, budget: Some(8 << 20) };
    let pool = Some(PrototypePool { buffers: 24, cache: 1 });
    let pacer = Some(PrototypePacer {
        period: 1000,
        credit: 1 << 20,
        bypass_below: 0,
        drive_limit: Some(2),
        tuner: None,
    });
    vec![
        PolicyConfig::None,
        PolicyConfig::BufferCredit { budget: 4 << 20 },
        PolicyConfig::TokenBucket(bucket),
        PolicyConfig::Adaptive,
        PolicyConfig::Prototype(PrototypeConfig { pool, pacer }),
    ]
}

#[test]
fn a_pacer_allocates_nothing_once_its_flows_are_there() {
    for policy in policies() {
        let machine = PacedMachine { cores: CORES, largest: LARGEST };
        let shared = SharedPolicy::new(&policy, machine).expect("a sound config");
        let mut cores: Vec<CoreHandle> =
            (0..CORES).map(|core| CoreHandle::new(&shared, core)).collect();
        let mut now = 1;
        let mut run = |steps: Range<usize>| {
            for step in steps {
                now += 1000;
                let core = &mut cores[step % CORES];
                core.enqueue(step);
                core.turn(now);
            }
        };
        run(0..WARM_UP);
        // Weights differ and the network is busy, so that a budget is found.
        let state = shared.status().adaptive.map(|status| status.state);
        assert!(state.is_none_or(|state| state == AdaptiveState::ShortQueue), "{state:?}");
        let before = allocations();
        run(WARM_UP..WARM_UP + 200_000);
        let allocated = allocations() - before;
        let (started, deferred) = cores.iter().fold((0, 0), |(started, deferred), core| {
            let counts = core.pacer.counts();
            (started + counts.started, deferred + counts.deferred)
        });
        assert_eq!(allocated, 0, "{policy:?}: in {started} commands");
        assert!(started > 50_000, "{policy:?}: only {started} started");
        assert!(deferred > 0 || policy == PolicyConfig::None, "{policy:?} held nothing back");
        cores.into_iter().for_each(|core| core.finish(now));
    }
}
