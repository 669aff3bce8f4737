//! Observability of a running daemon: metrics, the status page, live figures, traced commands, the
//! log.

use std::collections::BTreeSet;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::process::{Command, Stdio};

use nvmeof_tests::config::{NQN, delay, listener, ram, subsystem, subsystem_for};
use nvmeof_tests::{Daemon, Host, build, options};
use serde_json::Value;

/// Returns one reactor, one namespace with a read delay of 5 ms, and a subsystem that admits none
/// of the hosts.
fn config() -> String {
    [
        "reactors = \"0\"\nlog-format = \"json\"\n[api]\nsocket = \"api.sock\"\n",
        "[pacing]\npolicy = \"buffer-credit\"\nbudget = \"2MiB\"\n",
        &listener("127.0.0.1"),
        &ram("ram0", "64MiB", 512),
        &delay("late", "ram0", "5ms", "0us"),
        &subsystem(NQN, &[(1, "late")]),
        &subsystem_for(&["nqn.2026-11.org.example:nobody"], CLOSED, &[]),
    ]
    .concat()
}

const CLOSED: &str = "nqn.2026-11.io.nvmeof-tgt:closed";

/// Sends a request to the daemon's API; returns head and body of the response, without the sizes of
/// its chunks.
fn ask(daemon: &Daemon, request: &str) -> (String, String) {
    let mut answer = String::new();
    begin(daemon, request).read_to_string(&mut answer).expect("the answer");
    let (head, body) = answer.split_once("\r\n\r\n").expect("an answer");
    (head.to_owned(), body.to_owned())
}

fn begin(daemon: &Daemon, request: &str) -> UnixStream {
    let mut stream = UnixStream::connect(daemon.folder().join("api.sock")).expect("the socket");
    stream.write_all(request.as_bytes()).expect("the request");
    stream
}

fn get(daemon: &Daemon, path: &str) -> (String, String) {
    ask(daemon, &format!("GET {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n"))
}

fn post(daemon: &Daemon, path: &str, body: &str) -> (String, String) {
    ask(daemon, &posting(path, body))
}

fn posting(path: &str, body: &str) -> String {
    let length = body.len();
    let head = "host: localhost\r\nconnection: close\r\ncontent-type: application/json";
    format!("POST {path} HTTP/1.1\r\n{head}\r\ncontent-length: {length}\r\n\r\n{body}")
}

/// Returns the value of the first metrics line with this start and this part.
fn figure(metrics: &str, name: &str, part: &str) -> f64 {
    let mut lines = metrics.lines().filter(|line| line.starts_with(name) && line.contains(part));
    let line = lines.next().unwrap_or_else(|| panic!("no {name} with {part} in\n{metrics}"));
    line.rsplit(' ').next().and_then(|value| value.parse().ok()).expect("a number")
}

#[test]
fn metrics_and_live_figures_are_those_of_the_load() {
    let mut daemon = Daemon::start(&config());
    let mut host = Host::connect(&daemon.endpoint(NQN), &options(1));
    for round in 0..20 {
        host.write(1, round * 256, 64 << 10, round);
    }
    for round in 0..5 {
        host.check(1, round * 256, 64 << 10, round);
    }
    let (head, metrics) = get(&daemon, "/metrics");
    assert!(head.contains("200 OK") && head.contains("application/openmetrics-text"), "{head}");
    let of = |name: &str, part: &str| figure(&metrics, name, part);
    assert_eq!(of("nvmeof_tgt_commands_total", "op=\"write\""), 0.0, "admin commands come first");
    let here = "nsid=\"1\"";
    for (op, ops, bytes) in [("read", 5.0, 5.0 * 65536.0), ("write", 20.0, 20.0 * 65536.0)] {
        let line = format!("device=\"late\",op=\"{op}\"");
        assert_eq!(of("nvmeof_tgt_commands_total", &line), ops, "{op}\n{metrics}");
        assert_eq!(of("nvmeof_tgt_transferred_bytes_total", &line), bytes, "{op}\n{metrics}");
    }
    assert_eq!(of("nvmeof_tgt_namespace_latency_seconds_count", "op=\"read\""), 5.0);
    assert!(of("nvmeof_tgt_namespace_latency_seconds_sum", "op=\"read\"") >= 0.025, "{metrics}");
    assert_eq!(of("nvmeof_tgt_pacer_wire_delay_seconds_count", ""), 5.0);
    assert_eq!(of("nvmeof_tgt_pacer_budget_bytes", ""), f64::from(2 << 20));
    assert_eq!(of("nvmeof_tgt_flow_in_flight", here), 0.0);
    assert_eq!(of("nvmeof_tgt_connections", "host"), 2.0);

    let (_, stats) = get(&daemon, "/v1/stats");
    let live = &serde_json::from_str::<Value>(&stats).expect("JSON")["live"];
    assert_eq!((&live["work"][0]["op"], &live["work"][0]["ops"]), (&"read".into(), &5.into()));
    assert_eq!(live["flows"][0]["writes"], 20, "{live}");
    assert_eq!(live["pacer"]["budget_bytes"], 2 << 20);
    assert!(live["work"][0]["times"]["buckets"][0]["end_ns"].as_u64() > Some(5_000_000), "{live}");

    // A host's counters remain after it has disconnected.
    host.controller.disconnect().expect("shutdown");
    drop(host.queues);
    let (_, metrics) = get(&daemon, "/metrics");
    assert_eq!(figure(&metrics, "nvmeof_tgt_commands_total", "device=\"late\",op=\"read\""), 5.0);
    assert!(daemon.stop().success());
}

