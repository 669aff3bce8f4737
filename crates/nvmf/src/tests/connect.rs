//! Connect: its effects, and every reason to refuse it.

use nvmeof_wire::fabrics::{
    CNTLID_DYNAMIC, CNTLID_STATIC_ANY, Connect, ConnectData, ConnectResult, Disconnect,
    InvalidParameter,
};
use nvmeof_wire::features::Fid;
use nvmeof_wire::identify::{Cns, Identify};
use nvmeof_wire::nqn::DISCOVERY_NQN;
use nvmeof_wire::nvm::BlockIo;
use nvmeof_wire::opcode::{AdminOpcode, FabricsType, IoOpcode};
use nvmeof_wire::{Nqn, Sgl, Sqe, Status};

use super::support::*;
use crate::{
    DataSource, Disposition, Failure, Limits, PortId, Queue, TeardownReason, TransportKind,
};

#[track_caller]
fn refused(request: &ConnectRequest, ipo: u16, in_data: bool) {
    refused_by(&target(), request, ipo, in_data);
}

#[track_caller]
fn refused_by(
    target: &std::sync::Arc<crate::Target>,
    request: &ConnectRequest,
    ipo: u16,
    in_data: bool,
) {
    let status = Status::CONNECT_INVALID_PARAMETERS.with_dnr();
    refused_with(status, target, request, InvalidParameter { ipo, in_data });
}

/// Asserts a refusal because of a field in the data that can become valid later.
#[track_caller]
fn refused_for_now(target: &std::sync::Arc<crate::Target>, request: &ConnectRequest, ipo: u16) {
    let status = Status::CONNECT_INVALID_PARAMETERS;
    refused_with(status, target, request, InvalidParameter { ipo, in_data: true });
}

#[track_caller]
fn refused_with(
    status: Status,
    target: &std::sync::Arc<crate::Target>,
    request: &ConnectRequest,
    why: InvalidParameter,
) {
    let mut link = Link::new(target, PORT);
    let answer = request.send(&mut link);
    assert_eq!(answer.cqe.status(), status);
    assert_eq!(InvalidParameter::parse(answer.result()), why);
    assert_eq!(link.queue.connected(), None);
    assert_eq!(link.queue.is_dead(), None, "the host may try again");
}

#[test]
fn admin_connect_makes_a_controller() {
    let target = target();
    let (link, cntlid) = connect_admin(&target, &ConnectRequest::admin(SUBSYSTEM));
    assert_eq!(cntlid, 1);
    let info = link.queue.connected().unwrap();
    assert!(info.admin && !info.discovery);
    assert_eq!((info.qid, info.depth, info.cntlid), (0, 32, 1));
    assert_eq!((info.subnqn, info.hostnqn), (nqn(SUBSYSTEM), nqn(HOST)));
    assert_eq!(target.counts().controllers, 1);
    assert!(target.has_controller(cntlid) && !target.has_controller(cntlid + 1));
    assert_eq!(target.counts().queues, 1);

    let (second, cntlid) = connect_admin(&target, &ConnectRequest::admin(SUBSYSTEM));
    assert_eq!(cntlid, 2, "a host may have several controllers");
    drop(link);
    drop(second);
    assert_eq!(target.counts().controllers, 0);
    assert_eq!(target.counts().queues, 0);
}

#[test]
fn connect_data_may_come_in_the_capsule() {
    let target = target();
    let mut link = Link::new(&target, PORT);
    let request = ConnectRequest::admin(SUBSYSTEM);
    let sqe = request.sqe().with_sgl(Sgl::InCapsule { offset: 0, length: 1024 });
    let disposition = link.queue.handle_command(&sqe, 1024, 0);
    let source = DataSource::InCapsule { offset: 0 };
    assert_eq!(disposition, Disposition::Receive { len: 1024, source });
    answer(link.queue.handle_data(&sqe, &request.data(), 0)).ok();
    assert!(link.queue.connected().is_some());
}

