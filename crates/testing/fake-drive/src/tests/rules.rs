//! Violations by a driver, and their detection by the fake.

use nvmeof_wire::identify::{Cns, Identify};
use nvmeof_wire::nvm::BlockIo;
use nvmeof_wire::opcode::{AdminOpcode, IoOpcode};
use nvmeof_wire::pcie::{self, Doorbell};
use nvmeof_wire::properties::{CC_SHN_NORMAL, CSTS_SHST_COMPLETE, Cc, offset};
use nvmeof_wire::queues::{CreateIoCq, CreateIoSq, QueuePriority};
use nvmeof_wire::{Sgl, Sqe, Status, U16};

use super::rig::Rig;
use crate::{FakeDriveConfig, Fault, IommuFault, Mode, Readiness, Violation, When};

fn read(slba: u64, blocks: u32, prp: [u64; 2]) -> Sqe {
    BlockIo::new(slba, blocks).encode(IoOpcode::READ, 0, 1).with_prp(prp[0], prp[1])
}

#[test]
fn data_pointers_of_wrong_form() {
    let mut rig = Rig::ready(FakeDriveConfig::default());
    let data = rig.pages(16 << 10);
    let list = rig.pages(4096);
    list.put(0, &(data.at(4096) + 8).to_le_bytes());
    let at = |offset: usize| data.at(offset);
    let cases = [
        (read(0, 1, [at(2), 0]), Status::PRP_OFFSET_INVALID),
        (read(0, 1, [at(0), at(4096)]), Status::INVALID_FIELD),
        (read(0, 16, [at(0), at(4096 + 4)]), Status::PRP_OFFSET_INVALID),
        (read(0, 24, [at(0), list.at(4)]), Status::PRP_OFFSET_INVALID),
        (read(0, 24, [at(0), list.at(0)]), Status::PRP_OFFSET_INVALID),
        (read(0, 257, [at(0), list.at(0)]), Status::INVALID_FIELD),
        (
            read(0, 1, [0, 0]).with_sgl(Sgl::DataBlock { address: at(0), length: 512 }),
            Status::INVALID_FIELD,
        ),
        (read(32 << 10, 1, [at(0), 0]), Status::LBA_OUT_OF_RANGE),
        (read(u64::MAX, 1, [at(0), 0]), Status::LBA_OUT_OF_RANGE),
    ];
    for (sqe, status) in cases {
        // A command converted from an SGL transport keeps PSDT.
        let got = rig.command(1, sqe).status();
        assert_eq!(got.code(), status, "{sqe:x?}");
        assert!(got.dnr());
        rig.expect_one_violation();
    }
    rig.fake.assert_clean();
}

#[test]
fn fields_that_are_reserved() {
    let mut rig = Rig::ready(FakeDriveConfig::default());
    let data = rig.pages(4096);
    let edits: [fn(&mut Sqe); 4] = [
        |sqe| sqe.flags |= 0x04,
        |sqe| sqe.mptr.set(8),
        |sqe| sqe.cdw14.set(1),
        |sqe| sqe.cdw12.set(sqe.cdw12.get() | 1 << 26),
    ];
    for edit in edits {
        let mut sqe = read(0, 1, [data.at(0), 0]);
        edit(&mut sqe);
        rig.command(1, sqe);
        rig.expect_one_violation();
    }
    rig.command(1, Sqe::io(IoOpcode::FLUSH, 0, 1));
    rig.expect_one_violation();
    let fused = Sqe { flags: 1, ..read(0, 1, [data.at(0), 0]) };
    assert_eq!(rig.command(1, fused).status().code(), Status::INVALID_FIELD);
    rig.expect_one_violation();
    assert_eq!(
        rig.admin(Sqe::admin(AdminOpcode::IDENTIFY, 0, 0)).status().code(),
        Status::INVALID_FIELD
    );
    rig.expect_one_violation();
}

