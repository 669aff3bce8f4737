//! The admin command set at a queue. Other tests cover the contents of Identify, logs and features.

use nvmeof_wire::abort::{Abort, NOT_ABORTED};
use nvmeof_wire::features::{Fid, Timestamp};
use nvmeof_wire::identify::{Cns, Identify};
use nvmeof_wire::log::{GetLogPage, Lid};
use nvmeof_wire::nqn::DISCOVERY_NQN;
use nvmeof_wire::nvm::BlockIo;
use nvmeof_wire::opcode::{AdminOpcode, IoOpcode};
use nvmeof_wire::{Sgl, Sqe, Status};

use super::support::*;
use crate::{Disposition, Failure, QueueOwner};

fn aer() -> Sqe {
    Sqe::admin(AdminOpcode::ASYNC_EVENT_REQUEST, 0, 0)
}

#[test]
fn commands_prohibited_over_fabrics_and_optional_ones_are_invalid_opcodes() {
    let target = target();
    for subsystem in [SUBSYSTEM, DISCOVERY_NQN] {
        let (mut link, _) = connect_admin(&target, &ConnectRequest::admin(subsystem));
        link.enable();
        for opcode in [
            AdminOpcode::DELETE_IO_SQ,
            AdminOpcode::CREATE_IO_SQ,
            AdminOpcode::DELETE_IO_CQ,
            AdminOpcode::CREATE_IO_CQ,
            AdminOpcode::DOORBELL_BUFFER_CONFIG,
            AdminOpcode::NAMESPACE_MANAGEMENT,
            AdminOpcode::NAMESPACE_ATTACHMENT,
            AdminOpcode::FIRMWARE_COMMIT,
            AdminOpcode::FIRMWARE_DOWNLOAD,
            AdminOpcode::FORMAT_NVM,
            AdminOpcode::SANITIZE,
            AdminOpcode::SECURITY_SEND,
            AdminOpcode::DIRECTIVE_SEND,
            AdminOpcode::VIRTUALIZATION_MANAGEMENT,
            AdminOpcode::DEVICE_SELF_TEST,
            AdminOpcode(0xc0),
            AdminOpcode(0xff),
        ] {
            link.run(Sqe::admin(opcode, 0, 0), &[]).fails(Status::INVALID_OPCODE);
        }
    }
}

#[test]
fn every_opcode_gets_the_answer_the_table_of_abilities_says() {
    let target = target();
    let (mut link, _) = enabled_admin(&target);
    for opcode in (0..=255).map(AdminOpcode).filter(|opcode| *opcode != AdminOpcode::FABRICS) {
        let supported =
            crate::admin::effects::has_admin_command(crate::subsystem::SubsystemKind::Nvm, opcode);
        let is_invalid_opcode = match link.send(Sqe::admin(opcode, 0, 0)) {
            Disposition::Respond(response) => {
                response.cqe.status().code() == Status::INVALID_OPCODE
            }
            _ => false,
        };
        assert_eq!(is_invalid_opcode, !supported, "{opcode}");
    }
}

#[test]
fn identify_needs_a_whole_buffer() {
    let (mut link, _) = enabled_admin(&target());
    let identify = Identify::new(Cns::CONTROLLER, 0).encode(0);
    for (sgl, code) in [
        (Sgl::Transport { length: 4095 }, Status::DATA_SGL_LENGTH_INVALID),
        (Sgl::InCapsule { offset: 0, length: 4096 }, Status::SGL_TYPE_INVALID),
        (Sgl::Segment { address: 0, length: 32, offset: false }, Status::SGL_TYPE_INVALID),
        (Sgl::Unknown { kind: 0xf, subtype: 0xf }, Status::SGL_TYPE_INVALID),
    ] {
        link.run(identify.with_sgl(sgl), &[]).fails(code);
    }
    // A longer one is not filled completely.
    let answer = link.run(identify.with_sgl(Sgl::Transport { length: 8192 }), &[]).ok();
    assert_eq!(answer.data.len(), 4096);
}

#[test]
fn prps_and_fused_commands_are_refused() {
    let (mut link, _) = enabled_admin(&target());
    for flags in [0x00, 0x80, 0xc0, 0x41, 0x42, 0x43] {
        let mut sqe = Identify::new(Cns::CONTROLLER, 0).encode(0);
        sqe = sqe.with_sgl(Sgl::Transport { length: 4096 });
        sqe.flags = flags;
        link.run(sqe, &[]).fails(Status::INVALID_FIELD);
    }
}

#[test]
fn a_log_with_a_bad_data_pointer_clears_nothing() {
    let target = target();
    let (mut link, _) = enabled_admin(&target);
    let mut spec = spec();
    spec.subsystems[0].namespaces.pop();
    target.apply(spec).unwrap();
    let mut log = GetLogPage::new(Lid::CHANGED_NAMESPACES, 4096);
    log.retain_event = false;
    let sqe = log.encode(0);
    link.run(sqe.with_sgl(Sgl::Transport { length: 4092 }), &[])
        .fails(Status::DATA_SGL_LENGTH_INVALID);
    let answer = link.run(sqe.with_sgl(Sgl::Transport { length: 4096 }), &[]).ok();
    assert_eq!(answer.data[..8], [4, 0, 0, 0, 0, 0, 0, 0]);
}