#[test]
fn data_pointer_of_connect_is_checked() {
    let target = target();
    let mut link = Link::new(&target, PORT);
    let request = ConnectRequest::admin(SUBSYSTEM);
    let mut refused = |sgl: Sgl, inline_len: u32, code: Status| {
        let sqe = request.sqe().with_sgl(sgl);
        answer(link.queue.handle_command(&sqe, inline_len, 0)).fails(code);
    };
    refused(Sgl::Transport { length: 1023 }, 0, Status::DATA_SGL_LENGTH_INVALID);
    refused(Sgl::InCapsule { offset: 0, length: 1024 }, 1023, Status::DATA_SGL_LENGTH_INVALID);
    refused(Sgl::InCapsule { offset: 1025, length: 1024 }, 1024, Status::SGL_OFFSET_INVALID);
    refused(Sgl::InCapsule { offset: 1 << 32, length: 1024 }, 1024, Status::SGL_OFFSET_INVALID);
    refused(Sgl::DataBlock { address: 0, length: 1024 }, 1024, Status::SGL_TYPE_INVALID);
    let keyed = Sgl::Keyed { address: 0, length: 1024, key: 1, invalidate: false };
    refused(keyed, 0, Status::SGL_TYPE_INVALID);
}

#[test]
fn commands_before_connect_are_out_of_sequence() {
    let target = target();
    let mut link = Link::new(&target, PORT);
    for sqe in [
        Sqe::admin(AdminOpcode::IDENTIFY, 0, 0),
        Sqe::admin(AdminOpcode(0xc0), 0, 0),
        BlockIo::new(0, 1).encode(IoOpcode::READ, 0, 1),
        Sqe::fabrics(FabricsType::PROPERTY_GET, 0),
        Sqe::fabrics(FabricsType::DISCONNECT, 0),
        Sqe::fabrics(FabricsType(0x77), 0),
    ] {
        link.run(sqe, &[]).fails(Status::COMMAND_SEQUENCE_ERROR);
    }
    ConnectRequest::admin(SUBSYSTEM).send(&mut link).ok();
}

#[test]
fn a_second_connect_on_a_queue_is_out_of_sequence() {
    let target = target();
    let (mut admin, cntlid) = enabled_admin(&target);
    let mut io = connect_io(&target, cntlid, 1);
    let code = Status::COMMAND_SEQUENCE_ERROR;
    ConnectRequest::admin(SUBSYSTEM).send(&mut admin).fails(code);
    ConnectRequest::io(cntlid, 2).send(&mut io).fails(Status::INVALID_OPCODE);
    assert_eq!(target.counts().controllers, 1);

    // A second Connect fails, too, while the first one waits for its data.
    let mut link = Link::new(&target, PORT);
    let request = ConnectRequest::admin(SUBSYSTEM);
    assert!(matches!(link.send(request.sqe()), Disposition::Receive { .. }));
    request.send(&mut link).fails(code);
}

#[test]
fn connect_whose_data_never_came_can_be_repeated() {
    let target = target();
    let mut link = Link::new(&target, PORT);
    let request = ConnectRequest::admin(SUBSYSTEM);
    let mut sqe = request.sqe();
    sqe.cid.set(500);
    assert!(matches!(link.queue.handle_command(&sqe, 0, 0), Disposition::Receive { .. }));
    let response = link.queue.complete(500, Err(Failure::DataTransfer));
    assert_eq!(response.cqe.status(), Status::DATA_TRANSFER_ERROR);
    request.send(&mut link).ok();
}

#[test]
fn record_format_must_be_known() {
    let target = target();
    let mut link = Link::new(&target, PORT);
    let mut sqe = ConnectRequest::admin(SUBSYSTEM).sqe();
    sqe.cdw10.set(1);
    link.run(sqe, &[]).fails(Status::CONNECT_INCOMPATIBLE_FORMAT);
}

