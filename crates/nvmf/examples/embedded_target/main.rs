//! A target inside a program: one subsystem on a RAM device, and a host in the same process.
//!
//! ```text
//! cargo run -p nvmeof-nvmf --example embedded_target
//! ```
//!
//! `nvmeof-nvmf` does no I/O: the program around it moves every command between the fabric, the
//! [`Queue`](nvmeof_nvmf::Queue) and the device. The daemon's reactor does this for all connections
//! of a core, and `connection.rs` for one. This file is the configuration and the host.

mod connection;

use std::error::Error;
use std::time::Duration;

use nvmeof_core::block::{BlockDevice, RamDevice};
use nvmeof_core::dma::{ChunkPool, CorePool, PoolConfig};
use nvmeof_nvmf::{
    Access, AddressFamily, DeviceId, Limits, NamespaceSpec, PortId, PortSpec, SubsystemSpec,
    Target, TargetSpec, TransportKind,
};
use nvmeof_wire::fabrics::{
    CNTLID_DYNAMIC, Connect, ConnectData, ConnectResult, PropertySet, PropertySize,
};
use nvmeof_wire::identify::{Cns, Controller, Identify};
use nvmeof_wire::nvm::BlockIo;
use nvmeof_wire::opcode::IoOpcode;
use nvmeof_wire::properties::{Cc, offset};
use nvmeof_wire::zerocopy::{FromBytes, IntoBytes};
use nvmeof_wire::{Nqn, Sgl, Sqe, ascii};

use connection::Connection;

const SUBSYSTEM: &str = "nqn.2026-11.org.example:embedded";
const HOST: &str = "nqn.2026-11.org.example:host";
const PORT: PortId = PortId(1);
const NSID: u32 = 1;
const BLOCK: u32 = 4096;

#[expect(clippy::print_stdout, reason = "a person reads it")]
fn main() -> Result<(), Box<dyn Error>> {
    let device = RamDevice::new("ram", 1 << 20, BLOCK)?;
    let target = Target::new(Limits::default());
    target.apply(configuration(&device)?)?;
    // Data moves only in buffers of a pool, whose memory fabrics and drives can register.
    let chunks = ChunkPool::new(PoolConfig { huge_pages: false, ..PoolConfig::default() })?;
    let pool = CorePool::new(&chunks);

    println!("Connect the admin queue");
    let mut admin = Connection::open(&target, PORT, &device, &pool)?;
    let (sqe, data) = connect(0, CNTLID_DYNAMIC)?;
    let result = admin.run(sqe, &data)?.cqe.result.get();
    let cntlid = ConnectResult::parse(result).cntlid;
    println!("Enable controller {cntlid}");
    let value = Cc::new().with_en(true).with_iosqes(6).with_iocqes(4).into_bits().into();
    let enable = PropertySet { size: PropertySize::Four, offset: offset::CC, value };
    admin.run(enable.encode(0), &[])?;
    println!("Identify Controller");
    let sgl = Sgl::Transport { length: 4096 };
    let delivery = admin.run(Identify::new(Cns::CONTROLLER, 0).encode(0).with_sgl(sgl), &[])?;
    let identity =
        Controller::read_from_bytes(&delivery.data).map_err(|error| error.to_string())?;
    println!("  model: {}", ascii::text(&identity.mn).unwrap_or("?").trim());

    println!("Connect an I/O queue");
    let mut io = Connection::open(&target, PORT, &device, &pool)?;
    let (sqe, data) = connect(1, cntlid)?;
    io.run(sqe, &data)?;
    println!("Write block 7");
    let sgl = Sgl::Transport { length: BLOCK };
    let block_io = |opcode| BlockIo::new(7, 1).encode(opcode, 0, NSID).with_sgl(sgl);
    let mut block = b"hello".to_vec();
    block.resize(BLOCK as usize, b'.');
    // The data is not in the capsule: the target fetches it when it has a buffer for it.
    io.host().offer(0, block.clone());
    io.run(block_io(IoOpcode::WRITE), &[])?;
    println!("Read block 7");
    let delivery = io.run(block_io(IoOpcode::READ), &[])?;
    println!("  data: {}", String::from_utf8_lossy(&delivery.data[..16]));
    assert_eq!(delivery.data, block, "the block as it was written");
    Ok(())
}

/// Returns Connect for queue `qid` of controller `cntlid`, and its in-capsule data.
fn connect(qid: u16, cntlid: u16) -> Result<(Sqe, Vec<u8>), Box<dyn Error>> {
    let connect = Connect {
        qid,
        entries: 32,
        priority: 0,
        disable_sq_flow_control: true,
        queue_deletion: false,
        kato_ms: 0,
    };
    let (subsystem, host) = (Nqn::new(SUBSYSTEM)?, Nqn::new(HOST)?);
    let data = ConnectData::new([1; 16], cntlid, &subsystem, &host).as_bytes().to_vec();
    Ok((connect.encode(0).with_sgl(Sgl::InCapsule { offset: 0, length: 1024 }), data))
}

/// Returns the desired state of the target. Later states can be applied while it serves hosts.
fn configuration(device: &RamDevice) -> Result<TargetSpec, Box<dyn Error>> {
    let info = device.info();
    let namespace = NamespaceSpec {
        nsid: NSID,
        // A number of this program, which every I/O command carries.
        device: DeviceId(0),
        block_size: info.block_size,
        blocks: info.size / u64::from(info.block_size),
        uuid: [1; 16],
        nguid: [1; 16],
        eui64: [1; 8],
        read_only: info.read_only,
        volatile_cache: info.volatile_cache,
        deallocate: info.deallocate,
        deallocate_reads_zero: info.deallocate_reads_zero,
        write_zeroes: info.write_zeroes,
        preferred: info.geometry.to_blocks(info.block_size),
    };
    let subsystem = SubsystemSpec {
        nqn: Nqn::new(SUBSYSTEM)?,
        serial: "0001".to_owned(),
        model: "embedded target".to_owned(),
        cntlid_min: 1,
        cntlid_max: 0xffef,
        access: Access::AnyHost,
        namespaces: vec![namespace],
        quiesce_bound: Duration::ZERO,
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
    Ok(TargetSpec { subsystems: vec![subsystem], ports: vec![port], ..TargetSpec::default() })
}
