//! Command opcodes (Base 5 and 6, NVM 3) and the data direction they encode.

use crate::open::open_enum;

/// Direction of a command's data: the two low bits of an opcode or fabrics command type (Base
/// 3.3.3.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DataDirection {
    /// 00b: no data.
    None,
    /// 01b: host to controller.
    HostToController,
    /// 10b: controller to host.
    ControllerToHost,
    /// 11b: both.
    Bidirectional,
}

impl DataDirection {
    /// Returns the direction of the two low bits of `code`.
    #[inline]
    #[must_use]
    pub const fn of(code: u8) -> Self {
        match code & 3 {
            0 => Self::None,
            1 => Self::HostToController,
            2 => Self::ControllerToHost,
            _ => Self::Bidirectional,
        }
    }
}

open_enum! {
    /// Opcode of a command on an admin queue (Base 5).
    #[derive(zerocopy::Unaligned)]
    pub struct AdminOpcode(pub u8) {
        DELETE_IO_SQ = 0x00 => "Delete I/O Submission Queue",
        CREATE_IO_SQ = 0x01 => "Create I/O Submission Queue",
        GET_LOG_PAGE = 0x02 => "Get Log Page",
        DELETE_IO_CQ = 0x04 => "Delete I/O Completion Queue",
        CREATE_IO_CQ = 0x05 => "Create I/O Completion Queue",
        IDENTIFY = 0x06 => "Identify",
        ABORT = 0x08 => "Abort",
        SET_FEATURES = 0x09 => "Set Features",
        GET_FEATURES = 0x0a => "Get Features",
        ASYNC_EVENT_REQUEST = 0x0c => "Asynchronous Event Request",
        NAMESPACE_MANAGEMENT = 0x0d => "Namespace Management",
        FIRMWARE_COMMIT = 0x10 => "Firmware Commit",
        FIRMWARE_DOWNLOAD = 0x11 => "Firmware Image Download",
        DEVICE_SELF_TEST = 0x14 => "Device Self-test",
        NAMESPACE_ATTACHMENT = 0x15 => "Namespace Attachment",
        KEEP_ALIVE = 0x18 => "Keep Alive",
        DIRECTIVE_SEND = 0x19 => "Directive Send",
        DIRECTIVE_RECEIVE = 0x1a => "Directive Receive",
        VIRTUALIZATION_MANAGEMENT = 0x1c => "Virtualization Management",
        NVME_MI_SEND = 0x1d => "NVMe-MI Send",
        NVME_MI_RECEIVE = 0x1e => "NVMe-MI Receive",
        CAPACITY_MANAGEMENT = 0x20 => "Capacity Management",
        LOCKDOWN = 0x24 => "Lockdown",
        DOORBELL_BUFFER_CONFIG = 0x7c => "Doorbell Buffer Config",
        FABRICS = 0x7f => "Fabrics",
        FORMAT_NVM = 0x80 => "Format NVM",
        SECURITY_SEND = 0x81 => "Security Send",
        SECURITY_RECEIVE = 0x82 => "Security Receive",
        SANITIZE = 0x84 => "Sanitize",
        GET_LBA_STATUS = 0x86 => "Get LBA Status",
    }
}

open_enum! {
    /// Opcode of a command on an I/O queue, NVM command set (Base 7, NVM 3).
    #[derive(zerocopy::Unaligned)]
    pub struct IoOpcode(pub u8) {
        FLUSH = 0x00 => "Flush",
        WRITE = 0x01 => "Write",
        READ = 0x02 => "Read",
        WRITE_UNCORRECTABLE = 0x04 => "Write Uncorrectable",
        COMPARE = 0x05 => "Compare",
        WRITE_ZEROES = 0x08 => "Write Zeroes",
        DATASET_MANAGEMENT = 0x09 => "Dataset Management",
        VERIFY = 0x0c => "Verify",
        RESERVATION_REGISTER = 0x0d => "Reservation Register",
        RESERVATION_REPORT = 0x0e => "Reservation Report",
        RESERVATION_ACQUIRE = 0x11 => "Reservation Acquire",
        RESERVATION_RELEASE = 0x15 => "Reservation Release",
        COPY = 0x19 => "Copy",
        FABRICS = 0x7f => "Fabrics",
    }
}

open_enum! {
    /// Fabrics command type, byte 4 of a command with opcode 7Fh (Base 6).
    #[derive(zerocopy::Unaligned)]
    pub struct FabricsType(pub u8) {
        PROPERTY_SET = 0x00 => "Property Set",
        CONNECT = 0x01 => "Connect",
        PROPERTY_GET = 0x04 => "Property Get",
        AUTHENTICATION_SEND = 0x05 => "Authentication Send",
        AUTHENTICATION_RECEIVE = 0x06 => "Authentication Receive",
        DISCONNECT = 0x08 => "Disconnect",
    }
}

impl AdminOpcode {
    /// Direction of the opcode's data. For [`Self::FABRICS`] the [`FabricsType`] has it.
    #[inline]
    #[must_use]
    pub const fn direction(self) -> DataDirection {
        DataDirection::of(self.0)
    }
}

impl IoOpcode {
    /// Direction of the opcode's data. For [`Self::FABRICS`] the [`FabricsType`] has it.
    #[inline]
    #[must_use]
    pub const fn direction(self) -> DataDirection {
        DataDirection::of(self.0)
    }
}

impl FabricsType {
    /// Direction of the command's data.
    #[inline]
    #[must_use]
    pub const fn direction(self) -> DataDirection {
        DataDirection::of(self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directions_are_in_the_low_bits() {
        assert_eq!(IoOpcode::READ.direction(), DataDirection::ControllerToHost);
        assert_eq!(IoOpcode::WRITE.direction(), DataDirection::HostToController);
        assert_eq!(IoOpcode::COMPARE.direction(), DataDirection::HostToController);
        assert_eq!(IoOpcode::DATASET_MANAGEMENT.direction(), DataDirection::HostToController);
        assert_eq!(IoOpcode::WRITE_ZEROES.direction(), DataDirection::None);
        assert_eq!(IoOpcode::VERIFY.direction(), DataDirection::None);
        assert_eq!(IoOpcode::FLUSH.direction(), DataDirection::None);
        assert_eq!(AdminOpcode::IDENTIFY.direction(), DataDirection::ControllerToHost);
        assert_eq!(AdminOpcode::GET_LOG_PAGE.direction(), DataDirection::ControllerToHost);
        assert_eq!(AdminOpcode::SET_FEATURES.direction(), DataDirection::HostToController);
        assert_eq!(AdminOpcode::KEEP_ALIVE.direction(), DataDirection::None);
        assert_eq!(AdminOpcode::FABRICS.direction(), DataDirection::Bidirectional);
        assert_eq!(FabricsType::CONNECT.direction(), DataDirection::HostToController);
        assert_eq!(FabricsType::PROPERTY_GET.direction(), DataDirection::None);
    }

    #[test]
    fn unknown_values_are_kept() {
        assert_eq!(AdminOpcode(0xc5).to_string(), "0xc5");
        assert_eq!(IoOpcode::from(0x02).to_string(), "Read");
        assert_eq!(AdminOpcode(0xc5).name(), None);
    }
}
