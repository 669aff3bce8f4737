//! Peers that try to starve other hosts, and a target that was stopped.

use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread::sleep;
use std::time::{Duration, Instant};

use nvmeof_initiator::ConnectOptions;
use nvmeof_tests::config::{NQN, file, listener, ram, small, subsystem, subsystem_for};
use nvmeof_tests::{Daemon, Host, Pdu, Raw, options};
use nvmeof_wire::log::{GetLogPage, Lid};
use nvmeof_wire::nvm::BlockIo;
use nvmeof_wire::opcode::{AdminOpcode, IoOpcode};
use nvmeof_wire::tcp::TcpError;
use nvmeof_wire::{Nqn, Sqe, Status};
use rustix::process::Signal;

const DISCOVERY: &str = "nqn.2014-08.org.nvmexpress.discovery";
/// Well below the timeouts of the daemon, and well above the duration of a read on a busy machine.
const SOON: Duration = Duration::from_secs(8);

/// Number of responses that a peer leaves unread. Two sockets hold fewer if one of them is narrow.
const UNREAD: usize = 400_000;

/// Returns a host with its own name.
fn named(name: &str, nth: usize) -> ConnectOptions {
    let hostnqn: Nqn = format!("nqn.2026-11.org.example:{name}{nth}").parse().expect("a name");
    ConnectOptions { hostnqn, ..options(2) }
}

/// Returns a file device in the daemon's folder, whose reads need buffers, with little memory.
fn with_buffers(folder: &tempfile::TempDir, keys: &str) -> String {
    [
        format!("[limits]\nbuffer-memory = \"32MiB\"\n{keys}"),
        listener("127.0.0.1"),
        file("file0", &folder.path().join("disk.img"), "64MiB", 512),
        subsystem(NQN, &[(1, "file0")]),
    ]
    .concat()
}

/// Opens queues of one greedy host. Each submits a hundred commands of a megabyte, reads or writes,
/// and sends nothing more.
fn greedy(daemon: &Daemon, opcode: IoOpcode) -> Vec<Raw> {
    let host = options(2);
    let mut queues = Vec::new();
    for _ in 0..12 {
        let (admin, cntlid) = Raw::admin(daemon.address(), NQN, &host);
        let mut io = Raw::io(daemon.address(), NQN, &host, cntlid, 128);
        for _ in 0..100 {
            let sqe = io.separate(BlockIo::new(0, 2048).encode(opcode, 0, 1), 1 << 20);
            let capsule = io.capsule(sqe, &[]);
            io.send(&capsule);
        }
        queues.extend([admin, io]);
    }
    queues
}

/// Reads with an honest host at the same time; no read is late.
fn reads_go_on(daemon: &Daemon, greedy: &[Raw]) {
    let mut host = Host::connect(&daemon.endpoint(NQN), &options(1));
    for _ in 0..50 {
        let began = Instant::now();
        assert_eq!(host.read(1, 0, 4096).len(), 4096);
        assert!(began.elapsed() < SOON, "beside {} connections", greedy.len());
    }
    // A read that needs more memory than a connection's reservation is not late either.
    let began = Instant::now();
    assert_eq!(host.read(1, 0, 256 << 10).len(), 256 << 10);
    assert!(began.elapsed() < SOON, "beside {} connections", greedy.len());
}

#[test]
fn a_host_that_takes_nothing_of_what_it_reads_holds_up_nobody() {
    for policy in ["adaptive", "none"] {
        let folder = tempfile::tempdir().expect("a folder");
        let keys = format!("[pacing]\npolicy = \"{policy}\"\n");
        let daemon = Daemon::start(&with_buffers(&folder, &keys));
        let greedy = greedy(&daemon, IoOpcode::READ);
        reads_go_on(&daemon, &greedy);
    }
}

#[test]
fn a_host_that_sends_nothing_of_what_it_writes_holds_up_nobody() {
    for policy in ["adaptive", "none"] {
        let folder = tempfile::tempdir().expect("a folder");
        let keys = format!("[pacing]\npolicy = \"{policy}\"\n");
        let daemon = Daemon::start(&with_buffers(&folder, &keys));
        let greedy = greedy(&daemon, IoOpcode::WRITE);
        reads_go_on(&daemon, &greedy);
    }
}