#[test]
fn event_requests_are_held_up_to_the_limit() {
    let (mut link, _) = enabled_admin(&target());
    for _ in 0..4 {
        assert_eq!(link.send(aer()), Disposition::Held);
    }
    link.run(aer(), &[]).fails(Status::ASYNC_EVENT_LIMIT_EXCEEDED);
    assert_eq!(link.queue.poll_event(), None);
}

#[test]
fn abort_takes_an_event_request_back() {
    let target = target();
    let (mut link, _) = enabled_admin(&target);
    assert_eq!(link.send(aer()), Disposition::Held);
    assert_eq!(link.send(aer()), Disposition::Held);
    let second = link.cid() - 1;
    let epoch = target.epoch();
    let answer = link.run(Abort { sqid: 0, cid: second }.encode(0), &[]).ok();
    assert_eq!(answer.result(), 0, "aborted");
    assert!(target.epoch() > epoch, "the queue wants to be looked at");
    let response = link.queue.poll_event().unwrap();
    assert_eq!(response.cqe.cid.get(), second);
    assert_eq!(response.cqe.status(), Status::ABORT_REQUESTED);
    assert_eq!(link.queue.poll_event(), None);
    assert_eq!(link.queue.outstanding(), 1);
    // There is room for another event request.
    for _ in 0..3 {
        assert_eq!(link.send(aer()), Disposition::Held);
    }
}

/// Sends a command that has data for the host; returns it with the length of the data.
#[track_caller]
fn ask(link: &mut Link, sqe: Sqe) -> (Sqe, u32) {
    let mut sqe = sqe.with_sgl(Sgl::Transport { length: 4096 });
    sqe.cid.set(link.cid());
    match link.queue.handle_command(&sqe, 0, link.now) {
        Disposition::Send { len, .. } => (sqe, len),
        other => panic!("{other:?}"),
    }
}

#[test]
fn data_is_what_it_is_when_there_is_a_buffer_for_it() {
    let target = target();
    let (mut link, _) = enabled_admin(&target);
    link.run(set_feature(Fid::ASYNC_EVENTS, 1 << 8), &[]).ok();
    let log = GetLogPage { retain_event: false, ..GetLogPage::new(Lid::CHANGED_NAMESPACES, 64) };
    let log = log.encode(0);
    let (sqe, len) = ask(&mut link, log);
    assert_eq!((len, link.queue.outstanding()), (64, 1), "it is out until it is filled");
    // Both changes come before the page is generated.
    for blocks in [2000, 3000] {
        let mut spec = spec();
        spec.subsystems[0].namespaces[0].blocks = blocks;
        target.apply(spec).unwrap();
    }
    let answer = link.filled(&sqe, len).ok();
    assert_eq!((&answer.data[..4], &answer.data[4..]), (&[1, 0, 0, 0][..], &[0; 60][..]));
    assert_eq!(link.queue.outstanding(), 0);
    // The read cleared the list.
    let answer = link.run(log.with_sgl(Sgl::Transport { length: 64 }), &[]).ok();
    assert_eq!(answer.data, [0; 64]);
}

#[test]
fn a_command_without_a_buffer_ends_with_a_reset() {
    let (mut link, _) = enabled_admin(&target());
    let (identify, len) = ask(&mut link, Identify::new(Cns::CONTROLLER, 0).encode(0));
    link.set_cc(enabled().with_en(false)).ok();
    let answer = link.filled(&identify, len);
    assert_eq!((answer.cqe.status(), answer.data.len()), (Status::ABORT_REQUESTED, 0));
    link.enable();
    let (identify, len) = ask(&mut link, Identify::new(Cns::CONTROLLER, 0).encode(0));
    assert!(link.queue.handle_disconnect().is_none(), "an admin queue has no commands on devices");
    let answer = link.filled(&identify, len);
    assert_eq!(answer.cqe.status(), Status::ABORTED_SQ_DELETION);
    assert_eq!(link.queue.outstanding(), 0);
}

#[test]
fn a_refused_command_wants_no_buffer() {
    let (mut link, _) = enabled_admin(&target());
    let sgl = Sgl::Transport { length: 1 << 17 };
    link.run(Identify::new(Cns(0xee), 0).encode(0).with_sgl(sgl), &[]).fails(Status::INVALID_FIELD);
    let beyond = GetLogPage { offset: 8192, ..GetLogPage::new(Lid::SMART, 4) };
    link.run(beyond.encode(0).with_sgl(sgl), &[]).fails(Status::INVALID_FIELD);
    let short = Sgl::Transport { length: 4092 };
    let identify = Identify::new(Cns::CONTROLLER, 0).encode(0).with_sgl(short);
    link.run(identify, &[]).fails(Status::DATA_SGL_LENGTH_INVALID);
}

