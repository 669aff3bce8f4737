//! `nvmeof-perf` against the daemon: exit codes, the JSON, and detection of wrong data.

use std::io::{BufRead as _, BufReader};
use std::process::{Command, Output, Stdio};

use nvmeof_initiator::IoKind;
use nvmeof_tests::config::{NQN, listener, ram, subsystem};
use nvmeof_tests::{Daemon, Host, build, options};
use serde_json::Value;

fn config() -> String {
    let devices = [ram("ram0", "16MiB", 512), ram("ram1", "16MiB", 4096)].concat();
    [listener("127.0.0.1"), devices, subsystem(NQN, &[(1, "ram0"), (2, "ram1")])].concat()
}

/// Runs it; its result goes to standard output.
fn perf(daemon: &Daemon, args: &str) -> Output {
    let mut perf = Command::new(build::load_generator());
    perf.arg("run").arg("--connect").arg(daemon.endpoint(NQN).to_string());
    perf.args(["--json", "-"]).args(args.split(' '));
    perf.output().expect("nvmeof-perf runs")
}

fn json(output: &Output) -> Value {
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{said}");
    parsed(output)
}

fn parsed(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| {
        let [out, err] = [&output.stdout, &output.stderr].map(|text| String::from_utf8_lossy(text));
        panic!("{error}\n{out}\n{err}")
    })
}

fn assert_rates(rates: &Value, what: &str) {
    for key in ["iops", "bandwidth_gbps"] {
        assert!(rates[key].as_f64().is_some_and(|rate| rate > 0.0), "{what}.{key}: {rates}");
    }
    let latency = |key: &str| {
        let value = rates["latency_us"][key].as_f64();
        value.unwrap_or_else(|| panic!("{what}.latency_us.{key}: {rates}"))
    };
    let rising = ["min", "p50", "p99", "p99_9", "max"].map(latency);
    assert!(rising.is_sorted(), "{what}: {rising:?}");
    assert!((rising[0]..=rising[4]).contains(&latency("mean")), "{what}");
}

#[test]
fn a_verified_run_is_clean_and_its_json_has_what_scripts_rely_on() {
    let daemon = Daemon::start(&config());
    let output = perf(
        &daemon,
        "--rw randrw:70 --bs 4k --qd 8 --jobs 2 --time 30s --ios 4000 --seed 11 --verify --hdgst --ddgst",
    );
    let result = json(&output);
    assert_rates(&result, "total");
    assert_rates(&result["read"], "read");
    assert_rates(&result["write"], "write");
    assert_eq!((&result["errors"], &result["verify_errors"]), (&0.into(), &0.into()));
    let series = result["series"].as_array().expect("series");
    for key in ["t", "iops", "gbps"] {
        assert!(series.iter().all(|point| point[key].is_number()), "series.{key}");
    }
    let flows = result["flows"].as_array().expect("flows");
    let nsids: Vec<u64> = flows.iter().filter_map(|flow| flow["nsid"].as_u64()).collect();
    assert_eq!(nsids, [1, 2], "a flow for each namespace");
    // No progress line in a pipe.
    assert!(!String::from_utf8_lossy(&output.stderr).contains('\r'));
}

#[test]
fn every_workload_runs() {
    let daemon = Daemon::start(&config());
    for rw in ["read", "write", "randread", "randwrite", "rw:50", "randrw:0"] {
        let output =
            perf(&daemon, &format!("--rw {rw} --bs 64k --qd 4 --time 30s --ios 200 --nsid 2"));
        let result = json(&output);
        assert_eq!(result["flows"].as_array().map(Vec::len), Some(1), "{rw}");
        assert!(result["iops"].as_f64().is_some_and(|iops| iops > 0.0), "{rw}");
    }
}

