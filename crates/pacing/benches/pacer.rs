//! What admission costs a command: `cargo bench -p nvmeof-pacing`.

use std::collections::VecDeque;
use std::hint::black_box;
use std::sync::Arc;

use criterion::{BatchSize, Criterion, Throughput, criterion_group, criterion_main};
use nvmeof_pacing::policy::{self, CreditConfig, Policy};
use nvmeof_pacing::{BufferCredit, Cost, FlowConfig, FlowId, Outcome, Pacer, PacerConfig, Permit};

const MIB: u64 = 1 << 20;
const IO: Cost = Cost::data(4096);

fn credit(budget: u64) -> Box<dyn Policy> {
    let config = CreditConfig { budget, largest: 1 << 20, cores: 4 };
    let shared = BufferCredit::shared(config).expect("the budget holds the largest I/O");
    Box::new(shared.core(0, Arc::new(|| ())))
}

/// Makes the chain of one pacer.
type Chain = fn() -> Vec<Box<dyn Policy>>;

fn policies() -> [(&'static str, Chain); 3] {
    [
        ("no policy", Vec::new),
        ("none", || vec![Box::new(policy::None)]),
        ("buffer-credit", || vec![credit(256 * MIB)]),
    ]
}

/// One command in an idle pacer: it joins its lane, starts at once and ends.
fn uncontended(c: &mut Criterion) {
    let mut group = c.benchmark_group("uncontended");
    group.throughput(Throughput::Elements(1));
    for (name, policies) in policies() {
        group.bench_function(name, |bench| {
            let mut pacer = Pacer::new(policies(), PacerConfig::default());
            let flow = pacer.add_flow(FlowConfig::weight(1));
            bench.iter(|| {
                pacer.enqueue(flow, black_box(IO), 7).expect("it fits");
                let (token, permit) = pacer.next(1).expect("it starts");
                pacer.release(permit, Outcome::Completed, 2);
                token
            });
        });
        // As a reactor does it: each turn asks until there is nothing more, so that credit not in
        // use is laid open for other cores after every command. The worst case, queue depth 1.
        group.bench_function(format!("{name}, two turns"), |bench| {
            let mut pacer = Pacer::new(policies(), PacerConfig::default());
            let flow = pacer.add_flow(FlowConfig::weight(1));
            bench.iter(|| {
                pacer.enqueue(flow, black_box(IO), 7).expect("it fits");
                let (token, permit) = pacer.next(1).expect("it starts");
                assert!(pacer.next(1).is_none());
                pacer.release(permit, Outcome::Completed, 2);
                assert!(pacer.next(2).is_none());
                token
            });
        });
    }
    group.finish();
}

/// 64 flows that always have something waiting, 32 commands in flight: each that ends is followed
/// by the next flow's.
fn backlogged(c: &mut Criterion) {
    let mut group = c.benchmark_group("64 flows backlogged");
    group.throughput(Throughput::Elements(1));
    for (name, policies) in policies() {
        group.bench_function(name, |bench| {
            let (mut pacer, mut running) = start(policies(), 64, 32);
            bench.iter(|| turn_over(&mut pacer, &mut running, IO));
            finish(pacer, running);
        });
    }
    group.finish();
}

/// The budget is out and commands wait: each that ends lets one start, and then none.
fn budget_bound(c: &mut Criterion) {
    let mut group = c.benchmark_group("budget-bound");
    group.throughput(Throughput::Elements(1));
    for (name, bytes) in [("4 KiB", 4096), ("128 KiB", 128 << 10)] {
        let in_flight = 96;
        group.bench_function(name, |bench| {
            let budget = u64::from(bytes) * in_flight;
            let policies = vec![credit(budget.max(MIB))];
            let (mut pacer, mut running) = start_with(policies, 64, Cost { bytes });
            bench.iter(|| {
                turn_over(&mut pacer, &mut running, Cost { bytes });
                assert!(pacer.next(2).is_none(), "the budget is out");
            });
            finish(pacer, running);
        });
    }
    group.finish();
}

/// A flow comes and goes, with a queue's commands in its lane.
fn flows(c: &mut Criterion) {
    c.bench_function("flow added, filled with 32, removed", |bench| {
        let mut pacer = Pacer::new(Vec::new(), PacerConfig::default());
        bench.iter_batched(
            || (),
            |()| {
                let flow = pacer.add_flow(FlowConfig::weight(1));
                for token in 0..32 {
                    pacer.enqueue(flow, IO, token).expect("it fits");
                }
                pacer.remove_flow(flow)
            },
            BatchSize::SmallInput,
        );
    });
}

type Running = VecDeque<(FlowId, Permit)>;

/// A pacer with two commands waiting in each flow and `in_flight` started.
fn start(policies: Vec<Box<dyn Policy>>, flows: usize, in_flight: usize) -> (Pacer, Running) {
    let mut pacer = filled(policies, flows, IO, 2 + in_flight);
    let mut running = Running::new();
    for _ in 0..in_flight {
        let (_, permit) = pacer.next(1).expect("it starts");
        running.push_back((permit.flow(), permit));
    }
    (pacer, running)
}

/// A pacer that has started all it may.
fn start_with(policies: Vec<Box<dyn Policy>>, flows: usize, cost: Cost) -> (Pacer, Running) {
    let mut pacer = filled(policies, flows, cost, 300);
    let mut running = Running::new();
    while let Some((_, permit)) = pacer.next(1) {
        running.push_back((permit.flow(), permit));
    }
    (pacer, running)
}

fn filled(policies: Vec<Box<dyn Policy>>, flows: usize, cost: Cost, each: usize) -> Pacer {
    let mut pacer = Pacer::new(policies, PacerConfig { flow_depth: each + 1 });
    for _ in 0..flows {
        let flow = pacer.add_flow(FlowConfig::weight(1));
        for _ in 0..each {
            pacer.enqueue(flow, cost, 7).expect("it fits");
        }
    }
    pacer
}

/// One command ends, its host sends another, and the next in line starts.
fn turn_over(pacer: &mut Pacer, running: &mut Running, cost: Cost) {
    let (flow, permit) = running.pop_front().expect("some run");
    pacer.release(permit, Outcome::Completed, 2);
    pacer.enqueue(flow, black_box(cost), 7).expect("it fits");
    let (_, permit) = pacer.next(2).expect("the next starts");
    running.push_back((permit.flow(), permit));
}

fn finish(mut pacer: Pacer, running: Running) {
    for (_, permit) in running {
        pacer.release(permit, Outcome::Completed, 3);
    }
}

criterion_group!(benches, uncontended, backlogged, budget_bound, flows);
criterion_main!(benches);
