//! Controllers for the tests of the admin command set.

use std::sync::Arc;

use nvmeof_wire::Nqn;
use nvmeof_wire::properties::Cc;

use crate::controller::{Controller, ControllerKey, NewController};
use crate::limits::Limits;
use crate::spec::{Access, DeviceId, NamespaceSpec, PortId, SubsystemSpec, TransportKind};
use crate::subsystem::Subsystem;

/// Host Identifier of every fixture controller.
pub(crate) const HOST_ID: [u8; 16] = *b"0123456789abcdef";

/// Keep-alive timeout that the host requested at Connect.
pub(crate) const KATO_MS: u32 = 15_000;

/// A namespace of 1000 blocks of 512 bytes without optional capabilities.
pub(crate) fn namespace(nsid: u32) -> NamespaceSpec {
    NamespaceSpec {
        nsid,
        device: DeviceId(nsid),
        block_size: 512,
        blocks: 1000,
        uuid: [0x11; 16],
        nguid: [0x22; 16],
        eui64: [0x33; 8],
        read_only: false,
        volatile_cache: false,
        deallocate: false,
        deallocate_reads_zero: false,
        write_zeroes: false,
        preferred: Default::default(),
    }
}

/// A namespace with a volatile write cache.
pub(crate) fn cached_namespace(nsid: u32) -> NamespaceSpec {
    NamespaceSpec { volatile_cache: true, ..namespace(nsid) }
}

/// A subsystem with these namespaces.
pub(crate) fn subsystem(name: &str, namespaces: Vec<NamespaceSpec>) -> SubsystemSpec {
    SubsystemSpec {
        nqn: nqn(name),
        serial: "SERIAL0001".to_owned(),
        model: "Model of Test".to_owned(),
        cntlid_min: 1,
        cntlid_max: 100,
        access: Access::AnyHost,
        namespaces,
        quiesce_bound: std::time::Duration::from_secs(10),
    }
}

pub(crate) fn nqn(name: &str) -> Nqn {
    Nqn::new(&format!("nqn.2026-11.org.example:{name}")).unwrap()
}

/// An enabled I/O controller of a subsystem with these namespaces.
pub(crate) fn io_controller(namespaces: Vec<NamespaceSpec>) -> Arc<Controller> {
    let subsystem = Arc::new(Subsystem::new(subsystem("disks", namespaces)));
    connect(&subsystem, Limits::default(), "host")
}

/// An enabled discovery controller.
pub(crate) fn discovery_controller() -> Arc<Controller> {
    connect(&Arc::new(Subsystem::discovery(Nqn::discovery())), Limits::default(), "host")
}

/// An enabled controller of this subsystem, for the host of this name.
pub(crate) fn connect(subsystem: &Arc<Subsystem>, limits: Limits, host: &str) -> Arc<Controller> {
    let new = NewController {
        key: ControllerKey(7),
        host_nqn: nqn(host),
        host_id: HOST_ID,
        port: PortId(1),
        transport: TransportKind::Tcp,
        limits,
        kato_ms: KATO_MS,
        hosts: Arc::default(),
        quiescing: Arc::default(),
    };
    let make = |cntlid| Controller::new(cntlid, Arc::clone(subsystem), Arc::default(), new);
    let controller = subsystem.add_controller(make).unwrap();
    controller.set_cc(Cc::new().with_en(true).with_iosqes(6).with_iocqes(4)).unwrap();
    controller
}
