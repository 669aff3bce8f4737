//! The programs' environment: a log that is not writable or not read, process limits, and output
//! without a reader.
//!
//! Each costs log lines, a command or a change; the daemon continues to serve and ends cleanly.

use std::fs::{File, Permissions};
use std::io::{BufRead as _, BufReader, PipeReader, PipeWriter};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use hyper::Method;
use nvmeof_ctl::{ApiClient, CallError};
use nvmeof_initiator::{Buffer, CommandError, Endpoint, Io, IoKind};
use nvmeof_tests::config::{NQN, api, device, file, listener, ram, small, subsystem};
use nvmeof_tests::{GUARD, Host, Worker, build, options};
use nvmeof_wire::Status;
use rustix::process::{Pid, Resource, Rlimit, Signal, getuid, kill_process, prlimit};
use serde_json::{Value, json};
use tempfile::TempDir;

/// Log text in place of missing lines.
const MISSING: &str = "log lines are missing here";
/// User and group without any permission.
const NOBODY: u32 = 65534;

/// A daemon that the test finds by its API, wherever its output goes. Killed when dropped.
struct Served {
    child: Child,
    folder: TempDir,
    client: ApiClient,
}

impl Served {
    /// Starts it with an API, and waits until it serves.
    fn start(config: &str, stdout: Stdio, stderr: Stdio) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        Self::start_in(folder, build::target_daemon(), config, |command| {
            command.stdout(stdout).stderr(stderr);
        })
    }

    fn start_in(
        folder: TempDir,
        program: &Path,
        config: &str,
        how: impl FnOnce(&mut Command),
    ) -> Self {
        std::fs::write(folder.path().join("target.toml"), config.to_owned() + &api())
            .expect("config");
        let mut command = Command::new(program);
        command.args(["--config", "target.toml"]).current_dir(folder.path());
        command.env_remove("RUST_LOG").stdin(Stdio::null());
        how(&mut command);
        let child = command.spawn().expect("nvmeof-tgt starts");
        // The command keeps its ends of pipes.
        drop(command);
        let socket = folder.path().join("api.sock");
        let client = ApiClient::new(&format!("unix:{}", socket.display()), None).expect("a client");
        let mut served = Self { child, folder, client };
        let until = Instant::now() + GUARD;
        while served.client.get::<Value>("/v1/status").is_err() {
            let ended = served.child.try_wait().expect("its status");
            assert!(ended.is_none(), "it does not start: {ended:?}");
            assert!(Instant::now() < until, "it does not serve");
            std::thread::sleep(Duration::from_millis(5));
        }
        served
    }

    fn get(&self, path: &str) -> Value {
        self.client.get(path).unwrap_or_else(|error| panic!("{path}: {error:#}"))
    }

    fn endpoint(&self) -> Endpoint {
        let status = self.get("/v1/status");
        let url = status["listeners"][0].as_str().expect("a listener");
        format!("{url}/{NQN}").parse().expect("an endpoint")
    }

    /// Returns the number of log lines that it reports as dropped.
    fn dropped(&self) -> u64 {
        let stats = self.get("/v1/stats");
        let lines = stats["lines"].as_array().expect("lines");
        let total = lines.iter().find(|line| line["kind"] == "total").expect("all together");
        total["log_lines_dropped"].as_u64().expect("a count")
    }

    fn pid(&self) -> Pid {
        i32::try_from(self.child.id()).ok().and_then(Pid::from_raw).expect("a process")
    }

    fn signal(&self, signal: Signal) {
        kill_process(self.pid(), signal).expect("the process is there");
    }

    /// Lowers one of its limits.
    fn limit(&self, resource: Resource, to: u64) {
        let limit = Rlimit { current: Some(to), maximum: Some(to) };
        prlimit(Some(self.pid()), resource, limit).expect("the limit can be set");
    }

    /// Sends SIGTERM and waits for the end.
    fn stop(mut self) -> ExitStatus {
        self.signal(Signal::TERM);
        let until = Instant::now() + GUARD;
        loop {
            if let Some(status) = self.child.try_wait().expect("its status") {
                return status;
            }
            assert!(Instant::now() < until, "it does not end");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        // If kill fails, it has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn pipe() -> (PipeReader, PipeWriter) {
    let (reader, writer) = std::io::pipe().expect("a pipe");
    // One page, so that it fills soon.
    rustix::pipe::fcntl_setpipe_size(&writer, 4096).expect("its size");
    (reader, writer)
}

/// Returns a config with many devices; SIGUSR1 logs a line for each.
fn many_devices() -> String {
    let more = (0..100).map(|number| device(&format!("null{number}"), "null", "size = \"1GiB\""));
    small() + &more.collect::<String>()
}

/// Makes the daemon log until lines are dropped.
fn overflow(served: &Served) {
    let until = Instant::now() + GUARD;
    while served.dropped() == 0 {
        served.signal(Signal::USR1);
        assert!(Instant::now() < until, "no line is dropped");
    }
}

/// Returns the lines from a pipe, read by a thread.
fn lines(reader: PipeReader) -> Receiver<String> {
    let (sender, lines) = channel();
    std::thread::spawn(move || {
        for line in BufReader::new(reader).lines().map_while(Result::ok) {
            if sender.send(line).is_err() {
                return;
            }
        }
    });
    lines
}

#[test]
fn a_reader_of_the_log_that_stops_costs_lines_and_the_log_tells_how_many() {
    let (reader, writer) = pipe();
    let served = Served::start(&many_devices(), Stdio::null(), writer.into());
    let worker = Worker::start(&served.endpoint(), &options(1));
    overflow(&served);
    worker.goes_on();
    let at_least = served.dropped();
    let lines = lines(reader);
    let missing = loop {
        // The log continues automatically, even without further log calls.
        let line = lines.recv_timeout(GUARD).expect("the log goes on");
        if line.contains(MISSING) {
            break line;
        }
    };
    let count: u64 =
        missing.rsplit('=').next().and_then(|count| count.parse().ok()).expect("a count");
    assert!(count > 0 && count <= served.dropped(), "{missing}; {at_least} before");
    worker.stop();
    assert_eq!(served.stop().code(), Some(0));
    let last = lines.iter().last().expect("more lines");
    assert!(last.contains("stopped"), "the last lines are written before the end: {last}");
}

#[test]
fn the_end_does_not_wait_for_a_reader_that_stopped() {
    let (reader, writer) = pipe();
    let served = Served::start(&many_devices(), Stdio::null(), writer.into());
    overflow(&served);
    assert_eq!(served.stop().code(), Some(0));
    drop(reader);
}

#[test]
fn a_log_on_a_full_disk_is_lost_and_hosts_are_served() {
    let full = || File::options().write(true).open("/dev/full").expect("/dev/full");
    let served = Served::start(&small(), full().into(), full().into());
    let worker = Worker::start(&served.endpoint(), &options(1));
    served.signal(Signal::USR1);
    worker.goes_on();
    assert!(served.dropped() > 0);
    worker.stop();
    assert_eq!(served.stop().code(), Some(0));
}

#[test]
fn output_whose_reader_has_gone_is_lost_and_hosts_are_served() {
    let (readers, writers): (Vec<_>, Vec<_>) = [pipe(), pipe()].into_iter().unzip();
    drop(readers);
    let [out, err] = <[PipeWriter; 2]>::try_from(writers).expect("two pipes");
    let served = Served::start(&small(), out.into(), err.into());
    Worker::start(&served.endpoint(), &options(1)).stop();
    assert!(served.dropped() > 0);
    assert_eq!(served.stop().code(), Some(0));
}

#[test]
fn standard_output_that_is_not_taken_is_told_in_the_log() {
    let (reader, writer) = pipe();
    let full = File::options().write(true).open("/dev/full").expect("/dev/full");
    let served = Served::start(&small(), full.into(), writer.into());
    let lines = lines(reader);
    let told = |line: &String| line.contains("cannot write \"ready\" to standard output");
    assert!(lines.iter().any(|line| told(&line)), "the log does not tell");
    Worker::start(&served.endpoint(), &options(1)).stop();
    assert_eq!(served.stop().code(), Some(0));
}

#[test]
fn a_write_beyond_the_limit_of_file_size_fails_and_no_other() {
    let config = [
        listener("127.0.0.1"),
        ram("ram0", "64MiB", 512),
        file("file0", Path::new("disk.img"), "64MiB", 512),
        subsystem(NQN, &[(1, "ram0"), (2, "file0")]),
    ];
    let served = Served::start(&config.concat(), Stdio::null(), Stdio::null());
    let mut host = Host::connect(&served.endpoint(), &options(1));
    served.limit(Resource::Fsize, 1 << 20);
    host.write(2, 0, 4096, 1);
    let write = IoKind::Write { data: Buffer::zeroed(4096), fua: false };
    let Err(CommandError::Status { status, .. }) = host.one(2, 65536, 8, write) else {
        panic!("a write beyond the limit succeeds");
    };
    assert_eq!(status, Status::CAPACITY_EXCEEDED.with_dnr());
    // The command completes, with or without success.
    let _ = host.one(2, 65536, 8, IoKind::WriteZeroes { deallocate: false });
    host.check(2, 0, 4096, 1);
    host.flush(2);
    host.write(1, 0, 4096, 2);
    host.check(1, 0, 4096, 2);
    assert_eq!(served.stop().code(), Some(0));
}

#[test]
fn a_file_that_lost_its_name_is_served_and_stops_no_change() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = |name: &str| folder.path().join(name);
    let disk = |name: &str| {
        File::create(path(name)).and_then(|file| file.set_len(1 << 20)).expect("a file");
        device(name, "file", &format!("path = \"{}\"", path(name).display()))
    };
    let parts = [
        listener("127.0.0.1"),
        disk("gone"),
        disk("hidden"),
        ram("ram0", "1MiB", 512),
        subsystem(NQN, &[(1, "gone"), (2, "hidden"), (3, "ram0")]),
    ];
    let served = Served::start(&parts.concat(), Stdio::null(), Stdio::null());
    let mut host = Host::connect(&served.endpoint(), &options(1));
    for name in ["gone", "hidden"] {
        std::fs::remove_file(path(name)).expect("it is there");
    }
    std::fs::create_dir(path("hidden")).expect("a folder");
    let call = |method, what: &str, body: Option<Value>| -> Value {
        let path = format!("/v1/{what}");
        served.client.call(method, &path, body.as_ref(), None).expect("it does not concern them")
    };
    let pacing = call(Method::PUT, "pacing", Some(json!({ "policy": "none" })));
    assert!(pacing["warnings"].to_string().contains("file no longer exists"), "{pacing}");
    call(Method::POST, "devices", Some(json!({ "name": "n", "type": "null", "size": 4096 })));
    call(Method::DELETE, &format!("subsystems/{NQN}/namespaces/3"), None);
    call(Method::PATCH, "devices/gone", Some(json!({ "size": "512KiB" })));
    for nsid in [1, 2] {
        host.write(nsid, 0, 4096, u64::from(nsid));
        host.check(nsid, 0, 4096, u64::from(nsid));
    }
    for (nsid, name) in [(1, "gone"), (2, "hidden")] {
        call(Method::DELETE, &format!("subsystems/{NQN}/namespaces/{nsid}"), None);
        call(Method::DELETE, &format!("devices/{name}"), None);
    }
    assert_eq!(served.stop().code(), Some(0));
}

