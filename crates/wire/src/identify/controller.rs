//! Identify Controller, CNS 01h (Base 5.17.2.1, Figure 275).

use zerocopy::little_endian::{U16, U32, U128};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::nqn::{NQN_FIELD, Nqn, NqnError};
use crate::open::{open_enum, zero_default};

open_enum! {
    /// Controller Type (CNTRLTYPE).
    pub struct ControllerType(pub u8) {
        NOT_REPORTED = 0x00 => "not reported",
        IO = 0x01 => "I/O",
        DISCOVERY = 0x02 => "discovery",
        ADMINISTRATIVE = 0x03 => "administrative",
    }
}

/// Identify Controller: 4096 bytes.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
pub struct Controller {
    /// Bytes 0-1, PCI Vendor ID.
    pub vid: U16,
    /// Bytes 2-3, PCI Subsystem Vendor ID.
    pub ssvid: U16,
    /// Bytes 4-23, Serial Number, ASCII.
    pub sn: [u8; 20],
    /// Bytes 24-63, Model Number, ASCII.
    pub mn: [u8; 40],
    /// Bytes 64-71, Firmware Revision, ASCII.
    pub fr: [u8; 8],
    /// Byte 72, Recommended Arbitration Burst, as a power of two.
    pub rab: u8,
    /// Bytes 73-75, IEEE OUI Identifier, least significant byte first.
    pub ieee: [u8; 3],
    /// Byte 76, Controller Multi-Path I/O and Namespace Sharing Capabilities, see [`cmic`].
    pub cmic: u8,
    /// Byte 77, Maximum Data Transfer Size: 2 to this, in units of CAP.MPSMIN; 0 is no limit.
    pub mdts: u8,
    /// Bytes 78-79, Controller ID.
    pub cntlid: U16,
    /// Bytes 80-83, Version, as the VS property.
    pub ver: U32,
    /// Bytes 84-87, RTD3 Resume Latency in microseconds.
    pub rtd3r: U32,
    /// Bytes 88-91, RTD3 Entry Latency in microseconds.
    pub rtd3e: U32,
    /// Bytes 92-95, Optional Asynchronous Events Supported, see [`oaes`].
    pub oaes: U32,
    /// Bytes 96-99, Controller Attributes, see [`ctratt`].
    pub ctratt: U32,
    /// Bytes 100-101, Read Recovery Levels Supported.
    pub rrls: U16,
    /// Bytes 102-110, reserved.
    pub reserved102: [u8; 9],
    /// Byte 111, Controller Type, see [`ControllerType`].
    pub cntrltype: u8,
    /// Bytes 112-127, FRU Globally Unique Identifier.
    pub fguid: [u8; 16],
    /// Bytes 128-129, Command Retry Delay Time 1 in 100 ms.
    pub crdt1: U16,
    /// Bytes 130-131, Command Retry Delay Time 2 in 100 ms.
    pub crdt2: U16,
    /// Bytes 132-133, Command Retry Delay Time 3 in 100 ms.
    pub crdt3: U16,
    /// Bytes 134-252, reserved (240 on: for NVMe-MI).
    pub reserved134: [u8; 119],
    /// Byte 253, NVM Subsystem Report.
    pub nvmsr: u8,
    /// Byte 254, VPD Write Cycle Information.
    pub vwci: u8,
    /// Byte 255, Management Endpoint Capabilities.
    pub mec: u8,
    /// Bytes 256-257, Optional Admin Command Support, see [`oacs`].
    pub oacs: U16,
    /// Byte 258, Abort Command Limit, 0's based.
    pub acl: u8,
    /// Byte 259, Asynchronous Event Request Limit, 0's based.
    pub aerl: u8,
    /// Byte 260, Firmware Updates, see [`frmw`].
    pub frmw: u8,
    /// Byte 261, Log Page Attributes, see [`lpa`].
    pub lpa: u8,
    /// Byte 262, Error Log Page Entries, 0's based.
    pub elpe: u8,
    /// Byte 263, Number of Power States Support, 0's based.
    pub npss: u8,
    /// Byte 264, Admin Vendor Specific Command Configuration.
    pub avscc: u8,
    /// Byte 265, Autonomous Power State Transition Attributes.
    pub apsta: u8,
    /// Bytes 266-267, Warning Composite Temperature Threshold in kelvins.
    pub wctemp: U16,
    /// Bytes 268-269, Critical Composite Temperature Threshold in kelvins.
    pub cctemp: U16,
    /// Bytes 270-271, Maximum Time for Firmware Activation in 100 ms.
    pub mtfa: U16,
    /// Bytes 272-275, Host Memory Buffer Preferred Size in 4 KiB.
    pub hmpre: U32,
    /// Bytes 276-279, Host Memory Buffer Minimum Size in 4 KiB.
    pub hmmin: U32,
    /// Bytes 280-295, Total NVM Capacity in bytes.
    pub tnvmcap: U128,
    /// Bytes 296-311, Unallocated NVM Capacity in bytes.
    pub unvmcap: U128,
    /// Bytes 312-315, Replay Protected Memory Block Support.
    pub rpmbs: U32,
    /// Bytes 316-317, Extended Device Self-test Time in minutes.
    pub edstt: U16,
    /// Byte 318, Device Self-test Options.
    pub dsto: u8,
    /// Byte 319, Firmware Update Granularity in 4 KiB.
    pub fwug: u8,
    /// Bytes 320-321, Keep Alive Support: granularity in 100 ms; 0 is no keep alive.
    pub kas: U16,
    /// Bytes 322-323, Host Controlled Thermal Management Attributes.
    pub hctma: U16,
    /// Bytes 324-325, Minimum Thermal Management Temperature in kelvins.
    pub mntmt: U16,
    /// Bytes 326-327, Maximum Thermal Management Temperature in kelvins.
    pub mxtmt: U16,
    /// Bytes 328-331, Sanitize Capabilities.
    pub sanicap: U32,
    /// Bytes 332-335, Host Memory Buffer Minimum Descriptor Entry Size in 4 KiB.
    pub hmminds: U32,
    /// Bytes 336-337, Host Memory Maximum Descriptors Entries.
    pub hmmaxd: U16,
    /// Bytes 338-339, NVM Set Identifier Maximum.
    pub nsetidmax: U16,
    /// Bytes 340-341, Endurance Group Identifier Maximum.
    pub endgidmax: U16,
    /// Byte 342, ANA Transition Time in seconds.
    pub anatt: u8,
    /// Byte 343, Asymmetric Namespace Access Capabilities.
    pub anacap: u8,
    /// Bytes 344-347, ANA Group Identifier Maximum.
    pub anagrpmax: U32,
    /// Bytes 348-351, Number of ANA Group Identifiers.
    pub nanagrpid: U32,
    /// Bytes 352-355, Persistent Event Log Size in 64 KiB.
    pub pels: U32,
    /// Bytes 356-357, Domain Identifier.
    pub domain_id: U16,
    /// Bytes 358-367, reserved.
    pub reserved358: [u8; 10],
    /// Bytes 368-383, Max Endurance Group Capacity in bytes.
    pub megcap: U128,
    /// Bytes 384-511, reserved.
    pub reserved384: [u8; 128],
    /// Byte 512, Submission Queue Entry Size: minimum in bits 3:0, maximum in 7:4, powers of two.
    pub sqes: u8,
    /// Byte 513, Completion Queue Entry Size: minimum in bits 3:0, maximum in 7:4, powers of two.
    pub cqes: u8,
    /// Bytes 514-515, Maximum Outstanding Commands of a queue.
    pub maxcmd: U16,
    /// Bytes 516-519, Number of Namespaces: the maximum NSID.
    pub nn: U32,
    /// Bytes 520-521, Optional NVM Command Support, see [`oncs`].
    pub oncs: U16,
    /// Bytes 522-523, Fused Operation Support; bit 0 Compare and Write.
    pub fuses: U16,
    /// Byte 524, Format NVM Attributes.
    pub fna: u8,
    /// Byte 525, Volatile Write Cache, see [`vwc`].
    pub vwc: u8,
    /// Bytes 526-527, Atomic Write Unit Normal in logical blocks, 0's based.
    pub awun: U16,
    /// Bytes 528-529, Atomic Write Unit Power Fail in logical blocks, 0's based.
    pub awupf: U16,
    /// Byte 530, I/O Command Set Vendor Specific Command Configuration.
    pub icsvscc: u8,
    /// Byte 531, Namespace Write Protection Capabilities.
    pub nwpc: u8,
    /// Bytes 532-533, Atomic Compare & Write Unit in logical blocks, 0's based.
    pub acwu: U16,
    /// Bytes 534-535, Copy Descriptor Formats Supported.
    pub cdfs: U16,
    /// Bytes 536-539, SGL Support, see [`sgls`].
    pub sgls: U32,
    /// Bytes 540-543, Maximum Number of Allowed Namespaces; 0: as NN.
    pub mnan: U32,
    /// Bytes 544-559, Maximum Domain Namespace Attachments.
    pub maxdna: U128,
    /// Bytes 560-563, Maximum I/O Controller Namespace Attachments.
    pub maxcna: U32,
    /// Bytes 564-767, reserved.
    pub reserved564: [u8; 204],
    /// Bytes 768-1023, NVM Subsystem NVMe Qualified Name, NUL terminated.
    pub subnqn: [u8; NQN_FIELD],
    /// Bytes 1024-1791, reserved.
    pub reserved1024: [u8; 768],
    /// Bytes 1792-1795, I/O Queue Command Capsule Supported Size in 16 bytes: 4, plus in-capsule
    /// data.
    pub ioccsz: U32,
    /// Bytes 1796-1799, I/O Queue Response Capsule Supported Size in 16 bytes: 1 and data.
    pub iorcsz: U32,
    /// Bytes 1800-1801, In Capsule Data Offset behind the SQE in 16 bytes.
    pub icdoff: U16,
    /// Byte 1802, Fabrics Controller Attributes; bit 0: static controller model.
    pub fcatt: u8,
    /// Byte 1803, Maximum SGL Data Block Descriptors; 0 is no limit.
    pub msdbd: u8,
    /// Bytes 1804-1805, Optional Fabric Commands Support, see [`ofcs`].
    pub ofcs: U16,
    /// Bytes 1806-2047, reserved.
    pub reserved1806: [u8; 242],
    /// Bytes 2048-3071, Power State Descriptors.
    pub psd: [PowerState; 32],
    /// Bytes 3072-4095, vendor specific.
    pub vendor: [u8; 1024],
}
const _: () = assert!(size_of::<Controller>() == 4096);
const _: () = {
    use core::mem::offset_of;
    assert!(offset_of!(Controller, cntlid) == 78);
    assert!(offset_of!(Controller, cntrltype) == 111);
    assert!(offset_of!(Controller, nvmsr) == 253);
    assert!(offset_of!(Controller, oacs) == 256);
    assert!(offset_of!(Controller, kas) == 320);
    assert!(offset_of!(Controller, megcap) == 368);
    assert!(offset_of!(Controller, sqes) == 512);
    assert!(offset_of!(Controller, sgls) == 536);
    assert!(offset_of!(Controller, subnqn) == 768);
    assert!(offset_of!(Controller, ioccsz) == 1792);
    assert!(offset_of!(Controller, psd) == 2048);
};

