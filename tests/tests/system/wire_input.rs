//! Invalid input on the wire: the specified response, only that connection affected, nothing
//! leaked.

use nvmeof_initiator::ConnectOptions;
use nvmeof_tests::config::{NQN, OTHER_NQN, listener, ram, small, subsystem, subsystem_for};
use nvmeof_tests::{Counts, Daemon, Pdu, Raw, Worker, options};
use nvmeof_wire::fabrics::{CNTLID_DYNAMIC, Connect, ConnectData, InvalidParameter};
use nvmeof_wire::nvm::BlockIo;
use nvmeof_wire::opcode::{AdminOpcode, IoOpcode};
use nvmeof_wire::sqe::FLAGS_SGL;
use nvmeof_wire::tcp::{
    CapsuleCmd, Fes, Framing, H2CData, ICReq, IcParams, PduType, Receiver, TcpError, TermReq,
};
use nvmeof_wire::zerocopy::IntoBytes;
use nvmeof_wire::{Cqe, Sgl, Sqe, Status};

/// Number of blocks of namespace 1, of 512 bytes.
const BLOCKS: u64 = (64 << 20) / 512;

/// A daemon, a healthy host with a load, and the daemon's counts before any host connected.
struct Scene {
    daemon: Daemon,
    worker: Worker,
    baseline: Counts,
    open_files: usize,
}

impl Scene {
    fn new() -> Self {
        Self::of(&small())
    }

    fn of(config: &str) -> Self {
        let daemon = Daemon::start(config);
        let (baseline, open_files) = (daemon.counts(), daemon.open_files());
        let worker = Worker::start(&daemon.endpoint(NQN), &options(1));
        Self { daemon, worker, baseline, open_files }
    }

    /// Returns the bad host, which differs from the healthy one.
    fn host(&self, digests: bool) -> ConnectOptions {
        ConnectOptions { hdgst: digests, ddgst: digests, ..options(2) }
    }

    /// Connects an admin queue and an I/O queue of 8 entries.
    fn queues(&self, digests: bool) -> (Raw, Raw) {
        let (host, address) = (self.host(digests), self.daemon.address());
        let (admin, cntlid) = Raw::admin(address, NQN, &host);
        let io = Raw::io(address, NQN, &host, cntlid, 8);
        (admin, io)
    }

    /// Checks that the healthy host was not affected, and that nothing remains after the
    /// connections `open` are closed, too.
    fn finish<T>(self, open: T) {
        self.worker.goes_on();
        drop(open);
        self.worker.stop();
        self.daemon.wait_for_counts(&self.baseline, self.open_files);
    }
}

/// Checks that a PDU ends the connection, with this error and an echo of the faulty header.
fn assert_fatal(raw: &mut Raw, pdu: &[u8], wanted: TcpError, header_len: usize) {
    raw.try_send(pdu);
    let (error, header) = raw.terminated();
    assert_eq!(error, wanted);
    assert_eq!(header, pdu[..header_len], "header of the PDU in error");
    raw.finish();
    assert!(matches!(raw.pdu(), Pdu::End), "something after a C2HTermReq");
}

fn read_blocks(slba: u64, blocks: u32) -> Sqe {
    BlockIo::new(slba, blocks).encode(IoOpcode::READ, 0, 1)
}

fn write_blocks(slba: u64, blocks: u32) -> Sqe {
    BlockIo::new(slba, blocks).encode(IoOpcode::WRITE, 0, 1)
}

/// Begins a write of 16 KiB, more than the capsule can hold, and receives its R2T.
fn begin_write(io: &mut Raw, slba: u64) -> (u16, u16) {
    let sqe = io.separate(write_blocks(slba, 32), 16384);
    let capsule = io.capsule(sqe, &[]);
    io.send(&capsule);
    let r2t = io.r2t();
    assert_eq!((r2t.cccid, r2t.r2to.get(), r2t.r2tl.get()), (sqe.cid, 0, 16384));
    (r2t.cccid.get(), r2t.ttag.get())
}

