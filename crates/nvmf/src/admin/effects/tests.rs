use std::sync::Arc;

use nvmeof_wire::fabrics::{
    CNTLID_DYNAMIC, Connect, ConnectData, ConnectResult, PropertySet, PropertySize,
};
use nvmeof_wire::identify::{Cns, Identify};
use nvmeof_wire::log::GetLogPage;
use nvmeof_wire::properties::{Cc, offset};
use nvmeof_wire::zerocopy::IntoBytes;
use nvmeof_wire::{Nqn, Sgl, Sqe, Status};

use super::*;
use crate::admin::fixture::{HOST_ID, cached_namespace, nqn, subsystem};
use crate::{
    AddressFamily, Disposition, Limits, PortId, PortSpec, Queue, Target, TargetSpec, TransportKind,
};

const KINDS: [SubsystemKind; 2] = [SubsystemKind::Nvm, SubsystemKind::Discovery];

/// The host side of a queue.
struct Host {
    queue: Queue,
    cid: u16,
}

/// Result of a command.
enum Came {
    Status(Status, u64, Vec<u8>),
    /// The queue took it, and it is in flight.
    Taken,
}

impl Host {
    fn send(&mut self, mut sqe: Sqe, data: &[u8]) -> Came {
        self.cid += 1;
        sqe.cid.set(self.cid);
        // Room for any data.
        let sqe = sqe.with_sgl(Sgl::Transport { length: 1 << 20 });
        let mut disposition = self.queue.handle_command(&sqe, 0, 0);
        if let Disposition::Receive { .. } = disposition {
            disposition = self.queue.handle_data(&sqe, data, 0);
        }
        match disposition {
            Disposition::Respond(response) => {
                Came::Status(response.cqe.status(), response.cqe.result.get(), Vec::new())
            }
            Disposition::Send { len, .. } => {
                let mut data = vec![0; usize::try_from(len).unwrap()];
                let cqe = self.queue.fill(&sqe, &mut data, 0).cqe;
                Came::Status(cqe.status(), cqe.result.get(), data)
            }
            Disposition::Io(_) => {
                let cid = self.cid;
                let _ = self.queue.complete(cid, Ok(()));
                Came::Taken
            }
            _ => Came::Taken,
        }
    }

    fn answer(&mut self, sqe: Sqe, data: &[u8]) -> (u64, Vec<u8>) {
        match self.send(sqe, data) {
            Came::Status(Status::SUCCESS, result, data) => (result, data),
            Came::Status(status, ..) => panic!("{status}"),
            Came::Taken => panic!("no answer"),
        }
    }

    fn refuses_opcode(&mut self, opcode: u8) -> bool {
        let sqe = Sqe::new(opcode, 0, 1);
        match self.send(sqe, &[0; 4096]) {
            Came::Status(status, ..) => status == Status::INVALID_OPCODE.with_dnr(),
            Came::Taken => false,
        }
    }
}

fn target() -> Arc<Target> {
    let target = Target::new(Limits::default());
    let port = PortSpec {
        id: PortId(1),
        transport: TransportKind::Tcp,
        family: AddressFamily::Ipv4,
        address: "127.0.0.1".to_owned(),
        service: "4420".to_owned(),
        v6_only: false,
        subsystems: None,
        folds_always: false,
    };
    let spec = TargetSpec {
        subsystems: vec![subsystem("disks", vec![cached_namespace(1)])],
        ports: vec![port],
        ..TargetSpec::default()
    };
    target.apply(spec).unwrap();
    target
}

fn connect(target: &Arc<Target>, subnqn: &Nqn, cntlid: u16, qid: u16) -> (Host, u16) {
    let mut host = Host { queue: Queue::new(target, PortId(1), "", 0), cid: 0 };
    let command = Connect {
        qid,
        entries: 32,
        priority: 0,
        disable_sq_flow_control: false,
        queue_deletion: false,
        kato_ms: 0,
    };
    let data = ConnectData::new(HOST_ID, cntlid, subnqn, &nqn("host"));
    let (result, _) = host.answer(command.encode(0), data.as_bytes());
    (host, ConnectResult::parse(result).cntlid)
}

fn connect_admin(target: &Arc<Target>, subnqn: &Nqn) -> (Host, u16) {
    let (mut host, cntlid) = connect(target, subnqn, CNTLID_DYNAMIC, 0);
    let cc = Cc::new().with_en(true).with_iosqes(6).with_iocqes(4).into_bits();
    let enable = PropertySet { size: PropertySize::Four, offset: offset::CC, value: cc.into() };
    host.answer(enable.encode(0), &[]);
    (host, cntlid)
}

