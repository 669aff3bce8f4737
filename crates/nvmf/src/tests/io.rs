//! The NVM command set: every command, and every reason to refuse it.

use nvmeof_wire::features::Fid;
use nvmeof_wire::log::{GetLogPage, Lid};
use nvmeof_wire::nvm::{BlockIo, DatasetManagement, DsmRange};
use nvmeof_wire::opcode::IoOpcode;
use nvmeof_wire::sqe::NSID_ALL;
use nvmeof_wire::zerocopy::IntoBytes;
use nvmeof_wire::{Sgl, Sqe, Status};

use super::support::*;
use crate::{DataSource, DeviceId, Disposition, Extent, Failure, IoKind, NamespaceSpec};

const BLOCK_COMMANDS: [IoOpcode; 5] =
    [IoOpcode::READ, IoOpcode::WRITE, IoOpcode::COMPARE, IoOpcode::WRITE_ZEROES, IoOpcode::VERIFY];

fn io_queue() -> (Link, Link) {
    let target = target();
    let (admin, cntlid) = enabled_admin(&target);
    (admin, connect_io(&target, cntlid, 1))
}

fn host(length: u32) -> Sgl {
    Sgl::Transport { length }
}

fn block(opcode: IoOpcode, nsid: u32, slba: u64, blocks: u32) -> Sqe {
    let length = blocks.saturating_mul(if nsid == 2 { 4096 } else { 512 });
    BlockIo::new(slba, blocks).encode(opcode, 0, nsid).with_sgl(host(length))
}

fn deallocate(nsid: u32, ranges: u16) -> Sqe {
    let dsm =
        DatasetManagement { ranges, deallocate: true, integral_write: false, integral_read: false };
    dsm.encode(0, nsid).with_sgl(host(u32::from(ranges) * 16))
}

#[test]
fn read_and_write_come_out_in_bytes() {
    let (_admin, mut io) = io_queue();
    let read = io.io(block(IoOpcode::READ, 1, 10, 8));
    assert_eq!(read.kind, IoKind::Read);
    assert_eq!((read.nsid, read.device), (1, DeviceId(101)));
    assert_eq!((read.offset, read.len, read.data_len()), (5120, 4096, 4096));
    assert_eq!((read.sgl, read.source, read.fua), (host(4096), None, false));

    let write = io.io(block(IoOpcode::WRITE, 2, 3, 2));
    assert_eq!(write.kind, IoKind::Write);
    assert_eq!((write.device, write.offset, write.len), (DeviceId(102), 12288, 8192));
    assert_eq!(write.source, Some(DataSource::Host(host(8192))));
}

#[test]
fn write_data_may_come_in_the_capsule() {
    let (_admin, mut io) = io_queue();
    let mut write = block(IoOpcode::WRITE, 1, 0, 2);
    write.dptr = Sgl::InCapsule { offset: 16, length: 1024 }.encode();
    let source = Some(DataSource::InCapsule { offset: 16 });
    match io.queue.handle_command(&write, 1040, 0) {
        Disposition::Io(command) => assert_eq!(command.source, source),
        other => panic!("{other:?}"),
    }
    write.cid.set(1);
    answer(io.queue.handle_command(&write, 1039, 0)).fails(Status::DATA_SGL_LENGTH_INVALID);
    answer(io.queue.handle_command(&write, 15, 0)).fails(Status::SGL_OFFSET_INVALID);
    answer(io.queue.handle_command(&write, 0, 0)).fails(Status::SGL_OFFSET_INVALID);
}

