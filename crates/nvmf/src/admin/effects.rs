//! Tables of everything that this target implements.
//!
//! Identify (ONCS, OACS, LPA, OAES), the log pages about support and effects, and the dispatch of
//! commands all use these tables. They are therefore always consistent. An added command, log page
//! or feature needs a row in its table; anything without a row is rejected.

use nvmeof_wire::features::{FeatureCapabilities, Fid};
use nvmeof_wire::identify::{Csi, lpa, oacs, oncs};
use nvmeof_wire::log::{CommandEffects, FeatureEffects, Lid, critical_warning};
use nvmeof_wire::opcode::{AdminOpcode, IoOpcode};

use crate::controller::{Controller, Event};
use crate::subsystem::SubsystemKind;

/// Scope of a command or feature (CSP, FSP): one namespace.
const SCOPE_NAMESPACE: u16 = 1 << 0;
/// Scope of a command or feature: the controller.
const SCOPE_CONTROLLER: u16 = 1 << 1;

/// Kinds of controller that support an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ControllerKinds {
    Io,
    /// I/O controllers that report a volatile write cache.
    Cache,
    Discovery,
    Both,
}

impl ControllerKinds {
    fn is_of(self, kind: SubsystemKind) -> bool {
        match self {
            Self::Io | Self::Cache => kind == SubsystemKind::Nvm,
            Self::Discovery => kind == SubsystemKind::Discovery,
            Self::Both => true,
        }
    }
}

/// Admin commands. Fabrics commands are not included, because no log page reports them.
const ADMIN: [(AdminOpcode, ControllerKinds); 7] = [
    (AdminOpcode::GET_LOG_PAGE, ControllerKinds::Both),
    (AdminOpcode::IDENTIFY, ControllerKinds::Both),
    (AdminOpcode::ABORT, ControllerKinds::Both),
    (AdminOpcode::SET_FEATURES, ControllerKinds::Both),
    (AdminOpcode::GET_FEATURES, ControllerKinds::Both),
    (AdminOpcode::ASYNC_EVENT_REQUEST, ControllerKinds::Both),
    (AdminOpcode::KEEP_ALIVE, ControllerKinds::Both),
];

/// I/O commands; the flag is set if they change the contents of blocks.
const IO: [(IoOpcode, bool); 7] = [
    (IoOpcode::FLUSH, false),
    (IoOpcode::WRITE, true),
    (IoOpcode::READ, false),
    (IoOpcode::COMPARE, false),
    (IoOpcode::WRITE_ZEROES, true),
    (IoOpcode::DATASET_MANAGEMENT, true),
    (IoOpcode::VERIFY, false),
];

const LOGS: [(Lid, ControllerKinds); 9] = [
    (Lid::SUPPORTED_LOG_PAGES, ControllerKinds::Both),
    (Lid::ERROR_INFORMATION, ControllerKinds::Both),
    (Lid::SMART, ControllerKinds::Io),
    (Lid::FIRMWARE_SLOT, ControllerKinds::Io),
    (Lid::CHANGED_NAMESPACES, ControllerKinds::Io),
    (Lid::COMMAND_EFFECTS, ControllerKinds::Both),
    (Lid::FEATURE_EFFECTS, ControllerKinds::Both),
    (Lid::MI_EFFECTS, ControllerKinds::Both),
    (Lid::DISCOVERY, ControllerKinds::Discovery),
];

/// A feature. None is saveable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Feature {
    /// Feature identifier.
    pub(crate) fid: Fid,
    /// Set Features may change it.
    pub(crate) changeable: bool,
    /// Belongs to a namespace, otherwise to the controller.
    pub(crate) per_namespace: bool,
    on: ControllerKinds,
}

const fn feature(fid: Fid, on: ControllerKinds) -> Feature {
    Feature { fid, changeable: true, per_namespace: false, on }
}