/// With its own name, each host is allowed a command's memory, and together they use all of it.
#[test]
fn hosts_that_send_a_byte_now_and_then_do_not_keep_the_memory() {
    let folder = tempfile::tempdir().expect("a folder");
    let daemon = Daemon::start(&with_buffers(&folder, ""));
    let mut host = Host::connect(&daemon.endpoint(NQN), &options(1));
    let mut greedy: Vec<(Raw, Raw)> = (0..40)
        .map(|nth| {
            let options = named("greedy", nth);
            let (admin, cntlid) = Raw::admin(daemon.address(), NQN, &options);
            let mut io = Raw::io(daemon.address(), NQN, &options, cntlid, 32);
            let sqe = io.separate(BlockIo::new(0, 2048).encode(IoOpcode::WRITE, 0, 1), 1 << 20);
            let capsule = io.capsule(sqe, &[]);
            io.send(&capsule);
            (admin, io)
        })
        .collect();
    // The memory suffices for nearly as many.
    let data = vec![0; 64 << 10];
    let mut sending = Vec::new();
    for (_, io) in &mut greedy[..28] {
        let r2t = io.r2t();
        sending.push(io.h2c_data(r2t.cccid.get(), r2t.ttag.get(), 0, &data, false));
    }
    let (is_over, over) = channel::<()>();
    let drip = std::thread::spawn(move || {
        for at in 0..data.len() {
            for ((_, io), pdu) in greedy.iter_mut().zip(&sending) {
                io.try_send(&pdu[at..=at]);
            }
            if over.recv_timeout(Duration::from_millis(50)) != Err(RecvTimeoutError::Timeout) {
                return;
            }
        }
    });
    let began = Instant::now();
    assert_eq!(host.read(1, 0, 64 << 10).len(), 64 << 10);
    assert!(began.elapsed() < SOON, "{:?}", began.elapsed());
    drop(is_over);
    drip.join().expect("the drip");
}

#[test]
fn peers_that_read_no_log_pages_hold_buffers_and_no_more() {
    let folder = tempfile::tempdir().expect("a folder");
    let daemon = Daemon::start(&with_buffers(&folder, ""));
    let before = daemon.resident();
    let greedy: Vec<Raw> = (0..20)
        .map(|nth| {
            let mut admin = Raw::admin(daemon.address(), DISCOVERY, &named("greedy", nth)).0;
            for _ in 0..30 {
                let page = GetLogPage::new(Lid::DISCOVERY, 1 << 20).encode(0);
                let sqe = admin.separate(page, 1 << 20);
                let capsule = admin.capsule(sqe, &[]);
                admin.send(&capsule);
            }
            admin
        })
        .collect();
    reads_go_on(&daemon, &greedy);
    // 600 pages are 600 MiB. The buffers are 32 MiB, which the daemon has announced.
    let grown = daemon.resident().saturating_sub(before);
    assert!(grown < (32 + 64) << 20, "{} MiB for {} peers", grown >> 20, greedy.len());
}

#[test]
fn peers_that_read_no_responses_are_ended() {
    let folder = tempfile::tempdir().expect("a folder");
    let daemon = Daemon::start(&with_buffers(&folder, ""));
    let before = daemon.resident();
    let mut greedy = Vec::new();
    for nth in 0..3 {
        let mut admin = Raw::admin(daemon.address(), DISCOVERY, &named("greedy", nth)).0;
        admin.narrow();
        let keep_alive = admin.capsule(Sqe::admin(AdminOpcode::KEEP_ALIVE, 0, 0), &[]);
        let batch = keep_alive.repeat(10);
        // Far fewer than the queue has entries, each time.
        for _ in 0..UNREAD / 10 {
            admin.try_send(&batch);
        }
        let mut responses = 0;
        let end = loop {
            match admin.pdu() {
                Pdu::Response(_) => responses += 1,
                end => break end,
            }
        };
        assert!(matches!(end, Pdu::Terminated(TcpError::SEQUENCE, _) | Pdu::End), "{end:?}");
        assert!(responses < UNREAD, "every command has its response");
        greedy.push(admin);
    }
    reads_go_on(&daemon, &greedy);
    let grown = daemon.resident().saturating_sub(before);
    assert!(grown < (32 + 64) << 20, "{} MiB for {} peers", grown >> 20, greedy.len());
}