#[test]
fn fua_and_deallocate_are_handed_on() {
    let (_admin, mut io) = io_queue();
    let fua = BlockIo { fua: true, deallocate: true, ..BlockIo::new(0, 1) };
    for opcode in BLOCK_COMMANDS {
        assert!(io.io(fua.encode(opcode, 0, 1).with_sgl(host(512))).fua, "{opcode}");
        assert!(!io.io(block(opcode, 1, 0, 1)).fua, "{opcode}");
    }
    let kind = |io: &mut Link, nsid| io.io(fua.encode(IoOpcode::WRITE_ZEROES, 0, nsid)).kind;
    assert_eq!(kind(&mut io, 1), IoKind::WriteZeroes { deallocate: true });
    assert_eq!(kind(&mut io, 4), IoKind::WriteZeroes { deallocate: false }, "it cannot");
    let plain = io.io(block(IoOpcode::WRITE_ZEROES, 1, 0, 1)).kind;
    assert_eq!(plain, IoKind::WriteZeroes { deallocate: false });
}

#[test]
fn writes_are_durable_at_once_without_the_write_cache() {
    let target = target();
    let mut cached = spec();
    cached.subsystems[0].namespaces[1].volatile_cache = false;
    target.apply(cached).unwrap();
    let (mut admin, cntlid) = enabled_admin(&target);
    let mut io = connect_io(&target, cntlid, 1);
    let mut fua = |nsid| {
        let write = io.io(block(IoOpcode::WRITE, nsid, 0, 1)).fua;
        let zeroes = io.io(block(IoOpcode::WRITE_ZEROES, nsid, 0, 1)).fua;
        let trim = io.io(deallocate(nsid, 1)).fua;
        assert!(!io.io(block(IoOpcode::READ, nsid, 0, 1)).fua);
        assert!(write == zeroes && write == trim);
        write
    };
    assert!(!fua(1));
    admin.run(set_feature(Fid::VOLATILE_WRITE_CACHE, 0), &[]).ok();
    assert!(fua(1));
    assert!(!fua(2), "it has none");
    admin.run(set_feature(Fid::VOLATILE_WRITE_CACHE, 1), &[]).ok();
    assert!(!fua(1));
}

#[test]
fn a_cache_the_host_was_not_told_of_is_written_through() {
    let target = target();
    let mut plain = spec();
    for namespace in &mut plain.subsystems[0].namespaces {
        namespace.volatile_cache = false;
    }
    target.apply(plain).unwrap();
    let (_admin, cntlid) = enabled_admin(&target);
    let mut io = connect_io(&target, cntlid, 1);
    assert!(!io.io(block(IoOpcode::WRITE, 1, 0, 1)).fua);
    target.apply(spec()).unwrap();
    assert!(io.io(block(IoOpcode::WRITE, 1, 0, 1)).fua);
}

#[test]
fn other_commands_come_out_as_what_they_are() {
    let (_admin, mut io) = io_queue();
    let compare = io.io(block(IoOpcode::COMPARE, 1, 1, 1));
    assert_eq!((compare.kind, compare.offset, compare.len), (IoKind::Compare, 512, 512));
    assert_eq!((compare.source, compare.data_len()), (Some(DataSource::Host(host(512))), 512));
    let verify = io.io(block(IoOpcode::VERIFY, 1, 1, 4));
    assert_eq!((verify.kind, verify.len, verify.data_len()), (IoKind::Verify, 2048, 0));
    let flush = io.io(Sqe::io(IoOpcode::FLUSH, 0, 3));
    assert_eq!((flush.kind, flush.device, flush.len), (IoKind::Flush, DeviceId(103), 0));
    // Write Zeroes transfers no data, so MDTS does not limit it.
    let zeroes = io.io(block(IoOpcode::WRITE_ZEROES, 2, 0, 8192));
    assert_eq!((zeroes.len, zeroes.data_len()), (32 << 20, 0));
}

