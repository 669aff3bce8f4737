//! Log pages (Base 5.16): the command and the pages.

mod discovery;
mod effects;
mod error_information;
mod firmware;
mod smart;

pub use discovery::{
    AddressFamily, DISCOVERY_RECORD_SIZE, DiscoveryEntry, DiscoveryHeader, DiscoverySubtype,
    RdmaConnection, RdmaProvider, RdmaQueuePair, TcpSecurity, TransportType, Tsas, eflags, treq,
};
pub use effects::{
    CommandEffects, CommandEffectsLog, FeatureEffects, FeatureEffectsLog, LogSupport,
    SupportedLogPages,
};
pub use error_information::ErrorInformation;
pub use firmware::FirmwareSlotLog;
pub use smart::{SmartLog, critical_warning};

use crate::identify::Csi;
use crate::opcode::AdminOpcode;
use crate::open::open_enum;
use crate::sqe::Sqe;

/// Changed Namespace List, log page 04h (Base 5.16.1.5): NSIDs that changed since the last read.
/// More than 1024 are one entry FFFFFFFFh.
pub type ChangedNamespaces = crate::identify::NsidList;

open_enum! {
    /// Log Page Identifier (Base 5.16.1, Figure 202).
    pub struct Lid(pub u8) {
        SUPPORTED_LOG_PAGES = 0x00 => "Supported Log Pages",
        ERROR_INFORMATION = 0x01 => "Error Information",
        SMART = 0x02 => "SMART / Health Information",
        FIRMWARE_SLOT = 0x03 => "Firmware Slot Information",
        CHANGED_NAMESPACES = 0x04 => "Changed Namespace List",
        COMMAND_EFFECTS = 0x05 => "Commands Supported and Effects",
        SELF_TEST = 0x06 => "Device Self-test",
        TELEMETRY_HOST = 0x07 => "Telemetry Host-Initiated",
        TELEMETRY_CONTROLLER = 0x08 => "Telemetry Controller-Initiated",
        ENDURANCE_GROUP = 0x09 => "Endurance Group Information",
        PREDICTABLE_LATENCY = 0x0a => "Predictable Latency Per NVM Set",
        PREDICTABLE_LATENCY_EVENTS = 0x0b => "Predictable Latency Event Aggregate",
        ANA = 0x0c => "Asymmetric Namespace Access",
        PERSISTENT_EVENTS = 0x0d => "Persistent Event Log",
        LBA_STATUS = 0x0e => "LBA Status Information",
        ENDURANCE_GROUP_EVENTS = 0x0f => "Endurance Group Event Aggregate",
        MEDIA_UNIT_STATUS = 0x10 => "Media Unit Status",
        CAPACITY_CONFIGURATIONS = 0x11 => "Supported Capacity Configuration List",
        FEATURE_EFFECTS = 0x12 => "Feature Identifiers Supported and Effects",
        MI_EFFECTS = 0x13 => "NVMe-MI Commands Supported and Effects",
        LOCKDOWN = 0x14 => "Command and Feature Lockdown",
        BOOT_PARTITION = 0x15 => "Boot Partition",
        ROTATIONAL_MEDIA = 0x16 => "Rotational Media Information",
        DISCOVERY = 0x70 => "Discovery",
        RESERVATION_NOTIFICATION = 0x80 => "Reservation Notification",
        SANITIZE_STATUS = 0x81 => "Sanitize Status",
    }
}

/// Get Log Page (Base 5.16).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GetLogPage {
    /// Requested page.
    pub lid: Lid,
    /// Log Specific Field, 7 bits.
    pub lsp: u8,
    /// Retain Asynchronous Event: reading does not rearm the event.
    pub retain_event: bool,
    /// Bytes to return: 4 to 2^34, a multiple of 4 (NUMD is 0's based, in dwords).
    pub length: u64,
    /// Log Page Offset: bytes into the page, or an index if `index_offset`.
    pub offset: u64,
    /// Offset Type: `offset` is an index into the page's list.
    pub index_offset: bool,
    /// Log Specific Identifier.
    pub lsi: u16,
    /// Command set, for pages that depend on it.
    pub csi: Csi,
    /// Namespace, for a page of one; 0 or FFFFFFFFh for the controller.
    pub nsid: u32,
    /// UUID Index.
    pub uuid_index: u8,
}

const RAE: u32 = 1 << 15;
const OFFSET_TYPE: u32 = 1 << 23;

impl GetLogPage {
    /// Reads `length` bytes of page `lid` from its start, and retains events; all other fields are
    /// zero.
    #[must_use]
    pub const fn new(lid: Lid, length: u64) -> Self {
        Self {
            lid,
            lsp: 0,
            retain_event: true,
            length,
            offset: 0,
            index_offset: false,
            lsi: 0,
            csi: Csi::NVM,
            nsid: 0,
            uuid_index: 0,
        }
    }

    /// Parses the fields of `sqe`, which is a Get Log Page.
    #[must_use]
    pub fn parse(sqe: &Sqe) -> Self {
        let cdw10 = sqe.cdw10.get();
        let cdw14 = sqe.cdw14.get();
        let [lid, lsp, l0, l1] = cdw10.to_le_bytes();
        let [u0, u1, s0, s1] = sqe.cdw11.get().to_le_bytes();
        let [uuid_index, _, _, csi] = cdw14.to_le_bytes();
        let numd = u32::from_le_bytes([l0, l1, u0, u1]);
        Self {
            lid: Lid(lid),
            lsp: lsp & 0x7f,
            retain_event: cdw10 & RAE != 0,
            length: (u64::from(numd) + 1) * 4,
            offset: sqe.cdw12_13(),
            index_offset: cdw14 & OFFSET_TYPE != 0,
            lsi: u16::from_le_bytes([s0, s1]),
            csi: Csi(csi),
            nsid: sqe.nsid.get(),
            uuid_index: uuid_index & 0x7f,
        }
    }

    /// Returns the command, without a data pointer. `length` is rounded up to dwords and clamped to
    /// 4 to 2^34.
    #[must_use]
    #[expect(clippy::cast_possible_truncation, reason = "each dword is cut out of its number")]
    pub fn encode(&self, cid: u16) -> Sqe {
        let numd = (self.length.div_ceil(4).clamp(1, 1 << 32) - 1) as u32;
        let bit = |set: bool, bit: u32| if set { bit } else { 0 };
        Sqe::admin(AdminOpcode::GET_LOG_PAGE, cid, self.nsid).with_cdw10([
            u32::from(self.lid.0)
                | u32::from(self.lsp & 0x7f) << 8
                | bit(self.retain_event, RAE)
                | numd << 16,
            numd >> 16 | u32::from(self.lsi) << 16,
            self.offset as u32,
            (self.offset >> 32) as u32,
            u32::from(self.uuid_index & 0x7f)
                | bit(self.index_offset, OFFSET_TYPE)
                | u32::from(self.csi.0) << 24,
        ])
    }
}

#[cfg(test)]
mod tests;