#[test]
fn a_stop_has_ended_when_the_last_connection_has() {
    let folder = tempfile::tempdir().expect("a folder");
    let config = ["drain-timeout = \"1h\"\n", &with_buffers(&folder, "")].concat();
    let mut daemon = Daemon::start(&config);
    let host = options(2);
    let (admin, cntlid) = Raw::admin(daemon.address(), NQN, &host);
    let mut io = Raw::io(daemon.address(), NQN, &host, cntlid, 32);
    let sqe = io.separate(BlockIo::new(0, 8).encode(IoOpcode::WRITE, 0, 1), 4096);
    let capsule = io.capsule(sqe, &[]);
    io.send(&capsule);
    io.r2t();
    daemon.signal(Signal::TERM);
    // Long enough for the reactors to begin to drain, and to sleep.
    sleep(Duration::from_millis(300));
    drop((admin, io));
    assert!(daemon.wait().success());
}

#[test]
fn peers_that_say_nothing_keep_no_host_out() {
    let keys = "[limits]\nconnections = 32\n";
    let daemon = Daemon::start(&[keys, &small()].concat());
    let mut silent: Vec<Raw> = Vec::new();
    for nth in 0..100 {
        silent.push(match nth % 2 {
            0 => Raw::open(daemon.address()),
            _ => Raw::hello(daemon.address(), false, false),
        });
    }
    let mut host = Host::connect(&daemon.endpoint(NQN), &options(1));
    assert_eq!(host.read(1, 0, 4096).len(), 4096);
    let line = daemon.wait_for_line("has sent no Connect");
    assert!(line.contains("limits.connections"), "{line}");
    assert!(matches!(silent[0].pdu(), Pdu::End), "the oldest made room");
}

#[test]
fn discovery_controllers_keep_no_host_out_and_the_oldest_go() {
    let allowed = options(1).hostnqn;
    let config = [
        "[limits]\nconnections = 32\n".to_owned(),
        listener("127.0.0.1"),
        ram("ram0", "16MiB", 512),
        subsystem_for(&[allowed.as_str()], NQN, &[(1, "ram0")]),
    ];
    let daemon = Daemon::start(&config.concat());
    let mut flood = Vec::new();
    for nth in 0..70 {
        flood.push(Raw::admin(daemon.address(), DISCOVERY, &named("other", nth)).0);
    }
    let mut host = Host::connect(&daemon.endpoint(NQN), &options(1));
    assert_eq!(host.read(1, 0, 4096).len(), 4096);
    assert!(matches!(flood[0].pdu(), Pdu::End), "the oldest made room");
    let keep_alive = Sqe::admin(AdminOpcode::KEEP_ALIVE, 0, 0);
    let last = flood.last_mut().expect("the newest");
    assert_eq!(last.command(keep_alive).status(), Status::SUCCESS, "the newest stays");
}

#[test]
fn a_target_that_stood_still_keeps_the_hosts_that_spoke_meanwhile() {
    let daemon = Daemon::start(&small());
    let host = ConnectOptions { keep_alive: Duration::from_secs(1), ..options(1) };
    let (mut admin, _cntlid) = Raw::admin(daemon.address(), NQN, &host);
    daemon.signal(Signal::STOP);
    for _ in 0..6 {
        sleep(Duration::from_millis(500));
        let sqe = admin.numbered(Sqe::admin(AdminOpcode::KEEP_ALIVE, 0, 0));
        let capsule = admin.capsule(sqe, &[]);
        admin.send(&capsule);
    }
    daemon.signal(Signal::CONT);
    for _ in 0..6 {
        assert_eq!(admin.response().status(), Status::SUCCESS);
    }
    // It still enforces the protocol.
    assert!(matches!(admin.pdu(), Pdu::End));
}
