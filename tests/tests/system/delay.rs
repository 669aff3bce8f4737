//! Delay devices over TCP.
//!
//! The tests check only a lower bound of the latency: the excess depends on other load of the
//! machine.

use std::time::{Duration, Instant};

use nvmeof_initiator::{Buffer, ConnectOptions, Io, IoKind};
use nvmeof_tests::config::{NQN, delay, listener, ram, subsystem};
use nvmeof_tests::{Daemon, GUARD, Host, Worker, options};

/// Returns namespace 1 in memory, and 2 as a delay on it.
fn slowed(size: &str, read: &str, write: &str) -> String {
    let devices = [ram("ram0", size, 512), delay("slow0", "ram0", read, write)].concat();
    [listener("127.0.0.1"), devices, subsystem(NQN, &[(1, "ram0"), (2, "slow0")])].concat()
}

fn timed(what: impl FnOnce()) -> Duration {
    let begin = Instant::now();
    what();
    begin.elapsed()
}

#[test]
fn each_direction_takes_its_latency_at_least_on_the_data_of_the_base() {
    let daemon = Daemon::start(&slowed("64MiB", "1ms", "250us"));
    let mut host = Host::connect(&daemon.endpoint(NQN), &options(1));
    let (read, write) = (Duration::from_millis(1), Duration::from_micros(250));
    for seed in 0..20 {
        // In the capsule, and by R2T.
        for (at, len) in [(8, 4096), (128, 128 << 10)] {
            let took = timed(|| host.write(2, at, len, seed));
            assert!(took >= write, "a write took {took:?}");
            host.check(1, at, len, seed);
            host.write(1, at, len, seed + 100);
            let took = timed(|| host.check(2, at, len, seed + 100));
            assert!(took >= read, "a read took {took:?}");
        }
        let took = timed(|| host.flush(2));
        assert!(took >= write, "a flush took {took:?}");
    }
}

#[test]
fn delays_add_up() {
    let devices = [
        delay("top", "middle", "2ms", "0"),
        delay("middle", "ram0", "3ms", "500us"),
        ram("ram0", "1MiB", 512),
        subsystem(NQN, &[(1, "middle"), (2, "top")]),
    ];
    let daemon = Daemon::start(&[listener("127.0.0.1"), devices.concat()].concat());
    let mut host = Host::connect(&daemon.endpoint(NQN), &options(1));
    host.write(2, 0, 4096, 1);
    for (nsid, least) in [(1, 3), (2, 5)] {
        let took = timed(|| host.check(nsid, 0, 4096, 1));
        assert!(took >= Duration::from_millis(least), "namespace {nsid}: {took:?}");
    }
}

#[test]
fn a_whole_queue_of_reads_is_late_together_and_comes_back_right() {
    const DEPTH: u64 = 32;
    const READ: Duration = Duration::from_secs(3);
    let daemon = Daemon::start(&slowed("64MiB", "3s", "0"));
    let mut host =
        Host::connect(&daemon.endpoint(NQN), &ConnectOptions { depth: 33, ..options(1) });
    for at in 0..DEPTH {
        host.write(1, at * 8, 4096, at);
    }
    let (begin, clock) = (Instant::now(), host.controller.clock());
    let queue = &mut host.queues[0];
    for token in 0..DEPTH {
        let kind = IoKind::Read(Buffer::zeroed(4096));
        let io = Io { token, nsid: 2, slba: token * 8, blocks: 8, kind };
        assert!(queue.submit(io, clock.now()).is_ok());
    }
    queue.flush().expect("the connection");
    // All of them are in flight concurrently; in sequence, there would be one.
    while daemon.counts()["requests"] < DEPTH {
        assert!(begin.elapsed() < READ, "never were {DEPTH} reads in flight");
    }
    let mut done = Vec::new();
    while done.len() < 32 {
        assert!(begin.elapsed() < GUARD);
        queue.wait(Duration::from_millis(100));
        let before = done.len();
        queue.poll(clock.now(), &mut done).expect("the connection");
        assert!(done.len() == before || begin.elapsed() >= READ, "a read was early");
    }
    assert!(done.iter().map(|done| done.token).eq(0..DEPTH), "in the order they were sent");
    for completed in done {
        let mut wanted = vec![0; 4096];
        nvmeof_tests::fill(&mut wanted, completed.token);
        assert!(completed.result.is_ok());
        assert_eq!(completed.buffer.expect("the data").as_slice(), wanted);
    }
}

#[test]
fn a_host_that_leaves_before_its_late_reads_end_leaks_nothing() {
    let daemon = Daemon::start(&slowed("64MiB", "2s", "2s"));
    let (baseline, open_files) = (daemon.counts(), daemon.open_files());
    let mut host = Host::connect(&daemon.endpoint(NQN), &options(1));
    let clock = host.controller.clock();
    for token in 0..8 {
        let kind = IoKind::Read(Buffer::zeroed(128 << 10));
        let io = Io { token, nsid: 2, slba: 0, blocks: 256, kind };
        assert!(host.queues[0].submit(io, clock.now()).is_ok());
    }
    host.queues[0].flush().expect("the connection");
    let begin = Instant::now();
    while daemon.counts()["requests"] < 8 {
        assert!(begin.elapsed() < GUARD, "the reads do not arrive");
    }
    drop(host);
    daemon.wait_for_counts(&baseline, open_files);
}

#[test]
fn a_reload_changes_the_latency_under_io_and_reopens_with_the_base_only() {
    let daemon = Daemon::start(&slowed("64MiB", "1ms", "0"));
    let worker = Worker::start(&daemon.endpoint(NQN), &options(1));
    let mut host = Host::connect(&daemon.endpoint(NQN), &options(2));
    host.write(2, 60_000, 4096, 7);
    for (read, millis) in [("250ms", 250), ("0", 0), ("40ms", 40)] {
        let said = daemon.reload(&slowed("64MiB", read, "0"));
        assert!(said.contains("0 devices opened, 0 closed"), "{said}");
        assert!(said.contains("0 namespaces changed"), "{said}");
        let took = timed(|| host.check(2, 60_000, 4096, 7));
        assert!(took >= Duration::from_millis(millis), "{read}: {took:?}");
    }
    worker.goes_on();
    worker.stop();
    // A memory device of another size is a new device, also under the delay.
    let said = daemon.reload(&slowed("32MiB", "40ms", "0"));
    assert!(said.contains("2 devices opened, 2 closed"), "{said}");
    let mut host = Host::connect(&daemon.endpoint(NQN), &options(3));
    let namespaces = host.controller.namespaces();
    assert!(namespaces.iter().all(|found| found.blocks == (32 << 20) / 512), "{namespaces:?}");
    host.write(2, 0, 4096, 8);
    host.check(1, 0, 4096, 8);
    let took = timed(|| host.check(2, 0, 4096, 8));
    assert!(took >= Duration::from_millis(40), "{took:?}");
}
