//! A host without a network: queues of a target and the commands to drive them.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use nvmeof_wire::fabrics::{
    CNTLID_DYNAMIC, Connect, ConnectData, ConnectResult, PropertyGet, PropertySet, PropertySize,
};
use nvmeof_wire::features::Fid;
use nvmeof_wire::opcode::AdminOpcode;
use nvmeof_wire::properties::{Cc, Csts, offset};
use nvmeof_wire::zerocopy::IntoBytes;
use nvmeof_wire::{Cqe, Nqn, Sgl, Sqe, Status};

use crate::{
    Access, AddressFamily, DeviceId, Disposition, IoCommand, Limits, NamespaceSpec, Nanos, PortId,
    PortSpec, Queue, SubsystemSpec, Target, TargetSpec, TransportKind,
};

pub(super) const SECOND: Nanos = 1_000_000_000;
pub(super) const SUBSYSTEM: &str = "nqn.2026-11.io.nvmeof-tgt:one";
pub(super) const PRIVATE: &str = "nqn.2026-11.io.nvmeof-tgt:private";
pub(super) const HOST: &str =
    "nqn.2014-08.org.nvmexpress:uuid:11111111-1111-1111-1111-111111111111";
pub(super) const STRANGER: &str = "nqn.2026-11.org.example:stranger";
/// Maximum time of a command at a device.
pub(super) const BOUND: Duration = Duration::from_secs(10);
pub(super) const HOST_ID: [u8; 16] = [0x11; 16];
pub(super) const PORT: PortId = PortId(1);
pub(super) const RDMA_PORT: PortId = PortId(2);

pub(super) fn nqn(name: &str) -> Nqn {
    Nqn::new(name).unwrap()
}

/// 1000 blocks of 512 bytes with every capability.
pub(super) fn namespace(nsid: u32) -> NamespaceSpec {
    let unique = u8::try_from(nsid % 251).unwrap() + 1;
    NamespaceSpec {
        nsid,
        device: DeviceId(nsid + 100),
        block_size: 512,
        blocks: 1000,
        uuid: [unique; 16],
        nguid: [unique; 16],
        eui64: [unique; 8],
        read_only: false,
        volatile_cache: true,
        deallocate: true,
        deallocate_reads_zero: true,
        write_zeroes: true,
        preferred: Default::default(),
    }
}

pub(super) fn subsystem(name: &str, namespaces: Vec<NamespaceSpec>) -> SubsystemSpec {
    SubsystemSpec {
        nqn: nqn(name),
        serial: "SERIAL0001".to_owned(),
        model: "a model".to_owned(),
        cntlid_min: 1,
        cntlid_max: 0xffef,
        access: Access::AnyHost,
        namespaces,
        quiesce_bound: BOUND,
    }
}

pub(super) fn port(id: PortId, transport: TransportKind) -> PortSpec {
    PortSpec {
        id,
        transport,
        family: AddressFamily::Ipv4,
        address: "127.0.0.1".to_owned(),
        service: format!("{}", 4419 + id.0),
        v6_only: false,
        subsystems: None,
        folds_always: false,
    }
}

/// Two subsystems, a TCP port and an RDMA port.
///
/// The open subsystem has namespaces 1 (512 bytes), 2 (4096 bytes), 3 (read-only) and 4 (no
/// deallocate). Only [`HOST`] may use the other one.
pub(super) fn spec() -> TargetSpec {
    let large = NamespaceSpec { block_size: 4096, blocks: 1 << 20, ..namespace(2) };
    let read_only = NamespaceSpec { read_only: true, ..namespace(3) };
    let plain = NamespaceSpec {
        deallocate: false,
        deallocate_reads_zero: false,
        write_zeroes: false,
        preferred: Default::default(),
        ..namespace(4)
    };
    let open = subsystem(SUBSYSTEM, vec![namespace(1), large, read_only, plain]);
    let mut private = subsystem(PRIVATE, Vec::new());
    private.access = Access::Hosts(BTreeSet::from([nqn(HOST)]));
    TargetSpec {
        subsystems: vec![open, private],
        ports: vec![port(PORT, TransportKind::Tcp), port(RDMA_PORT, TransportKind::Rdma)],
        ..TargetSpec::default()
    }
}

pub(super) fn limits() -> Limits {
    Limits { max_transfer: 128 << 10, queue_depth: 64, io_queues: 4, ..Limits::default() }
}