#[test]
fn the_common_header_is_checked_field_by_field() {
    let scene = Scene::new();
    let good = CapsuleCmd::new(Framing::default(), read_blocks(0, 8), 0);
    let good = good.as_bytes();
    // Changed byte, its value, and the reported offset.
    let cases: [(usize, u8, u32); 7] = [
        (0, 0x0b, 0),
        (0, PduType::CAPSULE_RESP.0, 0),
        (0, PduType::C2H_TERM_REQ.0, 0),
        (1, 1, 1),
        (2, 64, 2),
        (4, 71, 4),
        // Two bytes of data that start in the header.
        (4, 74, 3),
    ];
    for (byte, value, blamed) in cases {
        let mut pdu = good.to_vec();
        pdu[byte] = value;
        let (_admin, mut io) = scene.queues(false);
        assert_fatal(&mut io, &pdu, TcpError::field(blamed), 8);
    }
    scene.finish(());
}

#[test]
fn the_handshake_comes_first_and_once_and_says_what_is_known() {
    let scene = Scene::new();
    let address = scene.daemon.address();
    let capsule = CapsuleCmd::new(Framing::default(), read_blocks(0, 8), 0);
    assert_fatal(&mut Raw::open(address), capsule.as_bytes(), TcpError::SEQUENCE, 8);
    let request = ICReq::new(IcParams { pda: 0, hdgst: false, ddgst: false, max: 1 });
    let mut greeted = Raw::hello(address, false, false);
    assert_fatal(&mut greeted, request.as_bytes(), TcpError::SEQUENCE, 8);
    let mut format = request;
    format.pfv.set(1);
    assert_fatal(&mut Raw::open(address), format.as_bytes(), TcpError::unsupported(8), 128);
    let mut alignment = request;
    alignment.hpda = 32;
    assert_fatal(&mut Raw::open(address), alignment.as_bytes(), TcpError::field(10), 128);
    scene.finish(());
}

#[test]
fn a_wrong_header_digest_is_fatal() {
    let scene = Scene::new();
    let (admin, mut io) = scene.queues(true);
    let sqe = io.separate(read_blocks(0, 8), 4096);
    let mut pdu = io.capsule(sqe, &[]);
    pdu[72] ^= 1;
    let received = u32::from_le_bytes([pdu[72], pdu[73], pdu[74], pdu[75]]);
    assert_fatal(&mut io, &pdu, TcpError::header_digest(received), 72);
    scene.finish((admin, io));
}

#[test]
fn a_wrong_data_digest_fails_the_command_alone() {
    let scene = Scene::new();
    let (admin, mut io) = scene.queues(true);
    let data = vec![7; 4096];
    // In the capsule.
    let sqe = io.in_capsule(write_blocks(60000, 8), data.len());
    let mut pdu = io.capsule(sqe, &data);
    *pdu.last_mut().expect("a digest") ^= 1;
    io.send(&pdu);
    let cqe = io.response();
    assert_eq!((cqe.cid, cqe.status()), (sqe.cid, Status::TRANSIENT_TRANSPORT_ERROR));
    // By R2T.
    let (cid, ttag) = begin_write(&mut io, 60000);
    let mut pdu = io.h2c_data(cid, ttag, 0, &[7; 16384], true);
    *pdu.last_mut().expect("a digest") ^= 1;
    io.send(&pdu);
    let cqe = io.response();
    assert_eq!((cqe.cid.get(), cqe.status()), (cid, Status::TRANSIENT_TRANSPORT_ERROR));
    // Neither was written, and the queue still works.
    assert_eq!(io.read(read_blocks(60000, 32), 16384), [0; 16384]);
    let sqe = io.in_capsule(write_blocks(60000, 8), data.len());
    let pdu = io.capsule(sqe, &data);
    io.send(&pdu);
    assert_eq!(io.response().status(), Status::SUCCESS);
    assert_eq!(io.read(read_blocks(60000, 8), 4096), data);
    scene.finish((admin, io));
}

