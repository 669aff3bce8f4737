//! Cost of admission per command: `cargo bench -p nvmeof-pacing`.
//!
//! The group `reference` is a plain loop of known length. On a machine that is busy or clocked
//! down, the ratio to it is more meaningful than nanoseconds.

mod load;

use std::hint::black_box;
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::{Duration, Instant};

use criterion::{BatchSize, Criterion, Throughput, criterion_group, criterion_main};
use load::{IO, Load, STEP, many_ways, one_way, policies, shared};
use nvmeof_pacing::{
    CommandOutcome, Cost, FlowConfig, Nanos, Pacer, PacerConfig, PolicyConfig, RateSpec,
    TokenBucketConfig,
};

/// A loop of 100 dependent multiplications: about 400 cycles.
fn reference(c: &mut Criterion) {
    let mut group = c.benchmark_group("reference");
    group.bench_function("100 dependent multiplications", |bench| {
        let mut product = 3u64;
        bench.iter(|| {
            for _ in 0..100 {
                product = product.wrapping_mul(6_364_136_223_846_793_005) ^ (product >> 7);
            }
            black_box(product)
        });
    });
    group.finish();
}

/// Flows that always have waiting commands, 32 commands in flight: after each completion the next
/// flow's command starts.
fn admit_and_release(c: &mut Criterion) {
    for (what, flows) in [
        ("1 flow", one_way(1)),
        ("64 flows", one_way(64)),
        ("64 flows over 16 devices and 2 ports", many_ways(64)),
    ] {
        let mut group = c.benchmark_group(format!("admit and release, {what}"));
        group.throughput(Throughput::Elements(1));
        for (name, policy) in policies() {
            group.bench_function(name, |bench| {
                let mut load = Load::new(&shared(&policy, 4), 0, &flows, 32, IO);
                bench.iter(|| load.turn_over());
                load.finish();
            });
        }
        group.finish();
    }
}

/// Nothing waits: each command starts when it arrives, 32 in flight a flow.
fn start_on_arrival(c: &mut Criterion) {
    for (what, flows) in
        [("64 flows", one_way(64)), ("64 flows over 16 devices and 2 ports", many_ways(64))]
    {
        let mut group = c.benchmark_group(format!("start on arrival, {what}"));
        group.throughput(Throughput::Elements(1));
        for (name, policy) in policies() {
            group.bench_function(name, |bench| {
                let mut load = Load::without_queue(&shared(&policy, 4), &flows, 32);
                bench.iter(|| load.turn_over());
                load.finish();
            });
        }
        group.finish();
    }
}

/// Release of one command and start of the next, which waits already; without the arrivals from
/// hosts.
fn release_and_next(c: &mut Criterion) {
    let mut group = c.benchmark_group("release and next alone, 64 flows");
    group.throughput(Throughput::Elements(1));
    for (name, policy) in policies() {
        group.bench_function(name, |bench| {
            let mut load = Load::new(&shared(&policy, 4), 0, &one_way(64), 32, IO);
            bench.iter_custom(|turns| load.time_of_waiting(turns));
            load.finish();
        });
    }
    group.finish();
}

/// The first group again, with a host whose limits are never reached: the cost of the limits.
fn within_limits(c: &mut Criterion) {
    let mut group = c.benchmark_group("admit and release within limits, 64 flows");
    group.throughput(Throughput::Elements(1));
    for (name, policy) in policies() {
        group.bench_function(name, |bench| {
            let mut load = Load::new(&shared(&policy, 4), 0, &one_way(64), 32, IO);
            load.limit(4);
            bench.iter(|| load.turn_over());
            load.finish();
        });
    }
    group.finish();
}