impl Controller {
    /// NQN of the subsystem.
    ///
    /// # Errors
    /// If the field is not an NQN.
    pub fn subnqn(&self) -> Result<Nqn, NqnError> {
        Nqn::from_field(&self.subnqn)
    }

    /// Maximum bytes of a command's transfer. `page_size_min` is the minimum memory page in bytes
    /// (CAP.MPSMIN). `None` means no limit; so does a value beyond 2^63.
    #[must_use]
    pub fn max_transfer(&self, page_size_min: u32) -> Option<u64> {
        if self.mdts == 0 {
            return None;
        }
        let shift = u32::from(self.mdts).checked_add(page_size_min.max(1).ilog2())?;
        1u64.checked_shl(shift)
    }

    /// Required sizes of submission and completion queue entries as powers of two (the low halves
    /// of SQES and CQES): 6 and 4.
    #[must_use]
    pub const fn entry_sizes(&self) -> (u8, u8) {
        (self.sqes & 0xf, self.cqes & 0xf)
    }

    /// Bytes of in-capsule data of an I/O queue: IOCCSZ minus the 64 bytes of the SQE.
    #[must_use]
    pub fn in_capsule_data(&self) -> u64 {
        (u64::from(self.ioccsz.get()) * 16).saturating_sub(64)
    }
}

