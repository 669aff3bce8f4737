//! The host's whole sequence against the fake target.

use std::time::{Duration, Instant};

use nvmeof_fake_target::{FakeAction, FakeTarget, FakeTargetOptions, name};
use nvmeof_wire::opcode::IoOpcode;
use nvmeof_wire::{Nqn, Status};

use crate::{
    Address, Buffer, CommandError, CompletedCommand, ConnectOptions, Controller, Endpoint, Error,
    FormatOutcome, Io, IoKind, IoQueue, NamespaceInfo, RejectReason, discover, nanos,
};

/// Addresses of the fake target, as the host parses them.
trait Addressed {
    fn address(&self) -> Address;
    fn endpoint(&self) -> Endpoint;
}

impl Addressed for FakeTarget {
    fn address(&self) -> Address {
        self.discovery_url().parse().unwrap()
    }

    fn endpoint(&self) -> Endpoint {
        self.url().parse().unwrap()
    }
}

fn io(token: u64, slba: u64, blocks: u32, kind: IoKind) -> Io {
    Io { token, nsid: 1, slba, blocks, kind }
}

fn data(len: usize) -> Vec<u8> {
    (0..len).map(|at| (at * 13 + at / 256).to_le_bytes()[0]).collect()
}

fn write(token: u64, slba: u64, bytes: &[u8]) -> Io {
    let blocks = u32::try_from(bytes.len() / 512).unwrap();
    io(token, slba, blocks, IoKind::Write { data: Buffer::from(bytes), fua: false })
}

fn read(token: u64, slba: u64, len: usize) -> Io {
    let blocks = u32::try_from(len / 512).unwrap();
    io(token, slba, blocks, IoKind::Read(Buffer::zeroed(len)))
}

/// Polls until `count` commands have completed.
fn complete(
    controller: &Controller,
    queue: &mut IoQueue,
    count: usize,
) -> Result<Vec<CompletedCommand>, (Error, Vec<CompletedCommand>)> {
    let mut done = Vec::new();
    while done.len() < count {
        if let Err(error) =
            queue.flush().and_then(|()| queue.poll(controller.clock().now(), &mut done))
        {
            return Err((error, done));
        }
        queue.wait(Duration::from_millis(100));
    }
    Ok(done)
}

fn one(controller: &Controller, queue: &mut IoQueue, io: Io) -> CompletedCommand {
    queue.submit(io, controller.clock().now()).unwrap();
    complete(controller, queue, 1).unwrap().pop().unwrap()
}

#[test]
fn the_whole_sequence() {
    let target = FakeTarget::start(FakeTargetOptions {
        namespaces: [(1, (4096, 9)), (3, (100, 12)), (7, (0, 9))].into(),
        ..FakeTargetOptions::default()
    });
    let mut controller =
        Controller::connect(&target.endpoint(), &ConnectOptions::default()).unwrap();
    let info = controller.info().clone();
    assert_eq!((info.serial.as_str(), info.model.as_str()), ("FAKE0001", "fake target"));
    assert_eq!((info.cntlid, info.queues, info.max_entries), (7, 1, 128));
    assert_eq!((info.max_transfer, info.in_capsule), (Some(131_072), 8192));
    // Namespace 7 has no size, because it was removed.
    let (a, b) = (controller.namespaces()[0], controller.namespaces()[1]);
    assert_eq!(controller.namespaces().len(), 2);
    assert_eq!(
        a,
        NamespaceInfo { nsid: 1, blocks: 4096, block_size: 512, metadata: 0, read_only: false }
    );
    assert_eq!(
        b,
        NamespaceInfo { nsid: 3, blocks: 100, block_size: 4096, metadata: 0, read_only: false }
    );
    let mut queue = controller.open_queue().unwrap();
    assert_eq!((queue.qid(), queue.depth()), (1, 127));
    assert!(matches!(controller.open_queue(), Err(Error::Unusable { .. })));
    let bytes = data(4096);
    assert_eq!(one(&controller, &mut queue, write(1, 8, &bytes)).result, Ok(0));
    assert_eq!(one(&controller, &mut queue, io(2, 0, 0, IoKind::Flush)).result, Ok(0));
    let done = one(&controller, &mut queue, read(3, 8, 4096));
    assert_eq!((done.token, done.result), (3, Ok(0)));
    assert!(done.buffer.unwrap().as_slice() == bytes);
    let done = one(&controller, &mut queue, read(4, 4095, 1024));
    let Err(CommandError::Status { status, .. }) = done.result else { panic!("{done:?}") };
    assert_eq!(status.code(), Status::LBA_OUT_OF_RANGE);
    drop(queue);
    controller.disconnect().unwrap();
    assert_eq!(target.shutdowns(), 1);
}