pub(super) fn target() -> Arc<Target> {
    target_with(limits())
}

pub(super) fn target_with(limits: Limits) -> Arc<Target> {
    let target = Target::new(limits);
    target.apply(spec()).unwrap();
    target
}

/// Completion of a command, with its data.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) cqe: Cqe,
    pub(super) data: Vec<u8>,
}

impl Answer {
    /// SCT and SC.
    pub(super) fn code(&self) -> Status {
        self.cqe.status().code()
    }

    pub(super) fn result(&self) -> u64 {
        self.cqe.result.get()
    }

    #[track_caller]
    pub(super) fn ok(self) -> Self {
        assert!(self.cqe.status().is_success(), "{}", self.cqe.status());
        self
    }

    /// Asserts that it failed with this code and Do Not Retry.
    #[track_caller]
    pub(super) fn fails(&self, code: Status) {
        assert_eq!(self.cqe.status(), code.with_dnr(), "{}", self.cqe.status());
    }

    /// Asserts that it failed with this code and may be retried.
    #[track_caller]
    pub(super) fn fails_for_now(&self, code: Status) {
        assert_eq!(self.cqe.status(), code, "{}", self.cqe.status());
    }
}

/// The host side of a queue.
#[derive(Debug)]
pub(super) struct Link {
    pub(super) queue: Queue,
    pub(super) now: Nanos,
    next_cid: u16,
}

impl Link {
    pub(super) fn new(target: &Arc<Target>, port: PortId) -> Self {
        Self { queue: Queue::new(target, port, "127.0.0.1:50000", 0), now: 0, next_cid: 0 }
    }

    pub(super) fn cid(&mut self) -> u16 {
        self.next_cid = self.next_cid.wrapping_add(1);
        self.next_cid
    }

    /// Sends a command unchanged, except for a new identifier.
    pub(super) fn send(&mut self, mut sqe: Sqe) -> Disposition {
        sqe.cid.set(self.cid());
        self.queue.handle_command(&sqe, 0, self.now)
    }

    /// Runs a command that completes immediately, or after its data or its flush.
    ///
    /// `data` is transferred as the fabric does.
    #[track_caller]
    pub(super) fn run(&mut self, mut sqe: Sqe, data: &[u8]) -> Answer {
        let cid = self.cid();
        sqe.cid.set(cid);
        let answer = match self.queue.handle_command(&sqe, 0, self.now) {
            Disposition::Receive { len, .. } => {
                let len = usize::try_from(len).unwrap();
                match self.queue.handle_data(&sqe, &data[..len], self.now) {
                    // Another association of the host is ending on another thread.
                    Disposition::Held => answer(self.connected_later()),
                    other => answer(other),
                }
            }
            Disposition::Flush { result, .. } => {
                answer(Disposition::Respond(self.queue.complete_flush(cid, result, true)))
            }
            Disposition::Held => {
                let response = self.queue.poll_disconnect().expect("an answer");
                answer(Disposition::Respond(response))
            }
            Disposition::Send { len, sgl } => {
                assert!(len > 0 && len <= sgl.length());
                self.filled(&sqe, len)
            }
            other => answer(other),
        };
        assert_eq!(answer.cqe.cid.get(), cid);
        answer
    }

    /// The disposition of a Connect that has to wait.
    fn connected_later(&mut self) -> Disposition {
        loop {
            // No command of the host's other associations is at a device.
            drop(self.queue.poll_barrier());
            if let Some((_, disposition)) = self.queue.poll_connect(self.now) {
                return disposition;
            }
            std::thread::yield_now();
        }
    }

    /// Provides a used buffer for the data of a command.
    pub(super) fn filled(&mut self, sqe: &Sqe, len: u32) -> Answer {
        let mut data = vec![0xee; usize::try_from(len).unwrap()];
        let cqe = self.queue.fill(sqe, &mut data, self.now).cqe;
        if !cqe.status().is_success() {
            data.clear();
        }
        Answer { cqe, data }
    }

    /// Sends a command that must result in a device command.
    #[track_caller]
    pub(super) fn io(&mut self, sqe: Sqe) -> IoCommand {
        match self.send(sqe) {
            Disposition::Io(io) => io,
            other => panic!("no device command: {other:?}"),
        }
    }

