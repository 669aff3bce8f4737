//! Properties and the states of a controller.

use nvmeof_wire::fabrics::{PropertyGet, PropertySet, PropertySize};
use nvmeof_wire::nqn::DISCOVERY_NQN;
use nvmeof_wire::nvm::BlockIo;
use nvmeof_wire::opcode::{AdminOpcode, IoOpcode};
use nvmeof_wire::properties::{
    CAP_CSS_ADMIN_ONLY, CAP_CSS_IO_SETS, CAP_CSS_NVM, CC_CSS_ADMIN_ONLY, CC_CSS_ALL, CC_SHN_ABRUPT,
    CC_SHN_NORMAL, CSTS_SHST_COMPLETE, CSTS_SHST_OCCURRING, Cap, Cc, Crto, NSSR_RESET, Version,
    offset,
};
use nvmeof_wire::{Sgl, Sqe, Status};

use super::support::*;
use crate::quiesce::REACTION;
use crate::{DeviceId, Disposition, TeardownReason};

#[test]
fn capabilities_say_what_there_is() {
    let target = target();
    let (mut link, _) = connect_admin(&target, &ConnectRequest::admin(SUBSYSTEM));
    let cap = Cap::from_bits(link.get(offset::CAP));
    assert_eq!(cap.mqes(), 63);
    assert!(cap.cqr() && cap.to() > 0);
    assert_eq!(
        (cap.css(), cap.crms(), cap.mpsmin(), cap.mpsmax()),
        (CAP_CSS_NVM | CAP_CSS_IO_SETS, 1, 0, 0)
    );
    assert!(!cap.nssrs() && !cap.bps() && !cap.pmrs() && !cap.cmbs() && cap.dstrd() == 0);
    assert_eq!(link.get(offset::VS), u64::from(Version::V2_0.into_bits()));
    let crto = Crto::from_bits(u32::try_from(link.get(offset::CRTO)).unwrap());
    assert_eq!(crto.crwmt(), u16::from(cap.to()), "CAP.TO is the least of CRTO");
    assert_eq!(link.get(offset::NSSR), 0);
    assert_eq!(link.get(offset::CC), 0);
    assert_eq!(link.csts().into_bits(), 0);

    let (mut link, _) = connect_admin(&target, &ConnectRequest::admin(DISCOVERY_NQN));
    assert_eq!(Cap::from_bits(link.get(offset::CAP)).css(), CAP_CSS_ADMIN_ONLY);
}

#[test]
fn property_sizes_and_offsets_are_checked() {
    let (mut link, _) = enabled_admin(&target());
    let mut refused = |size, at| {
        let sqe = PropertyGet { size, offset: at }.encode(0);
        link.run(sqe, &[]).fails(Status::INVALID_FIELD);
    };
    refused(PropertySize::Four, offset::CAP);
    refused(PropertySize::Eight, offset::VS);
    refused(PropertySize::Reserved(2), offset::VS);
    for at in [4, 0x0c, 0x10, 0x18, 0x24, 0x28, 0x30, 0x38, 0x1000, u32::MAX] {
        refused(PropertySize::Four, at);
        refused(PropertySize::Eight, at);
    }
}

#[test]
fn only_cc_can_be_set() {
    let (mut link, _) = enabled_admin(&target());
    for (at, value) in [
        (offset::CAP, 0),
        (offset::VS, 0),
        (offset::CSTS, 0x10),
        (offset::NSSR, u64::from(NSSR_RESET)),
        (offset::CRTO, 0),
        (0x1000, 0),
    ] {
        let set = PropertySet { size: PropertySize::Four, offset: at, value };
        link.run(set.encode(0), &[]).fails(Status::INVALID_FIELD);
    }
    let set = PropertySet { size: PropertySize::Eight, offset: offset::CC, value: 0 };
    link.run(set.encode(0), &[]).fails(Status::INVALID_FIELD);
    assert!(link.csts().rdy(), "none of them did anything");
}