#[test]
fn more_data_than_agreed_ends_the_connection_before_it_is_taken_in() {
    let scene = Scene::new();
    let (admin, mut io) = scene.queues(false);
    let sqe = io.in_capsule(write_blocks(0, 32), 16384);
    let pdu = io.capsule(sqe, &[0; 16384]);
    assert_fatal(&mut io, &pdu, TcpError::LIMIT, 72);
    // 4 GiB announced and never sent.
    let (admin2, mut io) = scene.queues(false);
    let mut capsule = CapsuleCmd::new(Framing::default(), sqe, 16384);
    capsule.ch.plen.set(u32::MAX);
    assert_fatal(&mut io, capsule.as_bytes(), TcpError::LIMIT, 72);
    let (admin3, mut io) = scene.queues(false);
    let (cid, ttag) = begin_write(&mut io, 0);
    let header = H2CData::new(Framing::default(), cid, ttag, 0, io.max_h2c_data + 4, true);
    assert_fatal(&mut io, header.as_bytes(), TcpError::LIMIT, 8);
    scene.finish((admin, io, admin2, admin3));
}

#[test]
fn data_goes_where_it_was_asked_for_or_ends_the_connection() {
    let scene = Scene::new();
    let part = [9; 4096];
    // A faulty H2CData for the first of two writes, and its error.
    type Wrong = fn(&Raw, (u16, u16), (u16, u16)) -> Vec<u8>;
    let cases: [(Wrong, TcpError); 7] = [
        (
            |io, one, _| io.h2c_data(one.0, one.1 ^ 0x4000, 0, &[9; 4096], false),
            TcpError::field(10),
        ),
        (|io, one, two| io.h2c_data(one.0, two.1, 0, &[9; 4096], false), TcpError::field(8)),
        (|io, one, _| io.h2c_data(one.0, one.1, 4096, &[9; 4096], false), TcpError::OUT_OF_RANGE),
        (|io, one, _| io.h2c_data(one.0, one.1, 0, &[9; 20480], true), TcpError::OUT_OF_RANGE),
        (|io, one, _| io.h2c_data(one.0, one.1, 0, &[9; 16384], false), TcpError::SEQUENCE),
        (|io, one, _| io.h2c_data(one.0, one.1, 0, &[9; 4096], true), TcpError::SEQUENCE),
        (|io, one, _| io.h2c_data(one.0, one.1, 2, &[9; 4096], false), TcpError::field(12)),
    ];
    for (wrong, error) in cases {
        let (_admin, mut io) = scene.queues(false);
        let (one, two) = (begin_write(&mut io, 50000), begin_write(&mut io, 50100));
        let pdu = wrong(&io, one, two);
        assert_fatal(&mut io, &pdu, error, 24);
    }
    // DATAL and PLEN do not agree.
    let (admin, mut io) = scene.queues(false);
    let (cid, ttag) = begin_write(&mut io, 50000);
    let mut header = H2CData::new(Framing::default(), cid, ttag, 0, 4096, false);
    header.datal.set(8192);
    let pdu = io.encode(header.as_bytes(), &part);
    assert_fatal(&mut io, &pdu, TcpError::field(16), 24);
    // Data without an R2T.
    let (admin2, mut io) = scene.queues(false);
    let pdu = io.h2c_data(1, 0, 0, &part, true);
    assert_fatal(&mut io, &pdu, TcpError::field(10), 24);
    scene.finish((admin, io, admin2));
}

#[test]
fn a_host_that_gives_up_is_let_go() {
    let scene = Scene::new();
    let (admin, mut io) = scene.queues(false);
    begin_write(&mut io, 0);
    let error = TcpError { fes: Fes::SEQUENCE_ERROR, fei: 0 };
    io.send(TermReq::new(Receiver::Host, error, 0).as_bytes());
    assert!(matches!(io.pdu(), Pdu::End), "an answer to an H2CTermReq");
    scene.finish((admin, io));
}

#[test]
fn more_commands_than_the_queue_has_entries() {
    let scene = Scene::new();
    let (admin, mut io) = scene.queues(false);
    for command in 0..8 {
        begin_write(&mut io, 32 * command);
    }
    let sqe = io.separate(read_blocks(0, 8), 4096);
    let pdu = io.capsule(sqe, &[]);
    assert_fatal(&mut io, &pdu, TcpError::SEQUENCE, 72);
    scene.finish((admin, io));
}

