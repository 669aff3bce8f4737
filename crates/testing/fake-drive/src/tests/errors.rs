//! Injected errors.

use std::io::ErrorKind;

use nvmeof_wire::abort::{Abort, NOT_ABORTED};
use nvmeof_wire::aer::AsyncEvent;
use nvmeof_wire::features::{AsyncEventConfig, Fid, SetFeatures};
use nvmeof_wire::identify::Cns;
use nvmeof_wire::log::{GetLogPage, Lid, SmartLog};
use nvmeof_wire::nvm::BlockIo;
use nvmeof_wire::opcode::{AdminOpcode, IoOpcode};
use nvmeof_wire::properties::{Cc, NSSR_RESET, offset};
use nvmeof_wire::{Cqe, Sqe, Status};
use zerocopy::FromBytes;

use super::rig::Rig;
use crate::{FakeDriveConfig, Fault, Mode, NamespaceConfig, Readiness, Tamper, When};

fn flush() -> Sqe {
    Sqe::io(IoOpcode::FLUSH, 0, 1).without_data()
}

fn event_request() -> Sqe {
    Sqe::admin(AdminOpcode::ASYNC_EVENT_REQUEST, 0, 0).without_data()
}

#[test]
fn completions_that_do_not_come_or_come_late() {
    let mut rig = Rig::ready(FakeDriveConfig::default());
    let data = rig.pages(4096);
    rig.fake.write_media(1, 0, &[7; 512]).unwrap();
    rig.fake.inject(When::io(1, IoOpcode::READ).after(1), Fault::Held);
    rig.fake.inject(When::io(1, IoOpcode::FLUSH), Fault::Lost);
    let read = BlockIo::new(0, 1).encode(IoOpcode::READ, 0, 1);
    assert!(rig.command(1, read.with_prp(data.at(0), 0)).status().is_success());
    let late = rig.submit(1, read.with_prp(data.at(512), 0));
    let lost = rig.submit(1, flush());
    assert!(rig.poll(1).is_none());
    assert_eq!((rig.fake.held(), data.get(512, 1)), (2, vec![0]));
    assert_eq!(rig.fake.release(), 1);
    assert_eq!(rig.poll(1).unwrap().cid.get(), late);
    assert_eq!(data.get(512, 1), [7]);
    assert!(rig.poll(1).is_none());
    // Aborting this command works; aborting another does not.
    let other = rig.admin(Abort { sqid: 1, cid: late }.encode(0).without_data());
    assert_eq!(u64::from(other.dw0()), NOT_ABORTED);
    let abort = Abort { sqid: 1, cid: lost }.encode(0).without_data();
    assert_eq!(rig.admin(abort).dw0(), 0);
    let cqe = rig.poll(1).unwrap();
    assert_eq!((cqe.cid.get(), cqe.status()), (lost, Status::ABORT_REQUESTED));
    rig.fake.assert_clean();
}

#[test]
fn an_abort_that_does_not_help() {
    let mut rig = Rig::ready(FakeDriveConfig { abort_helps: false, ..FakeDriveConfig::default() });
    rig.fake.inject(When::queue(1), Fault::Lost);
    let cid = rig.submit(1, flush());
    let cqe = rig.admin(Abort { sqid: 1, cid }.encode(0).without_data());
    assert_eq!((u64::from(cqe.dw0()), cqe.status()), (NOT_ABORTED, Status::SUCCESS));
    assert!(rig.poll(1).is_none());
}

#[test]
fn completions_that_are_wrong() {
    let mut rig = Rig::ready(FakeDriveConfig::default());
    let faults = [
        Fault::Status(Status::INTERNAL_ERROR),
        Fault::WrongCid(0xdead),
        Fault::WrongSqid(5),
        Fault::WrongSqhd(99),
        Fault::Duplicate,
        Fault::WrongPhase,
    ];
    for fault in faults {
        rig.fake.inject(When::queue(1), fault);
    }
    assert_eq!(rig.command(1, flush()).status(), Status::INTERNAL_ERROR);
    rig.submit(1, flush());
    assert_eq!(rig.poll(1).unwrap().cid.get(), 0xdead);
    rig.submit(1, flush());
    assert_eq!(rig.poll(1).unwrap().sqid.get(), 5);
    assert_eq!(rig.command(1, flush()).sqhd.get(), 99);
    let first = rig.command(1, flush());
    assert_eq!(rig.poll(1), Some(first));
    rig.submit(1, flush());
    assert!(rig.poll(1).is_none(), "its phase is the old one");
    rig.fake.assert_clean();
}