/// RLIMIT_NPROC does not limit root: as root, the daemon runs as another user, from a copy that
/// this user can read.
#[test]
fn the_limit_of_threads_stops_no_host_no_change_and_no_end() {
    let folder = tempfile::tempdir().expect("a folder");
    let program = folder.path().join("nvmeof-tgt");
    std::fs::copy(build::target_daemon(), &program).expect("a copy");
    let config = [
        listener("127.0.0.1"),
        file("file0", Path::new("disk.img"), "64MiB", 512),
        subsystem(NQN, &[(1, "file0")]),
    ];
    let is_root = getuid().is_root();
    if is_root {
        // The daemon creates its socket and its file there.
        std::fs::set_permissions(folder.path(), Permissions::from_mode(0o777)).expect("mode");
    }
    let served = Served::start_in(folder, &program, &config.concat(), |command| {
        command.stdout(Stdio::null()).stderr(Stdio::null());
        if is_root {
            command.uid(NOBODY).gid(NOBODY);
        }
    });
    let mut host = Host::connect(&served.endpoint(), &options(1));
    let mut limit = Command::new("prlimit");
    limit.args(["--nproc=1:1", "--pid", &served.child.id().to_string()]);
    if is_root {
        // Without CAP_SYS_RESOURCE another user's limits cannot be set.
        limit.uid(NOBODY).gid(NOBODY);
    }
    assert!(limit.status().expect("prlimit of util-linux").success());
    for (name, path) in [("more", "more.img"), ("other", "other.img")] {
        let body =
            json!({ "name": name, "type": "file", "path": path, "create": true, "size": "8MiB" });
        let added: Value = served
            .client
            .call(Method::POST, "/v1/devices", Some(&body), None)
            .unwrap_or_else(|error| panic!("{name}: {error:#}"));
        assert_eq!(added["changes"][0]["name"], name);
    }
    // The kernel runs writes to a sparse file and flushes in separate threads.
    for round in 0..4 {
        host.write(1, round * 64, 4096, round);
        host.flush(1);
        host.check(1, round * 64, 4096, round);
    }
    let removed: Result<Value, _> =
        served.client.call(Method::DELETE, "/v1/devices/more", None::<&Value>, None);
    removed.expect("a device is closed");
    host.write(1, 0, 4096, 9);
    assert_eq!(served.stop().code(), Some(0));
}

