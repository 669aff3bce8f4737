//! Sanitize (Base 5.24, 8.21), and its log page 81h (Base 5.16.1.25).

use bitfield_struct::bitfield;
use zerocopy::little_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::opcode::AdminOpcode;
use crate::open::{open_enum, zero_default};
use crate::sqe::Sqe;

open_enum! {
    /// Sanitize Action (SANACT).
    pub struct SanitizeAction(pub u8) {
        EXIT_FAILURE_MODE = 0x1 => "exit failure mode",
        BLOCK_ERASE = 0x2 => "block erase",
        OVERWRITE = 0x3 => "overwrite",
        CRYPTO_ERASE = 0x4 => "crypto erase",
    }
}

/// Sanitize. It destroys everything in the NVM subsystem.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sanitize {
    /// Action, 3 bits.
    pub action: SanitizeAction,
    /// Allow Unrestricted Sanitize Exit (AUSE).
    pub unrestricted_exit: bool,
    /// Overwrite: passes, 1 to 16 (OWPASS, where 0 is 16).
    pub passes: u8,
    /// Overwrite: invert the pattern between passes (OIPBP).
    pub invert: bool,
    /// No-Deallocate After Sanitize.
    pub no_deallocate: bool,
    /// Overwrite: the pattern (OVRPAT).
    pub pattern: u32,
}

impl Sanitize {
    /// Creates a Sanitize with `action` and one pass of zeroes for an overwrite; all other fields
    /// are zero.
    #[must_use]
    pub const fn new(action: SanitizeAction) -> Self {
        Self {
            action,
            unrestricted_exit: false,
            passes: 1,
            invert: false,
            no_deallocate: false,
            pattern: 0,
        }
    }

    /// Parses the fields of `sqe`, which is a Sanitize.
    #[must_use]
    pub fn parse(sqe: &Sqe) -> Self {
        let [b0, b1, ..] = sqe.cdw10.get().to_le_bytes();
        let passes = b0 >> 4;
        Self {
            action: SanitizeAction(b0 & 7),
            unrestricted_exit: b0 & 1 << 3 != 0,
            passes: if passes == 0 { 16 } else { passes },
            invert: b1 & 1 != 0,
            no_deallocate: b1 & 1 << 1 != 0,
            pattern: sqe.cdw11.get(),
        }
    }

    /// Returns the command. `passes` is clamped to 1 to 16.
    #[must_use]
    pub fn encode(&self, cid: u16) -> Sqe {
        let cdw10 = u32::from(self.action.0 & 7)
            | u32::from(self.unrestricted_exit) << 3
            | u32::from(self.passes.clamp(1, 16) & 0xf) << 4
            | u32::from(self.invert) << 8
            | u32::from(self.no_deallocate) << 9;
        Sqe::admin(AdminOpcode::SANITIZE, cid, 0).without_data().with_cdw10([cdw10, self.pattern])
    }
}

/// Bits of SANICAP, in Identify Controller.
pub mod sanicap {
    /// Crypto Erase.
    pub const CRYPTO_ERASE: u32 = 1 << 0;
    /// Block Erase.
    pub const BLOCK_ERASE: u32 = 1 << 1;
    /// Overwrite.
    pub const OVERWRITE: u32 = 1 << 2;
    /// No-Deallocate After Sanitize is inhibited.
    pub const NO_DEALLOCATE_INHIBITED: u32 = 1 << 29;
}

open_enum! {
    /// Status of the most recent sanitize operation, 3 bits of SSTAT.
    pub struct SanitizeState(pub u8) {
        NEVER = 0x0 => "never sanitized",
        SUCCEEDED = 0x1 => "succeeded",
        IN_PROGRESS = 0x2 => "in progress",
        FAILED = 0x3 => "failed",
        SUCCEEDED_DEALLOCATED = 0x4 => "succeeded, deallocated in spite of what was asked",
    }
}

/// Sanitize Status (SSTAT), bytes 2-3 of the log page.
#[bitfield(u16)]
#[derive(PartialEq, Eq)]
pub struct SanitizeStatus {
    /// See [`SanitizeState`].
    #[bits(3)]
    pub state: u8,
    /// Completed passes of an overwrite.
    #[bits(5)]
    pub passes: u8,
    /// Global Data Erased: nothing was written since the last success, or since manufacture.
    pub data_erased: bool,
    #[bits(7)]
    __: u8,
}

/// Value of an estimated time that is not reported.
pub const SANITIZE_TIME_UNKNOWN: u32 = 0xffff_ffff;

