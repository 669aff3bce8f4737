//! Tests that the io_pacing model behaves as measured, including its faults.
#![cfg(not(loom))]

use std::sync::Arc;

use super::config::{PrototypeConfig, PrototypePacer, PrototypePool, PrototypeTuner};
use super::tuner::Tuner;
use crate::{
    CommandOutcome, ConfigError, Cost, FlowConfig, FlowId, Nanos, PacedMachine, Pacer, PacerConfig,
    Permit, PolicyConfig, SharedPolicy,
};

const IO: u32 = 128 << 10;
const US: Nanos = 1000;

/// Cores with one flow per device, and their running commands.
struct Cores {
    shared: SharedPolicy,
    cores: Vec<CoreHandle>,
}

struct CoreHandle {
    pacer: Pacer,
    flows: Vec<FlowId>,
    running: Vec<Permit>,
}

impl Cores {
    fn new(cores: usize, devices: u32, config: PrototypeConfig) -> Self {
        let machine = PacedMachine { cores, largest: 1 << 20 };
        let shared = SharedPolicy::new(&PolicyConfig::Prototype(config), machine).unwrap();
        let core = |core| {
            let mut pacer = shared.pacer(core, Arc::new(|| ()), PacerConfig::default());
            let flow = |device| pacer.add_flow(FlowConfig { device, ..FlowConfig::weight(1) });
            let flows = (0..devices).map(flow).collect();
            CoreHandle { pacer, flows, running: Vec::new() }
        };
        let cores = (0..cores).map(core).collect();
        Self { shared, cores }
    }

    fn enqueue(&mut self, core: usize, device: usize, count: usize) {
        let core = &mut self.cores[core];
        for _ in 0..count {
            core.pacer.enqueue(core.flows[device], Cost::data(IO), device as u64).unwrap();
        }
    }

    /// Starts every command that may start; returns the number.
    fn poll(&mut self, core: usize, now: Nanos) -> usize {
        let core = &mut self.cores[core];
        let before = core.running.len();
        while let Some((_, permit)) = core.pacer.next(now) {
            core.running.push(permit);
        }
        core.running.len() - before
    }

    fn end_one(&mut self, core: usize, now: Nanos) {
        let core = &mut self.cores[core];
        let permit = core.running.remove(0);
        core.pacer.release(permit, CommandOutcome::Completed, now);
    }

    fn period(&self) -> Nanos {
        self.shared.status().period.unwrap()
    }
}

impl Drop for Cores {
    fn drop(&mut self) {
        for core in &mut self.cores {
            core.running.drain(..).for_each(std::mem::forget);
        }
    }
}

fn pool(buffers: u32, cache: u32) -> PrototypeConfig {
    PrototypeConfig { pool: Some(PrototypePool { buffers, cache }), pacer: None }
}

fn pacer(period: Nanos) -> PrototypePacer {
    PrototypePacer { period, credit: IO, bypass_below: 0, drive_limit: None, tuner: None }
}

fn paced(pacer: PrototypePacer) -> PrototypeConfig {
    PrototypeConfig { pool: None, pacer: Some(pacer) }
}

/// The hang of test 8: a core that arrives when the pool is empty waits forever, however much the
/// other cores release.
#[test]
fn without_a_cache_a_core_that_finds_nothing_hangs() {
    let mut cores = Cores::new(2, 1, pool(4, 0));
    cores.enqueue(0, 0, 4);
    assert_eq!(cores.poll(0, 0), 4);
    cores.enqueue(1, 0, 1);
    assert_eq!(cores.poll(1, 0), 0);
    for _ in 0..4 {
        cores.end_one(0, 1);
        assert_eq!((cores.poll(0, 1), cores.poll(1, 1)), (0, 0));
    }
    // All four are free, and a core that does not wait gets them.
    cores.enqueue(0, 0, 4);
    assert_eq!((cores.poll(0, 2), cores.poll(1, 2)), (4, 0));
}