#[test]
fn enabling_takes_a_configuration_it_can_run_with() {
    let target = target();
    let (mut link, _) = connect_admin(&target, &ConnectRequest::admin(SUBSYSTEM));
    let en = enabled();
    for bad in [
        en.with_iosqes(0),
        en.with_iosqes(7),
        en.with_iocqes(5),
        en.with_css(CC_CSS_ADMIN_ONLY),
        en.with_css(0b001),
        en.with_mps(1),
        en.with_ams(1),
        en.with_crime(true),
    ] {
        link.set_cc(bad).fails(Status::INVALID_FIELD);
        assert!(!link.csts().rdy());
        assert_eq!(link.get(offset::CC), 0);
    }
    link.enable();
    assert_eq!(link.get(offset::CC), u64::from(en.into_bits()));
    let (mut link, _) = connect_admin(&target, &ConnectRequest::admin(SUBSYSTEM));
    link.set_cc(en.with_css(CC_CSS_ALL)).ok();
    assert!(link.csts().rdy());
}

#[test]
fn discovery_controllers_enable_with_and_without_entry_sizes() {
    let target = target();
    for cc in [
        Cc::new().with_en(true),
        enabled(),
        Cc::new().with_en(true).with_css(CC_CSS_ADMIN_ONLY),
        enabled().with_css(CC_CSS_ALL),
    ] {
        let (mut link, _) = connect_admin(&target, &ConnectRequest::admin(DISCOVERY_NQN));
        link.set_cc(cc).ok();
        assert!(link.csts().rdy());
    }
}

#[test]
fn admin_commands_wait_for_ready() {
    let (mut link, _) = connect_admin(&target(), &ConnectRequest::admin(SUBSYSTEM));
    for opcode in [AdminOpcode::KEEP_ALIVE, AdminOpcode::IDENTIFY, AdminOpcode(0xc0)] {
        link.run(Sqe::admin(opcode, 0, 0), &[]).fails(Status::COMMAND_SEQUENCE_ERROR);
    }
    link.enable();
    link.run(Sqe::admin(AdminOpcode::KEEP_ALIVE, 0, 0), &[]).ok();
}

#[test]
fn reset_ends_io_queues_and_keeps_the_association() {
    let target = target();
    let (mut admin, cntlid) = enabled_admin(&target);
    let mut io = connect_io(&target, cntlid, 1);
    let read = BlockIo::new(0, 1).encode(IoOpcode::READ, 0, 1);
    let read = read.with_sgl(Sgl::Transport { length: 512 });
    io.io(read);
    let epoch = target.epoch();
    admin.set_cc(enabled().with_en(false)).ok();
    assert!(target.epoch() > epoch);
    assert!(admin.csts().rdy(), "a command of it is still with a device");
    assert_eq!(admin.queue.is_dead(), None);
    assert_eq!(io.queue.is_dead(), Some(TeardownReason::Reset));
    assert_eq!(io.run(read, &[]).code(), Status::ABORTED_SQ_DELETION);
    admin.run(Sqe::admin(AdminOpcode::KEEP_ALIVE, 0, 0), &[]).fails(Status::COMMAND_SEQUENCE_ERROR);

    // A host that does not wait gets an error that permits a retry.
    let status = admin.set_cc(enabled()).cqe.status();
    assert_eq!((status.code(), status.dnr()), (Status::COMMAND_SEQUENCE_ERROR, false));
    let epoch = target.epoch();
    drop(io.queue.handle_disconnect());
    assert!(target.epoch() > epoch, "reactors are to look");
    assert!(!admin.csts().rdy());

    // After the controller is enabled again, the same ID is free. The old queue stays dead and does
    // not free the ID again.
    admin.enable();
    let _new = connect_io(&target, cntlid, 1);
    assert_eq!(io.queue.is_dead(), Some(TeardownReason::Reset));
    drop(io);
    let mut third = Link::new(&target, PORT);
    ConnectRequest::io(cntlid, 1).send(&mut third).fails_for_now(Status::COMMAND_SEQUENCE_ERROR);
}

