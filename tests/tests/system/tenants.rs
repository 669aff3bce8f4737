//! Hosts and namespaces with limits, on the running daemon.
//!
//! Each receives its limit, regardless of other hosts, and SIGHUP changes it.

use std::time::Duration;

use nvmeof_initiator::{Buffer, ConnectOptions, Controller, Error, Io, IoKind};
use nvmeof_tests::config::{NQN, device, listener, ram, subsystem};
use nvmeof_tests::{Daemon, Host, Worker, options};
use nvmeof_wire::Status;
use serde_json::Value;

/// Returns a config with one reactor, so that its sample is exact, and a namespace in memory with a
/// delay of 1 ms.
fn config(tenants: &str) -> String {
    [
        "reactors = \"0\"\n[limits]\nmax-transfer = \"128KiB\"\n[pacing]\npolicy = \"none\"\n",
        tenants,
        &listener("127.0.0.1"),
        &ram("fast", "64MiB", 512),
        &device("slow", "delay", "base = \"fast\"\nread-latency = \"1ms\""),
        &subsystem(NQN, &[(1, "slow")]),
    ]
    .concat()
}

fn host(number: u8, text: &str) -> String {
    format!("[[host]]\nnqn = \"{}\"\n{text}", options(number).hostnqn)
}

fn reads(count: u64) -> Vec<Io> {
    let read = |token| Io {
        token,
        nsid: 1,
        slba: token % 64 * 256,
        blocks: 128,
        kind: IoKind::Read(Buffer::zeroed(64 << 10)),
    };
    (0..count).map(read).collect()
}

/// Returns the samples of a daemon that has stopped.
fn lines(daemon: &Daemon) -> Vec<Value> {
    let text = std::fs::read_to_string(daemon.folder().join("stats.jsonl")).expect("statistics");
    text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
}

/// Returns a host's part of a line.
fn tenant(line: &Value, number: u8) -> Option<&Value> {
    let nqn = options(number).hostnqn.to_string();
    line["tenants"].as_array()?.iter().find(|tenant| tenant["host"] == nqn)
}

#[test]
fn bytes_in_flight_of_a_greedy_host_are_never_above_its_bound() {
    const BOUND: u64 = 512 << 10;
    let arguments = ["--stats", "stats.jsonl", "--stats-interval", "10ms"];
    let text = config(&host(1, "max-in-flight = \"512KiB\"\n"));
    let mut daemon = Daemon::start_with(&text, &arguments);
    let idle = (daemon.counts(), daemon.open_files());
    let greedy = ConnectOptions { queues: 2, ..options(1) };
    let greedy = Host::connect(&daemon.endpoint(NQN), &greedy);
    let greedy = Worker::start_with(greedy, |host, round| {
        let queue = usize::try_from(round % 2).unwrap_or(0);
        let done = host.execute(queue, reads(100)).expect("the connection");
        assert!(done.iter().all(|done| done.result.is_ok()));
    });
    let mut modest = Host::connect(&daemon.endpoint(NQN), &options(2));
    for _ in 0..20 {
        let done = modest.execute(0, reads(16)).expect("the connection");
        assert!(done.iter().all(|done| done.result.is_ok()));
    }
    greedy.goes_on();
    greedy.stop();
    drop(modest);
    daemon.wait_for_counts(&idle.0, idle.1);
    assert_eq!(daemon.counts()["leaked_permits"], 0);
    assert!(daemon.stop().success());

    let lines = lines(&daemon);
    let nqn = options(1).hostnqn.to_string();
    let mut most = 0;
    for line in lines.iter().filter(|line| line["kind"] == "reactor") {
        let flows = line["flows"].as_array().expect("flows").iter();
        let mine = flows.filter(|flow| flow["host"] == nqn && flow["ended"] == false);
        let bytes: u64 = mine.filter_map(|flow| flow["bytes_in_flight"].as_u64()).sum();
        assert!(bytes <= BOUND, "{bytes} bytes in flight");
        most = most.max(bytes);
    }
    assert!(most > BOUND / 2, "it was never near its bound: {most}");
    let last = lines.last().expect("a line");
    let figures = tenant(last, 1).expect("it is named in the config");
    assert_eq!(figures["max_in_flight_bytes"], BOUND);
    assert_eq!(
        (&figures["limited_in_flight_bytes"], &figures["connections"]),
        (&0.into(), &0.into())
    );
    assert!(figures["throttled_by_in_flight"].as_u64().expect("a number") > 0);
    assert!(figures["throttled_by_in_flight_ns"].as_u64().expect("a number") > 0);
    let modest = lines.iter().filter_map(|line| tenant(line, 2)).next_back().expect("it was there");
    assert_eq!(modest["throttled_by_in_flight"], 0, "who has no bound waits for none");
}

#[test]
fn a_host_at_its_limit_of_connections_is_refused_as_busy_and_logged() {
    let text = config("[host-defaults]\nmax-connections = 4\nmax-queues = 3\n");
    let daemon = Daemon::start(&text);
    let idle = (daemon.counts(), daemon.open_files());
    let many = ConnectOptions { queues: 8, ..options(1) };
    let first = Host::connect(&daemon.endpoint(NQN), &many);
    assert_eq!(first.queues.len(), 3, "it was told how many it may have");
    let refused = Controller::connect(&daemon.endpoint(NQN), &options(1)).expect_err("it has all");
    let Error::Refused { reason, .. } = &refused else { panic!("refused otherwise: {refused}") };
    assert!(reason.contains(&Status::CONTROLLER_BUSY.to_string()), "{reason}");
    daemon.wait_for_line("Connect refused reason=the host has reached its limit");
    // No other host is affected, and the first one continues after it has released its connections.
    let mut other = Host::connect(&daemon.endpoint(NQN), &many_of(2));
    other.write(1, 0, 128 << 10, 1);
    drop(first);
    // Its connections can still be closing.
    let again = std::iter::repeat_with(|| {
        std::thread::sleep(Duration::from_millis(10));
        Host::try_connect(&daemon.endpoint(NQN), &many)
    });
    let again = again.take(1000).find_map(Result::ok).expect("a controller");
    assert!(!again.queues.is_empty());
    // A raised limit applies immediately.
    daemon.reload(&config(""));
    let more = Host::connect(&daemon.endpoint(NQN), &many);
    assert_eq!(more.queues.len(), 8);
    drop((other, again, more));
    daemon.wait_for_counts(&idle.0, idle.1);
}

fn many_of(number: u8) -> ConnectOptions {
    ConnectOptions { queues: 2, ..options(number) }
}

#[test]
fn limits_change_by_reload_for_commands_that_wait_already() {
    // One per second: with this limit no test would end in time.
    let slow = "limit = { iops = 1, burst = \"0s\" }\n";
    let daemon = Daemon::start(&config(&host(1, slow)));
    let idle = (daemon.counts(), daemon.open_files());
    std::thread::scope(|scope| {
        let limited = scope.spawn(|| {
            let mut host = Host::connect(&daemon.endpoint(NQN), &options(1));
            let done = host.execute(0, reads(100)).expect("the connection");
            assert!(done.iter().all(|done| done.result.is_ok()));
            done.len()
        });
        // They wait in the pacer, by its own count.
        assert!((0..10_000).any(|_| daemon.counts()["waiting"] >= 20), "nobody waits");
        daemon.reload(&config(&host(1, "limit = { iops = 1000000 }\n")));
        assert_eq!(limited.join().expect("reads under a limit"), 100);
    });
    daemon.wait_for_counts(&idle.0, idle.1);
    assert_eq!(daemon.counts()["leaked_permits"], 0);
}