#[test]
fn the_page_needs_nothing_from_elsewhere() {
    let daemon = Daemon::start(&config());
    let (head, page) = get(&daemon, "/");
    assert!(head.contains("200 OK") && head.contains("text/html"), "{head}");
    assert!(head.contains("default-src 'none'"), "{head}");
    let foreign = page.match_indices("//").filter(|(at, _)| {
        let before = page[..*at].chars().next_back();
        before == Some(':') && !page[*at..].starts_with("//www.w3.org/2000/svg")
    });
    assert_eq!(foreign.count(), 0, "the page names other places");
}

#[test]
fn slow_commands_are_followed_and_one_caller_at_a_time() {
    let daemon = Daemon::start(&config());
    let endpoint = daemon.endpoint(NQN);
    let mut host = Host::connect(&endpoint, &options(1));
    host.write(1, 0, 4096, 1);
    let (done, reading) = std::sync::mpsc::channel();
    let load = std::thread::spawn(move || {
        // While the other thread reads.
        while reading.try_recv() == Err(std::sync::mpsc::TryRecvError::Empty) {
            host.write(1, 0, 4096, 1);
            host.check(1, 0, 4096, 1);
        }
    });
    let wanted = "{\"seconds\":2,\"slower_than_us\":4000,\"op\":\"read\"}";
    let mut first = begin(&daemon, &posting("/v1/trace", wanted));
    // Its head arrives after all reactors have the request.
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        first.read_exact(&mut byte).expect("the head");
        head.extend(byte);
    }
    assert!(String::from_utf8_lossy(&head).contains("200 OK"), "{head:?}");
    let (refused, answer) = post(&daemon, "/v1/trace", wanted);
    assert!(refused.contains("409") && answer.contains("already"), "{refused}\n{answer}");
    let mut text = String::new();
    first.read_to_string(&mut text).expect("the rest");
    done.send(()).expect("the load runs");
    load.join().expect("the load");
    let lines: Vec<Value> =
        text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok()).collect();
    let commands: Vec<_> = lines.iter().filter(|line| line["kind"] == "command").collect();
    let end = lines.iter().find(|line| line["kind"] == "end").expect("an end");
    assert_eq!(end["commands"], commands.len(), "{text}");
    assert!(!commands.is_empty(), "{text}");
    for command in &commands {
        assert_eq!((&command["op"], &command["nsid"]), (&"read".into(), &1.into()), "{command}");
        assert_eq!((&command["device"], &command["bytes"]), (&"late".into(), &4096.into()));
        let states: Vec<_> = command["states"].as_array().expect("states").iter().collect();
        let at = |name: &str| {
            let state = states.iter().find(|state| state["state"] == name);
            state.unwrap_or_else(|| panic!("no {name} in {command}"))["at_ns"].as_u64()
        };
        // Most of the time was spent there.
        assert!(at("sending") >= at("device").map(|at| at + 4_900_000), "{command}");
        assert_eq!((at("capsule"), at("done") == command["duration_ns"].as_u64()), (Some(0), true));
    }
    for (body, status) in [
        ("{\"seconds\":0}", "422"),
        ("{\"seconds\":61}", "422"),
        ("{\"seconds\":1,\"host\":\"\"}", "422"),
        ("{\"seconds\":1,\"op\":\"reed\"}", "400"),
        ("{\"seconds\":1,\"slow\":1}", "400"),
        ("{}", "400"),
    ] {
        let (head, answer) = post(&daemon, "/v1/trace", body);
        assert!(head.contains(status), "{body}: {head}\n{answer}");
    }
}

/// States of a command, in the order in which it passes those that it needs.
const STATES: [&str; 7] =
    ["capsule", "waiting", "buffer-wait", "h2c-transfer", "device", "sending", "done"];

/// Returns the output of `nvmeofctl trace` about reads and writes that a slow device executes
/// during the trace.
fn traced(daemon: &Daemon, host: &mut Host, json: bool) -> String {
    let mut command = Command::new(build::control());
    command.arg("--api").arg(format!("unix:{}", daemon.folder().join("api.sock").display()));
    command.args(json.then_some("--json"));
    command.args(["trace", "--seconds", "2", "--slower-than", "4000", "--nsid", "1"]);
    let followed = std::thread::spawn(move || command.output().expect("nvmeofctl runs"));
    while !followed.is_finished() {
        // Larger than in-capsule data, so that it is pulled.
        host.write(1, 0, 64 << 10, 1);
        host.check(1, 0, 64 << 10, 1);
    }
    let output = followed.join().expect("it has run");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("text")
}