/// A core with one cached buffer continues with that one buffer.
#[test]
fn with_a_cache_of_one_a_core_starves() {
    let mut cores = Cores::new(2, 1, pool(8, 1));
    cores.enqueue(0, 0, 100);
    assert_eq!(cores.poll(0, 0), 7, "all but what the other core keeps");
    cores.enqueue(1, 0, 100);
    assert_eq!(cores.poll(1, 0), 1);
    for nth in 1..50 {
        cores.end_one(0, nth);
        cores.end_one(1, nth);
        assert_eq!((cores.poll(0, nth), cores.poll(1, nth)), (1, 1));
    }
    assert_eq!((cores.cores[0].running.len(), cores.cores[1].running.len()), (7, 1));
}

#[test]
fn with_a_cache_of_an_even_share_every_core_runs() {
    let mut cores = Cores::new(4, 1, pool(96, 24));
    for core in 0..4 {
        cores.enqueue(core, 0, 100);
        assert_eq!(cores.poll(core, 0), 24);
    }
}

/// A release serves the core's own queue, then its cache, then the pool.
#[test]
fn what_is_released_goes_home_first() {
    let mut cores = Cores::new(2, 1, pool(4, 1));
    cores.enqueue(0, 0, 4);
    assert_eq!(cores.poll(0, 0), 3);
    cores.end_one(0, 1);
    assert_eq!(cores.poll(0, 1), 1, "its own waiter");
    for _ in 0..3 {
        cores.end_one(0, 2);
    }
    cores.poll(0, 2);
    // One stayed in the cache, two went to the pool.
    cores.enqueue(1, 0, 4);
    assert_eq!(cores.poll(1, 2), 3);
    cores.enqueue(0, 0, 1);
    assert_eq!(cores.poll(0, 2), 1);
}

/// While a command waits, later ones of the same core do not use the pool. The queue is served in
/// order of arrival, whatever the device.
#[test]
fn the_waiting_queue_is_first_come_first_served() {
    let mut cores = Cores::new(2, 2, pool(4, 0));
    cores.enqueue(0, 0, 3);
    cores.poll(0, 0);
    cores.enqueue(1, 0, 3);
    assert_eq!(cores.poll(1, 0), 1);
    for _ in 0..3 {
        cores.end_one(0, 1);
    }
    cores.poll(0, 1);
    cores.enqueue(1, 1, 1);
    assert_eq!(cores.poll(1, 1), 0, "the pool has three, but this core waits for its own");
    for device in [0, 0, 1] {
        cores.end_one(1, 2);
        let (token, permit) = cores.cores[1].pacer.next(2).unwrap();
        assert_eq!(token, device);
        cores.cores[1].running.push(permit);
    }
    // The queue is empty, and the pool is used again.
    cores.poll(1, 3);
    cores.enqueue(1, 0, 3);
    assert_eq!(cores.poll(1, 3), 3);
}

/// A waiting command that is cancelled after its buffer was released keeps nothing.
#[test]
fn a_buffer_for_a_command_that_is_gone_goes_on() {
    let mut cores = Cores::new(2, 1, pool(1, 0));
    cores.enqueue(0, 0, 2);
    assert_eq!(cores.poll(0, 0), 1);
    cores.end_one(0, 1);
    let flow = cores.cores[0].flows[0];
    assert!(cores.cores[0].pacer.cancel(flow, 0));
    cores.enqueue(1, 0, 1);
    assert_eq!(cores.poll(1, 1), 1);
}

/// The period of a core is the global one times the number of cores. Credit of a tick is lost at
/// the next one.
#[test]
fn a_tick_grants_one_io_and_saves_nothing_up() {
    let mut cores = Cores::new(4, 1, paced(pacer(6 * US)));
    cores.enqueue(0, 0, 1000);
    let started: usize = (0..2400 * US).step_by(100).map(|now| cores.poll(0, now)).sum();
    assert_eq!(started, 100);
    assert_eq!(cores.period(), 6 * US);
    // A long time without a poll is worth one tick; the grid stays.
    assert_eq!(cores.poll(0, 5010 * US), 1);
    assert_eq!(cores.poll(0, 5015 * US), 0);
    assert_eq!(cores.cores[0].pacer.next_wakeup(), Some(5016 * US));
    assert_eq!(cores.poll(0, 5016 * US), 1);
}