#[test]
fn every_way_to_move_data() {
    let options =
        |hdgst, ddgst| ConnectOptions { hdgst, ddgst, depth: 8, ..ConnectOptions::default() };
    for (hdgst, ddgst) in [(false, false), (true, false), (false, true), (true, true)] {
        for (in_capsule, success_flag, cpda) in [(0, true, 0), (4096, false, 31), (65_536, true, 1)]
        {
            let target = FakeTarget::start(FakeTargetOptions {
                in_capsule,
                success_flag,
                cpda,
                ..FakeTargetOptions::default()
            });
            let mut controller =
                Controller::connect(&target.endpoint(), &options(hdgst, ddgst)).unwrap();
            let mut queue = controller.open_queue().unwrap();
            assert_eq!(queue.depth(), 8);
            for len in [512, 4096, 8192, 65_536, 131_072] {
                let bytes = data(len);
                let (now, blocks) = (controller.clock().now(), len as u64 / 512);
                for token in 0..3 {
                    queue.submit(write(token, token * blocks, &bytes), now).unwrap();
                }
                for completed in complete(&controller, &mut queue, 3).unwrap() {
                    assert_eq!(completed.result, Ok(0), "write of {len}");
                }
                for token in 0..3 {
                    queue.submit(read(token, token * blocks, len), now).unwrap();
                }
                for completed in complete(&controller, &mut queue, 3).unwrap() {
                    assert_eq!(completed.result, Ok(0), "read of {len}");
                    assert!(completed.buffer.unwrap().as_slice() == bytes, "read of {len}");
                }
            }
        }
    }
}

fn refused(
    target_options: FakeTargetOptions,
    subnqn: Option<Nqn>,
    options: &ConnectOptions,
) -> String {
    let target = FakeTarget::start(target_options);
    let mut endpoint = target.endpoint();
    if let Some(subnqn) = subnqn {
        endpoint.subnqn = subnqn;
    }
    Controller::connect(&endpoint, options).unwrap_err().to_string()
}

#[test]
fn a_refusal_says_what_to_do() {
    let options = ConnectOptions::default();
    let unknown =
        refused(FakeTargetOptions::default(), Some(name("nqn.2026-11.io.x:other")), &options);
    assert!(unknown.contains("nvmeof-perf discover --connect tcp://127.0.0.1:"), "{unknown}");
    assert!(unknown.contains("nqn.2026-11.io.x:other"), "{unknown}");
    let hosts = vec![name("nqn.2026-11.io.x:host")];
    let forbidden =
        refused(FakeTargetOptions { hosts, ..FakeTargetOptions::default() }, None, &options);
    assert!(forbidden.contains("not allowed") && forbidden.contains("--hostnqn"), "{forbidden}");
    let asked = ConnectOptions { hdgst: true, ..ConnectOptions::default() };
    let digest =
        refused(FakeTargetOptions { hdgst: false, ..FakeTargetOptions::default() }, None, &asked);
    assert!(digest.contains("header digest") && digest.contains("--hdgst"), "{digest}");
}

#[test]
fn nobody_there() {
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let endpoint: Endpoint = format!("tcp://127.0.0.1:{port}/nqn.x").parse().unwrap();
    let error = Controller::connect(&endpoint, &ConnectOptions::default()).unwrap_err();
    assert!(matches!(error, Error::Connect { .. }), "{error}");
    assert!(error.to_string().contains("is a target listening there?"), "{error}");
}

