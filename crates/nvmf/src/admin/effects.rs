//! What this target implements, in one table.
//!
//! Identify (ONCS, OACS, LPA, OAES), the log pages about support and effects, and the dispatch of admin
//! and I/O commands all ask here, so they cannot disagree. A command, log page or feature that is added
//! gets a line in its table; what has none is refused.

use nvmeof_wire::opcode::{AdminOpcode, IoOpcode};

use crate::controller::Event;
use crate::subsystem::SubsystemKind;

/// Entries of each table that is indexed by an opcode or identifier byte.
pub(crate) const CODES: usize = 256;

/// CSUPP: the command is supported (Base 5.16.1.6).
pub(crate) const SUPPORTED: u32 = 1 << 0;
/// LBCC: the command may change logical block content.
const CHANGES_BLOCKS: u32 = 1 << 1;
/// Scope of a command or feature: one namespace.
const SCOPE_NAMESPACE: u32 = 1 << 20;
/// Scope of a command or feature: the controller.
const SCOPE_CONTROLLER: u32 = 1 << 21;

/// Kinds of controller that have something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum On {
    Io,
    Discovery,
    Both,
}

impl On {
    fn has(self, kind: SubsystemKind) -> bool {
        match self {
            Self::Io => kind == SubsystemKind::Nvm,
            Self::Discovery => kind == SubsystemKind::Discovery,
            Self::Both => true,
        }
    }
}

/// Admin commands. The fabrics commands are no part of it: their support is not reported in a log.
const ADMIN: [(AdminOpcode, On); 7] = [
    (AdminOpcode::GET_LOG_PAGE, On::Both),
    (AdminOpcode::IDENTIFY, On::Both),
    (AdminOpcode::ABORT, On::Both),
    (AdminOpcode::SET_FEATURES, On::Both),
    (AdminOpcode::GET_FEATURES, On::Both),
    (AdminOpcode::ASYNC_EVENT_REQUEST, On::Both),
    (AdminOpcode::KEEP_ALIVE, On::Both),
];

/// I/O commands and their effects beside [`SUPPORTED`] and the scope.
const IO: [(IoOpcode, u32); 7] = [
    (IoOpcode::FLUSH, 0),
    (IoOpcode::WRITE, CHANGES_BLOCKS),
    (IoOpcode::READ, 0),
    (IoOpcode::COMPARE, 0),
    (IoOpcode::WRITE_ZEROES, CHANGES_BLOCKS),
    (IoOpcode::DATASET_MANAGEMENT, CHANGES_BLOCKS),
    (IoOpcode::VERIFY, 0),
];

/// Log page identifiers (Base 5.16.1, Figure 202).
pub(crate) mod lid {
    pub(crate) const SUPPORTED_LOG_PAGES: u8 = 0x00;
    pub(crate) const ERROR_INFORMATION: u8 = 0x01;
    pub(crate) const SMART: u8 = 0x02;
    pub(crate) const FIRMWARE_SLOT: u8 = 0x03;
    pub(crate) const CHANGED_NAMESPACES: u8 = 0x04;
    pub(crate) const COMMAND_EFFECTS: u8 = 0x05;
    pub(crate) const TELEMETRY_HOST: u8 = 0x07;
    pub(crate) const PERSISTENT_EVENT: u8 = 0x0d;
    pub(crate) const FEATURE_EFFECTS: u8 = 0x12;
    pub(crate) const MI_EFFECTS: u8 = 0x13;
    pub(crate) const DISCOVERY: u8 = 0x70;
}

const LOGS: [(u8, On); 9] = [
    (lid::SUPPORTED_LOG_PAGES, On::Both),
    (lid::ERROR_INFORMATION, On::Both),
    (lid::SMART, On::Io),
    (lid::FIRMWARE_SLOT, On::Io),
    (lid::CHANGED_NAMESPACES, On::Io),
    (lid::COMMAND_EFFECTS, On::Both),
    (lid::FEATURE_EFFECTS, On::Both),
    (lid::MI_EFFECTS, On::Both),
    (lid::DISCOVERY, On::Discovery),
];

