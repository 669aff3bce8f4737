//! Error Information, log page 01h (Base 5.16.1.2).

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::TransportType;
use crate::open::zero_default;
use crate::status::Status;

/// An entry of the Error Information log page, newest first: 64 bytes.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
pub struct ErrorInformation {
    /// Bytes 0-7, Error Count: number of this error; 0: the entry is not used.
    pub error_count: U64,
    /// Bytes 8-9, Submission Queue ID; FFFFh: of no command.
    pub sqid: U16,
    /// Bytes 10-11, Command ID; FFFFh: of no command.
    pub cid: U16,
    /// Bytes 12-13, Status Field: phase tag in bit 0, status above it.
    pub status: U16,
    /// Bytes 14-15, Parameter Error Location: byte in bits 7:0, bit in 10:8; FFFFh: of no
    /// parameter.
    pub parameter_location: U16,
    /// Bytes 16-23, LBA: the first that had the error.
    pub lba: U64,
    /// Bytes 24-27, Namespace.
    pub nsid: U32,
    /// Byte 28, Vendor Specific Information Available: a log page, or 0.
    pub vendor_log: u8,
    /// Byte 29, Transport Type.
    pub trtype: TransportType,
    /// Bytes 30-31, reserved.
    pub reserved30: U16,
    /// Bytes 32-39, Command Specific Information.
    pub command_specific: U64,
    /// Bytes 40-41, Transport Type Specific Information.
    pub transport_specific: U16,
    /// Bytes 42-63, reserved.
    pub reserved42: [u8; 22],
}
const _: () = assert!(size_of::<ErrorInformation>() == 64);

impl ErrorInformation {
    /// The status, without the phase tag.
    #[must_use]
    pub fn status(&self) -> Status {
        Status::from_field(self.status.get())
    }
}

zero_default!(ErrorInformation);