#[test]
fn unknown_and_malformed_names_are_refused() {
    let request = ConnectRequest::admin("nqn.2026-11.io.nvmeof-tgt:nowhere");
    refused_for_now(&target(), &request, ConnectData::SUBNQN_OFFSET);

    let request = ConnectRequest::admin(SUBSYSTEM);
    let (subsystem, host) = (ConnectData::SUBNQN_OFFSET, ConnectData::HOSTNQN_OFFSET);
    // Only the name of the host may be empty.
    for (field, ipo, bad) in
        [(256, subsystem, [0x00, 0xff].as_slice()), (512, host, [0xff].as_slice())]
    {
        for &bad in bad {
            let mut data = request.data();
            data[field..field + 256].fill(bad);
            let mut link = Link::new(&target(), PORT);
            let answer = link.run(request.sqe(), &data);
            answer.fails(Status::CONNECT_INVALID_PARAMETERS);
            let invalid = InvalidParameter { ipo, in_data: true };
            assert_eq!(InvalidParameter::parse(answer.result()), invalid);
        }
    }
}

#[test]
fn hosts_that_are_not_allowed_are_refused() {
    let target = target();
    let mut link = Link::new(&target, PORT);
    let mut request = ConnectRequest::admin(PRIVATE);
    request.host = nqn(STRANGER);
    request.send(&mut link).fails_for_now(Status::CONNECT_INVALID_HOST);
    request.host = nqn(HOST);
    request.send(&mut link).ok();
}

#[test]
fn a_host_without_a_name_may_use_what_every_host_may() {
    let target = target();
    let mut link = Link::new(&target, PORT);
    let mut request = ConnectRequest::admin(PRIVATE);
    request.host = Nqn::anonymous();
    request.send(&mut link).fails_for_now(Status::CONNECT_INVALID_HOST);
    request.subsystem = nqn(SUBSYSTEM);
    request.send(&mut link).ok();
    link.enable();
    let cntlid = link.queue.connected().unwrap().cntlid;
    let mut request = ConnectRequest::io(cntlid, 1);
    // An association has one name.
    refused_for_now(&target, &request, ConnectData::HOSTNQN_OFFSET);
    request.host = Nqn::anonymous();
    request.send(&mut Link::new(&target, PORT)).ok();
}

#[test]
fn a_listener_serves_the_subsystems_that_it_lists() {
    let target = target();
    let mut spec = spec();
    spec.ports[0].subsystems = Some([nqn(PRIVATE)].into());
    spec.ports.push(port(PortId(9), TransportKind::Tcp));
    target.apply(spec.clone()).unwrap();
    let open = ConnectRequest::admin(SUBSYSTEM);
    refused_for_now(&target, &open, ConnectData::SUBNQN_OFFSET);
    let private = connect_admin(&target, &ConnectRequest::admin(PRIVATE)).0;
    let discovery = connect_admin(&target, &ConnectRequest::admin(DISCOVERY_NQN)).0;
    let mut elsewhere = Link::new(&target, PortId(9));
    open.send(&mut elsewhere).ok();

    // Controllers that a listener no longer serves end there, and no others.
    spec.ports[0].subsystems = Some([].into());
    let changes = target.apply(spec).unwrap();
    assert_eq!(changes.controllers_ended, 1);
    assert_eq!(private.queue.is_dead(), Some(TeardownReason::PortRemoved));
    for link in [discovery, elsewhere] {
        assert_eq!(link.queue.is_dead(), None);
    }
}

#[test]
fn restricted_discovery_is_for_hosts_that_may_use_a_subsystem() {
    let target = target();
    let mut spec = spec();
    spec.discovery.is_restricted = true;
    let mut request = ConnectRequest::admin(DISCOVERY_NQN);
    request.host = nqn(STRANGER);
    let stranger = connect_admin(&target, &request).0;
    target.apply(spec.clone()).unwrap();
    assert_eq!(stranger.queue.is_dead(), None, "one subsystem is for every host");

    spec.subsystems.remove(0);
    target.apply(spec).unwrap();
    assert_eq!(stranger.queue.is_dead(), Some(TeardownReason::HostNotAllowed));
    request.send(&mut Link::new(&target, PORT)).fails_for_now(Status::CONNECT_INVALID_HOST);
    request.host = nqn(HOST);
    request.send(&mut Link::new(&target, PORT)).ok();
}