#[test]
fn abort_of_what_is_not_there_says_so() {
    let (mut link, _) = enabled_admin(&target());
    for sqid in [0, 1, 99, 0xffff] {
        let answer = link.run(Abort { sqid, cid: 4321 }.encode(0), &[]).ok();
        assert_eq!(answer.result(), NOT_ABORTED);
    }
}

#[test]
fn abort_of_an_io_command_is_the_reactors() {
    let target = target();
    let (mut admin, cntlid) = enabled_admin(&target);
    let mut io = connect_io(&target, cntlid, 2);
    let read = BlockIo::new(0, 1).encode(IoOpcode::READ, 0, 1);
    let victim = io.io(read.with_sgl(Sgl::Transport { length: 512 })).cid;

    let mut abort = Abort { sqid: 2, cid: victim }.encode(0);
    abort.cid.set(1000);
    let controller = admin.queue.connected().unwrap().controller;
    // The queue can have moved since its Connect.
    for connection in [7, 8] {
        io.queue.set_owner(QueueOwner { reactor: 3, connection });
    }
    let owner = QueueOwner { reactor: 3, connection: 8 };
    let expected = Disposition::Abort { controller, sqid: 2, cid: victim, owner };
    assert!(io.queue.is_io_queue(controller, 2) && !io.queue.is_io_queue(controller, 1));
    assert!(!admin.queue.is_io_queue(controller, 0));
    assert_eq!(admin.queue.handle_command(&abort, 0, 0), expected);
    let response = io.queue.complete(victim, Err(Failure::Aborted));
    assert_eq!(response.cqe.status(), Status::ABORT_REQUESTED);
    let response = admin.queue.complete_abort(1000, true);
    assert!(response.cqe.status().is_success());
    assert_eq!(response.cqe.dw0(), 0);
    assert_eq!(admin.queue.outstanding(), 0);
}

#[test]
fn aborts_are_limited() {
    let target = target();
    let (mut admin, cntlid) = enabled_admin(&target);
    let _io = connect_io(&target, cntlid, 1);
    let abort = Abort { sqid: 1, cid: 1 }.encode(0);
    for _ in 0..4 {
        assert!(matches!(admin.send(abort), Disposition::Abort { .. }));
    }
    let last = admin.cid() - 1;
    assert_eq!(admin.run(abort, &[]).cqe.status(), Status::ABORT_LIMIT_EXCEEDED);
    let response = admin.queue.complete_abort(last, false);
    assert_eq!(u64::from(response.cqe.dw0()), NOT_ABORTED);
    assert!(matches!(admin.send(abort), Disposition::Abort { .. }));
}

#[test]
fn number_of_queues_bounds_connect() {
    let target = target();
    let (mut admin, cntlid) = enabled_admin(&target);
    let answer = admin.run(set_feature(Fid::NUMBER_OF_QUEUES, 0x0001_0001), &[]).ok();
    assert_eq!(answer.result(), 0x0001_0001, "two of each");
    let third = ConnectRequest::io(cntlid, 3).send(&mut Link::new(&target, PORT));
    third.fails(Status::CONNECT_INVALID_PARAMETERS);
    connect_io(&target, cntlid, 2);
}

#[test]
fn a_timestamp_counts_from_the_reset_or_from_the_time_that_was_set() {
    let target = target();
    let mut admin = Link::new(&target, PORT);
    admin.now = 100 * SECOND;
    ConnectRequest::admin(SUBSYSTEM).send(&mut admin).ok();
    admin.enable();
    let sgl = Sgl::Transport { length: 8 };
    let read = |admin: &mut Link| {
        let data = admin.run(get_feature(Fid::TIMESTAMP).with_sgl(sgl), &[]).ok().data;
        let timestamp = Timestamp::from_bits(u64::from_le_bytes(data.try_into().unwrap()));
        assert!(!timestamp.stopped());
        (timestamp.milliseconds(), timestamp.origin())
    };
    admin.now += 3 * SECOND / 2;
    assert_eq!(read(&mut admin), (1500, 0));

    let set = |admin: &mut Link, bits: u64| {
        admin.run(set_feature(Fid::TIMESTAMP, 0).with_sgl(sgl), &bits.to_le_bytes()).ok();
    };
    // The attributes in the upper 16 bits are the controller's.
    set(&mut admin, 0xffff << 48 | 1_700_000_000_000);
    admin.now += 2 * SECOND;
    assert_eq!(read(&mut admin), (1_700_000_002_000, 1));
    set(&mut admin, (1 << 48) - 1);
    admin.now += SECOND;
    assert_eq!(read(&mut admin), (999, 1), "48 bits wrap");

    admin.set_cc(enabled().with_en(false)).ok();
    admin.now += SECOND;
    admin.enable();
    admin.now += SECOND;
    assert_eq!(read(&mut admin), (2000, 0), "a reset clears it");
    let short = Sgl::Transport { length: 7 };
    admin
        .run(set_feature(Fid::TIMESTAMP, 0).with_sgl(short), &[0; 8])
        .fails(Status::DATA_SGL_LENGTH_INVALID);
}
