//! Statistics of a known load: in a file, sums exact to the command, and in the log.

use std::process::{Command, Stdio};

use nvmeof_initiator::{Buffer, Io, IoKind};
use nvmeof_tests::build::target_daemon;
use nvmeof_tests::config::{NQN, OTHER_NQN, listener, ram, small, subsystem};
use nvmeof_tests::{Daemon, Host, options};
use serde_json::Value;

/// Returns two subsystems, each with its own namespace, on one reactor.
fn two_namespaces() -> String {
    [
        "reactors = \"0\"\n[pacing]\npolicy = \"buffer-credit\"\nbudget = \"2MiB\"\n",
        &listener("127.0.0.1"),
        &ram("one", "64MiB", 512),
        &ram("two", "64MiB", 512),
        &subsystem(NQN, &[(1, "one")]),
        &subsystem(OTHER_NQN, &[(7, "two")]),
    ]
    .concat()
}

/// Returns every line of a file of statistics; all of them parse.
fn lines(daemon: &Daemon, name: &str) -> Vec<Value> {
    let text = std::fs::read_to_string(daemon.folder().join(name)).expect("the statistics");
    text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
}

fn kind<'a>(lines: &'a [Value], kind: &str) -> Vec<&'a Value> {
    lines.iter().filter(|line| line["kind"] == kind).collect()
}

fn number(value: &Value, pointer: &str) -> u64 {
    let found = value.pointer(pointer).unwrap_or_else(|| panic!("no {pointer} in {value}"));
    found.as_u64().unwrap_or_else(|| panic!("{pointer} is {found}"))
}

#[test]
fn the_sums_are_those_of_the_load() {
    let arguments = ["--stats", "stats.jsonl", "--stats-interval", "10ms"];
    let mut daemon = Daemon::start_with(&two_namespaces(), &arguments);
    let mut one = Host::connect(&daemon.endpoint(NQN), &options(1));
    let mut two = Host::connect(&daemon.endpoint(OTHER_NQN), &options(2));
    for round in 0..40 {
        // Larger than a capsule's data, so that each holds a permit.
        one.write(1, round * 256, 64 << 10, round);
        two.write(7, round * 256, 32 << 10, round);
    }
    let read = |token| Io {
        token,
        nsid: 1,
        slba: token * 256,
        blocks: 128,
        kind: IoKind::Read(Buffer::zeroed(64 << 10)),
    };
    let done = one.execute(0, (0..30).map(read).collect()).expect("reads");
    assert!(done.iter().all(|done| done.result.is_ok()));
    one.flush(1);
    // The first host leaves before the end, the second stays: both count.
    drop(std::mem::take(&mut one.queues));
    one.controller.disconnect().expect("shutdown");
    assert!(daemon.stop().success());

    let lines = lines(&daemon, "stats.jsonl");
    assert_eq!((&lines[0]["kind"], &lines[0]["schema"]), (&"start".into(), &3.into()));
    assert_eq!(lines[0]["interval_ms"], 10);
    let [last] = kind(&lines, "final")[..] else { panic!("one final line") };
    assert_eq!(lines.last(), Some(last));
    assert_eq!(last["policy"]["name"], "buffer-credit");
    assert_eq!(last["policy"]["budget_bytes"], 2 << 20);
    assert_eq!(number(last, "/pacer/started"), 40 + 40 + 30 + 1);
    assert_eq!(number(last, "/pacer/started_without_data"), 1);
    assert_eq!(number(last, "/pacer/released"), 111);
    assert_eq!(number(last, "/pacer/in_flight"), 0);
    assert_eq!(number(last, "/pacer/waiting"), 0);
    assert_eq!(number(last, "/listeners/0/ios"), 111);
    let (requests, completions) =
        (number(last, "/listeners/0/requests"), number(last, "/listeners/0/completions"));
    // Event requests can remain without a completion; all other requests complete.
    assert!((111..=requests).contains(&completions), "{completions} of {requests}");
    assert!(number(last, "/listeners/0/polls") > 0 && number(last, "/turns") > 0);

    let flows = last["flows"].as_array().expect("flows");
    let of = |subsystem: &str| {
        let found: Vec<_> = flows.iter().filter(|f| f["subsystem"] == subsystem).collect();
        assert_eq!(found.len(), 1, "{flows:?}");
        found[0]
    };
    let (first, second) = (of(NQN), of(OTHER_NQN));
    assert_eq!((&first["nsid"], &first["device"]), (&1.into(), &"one".into()));
    assert_eq!((number(first, "/admitted"), number(first, "/completed")), (70, 70));
    assert_eq!(number(first, "/admitted_bytes"), 70 * (64 << 10));
    assert_eq!(first["host"], options(1).hostnqn.to_string());
    assert_eq!((&second["nsid"], &second["device"]), (&7.into(), &"two".into()));
    assert_eq!(number(second, "/admitted_bytes"), 40 * (32 << 10));
    assert_eq!(second["host"], options(2).hostnqn.to_string());
}