/// Feature identifiers (Base 5.27.1, Figure 317).
pub(crate) mod fid {
    pub(crate) const ARBITRATION: u8 = 0x01;
    pub(crate) const POWER_MANAGEMENT: u8 = 0x02;
    pub(crate) const TEMPERATURE_THRESHOLD: u8 = 0x04;
    pub(crate) const ERROR_RECOVERY: u8 = 0x05;
    pub(crate) const VOLATILE_WRITE_CACHE: u8 = 0x06;
    pub(crate) const NUMBER_OF_QUEUES: u8 = 0x07;
    pub(crate) const WRITE_ATOMICITY: u8 = 0x0a;
    pub(crate) const ASYNC_EVENT_CONFIG: u8 = 0x0b;
    pub(crate) const TIMESTAMP: u8 = 0x0e;
    pub(crate) const KEEP_ALIVE_TIMER: u8 = 0x0f;
    pub(crate) const HOST_IDENTIFIER: u8 = 0x81;
}

/// A feature: what Get Features with SEL = 3 says of it. None is saveable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Feature {
    /// Its identifier.
    pub(crate) fid: u8,
    /// Set Features may change it.
    pub(crate) changeable: bool,
    /// It belongs to a namespace, else to the controller.
    pub(crate) per_namespace: bool,
    on: On,
}

const fn feature(fid: u8, on: On) -> Feature {
    Feature { fid, changeable: true, per_namespace: false, on }
}

const FEATURES: [Feature; 10] = [
    feature(fid::ARBITRATION, On::Io),
    feature(fid::POWER_MANAGEMENT, On::Io),
    feature(fid::TEMPERATURE_THRESHOLD, On::Io),
    Feature { per_namespace: true, ..feature(fid::ERROR_RECOVERY, On::Io) },
    feature(fid::VOLATILE_WRITE_CACHE, On::Io),
    feature(fid::NUMBER_OF_QUEUES, On::Io),
    feature(fid::WRITE_ATOMICITY, On::Io),
    feature(fid::ASYNC_EVENT_CONFIG, On::Both),
    feature(fid::KEEP_ALIVE_TIMER, On::Both),
    Feature { changeable: false, ..feature(fid::HOST_IDENTIFIER, On::Io) },
];

/// Does a controller of this kind take the admin command? (7Fh, fabrics, is another matter.)
pub(crate) fn has_admin_command(kind: SubsystemKind, opcode: AdminOpcode) -> bool {
    ADMIN.iter().any(|(known, on)| *known == opcode && on.has(kind))
}

/// Do I/O queues take the command?
pub(crate) fn has_io_command(opcode: IoOpcode) -> bool {
    IO.iter().any(|(known, _)| *known == opcode)
}

/// Does a controller of this kind have the log page?
pub(crate) fn has_log_page(kind: SubsystemKind, lid: u8) -> bool {
    LOGS.iter().any(|(known, on)| *known == lid && on.has(kind))
}

/// The feature, if a controller of this kind has it.
pub(crate) fn find_feature(kind: SubsystemKind, fid: u8) -> Option<&'static Feature> {
    FEATURES.iter().find(|feature| feature.fid == fid && feature.on.has(kind))
}

/// Effects of an admin command, 0 if it is not there (Base 5.16.1.6, Figure 211).
pub(crate) fn admin_effects(kind: SubsystemKind, opcode: u8) -> u32 {
    if has_admin_command(kind, AdminOpcode(opcode)) { SUPPORTED | SCOPE_CONTROLLER } else { 0 }
}

/// Effects of an I/O command, 0 if it is not there.
pub(crate) fn io_effects(kind: SubsystemKind, opcode: u8) -> u32 {
    let found = IO.iter().find(|(known, _)| known.0 == opcode);
    match (kind, found) {
        (SubsystemKind::Nvm, Some((_, effects))) => SUPPORTED | SCOPE_NAMESPACE | effects,
        _ => 0,
    }
}