#[test]
fn a_fatal_status_and_the_way_out_of_it() {
    let mut rig = Rig::ready(FakeDriveConfig::default());
    rig.fake.inject(When::next(), Fault::Fatal);
    rig.submit(1, flush());
    assert!(rig.poll(1).is_none() && rig.csts().cfs());
    rig.write_cc(Cc::new());
    rig.wait_ready(false);
    assert!(!rig.csts().cfs());
    assert_eq!(rig.fake.io_queues(), 0);
    rig.fake.assert_clean();
}

#[test]
fn a_controller_that_never_follows() {
    let mut rig =
        Rig::new(FakeDriveConfig { enable: Readiness::Never, ..FakeDriveConfig::default() });
    rig.set_admin_queue(8);
    rig.write_cc(Cc::new().with_en(true));
    assert!((0..1000).all(|_| !rig.csts().rdy()));
    rig.write_cc(Cc::new());
    rig.fake.reconfigure(|config| {
        config.enable = Readiness::AfterReads(0);
        config.disable = Readiness::Never;
    });
    rig.write_cc(Cc::new().with_en(true));
    rig.wait_ready(true);
    rig.write_cc(Cc::new());
    assert!((0..1000).all(|_| rig.csts().rdy()));
    // A function reset works.
    rig.function.reset().unwrap();
    assert!(!rig.csts().rdy());
    rig.fake.assert_clean();
}

#[test]
fn a_function_that_is_gone() {
    let mut rig = Rig::ready(FakeDriveConfig::default());
    rig.fake.inject(When::queue(1), Fault::Gone);
    rig.submit(1, flush());
    assert!(rig.poll(1).is_none());
    assert_eq!(rig.csts().into_bits(), u32::MAX);
    assert_eq!(rig.registers.read64(offset::CAP), u64::MAX);
    assert_eq!(rig.function.reset().unwrap_err().kind(), ErrorKind::NotConnected);
    assert!(rig.function.set_bus_master(true).is_err());
    rig.fake.set_gone(false);
    assert!(!rig.csts().rdy() && rig.registers.read64(offset::CAP) != u64::MAX);
    rig.fake.assert_clean();
}

#[test]
fn resets_of_every_kind_forget_commands_in_flight() {
    for kind in 0..4 {
        let mut rig = Rig::ready(FakeDriveConfig::default());
        rig.fake.inject(When::queue(1), Fault::Held);
        rig.submit(1, flush());
        match kind {
            0 => rig.write_cc(Cc::new()),
            1 => rig.function.reset().unwrap(),
            2 => rig.registers.write32(offset::NSSR, NSSR_RESET),
            _ => rig.fake.reset_itself(),
        }
        assert_eq!((rig.fake.held(), rig.fake.release()), (0, 0));
        rig.wait_ready(false);
        assert_eq!(rig.csts().nssro(), kind == 2);
        rig.fake.assert_clean();
    }
}

#[test]
fn events_wait_for_requests_and_for_their_log_page() {
    let mut rig = Rig::enabled(FakeDriveConfig::default(), 16);
    rig.fake.raise(AsyncEvent::TEMPERATURE);
    let cid = rig.submit(0, event_request());
    let cqe = rig.poll(0).unwrap();
    assert_eq!((cqe.cid.get(), AsyncEvent::parse(cqe.dw0())), (cid, AsyncEvent::TEMPERATURE));
    let waiting = rig.submit(0, event_request());
    rig.fake.raise(AsyncEvent::SPARE);
    assert!(rig.poll(0).is_none(), "masked until the log page is read");
    rig.fake.change_smart(|smart| smart.critical_warning = 2);
    let page = rig.pages(4096);
    let mut get = GetLogPage::new(Lid::SMART, 512);
    get.retain_event = false;
    get.nsid = u32::MAX;
    let read = rig.submit(0, get.encode(0).with_prp(page.at(0), 0));
    let done = [rig.poll(0).unwrap().cid.get(), rig.poll(0).unwrap().cid.get()];
    assert_eq!(done, [read, waiting]);
    let smart = SmartLog::read_from_bytes(&page.get(0, 512)).unwrap();
    assert_eq!(smart.critical_warning, 2);
    // AERL is 3: four requests may be outstanding, five may not.
    let cids: Vec<u16> = (0..4).map(|_| rig.submit(0, event_request())).collect();
    assert_eq!(rig.admin(event_request()).status().code(), Status::ASYNC_EVENT_LIMIT_EXCEEDED);
    rig.expect_one_violation();
    rig.submit(0, Abort { sqid: 0, cid: cids[2] }.encode(0).without_data());
    let aborted = rig.poll(0).unwrap();
    assert_eq!((aborted.cid.get(), aborted.status()), (cids[2], Status::ABORT_REQUESTED));
}

