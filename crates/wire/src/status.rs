//! The status field of a completion (Base 3.3.3.2.1).

use core::fmt;

/// Status field without the phase tag: SC in bits 7:0, SCT in 10:8, CRD in 12:11, M in 13, DNR in
/// 14 (Base 3.3.3.2.1, shifted down by the phase tag).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Status(u16);

/// Status Code Type (Base 3.3.3.2.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum StatusType {
    /// 0h.
    Generic,
    /// 1h.
    CommandSpecific,
    /// 2h.
    MediaAndDataIntegrity,
    /// 3h.
    PathRelated,
    /// 7h.
    VendorSpecific,
    /// 4h to 6h.
    Reserved(u8),
}

const CRD_SHIFT: u16 = 11;
const MORE: u16 = 1 << 13;
const DNR: u16 = 1 << 14;
const CODE: u16 = 0x7ff;

impl Status {
    /// Creates a status from a status code type (3 bits) and a status code; CRD, M and DNR are
    /// clear.
    #[inline]
    #[must_use]
    pub const fn new(sct: u8, sc: u8) -> Self {
        Self((sct as u16 & 7) << 8 | sc as u16)
    }

    /// Parses bytes 14-15 of a completion; the phase tag is dropped.
    #[inline]
    #[must_use]
    pub const fn from_field(field: u16) -> Self {
        Self(field >> 1)
    }

    /// Returns bytes 14-15 of a completion.
    #[inline]
    #[must_use]
    pub const fn to_field(self, phase: bool) -> u16 {
        self.0 << 1 | phase as u16
    }

    /// Returns the 15-bit value (the form that nvme-cli and the Linux kernel print).
    #[inline]
    #[must_use]
    pub const fn bits(self) -> u16 {
        self.0
    }

    /// Creates a status from the 15-bit value.
    #[inline]
    #[must_use]
    pub const fn from_bits(bits: u16) -> Self {
        Self(bits & 0x7fff)
    }

    /// Status code (SC).
    #[inline]
    #[must_use]
    pub const fn sc(self) -> u8 {
        self.0.to_le_bytes()[0]
    }

    /// Status code type (SCT), 3 bits.
    #[inline]
    #[must_use]
    pub const fn sct(self) -> u8 {
        self.0.to_le_bytes()[1] & 7
    }

    /// Status code type by name.
    #[must_use]
    pub const fn status_type(self) -> StatusType {
        match self.sct() {
            0 => StatusType::Generic,
            1 => StatusType::CommandSpecific,
            2 => StatusType::MediaAndDataIntegrity,
            3 => StatusType::PathRelated,
            7 => StatusType::VendorSpecific,
            other => StatusType::Reserved(other),
        }
    }

    /// Returns SCT and SC alone, for comparisons with the constants.
    #[inline]
    #[must_use]
    pub const fn code(self) -> Self {
        Self(self.0 & CODE)
    }

    /// Returns true if SCT and SC are both 0.
    #[inline]
    #[must_use]
    pub const fn is_success(self) -> bool {
        self.0 & CODE == 0
    }

    /// Sets Do Not Retry: the same command will fail again.
    #[inline]
    #[must_use]
    pub const fn with_dnr(self) -> Self {
        Self(self.0 | DNR)
    }

    /// Sets More: the error information log has details.
    #[inline]
    #[must_use]
    pub const fn with_more(self) -> Self {
        Self(self.0 | MORE)
    }

    /// Sets the Command Retry Delay index, 0 (none) to 3 (CRDT3).
    #[inline]
    #[must_use]
    pub const fn with_crd(self, crd: u8) -> Self {
        Self(self.0 & !(3 << CRD_SHIFT) | (crd as u16 & 3) << CRD_SHIFT)
    }

    /// Do Not Retry.
    #[inline]
    #[must_use]
    pub const fn dnr(self) -> bool {
        self.0 & DNR != 0
    }

    /// More.
    #[inline]
    #[must_use]
    pub const fn more(self) -> bool {
        self.0 & MORE != 0
    }