#[test]
fn discovery_has_its_well_known_name_and_a_unique_one() {
    let target = target();
    let unique = "nqn.2026-11.io.nvmeof-tgt:finder";
    refused_for_now(&target, &ConnectRequest::admin(unique), ConnectData::SUBNQN_OFFSET);
    let before = connect_admin(&target, &ConnectRequest::admin(DISCOVERY_NQN)).0;
    let mut spec = spec();
    spec.discovery.nqn = Some(nqn(unique));
    target.apply(spec.clone()).unwrap();
    assert_eq!(before.queue.is_dead(), Some(TeardownReason::SubsystemRemoved));
    for name in [DISCOVERY_NQN, unique] {
        let (mut link, _) = connect_admin(&target, &ConnectRequest::admin(name));
        link.enable();
        assert!(link.queue.connected().unwrap().discovery);
        let identify = Identify::new(Cns::CONTROLLER, 0).encode(0);
        let data = link.run(identify.with_sgl(Sgl::Transport { length: 4096 }), &[]).ok().data;
        assert_eq!(&data[768..768 + unique.len()], unique.as_bytes(), "SUBNQN");
    }
    spec.subsystems[0].nqn = nqn(unique);
    target.apply(spec).unwrap_err();
}

#[test]
fn a_refusal_names_the_field_its_value_and_what_is_allowed() {
    let target = target();
    let (_admin, cntlid) = enabled_admin(&target);
    let said = |request: &ConnectRequest| {
        let mut link = Link::new(&target, PORT);
        request.send(&mut link);
        let refusal = link.queue.take_refusal().expect("a refusal");
        assert_eq!(refusal.qid, request.command.qid);
        (refusal.field, refusal.value, refusal.allowed)
    };
    let told = |field: &'static str, value: &str, allowed: &str| {
        (field, value.to_owned(), allowed.to_owned())
    };
    let mut request = ConnectRequest::io(cntlid, 1);
    request.command.entries = 1024;
    let allowed = "1 to 63 (2 to 64 entries: limits.queue-depth)";
    assert_eq!(said(&request), told("SQSIZE", "1023 (1024 entries)", allowed));
    let request = ConnectRequest::io(cntlid, 5);
    let allowed = "1 to the granted Number of Queues (Set Features 07h)";
    assert_eq!(said(&request), told("QID", "5", allowed));
    let request = ConnectRequest::io(77, 1);
    let allowed = "the ID of a controller of this subsystem";
    assert_eq!(said(&request), told("CNTLID", "77", allowed));
    let mut request = ConnectRequest::io(cntlid, 1);
    request.host = nqn(STRANGER);
    let allowed = format!("{HOST}, as of the admin queue");
    assert_eq!(said(&request), told("HOSTNQN", STRANGER, &allowed));
    let mut request = ConnectRequest::admin(SUBSYSTEM);
    request.cntlid = 3;
    assert_eq!(said(&request), told("CNTLID", "0x3", "0xffff: controllers are dynamic"));
    let request = ConnectRequest::admin("nqn.2026-11.io.nvmeof-tgt:nowhere");
    let allowed = "the name of a subsystem of the config";
    assert_eq!(said(&request), told("SUBNQN", request.subsystem.as_str(), allowed));
    let mut request = ConnectRequest::admin(PRIVATE);
    request.host = Nqn::anonymous();
    assert_eq!(said(&request), told("HOSTNQN", "empty", "a host that the subsystem lists"));

    // Also of a command that is refused before its data.
    let mut link = Link::new(&target, PORT);
    let mut sqe = ConnectRequest::admin(SUBSYSTEM).sqe();
    sqe.cdw10.set(7 << 16 | 1);
    link.run(sqe, &[]);
    let refusal = link.queue.take_refusal().expect("a refusal");
    assert_eq!((refusal.field, refusal.qid, refusal.host), ("RECFMT", 7, None));
}

