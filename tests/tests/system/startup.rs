//! From the command line to `ready` and to the exit: configs, exit codes, signals, memory.

use std::net::{Ipv4Addr, TcpListener};
use std::path::Path;
use std::process::{Command, Output};

use nvmeof_initiator::{Buffer, Io, IoKind};
use nvmeof_tests::config::{NQN, listener, listener_at, ram, small, subsystem};
use nvmeof_tests::{Daemon, Host, Raw, Worker, build, options};
use nvmeof_wire::Status;
use nvmeof_wire::nvm::BlockIo;
use nvmeof_wire::opcode::IoOpcode;
use rustix::process::Signal;

/// Runs the daemon to its end with this config.
fn run(config: &str, more: &[&str]) -> (Output, String) {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("target.toml");
    std::fs::write(&path, config).expect("config");
    (run_with(&path, more), path.display().to_string())
}

fn run_with(config: &Path, more: &[&str]) -> Output {
    let mut daemon = Command::new(build::target_daemon());
    daemon.arg("--config").arg(config).args(more).env_remove("RUST_LOG");
    daemon.output().expect("nvmeof-tgt runs")
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn a_bad_config_ends_with_2_and_the_place_of_every_problem() {
    let nqn = "nqn.2026-11.io.nvmeof-tgt:test";
    let cases = [
        (
            "[limits]\nqueue_depth = 32\n".to_owned() + &small(),
            "2:1: limits.queue_depth: unknown key",
        ),
        (small().replace("64MiB", "64Mib!"), "10:8: device.size: "),
        (small() + &subsystem(nqn, &[]), ": subsystem.nqn: "),
        (
            small() + "\n[[subsystem.namespace]]\nnsid = 1\ndevice = \"ram0\"\n",
            "22:8: namespace.nsid: ",
        ),
        (small().replace("device = \"ram0\"", "device = \"ram1\""), ": namespace.device: "),
        ("busy-poll = maybe\n".to_owned() + &small(), "1:13: busy-poll: "),
        (
            small() + "\n[[device]]\nname = \"f\"\ntype = \"file\"\npath = \"/nonexistent/a\"\n",
            "device.path: ",
        ),
    ];
    for (config, part) in cases {
        let (output, path) = run(&config, &[]);
        let said = stderr(&output);
        assert_eq!(output.status.code(), Some(2), "{config}\n{said}");
        let line = said.lines().find(|line| line.contains(part));
        let line = line.unwrap_or_else(|| panic!("no {part:?} in {said}\n{config}"));
        assert!(line.starts_with(&format!("{path}:")), "{line}");
        assert!(output.stdout.is_empty(), "ready with a bad config");
    }
    // Several errors together.
    let two = "drain-timeout = \"9q\"\nlog = \"x\"\n".to_owned() + &small();
    let (output, _) = run(&two, &[]);
    let said = stderr(&output);
    assert!(said.contains("drain-timeout") && said.contains("log"), "{said}");
    let output = run_with(Path::new("/nonexistent/target.toml"), &[]);
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).contains("/nonexistent/target.toml"), "{}", stderr(&output));
}

#[test]
fn a_wrong_command_line_ends_with_2() {
    let output = Command::new(build::target_daemon()).arg("--confg").output().expect("it runs");
    assert_eq!(output.status.code(), Some(2));
    let output = Command::new(build::target_daemon()).arg("--help").output().expect("it runs");
    assert_eq!(output.status.code(), Some(0));
    assert!(String::from_utf8_lossy(&output.stdout).contains("nvmeof-tgt --config"), "an example");
}

#[test]
fn check_says_what_a_config_costs_and_serves_nothing() {
    let (output, path) = run(&small(), &["--check"]);
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert!(said.starts_with(&format!("{path}: ok\n")), "{said}");
    assert!(said.contains("memory cost: "), "{said}");
    let (output, _) = run("", &["--check"]);
    assert_eq!(output.status.code(), Some(2), "no listener");
}