#[test]
fn silence_where_something_is_owed_ends_the_connection() {
    let limits = "[limits]\npdu-timeout = \"1s\"\nconnect-timeout = \"1s\"\n";
    let scene = Scene::of(&[limits, &small()].concat());
    let address = scene.daemon.address();
    let mut mute = Raw::open(address);
    let (mut admin, mut half_header) = scene.queues(false);
    let (admin2, mut half_data) = scene.queues(false);
    let (admin3, mut no_data) = scene.queues(false);
    let sqe = half_header.separate(read_blocks(0, 8), 4096);
    let pdu = half_header.capsule(sqe, &[]);
    half_header.send(&pdu[..40]);
    let sqe = half_data.in_capsule(write_blocks(0, 8), 4096);
    let pdu = half_data.capsule(sqe, &[3; 4096]);
    half_data.send(&pdu[..2000]);
    begin_write(&mut no_data, 0);
    for raw in [&mut mute, &mut half_header, &mut half_data, &mut no_data] {
        assert!(matches!(raw.pdu(), Pdu::End));
    }
    // An admin queue has no data to send and is allowed to stay idle.
    let cqe = admin.command(Sqe::admin(AdminOpcode::KEEP_ALIVE, 0, 0));
    assert_eq!(cqe.status(), Status::SUCCESS);
    scene.finish((admin, admin2, admin3));
}

#[test]
fn hosts_that_vanish_in_the_middle_leave_nothing() {
    let scene = Scene::new();
    for cut in [1, 8, 40, 72, 100, 4000] {
        let (_admin, mut io) = scene.queues(false);
        begin_write(&mut io, 0);
        let sqe = io.in_capsule(write_blocks(0, 8), 4096);
        let pdu = io.capsule(sqe, &[3; 4096]);
        io.send(&pdu[..cut]);
    }
    // Reads whose data the host never receives.
    let (admin, mut io) = scene.queues(false);
    for _ in 0..8 {
        let sqe = io.separate(read_blocks(0, 2048), 1 << 20);
        let pdu = io.capsule(sqe, &[]);
        io.send(&pdu);
    }
    drop(io);
    scene.finish(admin);
}

#[test]
fn noise_ends_the_connection() {
    let scene = Scene::new();
    for seed in 0..32 {
        println!("seed {seed}");
        let mut noise = vec![0; 4096];
        nvmeof_tests::fill(&mut noise, seed);
        // A PDU type that is valid for the target, so that the fields behind it matter.
        noise[0] = [0, 2, 4, 6][usize::try_from(seed % 4).expect("small")];
        let mut raw = Raw::hello(scene.daemon.address(), seed % 2 == 1, seed % 3 == 1);
        raw.try_send(&noise);
        raw.finish();
        match raw.pdu() {
            Pdu::Terminated(..) | Pdu::End => {}
            other => panic!("{other:?} to noise"),
        }
    }
    scene.finish(());
}

