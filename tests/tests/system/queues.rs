//! Lifetimes of queues and controllers: moved between reactors, out of credit, aborted, idle,
//! reset, beyond the maximum number.

use std::time::{Duration, Instant};

use nvmeof_initiator::ConnectOptions;
use nvmeof_tests::config::{NQN, listener, ram, small, subsystem};
use nvmeof_tests::{Daemon, GUARD, Host, Pdu, Raw, Worker, options};
use nvmeof_wire::abort::Abort;
use nvmeof_wire::fabrics::{CNTLID_DYNAMIC, PropertyGet, PropertySet, PropertySize};
use nvmeof_wire::nvm::BlockIo;
use nvmeof_wire::opcode::{AdminOpcode, IoOpcode};
use nvmeof_wire::properties::{CC_CSS_NVM, Cc, Csts, offset};
use nvmeof_wire::{Sqe, Status};

/// Returns the number behind `key=` in a line of the log.
fn number(line: &str, key: &str) -> u16 {
    let value = line.split(' ').find_map(|word| word.strip_prefix(key)?.strip_prefix('='));
    value.and_then(|value| value.parse().ok()).unwrap_or_else(|| panic!("no {key} in {line}"))
}

#[test]
fn queues_move_to_an_idle_reactor_and_go_on() {
    let cpus = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    if cpus < 2 {
        println!("one CPU: nowhere to move to");
        return;
    }
    let daemon = Daemon::start(&["reactors = \"0-1\"\nlog = \"debug\"\n", &small()].concat());
    let options = ConnectOptions { queues: 8, depth: 8, ..options(1) };
    let mut host = Host::connect(&daemon.endpoint(NQN), &options);
    // The log is complete up to the reply.
    daemon.counts();
    let connected = daemon.lines_with("queue connected");
    assert_eq!(connected.len(), 8, "{}", daemon.log_text());
    let on_one: Vec<u16> = connected
        .iter()
        .filter(|line| number(line, "reactor") == 1)
        .map(|line| number(line, "qid"))
        .collect();
    assert!((2..=6).contains(&on_one.len()), "queues of reactor 1: {on_one:?}");
    // Only the admin queue remains on reactor 0.
    host.queues.retain(|queue| on_one.contains(&queue.qid()));
    let wanted = on_one.len() / 2;
    let mut round = 0;
    let until = Instant::now() + GUARD;
    while daemon.lines_with("connection moved").len() < wanted {
        for _ in 0..host.queues.len() {
            round += 1;
            // The commands use the first queue; each queue gets its turn.
            host.queues.rotate_left(1);
            for len in [4096, 65536] {
                host.write(1, round % 512 * 128, len, round);
                host.check(1, round % 512 * 128, len, round);
            }
        }
        host.controller.poll().expect("keep alive");
        assert!(Instant::now() < until, "nothing moves\n{}", daemon.log_text());
    }
    for _ in 0..2 * host.queues.len() {
        round += 1;
        host.queues.rotate_left(1);
        host.write(1, 0, 65536, round);
        host.check(1, 0, 65536, round);
    }
}