    /// Command Retry Delay index.
    #[inline]
    #[must_use]
    pub const fn crd(self) -> u8 {
        (self.0 >> CRD_SHIFT & 3).to_le_bytes()[0]
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => f.write_str(name)?,
            None => f.write_str("unknown status")?,
        }
        write!(f, " (sct {:#x}, sc {:#04x}", self.sct(), self.sc())?;
        if self.crd() != 0 {
            write!(f, ", crd {}", self.crd())?;
        }
        f.write_str(if self.more() { ", more" } else { "" })?;
        f.write_str(if self.dnr() { ", dnr)" } else { ")" })
    }
}

impl fmt::Debug for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Status({self})")
    }
}

/// Constants and their names; the value is SCT and SC as `0xTCC`.
macro_rules! statuses {
    ($($const:ident = $value:literal => $text:literal,)*) => {
        impl Status {
            $(
                #[doc = concat!($text, " (", stringify!($value), ": SCT and SC).")]
                pub const $const: Self = Self($value);
            )*

            /// Name of SCT and SC in the specification, if there is one. Command specific codes 80h
            /// to 85h have one meaning for a fabrics command and another for an NVM command; the
            /// text names both.
            #[must_use]
            pub const fn name(self) -> Option<&'static str> {
                #[expect(unreachable_patterns, reason = "some codes have two names; the first is shown")]
                match self.0 & CODE {
                    $($value => Some($text),)*
                    _ => None,
                }
            }
        }
    };
}

