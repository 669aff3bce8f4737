//! Rules of tenant limits, one test each, on several cores in virtual time.
#![cfg(not(loom))]

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use proptest::prelude::*;

use super::{CoreHandle, Tenant, TenantLimits, Tenants};
use crate::{
    Charge, CommandOutcome, Cost, FlowConfig, FlowId, Nanos, PacedMachine, Pacer, PacerConfig,
    Permit, PolicyConfig, RateSpec, SharedPolicy, TokenBucketConfig, TooLarge,
};

const KIB: u32 = 1024;
const MIB: u64 = 1 << 20;
const LARGEST: u32 = 256 * KIB;
const SECOND: u64 = 1_000_000_000;

fn limits(iops: Option<u64>, bandwidth: Option<u64>, burst: Nanos) -> TenantLimits {
    TenantLimits { iops, bandwidth, burst, in_flight: None }
}

fn cap(bytes: u64) -> TenantLimits {
    TenantLimits { in_flight: Some(bytes), ..TenantLimits::default() }
}

/// One core: its pacer, its flows and its running commands.
struct OneCore {
    pacer: Pacer,
    core: CoreHandle,
    woken: Arc<AtomicBool>,
    flows: Vec<Flow>,
    /// With the flow number.
    running: Vec<(usize, Permit)>,
}

#[derive(Debug, Clone, Copy)]
struct Flow {
    id: FlowId,
    host: Option<usize>,
    namespace: Option<usize>,
}

/// Makes a policy, with a bound that the adaptive one would have to find.
fn bounded(policy: &PolicyConfig, machine: PacedMachine) -> SharedPolicy {
    let shared = SharedPolicy::new(policy, machine).unwrap();
    shared.bound(Some(MIB), 0);
    shared
}

struct Bench {
    cores: Vec<OneCore>,
    tenants: Vec<Arc<Tenant>>,
    machine: PacedMachine,
    now: Nanos,
    next_token: u64,
    /// Waiting tokens, with core and flow.
    waiting: BTreeMap<u64, (usize, usize)>,
    /// Starts: time, core, flow, token.
    log: Vec<(Nanos, usize, usize, u64)>,
}

impl Bench {
    fn new(policy: &PolicyConfig, cores: usize, tenants: &[TenantLimits]) -> Self {
        let machine = PacedMachine { cores, largest: LARGEST };
        let shared = bounded(policy, machine);
        let cores = (0..cores).map(|index| {
            let woken = Arc::new(AtomicBool::new(false));
            let waker: crate::Waker = {
                let woken = Arc::clone(&woken);
                Arc::new(move || woken.store(true, Ordering::SeqCst))
            };
            let pacer = shared.pacer(index, Arc::clone(&waker), PacerConfig::default());
            let core = CoreHandle { index, waker };
            OneCore { pacer, core, woken, flows: Vec::new(), running: Vec::new() }
        });
        Self {
            cores: cores.collect(),
            tenants: tenants.iter().map(|limits| Tenant::new(*limits, machine).unwrap()).collect(),
            machine,
            now: 1000,
            next_token: 0,
            waiting: BTreeMap::new(),
            log: Vec::new(),
        }
    }

    fn flow(&mut self, core: usize, config: FlowConfig, host: Option<usize>, ns: Option<usize>) {
        let one = &mut self.cores[core];
        let id = one.pacer.add_flow(config);
        one.flows.push(Flow { id, host, namespace: ns });
        self.assign(core, one_less(self.cores[core].flows.len()));
    }

    fn assign(&mut self, core: usize, flow: usize) {
        let Self { cores, tenants, .. } = self;
        let one = &mut cores[core];
        let Flow { id, host, namespace } = one.flows[flow];
        let tenants = Tenants {
            host: host.map(|at| &tenants[at]),
            namespace: namespace.map(|at| &tenants[at]),
        };
        one.pacer.set_tenants(id, tenants, &one.core).unwrap();
    }

    fn change(&mut self, tenant: usize, limits: TenantLimits) {
        self.tenants[tenant] = self.tenants[tenant].change(limits, self.machine).unwrap();
        for core in 0..self.cores.len() {
            for flow in 0..self.cores[core].flows.len() {
                self.assign(core, flow);
            }
        }
    }