#[test]
fn a_peer_that_says_nothing_is_given_up() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let endpoint: Endpoint = format!("tcp://127.0.0.1:{port}/nqn.x").parse().unwrap();
    let options =
        ConnectOptions { connect_timeout: Duration::from_millis(50), ..ConnectOptions::default() };
    let error = Controller::connect(&endpoint, &options).unwrap_err();
    assert!(matches!(&error, Error::Timeout { what, .. } if what == "ICReq"), "{error}");
}

#[test]
fn a_peer_that_is_no_nvme_tcp_target_is_told_from_one() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let thread = std::thread::spawn(move || {
        use std::io::{Read, Write};
        let (mut stream, _) = listener.accept().unwrap();
        stream.read_exact(&mut [0; 128]).unwrap();
        stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").unwrap();
        // The host sends the reason in a TermReq, then closes.
        let mut rest = Vec::new();
        let _ = stream.read_to_end(&mut rest);
        rest
    });
    let endpoint: Endpoint = format!("tcp://127.0.0.1:{port}/nqn.x").parse().unwrap();
    let error = Controller::connect(&endpoint, &ConnectOptions::default()).unwrap_err();
    assert!(matches!(error, Error::Protocol { .. }), "{error}");
    assert_eq!(thread.join().unwrap()[0], 0x02, "an H2CTermReq");
}

fn scripted(action: FakeAction) -> (FakeTarget, Controller, IoQueue) {
    let script =
        move |number: u64, _: IoOpcode| if number == 2 { action } else { FakeAction::Serve };
    let target = FakeTarget::scripted(FakeTargetOptions::default(), Box::new(script));
    let options = ConnectOptions { ddgst: true, ..ConnectOptions::default() };
    let mut controller = Controller::connect(&target.endpoint(), &options).unwrap();
    let queue = controller.open_queue().unwrap();
    (target, controller, queue)
}

/// Submits three reads, of which the third meets `action`.
fn third_read(action: FakeAction) -> Result<Vec<CompletedCommand>, (Error, Vec<CompletedCommand>)> {
    let (_target, controller, mut queue) = scripted(action);
    let now = controller.clock().now();
    for token in 0..3 {
        queue.submit(read(token, 0, 4096), now).unwrap();
    }
    complete(&controller, &mut queue, 3)
}

#[test]
fn a_failed_command_is_alone() {
    let third = |action| third_read(action).unwrap().pop().unwrap().result;
    assert_eq!(third(FakeAction::BadDigest), Err(CommandError::DataDigest));
    let status = Status::UNRECOVERED_READ_ERROR;
    assert_eq!(third(FakeAction::Fail(status)), Err(CommandError::Status { status, dw0: 0 }));
}

#[test]
fn a_lost_connection_gives_every_command_back() {
    let (error, done) = third_read(FakeAction::HangUp).unwrap_err();
    assert!(matches!(error, Error::Closed { .. } | Error::Io { .. }), "{error}");
    assert_eq!(done.len(), 3);
    assert_eq!(done[2].result, Err(CommandError::ConnectionLost));
    assert!(done[2].buffer.is_some());
    let (error, done) = third_read(FakeAction::Terminate).unwrap_err();
    assert!(matches!(error, Error::Terminated { .. }), "{error}");
    assert_eq!(done.len(), 3);
}

#[test]
fn a_command_without_an_answer_times_out() {
    let (_target, controller, mut queue) = scripted(FakeAction::NoResponse);
    let now = controller.clock().now();
    for token in 0..3 {
        queue.submit(read(token, 0, 4096), now).unwrap();
    }
    let mut done = complete(&controller, &mut queue, 2).unwrap();
    // The test passes the time, so it does not have to wait.
    let late = now + nanos(ConnectOptions::default().io_timeout);
    queue.poll(late - 1, &mut done).unwrap();
    assert_eq!(queue.in_flight(), 1);
    // The queue checks its deadlines ten times per second.
    let error = queue.poll(late + 100_000_000, &mut done).unwrap_err();
    assert!(matches!(error, Error::Timeout { .. }), "{error}");
    assert_eq!(done[2].result, Err(CommandError::TimedOut));
    assert_eq!(queue.in_flight(), 0);
    let rejected = queue.submit(read(9, 0, 512), late).unwrap_err();
    assert_eq!(rejected.reason, RejectReason::Closed);
    assert!(queue.poll(late, &mut done).is_err());
}