#[test]
fn responses_are_folded_as_the_listener_says() {
    for (folds_always, disable, folded) in
        [(false, false, false), (false, true, true), (true, false, true), (true, true, true)]
    {
        let target = target();
        let mut spec = spec();
        spec.ports[0].folds_always = folds_always;
        target.apply(spec).unwrap();
        let (_admin, cntlid) = enabled_admin(&target);
        let mut request = ConnectRequest::io(cntlid, 1);
        request.command.disable_sq_flow_control = disable;
        let mut link = Link::new(&target, PORT);
        request.send(&mut link).ok();
        let read = BlockIo::new(0, 1).encode(IoOpcode::READ, 0, 1);
        let io = link.io(read.with_sgl(Sgl::Transport { length: 512 }));
        let response = link.queue.complete(io.cid, Ok(()));
        assert_eq!(response.elidable, folded, "{folds_always} {disable}");
        // The head advances with each command, folded or not.
        assert_eq!(response.cqe.sqhd.get(), if disable { 0 } else { 2 });
        let io = link.io(read.with_sgl(Sgl::Transport { length: 512 }));
        let response = link.queue.complete(io.cid, Err(Failure::MediaRead));
        assert!(!response.elidable, "a failure is never folded");
    }
}

#[test]
fn controllers_are_dynamic() {
    for cntlid in [0, 1, CNTLID_STATIC_ANY] {
        let mut request = ConnectRequest::admin(SUBSYSTEM);
        request.cntlid = cntlid;
        refused(&request, ConnectData::CNTLID_OFFSET, true);
    }
}

#[test]
fn queue_sizes_are_bounded() {
    let sqsize = Connect::SQSIZE_OFFSET;
    for entries in [1, 65, 65536] {
        let mut request = ConnectRequest::admin(SUBSYSTEM);
        request.command.entries = entries;
        refused(&request, sqsize, false);
    }
    let target = target();
    let (_admin, cntlid) = enabled_admin(&target);
    for entries in [1, 65, 65536] {
        let mut request = ConnectRequest::io(cntlid, 1);
        request.command.entries = entries;
        refused_by(&target, &request, sqsize, false);
    }
}

#[test]
fn a_shallow_config_still_gives_the_admin_queue_32_entries() {
    let target = target_with(Limits { queue_depth: 8, ..limits() });
    let (mut admin, cntlid) = connect_admin(&target, &ConnectRequest::admin(SUBSYSTEM));
    admin.enable();
    let mut request = ConnectRequest::io(cntlid, 1);
    request.command.entries = 9;
    refused_by(&target, &request, Connect::SQSIZE_OFFSET, false);
    request.command.entries = 8;
    request.send(&mut Link::new(&target, PORT)).ok();
}

#[test]
fn controller_ids_stay_in_the_range_and_run_out() {
    let target = target();
    let mut spec = spec();
    spec.subsystems[0].cntlid_min = 7;
    spec.subsystems[0].cntlid_max = 8;
    target.apply(spec).unwrap();
    let request = ConnectRequest::admin(SUBSYSTEM);
    let (first, cntlid) = connect_admin(&target, &request);
    assert_eq!(cntlid, 7);
    let (_second, cntlid) = connect_admin(&target, &request);
    assert_eq!(cntlid, 8);
    let mut link = Link::new(&target, PORT);
    // It can succeed later.
    assert_eq!(request.send(&mut link).cqe.status(), Status::CONTROLLER_BUSY);
    drop(first);
    let answer = request.send(&mut link).ok();
    assert_eq!(ConnectResult::parse(answer.result()).cntlid, 7);
}

#[test]
fn ids_are_reused_as_late_as_can_be() {
    let target = target();
    let request = ConnectRequest::admin(SUBSYSTEM);
    for expected in 1..=5 {
        assert_eq!(connect_admin(&target, &request).1, expected);
    }
}

#[test]
fn too_many_connections_are_busy() {
    let target = target_with(Limits { connections: 1, ..limits() });
    let request = ConnectRequest::admin(SUBSYSTEM);
    let (first, _) = connect_admin(&target, &request);
    let mut link = Link::new(&target, PORT);
    assert_eq!(request.send(&mut link).cqe.status(), Status::CONTROLLER_BUSY);
    drop(first);
    request.send(&mut link).ok();
}