#[test]
#[expect(clippy::too_many_lines, reason = "one table")]
fn commands_that_make_no_sense_get_the_specified_status() {
    let scene = Scene::new();
    let (mut admin, mut io) = scene.queues(false);
    let sgl = |sqe: Sqe, sgl: Sgl| sqe.with_sgl(sgl);
    let whole = Sgl::Transport { length: 4096 };
    let flags = |mut sqe: Sqe, flags: u8| {
        sqe.flags = flags;
        sqe
    };
    let of = |mut sqe: Sqe, nsid: u32| {
        sqe.nsid.set(nsid);
        sqe
    };
    let read = sgl(read_blocks(0, 8), whole);
    let write = sgl(write_blocks(0, 8), whole);
    let huge = Sgl::Transport { length: u32::MAX };
    let cases = [
        (Sqe::new(0x77, 0, 1), Status::INVALID_OPCODE),
        (Sqe::io(IoOpcode::WRITE_UNCORRECTABLE, 0, 1), Status::INVALID_OPCODE),
        (Sqe::io(IoOpcode::RESERVATION_REGISTER, 0, 1), Status::INVALID_OPCODE),
        (sgl(read_blocks(BLOCKS, 1), whole), Status::LBA_OUT_OF_RANGE),
        (sgl(read_blocks(BLOCKS - 1, 8), whole), Status::LBA_OUT_OF_RANGE),
        (sgl(read_blocks(u64::MAX, 8), whole), Status::LBA_OUT_OF_RANGE),
        (sgl(write_blocks(BLOCKS - 7, 8), whole), Status::LBA_OUT_OF_RANGE),
        (BlockIo::new(BLOCKS, 1).encode(IoOpcode::WRITE_ZEROES, 0, 1), Status::LBA_OUT_OF_RANGE),
        (BlockIo::new(BLOCKS, 1).encode(IoOpcode::VERIFY, 0, 1), Status::LBA_OUT_OF_RANGE),
        (sgl(read_blocks(0, 4096), huge), Status::INVALID_FIELD),
        (sgl(write_blocks(0, 4096), huge), Status::INVALID_FIELD),
        (of(read, 0), Status::INVALID_NAMESPACE_OR_FORMAT),
        (of(read, 2), Status::INVALID_FIELD),
        (of(read, u32::MAX), Status::INVALID_FIELD),
        (of(write, 0xffff_fffe), Status::INVALID_NAMESPACE_OR_FORMAT),
        (flags(read, 0), Status::INVALID_FIELD),
        (flags(read, 0xc0), Status::INVALID_FIELD),
        (flags(read, FLAGS_SGL | 1), Status::INVALID_FIELD),
        (sgl(read, Sgl::Unknown { kind: 0xf, subtype: 0 }), Status::SGL_TYPE_INVALID),
        (sgl(read, Sgl::Unknown { kind: 6, subtype: 3 }), Status::SGL_TYPE_INVALID),
        (sgl(read, Sgl::BitBucket { length: 4096 }), Status::SGL_TYPE_INVALID),
        (sgl(read, Sgl::DataBlock { address: 0, length: 4096 }), Status::SGL_TYPE_INVALID),
        (sgl(read, Sgl::InCapsule { offset: 0, length: 4096 }), Status::SGL_TYPE_INVALID),
        (
            sgl(write, Sgl::Keyed { address: 0, length: 4096, key: 1, invalidate: false }),
            Status::SGL_TYPE_INVALID,
        ),
        (
            sgl(write, Sgl::Segment { address: 0, length: 32, offset: true }),
            Status::SGL_TYPE_INVALID,
        ),
        (sgl(read, Sgl::Transport { length: 4095 }), Status::DATA_SGL_LENGTH_INVALID),
        (sgl(write, Sgl::Transport { length: 0 }), Status::DATA_SGL_LENGTH_INVALID),
        // In-capsule data that was not sent.
        (sgl(write, Sgl::InCapsule { offset: 0, length: 4096 }), Status::DATA_SGL_LENGTH_INVALID),
        (sgl(write, Sgl::InCapsule { offset: 512, length: 4096 }), Status::SGL_OFFSET_INVALID),
        (sgl(write, Sgl::InCapsule { offset: u64::MAX, length: 4096 }), Status::SGL_OFFSET_INVALID),
    ];
    for (sqe, status) in cases {
        let cqe = io.command(sqe);
        assert_eq!(cqe.status(), status.with_dnr(), "{sqe:?}");
    }
    let cases = [
        (Sqe::new(0xc5, 0, 0), Status::INVALID_OPCODE),
        (Sqe::admin(AdminOpcode::CREATE_IO_SQ, 0, 0), Status::INVALID_OPCODE),
        (Sqe::admin(AdminOpcode::DELETE_IO_CQ, 0, 0), Status::INVALID_OPCODE),
        (Sqe::admin(AdminOpcode::FORMAT_NVM, 0, 1), Status::INVALID_OPCODE),
        (
            sgl(Sqe::admin(AdminOpcode::IDENTIFY, 0, 1), huge).with_cdw10([0xff]),
            Status::INVALID_FIELD,
        ),
        (
            sgl(Sqe::admin(AdminOpcode::IDENTIFY, 0, 1), Sgl::Transport { length: 8 }),
            Status::DATA_SGL_LENGTH_INVALID,
        ),
        (
            sgl(Sqe::admin(AdminOpcode::GET_LOG_PAGE, 0, 0), whole).with_cdw10([0x03ff_00ee]),
            Status::INVALID_LOG_PAGE,
        ),
    ];
    for (sqe, status) in cases {
        let cqe = admin.command(sqe);
        assert_eq!(cqe.status(), status.with_dnr(), "{sqe:?}");
    }
    // Neither queue is affected.
    assert_eq!(io.read(read_blocks(0, 8), 4096).len(), 4096);
    scene.finish((admin, io));
}

