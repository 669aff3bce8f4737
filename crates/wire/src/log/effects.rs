//! Support and effects of log pages, commands and features: log pages 00h, 05h and 12h.

use bitfield_struct::bitfield;
use zerocopy::little_endian::U32;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::Lid;
use crate::features::Fid;
use crate::opcode::{AdminOpcode, IoOpcode};
use crate::open::zero_default;

/// LID Supported and Effects, one dword of log page 00h (Base 5.16.1.1).
#[bitfield(u32)]
#[derive(PartialEq, Eq)]
pub struct LogSupport {
    /// LID Supported (LSUPP).
    pub supported: bool,
    /// Index Offset Supported (IOS).
    pub index_offset: bool,
    #[bits(14)]
    __: u16,
    /// LID Specific Parameter (LIDSP).
    pub specific: u16,
}

/// Supported Log Pages, log page 00h (Base 5.16.1.1): 1024 bytes.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
pub struct SupportedLogPages {
    /// Support by log page identifier, see [`LogSupport`].
    pub lids: [U32; 256],
}
const _: () = assert!(size_of::<SupportedLogPages>() == 1024);

impl SupportedLogPages {
    /// Support of page `lid`.
    #[must_use]
    pub fn get(&self, lid: Lid) -> LogSupport {
        LogSupport::from_bits(self.lids[usize::from(lid.0)].get())
    }

    /// Sets support of page `lid`.
    pub fn set(&mut self, lid: Lid, support: LogSupport) {
        self.lids[usize::from(lid.0)].set(support.into_bits());
    }
}

/// Command effects, one dword of log page 05h (Base 5.16.1.6).
#[bitfield(u32)]
#[derive(PartialEq, Eq)]
pub struct CommandEffects {
    /// Command Supported (CSUPP).
    pub supported: bool,
    /// Logical Block Content Change (LBCC).
    pub content_change: bool,
    /// Namespace Capability Change (NCC).
    pub namespace_capability_change: bool,
    /// Namespace Inventory Change (NIC).
    pub namespace_inventory_change: bool,
    /// Controller Capability Change (CCC).
    pub controller_capability_change: bool,
    #[bits(11)]
    __: u16,
    /// Command Submission and Execution (CSE): 0 no restriction, 1 one command per namespace, 2 one
    /// command in total.
    #[bits(3)]
    pub execution: u8,
    /// UUID Selection Supported.
    pub uuid_selection: bool,
    /// Command Scope (CSP): bit 0 namespace, 1 controller, 2 NVM set, 3 endurance group, 4 domain,
    /// 5 NVM subsystem.
    #[bits(12)]
    pub scope: u16,
}

/// Commands Supported and Effects, log page 05h (Base 5.16.1.6): 4096 bytes.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
pub struct CommandEffectsLog {
    /// Bytes 0-1023, by admin opcode, see [`CommandEffects`].
    pub acs: [U32; 256],
    /// Bytes 1024-2047, by I/O opcode.
    pub iocs: [U32; 256],
    /// Bytes 2048-4095, reserved.
    pub reserved2048: [u8; 2048],
}
const _: () = assert!(size_of::<CommandEffectsLog>() == 4096);

impl CommandEffectsLog {
    /// Effects of an admin command.
    #[must_use]
    pub fn admin(&self, opcode: AdminOpcode) -> CommandEffects {
        CommandEffects::from_bits(self.acs[usize::from(opcode.0)].get())
    }

    /// Effects of an I/O command.
    #[must_use]
    pub fn io(&self, opcode: IoOpcode) -> CommandEffects {
        CommandEffects::from_bits(self.iocs[usize::from(opcode.0)].get())
    }

    /// Sets the effects of an admin command.
    pub fn set_admin(&mut self, opcode: AdminOpcode, effects: CommandEffects) {
        self.acs[usize::from(opcode.0)].set(effects.into_bits());
    }

    /// Sets the effects of an I/O command.
    pub fn set_io(&mut self, opcode: IoOpcode, effects: CommandEffects) {
        self.iocs[usize::from(opcode.0)].set(effects.into_bits());
    }
}

/// Feature effects, one dword of log page 12h (Base 5.16.1.18).
#[bitfield(u32)]
#[derive(PartialEq, Eq)]
pub struct FeatureEffects {
    /// FID Supported (FSUPP).
    pub supported: bool,
    /// User Data Content Change (UDCC).
    pub content_change: bool,
    /// Namespace Capability Change (NCC).
    pub namespace_capability_change: bool,
    /// Namespace Inventory Change (NIC).
    pub namespace_inventory_change: bool,
    /// Controller Capability Change (CCC).
    pub controller_capability_change: bool,
    #[bits(14)]
    __: u16,
    /// UUID Selection Supported.
    pub uuid_selection: bool,
    /// FID Scope (FSP): bit 0 namespace, 1 controller, 2 NVM set, 3 endurance group, 4 domain,
    /// 5 NVM subsystem.
    #[bits(12)]
    pub scope: u16,
}

/// Feature Identifiers Supported and Effects, log page 12h (Base 5.16.1.18): 1024 bytes.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
pub struct FeatureEffectsLog {
    /// Effects by feature identifier, see [`FeatureEffects`].
    pub fids: [U32; 256],
}
const _: () = assert!(size_of::<FeatureEffectsLog>() == 1024);

impl FeatureEffectsLog {
    /// Effects of setting feature `fid`.
    #[must_use]
    pub fn get(&self, fid: Fid) -> FeatureEffects {
        FeatureEffects::from_bits(self.fids[usize::from(fid.0)].get())
    }

    /// Sets the effects of setting feature `fid`.
    pub fn set(&mut self, fid: Fid, effects: FeatureEffects) {
        self.fids[usize::from(fid.0)].set(effects.into_bits());
    }
}

zero_default!(SupportedLogPages, CommandEffectsLog, FeatureEffectsLog);