#[test]
fn what_moves_no_data_is_bounded_by_the_limits_that_identify_reports() {
    let target = target();
    let mut spec = spec();
    let namespaces = &mut spec.subsystems[0].namespaces;
    namespaces.iter_mut().for_each(|namespace| namespace.blocks = 1 << 33);
    target.apply(spec).unwrap();
    let (_admin, cntlid) = enabled_admin(&target);
    let mut io = connect_io(&target, cntlid, 1);
    // WZSL.
    io.run(block(IoOpcode::WRITE_ZEROES, 2, 0, 8193), &[]).fails(Status::INVALID_FIELD);
    // DMRSL, with or without a device that supports Deallocate.
    for nsid in [2, 4] {
        let mut lengths = |blocks: u32| {
            let list = [DsmRange::new(0, 1), DsmRange::new(0, blocks)];
            let command = DatasetManagement {
                ranges: 2,
                deallocate: true,
                integral_write: false,
                integral_read: false,
            };
            let sqe = command.encode(0, nsid).with_sgl(host(32));
            match io.send(sqe) {
                Disposition::Io(command) => {
                    let ranges = io.queue.parse_ranges(&command, list.as_bytes());
                    let _ = io.queue.complete(command.cid, Ok(()));
                    ranges.map(|_| ()).map_err(|failure| failure.status().code())
                }
                Disposition::Receive { .. } => {
                    let mut sqe = sqe;
                    sqe.cid.set(io.cid() - 1);
                    match io.queue.handle_data(&sqe, list.as_bytes(), 0) {
                        Disposition::Respond(response) => match response.cqe.status() {
                            Status::SUCCESS => Ok(()),
                            status => Err(status.code()),
                        },
                        other => panic!("{other:?}"),
                    }
                }
                other => panic!("{other:?}"),
            }
        };
        let most = 1 << 23;
        assert_eq!(lengths(1), Ok(()));
        assert_eq!(lengths(most), Ok(()));
        assert_eq!(lengths(most + 1), Err(Status::COMMAND_SIZE_LIMIT_EXCEEDED));
        assert_eq!(lengths(u32::MAX), Err(Status::COMMAND_SIZE_LIMIT_EXCEEDED));
    }
}

#[test]
fn blocks_beyond_the_namespace_are_out_of_range() {
    let (_admin, mut io) = io_queue();
    for opcode in BLOCK_COMMANDS {
        let code = Status::LBA_OUT_OF_RANGE;
        io.run(block(opcode, 1, 1000, 1), &[]).fails(code);
        io.run(block(opcode, 1, 999, 2), &[]).fails(code);
        io.run(block(opcode, 1, u64::MAX, 1), &[]).fails(code);
        io.run(block(opcode, 1, u64::MAX, 65536), &[]).fails(code);
        io.run(block(opcode, 1, u64::MAX / 512 + 1, 1), &[]).fails(code);
        io.io(block(opcode, 1, 999, 1));
    }
}

#[test]
fn transfers_are_bounded_by_mdts() {
    let (_admin, mut io) = io_queue();
    for opcode in [IoOpcode::READ, IoOpcode::WRITE, IoOpcode::COMPARE, IoOpcode::VERIFY] {
        io.io(block(opcode, 2, 0, 32));
        io.run(block(opcode, 2, 0, 33), &[]).fails(Status::INVALID_FIELD);
        io.run(block(opcode, 2, 0, 65536), &[]).fails(Status::INVALID_FIELD);
    }
}

#[test]
fn data_pointers_are_checked() {
    let (_admin, mut io) = io_queue();
    for opcode in [IoOpcode::READ, IoOpcode::WRITE, IoOpcode::COMPARE] {
        let sqe = block(opcode, 1, 0, 8);
        for (sgl, code) in [
            (host(4095), Status::DATA_SGL_LENGTH_INVALID),
            (host(0), Status::DATA_SGL_LENGTH_INVALID),
            (Sgl::DataBlock { address: 0, length: 4096 }, Status::SGL_TYPE_INVALID),
            (Sgl::BitBucket { length: 4096 }, Status::SGL_TYPE_INVALID),
            (Sgl::Segment { address: 0, length: 16, offset: false }, Status::SGL_TYPE_INVALID),
            (Sgl::LastSegment { address: 0, length: 16, offset: true }, Status::SGL_TYPE_INVALID),
            (
                Sgl::Keyed { address: 0, length: 4096, key: 1, invalidate: true },
                Status::SGL_TYPE_INVALID,
            ),
            (Sgl::Unknown { kind: 5, subtype: 0 }, Status::SGL_TYPE_INVALID),
        ] {
            io.run(sqe.with_sgl(sgl), &[]).fails(code);
        }
        assert_eq!(io.io(sqe.with_sgl(host(4097))).len, 4096, "longer is fine");
    }
    let in_capsule = Sgl::InCapsule { offset: 0, length: 4096 };
    io.run(block(IoOpcode::READ, 1, 0, 8).with_sgl(in_capsule), &[])
        .fails(Status::SGL_TYPE_INVALID);
}