/// Each sample's total is the sum of its reactors, and no counter ever decreases.
#[test]
fn samples_add_up_and_grow() {
    let arguments = ["--stats", "stats.jsonl", "--stats-interval", "10ms"];
    let mut daemon = Daemon::start_with(&small(), &arguments);
    let mut host = Host::connect(&daemon.endpoint(NQN), &options(1));
    for round in 0..100 {
        host.write(1, round, 16 << 10, round);
        host.check(1, round, 16 << 10, round);
    }
    assert!(daemon.stop().success());
    let lines = lines(&daemon, "stats.jsonl");
    let totals = kind(&lines, "total");
    assert!(totals.len() >= 2, "{} samples", totals.len());
    let mut before = (0.0, 0, 0);
    for total in totals {
        let t = total["t"].as_f64().expect("a time");
        let parts: Vec<_> = kind(&lines, "reactor").into_iter().filter(|r| r["t"] == t).collect();
        assert!(!parts.is_empty());
        for figure in ["/turns", "/pacer/calls", "/pacer/started", "/states/sent/on_device"] {
            let sum: u64 = parts.iter().map(|part| number(part, figure)).sum();
            assert_eq!(number(total, figure), sum, "{figure} at {t}");
        }
        let now = (t, number(total, "/turns"), number(total, "/pacer/started"));
        assert!(now.0 >= before.0 && now.1 >= before.1 && now.2 >= before.2, "{now:?} {before:?}");
        before = now;
    }
    let flows = kind(&lines, "reactor").into_iter().flat_map(|r| r["flows"].as_array().unwrap());
    assert!(flows.into_iter().any(|flow| flow["qid"] == 1 && flow["device"] == "ram0"));
}

/// Samples describe pacing: each flow, each core, and the reason of the last budget change.
#[test]
fn samples_tell_how_pacing_goes() {
    let config = [
        "reactors = \"0\"\n",
        &listener("127.0.0.1"),
        &ram("below", "64MiB", 512),
        "[[device]]\nname = \"slow\"\ntype = \"delay\"\nbase = \"below\"\nread-latency = \"1ms\"\n",
        &subsystem(NQN, &[(1, "slow")]),
    ];
    let arguments = ["--stats", "stats.jsonl", "--stats-interval", "10ms"];
    let mut daemon = Daemon::start_with(&config.concat(), &arguments);
    let mut host = Host::connect(&daemon.endpoint(NQN), &options(1));
    host.write(1, 0, 64 << 10, 1);
    for _ in 0..100 {
        host.check(1, 0, 64 << 10, 1);
    }
    assert!(daemon.stop().success());
    let lines = lines(&daemon, "stats.jsonl");
    let [last] = kind(&lines, "final")[..] else { panic!("one final line") };
    assert_eq!(last["policy"]["name"], "adaptive");
    let states = ["open", "trial", "held", "short-queue"];
    assert!(states.iter().any(|known| last["policy"]["state"] == *known), "{last}");

    let busy = |line: &&&Value| number(line, "/interval/ios") > 0 && !line["flows"][0].is_null();
    let reactors = kind(&lines, "reactor");
    let busy: Vec<_> = reactors.iter().filter(busy).collect();
    assert!(!busy.is_empty(), "{reactors:?}");
    for line in busy {
        let (ns, turns) = (number(line, "/interval/ns"), number(line, "/interval/turns"));
        assert!(number(line, "/pacer/calls") > 0);
        assert_eq!(number(line, "/interval/turn_period_ns"), ns / turns, "{line}");
        assert_eq!(
            number(line, "/interval/io_period_ns"),
            ns / number(line, "/interval/ios"),
            "{line}"
        );
        for moment in ["received", "admitted", "sent"] {
            number(line, &format!("/states/{moment}/waiting"));
            number(line, &format!("/states/{moment}/on_device"));
        }
        let flow = &line["flows"][0];
        assert_eq!(
            number(flow, "/admitted"),
            number(flow, "/completed") + number(flow, "/in_flight")
        );
        if number(flow, "/completed") > 0 {
            assert_eq!(
                number(flow, "/in_flight_mean_ns"),
                number(line, "/pacer/in_flight_mean_ns"),
                "the only one"
            );
        }
        if number(line, "/devices/0/reads") > 0 {
            assert!(number(line, "/devices/0/read_latency_ns") > 0, "{line}");
            assert!(number(line, "/pacer/in_flight_mean_ns") > 0, "{line}");
        }
        number(line, "/listeners/0/completions_per_1000_polls");
        if number(line, "/listeners/0/ios") > 0 {
            assert!(number(line, "/listeners/0/latency_ns") > 0, "{line}");
        }
    }
}