/// Queue depth 1, as in a reactor.
///
/// Each turn asks until nothing more starts, so that unused credit is published for other cores
/// after every command. This is the worst case.
fn one_a_turn(c: &mut Criterion) {
    let mut group = c.benchmark_group("one command at a time, two turns");
    group.throughput(Throughput::Elements(1));
    for (name, policy) in policies() {
        group.bench_function(name, |bench| {
            let mut pacer = shared(&policy, 4).pacer(0, Arc::new(|| ()), PacerConfig::default());
            let flow = pacer.add_flow(FlowConfig::weight(1));
            let mut now = 0;
            bench.iter(|| {
                now += STEP;
                pacer.enqueue(flow, black_box(IO), 7).expect("it fits");
                let (token, permit) = pacer.next(now).expect("it starts");
                assert!(pacer.next(now).is_none());
                pacer.release(permit, CommandOutcome::Completed, now);
                assert!(pacer.next(now).is_none());
                token
            });
        });
    }
    group.finish();
}

/// The budget or the rate is exhausted and 64 flows wait: each completion starts one command, and
/// then none.
fn bound(c: &mut Criterion) {
    let mut group = c.benchmark_group("bound, 64 flows");
    group.throughput(Throughput::Elements(1));
    let bucket = |budget| {
        let pace = RateSpec::Period(STEP);
        PolicyConfig::TokenBucket(TokenBucketConfig { pace, burst: Some(1), budget })
    };
    let policies = [
        ("buffer-credit", PolicyConfig::BufferCredit { budget: 96 << 17 }),
        ("token-bucket", bucket(None)),
        ("token-bucket with budget", bucket(Some(96 << 17))),
    ];
    for (name, policy) in policies {
        group.bench_function(name, |bench| {
            let mut load =
                Load::new(&shared(&policy, 4), 0, &one_way(64), 96, Cost::data(128 << 10));
            bench.iter(|| turn(&mut load));
            load.finish();
        });
    }
    group.finish();
}

/// One command completes and the next one starts, as in a reactor, which asks until nothing more
/// starts.
#[inline]
fn turn(load: &mut Load) {
    load.now += STEP;
    load.end();
    while load.start() {}
}

/// Several cores under one policy at the same time, each with a clock that it reads once per turn.
///
/// The figure is the time of a turn on each core. It stays constant if cores do not slow each other
/// down (with as many processors).
fn threads(c: &mut Criterion) {
    for (name, policy) in policies() {
        let mut group = c.benchmark_group(format!("threads, {name}"));
        for threads in [1, 2, 4] {
            group.bench_function(threads.to_string(), |bench| {
                bench.iter_custom(|turns| run_threads(&policy, threads, turns));
            });
        }
        group.finish();
    }
}

fn run_threads(policy: &PolicyConfig, threads: usize, turns: u64) -> Duration {
    let shared = shared(policy, threads);
    let barrier = Barrier::new(threads);
    let start = Instant::now();
    let run = |core| {
        let mut load = Load::new(&shared, core, &one_way(64), 32, IO);
        barrier.wait();
        let began = Instant::now();
        // One command completes per turn at the full number in flight, and proportionally fewer
        // below it: all take equally long. If a few were equally fast, adaptive would be right to
        // admit no more, and cores would wait for each other.
        let mut over = 0;
        for _ in 0..turns {
            load.now = Nanos::try_from(start.elapsed().as_nanos()).unwrap_or(Nanos::MAX);
            over += load.running.count;
            if over >= load.running.permits.len() {
                over -= load.running.permits.len();
                load.end();
            }
            load.fill();
        }
        let took = began.elapsed();
        load.finish();
        took
    };
    let run = &run;
    let took: Duration = thread::scope(|scope| {
        let running: Vec<_> = (0..threads).map(|core| scope.spawn(move || run(core))).collect();
        running.into_iter().map(|thread| thread.join().expect("it runs")).sum()
    });
    took / u32::try_from(threads).unwrap_or(1)
}

/// A flow is opened and closed, with a queue's commands in its flow.
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

criterion_group!(
    benches,
    reference,
    admit_and_release,
    start_on_arrival,
    release_and_next,
    within_limits,
    one_a_turn,
    bound,
    threads,
    flows
);
criterion_main!(benches);