#[test]
fn shutdown_completes_when_its_commands_are_over_and_its_devices_flushed() {
    for shn in [CC_SHN_NORMAL, CC_SHN_ABRUPT] {
        let target = target();
        let (mut admin, cntlid) = enabled_admin(&target);
        let mut io = connect_io(&target, cntlid, 1);
        admin.set_cc(enabled().with_shn(shn)).ok();
        assert_eq!(admin.csts().shst(), CSTS_SHST_OCCURRING);
        assert_eq!(admin.queue.poll_shutdown(), None, "a command of it is still with a device");
        assert!(io.queue.is_dead().is_some());
        drop(io.queue.handle_disconnect());
        let devices = admin.queue.poll_shutdown().unwrap();
        assert_eq!(devices, [101, 102, 103, 104].map(DeviceId));
        assert_eq!(admin.queue.poll_shutdown(), None, "once is enough");
        assert_eq!(admin.csts().shst(), CSTS_SHST_OCCURRING);
        admin.queue.shutdown_flushed(true);
        assert_eq!(admin.csts().shst(), CSTS_SHST_COMPLETE);
        assert!(!admin.csts().cfs());
        let code = Status::COMMAND_SEQUENCE_ERROR;
        admin.run(Sqe::admin(AdminOpcode::KEEP_ALIVE, 0, 0), &[]).fails(code);
        ConnectRequest::io(cntlid, 1).send(&mut Link::new(&target, PORT)).fails_for_now(code);
        // The controller works again after a reset.
        admin.set_cc(Cc::new()).ok();
        assert_eq!(admin.csts().into_bits(), 0);
        admin.enable();
        connect_io(&target, cntlid, 1);
    }
}

#[test]
fn shutdown_of_a_disabled_controller_and_with_reset() {
    let (mut link, _) = connect_admin(&target(), &ConnectRequest::admin(SUBSYSTEM));
    link.set_cc(Cc::new().with_shn(CC_SHN_NORMAL)).ok();
    finish_shutdown(&mut link);
    assert_eq!(link.csts().shst(), CSTS_SHST_COMPLETE);
    let (mut link, _) = enabled_admin(&target());
    link.set_cc(enabled().with_en(false).with_shn(CC_SHN_NORMAL)).ok();
    finish_shutdown(&mut link);
    assert_eq!(link.csts().shst(), CSTS_SHST_COMPLETE);
    assert!(!link.csts().rdy());
}

fn finish_shutdown(link: &mut Link) {
    link.queue.poll_shutdown().unwrap();
    link.queue.shutdown_flushed(true);
}

#[test]
fn a_shutdown_that_cannot_flush_says_so_and_one_that_a_reset_overtakes_completes_no_other() {
    let target = target();
    let (mut admin, _) = enabled_admin(&target);
    admin.set_cc(enabled().with_shn(CC_SHN_NORMAL)).ok();
    admin.queue.poll_shutdown().unwrap();
    admin.set_cc(Cc::new()).ok();
    admin.enable();
    admin.set_cc(enabled().with_shn(CC_SHN_NORMAL)).ok();
    admin.queue.poll_shutdown().unwrap();
    admin.queue.shutdown_flushed(true);
    assert_eq!(admin.csts().shst(), CSTS_SHST_OCCURRING, "that was of the one before");
    admin.queue.shutdown_flushed(false);
    assert_eq!(admin.csts().shst(), CSTS_SHST_COMPLETE);
    assert!(admin.csts().cfs());
    admin.set_cc(Cc::new()).ok();
    assert_eq!(admin.csts().into_bits(), 0);
}

#[test]
fn how_long_ready_may_take_follows_the_devices() {
    let (mut link, _) = connect_admin(&target(), &ConnectRequest::admin(SUBSYSTEM));
    let units = u64::try_from((BOUND + REACTION).as_millis() / 500).unwrap();
    assert_eq!(u64::from(Cap::from_bits(link.get(offset::CAP)).to()), units);
    assert_eq!(
        u64::from(Crto::from_bits(u32::try_from(link.get(offset::CRTO)).unwrap()).crwmt()),
        units
    );
    let (mut discovery, _) = connect_admin(&target(), &ConnectRequest::admin(DISCOVERY_NQN));
    assert_eq!(
        u128::from(Cap::from_bits(discovery.get(offset::CAP)).to()),
        REACTION.as_millis() / 500
    );
}

#[test]
fn reset_and_shutdown_drop_event_requests() {
    for cc in [enabled().with_en(false), enabled().with_shn(CC_SHN_NORMAL)] {
        let target = target();
        let (mut link, _) = enabled_admin(&target);
        let aer = Sqe::admin(AdminOpcode::ASYNC_EVENT_REQUEST, 0, 0);
        for _ in 0..3 {
            assert_eq!(link.send(aer), Disposition::Held);
        }
        link.set_cc(cc).ok();
        assert_eq!(link.queue.poll_event(), None, "the host has dropped them, too");
        assert_eq!(link.queue.outstanding(), 0);
    }
}