/// Effects of a feature, 0 if it is not there (Base 5.16.1.18).
pub(crate) fn feature_effects(kind: SubsystemKind, fid: u8) -> u32 {
    match find_feature(kind, fid) {
        Some(Feature { per_namespace: true, .. }) => SUPPORTED | SCOPE_NAMESPACE,
        Some(_) => SUPPORTED | SCOPE_CONTROLLER,
        None => 0,
    }
}

/// Bits set for what is there.
fn bits(table: &[(u32, bool)]) -> u32 {
    table.iter().filter(|(_, there)| *there).fold(0, |bits, (bit, _)| bits | 1 << bit)
}

/// Optional Admin Command Support (Base 5.17.2.1).
pub(crate) fn oacs(kind: SubsystemKind) -> u32 {
    let has = |opcode| has_admin_command(kind, opcode);
    bits(&[
        (0, has(AdminOpcode::SECURITY_SEND)),
        (1, has(AdminOpcode::FORMAT_NVM)),
        (2, has(AdminOpcode::FIRMWARE_COMMIT)),
        (3, has(AdminOpcode::NAMESPACE_MANAGEMENT)),
        (4, has(AdminOpcode::DEVICE_SELF_TEST)),
        (5, has(AdminOpcode::DIRECTIVE_SEND)),
        (6, has(AdminOpcode::NVME_MI_SEND)),
        (7, has(AdminOpcode::VIRTUALIZATION_MANAGEMENT)),
        (8, has(AdminOpcode::DOORBELL_BUFFER_CONFIG)),
        (9, has(AdminOpcode::GET_LBA_STATUS)),
        (10, has(AdminOpcode::LOCKDOWN)),
    ])
}

/// Optional NVM Command Support (Base 5.17.2.1) of an I/O controller.
pub(crate) fn oncs() -> u32 {
    bits(&[
        (0, has_io_command(IoOpcode::COMPARE)),
        (1, has_io_command(IoOpcode::WRITE_UNCORRECTABLE)),
        (2, has_io_command(IoOpcode::DATASET_MANAGEMENT)),
        (3, has_io_command(IoOpcode::WRITE_ZEROES)),
        // SV in Set Features and SEL in Get Features are looked at.
        (4, true),
        (5, has_io_command(IoOpcode::RESERVATION_REGISTER)),
        (6, find_feature(SubsystemKind::Nvm, fid::TIMESTAMP).is_some()),
        (7, has_io_command(IoOpcode::VERIFY)),
        (8, has_io_command(IoOpcode::COPY)),
    ])
}

/// Log Page Attributes (Base 5.17.2.1).
pub(crate) fn lpa(kind: SubsystemKind) -> u32 {
    let has = |lid| has_log_page(kind, lid);
    bits(&[
        // Bit 0, SMART of one namespace: not kept.
        (1, has(lid::COMMAND_EFFECTS)),
        // NUMDU and LPO.
        (2, true),
        (3, has(lid::TELEMETRY_HOST)),
        (4, has(lid::PERSISTENT_EVENT)),
        (
            5,
            has(lid::SUPPORTED_LOG_PAGES)
                && has(lid::COMMAND_EFFECTS)
                && has(lid::FEATURE_EFFECTS)
                && has(lid::MI_EFFECTS),
        ),
    ])
}

/// Optional Asynchronous Events Supported (Base 5.17.2.1).
pub(crate) fn oaes(kind: SubsystemKind) -> u32 {
    match kind {
        SubsystemKind::Nvm => Event::NamespaceChanged.config_bit(),
        SubsystemKind::Discovery => Event::DiscoveryChanged.config_bit(),
    }
}

/// Bits of Asynchronous Event Configuration a host may set: the SMART warnings every I/O controller has
/// (Base 5.27.1.8, bits 5:0) and what OAES says.
pub(crate) fn async_event_mask(kind: SubsystemKind) -> u32 {
    match kind {
        SubsystemKind::Nvm => 0x3f | oaes(kind),
        SubsystemKind::Discovery => oaes(kind),
    }
}