#[test]
fn without_memory_commands_and_changes_can_be_tried_again() {
    let config = [
        listener("127.0.0.1"),
        device("null0", "null", "size = \"1TiB\""),
        subsystem(NQN, &[(1, "null0")]),
    ];
    let served = Served::start(&config.concat(), Stdio::null(), Stdio::null());
    let mut host = Host::connect(&served.endpoint(), &options(1));
    let status = std::fs::read_to_string(format!("/proc/{}/status", served.child.id()));
    let status = status.expect("its status");
    let held = status.lines().find_map(|line| line.strip_prefix("VmSize:")).expect("VmSize");
    let held: u64 = held.trim().trim_end_matches(" kB").trim().parse().expect("a number");
    served.limit(Resource::As, (held << 10) + (64 << 10));
    let write = |at: u64| {
        let kind = IoKind::Write { data: Buffer::zeroed(1 << 20), fua: false };
        Io { token: at, nsid: 1, slba: at * 2048, blocks: 2048, kind }
    };
    let done = host.execute(0, (0..32).map(write).collect()).expect("the connection");
    for completed in &done {
        match &completed.result {
            Err(CommandError::Status { status, .. }) => assert!(!status.dnr(), "{status}"),
            Err(error) => panic!("{error}"),
            Ok(_) => {}
        }
    }
    let body = json!({ "name": "large", "type": "ram", "size": "1GiB" });
    let added =
        served.client.call::<Value>(Method::POST, "/v1/devices", Some(&body), None).unwrap_err();
    let Ok(CallError::Refused(error)) = added.downcast::<CallError>() else {
        panic!("the daemon does not refuse a device for which there is no memory");
    };
    assert!(error.to_string().contains("memory"), "{error}");
    for number in 2..12 {
        drop(Host::connect(&served.endpoint(), &options(number)));
    }
    assert_eq!(served.stop().code(), Some(0));
}