    pub(super) fn get(&mut self, property: u32) -> u64 {
        let size = if property == offset::CAP { PropertySize::Eight } else { PropertySize::Four };
        self.run(PropertyGet { size, offset: property }.encode(0), &[]).ok().result()
    }

    pub(super) fn csts(&mut self) -> Csts {
        Csts::from_bits(u32::try_from(self.get(offset::CSTS)).unwrap())
    }

    pub(super) fn set_cc(&mut self, cc: Cc) -> Answer {
        self.run(set_cc(cc), &[])
    }

    #[track_caller]
    pub(super) fn enable(&mut self) {
        self.set_cc(enabled()).ok();
        assert!(self.csts().rdy());
    }
}

/// The completion in a disposition.
#[track_caller]
pub(super) fn answer(disposition: Disposition) -> Answer {
    match disposition {
        Disposition::Respond(response) => Answer { cqe: response.cqe, data: Vec::new() },
        other => panic!("no answer: {other:?}"),
    }
}

pub(super) fn set_cc(cc: Cc) -> Sqe {
    let value = u64::from(cc.into_bits());
    PropertySet { size: PropertySize::Four, offset: offset::CC, value }.encode(0)
}

pub(super) fn enabled() -> Cc {
    Cc::new().with_en(true).with_iosqes(6).with_iocqes(4)
}

/// Set Features with this CDW11.
pub(super) fn set_feature(fid: Fid, cdw11: u32) -> Sqe {
    Sqe::admin(AdminOpcode::SET_FEATURES, 0, 0).with_cdw10([u32::from(fid.0), cdw11])
}

/// Get Features for the current value.
pub(super) fn get_feature(fid: Fid) -> Sqe {
    Sqe::admin(AdminOpcode::GET_FEATURES, 0, 0).with_cdw10([u32::from(fid.0)])
}

/// A Connect and its data, for modification before it is sent.
#[derive(Clone, Debug)]
pub(super) struct ConnectRequest {
    pub(super) command: Connect,
    pub(super) host_id: [u8; 16],
    pub(super) cntlid: u16,
    pub(super) subsystem: Nqn,
    pub(super) host: Nqn,
}

impl ConnectRequest {
    /// An admin queue of 32 entries, flow control on, no keep-alive.
    pub(super) fn admin(subsystem: &str) -> Self {
        Self {
            command: Connect {
                qid: 0,
                entries: 32,
                priority: 0,
                disable_sq_flow_control: false,
                queue_deletion: false,
                kato_ms: 0,
            },
            host_id: HOST_ID,
            cntlid: CNTLID_DYNAMIC,
            subsystem: nqn(subsystem),
            host: nqn(HOST),
        }
    }

    /// An I/O queue of 64 entries.
    pub(super) fn io(cntlid: u16, qid: u16) -> Self {
        let mut request = Self::admin(SUBSYSTEM);
        request.cntlid = cntlid;
        request.command.qid = qid;
        request.command.entries = 64;
        request
    }

    pub(super) fn data(&self) -> Vec<u8> {
        ConnectData::new(self.host_id, self.cntlid, &self.subsystem, &self.host).as_bytes().to_vec()
    }

    pub(super) fn sqe(&self) -> Sqe {
        self.command.encode(0).with_sgl(Sgl::Transport { length: 1024 })
    }

    #[track_caller]
    pub(super) fn send(&self, link: &mut Link) -> Answer {
        link.run(self.sqe(), &self.data())
    }
}

/// An admin queue after Connect, and the ID of its controller.
#[track_caller]
pub(super) fn connect_admin(target: &Arc<Target>, request: &ConnectRequest) -> (Link, u16) {
    let mut link = Link::new(target, PORT);
    let answer = request.send(&mut link).ok();
    let cntlid = ConnectResult::parse(answer.result()).cntlid;
    (link, cntlid)
}

/// An admin queue whose controller is enabled.
#[track_caller]
pub(super) fn enabled_admin(target: &Arc<Target>) -> (Link, u16) {
    let (mut link, cntlid) = connect_admin(target, &ConnectRequest::admin(SUBSYSTEM));
    link.enable();
    (link, cntlid)
}

/// A connected I/O queue of this controller.
#[track_caller]
pub(super) fn connect_io(target: &Arc<Target>, cntlid: u16, qid: u16) -> Link {
    let mut link = Link::new(target, PORT);
    ConnectRequest::io(cntlid, qid).send(&mut link).ok();
    link
}
