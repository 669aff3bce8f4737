//! Format NVM (Base 5.14, NVM 4.1.2).

use crate::opcode::AdminOpcode;
use crate::open::open_enum;
use crate::sqe::Sqe;

open_enum! {
    /// Secure Erase Settings (SES).
    pub struct SecureErase(pub u8) {
        NONE = 0x0 => "none",
        USER_DATA = 0x1 => "user data erase",
        CRYPTOGRAPHIC = 0x2 => "cryptographic erase",
    }
}

open_enum! {
    /// Protection Information (PI) of the new format.
    pub struct ProtectionType(pub u8) {
        NONE = 0x0 => "none",
        TYPE1 = 0x1 => "type 1",
        TYPE2 = 0x2 => "type 2",
        TYPE3 = 0x3 => "type 3",
    }
}

/// Format NVM. It destroys everything in the namespaces that it applies to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FormatNvm {
    /// The namespace; FFFFFFFFh for all attached ones. FNA reports operations that always apply to
    /// all.
    pub nsid: u32,
    /// Index of the LBA format, 0 to 63 (LBAFL in bits 3:0, LBAFU in 13:12).
    pub lba_format: u8,
    /// Metadata is the last part of the data (MSET), not separate.
    pub metadata_inline: bool,
    /// Protection information, 3 bits.
    pub protection: ProtectionType,
    /// Protection information is in the first bytes of the metadata (PIL).
    pub protection_first: bool,
    /// Secure erase setting, 3 bits.
    pub erase: SecureErase,
}

impl FormatNvm {
    /// Formats `nsid` with LBA format `lba_format`; no metadata settings, no protection
    /// information.
    #[must_use]
    pub const fn new(nsid: u32, lba_format: u8, erase: SecureErase) -> Self {
        Self {
            nsid,
            lba_format,
            metadata_inline: false,
            protection: ProtectionType::NONE,
            protection_first: false,
            erase,
        }
    }

    /// Parses the fields of `sqe`, which is a Format NVM.
    #[must_use]
    pub fn parse(sqe: &Sqe) -> Self {
        let [b0, b1, ..] = sqe.cdw10.get().to_le_bytes();
        Self {
            nsid: sqe.nsid.get(),
            lba_format: b0 & 0xf | (b1 >> 4 & 3) << 4,
            metadata_inline: b0 & 1 << 4 != 0,
            protection: ProtectionType(b0 >> 5),
            protection_first: b1 & 1 != 0,
            erase: SecureErase(b1 >> 1 & 7),
        }
    }

    /// Returns the command.
    #[must_use]
    pub fn encode(&self, cid: u16) -> Sqe {
        let cdw10 = u32::from(self.lba_format & 0xf)
            | u32::from(self.metadata_inline) << 4
            | u32::from(self.protection.0 & 7) << 5
            | u32::from(self.protection_first) << 8
            | u32::from(self.erase.0 & 7) << 9
            | u32::from(self.lba_format >> 4 & 3) << 12;
        Sqe::admin(AdminOpcode::FORMAT_NVM, cid, self.nsid).without_data().with_cdw10([cdw10])
    }
}

#[cfg(test)]
mod tests {
    use zerocopy::{FromBytes, IntoBytes};

    use super::*;
    use crate::golden;

    #[test]
    fn bytes() {
        let bytes: [u8; 64] = golden::bytes(&[
            (0, &[0x80, 0x00, 0x34, 0x12, 0x78, 0x56, 0x34, 0x12]),
            // LBAFL 5, MSET, PI 010b; PIL, SES 010b, LBAFU 10b.
            (40, &[0b0101_0101, 0b0010_0101]),
        ]);
        let format = FormatNvm {
            nsid: 0x1234_5678,
            lba_format: 0x25,
            metadata_inline: true,
            protection: ProtectionType::TYPE2,
            protection_first: true,
            erase: SecureErase::CRYPTOGRAPHIC,
        };
        assert_eq!(format.encode(0x1234).as_bytes(), bytes);
        assert_eq!(FormatNvm::parse(&Sqe::read_from_bytes(&bytes).unwrap()), format);
    }

    #[test]
    fn a_plain_format_has_only_its_index_and_erase() {
        let plain = FormatNvm::new(1, 3, SecureErase::USER_DATA);
        assert_eq!(plain.encode(1).cdw10.get(), 0x0203);
        assert_eq!(FormatNvm::parse(&plain.encode(1)), plain);
    }
}