    fn enqueue(&mut self, core: usize, flow: usize, bytes: u32) -> u64 {
        self.enqueue_as(core, flow, bytes, Charge::io(bytes))
    }

    fn enqueue_as(&mut self, core: usize, flow: usize, bytes: u32, charge: Charge) -> u64 {
        let one = &mut self.cores[core];
        self.next_token += 1;
        let (id, token) = (one.flows[flow].id, self.next_token);
        one.pacer.enqueue_charged(id, Cost { bytes }, charge, token).unwrap();
        self.waiting.insert(token, (core, flow));
        token
    }

    /// Starts every command that may start on a core; returns the number.
    fn turn(&mut self, core: usize) -> usize {
        let one = &mut self.cores[core];
        one.woken.store(false, Ordering::SeqCst);
        let before = self.log.len();
        while let Some((token, permit)) = one.pacer.next(self.now) {
            let from = self.waiting.remove(&token).expect("started twice, or never enqueued");
            assert_eq!(from.0, core, "started on another core");
            self.log.push((self.now, core, from.1, token));
            one.running.push((from.1, permit));
        }
        self.log.len() - before
    }

    fn run_woken(&mut self) {
        while let Some(core) =
            (0..self.cores.len()).find(|at| self.cores[*at].woken.load(Ordering::SeqCst))
        {
            self.turn(core);
        }
    }

    fn finish(&mut self, core: usize, which: usize, outcome: CommandOutcome) -> bool {
        let one = &mut self.cores[core];
        if one.running.is_empty() {
            return false;
        }
        let (_, permit) = one.running.swap_remove(which % one.running.len());
        one.pacer.release(permit, outcome, self.now);
        true
    }

    fn finish_all(&mut self) {
        for core in 0..self.cores.len() {
            while self.finish(core, 0, CommandOutcome::Completed) {}
        }
    }

    /// Returns the bytes of buffers in flight of a host's flows.
    fn in_flight(&self, host: usize) -> u64 {
        let of_core = |one: &OneCore| -> u64 {
            let mine = one.running.iter().filter(|(flow, _)| one.flows[*flow].host == Some(host));
            mine.map(|(_, permit)| u64::from(permit.cost().bytes)).sum()
        };
        self.cores.iter().map(of_core).sum()
    }

    /// Advances to the next wake-up time of any core; false if there is none.
    fn pass_time(&mut self) -> bool {
        let due = self.cores.iter().filter_map(|one| one.pacer.next_wakeup()).min();
        let Some(due) = due else { return false };
        self.now = self.now.max(due);
        (0..self.cores.len()).for_each(|core| {
            if self.cores[core].pacer.next_wakeup().is_some_and(|due| due <= self.now) {
                self.turn(core);
            }
        });
        true
    }

    /// Ends everything: all enqueued commands start, and all grants are returned.
    fn drain(mut self) {
        let mut rounds = 0;
        loop {
            (0..self.cores.len()).for_each(|core| {
                self.turn(core);
            });
            self.run_woken();
            let ran = self.cores.iter().any(|one| !one.running.is_empty());
            self.finish_all();
            if !ran && !self.pass_time() {
                break;
            }
            rounds += 1;
            assert!(rounds < 1_000_000, "it never ends: {:?} wait", self.waiting);
        }
        assert!(self.waiting.is_empty(), "these wait for ever: {:?}", self.waiting);
        for one in &mut self.cores {
            assert_eq!((one.pacer.waiting(), one.pacer.outstanding()), (0, 0));
        }
        for tenant in &self.tenants {
            assert_eq!(tenant.counts().taken, 0, "bytes in flight that nobody has: {tenant:?}");
        }
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        self.finish_all();
    }
}

fn one_less(count: usize) -> usize {
    count - 1
}

/// Returns the cost of I/Os under a limit of one of the two kinds, in ns.
fn worth(limits: &TenantLimits, ios: u64, bytes: u64) -> u64 {
    let of = |amount: u64, rate: Option<u64>| {
        rate.map_or(0, |rate| u128::from(amount) * u128::from(SECOND) / u128::from(rate))
    };
    u64::try_from(of(ios, limits.iops).max(of(bytes, limits.bandwidth))).unwrap()
}