#[test]
fn a_busy_port_alone_ends_with_1_and_names_it() {
    let taken = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
    let port = taken.local_addr().expect("its number").port();
    let config = small().replace("port = 0", &format!("port = {port}"));
    let (output, path) = run(&config, &[]);
    let said = stderr(&output);
    // Not 2, after which the service manager would not restart it: the port can become free.
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains(&path) && said.contains("listener.port: "), "{said}");
    assert!(said.contains(&port.to_string()), "{said}");
    assert!(output.stdout.is_empty());
}

#[test]
fn a_listener_that_cannot_work_is_a_warning_beside_one_that_does() {
    // No interface has an address of this block, which is for documentation.
    let elsewhere = listener_at("192.0.2.1", 4420);
    let mut daemon = Daemon::start(&[&small(), elsewhere.as_str()].concat());
    assert_eq!(daemon.addresses().len(), 1, "{}", daemon.ready_line());
    assert!(daemon.wait_for_line("cannot listen yet, retrying").contains("192.0.2.1"));
    Worker::start(&daemon.endpoint(NQN), &options(1)).stop();
    assert_eq!(daemon.stop().code(), Some(0));
    let alone = small().replace("127.0.0.1", "192.0.2.1");
    let (output, _) = run(&alone, &[]);
    assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
}

/// On a machine without RDMA, its listener reports the missing part, and the others work.
#[test]
fn an_rdma_listener_that_cannot_work_is_a_warning_beside_one_that_does() {
    let rdma = listener_at("192.0.2.1", 4420).replace("\"tcp\"", "\"rdma\"");
    let mut daemon = Daemon::start(&[&small(), rdma.as_str()].concat());
    assert_eq!(daemon.addresses().len(), 1, "{}", daemon.ready_line());
    let said = daemon.wait_for_line("cannot listen yet, retrying");
    assert!(said.contains("cannot listen at 192.0.2.1:4420 for RDMA: "), "{said}");
    Worker::start(&daemon.endpoint(NQN), &options(1)).stop();
    assert_eq!(daemon.stop().code(), Some(0));
    let alone = small().replace("127.0.0.1", "192.0.2.1").replace("\"tcp\"", "\"rdma\"");
    let (output, _) = run(&alone, &[]);
    let said = stderr(&output);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("for RDMA: "), "{said}");
}

#[test]
fn the_ready_line_has_every_listener_with_its_real_port() {
    let config = [listener("::1"), small(), listener("127.0.0.2")].concat();
    let daemon = Daemon::start(&config);
    let line = daemon.ready_line();
    let words: Vec<&str> = line.split(' ').collect();
    assert_eq!(words.len(), 4, "{line}");
    assert_eq!(words[0], "ready", "{line}");
    assert!(words[1].starts_with("tcp://[::1]:"), "{line}");
    assert!(words[2].starts_with("tcp://127.0.0.1:"), "{line}");
    assert!(words[3].starts_with("tcp://127.0.0.2:"), "{line}");
    for word in &words[1..] {
        let endpoint = format!("{word}/{NQN}").parse().expect("an endpoint");
        let mut host = Host::connect(&endpoint, &options(1));
        host.write(1, 0, 4096, 5);
        host.check(1, 0, 4096, 5);
    }
}

#[test]
fn sigterm_and_sigint_end_an_idle_daemon_well() {
    for signal in [Signal::TERM, Signal::INT] {
        let mut daemon = Daemon::start(&small());
        // A connected host does not delay the exit.
        let (_admin, _) = Raw::admin(daemon.address(), NQN, &options(1));
        daemon.signal(signal);
        assert_eq!(daemon.wait().code(), Some(0), "{}", daemon.log_text());
        daemon.wait_for_line("stopped");
    }
}