/// An I/O larger than a tick's credit is paid for by the ticks after it.
#[test]
fn credit_is_in_bytes() {
    let half = PrototypePacer { credit: IO / 2, ..pacer(US) };
    let mut cores = Cores::new(1, 1, paced(half));
    cores.enqueue(0, 0, 1000);
    let started: usize = (0..200 * US).step_by(500).map(|now| cores.poll(0, now)).sum();
    assert_eq!(started, 100);
}

#[test]
fn without_a_period_every_poll_grants_once() {
    let mut cores = Cores::new(4, 1, paced(pacer(0)));
    cores.enqueue(0, 0, 10);
    for poll in 0..10 {
        assert_eq!(cores.poll(0, poll / 2), 1);
    }
    assert_eq!(cores.poll(0, 5), 0);
}

#[test]
fn a_small_command_bypasses_the_queue_and_takes_no_credit() {
    let bypass = PrototypePacer { bypass_below: 8192, ..pacer(100 * US) };
    let mut cores = Cores::new(1, 1, paced(bypass));
    cores.enqueue(0, 0, 2);
    let core = &mut cores.cores[0];
    for _ in 0..3 {
        core.pacer.enqueue(core.flows[0], Cost::data(4096), 0).unwrap();
    }
    assert_eq!(cores.poll(0, 0), 4);
    assert_eq!(cores.poll(0, 100 * US), 1);

    // Nor does it wait for its drive.
    let limited = PrototypePacer { drive_limit: Some(1), ..bypass };
    let mut cores = Cores::new(1, 1, paced(limited));
    cores.enqueue(0, 0, 2);
    assert_eq!((cores.poll(0, 0), cores.poll(0, 100 * US)), (1, 0));
    let core = &mut cores.cores[0];
    core.pacer.enqueue(core.flows[0], Cost::data(4096), 0).unwrap();
    assert_eq!(cores.poll(0, 100 * US), 1);
}

/// A drive at its limit delays only its own commands.
#[test]
fn a_drive_limit_parks_that_drive() {
    let limited = PrototypePacer { drive_limit: Some(2), ..pacer(US) };
    let mut cores = Cores::new(2, 2, paced(limited));
    cores.enqueue(0, 0, 5);
    cores.enqueue(0, 1, 1);
    let started: usize = (0..20 * US).step_by(500).map(|now| cores.poll(0, now)).sum();
    assert_eq!(started, 3);
    let on_first = cores.cores[0].running.iter().position(|p| p.flow() == cores.cores[0].flows[0]);
    let permit = cores.cores[0].running.remove(on_first.unwrap());
    cores.cores[0].pacer.release(permit, CommandOutcome::Completed, 20 * US);
    assert_eq!(cores.poll(0, 22 * US), 1);
    // The limit covers all cores, except for one I/O of each.
    cores.enqueue(1, 0, 5);
    let started: usize = (0..20 * US).step_by(500).map(|now| cores.poll(1, now)).sum();
    assert_eq!(started, 1);
}

/// While the pool is empty the timer continues to pass commands to its queue, as in io_pacing: a
/// released buffer then starts one immediately.
#[test]
fn pacer_and_pool_together() {
    let both = PrototypeConfig { pool: pool(4, 0).pool, pacer: Some(pacer(10 * US)) };
    let mut cores = Cores::new(1, 1, both);
    cores.enqueue(0, 0, 100);
    let started: usize = (0..100 * US).step_by(1000).map(|now| cores.poll(0, now)).sum();
    assert_eq!(started, 4);
    for _ in 0..4 {
        cores.end_one(0, 100 * US);
    }
    assert_eq!(cores.poll(0, 100 * US), 4);
    // The queue of the pool is not endless: a command that never passed the timer waits for it.
    for _ in 0..4 {
        cores.end_one(0, 101 * US);
    }
    let now = cores.poll(0, 101 * US);
    for _ in 0..now {
        cores.end_one(0, 102 * US);
    }
    assert_eq!((now, cores.poll(0, 102 * US)), (3, 0));
}