const FEATURES: [Feature; 13] = [
    feature(Fid::ARBITRATION, ControllerKinds::Io),
    feature(Fid::POWER_MANAGEMENT, ControllerKinds::Io),
    feature(Fid::TEMPERATURE_THRESHOLD, ControllerKinds::Io),
    Feature { per_namespace: true, ..feature(Fid::ERROR_RECOVERY, ControllerKinds::Io) },
    feature(Fid::VOLATILE_WRITE_CACHE, ControllerKinds::Cache),
    feature(Fid::NUMBER_OF_QUEUES, ControllerKinds::Io),
    feature(Fid::WRITE_ATOMICITY, ControllerKinds::Io),
    feature(Fid::ASYNC_EVENTS, ControllerKinds::Both),
    feature(Fid::TIMESTAMP, ControllerKinds::Io),
    feature(Fid::KEEP_ALIVE_TIMER, ControllerKinds::Both),
    feature(Fid::HOST_BEHAVIOR, ControllerKinds::Io),
    feature(Fid::COMMAND_SET_PROFILE, ControllerKinds::Io),
    Feature { changeable: false, ..feature(Fid::HOST_IDENTIFIER, ControllerKinds::Io) },
];

impl Feature {
    /// Capabilities that Get Features reports for SEL 3.
    pub(crate) fn capabilities(&self) -> FeatureCapabilities {
        FeatureCapabilities::new()
            .with_namespace_specific(self.per_namespace)
            .with_changeable(self.changeable)
    }

    /// Entry in the Feature Identifiers Supported and Effects log page.
    fn effects(&self) -> FeatureEffects {
        let scope = if self.per_namespace { SCOPE_NAMESPACE } else { SCOPE_CONTROLLER };
        FeatureEffects::new().with_supported(true).with_scope(scope)
    }
}

/// Returns true if controllers of this kind support the admin command, fabrics (7Fh) excluded.
pub(crate) fn has_admin_command(kind: SubsystemKind, opcode: AdminOpcode) -> bool {
    ADMIN.iter().any(|(known, on)| *known == opcode && on.is_of(kind))
}

/// Returns true if I/O queues support the command.
pub(crate) fn has_io_command(opcode: IoOpcode) -> bool {
    IO.iter().any(|(known, _)| *known == opcode)
}

/// The table entries that one controller supports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SupportedCommands {
    kind: SubsystemKind,
    volatile_cache: bool,
}

impl SupportedCommands {
    /// For a controller of a subsystem of this kind.
    ///
    /// `volatile_cache`: the controller reports a volatile write cache.
    pub(crate) fn new(kind: SubsystemKind, volatile_cache: bool) -> Self {
        Self { kind, volatile_cache }
    }

    fn has(self, on: ControllerKinds) -> bool {
        on.is_of(self.kind) && (on != ControllerKinds::Cache || self.volatile_cache)
    }

    /// Supported log pages.
    pub(crate) fn log_pages(self) -> impl Iterator<Item = Lid> {
        LOGS.iter().filter(move |(_, on)| self.has(*on)).map(|(lid, _)| *lid)
    }

    /// Returns true if it supports the log page.
    pub(crate) fn has_log_page(self, lid: Lid) -> bool {
        self.log_pages().any(|known| known == lid)
    }