/// Runs a program with standard output into `/dev/full`, and into a pipe whose reader has closed.
fn with_output_not_taken(command: impl Fn() -> Command) -> (Output, Output) {
    let full = File::options().write(true).open("/dev/full").expect("/dev/full");
    let (reader, writer) = pipe();
    drop(reader);
    let run = |stdout: Stdio| {
        let mut command = command();
        command.stdin(Stdio::null()).stdout(stdout).stderr(Stdio::piped());
        command.spawn().and_then(Child::wait_with_output).expect("it runs")
    };
    (run(full.into()), run(writer.into()))
}

#[test]
fn programs_end_with_a_status_and_a_line_where_output_is_not_taken() {
    let served = Served::start(&small(), Stdio::null(), Stdio::null());
    let endpoint = served.endpoint().to_string();
    let portal = endpoint.rsplit_once('/').expect("a subsystem").0;
    let api = format!("unix:{}", served.folder.path().join("api.sock").display());
    let checked = served.folder.path().join("check.toml");
    std::fs::write(&checked, small()).expect("config");
    let checked = checked.to_str().expect("a name");
    let (target, perf, ctl) = (build::target_daemon(), build::load_generator(), build::control());
    let programs: [(&Path, &[&str]); 8] = [
        (target, &["--config", checked, "--check"]),
        (target, &["--help"]),
        (target, &["drives", "list"]),
        (perf, &["run", "--connect", &endpoint, "--rw", "randread", "--ios", "10"]),
        (perf, &["run", "--connect", &endpoint, "--rw", "randread", "--ios", "10", "--json", "-"]),
        (perf, &["discover", "--connect", portal]),
        (ctl, &["--api", &api, "status"]),
        (ctl, &["--api", &api, "--json", "config", "show"]),
    ];
    for (program, arguments) in programs {
        let command = || {
            let mut command = Command::new(program);
            command.args(arguments);
            command
        };
        let (full, gone) = with_output_not_taken(command);
        let said = String::from_utf8_lossy(&full.stderr).into_owned();
        assert_eq!(full.status.code(), Some(1), "{arguments:?}: {said}");
        let told = said.lines().filter(|line| line.contains("No space left")).count();
        assert!(told == 1 && !said.contains("panicked"), "{arguments:?}: {said}");
        let said = String::from_utf8_lossy(&gone.stderr).into_owned();
        assert_eq!(gone.status.code(), Some(0), "{arguments:?}: {said}");
        assert!(
            !said.contains("cannot write") && !said.contains("panicked"),
            "{arguments:?}: {said}"
        );
    }
}

#[test]
fn programs_end_with_their_status_where_standard_error_is_not_taken() {
    let (target, perf, ctl) = (build::target_daemon(), build::load_generator(), build::control());
    let programs: [(&Path, &[&str], i32); 5] = [
        (target, &["--config", "/nonexistent/target.toml"], 2),
        (target, &["--no-such-option"], 2),
        (perf, &["discover", "--connect", "tcp://127.0.0.1:1"], 1),
        (ctl, &["--api", "unix:/nonexistent/api.sock", "status"], 1),
        (ctl, &["--no-such-option"], 2),
    ];
    for (program, arguments, code) in programs {
        let full = File::options().write(true).open("/dev/full").expect("/dev/full");
        let mut command = Command::new(program);
        command.args(arguments).stdin(Stdio::null()).stdout(Stdio::null()).stderr(full);
        assert_eq!(command.status().expect("it runs").code(), Some(code), "{arguments:?}");
    }
}
