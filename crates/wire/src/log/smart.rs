//! SMART / Health Information, log page 02h (Base 5.16.1.3).

use zerocopy::little_endian::{U16, U32, U128};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::open::zero_default;

/// SMART / Health Information: 512 bytes.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
pub struct SmartLog {
    /// Byte 0, Critical Warning, see [`critical_warning`].
    pub critical_warning: u8,
    /// Bytes 1-2, Composite Temperature in kelvins.
    pub temperature: U16,
    /// Byte 3, Available Spare in percent.
    pub available_spare: u8,
    /// Byte 4, Available Spare Threshold in percent.
    pub spare_threshold: u8,
    /// Byte 5, Percentage Used; up to 255.
    pub percentage_used: u8,
    /// Byte 6, Endurance Group Critical Warning Summary.
    pub endurance_group_warning: u8,
    /// Bytes 7-31, reserved.
    pub reserved7: [u8; 25],
    /// Bytes 32-47, Data Units Read, in 512,000 bytes, rounded up.
    pub data_units_read: U128,
    /// Bytes 48-63, Data Units Written, in 512,000 bytes, rounded up.
    pub data_units_written: U128,
    /// Bytes 64-79, Host Read Commands.
    pub host_reads: U128,
    /// Bytes 80-95, Host Write Commands.
    pub host_writes: U128,
    /// Bytes 96-111, Controller Busy Time in minutes.
    pub busy_minutes: U128,
    /// Bytes 112-127, Power Cycles.
    pub power_cycles: U128,
    /// Bytes 128-143, Power On Hours.
    pub power_on_hours: U128,
    /// Bytes 144-159, Unsafe Shutdowns.
    pub unsafe_shutdowns: U128,
    /// Bytes 160-175, Media and Data Integrity Errors.
    pub media_errors: U128,
    /// Bytes 176-191, Number of Error Information Log Entries.
    pub error_log_entries: U128,
    /// Bytes 192-195, Warning Composite Temperature Time in minutes.
    pub warning_temperature_minutes: U32,
    /// Bytes 196-199, Critical Composite Temperature Time in minutes.
    pub critical_temperature_minutes: U32,
    /// Bytes 200-215, Temperature Sensor 1 to 8 in kelvins; 0: none.
    pub sensors: [U16; 8],
    /// Bytes 216-223, Thermal Management Temperature 1 and 2 Transition Count.
    pub thermal_transitions: [U32; 2],
    /// Bytes 224-231, Total Time For Thermal Management Temperature 1 and 2 in seconds.
    pub thermal_seconds: [U32; 2],
    /// Bytes 232-511, reserved.
    pub reserved232: [u8; 280],
}
const _: () = assert!(size_of::<SmartLog>() == 512);
const _: () = assert!(core::mem::offset_of!(SmartLog, data_units_read) == 32);
const _: () = assert!(core::mem::offset_of!(SmartLog, sensors) == 200);

/// Bits of Critical Warning.
pub mod critical_warning {
    /// Available spare is below its threshold.
    pub const SPARE: u8 = 1 << 0;
    /// A temperature is at or beyond a threshold.
    pub const TEMPERATURE: u8 = 1 << 1;
    /// The subsystem's reliability is degraded.
    pub const RELIABILITY: u8 = 1 << 2;
    /// The media are read only.
    pub const READ_ONLY: u8 = 1 << 3;
    /// The volatile memory backup has failed.
    pub const BACKUP_FAILED: u8 = 1 << 4;
    /// The persistent memory region is read only or unreliable.
    pub const PMR_UNRELIABLE: u8 = 1 << 5;
}

zero_default!(SmartLog);
