//! The measured load: a core with flows that always have waiting commands.

use std::hint::black_box;
use std::mem::forget;
use std::sync::Arc;
use std::time::{Duration, Instant};

use nvmeof_pacing::{
    CommandOutcome, CoreHandle, Cost, FlowConfig, FlowId, Nanos, PacedMachine, Pacer, PacerConfig,
    Permit, PolicyConfig, RateSpec, SharedPolicy, Tenant, TenantLimits, Tenants, TokenBucketConfig,
};

const LARGEST: u32 = 1 << 20;
/// A small read.
pub(crate) const IO: Cost = Cost::data(4096);
/// Time from one command to the next at the full number in flight, for policies that read the
/// clock.
pub(crate) const STEP: Nanos = 100;

/// Commands of each flow that start before more are queued: few enough to stay in the processor's
/// cache.
const A_ROUND: u32 = 10;

/// Returns `flows` flows, all to one device.
pub(crate) fn one_way(flows: usize) -> Vec<FlowConfig> {
    vec![FlowConfig::weight(1); flows]
}

/// Returns `flows` flows, over 16 devices and 2 ports.
pub(crate) fn many_ways(flows: u16) -> Vec<FlowConfig> {
    let flow = |number: u16| FlowConfig {
        device: u32::from(number % 16),
        network_port: number % 2,
        ..FlowConfig::weight(1)
    };
    (0..flows).map(flow).collect()
}