#[test]
fn a_boundary_is_not_crossed() {
    let mut config = FakeDriveConfig::default();
    config.namespaces[0].identify.noiob = U16::new(8);
    let mut rig = Rig::ready(config);
    let data = rig.pages(4096);
    assert_eq!(rig.io(IoOpcode::READ, 8, 8, [data.at(0), 0]), Status::SUCCESS);
    rig.fake.assert_clean();
    assert_eq!(rig.io(IoOpcode::READ, 7, 2, [data.at(0), 0]), Status::SUCCESS);
    rig.expect_one_violation();
}

#[test]
fn memory_that_is_not_mapped_is_a_fault() {
    let mut rig = Rig::ready(FakeDriveConfig::default());
    let data = rig.pages(8192);
    let (inside, behind) = (data.at(0), data.at(8192));
    let status = rig.io(IoOpcode::READ, 0, 9, [data.at(4096), behind]);
    assert_eq!(status.code(), Status::DATA_TRANSFER_ERROR);
    let fault = IommuFault { iova: behind, len: 512, write: true, bus_master_off: false };
    assert_eq!(rig.fake.take_findings(), (vec![], vec![fault]));
    drop(data);
    let status = rig.io(IoOpcode::WRITE, 0, 1, [inside, 0]);
    assert_eq!(status.code(), Status::DATA_TRANSFER_ERROR);
    let fault = IommuFault { iova: inside, len: 512, write: false, bus_master_off: false };
    assert_eq!(rig.fake.take_findings(), (vec![], vec![fault]));
    rig.function.set_bus_master(false).unwrap();
    rig.submit(1, read(0, 1, [inside, 0]));
    assert!(rig.csts().cfs(), "it cannot reach its queue");
    assert!(rig.fake.take_findings().1.iter().all(|fault| fault.bus_master_off));
}

#[test]
fn queues_that_cannot_be() {
    let mut rig = Rig::enabled(FakeDriveConfig::default(), 8);
    let pages = rig.pages(128 << 10);
    let cq = |qid, entries, at: usize, vector| CreateIoCq {
        qid,
        entries,
        prp1: pages.at(at),
        contiguous: true,
        vector,
    };
    let cases = [
        (cq(0, 8, 0, None), Status::INVALID_QUEUE_ID),
        (cq(9, 8, 0, None), Status::INVALID_QUEUE_ID),
        (cq(1, 1, 0, None), Status::INVALID_QUEUE_SIZE),
        (cq(1, 1025, 0, None), Status::INVALID_QUEUE_SIZE),
        (cq(1, 8, 64, None), Status::PRP_OFFSET_INVALID),
        (cq(1, 8, 0, Some(9)), Status::INVALID_INTERRUPT_VECTOR),
        (CreateIoCq { contiguous: false, ..cq(1, 8, 0, None) }, Status::INVALID_FIELD),
    ];
    for (create, status) in cases {
        assert_eq!(rig.admin(create.encode(0)).status().code(), status, "{create:?}");
        rig.expect_one_violation();
    }
    let sq = CreateIoSq {
        qid: 1,
        entries: 8,
        prp1: pages.at(0),
        contiguous: true,
        priority: QueuePriority::URGENT,
        cqid: 1,
        nvm_set: 0,
    };
    assert_eq!(rig.admin(sq.encode(0)).status().code(), Status::CQ_INVALID);
    rig.expect_one_violation();
    // The last bytes of the queue are not mapped.
    let status = rig.admin(cq(1, 1024, 120 << 10, None).encode(0)).status();
    assert_eq!(status.code(), Status::INVALID_FIELD);
    assert_eq!(rig.fake.take_findings().1.len(), 1);
}

#[test]
fn doorbells_that_make_no_sense() {
    let mut rig = Rig::ready(FakeDriveConfig::default());
    rig.fake.set_mode(Mode::Manual);
    let wrong = [
        (Doorbell::SubmissionTail(1), 16),
        (Doorbell::SubmissionTail(1), 0),
        (Doorbell::CompletionHead(1), 1),
        (Doorbell::CompletionHead(1), 0),
        (Doorbell::SubmissionTail(2), 1),
    ];
    for (doorbell, value) in wrong {
        rig.doorbell(doorbell, value);
        rig.expect_one_violation();
    }
    let sqe = read(0, 1, [0, 0]);
    for _ in 0..15 {
        rig.push(1, sqe);
    }
    rig.ring(1);
    rig.fake.assert_clean();
    // The ring is full: a 16th entry has no room.
    rig.push(1, sqe);
    rig.ring(1);
    rig.expect_one_violation();
}