#[test]
fn namespaces_come_and_go() {
    let mut config = FakeDriveConfig::default();
    config.namespaces.push(NamespaceConfig::new(2, 8, 9));
    let mut rig = Rig::enabled(config, 16);
    rig.submit(0, event_request());
    rig.fake.set_attached(2, false);
    assert!(rig.poll(0).is_none(), "nobody asked for it");
    let events = AsyncEventConfig::new().with_namespace_attribute(true);
    let set = SetFeatures {
        fid: Fid::ASYNC_EVENTS,
        save: false,
        nsid: 0,
        cdw11: events.into_bits(),
        cdw12: 0,
        uuid_index: 0,
    };
    assert!(rig.admin(set.encode(0).without_data()).status().is_success());
    rig.fake.set_attached(2, true);
    let cqe = rig.poll(0).unwrap();
    assert_eq!(AsyncEvent::parse(cqe.dw0()), AsyncEvent::NAMESPACE_CHANGED);
    let page = rig.pages(4096);
    let get = GetLogPage { retain_event: false, ..GetLogPage::new(Lid::CHANGED_NAMESPACES, 4096) };
    rig.admin(get.encode(0).with_prp(page.at(0), 0));
    assert_eq!(page.get(0, 8), [2, 0, 0, 0, 0, 0, 0, 0]);
    rig.fake.assert_clean();
}

#[test]
fn interrupts_go_to_their_vector() {
    let mut rig = Rig::enabled(FakeDriveConfig::default(), 8);
    let vectors = rig.function.interrupts(3).unwrap();
    assert_eq!(rig.function.interrupts(100).unwrap().len(), 9);
    let vectors_now = rig.function.interrupts(3).unwrap();
    let count = |index: usize| {
        let mut count = [0; 8];
        match rustix::io::read(&vectors_now[index], &mut count) {
            Ok(_) => u64::from_ne_bytes(count),
            Err(_) => 0,
        }
    };
    rig.create_pair(1, 8, Some(2));
    rig.create_pair(2, 8, None);
    assert!(count(0) > 0, "the admin queue's is vector 0");
    rig.command(1, flush());
    rig.command(2, flush());
    assert_eq!((count(0), count(1), count(2)), (0, 0, 1));
    let mut old = [0; 8];
    assert!(rustix::io::read(&vectors[0], &mut old).is_err());
    rig.fake.assert_clean();
}

#[test]
fn answers_can_be_anything() {
    #[derive(Debug)]
    struct Odd;
    impl Tamper for Odd {
        fn register(&mut self, at: u32, value: u64) -> u64 {
            if at == offset::VS { 0x1234 } else { value }
        }
        fn completion(&mut self, cqid: u16, cqe: &mut Cqe) {
            cqe.sqhd.set(cqid + 40);
        }
        fn data(&mut self, _: &Sqe, _: u16, data: &mut [u8]) {
            data[1] = 0xbb;
        }
    }
    let mut rig = Rig::ready(FakeDriveConfig::default());
    rig.fake.inject(When::admin(AdminOpcode::IDENTIFY), Fault::Data(vec![0xff]));
    let (status, data) = rig.identify(Cns::CONTROLLER, 0);
    assert!(status.is_success() && data.iter().all(|byte| *byte == 0xff));
    rig.fake.set_tamper(Some(Box::new(Odd)));
    assert_eq!(rig.registers.read32(offset::VS), 0x1234);
    assert_eq!(rig.command(1, flush()).sqhd.get(), 41);
    let (_, data) = rig.identify(Cns::CONTROLLER, 0);
    assert_eq!(data[..3], [0x36, 0xbb, 0xf4]);
}

#[test]
fn by_hand_it_works_one_command_at_a_time_and_queues_take_turns() {
    let mut rig = Rig::ready(FakeDriveConfig::default());
    rig.create_pair(2, 16, None);
    rig.fake.set_mode(Mode::Manual);
    for _ in 0..2 {
        rig.push(1, flush());
        rig.push(2, flush());
    }
    rig.ring(1);
    rig.ring(2);
    let mut done = Vec::new();
    while rig.fake.step() {
        done.extend((1..=2).filter(|&qid| rig.poll(qid).is_some()));
    }
    assert_eq!(done, [1, 2, 1, 2]);
    rig.fake.assert_clean();
}

#[test]
fn completions_wait_for_room() {
    let mut rig = Rig::ready(FakeDriveConfig::default());
    for _ in 0..3 {
        for _ in 0..7 {
            rig.push(1, flush());
        }
        rig.ring(1);
    }
    // 15 of 21 fit; the host reads them, and the others arrive.
    let mut read = 0;
    while rig.poll(1).is_some() {
        read += 1;
    }
    assert_eq!(read, 21);
    rig.fake.assert_clean();
}