#[test]
fn commands_in_flight_are_answered_before_the_end() {
    let mut daemon = Daemon::start(&small());
    let (address, host) = (daemon.address(), options(1));
    let (_admin, cntlid) = Raw::admin(address, NQN, &host);
    let mut io = Raw::io(address, NQN, &host, cntlid, 8);
    // A write that waits for its data: it is in flight when the signal arrives.
    let sqe = io.separate(BlockIo::new(0, 128).encode(IoOpcode::WRITE, 0, 1), 65536);
    let capsule = io.capsule(sqe, &[]);
    io.send(&capsule);
    let r2t = io.r2t();
    daemon.signal(Signal::TERM);
    // It no longer listens once it drains.
    let refused = (0..).find(|_| std::net::TcpStream::connect(address).is_err());
    assert!(refused.is_some());
    let pdu = io.h2c_data(r2t.cccid.get(), r2t.ttag.get(), 0, &[6; 65536], true);
    io.send(&pdu);
    let cqe = io.response();
    assert_eq!((cqe.cid, cqe.status()), (sqe.cid, Status::SUCCESS));
    assert_eq!(daemon.wait().code(), Some(0), "{}", daemon.log_text());
}

#[test]
fn a_drain_that_takes_too_long_is_cut_short() {
    let config = "drain-timeout = \"200ms\"\n".to_owned() + &small();
    let mut daemon = Daemon::start(&config);
    let (address, host) = (daemon.address(), options(1));
    let (_admin, cntlid) = Raw::admin(address, NQN, &host);
    let mut io = Raw::io(address, NQN, &host, cntlid, 8);
    let sqe = io.separate(BlockIo::new(0, 128).encode(IoOpcode::WRITE, 0, 1), 65536);
    let capsule = io.capsule(sqe, &[]);
    io.send(&capsule);
    io.r2t();
    assert_eq!(daemon.stop().code(), Some(0), "{}", daemon.log_text());
    daemon.wait_for_line("drain-timeout expired");
}

#[test]
fn the_end_comes_under_load_too() {
    let mut daemon = Daemon::start(&small());
    let endpoint = daemon.endpoint(NQN);
    let workers =
        [1, 2, 3].map(|n| Worker::start_at(&endpoint, &options(n), u64::from(n) * Worker::BLOCKS));
    assert_eq!(daemon.stop().code(), Some(0), "{}", daemon.log_text());
    for worker in workers {
        worker.fails();
    }
}

#[test]
fn memory_is_taken_as_it_is_written_and_not_before() {
    let config =
        [listener("127.0.0.1"), ram("ram0", "1GiB", 512), subsystem(NQN, &[(1, "ram0")])].concat();
    let daemon = Daemon::start(&config);
    let at_start = daemon.resident();
    assert!(at_start < 48 << 20, "{} MiB at start", at_start >> 20);
    let mut host = Host::connect(&daemon.endpoint(NQN), &options(1));
    let block = u64::from(host.block_size(1));
    let chunk = 256 << 10;
    let ios = |write: bool| {
        (0..256_u64).map(move |token| {
            let kind = match write {
                false => IoKind::Read(Buffer::zeroed(chunk)),
                true => IoKind::Write { data: Buffer::from(&[1; 256 << 10][..]), fua: false },
            };
            let slba = token * 4 * chunk as u64 / block;
            let blocks = u32::try_from(chunk as u64 / block).expect("few blocks");
            Io { token, nsid: 1, slba, blocks, kind }
        })
    };
    let done = host.execute(0, ios(false).collect()).expect("reads");
    for completed in done {
        completed.result.expect("a read");
        let buffer = completed.buffer.expect("its buffer");
        assert!(buffer.as_slice().iter().all(|&byte| byte == 0), "not zero before it is written");
    }
    // 64 MiB were read, across the 1 GiB; buffers can stay for the next command.
    let after_reads = daemon.resident();
    assert!(after_reads < at_start + (32 << 20), "{at_start} at start, {after_reads} after reads");
    let done = host.execute(0, ios(true).collect()).expect("writes");
    assert!(done.iter().all(|completed| completed.result.is_ok()));
    let after_writes = daemon.resident();
    assert!(after_writes >= at_start + (48 << 20), "64 MiB written: {after_writes}");
}