#[test]
fn a_command_identifier_in_use_is_refused_and_its_owner_goes_on() {
    let scene = Scene::new();
    let (admin, mut io) = scene.queues(false);
    let (cid, ttag) = begin_write(&mut io, 40000);
    let mut sqe = read_blocks(0, 8).with_sgl(Sgl::Transport { length: 4096 });
    sqe.cid.set(cid);
    assert_eq!(io.execute(sqe).status(), Status::CID_CONFLICT.with_dnr());
    let data = [0x3c; 16384];
    let pdu = io.h2c_data(cid, ttag, 0, &data, true);
    io.send(&pdu);
    let cqe = io.response();
    assert_eq!((cqe.cid.get(), cqe.status()), (cid, Status::SUCCESS));
    assert_eq!(io.read(read_blocks(40000, 32), 16384), data);
    scene.finish((admin, io));
}

#[test]
fn connect_to_what_is_not_there_or_not_for_this_host() {
    let allowed = options(1).hostnqn;
    let config = [
        listener("127.0.0.1"),
        ram("ram0", "64MiB", 512),
        ram("ram1", "64MiB", 512),
        subsystem(NQN, &[(1, "ram0")]),
        subsystem_for(&[allowed.as_str()], OTHER_NQN, &[(1, "ram1")]),
    ];
    let scene = Scene::of(&config.concat());
    let (host, address) = (scene.host(false), scene.daemon.address());
    let parameter = |cqe: &Cqe| (cqe.status(), InvalidParameter::parse(cqe.result.get()));
    let invalid = |ipo, in_data| {
        (Status::CONNECT_INVALID_PARAMETERS.with_dnr(), InvalidParameter { ipo, in_data })
    };
    // Errors of objects that can exist, or be allowed, at the next try.
    let not_now =
        |ipo| (Status::CONNECT_INVALID_PARAMETERS, InvalidParameter { ipo, in_data: true });
    let fresh = || Raw::hello(address, false, false);
    let unknown = "nqn.2026-11.io.nvmeof-tgt:nobody";
    let cqe = fresh().connect(0, 32, CNTLID_DYNAMIC, unknown, &host);
    assert_eq!(parameter(&cqe), not_now(ConnectData::SUBNQN_OFFSET));
    let cqe = fresh().connect(0, 32, CNTLID_DYNAMIC, OTHER_NQN, &host);
    assert_eq!(cqe.status(), Status::CONNECT_INVALID_HOST);
    let cqe = fresh().connect(0, 32, 1, NQN, &host);
    assert_eq!(parameter(&cqe), invalid(ConnectData::CNTLID_OFFSET, true));
    for entries in [1, 129] {
        let cqe = fresh().connect(0, entries, CNTLID_DYNAMIC, NQN, &host);
        assert_eq!(parameter(&cqe), invalid(Connect::SQSIZE_OFFSET, false), "{entries} entries");
    }
    // An I/O queue of no controller, of another host's, and the same one twice.
    let cqe = fresh().connect(1, 8, 0x1234, NQN, &host);
    assert_eq!(parameter(&cqe), not_now(ConnectData::CNTLID_OFFSET));
    let (admin, cntlid) = Raw::admin(address, NQN, &host);
    let cqe = fresh().connect(1, 8, cntlid, NQN, &options(3));
    assert_eq!(parameter(&cqe), not_now(ConnectData::HOSTNQN_OFFSET));
    let mut io = Raw::io(address, NQN, &host, cntlid, 8);
    let cqe = fresh().connect(1, 8, cntlid, NQN, &host);
    assert_eq!(cqe.status(), Status::COMMAND_SEQUENCE_ERROR, "queue 1 twice");
    let cqe = io.connect(2, 8, cntlid, NQN, &host);
    assert_eq!(cqe.status(), Status::INVALID_OPCODE.with_dnr(), "Connect on an I/O queue");
    assert_eq!(io.read(read_blocks(0, 8), 4096).len(), 4096, "the queue it came on");
    // No other command is valid before Connect.
    let cqe = fresh().command(Sqe::admin(AdminOpcode::KEEP_ALIVE, 0, 0));
    assert_eq!(cqe.status(), Status::COMMAND_SEQUENCE_ERROR.with_dnr());
    scene.finish((admin, io));
}