/// The opcodes that one part of the Commands Supported and Effects log page reports.
fn claims(log: &[u8], half: usize) -> Vec<u8> {
    let entries = log[half * 1024..].chunks_exact(4).take(256);
    (0..=0xff)
        .zip(entries)
        .filter(|(_, entry)| entry[0] & 1 == 1)
        .map(|(opcode, _)| opcode)
        .collect()
}

#[test]
fn what_the_effects_log_claims_is_dispatched_and_nothing_else() {
    let target = target();
    let disks = nqn("disks");
    for subnqn in [&disks, &Nqn::discovery()] {
        let (mut admin, cntlid) = connect_admin(&target, subnqn);
        let (_, log) = admin.answer(GetLogPage::new(Lid::COMMAND_EFFECTS, 4096).encode(0), &[]);
        let claimed = claims(&log, 0);
        assert_eq!(claimed.len(), 7, "{subnqn}");
        // 7Fh has its own types.
        for opcode in (0..=0xff).filter(|opcode| *opcode != AdminOpcode::FABRICS.0) {
            let refused = admin.refuses_opcode(opcode);
            assert_eq!(refused, !claimed.contains(&opcode), "{subnqn}, admin {opcode:#x}");
        }
        let claimed = claims(&log, 1);
        if subnqn.is_discovery() {
            assert!(claimed.is_empty(), "no I/O queues");
            continue;
        }
        assert_eq!(claimed.len(), 7);
        let (mut io, _) = connect(&target, subnqn, cntlid, 1);
        for opcode in (0..=0xff).filter(|opcode| *opcode != IoOpcode::FABRICS.0) {
            let refused = io.refuses_opcode(opcode);
            assert_eq!(refused, !claimed.contains(&opcode), "I/O {opcode:#x}");
        }
    }
}

#[test]
fn identify_claims_what_the_effects_log_does() {
    let target = target();
    let (mut admin, _) = connect_admin(&target, &nqn("disks"));
    let (_, log) = admin.answer(GetLogPage::new(Lid::COMMAND_EFFECTS, 4096).encode(0), &[]);
    let (_, id) = admin.answer(Identify::new(Cns::CONTROLLER, 0).encode(0), &[]);
    let oacs = u16::from_le_bytes([id[256], id[257]]);
    let oncs = u16::from_le_bytes([id[520], id[521]]);
    // Commands by bit (Base 5.17.2.1).
    let optional_admin = [0x81, 0x80, 0x10, 0x0d, 0x14, 0x19, 0x1d, 0x1c, 0x7c, 0x86, 0x24];
    for (bit, opcode) in optional_admin.into_iter().enumerate() {
        let claimed = claims(&log, 0).contains(&opcode);
        assert_eq!(oacs >> bit & 1 == 1, claimed, "OACS bit {bit}");
    }
    let optional_io = [(0, 0x05), (1, 0x04), (2, 0x09), (3, 0x08), (5, 0x0d), (7, 0x0c), (8, 0x19)];
    for (bit, opcode) in optional_io {
        let claimed = claims(&log, 1).contains(&opcode);
        assert_eq!(oncs >> bit & 1 == 1, claimed, "ONCS bit {bit}");
    }
    let lpa = id[261];
    let mut has = |lid| {
        matches!(
            admin.send(GetLogPage::new(lid, 4).encode(0), &[]),
            Came::Status(Status::SUCCESS, ..)
        )
    };
    assert_eq!(lpa >> 1 & 1 == 1, has(Lid::COMMAND_EFFECTS));
    assert_eq!(lpa >> 3 & 1 == 1, has(Lid::TELEMETRY_HOST));
    assert_eq!(lpa >> 4 & 1 == 1, has(Lid::PERSISTENT_EVENTS));
    for lid in [Lid::SUPPORTED_LOG_PAGES, Lid::FEATURE_EFFECTS, Lid::MI_EFFECTS] {
        assert_eq!(lpa >> 5 & 1 == 1, has(lid));
    }
}

#[test]
fn no_table_names_a_thing_twice() {
    let unique = |mut codes: Vec<u8>| {
        let all = codes.len();
        codes.sort_unstable();
        codes.dedup();
        assert_eq!(codes.len(), all);
    };
    unique(ADMIN.iter().map(|(opcode, _)| opcode.0).collect());
    unique(IO.iter().map(|(opcode, _)| opcode.0).collect());
    unique(LOGS.iter().map(|(lid, _)| lid.0).collect());
    unique(FEATURES.iter().map(|feature| feature.fid.0).collect());
}

#[test]
fn events_that_are_supported_can_be_asked_for() {
    for kind in KINDS {
        let abilities = SupportedCommands::new(kind, false);
        assert_eq!(abilities.oaes() & !abilities.async_event_mask(), 0, "{kind:?}");
        assert_ne!(abilities.oaes(), 0, "{kind:?}");
    }
}