#[test]
fn rdma_takes_keyed_descriptors() {
    let target = target();
    let keyed = |length| Sgl::Keyed { address: 0x1000, length, key: 7, invalidate: true };
    let connect = |request: &ConnectRequest| {
        let mut link = Link::new(&target, RDMA_PORT);
        let answer = link.run(request.sqe().with_sgl(keyed(1024)), &request.data()).ok();
        (link, u16::try_from(answer.result() & 0xffff).unwrap())
    };
    let (mut admin, cntlid) = connect(&ConnectRequest::admin(SUBSYSTEM));
    admin.enable();
    let (mut io, _) = connect(&ConnectRequest::io(cntlid, 1));
    let read = block(IoOpcode::READ, 1, 0, 1);
    let segment = Sgl::LastSegment { address: 0, length: 32, offset: true };
    io.run(read.with_sgl(segment), &[]).fails(Status::SGL_TYPE_INVALID);
    assert_eq!(io.io(read.with_sgl(keyed(512))).sgl, keyed(512));
    // A list that the transport has resolved.
    assert_eq!(io.io(read.with_sgl(host(512))).sgl, host(512));
    io.run(read.with_sgl(host(511)), &[]).fails(Status::DATA_SGL_LENGTH_INVALID);
    io.run(read.with_sgl(keyed(511)), &[]).fails(Status::DATA_SGL_LENGTH_INVALID);
}

#[test]
fn namespaces_are_looked_up() {
    let (_admin, mut io) = io_queue();
    let dsm = deallocate(1, 1);
    for opcode in BLOCK_COMMANDS.into_iter().chain([IoOpcode::FLUSH]) {
        let mut at = |nsid| io.run(block(opcode, nsid, 0, 1), &[]);
        at(5).fails(Status::INVALID_FIELD);
        at(1024).fails(Status::INVALID_FIELD);
        at(0).fails(Status::INVALID_NAMESPACE_OR_FORMAT);
        at(1025).fails(Status::INVALID_NAMESPACE_OR_FORMAT);
        at(NSID_ALL - 1).fails(Status::INVALID_NAMESPACE_OR_FORMAT);
        if opcode != IoOpcode::FLUSH {
            at(NSID_ALL).fails(Status::INVALID_FIELD);
        }
    }
    let mut dsm_at = |nsid| {
        let mut sqe = dsm;
        sqe.nsid.set(nsid);
        io.run(sqe, &[0; 16])
    };
    dsm_at(5).fails(Status::INVALID_FIELD);
    dsm_at(NSID_ALL).fails(Status::INVALID_FIELD);
    dsm_at(0).fails(Status::INVALID_NAMESPACE_OR_FORMAT);
    // Identify Controller reports that Flush does not accept it (VWC bits 2:1).
    io.run(Sqe::io(IoOpcode::FLUSH, 0, NSID_ALL), &[]).fails(Status::INVALID_NAMESPACE_OR_FORMAT);
}

#[test]
fn read_only_namespaces_take_no_writes() {
    let (_admin, mut io) = io_queue();
    let code = Status::NAMESPACE_WRITE_PROTECTED;
    io.run(block(IoOpcode::WRITE, 3, 0, 1), &[]).fails(code);
    io.run(block(IoOpcode::WRITE_ZEROES, 3, 0, 1), &[]).fails(code);
    io.run(deallocate(3, 1), &[]).fails(code);
    for opcode in [IoOpcode::READ, IoOpcode::COMPARE, IoOpcode::VERIFY] {
        io.io(block(opcode, 3, 0, 1));
    }
}