fn a_rate() -> impl Strategy<Value = TenantLimits> {
    let iops = 1u64..3_000_000;
    let bandwidth = 100_000u64..20_000_000_000;
    let burst = prop_oneof![Just(0u64), Just(2_000_000), 1u64..50_000_000];
    prop_oneof![
        (iops.clone(), burst.clone()).prop_map(|(iops, burst)| limits(Some(iops), None, burst)),
        (bandwidth.clone(), burst.clone()).prop_map(|(rate, burst)| limits(
            None,
            Some(rate),
            burst
        )),
        (iops, bandwidth, burst).prop_map(|(iops, rate, burst)| limits(
            Some(iops),
            Some(rate),
            burst
        )),
    ]
}

fn some_limits() -> impl Strategy<Value = TenantLimits> {
    let in_flight = prop::option::of((u64::from(LARGEST)..8 * MIB).prop_map(|bytes| bytes));
    let rate = prop_oneof![Just(TenantLimits::default()), a_rate()];
    (rate, in_flight).prop_map(|(rate, in_flight)| TenantLimits { in_flight, ..rate })
}

#[derive(Debug, Clone)]
enum Step {
    Enqueue { core: usize, flow: usize, bytes: u32, in_capsule: bool },
    Turn { core: usize },
    Finish { core: usize, which: usize, outcome: CommandOutcome },
    Cancel { which: usize },
    ReplaceFlow { core: usize, flow: usize },
    Change { tenant: usize, limits: TenantLimits },
    Swap { policy: PolicyConfig },
    Clock { by: i64 },
}

fn a_step() -> impl Strategy<Value = Step> {
    let n = 0usize..64;
    let size = prop_oneof![Just(512), Just(4 * KIB), Just(128 * KIB), 1..=LARGEST];
    let outcome = prop_oneof![Just(CommandOutcome::Completed), Just(CommandOutcome::Failed)];
    let policy = prop_oneof![
        Just(PolicyConfig::None),
        Just(PolicyConfig::Adaptive),
        Just(PolicyConfig::BufferCredit { budget: MIB })
    ];
    let clock = prop_oneof![9 => 1i64..1_000_000, 1 => Just(-SECOND_AGO)];
    prop_oneof![
        20 => (n.clone(), n.clone(), size, any::<bool>()).prop_map(
            |(core, flow, bytes, in_capsule)| Step::Enqueue { core, flow, bytes, in_capsule }),
        10 => n.clone().prop_map(|core| Step::Turn { core }),
        12 => (n.clone(), n.clone(), outcome)
            .prop_map(|(core, which, outcome)| Step::Finish { core, which, outcome }),
        3 => n.clone().prop_map(|which| Step::Cancel { which }),
        2 => (n.clone(), n.clone()).prop_map(|(core, flow)| Step::ReplaceFlow { core, flow }),
        2 => (n, some_limits()).prop_map(|(tenant, limits)| Step::Change { tenant, limits }),
        1 => policy.prop_map(|policy| Step::Swap { policy }),
        8 => clock.prop_map(|by| Step::Clock { by }),
    ]
}

const SECOND_AGO: i64 = 1_000_000_000;

/// Two hosts and two namespaces, with a flow of each pair on every core.
fn pairs(policy: &PolicyConfig, cores: usize, tenants: &[TenantLimits]) -> Bench {
    let mut bench = Bench::new(policy, cores, tenants);
    for core in 0..cores {
        for (host, namespace) in [(0, 2), (0, 3), (1, 2), (1, 3)] {
            bench.flow(core, FlowConfig::weight(1), Some(host), Some(namespace));
        }
    }
    bench
}