#[test]
fn io_queues_need_their_controller() {
    let target = target();
    let (mut admin, cntlid) = connect_admin(&target, &ConnectRequest::admin(SUBSYSTEM));
    let mut link = Link::new(&target, PORT);
    // The controller is not enabled yet.
    ConnectRequest::io(cntlid, 1).send(&mut link).fails_for_now(Status::COMMAND_SEQUENCE_ERROR);
    admin.enable();

    for unknown in [0, cntlid + 1, CNTLID_DYNAMIC] {
        refused_for_now(&target, &ConnectRequest::io(unknown, 1), ConnectData::CNTLID_OFFSET);
    }
    let mut request = ConnectRequest::io(cntlid, 1);
    request.subsystem = nqn(PRIVATE);
    refused_for_now(&target, &request, ConnectData::CNTLID_OFFSET);
    // The identifier of the admin queue counts.
    let mut request = ConnectRequest::io(cntlid, 2);
    request.host_id = [0x22; 16];
    request.send(&mut Link::new(&target, PORT)).ok();
    let mut request = ConnectRequest::io(cntlid, 1);
    request.host = nqn(STRANGER);
    refused_for_now(&target, &request, ConnectData::HOSTNQN_OFFSET);

    // Another port of the same subsystem is refused, too.
    let mut elsewhere = Link::new(&target, RDMA_PORT);
    let request = ConnectRequest::io(cntlid, 1);
    let keyed = Sgl::Keyed { address: 0, length: 1024, key: 1, invalidate: false };
    let answer = elsewhere.run(request.sqe().with_sgl(keyed), &request.data());
    answer.fails_for_now(Status::CONNECT_INVALID_PARAMETERS);

    let answer = ConnectRequest::io(cntlid, 1).send(&mut link).ok();
    assert_eq!(ConnectResult::parse(answer.result()).cntlid, cntlid);
    let info = link.queue.connected().unwrap();
    assert_eq!((info.admin, info.qid, info.depth), (false, 1, 64));
    assert_eq!(info.controller, admin.queue.connected().unwrap().controller);
}

/// A host reconnects after its controller has ended, even if another host has reused the ID.
#[test]
fn io_queues_of_a_controller_that_died_may_come_again() {
    let target = target();
    let (admin, cntlid) = enabled_admin(&target);
    let late = ConnectRequest::io(cntlid, 1);
    drop(admin);
    refused_for_now(&target, &late, ConnectData::CNTLID_OFFSET);
    let mut other = ConnectRequest::admin(SUBSYSTEM);
    other.host = nqn(STRANGER);
    let (_other, reused) = connect_admin(&target, &other);
    let mut late = ConnectRequest::io(reused, 1);
    refused_for_now(&target, &late, ConnectData::HOSTNQN_OFFSET);
    let (_again, cntlid) = enabled_admin(&target);
    late = ConnectRequest::io(cntlid, 1);
    late.send(&mut Link::new(&target, PORT)).ok();
}

#[test]
fn queue_ids_are_unique_and_bounded() {
    let target = target();
    let (_admin, cntlid) = enabled_admin(&target);
    let first = connect_io(&target, cntlid, 4);
    let mut link = Link::new(&target, PORT);
    let code = Status::COMMAND_SEQUENCE_ERROR;
    ConnectRequest::io(cntlid, 4).send(&mut link).fails_for_now(code);
    refused_by(&target, &ConnectRequest::io(cntlid, 5), Connect::QID_OFFSET, false);
    drop(first);
    ConnectRequest::io(cntlid, 4).send(&mut link).ok();
}