#[test]
fn data_that_changed_underneath_is_found() {
    let daemon = Daemon::start(&config());
    let all = "--bs 4k --qd 4 --nsid 1 --size 1m --seed 7 --verify --time 60s --ios 256";
    json(&perf(&daemon, &format!("--rw write {all}")));
    json(&perf(&daemon, &format!("--rw read {all}")));
    // One bit, in the data of an inner block.
    let mut host = Host::connect(&daemon.endpoint(NQN), &options(1));
    let mut data = host.read(1, 1000, 512);
    data.as_mut_slice()[300] ^= 4;
    host.one(1, 1000, 1, IoKind::Write { data, fua: false }).expect("a write");
    let output = perf(&daemon, &format!("--rw read {all}"));
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{said}");
    let result = parsed(&output);
    assert_eq!((&result["errors"], &result["verify_errors"]), (&0.into(), &1.into()), "{said}");
}

#[test]
fn memory_that_is_refused_is_1_and_a_line() {
    let daemon = Daemon::start(&config());
    // Less than 64 buffers require, and more than a start.
    for kib in [40_000, 50_000, 60_000] {
        let mut perf = Command::new("prlimit");
        perf.arg(format!("--as={}", kib << 10)).arg(build::load_generator());
        perf.arg("run").arg("--connect").arg(daemon.endpoint(NQN).to_string());
        perf.args(["--rw", "randread", "--bs", "1m", "--qd", "64", "--ios", "50"]);
        let output = perf.output().expect("prlimit of util-linux");
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{kib} KiB: {said}");
        assert!(said.contains("no memory for I/Os") && said.contains("lower --qd"), "{said}");
    }
}

#[test]
fn no_target_is_1_and_wrong_usage_is_2() {
    let daemon = Daemon::start(&config());
    for args in ["--rw sideways", "--rw read --qd 0", "--rw read --bs 4q", "--rw read --frobnicate"]
    {
        assert_eq!(perf(&daemon, args).status.code(), Some(2), "{args}");
    }
    let unused = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = unused.local_addr().expect("its address");
    drop(unused);
    let mut perf = Command::new(build::load_generator());
    perf.args(["run", "--rw", "read", "--time", "1s", "--connect"]);
    let output = perf.arg(format!("tcp://{address}/{NQN}")).output().expect("nvmeof-perf runs");
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).contains("is a target listening there?"));
}

#[test]
fn held_queues_stay_connected_until_the_input_ends() {
    let daemon = Daemon::start(&config());
    let (baseline, open_files) = (daemon.counts(), daemon.open_files());
    let mut perf = Command::new(build::load_generator());
    perf.args(["hold", "--queues", "5", "--queues-per-controller", "2", "--connect"]);
    perf.arg(daemon.endpoint(NQN).to_string()).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = perf.spawn().expect("nvmeof-perf runs");
    let mut said = String::new();
    BufReader::new(child.stdout.take().expect("its output")).read_line(&mut said).expect("a line");
    assert_eq!(said, "holding 5 I/O queues of 3 controllers\n");
    assert_eq!(daemon.counts()["connections"], 5 + 3);
    drop(child.stdin.take());
    assert!(child.wait().expect("it ends").success());
    daemon.wait_for_counts(&baseline, open_files);
}

#[test]
fn too_few_descriptors_for_held_queues_is_1_and_a_line() {
    let mut perf = Command::new("prlimit");
    perf.arg("--nofile=64:64").arg(build::load_generator());
    perf.args(["hold", "--queues", "1000", "--connect", "tcp://127.0.0.1:1/nqn.2026-11.io.x:s"]);
    let output = perf.output().expect("prlimit of util-linux");
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("64 are allowed") && said.contains("lower --queues"), "{said}");
}

#[test]
fn discovery_lists_what_the_daemon_serves() {
    let daemon = Daemon::start(&config());
    let mut perf = Command::new(build::load_generator());
    let address = daemon.address();
    perf.args(["discover", "--json", "-", "--connect"]).arg(format!("tcp://{address}"));
    let output = perf.output().expect("nvmeof-perf runs");
    assert_eq!(output.status.code(), Some(0));
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(said.contains(NQN) && said.contains(&address.port().to_string()), "{said}");
}
