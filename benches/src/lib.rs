//! Support for the benchmarks: a target with one namespace, and the commands of a host.
//!
//! The benchmarks themselves are in `benches/`. `parse` measures the cost of parsing and encoding,
//! and `turn` the cost of one command from its capsule to its response. `stripe` measures the cost
//! of a stripe compared with its members. `nvmeof-pacing` has the benchmark of admission alone.
//! `cargo xtask bench e2e` measures the whole system over real sockets.

use std::sync::Arc;

use nvmeof_nvmf::{
    Access, AddressFamily, ApplyError, DeviceId, Limits, NamespaceSpec, PortId, PortSpec,
    SubsystemSpec, Target, TargetSpec, TransportKind,
};
use nvmeof_wire::fabrics::{Connect, ConnectData, PropertySet, PropertySize};
use nvmeof_wire::nvm::BlockIo;
use nvmeof_wire::opcode::IoOpcode;
use nvmeof_wire::properties::offset;
use nvmeof_wire::zerocopy::IntoBytes;
use nvmeof_wire::{Nqn, Sgl, Sqe};

/// Bytes of a logical block.
pub const BLOCK: u32 = 4096;
/// Logical blocks of the namespace.
pub const BLOCKS: u64 = 16 << 10;
/// The device behind the namespace.
pub const DEVICE: DeviceId = DeviceId(0);
/// Port for hosts.
pub const PORT: PortId = PortId(1);
/// Entries of a queue.
pub const DEPTH: u16 = 128;

const NSID: u32 = 1;
/// CC as Linux writes it: IOCQES 4, IOSQES 6, EN.
const CC_ENABLE: u64 = 0x0046_0001;

/// Creates a target with one subsystem, one namespace and one port on the loopback fabric.
///
/// # Errors
/// The target rejects the configuration.
pub fn target() -> Result<Arc<Target>, ApplyError> {
    let namespace = NamespaceSpec {
        nsid: NSID,
        device: DEVICE,
        block_size: BLOCK,
        blocks: BLOCKS,
        uuid: [1; 16],
        nguid: [2; 16],
        eui64: [3; 8],
        read_only: false,
        volatile_cache: false,
        deallocate: true,
        deallocate_reads_zero: true,
        write_zeroes: true,
        preferred: Default::default(),
    };
    let subsystem = SubsystemSpec {
        nqn: nqn("nqn.2026-11.io.nvmeof-tgt:bench"),
        serial: "1".to_owned(),
        model: "bench".to_owned(),
        cntlid_min: 1,
        cntlid_max: 0xffef,
        access: Access::AnyHost,
        namespaces: vec![namespace],
        quiesce_bound: std::time::Duration::ZERO,
    };
    let port = PortSpec {
        id: PORT,
        transport: TransportKind::Loop,
        family: AddressFamily::Loop,
        address: "here".to_owned(),
        service: "1".to_owned(),
        v6_only: false,
        subsystems: None,
        folds_always: false,
    };
    let target = Target::new(Limits { queue_depth: DEPTH, ..Limits::default() });
    target.apply(TargetSpec {
        subsystems: vec![subsystem],
        ports: vec![port],
        ..TargetSpec::default()
    })?;
    Ok(target)
}

/// Returns Connect for queue `qid`, and its in-capsule data.
#[must_use]
pub fn connect(qid: u16, cntlid: u16) -> (Sqe, Vec<u8>) {
    let connect = Connect {
        qid,
        entries: u32::from(if qid == 0 { 32 } else { DEPTH }),
        priority: 0,
        disable_sq_flow_control: true,
        queue_deletion: false,
        kato_ms: 0,
    };
    let subsystem = nqn("nqn.2026-11.io.nvmeof-tgt:bench");
    let host = nqn("nqn.2026-11.io.nvmeof-tgt:host");
    let data = ConnectData::new([7; 16], cntlid, &subsystem, &host).as_bytes().to_vec();
    let sgl = Sgl::InCapsule { offset: 0, length: 1024 };
    (connect.encode(0).with_sgl(sgl), data)
}

/// Returns the command that enables the controller, for its admin queue.
#[must_use]
pub fn enable() -> Sqe {
    PropertySet { size: PropertySize::Four, offset: offset::CC, value: CC_ENABLE }.encode(0)
}

/// Returns a read of one block.
#[must_use]
pub fn read(cid: u16, lba: u64) -> Sqe {
    let sgl = Sgl::Transport { length: BLOCK };
    BlockIo::new(lba, 1).encode(IoOpcode::READ, cid, NSID).with_sgl(sgl)
}

/// Returns a write of one block, with its data in the capsule.
#[must_use]
pub fn write(cid: u16, lba: u64) -> Sqe {
    let sgl = Sgl::InCapsule { offset: 0, length: BLOCK };
    BlockIo::new(lba, 1).encode(IoOpcode::WRITE, cid, NSID).with_sgl(sgl)
}

fn nqn(name: &str) -> Nqn {
    Nqn::new(name).unwrap_or_else(|error| panic!("{name}: {error}"))
}