#[test]
fn sq_flow_control_is_counted_or_off() {
    let target = target();
    let (mut link, cntlid) = enabled_admin(&target);
    // Connect, Property Set and Property Get so far.
    assert_eq!(link.run(Sqe::admin(AdminOpcode::KEEP_ALIVE, 0, 0), &[]).cqe.sqhd.get(), 4);
    for expected in 5..100_u16 {
        let answer = link.run(Sqe::admin(AdminOpcode(0xc0), 0, 0), &[]);
        assert_eq!(answer.cqe.sqhd.get(), expected % 32);
    }
    let mut request = ConnectRequest::io(cntlid, 1);
    request.command.disable_sq_flow_control = true;
    let mut io = Link::new(&target, PORT);
    assert_eq!(request.send(&mut io).ok().cqe.sqhd.get(), 0xffff);
    let read = BlockIo::new(0, 1).encode(IoOpcode::READ, 0, 1);
    let cid = io.io(read.with_sgl(Sgl::Transport { length: 512 })).cid;
    let response = io.queue.complete(cid, Ok(()));
    assert!(response.elidable);
    assert_eq!(response.cqe.sqhd.get(), 0);
    let cid = io.io(read.with_sgl(Sgl::Transport { length: 512 })).cid;
    assert!(!io.queue.complete(cid, Err(Failure::MediaRead)).elidable);
}

#[test]
fn only_success_without_a_result_can_be_left_out() {
    let target = target();
    let mut request = ConnectRequest::admin(SUBSYSTEM);
    request.command.disable_sq_flow_control = true;
    let (mut link, _) = connect_admin(&target, &request);
    link.enable();
    let mut elidable = |sqe: Sqe| match link.send(sqe.with_sgl(Sgl::Transport { length: 4096 })) {
        Disposition::Respond(response) => response.elidable,
        Disposition::Send { .. } => {
            let mut sqe = sqe;
            sqe.cid.set(link.cid() - 1);
            link.queue.fill(&sqe, &mut [0; 4096], 0).elidable
        }
        other => panic!("{other:?}"),
    };
    assert!(elidable(Identify::new(Cns::CONTROLLER, 0).encode(0)));
    assert!(!elidable(get_feature(Fid::NUMBER_OF_QUEUES)), "its result counts");
    assert!(!elidable(Sqe::admin(AdminOpcode(0xc0), 0, 0)));
}

#[test]
fn discovery_controllers_take_any_host_and_no_io_queue() {
    let target = target();
    let mut request = ConnectRequest::admin(DISCOVERY_NQN);
    request.host = nqn(STRANGER);
    let (mut admin, cntlid) = connect_admin(&target, &request);
    assert!(admin.queue.connected().unwrap().discovery);
    admin.enable();
    let mut io = ConnectRequest::io(cntlid, 1);
    io.subsystem = nqn(DISCOVERY_NQN);
    io.host = nqn(STRANGER);
    refused_by(&target, &io, Connect::QID_OFFSET, false);
}

#[test]
fn queues_may_move_between_threads() {
    fn is_send<T: Send>(value: T) -> T {
        value
    }
    let target = target();
    let queue = is_send(Queue::new(&target, PORT, "peer", 0));
    std::thread::spawn(move || drop(queue)).join().unwrap();
    assert_eq!(target.counts().queues, 0);
}

#[test]
fn unknown_port_is_a_dead_queue() {
    let target = target();
    let mut queue = Queue::new(&target, PortId(99), "peer", 0);
    assert_eq!(queue.is_dead(), Some(TeardownReason::PortRemoved));
    let sqe = ConnectRequest::admin(SUBSYSTEM).sqe();
    let status = answer(queue.handle_command(&sqe, 0, 0)).cqe.status();
    assert_eq!(status, Status::ABORTED_SQ_DELETION);
}

#[test]
fn disconnect_deletes_an_io_queue() {
    let target = target();
    let (mut admin, cntlid) = enabled_admin(&target);
    let mut io = connect_io(&target, cntlid, 1);
    admin.run(Disconnect::default().encode(0), &[]).fails(Status::INVALID_QUEUE_TYPE);
    let unknown = Disconnect { recfmt: 1 }.encode(0);
    io.run(unknown, &[]).fails(Status::CONNECT_INCOMPATIBLE_FORMAT);
    io.run(Disconnect::default().encode(0), &[]).ok();
    assert_eq!(io.queue.is_dead(), Some(TeardownReason::Disconnected));
    let late = io.run(BlockIo::new(0, 1).encode(IoOpcode::READ, 0, 1), &[]);
    assert_eq!(late.code(), Status::ABORTED_SQ_DELETION);
    // The ID is free and the controller lives.
    connect_io(&target, cntlid, 1);
    assert_eq!(admin.queue.is_dead(), None);
}