/// Returns policies with room for all commands that the benches have in flight.
pub(crate) fn policies() -> [(&'static str, PolicyConfig); 4] {
    // Faster than the commands arrive (4 KiB in 100 ns): the bucket never runs dry.
    let pace = RateSpec::Rate(100_000_000_000);
    [
        ("none", PolicyConfig::None),
        ("buffer-credit", PolicyConfig::BufferCredit { budget: 256 << 20 }),
        (
            "token-bucket",
            PolicyConfig::TokenBucket(TokenBucketConfig { pace, burst: None, budget: None }),
        ),
        ("adaptive", PolicyConfig::Adaptive),
    ]
}

/// A core with flows that always have waiting commands.
#[derive(Debug)]
pub(crate) struct Load {
    pacer: Pacer,
    flows: Vec<FlowId>,
    pub(crate) running: Running,
    cost: Cost,
    pub(crate) now: Nanos,
}

impl Load {
    /// Creates a load with these flows and this number of commands in flight.
    pub(crate) fn new(
        shared: &SharedPolicy,
        core: usize,
        flows: &[FlowConfig],
        in_flight: usize,
        cost: Cost,
    ) -> Self {
        let each = in_flight + 2;
        let mut pacer =
            shared.pacer(core, Arc::new(|| ()), PacerConfig { flow_depth: each + in_flight });
        let flows: Vec<FlowId> = flows.iter().map(|&flow| pacer.add_flow(flow)).collect();
        let running = Running::new(in_flight);
        let mut load = Self { pacer, flows, running, cost, now: 1 };
        load.wait(u32::try_from(each).expect("a few"));
        load.fill();
        load
    }

    /// Creates a load in which nothing waits: each command starts when it arrives.
    pub(crate) fn without_queue(shared: &SharedPolicy, flows: &[FlowConfig], each: usize) -> Self {
        let config = PacerConfig { flow_depth: each + 1 };
        let mut pacer = shared.pacer(0, Arc::new(|| ()), config);
        let flows: Vec<FlowId> = flows.iter().map(|&flow| pacer.add_flow(flow)).collect();
        let running = Running::new(each * flows.len());
        let mut load = Self { pacer, flows, running, cost: IO, now: 1 };
        for flow in load.flows.repeat(each) {
            load.pacer.enqueue(flow, load.cost, 7).expect("it fits");
            load.fill();
        }
        load
    }

    /// Queues commands until `each` wait on every flow; `each` is not below the current number.
    pub(crate) fn wait(&mut self, each: u32) {
        for &flow in &self.flows {
            let now = self.pacer.flow_stats(flow).map_or(0, |stats| stats.waiting);
            for _ in now..each {
                self.pacer.enqueue(flow, self.cost, 7).expect("it fits");
            }
        }
    }

    /// Gives all flows one host, with limits that it never reaches.
    pub(crate) fn limit(&mut self, machine_cores: usize) {
        let limits = TenantLimits {
            iops: Some(1_000_000_000),
            bandwidth: Some(1_000_000_000_000),
            burst: 10_000_000,
            in_flight: Some(256 << 20),
        };
        let machine = PacedMachine { cores: machine_cores, largest: LARGEST };
        let host = Tenant::new(limits, machine).expect("these can work");
        let core = CoreHandle { index: 0, waker: Arc::new(|| ()) };
        for flow in &self.flows {
            let tenants = Tenants { host: Some(&host), namespace: None };
            self.pacer.set_tenants(*flow, tenants, &core).expect("all fit");
        }
    }

    #[inline]
    pub(crate) fn start(&mut self) -> bool {
        let Some((_, permit)) = self.pacer.next(self.now) else { return false };
        self.running.push(permit);
        true
    }

    /// One command completes, and its host sends another.
    #[inline]
    pub(crate) fn end(&mut self) {
        if let Some(permit) = self.running.pop() {
            let flow = permit.flow();
            self.pacer.release(permit, CommandOutcome::Completed, self.now);
            self.pacer.enqueue(flow, black_box(self.cost), 7).expect("it fits");
        }
    }

    /// Starts commands up to the number in flight, while there is room.
    #[inline]
    pub(crate) fn fill(&mut self) {
        while !self.running.is_full() && self.start() {}
    }

    /// One command completes, its host sends another, and the next one starts.
    #[inline(always)]
    pub(crate) fn turn_over(&mut self) {
        self.turn(true);
    }

    /// Returns the time of `turns` turns without the arrivals from hosts.
    ///
    /// Enough commands wait already. Arrivals are made up between rounds, which is not counted.
    pub(crate) fn time_of_waiting(&mut self, turns: u64) -> Duration {
        let round = self.flows.len() as u64 * u64::from(A_ROUND);
        let mut took = Duration::ZERO;
        let mut left = turns;
        while left > 0 {
            self.wait(2 * A_ROUND);
            let now = left.min(round);
            let start = Instant::now();
            (0..now).for_each(|_| self.turn(false));
            took += start.elapsed();
            left -= now;
        }
        took
    }

    #[inline(always)]
    fn turn(&mut self, sends: bool) {
        if !self.running.is_full() {
            return self.catch_up();
        }
        self.now = self.now.wrapping_add(STEP);
        // The slot of the oldest is the slot of the next one.
        let place = self.running.turn();
        let permit = place.take().expect("the ring is full");
        let flow = permit.flow();
        self.pacer.release(permit, CommandOutcome::Completed, self.now);
        if sends {
            self.pacer.enqueue(flow, black_box(self.cost), 7).expect("it fits");
        }
        match self.pacer.next(self.now) {
            Some((_, permit)) => forget(place.replace(permit)),
            None => self.running.count -= 1,
        }
    }

    /// A turn with fewer than the full number in flight.
    ///
    /// All commands take equally long, so fewer in flight complete more slowly. If a few were
    /// equally fast, adaptive would be right to admit no more.
    #[cold]
    fn catch_up(&mut self) {
        let (are_to_be, are) = (self.running.permits.len(), self.running.count);
        self.now += STEP * are_to_be as Nanos / are.max(1) as Nanos;
        self.end();
        self.fill();
    }

    /// Completes all commands in flight.
    pub(crate) fn finish(mut self) {
        while let Some(permit) = self.running.pop() {
            self.pacer.release(permit, CommandOutcome::Completed, self.now);
        }
    }
}

/// Commands in flight, the oldest first: a ring with a slot for each command of the full number.
///
/// It is part of the measurement, so it does no unnecessary work.
#[derive(Debug)]
pub(crate) struct Running {
    pub(crate) permits: Box<[Option<Permit>]>,
    oldest: usize,
    pub(crate) count: usize,
}

impl Running {
    fn new(in_flight: usize) -> Self {
        Self { permits: (0..in_flight).map(|_| None).collect(), oldest: 0, count: 0 }
    }

    #[inline]
    fn is_full(&self) -> bool {
        self.count == self.permits.len()
    }

    /// Adds a permit; there must be room.
    #[inline]
    fn push(&mut self, permit: Permit) {
        let end = self.oldest + self.count;
        let at = if end < self.permits.len() { end } else { end - self.permits.len() };
        self.permits[at] = Some(permit);
        self.count += 1;
    }

    fn pop(&mut self) -> Option<Permit> {
        let permit = self.turn().take();
        self.count -= usize::from(permit.is_some());
        permit
    }

    /// Returns the slot of the oldest, which becomes the last of the ring.
    #[inline]
    fn turn(&mut self) -> &mut Option<Permit> {
        let oldest = self.oldest;
        self.oldest = if oldest + 1 < self.permits.len() { oldest + 1 } else { 0 };
        &mut self.permits[oldest]
    }
}

/// Creates the state that the cores share.
pub(crate) fn shared(policy: &PolicyConfig, cores: usize) -> SharedPolicy {
    SharedPolicy::new(policy, PacedMachine { cores, largest: LARGEST }).expect("these can work")
}