#[test]
fn a_signal_shows_a_table() {
    let daemon = Daemon::start(&two_namespaces());
    let mut host = Host::connect(&daemon.endpoint(NQN), &options(1));
    host.write(1, 0, 64 << 10, 1);
    host.check(1, 0, 64 << 10, 1);
    daemon.counts();
    let line = daemon.wait_for_line("stats policy ");
    assert_eq!(line, "stats policy buffer-credit, budget 2097152 bytes");
    let listener = daemon.wait_for_line("stats listener tcp://127.0.0.1:");
    assert!(listener.contains("requests ") && listener.contains(" mean latency "), "{listener}");
    daemon.wait_for_line("stats requests when admitted: waiting 0,");
    let flow = daemon.wait_for_line(&format!("stats flow {NQN} nsid 1 host "));
    for part in ["queue 1 device one reactor 0: in flight 0", "waiting 0, admitted 2,"] {
        assert!(flow.contains(part), "{flow}");
    }
}

/// Returns the exit status and the error output of a daemon that does not start.
fn refused(arguments: &[&str]) -> (Option<i32>, String) {
    let folder = tempfile::tempdir().expect("a folder");
    let config = folder.path().join("target.toml");
    std::fs::write(&config, small()).expect("config");
    let output = Command::new(target_daemon())
        .arg("--config")
        .arg(&config)
        .args(arguments)
        .current_dir(folder.path())
        .stdin(Stdio::null())
        .output()
        .expect("nvmeof-tgt starts");
    (output.status.code(), String::from_utf8(output.stderr).expect("text"))
}

#[test]
fn what_cannot_be_recorded_is_refused_with_what_to_do() {
    for (arguments, part) in [
        (&["--stats", "no/such/folder/x"][..], "name a file in a folder that exists"),
        (&["--stats", "."], "cannot be written"),
        (&["--stats", "x", "--stats-interval", "0ms"], "allowed: 10ms to 1h"),
        (&["--stats", "x", "--stats-interval", "5"], "a number and a unit of ms, s, min, h"),
        (&["--stats-interval", "1s"], "--stats <FILE>"),
        (&["--stats"], "a value is required"),
    ] {
        let (status, said) = refused(arguments);
        assert_eq!(status, Some(2), "{arguments:?}: {said}");
        assert!(said.contains(part), "{arguments:?}: {said}");
    }
}

/// `/dev/full` accepts no writes, like a full disk.
#[test]
fn a_full_disk_ends_the_statistics_and_not_the_service() {
    let arguments = ["--stats", "/dev/full", "--stats-interval", "10ms"];
    let mut daemon = Daemon::start_with(&small(), &arguments);
    let line = daemon.wait_for_line("statistics end here, the daemon continues");
    assert!(line.contains("No space left"), "{line}");
    let mut host = Host::connect(&daemon.endpoint(NQN), &options(1));
    host.write(1, 0, 64 << 10, 1);
    host.check(1, 0, 64 << 10, 1);
    assert!(daemon.stop().success());
    assert_eq!(daemon.lines_with("statistics end here").len(), 1);
}