#[test]
fn unknown_opcodes_prps_and_fused_commands_are_refused() {
    let (_admin, mut io) = io_queue();
    let known = BLOCK_COMMANDS.map(|opcode| opcode.0);
    for opcode in 0..=255 {
        let known = known.contains(&opcode) || [0x00, 0x09, 0x7f].contains(&opcode);
        if !known {
            io.run(Sqe::new(opcode, 0, 1), &[]).fails(Status::INVALID_OPCODE);
            let mut fused = Sqe::new(opcode, 0, 1);
            fused.flags = 0x01;
            io.run(fused, &[]).fails(Status::INVALID_OPCODE);
        }
    }
    for opcode in BLOCK_COMMANDS.into_iter().chain([IoOpcode::FLUSH]) {
        for flags in [0x00, 0x80, 0xc0, 0x41, 0x42, 0x43] {
            let mut sqe = block(opcode, 1, 0, 1);
            sqe.flags = flags;
            io.run(sqe, &[]).fails(Status::INVALID_FIELD);
        }
    }
    let streams = BlockIo { dtype: 1, ..BlockIo::new(0, 1) };
    let write = streams.encode(IoOpcode::WRITE, 0, 1).with_sgl(host(512));
    assert_eq!(io.io(write).kind, IoKind::Write, "without directives their fields mean nothing");
}

#[test]
fn deallocate_gives_extents_in_bytes() {
    let (_admin, mut io) = io_queue();
    let command = io.io(deallocate(2, 3));
    assert_eq!(command.kind, IoKind::Deallocate { ranges: 3 });
    assert_eq!((command.data_len(), command.offset, command.len), (48, 0, 0));
    assert_eq!(command.source, Some(DataSource::Host(host(48))));
    let ranges = [DsmRange::new(0, 1), DsmRange::new(77, 0), DsmRange::new(1000, 2)];
    // Hosts send a whole page for any number of ranges.
    let mut page = ranges.as_bytes().to_vec();
    page.resize(4096, 0xff);
    for data in [ranges.as_bytes(), &page] {
        assert_eq!(
            io.queue.parse_ranges(&command, data),
            Ok(vec![Extent { offset: 0, len: 4096 }, Extent { offset: 4_096_000, len: 8192 }])
        );
    }
    let short = io.queue.parse_ranges(&command, &ranges.as_bytes()[..47]);
    assert_eq!(short, Err(Failure::DataTransfer));
    for bad in [
        DsmRange::new(1 << 20, 1),
        DsmRange::new(u64::MAX, u32::MAX),
        DsmRange::new((1 << 20) - 1, 2),
    ] {
        let ranges = [ranges[0], ranges[1], bad];
        let parsed = io.queue.parse_ranges(&command, ranges.as_bytes());
        assert_eq!(parsed, Err(Failure::LbaOutOfRange));
    }
}

#[test]
fn most_ranges_and_longer_data_pointers() {
    let (_admin, mut io) = io_queue();
    assert_eq!(io.io(deallocate(1, 256)).data_len(), 4096);
    assert_eq!(io.io(deallocate(1, 1).with_sgl(host(4096))).data_len(), 16);
    let short = deallocate(1, 2).with_sgl(host(31));
    io.run(short, &[]).fails(Status::DATA_SGL_LENGTH_INVALID);
}

#[test]
fn deallocate_without_effect_still_checks_its_ranges() {
    let (_admin, mut io) = io_queue();
    io.run(deallocate(4, 1), DsmRange::new(0, 1000).as_bytes()).ok();
    let beyond = DsmRange::new(0, 1001);
    io.run(deallocate(4, 1), beyond.as_bytes()).fails(Status::LBA_OUT_OF_RANGE);
    // Hints have no data.
    let hint = DatasetManagement {
        ranges: 1,
        deallocate: false,
        integral_write: true,
        integral_read: true,
    };
    io.run(hint.encode(0, 1), &[]).ok();
}