#[test]
fn an_identifier_is_used_once_at_a_time() {
    let mut rig = Rig::ready(FakeDriveConfig::default());
    rig.fake.inject(When::queue(1), Fault::Held);
    let data = rig.pages(4096);
    let mut sqe = read(0, 1, [data.at(0), 0]);
    sqe.cid.set(9);
    rig.push_as_is(1, sqe);
    rig.push_as_is(1, sqe);
    rig.ring(1);
    assert_eq!(rig.poll(1).unwrap().status().code(), Status::CID_CONFLICT);
    rig.expect_one_violation();
}

#[test]
fn registers_are_used_as_they_are_meant_to_be() {
    let mut rig = Rig::new(FakeDriveConfig {
        disable: Readiness::AfterReads(2),
        ..FakeDriveConfig::default()
    });
    let enable = Cc::new().with_en(true).with_iosqes(6).with_iocqes(4);
    assert_eq!(rig.registers.read32(0x2), u32::MAX);
    rig.expect_one_violation();
    assert_eq!(rig.registers.read64(0xffff_fff8), u64::MAX);
    rig.expect_one_violation();
    rig.registers.write64(offset::CAP, 1);
    rig.expect_one_violation();
    rig.doorbell(Doorbell::SubmissionTail(0), 1);
    rig.expect_one_violation();
    // No admin queue is set yet.
    rig.write_cc(enable);
    rig.expect_one_violation();
    assert!(rig.csts().cfs());
    rig.write_cc(Cc::new());
    rig.set_admin_queue(8);
    rig.write_cc(enable.with_mps(5));
    assert!(rig.csts().cfs());
    rig.expect_one_violation();
    rig.write_cc(Cc::new());
    rig.write_cc(enable);
    assert!(!rig.csts().rdy());
    rig.wait_ready(true);
    rig.registers.write64(pcie::offset::ASQ, 0);
    rig.expect_one_violation();
    rig.write_cc(enable.with_mps(1));
    rig.expect_one_violation();
    rig.write_cc(enable.with_mps(1).with_en(false));
    assert!(rig.csts().rdy() && rig.csts().rdy() && !rig.csts().rdy());
    rig.fake.assert_clean();
    rig.write_cc(enable);
    rig.wait_ready(true);
    rig.write_cc(Cc::new());
    rig.write_cc(enable);
    rig.expect_one_violation();
}

#[test]
fn a_shutdown_ends_the_work() {
    let mut rig = Rig::ready(FakeDriveConfig {
        shutdown: Readiness::AfterReads(1),
        ..FakeDriveConfig::default()
    });
    let cc = Cc::from_bits(rig.registers.read32(offset::CC));
    rig.write_cc(cc.with_shn(CC_SHN_NORMAL));
    assert_eq!(rig.csts().shst(), 1);
    assert_eq!(rig.csts().shst(), CSTS_SHST_COMPLETE);
    rig.submit(1, Sqe::io(IoOpcode::FLUSH, 0, 1).without_data());
    assert!(rig.poll(1).is_none());
    rig.write_cc(Cc::new());
    rig.wait_ready(false);
    assert_eq!(rig.csts().shst(), 0);
    rig.fake.assert_clean();
}

#[test]
fn findings_name_the_command() {
    let mut rig = Rig::ready(FakeDriveConfig::default());
    let sqe = Identify::new(Cns::CONTROLLER, 0).encode(0).with_prp(3, 0);
    rig.admin(sqe);
    let found = rig.fake.take_findings().0;
    let [Violation::Command { qid: 0, opcode: 6, .. }] = found.as_slice() else {
        panic!("{found:?}")
    };
}