/// Power State Descriptor: 32 bytes.
#[derive(
    Clone,
    Copy,
    Debug,
    Default,
    PartialEq,
    Eq,
    FromBytes,
    IntoBytes,
    Immutable,
    KnownLayout,
    Unaligned,
)]
#[repr(C)]
pub struct PowerState {
    /// Bytes 0-1, Maximum Power in 0.01 W (0.0001 W if MXPS).
    pub mp: U16,
    /// Byte 2, reserved.
    pub reserved2: u8,
    /// Byte 3: bit 0 Max Power Scale (MXPS), bit 1 Non-Operational State (NOPS).
    pub flags: u8,
    /// Bytes 4-7, Entry Latency in microseconds.
    pub enlat: U32,
    /// Bytes 8-11, Exit Latency in microseconds.
    pub exlat: U32,
    /// Byte 12, Relative Read Throughput, bits 4:0.
    pub rrt: u8,
    /// Byte 13, Relative Read Latency, bits 4:0.
    pub rrl: u8,
    /// Byte 14, Relative Write Throughput, bits 4:0.
    pub rwt: u8,
    /// Byte 15, Relative Write Latency, bits 4:0.
    pub rwl: u8,
    /// Bytes 16-17, Idle Power in units of IPS.
    pub idlp: U16,
    /// Byte 18, Idle Power Scale, bits 7:6.
    pub ips: u8,
    /// Byte 19, reserved.
    pub reserved19: u8,
    /// Bytes 20-21, Active Power in units of APS.
    pub actp: U16,
    /// Byte 22: Active Power Workload in bits 2:0, Active Power Scale in 7:6.
    pub apw_aps: u8,
    /// Bytes 23-31, reserved.
    pub reserved23: [u8; 9],
}
const _: () = assert!(size_of::<PowerState>() == 32);