#[test]
fn keep_alive_is_sent_in_time() {
    let target = FakeTarget::start(FakeTargetOptions::default());
    let options =
        ConnectOptions { keep_alive: Duration::from_millis(60), ..ConnectOptions::default() };
    let mut controller = Controller::connect(&target.endpoint(), &options).unwrap();
    let until = Instant::now() + Duration::from_secs(20);
    while target.keep_alives() < 3 {
        controller.poll().unwrap();
        assert!(Instant::now() < until, "no keep alive was sent");
        std::thread::sleep(Duration::from_millis(5));
    }
    controller.disconnect().unwrap();
}

/// Any properties of a controller give a controller or an error, and never a panic or a hang.
#[test]
fn junk_is_survived() {
    let mut usable = 0;
    for byte in [0x00, 0x01, 0x55, 0x7f, 0xaa, 0xfe, 0xff] {
        for (junk_data, junk_results) in
            [(Some(byte), None), (None, Some(byte)), (Some(byte), Some(byte))]
        {
            let target = FakeTarget::start(FakeTargetOptions {
                junk_data,
                junk_results,
                ..FakeTargetOptions::default()
            });
            // Any result is fine.
            let _ = discover(&target.address(), &ConnectOptions::default());
            let Ok(mut controller) =
                Controller::connect(&target.endpoint(), &ConnectOptions::default())
            else {
                continue;
            };
            usable += 1;
            if let Ok(mut queue) = controller.open_queue() {
                assert!(queue.depth() >= 1);
                let _ = one(&controller, &mut queue, read(1, 0, 512));
            }
        }
    }
    assert!(usable > 0, "junk that is a plausible controller after all");
}

#[test]
fn discovery_lists_everything_however_long() {
    for records in [0, 1, 200] {
        let target = FakeTarget::start(FakeTargetOptions {
            discovery_records: records,
            ..FakeTargetOptions::default()
        });
        let log = discover(&target.address(), &ConnectOptions::default()).unwrap();
        assert_eq!((log.generation, log.entries.len()), (5, records));
        for (number, entry) in log.entries.iter().enumerate() {
            assert_eq!(entry.subnqn, format!("nqn.2026-11.io.x:{number}"));
            let endpoint = format!("tcp://127.0.0.1:4420/nqn.2026-11.io.x:{number}");
            assert_eq!(entry.endpoint(), Some(endpoint));
        }
        assert_eq!(target.shutdowns(), 1);
    }
}

#[test]
fn a_format_clears_one_namespace_and_takes_its_time() {
    let target_options = FakeTargetOptions {
        namespaces: [(1, (64, 9)), (2, (64, 9))].into(),
        format: true,
        format_time: Duration::from_millis(700),
        ..FakeTargetOptions::default()
    };
    let target = FakeTarget::start(target_options.clone());
    target.tamper(1, |disk| disk.fill(7));
    target.tamper(2, |disk| disk.fill(8));
    // The response takes longer than the timeout of other commands.
    let options =
        ConnectOptions { connect_timeout: Duration::from_millis(500), ..ConnectOptions::default() };
    let mut controller = Controller::connect(&target.endpoint(), &options).unwrap();
    assert_eq!(controller.format(1, Duration::from_secs(60)).unwrap(), FormatOutcome::Done);
    target.tamper(1, |disk| assert!(disk.iter().all(|byte| *byte == 0)));
    target.tamper(2, |disk| assert!(disk.iter().all(|byte| *byte == 8)));
    assert!(controller.format(9, Duration::from_secs(60)).is_err());
    controller.disconnect().unwrap();
    for (target_options, expected) in [
        (FakeTargetOptions { formats_all: true, ..target_options.clone() }, FormatOutcome::Others),
        (FakeTargetOptions { format: false, ..target_options }, FormatOutcome::Unsupported),
    ] {
        let target = FakeTarget::start(target_options);
        target.tamper(1, |disk| disk.fill(7));
        let mut controller =
            Controller::connect(&target.endpoint(), &ConnectOptions::default()).unwrap();
        assert_eq!(controller.format(1, Duration::from_secs(60)).unwrap(), expected);
        target.tamper(1, |disk| assert!(disk.iter().all(|byte| *byte == 7)));
    }
}