#[test]
fn the_period_follows_bytes_in_flight_up_to_four_times() {
    let tuner = Some(PrototypeTuner::BytesInFlight { threshold: 8 * u64::from(IO) });
    let mut cores = Cores::new(1, 1, paced(PrototypePacer { tuner, ..pacer(6 * US) }));
    cores.enqueue(0, 0, 1000);
    let mut periods = vec![cores.period()];
    let mut now = 0;
    while cores.cores[0].running.len() < 64 {
        now += US;
        if cores.poll(0, now) > 0 {
            periods.push(cores.period());
        }
    }
    assert_eq!((periods[8], periods[12], periods[16]), (6 * US, 9 * US, 12 * US));
    assert_eq!((periods[32], periods[64]), (24 * US, 24 * US));
}

/// The hill climbing finds the period of the highest rate, on a machine whose rate falls with too
/// little and with too much load.
#[test]
fn the_bandwidth_tuner_climbs() {
    let rule = PrototypeTuner::Bandwidth { interval: 1000 * US, step: 200 };
    let tuner = Tuner::new(&PrototypePacer { tuner: Some(rule), ..pacer(10 * US) }).unwrap();
    let mut seen = Vec::new();
    for interval in 0..200 {
        let period = tuner.period();
        seen.push(period);
        let best = 6 * US;
        let takes = if period >= best { period } else { 2 * best - period };
        for _ in 0..1000 * US / takes {
            tuner.on_dispatch(IO);
            tuner.over(IO, true);
        }
        for core in 0..4 {
            tuner.tick(interval * 1000 * US + core);
        }
    }
    assert!(seen.iter().max().unwrap() <= &(10 * US + 200), "{seen:?}");
    for period in &seen[40..] {
        assert!((5 * US..7 * US).contains(period), "{seen:?}");
    }
}

/// Years of uptime, a clock that stops and one that jumps back stall nothing.
#[test]
fn odd_clocks_stall_nothing() {
    for tuner in [None, Some(PrototypeTuner::Bandwidth { interval: 1000 * US, step: 200 })] {
        let mut cores = Cores::new(1, 1, paced(PrototypePacer { tuner, ..pacer(6 * US) }));
        cores.enqueue(0, 0, 100);
        let mut now = u64::MAX - 20 * US;
        for _ in 0..3 {
            assert_eq!(cores.poll(0, now), 1);
            assert_eq!(cores.poll(0, now), 0, "it stands still");
            now += 6 * US;
        }
        // Back by hours: the next tick is one period ahead.
        cores.poll(0, 1000);
        assert!(cores.cores[0].pacer.next_wakeup().unwrap() <= 50 * US);
        assert_eq!((cores.poll(0, 50 * US), cores.poll(0, 50 * US)), (1, 0));
        assert_eq!((cores.poll(0, 100 * US), cores.poll(0, 100 * US)), (1, 0));
    }
}

#[test]
fn knobs_that_mean_nothing_are_refused() {
    let machine = PacedMachine { cores: 4, largest: 1 << 20 };
    let tuned = |period, tuner| paced(PrototypePacer { tuner: Some(tuner), ..pacer(period) });
    let refused = [
        (pool(0, 6), "buffers"),
        (paced(PrototypePacer { credit: 0, ..pacer(6000) }), "credit"),
        (paced(PrototypePacer { drive_limit: Some(0), ..pacer(6000) }), "limit"),
        (paced(pacer(u64::MAX / 2)), "period"),
        (tuned(0, PrototypeTuner::BytesInFlight { threshold: 1 }), "period"),
        (tuned(6000, PrototypeTuner::BytesInFlight { threshold: 0 }), "threshold"),
        (tuned(6000, PrototypeTuner::Bandwidth { interval: 0, step: 1 }), "interval"),
        (tuned(6000, PrototypeTuner::Bandwidth { interval: 1, step: 0 }), "step"),
    ];
    for (config, word) in refused {
        let error = SharedPolicy::new(&PolicyConfig::Prototype(config), machine).unwrap_err();
        assert!(matches!(error, ConfigError::OutOfRange { .. }));
        let text = error.to_string();
        assert!(text.contains(word) && text.contains("allowed"), "{text}");
    }
    // With everything off there is no pacing.
    let mut cores = Cores::new(1, 1, PrototypeConfig::default());
    cores.enqueue(0, 0, 50);
    assert_eq!(cores.poll(0, 0), 50);
}