/// Bits of CMIC.
pub mod cmic {
    /// The subsystem can have more than one port.
    pub const MULTIPLE_PORTS: u8 = 1 << 0;
    /// The subsystem can have more than one controller.
    pub const MULTIPLE_CONTROLLERS: u8 = 1 << 1;
    /// The controller is an SR-IOV virtual function.
    pub const SR_IOV: u8 = 1 << 2;
    /// The subsystem supports Asymmetric Namespace Access reporting.
    pub const ANA: u8 = 1 << 3;
}

/// Bits of OAES.
pub mod oaes {
    /// Namespace Attribute Notices.
    pub const NAMESPACE_ATTRIBUTE: u32 = 1 << 8;
    /// Firmware Activation Notices.
    pub const FIRMWARE_ACTIVATION: u32 = 1 << 9;
    /// Asymmetric Namespace Access Change Notices.
    pub const ANA_CHANGE: u32 = 1 << 11;
    /// Discovery Log Page Change Notification; discovery controllers only.
    pub const DISCOVERY_LOG_CHANGE: u32 = 1 << 31;
}

/// Bits of CTRATT.
pub mod ctratt {
    /// 128-bit Host Identifier.
    pub const HOST_ID_128: u32 = 1 << 0;
    /// NVM Sets.
    pub const NVM_SETS: u32 = 1 << 2;
    /// Endurance Groups.
    pub const ENDURANCE_GROUPS: u32 = 1 << 4;
    /// Traffic Based Keep Alive Support (TBKAS).
    pub const TRAFFIC_KEEP_ALIVE: u32 = 1 << 6;
    /// UUID List.
    pub const UUID_LIST: u32 = 1 << 9;
}

/// Bits of OACS.
pub mod oacs {
    /// Security Send and Receive.
    pub const SECURITY: u16 = 1 << 0;
    /// Format NVM.
    pub const FORMAT: u16 = 1 << 1;
    /// Firmware Commit and Image Download.
    pub const FIRMWARE: u16 = 1 << 2;
    /// Namespace Management and Attachment.
    pub const NAMESPACE_MANAGEMENT: u16 = 1 << 3;
    /// Device Self-test.
    pub const SELF_TEST: u16 = 1 << 4;
    /// Directives.
    pub const DIRECTIVES: u16 = 1 << 5;
    /// NVMe-MI Send and Receive.
    pub const NVME_MI: u16 = 1 << 6;
    /// Virtualization Management.
    pub const VIRTUALIZATION: u16 = 1 << 7;
    /// Doorbell Buffer Config.
    pub const DOORBELL_BUFFER: u16 = 1 << 8;
    /// Get LBA Status.
    pub const GET_LBA_STATUS: u16 = 1 << 9;
    /// Command and Feature Lockdown.
    pub const LOCKDOWN: u16 = 1 << 10;
}