#[test]
fn commands_out_of_credit_wait_alone_and_can_be_aborted() {
    let keys = "reactors = \"0\"\n[limits]\nmax-transfer = \"128KiB\"\nbuffer-memory = \"8MiB\"\n\
                [pacing]\npolicy = \"buffer-credit\"\nbudget = \"256KiB\"\n";
    let devices = [ram("ram0", "64MiB", 512), subsystem(NQN, &[(1, "ram0")])].concat();
    let daemon = Daemon::start(&[keys, &listener("127.0.0.1"), &devices].concat());
    let (baseline, open_files) = (daemon.counts(), daemon.open_files());
    let (address, host) = (daemon.address(), options(1));
    let (mut admin, cntlid) = Raw::admin(address, NQN, &host);
    let mut io = Raw::io(address, NQN, &host, cntlid, 16);
    let data = [0x77; 128 << 10];
    let begin = |io: &mut Raw, slba: u64| {
        let sqe = BlockIo::new(slba, 256).encode(IoOpcode::WRITE, 0, 1);
        let sqe = io.separate(sqe, data.len());
        let capsule = io.capsule(sqe, &[]);
        io.send(&capsule);
        sqe.cid.get()
    };
    // Two writes take the whole budget and wait for their data; the next two wait for them.
    let holders = [begin(&mut io, 0), begin(&mut io, 256)];
    let tags = [io.r2t(), io.r2t()].map(|r2t| (r2t.cccid.get(), r2t.ttag.get()));
    assert_eq!(tags.map(|(cid, _)| cid), holders);
    let waiting = [begin(&mut io, 512), begin(&mut io, 768)];
    // Commands without data are not blocked, on the same queue and on the admin queue.
    let flush = io.command(Sqe::io(IoOpcode::FLUSH, 0, 1));
    assert_eq!(flush.status(), Status::SUCCESS);
    assert_eq!(admin.command(Sqe::admin(AdminOpcode::KEEP_ALIVE, 0, 0)).status(), Status::SUCCESS);
    // Both have arrived. Later the target can take budget from the first two for them, as their
    // data does not arrive.
    assert_eq!(daemon.counts()["requests"], 4);
    // One of the waiting commands is aborted, and its completion reports it.
    let abort = admin.command(Abort { sqid: 1, cid: waiting[0] }.encode(0));
    assert_eq!((abort.status(), abort.dw0() & 1), (Status::SUCCESS, 0), "aborted");
    let aborted = io.response();
    assert_eq!((aborted.cid.get(), aborted.status()), (waiting[0], Status::ABORT_REQUESTED));
    // A command that does not exist cannot be aborted.
    let abort = admin.command(Abort { sqid: 1, cid: 0xfff0 }.encode(0));
    assert_eq!((abort.status(), abort.dw0() & 1), (Status::SUCCESS, 1), "nothing to abort");
    // Completed commands make room for the other.
    for (cid, ttag) in tags {
        let pdu = io.h2c_data(cid, ttag, 0, &data, true);
        io.send(&pdu);
    }
    let mut answers = Vec::new();
    let mut asked = None;
    while answers.len() < 2 || asked.is_none() {
        match io.pdu() {
            Pdu::Response(cqe) => answers.push((cqe.cid.get(), cqe.status())),
            Pdu::R2T(r2t) => asked = Some((r2t.cccid.get(), r2t.ttag.get())),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(answers, holders.map(|cid| (cid, Status::SUCCESS)));
    let (cid, ttag) = asked.expect("an R2T");
    assert_eq!(cid, waiting[1]);
    let pdu = io.h2c_data(cid, ttag, 0, &data, true);
    io.send(&pdu);
    let cqe = io.response();
    assert_eq!((cqe.cid.get(), cqe.status()), (cid, Status::SUCCESS));
    drop((admin, io));
    daemon.wait_for_counts(&baseline, open_files);
}

#[test]
fn a_host_that_falls_silent_is_ended_and_others_are_not() {
    let daemon = Daemon::start(&small());
    let (baseline, open_files) = (daemon.counts(), daemon.open_files());
    let worker = Worker::start(&daemon.endpoint(NQN), &options(1));
    let silent = ConnectOptions { keep_alive: Duration::from_secs(1), ..options(2) };
    let (mut admin, cntlid) = Raw::admin(daemon.address(), NQN, &silent);
    let mut io = Raw::io(daemon.address(), NQN, &silent, cntlid, 8);
    assert!(matches!(io.pdu(), Pdu::End), "the I/O queue of a silent host");
    assert!(matches!(admin.pdu(), Pdu::End), "the admin queue of a silent host");
    worker.goes_on();
    worker.stop();
    daemon.wait_for_counts(&baseline, open_files);
}

#[test]
fn a_reset_ends_the_io_queues_and_the_controller_starts_over() {
    let daemon = Daemon::start(&small());
    let (baseline, open_files) = (daemon.counts(), daemon.open_files());
    let worker = Worker::start(&daemon.endpoint(NQN), &options(1));
    let (address, host) = (daemon.address(), options(2));
    let (mut admin, cntlid) = Raw::admin(address, NQN, &host);
    let enabled = Cc::new().with_en(true).with_css(CC_CSS_NVM).with_iosqes(6).with_iocqes(4);
    for _ in 0..3 {
        let mut io = Raw::io(address, NQN, &host, cntlid, 8);
        let sqe = io.separate(BlockIo::new(0, 256).encode(IoOpcode::WRITE, 0, 1), 128 << 10);
        let capsule = io.capsule(sqe, &[]);
        io.send(&capsule);
        io.r2t();
        for cc in [Cc::new(), enabled] {
            let value = u64::from(cc.into_bits());
            let set = PropertySet { size: PropertySize::Four, offset: offset::CC, value };
            assert_eq!(admin.command(set.encode(0)).status(), Status::SUCCESS);
            let get = PropertyGet { size: PropertySize::Four, offset: offset::CSTS };
            // Once no command of it is at a device.
            while Csts::from_bits(admin.command(get.encode(0)).dw0()).rdy() != cc.en() {
                std::thread::sleep(Duration::from_millis(1));
            }
        }
        // The command in flight can still complete; then the queue ends.
        while !matches!(io.pdu(), Pdu::End) {}
    }
    worker.goes_on();
    worker.stop();
    drop(admin);
    daemon.wait_for_counts(&baseline, open_files);
}

#[test]
fn connections_and_queues_end_where_the_limits_are() {
    let keys = "[limits]\nconnections = 4\nio-queues = 2\nqueue-depth = 32\n";
    let daemon = Daemon::start(&[keys, &small()].concat());
    let address = daemon.address();
    let (baseline, open_files) = (daemon.counts(), daemon.open_files());
    let options = ConnectOptions { queues: 8, ..options(1) };
    let host = Host::connect(&daemon.endpoint(NQN), &options);
    assert_eq!(host.queues.len(), 2, "queues granted");
    assert_eq!(host.controller.queue_depth(), 31, "one of 32 entries stays empty");
    let fourth = Raw::admin(address, NQN, &options);
    let mut fifth = Raw::hello(address, false, false);
    let cqe = fifth.connect(0, 32, CNTLID_DYNAMIC, NQN, &options);
    assert_eq!(cqe.status(), Status::CONTROLLER_BUSY, "one connection too many");
    assert!(daemon.wait_for_line("Connect refused").contains("limits.connections"));
    drop((host, fourth, fifth));
    daemon.wait_for_counts(&baseline, open_files);
    let host = Host::connect(&daemon.endpoint(NQN), &options);
    assert_eq!(host.queues.len(), 2);
}