#[test]
fn the_command_line_follows_slow_commands_through_every_state() {
    let slow = config().replace("write-latency = \"0us\"", "write-latency = \"5ms\"");
    let daemon = Daemon::start(&slow);
    let mut host = Host::connect(&daemon.endpoint(NQN), &options(1));
    let text = traced(&daemon, &mut host, true);
    let lines = text.lines().map(|line| serde_json::from_str::<Value>(line).expect("JSON"));
    let commands: Vec<Value> = lines.filter(|line| line["kind"] == "command").collect();
    let mut seen = BTreeSet::new();
    for command in &commands {
        assert_eq!(command["truncated"], false, "{command}");
        let states = command["states"].as_array().expect("states");
        let name = |state: &Value| state["state"].as_str().expect("a name").to_owned();
        let at = |state: &Value| state["at_ns"].as_u64().expect("a time");
        let places: Vec<_> = states
            .iter()
            .map(|state| STATES.iter().position(|known| *known == name(state)).expect("a state"))
            .collect();
        assert!(places.is_sorted(), "{command}");
        assert!(states.is_sorted_by_key(at), "{command}");
        let (first, last) = (states.first().expect("one"), states.last().expect("one"));
        assert_eq!((name(first), at(first), name(last)), ("capsule".into(), 0, "done".into()));
        assert_eq!(Some(at(last)), command["duration_ns"].as_u64(), "{command}");
        // Most of the time was spent there.
        let device = states.iter().position(|state| name(state) == "device").expect("the device");
        assert!(at(&states[device + 1]) - at(&states[device]) >= 4_900_000, "{command}");
        let op = command["op"].as_str().expect("what it does").to_owned();
        seen.extend(states.iter().map(|state| (op.clone(), name(state))));
    }
    let of = |op: &str| -> BTreeSet<&str> {
        seen.iter().filter(|(of, _)| of == op).map(|(_, state)| state.as_str()).collect()
    };
    let (reads, writes) = (of("read"), of("write"));
    assert!(writes.contains("h2c-transfer") && reads.contains("sending"), "{seen:?}");
    let all: BTreeSet<&str> = reads.union(&writes).copied().collect();
    assert_eq!(all, BTreeSet::from(STATES), "{seen:?}");

    let text = traced(&daemon, &mut host, false);
    for part in STATES.into_iter().chain(["nsid 1 (late)", "write 65536 B at 0"]) {
        assert!(text.contains(part), "no {part} in\n{text}");
    }
}

#[test]
fn following_ends_when_nobody_reads_it() {
    for json in [false, true] {
        let daemon = Daemon::start(&config());
        let mut host = Host::connect(&daemon.endpoint(NQN), &options(1));
        host.write(1, 0, 4096, 1);
        let mut command = Command::new(build::control());
        command.arg("--api").arg(format!("unix:{}", daemon.folder().join("api.sock").display()));
        command.args(json.then_some("--json"));
        command.args(["trace", "--seconds", "60", "--slower-than", "0"]).stdout(Stdio::piped());
        let mut follower = command.spawn().expect("nvmeofctl runs");
        let out = follower.stdout.take().expect("its output");
        let reading = std::thread::spawn(move || BufReader::new(out).lines().next());
        while !reading.is_finished() {
            host.check(1, 0, 4096, 1);
        }
        drop(reading.join().expect("a line"));
        // Each takes 5 ms: far less than the minute.
        let more = (0..2000).take_while(|_| {
            host.check(1, 0, 4096, 1);
            follower.try_wait().expect("its status").is_none()
        });
        let ran_on = more.count() == 2000;
        if ran_on {
            follower.kill().expect("an end");
        }
        let status = follower.wait().expect("its status");
        assert!(!ran_on && status.success(), "{status}");
    }
}

#[test]
fn a_host_that_is_refused_again_and_again_does_not_fill_the_log() {
    let daemon = Daemon::start(&config());
    for _ in 0..40 {
        assert!(Host::try_connect(&daemon.endpoint(CLOSED), &options(1)).is_err());
    }
    // The log reports the rest when no more arrive.
    let told = daemon.wait_for_line("Connect commands refused");
    let told: Value = serde_json::from_str(&told).expect("JSON");
    let lines = daemon.lines_with("\"Connect refused\"");
    let line: Value = serde_json::from_str(&lines[0]).expect("JSON");
    assert_eq!((&line["level"], &line["subsystem"]), (&"WARN".into(), &CLOSED.into()), "{line}");
    assert!(line["host"].as_str().is_some_and(|host| host.starts_with("nqn.")), "{line}");
    let suppressed = |line: &Value| line["suppressed"].as_u64().unwrap_or(0);
    let said: u64 =
        lines.iter().map(|line| 1 + suppressed(&serde_json::from_str(line).expect("JSON"))).sum();
    assert!(said + suppressed(&told) <= 40 && lines.len() < 40, "{lines:?}");
    assert!(suppressed(&told) > 0, "{told}");
}