/// Fields of FRMW.
pub mod frmw {
    /// Firmware slot 1 is read only.
    pub const SLOT1_READ_ONLY: u8 = 1 << 0;
    /// Shift of the number of slots (bits 3:1).
    pub const SLOTS_SHIFT: u8 = 1;
    /// Activation without a reset.
    pub const NO_RESET: u8 = 1 << 4;
}

/// Bits of LPA.
pub mod lpa {
    /// SMART / Health Information for each namespace.
    pub const SMART_PER_NAMESPACE: u8 = 1 << 0;
    /// Commands Supported and Effects log page.
    pub const COMMAND_EFFECTS: u8 = 1 << 1;
    /// Extended data: NUMDU and Log Page Offset.
    pub const EXTENDED: u8 = 1 << 2;
    /// Telemetry.
    pub const TELEMETRY: u8 = 1 << 3;
    /// Persistent Event log.
    pub const PERSISTENT_EVENTS: u8 = 1 << 4;
    /// Supported Log Pages (00h) and, with it, 12h and 13h.
    pub const SUPPORTED_LOG_PAGES: u8 = 1 << 5;
}

/// Bits of ONCS.
pub mod oncs {
    /// Compare.
    pub const COMPARE: u16 = 1 << 0;
    /// Write Uncorrectable.
    pub const WRITE_UNCORRECTABLE: u16 = 1 << 1;
    /// Dataset Management.
    pub const DATASET_MANAGEMENT: u16 = 1 << 2;
    /// Write Zeroes.
    pub const WRITE_ZEROES: u16 = 1 << 3;
    /// The Save field of Set Features and the Select field of Get Features.
    pub const SAVE_AND_SELECT: u16 = 1 << 4;
    /// Reservations.
    pub const RESERVATIONS: u16 = 1 << 5;
    /// Timestamp.
    pub const TIMESTAMP: u16 = 1 << 6;
    /// Verify.
    pub const VERIFY: u16 = 1 << 7;
    /// Copy.
    pub const COPY: u16 = 1 << 8;
}

/// Bits of FUSES.
pub mod fuses {
    /// Compare and Write.
    pub const COMPARE_AND_WRITE: u16 = 1 << 0;
}

/// Bits of FNA.
pub mod fna {
    /// A format applies to all namespaces.
    pub const FORMAT_ALL: u8 = 1 << 0;
    /// A secure erase that is part of a format applies to all namespaces.
    pub const ERASE_ALL: u8 = 1 << 1;
    /// Cryptographic erase is supported.
    pub const CRYPTO_ERASE: u8 = 1 << 2;
    /// Format NVM with NSID FFFFFFFFh is not supported.
    pub const NO_BROADCAST: u8 = 1 << 3;
}

/// Fields of VWC.
pub mod vwc {
    /// A volatile write cache is present.
    pub const PRESENT: u8 = 1 << 0;
    /// Flush of NSID FFFFFFFFh is not supported (bits 2:1 = 10b).
    pub const FLUSH_ALL_UNSUPPORTED: u8 = 0b10 << 1;
    /// Flush of NSID FFFFFFFFh is supported (bits 2:1 = 11b).
    pub const FLUSH_ALL_SUPPORTED: u8 = 0b11 << 1;
}

/// Fields of SGLS.
pub mod sgls {
    /// SGLs are supported, without alignment (bits 1:0 = 01b).
    pub const SUPPORTED: u32 = 0b01;
    /// SGLs are supported, dword aligned (bits 1:0 = 10b).
    pub const SUPPORTED_DWORD: u32 = 0b10;
    /// Keyed SGL Data Block descriptor.
    pub const KEYED: u32 = 1 << 2;
    /// Support for SGLs and its form (bits 1:0).
    pub const SUPPORT_MASK: u32 = 0b11;
    /// SGL Bit Bucket descriptor.
    pub const BIT_BUCKET: u32 = 1 << 16;
    /// A byte aligned contiguous metadata buffer.
    pub const METADATA: u32 = 1 << 17;
    /// An SGL may describe more bytes than the transfer.
    pub const LARGER_THAN_TRANSFER: u32 = 1 << 18;
    /// The address field may be an offset (in-capsule data).
    pub const OFFSET: u32 = 1 << 20;
    /// Transport SGL Data Block descriptor.
    pub const TRANSPORT: u32 = 1 << 21;
}

/// Bits of OFCS.
pub mod ofcs {
    /// Disconnect.
    pub const DISCONNECT: u16 = 1 << 0;
}

zero_default!(Controller);