statuses! {
    // Generic command status.
    SUCCESS = 0x000 => "Successful Completion",
    INVALID_OPCODE = 0x001 => "Invalid Command Opcode",
    INVALID_FIELD = 0x002 => "Invalid Field in Command",
    CID_CONFLICT = 0x003 => "Command ID Conflict",
    DATA_TRANSFER_ERROR = 0x004 => "Data Transfer Error",
    ABORTED_POWER_LOSS = 0x005 => "Commands Aborted due to Power Loss Notification",
    INTERNAL_ERROR = 0x006 => "Internal Error",
    ABORT_REQUESTED = 0x007 => "Command Abort Requested",
    ABORTED_SQ_DELETION = 0x008 => "Command Aborted due to SQ Deletion",
    ABORTED_FAILED_FUSED = 0x009 => "Command Aborted due to Failed Fused Command",
    ABORTED_MISSING_FUSED = 0x00a => "Command Aborted due to Missing Fused Command",
    INVALID_NAMESPACE_OR_FORMAT = 0x00b => "Invalid Namespace or Format",
    COMMAND_SEQUENCE_ERROR = 0x00c => "Command Sequence Error",
    INVALID_SGL_SEGMENT = 0x00d => "Invalid SGL Segment Descriptor",
    INVALID_SGL_COUNT = 0x00e => "Invalid Number of SGL Descriptors",
    DATA_SGL_LENGTH_INVALID = 0x00f => "Data SGL Length Invalid",
    METADATA_SGL_LENGTH_INVALID = 0x010 => "Metadata SGL Length Invalid",
    SGL_TYPE_INVALID = 0x011 => "SGL Descriptor Type Invalid",
    INVALID_CMB_USE = 0x012 => "Invalid Use of Controller Memory Buffer",
    PRP_OFFSET_INVALID = 0x013 => "PRP Offset Invalid",
    ATOMIC_WRITE_UNIT_EXCEEDED = 0x014 => "Atomic Write Unit Exceeded",
    OPERATION_DENIED = 0x015 => "Operation Denied",
    SGL_OFFSET_INVALID = 0x016 => "SGL Offset Invalid",
    HOST_ID_INCONSISTENT_FORMAT = 0x018 => "Host Identifier Inconsistent Format",
    KEEP_ALIVE_EXPIRED = 0x019 => "Keep Alive Timer Expired",
    KEEP_ALIVE_INVALID = 0x01a => "Keep Alive Timeout Invalid",
    ABORTED_PREEMPT = 0x01b => "Command Aborted due to Preempt and Abort",
    SANITIZE_FAILED = 0x01c => "Sanitize Failed",
    SANITIZE_IN_PROGRESS = 0x01d => "Sanitize In Progress",
    SGL_GRANULARITY_INVALID = 0x01e => "SGL Data Block Granularity Invalid",
    NOT_SUPPORTED_IN_CMB = 0x01f => "Command Not Supported for Queue in CMB",
    NAMESPACE_WRITE_PROTECTED = 0x020 => "Namespace is Write Protected",
    COMMAND_INTERRUPTED = 0x021 => "Command Interrupted",
    TRANSIENT_TRANSPORT_ERROR = 0x022 => "Transient Transport Error",
    PROHIBITED_BY_LOCKDOWN = 0x023 => "Command Prohibited by Command and Feature Lockdown",
    ADMIN_MEDIA_NOT_READY = 0x024 => "Admin Command Media Not Ready",
    LBA_OUT_OF_RANGE = 0x080 => "LBA Out of Range",
    CAPACITY_EXCEEDED = 0x081 => "Capacity Exceeded",
    NAMESPACE_NOT_READY = 0x082 => "Namespace Not Ready",
    RESERVATION_CONFLICT = 0x083 => "Reservation Conflict",
    FORMAT_IN_PROGRESS = 0x084 => "Format In Progress",
    INVALID_VALUE_SIZE = 0x085 => "Invalid Value Size",
    INVALID_KEY_SIZE = 0x086 => "Invalid Key Size",
    KEY_DOES_NOT_EXIST = 0x087 => "KV Key Does Not Exist",
    UNRECOVERED_ERROR = 0x088 => "Unrecovered Error",
    KEY_EXISTS = 0x089 => "Key Exists",

    // Command specific status.
    CQ_INVALID = 0x100 => "Completion Queue Invalid",
    INVALID_QUEUE_ID = 0x101 => "Invalid Queue Identifier",
    INVALID_QUEUE_SIZE = 0x102 => "Invalid Queue Size",
    ABORT_LIMIT_EXCEEDED = 0x103 => "Abort Command Limit Exceeded",
    ASYNC_EVENT_LIMIT_EXCEEDED = 0x105 => "Asynchronous Event Request Limit Exceeded",
    INVALID_FIRMWARE_SLOT = 0x106 => "Invalid Firmware Slot",
    INVALID_FIRMWARE_IMAGE = 0x107 => "Invalid Firmware Image",
    INVALID_INTERRUPT_VECTOR = 0x108 => "Invalid Interrupt Vector",
    INVALID_LOG_PAGE = 0x109 => "Invalid Log Page",
    INVALID_FORMAT = 0x10a => "Invalid Format",
    FIRMWARE_NEEDS_CONVENTIONAL_RESET = 0x10b => "Firmware Activation Requires Conventional Reset",
    INVALID_QUEUE_DELETION = 0x10c => "Invalid Queue Deletion",
    FEATURE_NOT_SAVEABLE = 0x10d => "Feature Identifier Not Saveable",
    FEATURE_NOT_CHANGEABLE = 0x10e => "Feature Not Changeable",
    FEATURE_NOT_NAMESPACE_SPECIFIC = 0x10f => "Feature Not Namespace Specific",
    FIRMWARE_NEEDS_SUBSYSTEM_RESET = 0x110 => "Firmware Activation Requires NVM Subsystem Reset",
    FIRMWARE_NEEDS_CONTROLLER_RESET = 0x111 => "Firmware Activation Requires Controller Level Reset",
    FIRMWARE_MAX_TIME_VIOLATION = 0x112 => "Firmware Activation Requires Maximum Time Violation",
    FIRMWARE_ACTIVATION_PROHIBITED = 0x113 => "Firmware Activation Prohibited",
    OVERLAPPING_RANGE = 0x114 => "Overlapping Range",
    NAMESPACE_INSUFFICIENT_CAPACITY = 0x115 => "Namespace Insufficient Capacity",
    NSID_UNAVAILABLE = 0x116 => "Namespace Identifier Unavailable",
    NAMESPACE_ALREADY_ATTACHED = 0x118 => "Namespace Already Attached",
    NAMESPACE_IS_PRIVATE = 0x119 => "Namespace Is Private",
    NAMESPACE_NOT_ATTACHED = 0x11a => "Namespace Not Attached",
    THIN_PROVISIONING_NOT_SUPPORTED = 0x11b => "Thin Provisioning Not Supported",
    CONTROLLER_LIST_INVALID = 0x11c => "Controller List Invalid",
    SELF_TEST_IN_PROGRESS = 0x11d => "Device Self-test In Progress",
    BOOT_PARTITION_WRITE_PROHIBITED = 0x11e => "Boot Partition Write Prohibited",
    INVALID_CONTROLLER_ID = 0x11f => "Invalid Controller Identifier",
    INVALID_SECONDARY_CONTROLLER_STATE = 0x120 => "Invalid Secondary Controller State",
    INVALID_CONTROLLER_RESOURCES = 0x121 => "Invalid Number of Controller Resources",
    INVALID_RESOURCE_ID = 0x122 => "Invalid Resource Identifier",
    SANITIZE_PROHIBITED_PMR = 0x123 => "Sanitize Prohibited While Persistent Memory Region is Enabled",
    ANA_GROUP_ID_INVALID = 0x124 => "ANA Group Identifier Invalid",
    ANA_ATTACH_FAILED = 0x125 => "ANA Attach Failed",
    INSUFFICIENT_CAPACITY = 0x126 => "Insufficient Capacity",
    NAMESPACE_ATTACHMENT_LIMIT = 0x127 => "Namespace Attachment Limit Exceeded",
    LOCKDOWN_NOT_SUPPORTED = 0x128 => "Prohibition of Command Execution Not Supported",
    COMMAND_SET_NOT_SUPPORTED = 0x129 => "I/O Command Set Not Supported",
    COMMAND_SET_NOT_ENABLED = 0x12a => "I/O Command Set Not Enabled",
    COMMAND_SET_COMBINATION_REJECTED = 0x12b => "I/O Command Set Combination Rejected",
    INVALID_COMMAND_SET = 0x12c => "Invalid I/O Command Set",
    IDENTIFIER_UNAVAILABLE = 0x12d => "Identifier Unavailable",

    // Command specific status of fabrics commands, and the same codes in the NVM command set.
    CONNECT_INCOMPATIBLE_FORMAT = 0x180 => "Connect Incompatible Format or Conflicting Attributes",
    CONTROLLER_BUSY = 0x181 => "Connect Controller Busy or Invalid Protection Information",
    CONNECT_INVALID_PARAMETERS = 0x182 => "Connect Invalid Parameters or Write to Read Only Range",
    CONNECT_RESTART_DISCOVERY = 0x183 => "Connect Restart Discovery or Command Size Limit Exceeded",
    CONNECT_INVALID_HOST = 0x184 => "Connect Invalid Host",
    INVALID_QUEUE_TYPE = 0x185 => "Invalid Queue Type",
    DISCOVERY_RESTART = 0x190 => "Discover Restart",
    AUTHENTICATION_REQUIRED = 0x191 => "Authentication Required",
    CONFLICTING_ATTRIBUTES = 0x180 => "Conflicting Attributes",
    INVALID_PROTECTION_INFORMATION = 0x181 => "Invalid Protection Information",
    WRITE_TO_READ_ONLY_RANGE = 0x182 => "Attempted Write to Read Only Range",
    COMMAND_SIZE_LIMIT_EXCEEDED = 0x183 => "Command Size Limit Exceeded",
    ZONE_BOUNDARY_ERROR = 0x1b8 => "Zoned Boundary Error",
    ZONE_IS_FULL = 0x1b9 => "Zone Is Full",
    ZONE_IS_READ_ONLY = 0x1ba => "Zone Is Read Only",
    ZONE_IS_OFFLINE = 0x1bb => "Zone Is Offline",
    ZONE_INVALID_WRITE = 0x1bc => "Zone Invalid Write",
    TOO_MANY_ACTIVE_ZONES = 0x1bd => "Too Many Active Zones",
    TOO_MANY_OPEN_ZONES = 0x1be => "Too Many Open Zones",
    INVALID_ZONE_TRANSITION = 0x1bf => "Invalid Zone State Transition",

    // Media and data integrity errors.
    WRITE_FAULT = 0x280 => "Write Fault",
    UNRECOVERED_READ_ERROR = 0x281 => "Unrecovered Read Error",
    GUARD_CHECK_ERROR = 0x282 => "End-to-end Guard Check Error",
    APPLICATION_TAG_CHECK_ERROR = 0x283 => "End-to-end Application Tag Check Error",
    REFERENCE_TAG_CHECK_ERROR = 0x284 => "End-to-end Reference Tag Check Error",
    COMPARE_FAILURE = 0x285 => "Compare Failure",
    ACCESS_DENIED = 0x286 => "Access Denied",
    DEALLOCATED_OR_UNWRITTEN = 0x287 => "Deallocated or Unwritten Logical Block",
    STORAGE_TAG_CHECK_ERROR = 0x288 => "End-to-end Storage Tag Check Error",

    // Path related status.
    INTERNAL_PATH_ERROR = 0x300 => "Internal Path Error",
    ANA_PERSISTENT_LOSS = 0x301 => "Asymmetric Access Persistent Loss",
    ANA_INACCESSIBLE = 0x302 => "Asymmetric Access Inaccessible",
    ANA_TRANSITION = 0x303 => "Asymmetric Access Transition",
    CONTROLLER_PATHING_ERROR = 0x360 => "Controller Pathing Error",
    HOST_PATHING_ERROR = 0x370 => "Host Pathing Error",
    ABORTED_BY_HOST = 0x371 => "Command Aborted by Host",
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bits_are_where_the_specification_has_them() {
        // Base 3.3.3.2.1, bits 31:17 of DW3: DNR, M, CRD (2), SCT (3), SC (8); then the phase tag.
        let status = Status::COMPARE_FAILURE.with_dnr().with_more().with_crd(2);
        // 1, 1, 10, 010, 10000101, 1.
        assert_eq!(status.to_field(true), 0b1110_0101_0000_1011);
        assert_eq!(Status::from_field(0b1110_0101_0000_1011), status);
        assert_eq!((status.sct(), status.sc(), status.crd()), (2, 0x85, 2));
        assert!(status.dnr() && status.more());
        assert_eq!(status.code(), Status::COMPARE_FAILURE);
        assert_eq!(status.status_type(), StatusType::MediaAndDataIntegrity);
    }

    #[test]
    fn every_field_round_trips() {
        for field in 0..=u16::MAX {
            let status = Status::from_field(field);
            assert_eq!(status.to_field(field & 1 == 1), field);
            assert_eq!(Status::from_bits(status.bits()), status);
            assert!(!status.to_string().is_empty());
        }
    }

    #[test]
    fn types() {
        let types = [0, 1, 2, 3, 5, 7].map(|sct| Status::new(sct, 1).status_type());
        assert_eq!(
            types,
            [
                StatusType::Generic,
                StatusType::CommandSpecific,
                StatusType::MediaAndDataIntegrity,
                StatusType::PathRelated,
                StatusType::Reserved(5),
                StatusType::VendorSpecific,
            ]
        );
    }

    #[test]
    fn codes_as_the_specification_lists_them() {
        let codes = [
            (Status::INVALID_FIELD, 0, 0x02),
            (Status::INVALID_NAMESPACE_OR_FORMAT, 0, 0x0b),
            (Status::DATA_SGL_LENGTH_INVALID, 0, 0x0f),
            (Status::SGL_OFFSET_INVALID, 0, 0x16),
            (Status::TRANSIENT_TRANSPORT_ERROR, 0, 0x22),
            (Status::LBA_OUT_OF_RANGE, 0, 0x80),
            (Status::INVALID_QUEUE_ID, 1, 0x01),
            (Status::INVALID_LOG_PAGE, 1, 0x09),
            (Status::CONNECT_INCOMPATIBLE_FORMAT, 1, 0x80),
            (Status::CONTROLLER_BUSY, 1, 0x81),
            (Status::CONNECT_INVALID_PARAMETERS, 1, 0x82),
            (Status::CONNECT_RESTART_DISCOVERY, 1, 0x83),
            (Status::CONNECT_INVALID_HOST, 1, 0x84),
            (Status::DISCOVERY_RESTART, 1, 0x90),
            (Status::AUTHENTICATION_REQUIRED, 1, 0x91),
            (Status::UNRECOVERED_READ_ERROR, 2, 0x81),
            (Status::COMPARE_FAILURE, 2, 0x85),
            (Status::ABORTED_BY_HOST, 3, 0x71),
        ];
        for (status, sct, sc) in codes {
            assert_eq!(status, Status::new(sct, sc));
            assert!(status.name().is_some());
        }
    }

    #[test]
    fn display_names_the_code() {
        assert_eq!(
            Status::INVALID_FIELD.with_dnr().to_string(),
            "Invalid Field in Command (sct 0x0, sc 0x02, dnr)"
        );
        assert_eq!(
            Status::new(7, 0xc1).with_crd(1).with_more().to_string(),
            "unknown status (sct 0x7, sc 0xc1, crd 1, more)"
        );
    }
}