/// Sanitize Status, log page 81h: 512 bytes.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
pub struct SanitizeLog {
    /// Bytes 0-1, Sanitize Progress, in 1/65536; FFFFh when none is in progress.
    pub progress: U16,
    /// Bytes 2-3, Sanitize Status, see [`SanitizeStatus`].
    pub status: U16,
    /// Bytes 4-7, CDW10 of the Sanitize that started the operation.
    pub cdw10: U32,
    /// Bytes 8-11, Estimated Time For Overwrite in seconds, or [`SANITIZE_TIME_UNKNOWN`]. The next
    /// five fields have the same form.
    pub overwrite_seconds: U32,
    /// Bytes 12-15, Estimated Time For Block Erase.
    pub block_erase_seconds: U32,
    /// Bytes 16-19, Estimated Time For Crypto Erase.
    pub crypto_erase_seconds: U32,
    /// Bytes 20-23, the same for an overwrite with No-Deallocate.
    pub overwrite_no_deallocate_seconds: U32,
    /// Bytes 24-27, the same for a block erase with No-Deallocate.
    pub block_erase_no_deallocate_seconds: U32,
    /// Bytes 28-31, the same for a crypto erase with No-Deallocate.
    pub crypto_erase_no_deallocate_seconds: U32,
    /// Bytes 32-511, reserved.
    pub reserved32: [u8; 480],
}
const _: () = assert!(size_of::<SanitizeLog>() == 512);

impl SanitizeLog {
    /// State of the most recent operation.
    #[must_use]
    pub fn state(&self) -> SanitizeState {
        SanitizeState(SanitizeStatus::from_bits(self.status.get()).state())
    }
}

zero_default!(SanitizeLog);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::golden;

    #[test]
    fn bytes() {
        let bytes: [u8; 64] = golden::bytes(&[
            (0, &[0x84, 0x00, 0x34, 0x12]),
            // SANACT 011b, AUSE, OWPASS 5; OIPBP, NDAS.
            (40, &[0b0101_1011, 0b0000_0011]),
            (44, &[0xef, 0xbe, 0xad, 0xde]),
        ]);
        let sanitize = Sanitize {
            action: SanitizeAction::OVERWRITE,
            unrestricted_exit: true,
            passes: 5,
            invert: true,
            no_deallocate: true,
            pattern: 0xdead_beef,
        };
        assert_eq!(sanitize.encode(0x1234).as_bytes(), bytes);
        assert_eq!(Sanitize::parse(&Sqe::read_from_bytes(&bytes).unwrap()), sanitize);
        let sixteen = Sanitize { passes: 16, ..sanitize };
        assert_eq!(sixteen.encode(1).cdw10.get() >> 4 & 0xf, 0);
        assert_eq!(Sanitize::parse(&sixteen.encode(1)), sixteen);
    }

    #[test]
    fn log_page_bytes() {
        let bytes: [u8; 512] = golden::bytes(&[
            (0, &[0x01, 0xa1]),
            (2, &[0b0010_1010, 0x01]), // in progress, 5 passes, global data erased
            (4, &[0x02, 0, 0, 0xa2]),
            (8, &[0x03, 0, 0, 0xa3]),
            (12, &[0x04, 0, 0, 0xa4]),
            (16, &[0x05, 0, 0, 0xa5]),
            (20, &[0x06, 0, 0, 0xa6]),
            (24, &[0x07, 0, 0, 0xa7]),
            (28, &[0x08, 0, 0, 0xa8]),
        ]);
        let log = SanitizeLog::read_from_bytes(&bytes).unwrap();
        assert_eq!(log.progress.get(), 0xa101);
        assert_eq!(log.state(), SanitizeState::IN_PROGRESS);
        let status = SanitizeStatus::from_bits(log.status.get());
        assert_eq!((status.passes(), status.data_erased()), (5, true));
        assert_eq!(log.cdw10.get(), 0xa200_0002);
        assert_eq!(log.overwrite_seconds.get(), 0xa300_0003);
        assert_eq!(log.block_erase_seconds.get(), 0xa400_0004);
        assert_eq!(log.crypto_erase_seconds.get(), 0xa500_0005);
        assert_eq!(log.overwrite_no_deallocate_seconds.get(), 0xa600_0006);
        assert_eq!(log.block_erase_no_deallocate_seconds.get(), 0xa700_0007);
        assert_eq!(log.crypto_erase_no_deallocate_seconds.get(), 0xa800_0008);
        assert_eq!(log.as_bytes(), bytes);
    }
}