#[test]
fn failures_become_statuses() {
    let (_admin, mut io) = io_queue();
    for (failure, status) in [
        (Failure::MediaRead, Status::UNRECOVERED_READ_ERROR.with_dnr()),
        (Failure::MediaWrite, Status::WRITE_FAULT.with_dnr()),
        (Failure::CompareMismatch, Status::COMPARE_FAILURE.with_dnr()),
        (Failure::NoSpace, Status::CAPACITY_EXCEEDED.with_dnr()),
        (Failure::Aborted, Status::ABORT_REQUESTED),
        (Failure::TransientTransport, Status::TRANSIENT_TRANSPORT_ERROR),
    ] {
        let cid = io.io(block(IoOpcode::READ, 1, 0, 1)).cid;
        let response = io.queue.complete(cid, Err(failure));
        assert_eq!((response.cqe.cid.get(), response.cqe.status()), (cid, status));
        assert!(!response.elidable);
    }
    assert_eq!(io.queue.outstanding(), 0);
}

#[test]
fn the_health_log_counts_what_queues_did() {
    let target = target();
    let (mut admin, cntlid) = enabled_admin(&target);
    let mut first = connect_io(&target, cntlid, 1);
    let mut second = connect_io(&target, cntlid, 2);
    // 2000 and 1000 units of 512 bytes; the log counts in units of 1000.
    for _ in 0..8 {
        first.io(block(IoOpcode::READ, 1, 0, 250));
        second.io(block(IoOpcode::WRITE, 1, 0, 125));
    }
    let cid = second.io(block(IoOpcode::COMPARE, 1, 0, 1)).cid;
    second.queue.complete(cid, Err(Failure::MediaRead));
    first.run(block(IoOpcode::READ, 1, 1000, 1), &[]).fails(Status::LBA_OUT_OF_RANGE);
    // The counts of a queue outlive it.
    drop(first);
    let log = GetLogPage::new(Lid::SMART, 512).encode(0).with_sgl(host(512));
    let page = admin.run(log, &[]).ok().data;
    let number = |at: usize| u128::from_le_bytes(page[at..at + 16].try_into().unwrap());
    assert_eq!((number(32), number(48)), (3, 1), "data units read, rounded up, and written");
    assert_eq!((number(64), number(80)), (9, 8), "host reads and writes");
    assert_eq!((number(160), number(176)), (1, 2), "media errors, error log entries");
}

#[test]
fn queues_see_namespaces_come_and_go() {
    let target = target();
    let (_admin, cntlid) = enabled_admin(&target);
    let mut io = connect_io(&target, cntlid, 1);
    let read = |nsid| block(IoOpcode::READ, nsid, 0, 1);
    io.run(read(9), &[]).fails(Status::INVALID_FIELD);
    let mut changed = spec();
    let nine = NamespaceSpec { device: DeviceId(9), ..namespace(9) };
    changed.subsystems[0].namespaces.push(nine);
    changed.subsystems[0].namespaces.remove(0);
    target.apply(changed).unwrap();
    assert_eq!(io.io(read(9)).device, DeviceId(9));
    io.run(read(1), &[]).fails(Status::INVALID_FIELD);
    let command = io.io(deallocate(9, 1));
    target.apply(spec()).unwrap();
    // The ranges are checked against the snapshot at the command's acceptance.
    let range = DsmRange::new(0, 1);
    let parsed = io.queue.parse_ranges(&command, range.as_bytes());
    assert_eq!(parsed, Ok(vec![Extent { offset: 0, len: 512 }]));
    io.run(read(9), &[]).fails(Status::INVALID_FIELD);
    assert_eq!(io.queue.parse_ranges(&command, range.as_bytes()), Err(Failure::InvalidField));

    // The ranges do not apply to another device with the same NSID either.
    let mut replaced = spec();
    let nine = NamespaceSpec { device: DeviceId(10), ..namespace(9) };
    replaced.subsystems[0].namespaces.push(nine);
    target.apply(replaced).unwrap();
    assert_eq!(io.io(read(9)).device, DeviceId(10));
    assert_eq!(io.queue.parse_ranges(&command, range.as_bytes()), Err(Failure::InvalidField));
}