fn play(bench: &mut Bench, steps: &[Step]) {
    let cores = bench.cores.len();
    for step in steps {
        match step.clone() {
            Step::Enqueue { core, flow, bytes, in_capsule } => {
                let buffer = if in_capsule { 0 } else { bytes };
                bench.enqueue_as(core % cores, flow % 4, buffer, Charge::io(bytes));
            }
            Step::Turn { core } => {
                bench.turn(core % cores);
            }
            Step::Finish { core, which, outcome } => {
                bench.finish(core % cores, which, outcome);
                bench.turn(core % cores);
            }
            Step::Cancel { which } => {
                let nth = which % bench.waiting.len().max(1);
                let Some((&token, &(core, flow))) = bench.waiting.iter().nth(nth) else { continue };
                let one = &mut bench.cores[core];
                assert!(one.pacer.cancel(one.flows[flow].id, token), "it waits");
                bench.waiting.remove(&token);
            }
            Step::ReplaceFlow { core, flow } => {
                let (core, flow) = (core % cores, flow % 4);
                let one = &mut bench.cores[core];
                for token in one.pacer.remove_flow(one.flows[flow].id) {
                    assert_eq!(bench.waiting.remove(&token), Some((core, flow)));
                }
                assert!(!bench.waiting.values().any(|at| *at == (core, flow)), "some are lost");
                one.flows[flow].id = one.pacer.add_flow(FlowConfig::weight(2));
                bench.assign(core, flow);
            }
            Step::Change { tenant, limits } => bench.change(tenant % 4, limits),
            Step::Swap { policy } => {
                let shared = bounded(&policy, bench.machine);
                for one in &mut bench.cores {
                    let waker = Arc::clone(&one.core.waker);
                    one.pacer.replace(shared.parts(one.core.index, waker)).unwrap();
                }
            }
            Step::Clock { by } => bench.now = bench.now.saturating_add_signed(by).max(1),
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    /// Limits and policies change, hosts leave with commands waiting, commands are aborted, clocks
    /// jump back. Each command still starts exactly once, and all grants are returned in the end.
    #[test]
    fn no_permit_is_lost_when_limits_change_or_hosts_leave(
        tenants in prop::collection::vec(some_limits(), 4),
        cores in 1usize..4,
        steps in prop::collection::vec(a_step(), 1..200),
    ) {
        let mut bench = pairs(&PolicyConfig::Adaptive, cores, &tenants);
        play(&mut bench, &steps);
        bench.drain();
    }

    /// Bytes in flight of a host on all cores never exceed its bound. With a backlog they are at
    /// least the bound minus one largest I/O per core.
    #[test]
    fn bytes_in_flight_of_a_host_stay_within_its_bound(
        bound in u64::from(LARGEST)..4 * MIB,
        cores in 1usize..4,
        sizes in prop::collection::vec(1..=LARGEST, 40),
        ends in prop::collection::vec((0usize..4, 0usize..64), 1..100),
    ) {
        let mut bench = pairs(&PolicyConfig::None, cores, &[cap(bound), TenantLimits::default(),
            TenantLimits::default(), TenantLimits::default()]);
        for core in 0..cores {
            for (nth, bytes) in sizes.iter().enumerate() {
                bench.enqueue(core, nth % 4, *bytes);
            }
        }
        for (core, which) in ends {
            for core in 0..cores {
                bench.turn(core);
                bench.run_woken();
                prop_assert!(bench.in_flight(0) <= bound, "{} of {bound}", bench.in_flight(0));
            }
            let of_host = |(core, flow): &(usize, usize)| bench.cores[*core].flows[*flow].host == Some(0);
            if bench.waiting.values().any(of_host) {
                let least = bound.saturating_sub(u64::from(LARGEST) * cores as u64);
                prop_assert!(bench.in_flight(0) >= least, "{} of {bound}", bench.in_flight(0));
            }
            let others = bench.waiting.values().filter(|at| !of_host(at)).count();
            prop_assert_eq!(others, 0, "who has no limit waits for none");
            bench.finish(core % cores, which, CommandOutcome::Completed);
        }
        bench.drain();
    }

    /// Started commands are worth the rate, to the fraction of a nanosecond. From the start to any
    /// time they exceed it at most by the burst and one granted I/O per core and queue. Over the
    /// whole run they are no less.
    #[test]
    fn the_long_run_rate_of_a_tenant_is_exact(
        rate in a_rate(),
        cores in 1usize..4,
        bytes in prop_oneof![Just(512u32), Just(4 * KIB), 1..=LARGEST],
        in_capsule in any::<bool>(),
    ) {
        let none = TenantLimits::default();
        let mut bench = pairs(&PolicyConfig::None, cores, &[rate, none, none, none]);
        let (begin, buffer) = (bench.now, if in_capsule { 0 } else { bytes });
        let each = worth(&rate, 1000, u64::from(bytes) * 1000).div_ceil(1000).max(1);
        let mut started = 0u64;
        for _ in 0..400 {
            for core in 0..cores {
                while bench.waiting.values().filter(|at| at.0 == core).count() < 8 {
                    bench.enqueue_as(core, bench.waiting.len() % 2, buffer, Charge::io(bytes));
                }
                bench.turn(core);
            }
            bench.finish_all();
            let worth = worth(&rate, bench.log.len() as u64, bench.log.len() as u64 * u64::from(bytes));
            let time = bench.now - begin;
            let slack = rate.burst + each * (1 + 3 * cores as u64) + 2;
            prop_assert!(worth <= time + slack, "{worth} ns worth in {time} (+{slack})");
            prop_assert!(worth + each * (1 + cores as u64) + 2 >= time, "{worth} ns worth in {time}");
            started = bench.log.len() as u64;
            bench.pass_time();
        }
        prop_assert!(started >= 100);
    }

    /// A flow over its limit, however deep, delays no flow within its limits: on the same core, for
    /// the same namespace, of the same host.
    #[test]
    fn a_flow_over_its_limit_holds_up_nobody(
        depth in 1usize..200,
        bytes in 1..=LARGEST,
        others in prop::collection::vec((0usize..3, 1..=LARGEST), 1..20),
    ) {
        // Ten I/Os per second for one host, no limit for the other; one namespace with a rate.
        let slow = limits(Some(10), None, 0);
        let fast = limits(None, Some(100 << 30), SECOND);
        let none = TenantLimits::default();
        for policy in [PolicyConfig::None, PolicyConfig::Adaptive] {
            let mut bench = Bench::new(&policy, 1, &[slow, none, fast, slow]);
            bench.flow(0, FlowConfig::weight(1), Some(0), Some(2));
            bench.flow(0, FlowConfig::weight(1), Some(1), Some(3));
            bench.flow(0, FlowConfig::weight(1), Some(1), Some(2));
            bench.flow(0, FlowConfig::weight(1), Some(1), None);
            bench.flow(0, FlowConfig::weight(1), None, None);
            for _ in 0..depth {
                bench.enqueue(0, 0, bytes);
                bench.enqueue(0, 1, bytes);
            }
            while bench.turn(0) > 0 {
                bench.finish_all();
            }
            for (flow, bytes) in &others {
                let token = bench.enqueue(0, 2 + flow, *bytes);
                bench.turn(0);
                prop_assert!(!bench.waiting.contains_key(&token), "it waits for others under {policy:?}");
                bench.finish_all();
            }
            prop_assert!(depth == 1 || bench.tenants[0].counts().throttled_by_rate > 0);
        }
    }

    /// Flows of one tenant share its limits by their weights.
    #[test]
    fn flows_of_a_tenant_share_its_rate_by_weight(
        weights in prop::collection::vec(1u16..8, 2..5),
        bytes in prop_oneof![Just(4 * KIB), Just(128 * KIB)],
        adaptive in any::<bool>(),
    ) {
        let policy = if adaptive { PolicyConfig::Adaptive } else { PolicyConfig::None };
        let mut bench = Bench::new(&policy, 1, &[limits(Some(10_000), None, 200_000)]);
        for weight in &weights {
            bench.flow(0, FlowConfig::weight(*weight), Some(0), None);
        }
        let rounds = 400 * weights.iter().map(|w| usize::from(*w)).sum::<usize>();
        while bench.log.len() < rounds {
            for flow in 0..weights.len() {
                while bench.waiting.values().filter(|at| at.1 == flow).count() < 4 {
                    bench.enqueue(0, flow, bytes);
                }
            }
            bench.turn(0);
            bench.finish_all();
            bench.pass_time();
        }
        for (flow, weight) in weights.iter().enumerate() {
            let got = bench.log.iter().filter(|entry| entry.2 == flow).count();
            let fair = 400 * usize::from(*weight);
            prop_assert!(got.abs_diff(fair) <= fair / 20 + 8, "{flow} got {got}, not {fair}: {weights:?}");
        }
    }
}

#[test]
fn commands_whose_data_came_along_count_against_the_rate_and_wait_for_nothing_else() {
    let mut bench = Bench::new(
        &PolicyConfig::BufferCredit { budget: MIB },
        1,
        &[TenantLimits { in_flight: Some(MIB), ..limits(Some(100), None, SECOND / 10) }],
    );
    bench.flow(0, FlowConfig::weight(1), Some(0), None);
    bench.flow(0, FlowConfig::weight(1), None, None);
    // The flow without a limit takes the whole budget, and data of the limited one waits for it.
    for _ in 0..8 {
        bench.enqueue(0, 1, LARGEST);
    }
    bench.turn(0);
    bench.enqueue(0, 0, LARGEST);
    assert_eq!(bench.turn(0), 0, "the budget is out");
    for _ in 0..20 {
        bench.enqueue_as(0, 0, 0, Charge::io(4 * KIB));
    }
    // The burst is ten, and the waiting data takes one of them.
    assert_eq!(bench.turn(0), 9);
    // A flush does not count.
    let flush = bench.enqueue_as(0, 0, 0, Charge::NONE);
    bench.turn(0);
    assert!(!bench.waiting.contains_key(&flush));
    let before = bench.log.len();
    assert!(bench.pass_time());
    assert_eq!((bench.log.len() - before, bench.now - 1000), (1, SECOND / 100));
    bench.drain();
}

/// A core that only waits for a rate has nothing to do until the reported time.
#[test]
fn a_limit_wakes_its_core_when_the_next_may_start_and_not_before() {
    let mut bench = Bench::new(&PolicyConfig::Adaptive, 1, &[limits(Some(999), None, 0)]);
    bench.flow(0, FlowConfig::weight(1), Some(0), None);
    (0..1000).for_each(|_| {
        bench.enqueue(0, 0, 4 * KIB);
    });
    bench.turn(0);
    let begin = bench.now;
    for nth in 1..1000 {
        bench.finish_all();
        bench.turn(0);
        let due = bench.cores[0].pacer.next_wakeup().expect("a time");
        let exact = begin + nth * SECOND / 999;
        assert!(due.abs_diff(exact) <= 1, "the {nth}th at {due}, not {exact}");
        bench.now = due - 1;
        assert_eq!(bench.turn(0), 0);
        bench.now = due;
        assert_eq!(bench.turn(0), 1);
    }
    assert_eq!(bench.tenants[0].counts().throttled_by_rate, 999);
    assert!(bench.tenants[0].counts().rate_ns.abs_diff(SECOND) <= 2 * SECOND / 999);
    bench.drain();
}

#[test]
fn too_large_for_a_tenant_is_decided_at_once() {
    let machine = PacedMachine { cores: 1, largest: LARGEST };
    let error = Tenant::new(cap(u64::from(LARGEST) - 1), machine).unwrap_err();
    assert!(error.to_string().contains("raise the budget"), "{error}");
    assert!(Tenant::new(limits(Some(0), None, 1), machine).is_err());
    assert!(Tenant::new(limits(None, Some(0), 1), machine).is_err());
    let mut bench = Bench::new(&PolicyConfig::None, 1, &[cap(MIB)]);
    bench.flow(0, FlowConfig::weight(1), Some(0), None);
    let one = &mut bench.cores[0];
    let refused = one.pacer.enqueue(one.flows[0].id, Cost::data(LARGEST + 1), 1);
    assert_eq!(refused, Err(TooLarge { bytes: LARGEST + 1, largest: LARGEST }));
    assert_eq!(one.pacer.counts().too_large, 1);
    // A command that waits already is not left waiting forever, either.
    let free = one.pacer.add_flow(FlowConfig::weight(1));
    one.pacer.enqueue(free, Cost::data(LARGEST + 1), 2).unwrap();
    let tenants = Tenants { host: Some(&bench.tenants[0]), namespace: None };
    let refused = one.pacer.set_tenants(free, tenants, &one.core);
    assert_eq!(refused, Err(TooLarge { bytes: LARGEST + 1, largest: LARGEST }));
    let (_, permit) = one.pacer.next(1).unwrap();
    one.pacer.release(permit, CommandOutcome::Completed, 1);
}

/// A host with a deep queue and one with a shallow queue share a budget: without a bound the greedy
/// one has nearly all of it.
#[test]
fn a_greedy_host_is_held_to_its_bound_and_the_modest_one_has_the_rest() {
    let shares = |bound: Option<u64>| {
        let none = TenantLimits::default();
        let greedy = bound.map_or(none, cap);
        let policy = PolicyConfig::BufferCredit { budget: 4 * MIB };
        let mut bench = Bench::new(&policy, 1, &[greedy, none]);
        // 31 connections against one.
        for _ in 0..31 {
            bench.flow(0, FlowConfig::weight(1), Some(0), None);
        }
        bench.flow(0, FlowConfig::weight(1), Some(1), None);
        let mut modest = 0;
        for round in 0..400 {
            for flow in 0..32 {
                while bench.waiting.values().filter(|at| at.1 == flow).count() < 16 {
                    bench.enqueue(0, flow, 128 * KIB);
                }
            }
            bench.turn(0);
            modest += usize::try_from(bench.in_flight(1) / MIB).unwrap();
            bench.finish(0, round, CommandOutcome::Completed);
        }
        modest
    };
    assert_eq!(shares(None) / 400, 0, "without a bound the modest host has less than a mebibyte");
    assert!(shares(Some(MIB)) / 400 >= 2, "with one of a mebibyte it has most of four");
}

#[test]
fn a_rate_that_is_raised_counts_for_what_waits_already() {
    let mut bench = Bench::new(&PolicyConfig::None, 1, &[limits(Some(1), None, 0)]);
    bench.flow(0, FlowConfig::weight(1), Some(0), None);
    for _ in 0..100 {
        bench.enqueue(0, 0, 64 * KIB);
    }
    bench.now += 50_000;
    assert_eq!(bench.turn(0), 1);
    bench.now += 1_000_000;
    assert_eq!(bench.turn(0), 0);
    bench.change(0, limits(Some(1_000_000), None, 10_000_000));
    bench.now += 1000;
    assert_eq!(bench.turn(0), 99);
    bench.drain();
}

/// A limit that is never reached costs a flow nothing: it is served by its weight alongside flows
/// without limits.
#[test]
fn a_limit_that_is_not_reached_leaves_a_flow_its_share() {
    let far =
        TenantLimits { in_flight: Some(512 * MIB), ..limits(Some(1_000_000_000), None, SECOND) };
    for policy in [
        PolicyConfig::BufferCredit { budget: MIB },
        PolicyConfig::TokenBucket(TokenBucketConfig {
            pace: RateSpec::Rate(1_000_000_000),
            burst: None,
            budget: Some(MIB),
        }),
        PolicyConfig::Adaptive,
    ] {
        for (bytes, weights) in [(4 * KIB, [1, 1]), (64 * KIB, [4, 1]), (16 * KIB, [1, 4])] {
            for limited in [[true, false], [true, true]] {
                let mut bench = Bench::new(&policy, 1, &[far, far]);
                for flow in 0..2 {
                    let host = limited[flow].then_some(flow);
                    bench.flow(0, FlowConfig::weight(weights[flow]), host, None);
                    (0..64).for_each(|_| _ = bench.enqueue(0, flow, bytes));
                }
                // The first bytes in flight depend on which flow was first.
                for round in 0..8000 {
                    bench.turn(0);
                    bench.now += 10_000;
                    let one = &mut bench.cores[0];
                    if !one.running.is_empty() {
                        let (flow, permit) = one.running.remove(0);
                        one.pacer.release(permit, CommandOutcome::Completed, bench.now);
                        bench.enqueue(0, flow, bytes);
                    }
                    if round == 4000 {
                        bench.log.clear();
                    }
                }
                let got = |flow| bench.log.iter().filter(|entry| entry.2 == flow).count() as f64;
                let share = got(0) / got(1) * f64::from(weights[1]) / f64::from(weights[0]);
                assert!(
                    (0.93..1.08).contains(&share),
                    "{share} of its share: {policy:?}, {bytes} bytes, {weights:?}, {limited:?}"
                );
            }
        }
    }
}

/// A flow with two contended limits waits for both, and gets its part of both.
#[test]
fn a_flow_whose_limits_others_keep_busy_has_its_part_of_both() {
    // Two hosts and two namespaces. The first flow has two limits, each with one rival.
    let rate = limits(Some(1000), None, 0);
    let none = TenantLimits::default();
    let in_flight = cap(LARGEST.into());
    for tenants in [[rate, none, rate, none], [in_flight, none, rate, none]] {
        let mut bench = Bench::new(&PolicyConfig::None, 1, &tenants);
        for (host, namespace) in [(0, 2), (0, 3), (1, 2)] {
            bench.flow(0, FlowConfig::weight(1), Some(host), Some(namespace));
        }
        for _ in 0..2000 {
            for flow in 0..3 {
                while bench.waiting.values().filter(|at| at.1 == flow).count() < 2 {
                    bench.enqueue(0, flow, LARGEST);
                }
            }
            bench.turn(0);
            bench.now += 100_000;
            if bench.now % 500_000 < 100_000 {
                bench.finish_all();
            }
            bench.turn(0);
        }
        let got: Vec<_> = (0..3).map(|f| bench.log.iter().filter(|e| e.2 == f).count()).collect();
        assert!(got[0] >= 60 && got[2] >= 60, "{got:?} in 200 ms of 1000 a second: {tenants:?}");
        bench.drain();
    }
}

/// A command waits for one limit with the grant of another, and is then cancelled, or its flow is
/// removed or gets other limits. The grant is then available to other flows.
#[test]
fn what_is_kept_for_a_command_goes_back_with_it() {
    let (rate, slow) = (limits(Some(1000), None, 0), limits(Some(1), None, 0));
    for how in ["cancelled", "removed", "other limits"] {
        let mut bench = Bench::new(&PolicyConfig::None, 1, &[rate, slow]);
        bench.flow(0, FlowConfig::weight(1), Some(0), Some(1));
        bench.flow(0, FlowConfig::weight(1), Some(0), None);
        bench.enqueue(0, 0, LARGEST);
        assert_eq!(bench.turn(0), 1);
        bench.now += 10_000_000;
        let second = bench.enqueue(0, 0, LARGEST);
        assert_eq!(bench.turn(0), 0, "it has the host's, and waits for the namespace's");
        let flow = bench.cores[0].flows[0].id;
        match how {
            "cancelled" => assert!(bench.cores[0].pacer.cancel(flow, second)),
            "removed" => assert_eq!(bench.cores[0].pacer.remove_flow(flow), [second]),
            _ => {
                bench.cores[0].flows[0].host = None;
                bench.assign(0, 0);
            }
        }
        if how != "other limits" {
            bench.waiting.remove(&second);
        }
        bench.enqueue(0, 1, LARGEST);
        assert_eq!(bench.turn(0), 1, "{how}: the host's is there at once");
        bench.drain();
    }
}

/// Writes with in-capsule data have nothing in flight, so they do not affect flows that wait for
/// the in-flight limit: weights hold.
#[test]
fn writes_in_the_capsule_leave_weights_behind_a_bound_in_flight_as_they_are() {
    let mut bench = Bench::new(&PolicyConfig::None, 1, &[cap(LARGEST.into())]);
    for weight in [4, 1, 1] {
        bench.flow(0, FlowConfig::weight(weight), Some(0), None);
    }
    for _ in 0..1000 {
        for flow in 0..2 {
            while bench.waiting.values().filter(|at| at.1 == flow).count() < 4 {
                bench.enqueue(0, flow, LARGEST);
            }
        }
        (0..100).for_each(|_| _ = bench.enqueue_as(0, 2, 0, Charge::io(4 * KIB)));
        bench.turn(0);
        bench.now += 1000;
        bench.finish_all();
    }
    let got = |flow| bench.log.iter().filter(|entry| entry.2 == flow).count();
    assert!(got(0).abs_diff(800) < 20 && got(1).abs_diff(200) < 20, "{} {}", got(0), got(1));
    bench.drain();
}

#[test]
fn a_bound_that_was_lowered_says_what_is_in_flight_all_the_same() {
    let mut bench = Bench::new(&PolicyConfig::None, 1, &[cap(4 * MIB)]);
    bench.flow(0, FlowConfig::weight(1), Some(0), None);
    (0..12).for_each(|_| _ = bench.enqueue(0, 0, LARGEST));
    assert_eq!(bench.turn(0), 12);
    bench.change(0, cap(MIB));
    assert_eq!(bench.tenants[0].counts().taken, 3 * MIB);
    bench.drain();
}
