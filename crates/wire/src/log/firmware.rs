//! Firmware Slot Information, log page 03h (Base 5.16.1.4).

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::open::zero_default;

/// Firmware Slot Information: 512 bytes.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
pub struct FirmwareSlotLog {
    /// Byte 0, Active Firmware Info: active slot in bits 2:0, slot after the next reset in 6:4.
    pub afi: u8,
    /// Bytes 1-7, reserved.
    pub reserved1: [u8; 7],
    /// Bytes 8-63, Firmware Revision for Slot 1 to 7, ASCII; zeroes: none.
    pub frs: [[u8; 8]; 7],
    /// Bytes 64-511, reserved.
    pub reserved64: [u8; 448],
}
const _: () = assert!(size_of::<FirmwareSlotLog>() == 512);

zero_default!(FirmwareSlotLog);