#[test]
fn a_lost_admin_connection_ends_the_controller() {
    let target = target();
    let (mut admin, cntlid) = enabled_admin(&target);
    let io = connect_io(&target, cntlid, 1);
    let epoch = target.epoch();
    drop(admin.queue.handle_disconnect());
    assert!(target.epoch() > epoch, "the other reactors hear of it");
    assert_eq!(admin.queue.is_dead(), Some(TeardownReason::ConnectionClosed));
    assert_eq!(io.queue.is_dead(), Some(TeardownReason::AdminQueueGone));
    assert_eq!(target.counts().controllers, 0);
}

#[test]
fn a_lost_io_connection_leaves_the_controller() {
    let target = target();
    let (admin, cntlid) = enabled_admin(&target);
    let mut io = connect_io(&target, cntlid, 1);
    drop(io.queue.handle_disconnect());
    assert_eq!(admin.queue.is_dead(), None);
    connect_io(&target, cntlid, 1);
}

#[test]
fn commands_of_a_lost_queue_can_still_be_completed() {
    let target = target();
    let (_admin, cntlid) = enabled_admin(&target);
    let mut io = connect_io(&target, cntlid, 1);
    let read = BlockIo::new(0, 1).encode(IoOpcode::READ, 0, 1);
    let cid = io.io(read.with_sgl(Sgl::Transport { length: 512 })).cid;
    drop(io.queue.handle_disconnect());
    assert_eq!(io.queue.outstanding(), 1);
    assert_eq!(io.queue.complete(cid, Ok(())).cqe.cid.get(), cid);
    assert_eq!(io.queue.outstanding(), 0);
}

#[test]
fn identifiers_in_use_conflict() {
    let target = target();
    let (_admin, cntlid) = enabled_admin(&target);
    let mut io = connect_io(&target, cntlid, 1);
    let read = BlockIo::new(0, 1).encode(IoOpcode::READ, 9, 1);
    let read = read.with_sgl(Sgl::Transport { length: 512 });
    assert!(matches!(io.queue.handle_command(&read, 0, 0), Disposition::Io(_)));
    answer(io.queue.handle_command(&read, 0, 0)).fails(Status::CID_CONFLICT);
    io.queue.complete(9, Ok(()));
    assert!(matches!(io.queue.handle_command(&read, 0, 0), Disposition::Io(_)));
}

#[test]
fn a_host_that_overruns_its_queue_loses_it() {
    let target = target();
    let (admin, cntlid) = enabled_admin(&target);
    let mut io = connect_io(&target, cntlid, 1);
    let read = BlockIo::new(0, 1).encode(IoOpcode::READ, 0, 1);
    let read = read.with_sgl(Sgl::Transport { length: 512 });
    for _ in 0..64 {
        io.io(read);
    }
    assert_eq!(io.queue.is_dead(), None);
    answer(io.send(read)).fails(Status::COMMAND_SEQUENCE_ERROR);
    assert_eq!(io.queue.is_dead(), Some(TeardownReason::QueueOverrun));
    assert_eq!(admin.queue.is_dead(), None, "only that queue");
}

#[test]
fn fabrics_commands_belong_to_their_queues() {
    let target = target();
    let (mut admin, cntlid) = enabled_admin(&target);
    let mut io = connect_io(&target, cntlid, 1);
    for fctype in [FabricsType::PROPERTY_GET, FabricsType::PROPERTY_SET, FabricsType(0x77)] {
        io.run(Sqe::fabrics(fctype, 0), &[]).fails(Status::INVALID_OPCODE);
    }
    for fctype in [FabricsType::AUTHENTICATION_SEND, FabricsType(0x77)] {
        admin.run(Sqe::fabrics(fctype, 0), &[]).fails(Status::INVALID_OPCODE);
    }
    // An admin command whose opcode no I/O queue supports.
    io.run(Sqe::admin(AdminOpcode::KEEP_ALIVE, 0, 0), &[]).fails(Status::INVALID_OPCODE);
}
