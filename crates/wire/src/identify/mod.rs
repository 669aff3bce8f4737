//! Identify (Base 5.17, NVM 4.1.5): the command and its data structures.

mod command_set;
mod controller;
mod descriptors;
mod lists;
mod namespace;
mod preferred;

pub use command_set::{CommandSetCombinations, NvmController, NvmNamespace};
pub use controller::{
    Controller, ControllerType, PowerState, cmic, ctratt, fna, frmw, fuses, lpa, oacs, oaes, ofcs,
    oncs, sgls, vwc,
};
pub use descriptors::{DESCRIPTORS_SIZE, IdentifierType, NamespaceId, NamespaceIds};
pub use lists::{NSIDS_PER_LIST, NsidList};
pub use namespace::{
    IndependentNamespace, LbaFormat, Namespace, dlfeat, flbas, fpi, nmic, nsattr, nsfeat, nstat,
};
pub use preferred::PreferredSizes;

use crate::opcode::AdminOpcode;
use crate::open::open_enum;
use crate::sqe::Sqe;

/// Size in bytes of every Identify data structure.
pub const IDENTIFY_SIZE: usize = 4096;

open_enum! {
    /// Controller or Namespace Structure (Base 5.17.1, Figure 273).
    pub struct Cns(pub u8) {
        NAMESPACE = 0x00 => "Identify Namespace",
        CONTROLLER = 0x01 => "Identify Controller",
        ACTIVE_NAMESPACES = 0x02 => "Active Namespace ID list",
        NAMESPACE_DESCRIPTORS = 0x03 => "Namespace Identification Descriptor list",
        NVM_SETS = 0x04 => "NVM Set List",
        CSI_NAMESPACE = 0x05 => "I/O Command Set specific Identify Namespace",
        CSI_CONTROLLER = 0x06 => "I/O Command Set specific Identify Controller",
        CSI_ACTIVE_NAMESPACES = 0x07 => "I/O Command Set specific Active Namespace ID list",
        INDEPENDENT_NAMESPACE = 0x08 => "I/O Command Set Independent Identify Namespace",
        ALLOCATED_NAMESPACES = 0x10 => "Allocated Namespace ID list",
        ALLOCATED_NAMESPACE = 0x11 => "Identify Namespace for an allocated Namespace ID",
        NAMESPACE_CONTROLLERS = 0x12 => "Namespace Attached Controller list",
        CONTROLLERS = 0x13 => "Controller list",
        PRIMARY_CAPABILITIES = 0x14 => "Primary Controller Capabilities",
        SECONDARY_CONTROLLERS = 0x15 => "Secondary Controller list",
        NAMESPACE_GRANULARITY = 0x16 => "Namespace Granularity List",
        UUIDS = 0x17 => "UUID List",
        DOMAINS = 0x18 => "Domain List",
        ENDURANCE_GROUPS = 0x19 => "Endurance Group List",
        CSI_ALLOCATED_NAMESPACES = 0x1a => "I/O Command Set specific Allocated Namespace ID list",
        CSI_ALLOCATED_NAMESPACE = 0x1b => "I/O Command Set specific Identify Namespace, allocated",
        COMMAND_SETS = 0x1c => "Identify I/O Command Set",
    }
}

open_enum! {
    /// Command Set Identifier (Base 5.17.1, Figure 274).
    pub struct Csi(pub u8) {
        NVM = 0x00 => "NVM Command Set",
        KEY_VALUE = 0x01 => "Key Value Command Set",
        ZONED = 0x02 => "Zoned Namespace Command Set",
    }
}

/// An Identify command (Base 5.17).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identify {
    /// Requested structure.
    pub cns: Cns,
    /// Namespace, if `cns` requires one; for a list, its entries are greater than this.
    pub nsid: u32,
    /// Controller Identifier, if `cns` requires one.
    pub cntid: u16,
    /// Command set, if `cns` requires one.
    pub csi: Csi,
    /// CNS Specific Identifier.
    pub cns_specific: u16,
    /// UUID Index.
    pub uuid_index: u8,
}

impl Identify {
    /// Creates a request for `cns` of `nsid`; all other fields are zero.
    #[must_use]
    pub const fn new(cns: Cns, nsid: u32) -> Self {
        Self { cns, nsid, cntid: 0, csi: Csi::NVM, cns_specific: 0, uuid_index: 0 }
    }

    /// Parses the fields of `sqe`, which is an Identify.
    #[must_use]
    pub fn parse(sqe: &Sqe) -> Self {
        let [cns, _, c0, c1] = sqe.cdw10.get().to_le_bytes();
        let [s0, s1, _, csi] = sqe.cdw11.get().to_le_bytes();
        Self {
            cns: Cns(cns),
            nsid: sqe.nsid.get(),
            cntid: u16::from_le_bytes([c0, c1]),
            csi: Csi(csi),
            cns_specific: u16::from_le_bytes([s0, s1]),
            uuid_index: sqe.cdw14.get().to_le_bytes()[0] & 0x7f,
        }
    }

    /// Returns the command, without a data pointer.
    #[must_use]
    pub fn encode(self, cid: u16) -> Sqe {
        Sqe::admin(AdminOpcode::IDENTIFY, cid, self.nsid).with_cdw10([
            u32::from(self.cns.0) | u32::from(self.cntid) << 16,
            u32::from(self.cns_specific) | u32::from(self.csi.0) << 24,
            0,
            0,
            u32::from(self.uuid_index & 0x7f),
        ])
    }
}

#[cfg(test)]
mod tests;
