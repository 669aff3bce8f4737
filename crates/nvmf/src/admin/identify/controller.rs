//! Properties of a controller: CNS 01h and 06h.

use nvmeof_wire::identify::{
    Controller as Structure, ControllerType, NvmController, cmic, ctratt, frmw, ofcs, sgls, vwc,
};
use nvmeof_wire::properties::Version;
use nvmeof_wire::rdma::DESCRIPTORS;
use nvmeof_wire::{Cqe, SglDescriptor, Sqe, ascii};

use crate::admin::features::{CRITICAL_TEMPERATURE, WARNING_TEMPERATURE};
use crate::controller::Controller;
use crate::limits::{
    ABORTS, ASYNC_EVENTS, DSM_BLOCKS, DSM_RANGE_BLOCKS, DSM_RANGES, ERROR_LOG_ENTRIES,
    MAX_NAMESPACES, WZSL,
};
use crate::spec::TransportKind;
use crate::subsystem::SubsystemKind;

/// Firmware revision: the version of this software, at most eight characters.
pub(crate) const FIRMWARE: &str = env!("CARGO_PKG_VERSION");
const _: () = assert!(FIRMWARE.len() <= 8, "the firmware revision has eight characters");

/// Number of firmware slots; the only slot is the running firmware.
const FIRMWARE_SLOTS: u8 = 1;

/// Recommended Arbitration Burst, as a power of two; the value that most drives report.
const ARBITRATION_BURST: u8 = 6;

/// Entry sizes as powers of two: minimum in the low half, maximum in the high half.
const SQES: u8 = power_of_two_twice(size_of::<Sqe>());
const CQES: u8 = power_of_two_twice(size_of::<Cqe>());

/// Unit of IOCCSZ and IORCSZ in bytes.
const CAPSULE_UNIT: u32 = 16;

/// Entries of the error log, 0's based.
const ELPE: u8 = {
    assert!(ERROR_LOG_ENTRIES >= 1 && ERROR_LOG_ENTRIES <= 256);
    (ERROR_LOG_ENTRIES - 1).to_le_bytes()[0]
};

const fn power_of_two_twice(size: usize) -> u8 {
    let power = size.ilog2().to_le_bytes()[0];
    power << 4 | power
}

/// Identify Controller (Base 5.17.2.1).
///
/// Fields that are not set are 0: not reported, not supported, or reserved for this kind of
/// controller.
pub(super) fn identify(controller: &Controller) -> Structure {
    let mut id = Structure::default();
    common(controller, &mut id);
    match controller.subsystem.kind {
        SubsystemKind::Nvm => nvm(controller, &mut id),
        SubsystemKind::Discovery => id.cntrltype = ControllerType::DISCOVERY.0,
    }
    id
}

/// Sets the fields of every controller.
fn common(controller: &Controller, id: &mut Structure) {
    let subsystem = &controller.subsystem;
    let limits = &controller.limits;
    let abilities = controller.abilities();
    ascii::fill(&mut id.sn, &subsystem.serial);
    ascii::fill(&mut id.mn, &subsystem.model);
    ascii::fill(&mut id.fr, FIRMWARE);
    id.mdts = limits.mdts();
    id.cntlid.set(controller.cntlid);
    id.ver.set(Version::V2_0.into_bits());
    id.oaes.set(abilities.oaes());
    id.ctratt.set(ctratt::HOST_ID_128 | ctratt::TRAFFIC_KEEP_ALIVE);
    id.oacs.set(abilities.oacs());
    id.acl = ABORTS - 1;
    id.aerl = ASYNC_EVENTS - 1;
    id.lpa = abilities.lpa();
    id.elpe = ELPE;
    id.kas.set(limits.kas());
    id.maxcmd.set(limits.queue_depth);
    id.sgls.set(sgl_support(controller));
    id.subnqn = subsystem.nqn.to_field();
}

/// Sets the additional fields of I/O controllers.
fn nvm(controller: &Controller, id: &mut Structure) {
    let limits = &controller.limits;
    id.cntrltype = ControllerType::IO.0;
    id.rab = ARBITRATION_BURST;
    id.cmic = cmic::MULTIPLE_PORTS | cmic::MULTIPLE_CONTROLLERS;
    id.frmw = frmw::SLOT1_READ_ONLY | FIRMWARE_SLOTS << frmw::SLOTS_SHIFT;
    id.wctemp.set(WARNING_TEMPERATURE);
    id.cctemp.set(CRITICAL_TEMPERATURE);
    id.sqes = SQES;
    id.cqes = CQES;
    id.nn.set(controller.namespaces().highest_valid_nsid());
    id.mnan.set(MAX_NAMESPACES);
    id.oncs.set(controller.abilities().oncs());
    id.vwc = vwc::FLUSH_ALL_UNSUPPORTED;
    if controller.reports_volatile_cache() {
        id.vwc |= vwc::PRESENT;
    }
    let capsule = u32::try_from(size_of::<Sqe>()).unwrap_or(u32::MAX);
    id.ioccsz.set(capsule.saturating_add(limits.in_capsule) / CAPSULE_UNIT);
    id.iorcsz.set(u32::try_from(size_of::<Cqe>()).unwrap_or(u32::MAX) / CAPSULE_UNIT);
    // ICDOFF 0: data directly follows the command. FCATT 0: dynamic controllers.
    id.msdbd = descriptors(controller);
    id.ofcs.set(ofcs::DISCONNECT);
}

/// Maximum data blocks per command. Over RDMA the capsule can hold a list of them.
fn descriptors(controller: &Controller) -> u8 {
    let in_capsule = controller.limits.in_capsule as usize / size_of::<SglDescriptor>();
    match controller.transport {
        TransportKind::Tcp | TransportKind::Loop => 1,
        TransportKind::Rdma => u8::try_from(in_capsule).unwrap_or(u8::MAX).clamp(1, DESCRIPTORS),
    }
}

/// Data blocks in the capsule or of the fabric's type, in total at least as long as the data.
fn sgl_support(controller: &Controller) -> u32 {
    let kind = match controller.transport {
        TransportKind::Tcp | TransportKind::Loop => sgls::TRANSPORT,
        TransportKind::Rdma => sgls::KEYED,
    };
    sgls::SUPPORTED | sgls::OFFSET | sgls::LARGER_THAN_TRANSFER | kind
}

/// Identify Controller of the NVM command set (NVM 4.1.5.3).
pub(super) fn nvm_limits(controller: &Controller) -> NvmController {
    NvmController {
        // Verify reads through a buffer of the size of any transfer.
        vsl: controller.limits.mdts(),
        wzsl: WZSL,
        // One less than the maximum of NR, because this field cannot hold it. A host that does not
        // read the field may send that maximum.
        dmrl: u8::try_from(DSM_RANGES).unwrap_or(u8::MAX),
        dmrsl: DSM_RANGE_BLOCKS.into(),
        dmsl: DSM_BLOCKS.into(),
        ..NvmController::default()
    }
}
