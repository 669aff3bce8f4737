//! Variants of the target's configuration, between which a run changes.

use std::collections::BTreeSet;
use std::rc::Rc;

use nvmeof_nvmf::{
    Access, AddressFamily, DeviceId, Limits, NamespaceSpec, PortId, PortSpec, ReferralSpec,
    SubsystemSpec, TargetSpec, TransportKind,
};
use nvmeof_wire::Nqn;

pub(super) const SUBSYSTEM: &str = "nqn.2026-11.io.nvmeof-tgt:one";
pub(super) const PRIVATE: &str = "nqn.2026-11.io.nvmeof-tgt:private";
pub(super) const HOST: &str =
    "nqn.2014-08.org.nvmexpress:uuid:11111111-1111-1111-1111-111111111111";
pub(super) const STRANGER: &str = "nqn.2026-11.org.example:stranger";
pub(super) const HOST_ID: [u8; 16] = [0x11; 16];
pub(super) const TCP: PortId = PortId(1);
pub(super) const RDMA: PortId = PortId(2);

/// Number of variants; each is valid.
pub(super) const VARIANTS: u8 = 8;

pub(super) fn nqn(name: &str) -> Nqn {
    Nqn::new(name).expect("a name")
}

pub(super) fn limits() -> Limits {
    Limits {
        max_transfer: 128 << 10,
        queue_depth: 16,
        io_queues: 3,
        in_capsule: 4096,
        connections: 6,
        ..Limits::default()
    }
}

fn namespace(nsid: u32, block_size: u32, blocks: u64) -> NamespaceSpec {
    let unique = u8::try_from(nsid % 251).expect("small") + 1;
    NamespaceSpec {
        nsid,
        device: DeviceId(nsid + 100),
        block_size,
        blocks,
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

fn port(id: PortId, transport: TransportKind) -> PortSpec {
    PortSpec {
        id,
        transport,
        family: AddressFamily::Ipv4,
        address: "0.0.0.0".to_owned(),
        service: "4420".to_owned(),
        v6_only: false,
        subsystems: None,
        folds_always: true,
    }
}

thread_local! {
    /// Each variant, created once.
    static SPECS: Vec<Rc<TargetSpec>> = (0..VARIANTS).map(|variant| Rc::new(make(variant))).collect();
}

/// Returns the variant of this number, below [`VARIANTS`].
pub(super) fn spec(variant: u8) -> Rc<TargetSpec> {
    SPECS.with(|specs| Rc::clone(&specs[usize::from(variant)]))
}

/// Namespaces 1 (512 bytes), 2 (4096 bytes, the maximum size), 3 (read only), 4 (few features) and
/// 1024.
fn make(variant: u8) -> TargetSpec {
    let largest = ((1 << 63) - 1) / 4096;
    let read_only = NamespaceSpec { read_only: true, ..namespace(3, 512, 64) };
    let plain = NamespaceSpec {
        deallocate: false,
        deallocate_reads_zero: false,
        write_zeroes: false,
        preferred: Default::default(),
        volatile_cache: false,
        uuid: [0; 16],
        nguid: [0; 16],
        eui64: [0; 8],
        ..namespace(4, 4096, 1)
    };
    let namespaces = vec![
        namespace(1, 512, 1000),
        namespace(2, 4096, largest),
        read_only,
        plain,
        namespace(1024, 65_536, 100),
    ];
    let subsystem = |name, serial: &str, namespaces| SubsystemSpec {
        nqn: nqn(name),
        serial: serial.to_owned(),
        model: "a model".to_owned(),
        cntlid_min: 1,
        cntlid_max: 3,
        access: Access::AnyHost,
        namespaces,
        quiesce_bound: std::time::Duration::from_secs(10),
    };
    let mut private = subsystem(PRIVATE, "SERIAL0002", vec![namespace(7, 512, 8)]);
    private.access = Access::Hosts(BTreeSet::from([nqn(HOST)]));
    let mut spec = TargetSpec {
        subsystems: vec![subsystem(SUBSYSTEM, "SERIAL0001", namespaces), private],
        ports: vec![port(TCP, TransportKind::Tcp), port(RDMA, TransportKind::Rdma)],
        ..TargetSpec::default()
    };
    match variant {
        1 => drop(spec.subsystems[0].namespaces.remove(1)),
        2 => {
            spec.subsystems[0].namespaces[0].blocks = 10;
            spec.subsystems[0].namespaces.push(namespace(9, 1024, 3));
        }
        3 => drop(spec.subsystems.remove(0)),
        4 => spec.subsystems[1].access = Access::Hosts(BTreeSet::from([nqn(STRANGER)])),
        5 => drop(spec.ports.remove(0)),
        6 => {
            spec.referrals.push(ReferralSpec {
                transport: TransportKind::Tcp,
                family: AddressFamily::Ipv6,
                address: "::1".to_owned(),
                service: "8009".to_owned(),
                nqn: Nqn::discovery(),
            });
            spec.subsystems[0].namespaces[0].read_only = true;
        }
        7 => {
            spec.subsystems[0].serial = "SERIAL0003".to_owned();
            spec.subsystems[0].namespaces[2].volatile_cache = false;
        }
        _ => {}
    }
    spec
}

/// Returns an invalid configuration.
pub(super) fn broken(how: u8) -> TargetSpec {
    let mut spec = TargetSpec::clone(&spec(0));
    let subsystem = &mut spec.subsystems[0];
    match how % 8 {
        0 => subsystem.namespaces[1].nsid = 1,
        1 => subsystem.namespaces[0].nsid = 0,
        2 => subsystem.namespaces[0].block_size = 513,
        3 => subsystem.namespaces[1].blocks = u64::MAX,
        4 => subsystem.serial.clear(),
        5 => subsystem.cntlid_min = 0,
        6 => spec.subsystems[1].nqn = nqn(SUBSYSTEM),
        _ => spec.ports[1].id = TCP,
    }
    spec
}