    /// Supported features.
    fn features(self) -> impl Iterator<Item = &'static Feature> {
        FEATURES.iter().filter(move |feature| self.has(feature.on))
    }

    /// The feature with this identifier, if supported.
    pub(crate) fn feature(self, fid: Fid) -> Option<&'static Feature> {
        self.features().find(|feature| feature.fid == fid)
    }

    /// Supported admin commands and their effects (Base 5.16.1.6).
    pub(crate) fn admin_effects(self) -> impl Iterator<Item = (AdminOpcode, CommandEffects)> {
        let effects = CommandEffects::new().with_supported(true).with_scope(SCOPE_CONTROLLER);
        ADMIN.iter().filter(move |(_, on)| self.has(*on)).map(move |(opcode, _)| (*opcode, effects))
    }

    /// Supported I/O commands of a command set and their effects.
    pub(crate) fn io_effects(self, csi: Csi) -> impl Iterator<Item = (IoOpcode, CommandEffects)> {
        let effects = CommandEffects::new().with_supported(true).with_scope(SCOPE_NAMESPACE);
        let has_any = self.kind == SubsystemKind::Nvm && csi == Csi::NVM;
        let commands = if has_any { IO.as_slice() } else { &[] };
        commands.iter().map(move |(opcode, writes)| (*opcode, effects.with_content_change(*writes)))
    }

    /// Supported features and their effects (Base 5.16.1.19).
    pub(crate) fn feature_effects(self) -> impl Iterator<Item = (Fid, FeatureEffects)> {
        self.features().map(|feature| (feature.fid, feature.effects()))
    }

    /// OACS, Optional Admin Command Support (Base 5.17.2.1).
    pub(crate) fn oacs(self) -> u16 {
        let bit = |bit, opcode| if has_admin_command(self.kind, opcode) { bit } else { 0 };
        bit(oacs::SECURITY, AdminOpcode::SECURITY_SEND)
            | bit(oacs::FORMAT, AdminOpcode::FORMAT_NVM)
            | bit(oacs::FIRMWARE, AdminOpcode::FIRMWARE_COMMIT)
            | bit(oacs::NAMESPACE_MANAGEMENT, AdminOpcode::NAMESPACE_MANAGEMENT)
            | bit(oacs::SELF_TEST, AdminOpcode::DEVICE_SELF_TEST)
            | bit(oacs::DIRECTIVES, AdminOpcode::DIRECTIVE_SEND)
            | bit(oacs::GET_LBA_STATUS, AdminOpcode::GET_LBA_STATUS)
    }

    /// ONCS, Optional NVM Command Support, of an I/O controller.
    pub(crate) fn oncs(self) -> u16 {
        let bit = |bit, opcode| if has_io_command(opcode) { bit } else { 0 };
        let timestamp = if self.feature(Fid::TIMESTAMP).is_some() { oncs::TIMESTAMP } else { 0 };
        bit(oncs::COMPARE, IoOpcode::COMPARE)
            | bit(oncs::WRITE_UNCORRECTABLE, IoOpcode::WRITE_UNCORRECTABLE)
            | bit(oncs::DATASET_MANAGEMENT, IoOpcode::DATASET_MANAGEMENT)
            | bit(oncs::WRITE_ZEROES, IoOpcode::WRITE_ZEROES)
            | oncs::SAVE_AND_SELECT
            | bit(oncs::RESERVATIONS, IoOpcode::RESERVATION_REGISTER)
            | timestamp
            | bit(oncs::VERIFY, IoOpcode::VERIFY)
            | bit(oncs::COPY, IoOpcode::COPY)
    }

    /// LPA, Log Page Attributes. SMART is not kept per namespace.
    pub(crate) fn lpa(self) -> u8 {
        let bit = |bit, lids: &[Lid]| {
            if lids.iter().all(|lid| self.has_log_page(*lid)) { bit } else { 0 }
        };
        let about_support =
            [Lid::SUPPORTED_LOG_PAGES, Lid::COMMAND_EFFECTS, Lid::FEATURE_EFFECTS, Lid::MI_EFFECTS];
        bit(lpa::COMMAND_EFFECTS, &[Lid::COMMAND_EFFECTS])
            | lpa::EXTENDED
            | bit(lpa::TELEMETRY, &[Lid::TELEMETRY_HOST])
            | bit(lpa::PERSISTENT_EVENTS, &[Lid::PERSISTENT_EVENTS])
            | bit(lpa::SUPPORTED_LOG_PAGES, &about_support)
    }

    /// OAES, Optional Asynchronous Events Supported.
    pub(crate) fn oaes(self) -> u32 {
        match self.kind {
            SubsystemKind::Nvm => Event::NamespaceChanged.config_bit(),
            SubsystemKind::Discovery => Event::DiscoveryChanged.config_bit(),
        }
    }

    /// Bits of Asynchronous Event Configuration that may be set (Base 5.27.1.8).
    ///
    /// These are the SMART warnings, which every I/O controller has, and the bits of OAES.
    pub(crate) fn async_event_mask(self) -> u32 {
        let warnings = critical_warning::SPARE
            | critical_warning::TEMPERATURE
            | critical_warning::RELIABILITY
            | critical_warning::READ_ONLY
            | critical_warning::BACKUP_FAILED;
        match self.kind {
            SubsystemKind::Nvm => u32::from(warnings) | self.oaes(),
            SubsystemKind::Discovery => self.oaes(),
        }
    }
}

impl Controller {
    /// The table entries that this controller supports.
    pub(crate) fn abilities(&self) -> SupportedCommands {
        SupportedCommands::new(self.subsystem.kind, self.reports_volatile_cache())
    }
}

#[cfg(test)]
mod tests;
