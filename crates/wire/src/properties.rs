//! Controller properties (Base 3.1.3), which Property Get and Property Set access.

use bitfield_struct::bitfield;

/// Offset of a property in bytes (Base 3.1.3).
pub mod offset {
    /// Controller Capabilities, 8 bytes.
    pub const CAP: u32 = 0x00;
    /// Version, 4 bytes.
    pub const VS: u32 = 0x08;
    /// Controller Configuration, 4 bytes.
    pub const CC: u32 = 0x14;
    /// Controller Status, 4 bytes.
    pub const CSTS: u32 = 0x1c;
    /// NVM Subsystem Reset, 4 bytes.
    pub const NSSR: u32 = 0x20;
    /// Controller Ready Timeouts, 4 bytes.
    pub const CRTO: u32 = 0x68;
}

/// Value to write to NSSR to reset the NVM subsystem: "NVMe" (Base 3.1.3.7).
pub const NSSR_RESET: u32 = 0x4e56_4d65;

/// CAP.CSS bit 0: NVM command set (Base 3.1.3.1).
pub const CAP_CSS_NVM: u8 = 1 << 0;
/// CAP.CSS bit 6: one or more I/O command sets, selected with CC.CSS 110b.
pub const CAP_CSS_IO_SETS: u8 = 1 << 6;
/// CAP.CSS bit 7: no I/O command set; administrative and discovery controllers.
pub const CAP_CSS_ADMIN_ONLY: u8 = 1 << 7;

/// CC.CSS 000b: NVM command set (Base 3.1.3.5).
pub const CC_CSS_NVM: u8 = 0b000;
/// CC.CSS 110b: all supported I/O command sets.
pub const CC_CSS_ALL: u8 = 0b110;
/// CC.CSS 111b: admin command set only.
pub const CC_CSS_ADMIN_ONLY: u8 = 0b111;

/// CAP.CRMS bit 0: controller ready with media (Base 3.1.3.1).
pub const CAP_CRMS_WITH_MEDIA: u8 = 1 << 0;
/// CAP.CRMS bit 1: controller ready independent of media.
pub const CAP_CRMS_INDEPENDENT: u8 = 1 << 1;

/// CC.AMS 000b: round robin (Base 3.1.3.5).
pub const CC_AMS_ROUND_ROBIN: u8 = 0b000;

/// CC.SHN 01b: normal shutdown.
pub const CC_SHN_NORMAL: u8 = 0b01;
/// CC.SHN 10b: abrupt shutdown.
pub const CC_SHN_ABRUPT: u8 = 0b10;

/// CSTS.SHST 00b: no shutdown was requested (Base 3.1.3.6).
pub const CSTS_SHST_NORMAL: u8 = 0b00;
/// CSTS.SHST 01b: shutdown is in progress.
pub const CSTS_SHST_OCCURRING: u8 = 0b01;
/// CSTS.SHST 10b: shutdown is complete.
pub const CSTS_SHST_COMPLETE: u8 = 0b10;

/// Controller Capabilities (Base 3.1.3.1).
#[bitfield(u64)]
#[derive(PartialEq, Eq)]
pub struct Cap {
    /// Maximum Queue Entries Supported, 0's based.
    pub mqes: u16,
    /// Contiguous Queues Required; 1 over fabrics.
    pub cqr: bool,
    /// Arbitration Mechanism Supported; bit 0 weighted round robin.
    #[bits(2)]
    pub ams: u8,
    #[bits(5)]
    __: u8,
    /// Timeout for CSTS.RDY to follow CC.EN, in 500 ms.
    pub to: u8,
    /// Doorbell Stride; 0 over fabrics.
    #[bits(4)]
    pub dstrd: u8,
    /// NVM Subsystem Reset Supported.
    pub nssrs: bool,
    /// Command Sets Supported, see `CAP_CSS_*`.
    pub css: u8,
    /// Boot Partition Support.
    pub bps: bool,
    /// Controller Power Scope.
    #[bits(2)]
    pub cps: u8,
    /// Memory Page Size Minimum: 2 to the (12 + value) bytes.
    #[bits(4)]
    pub mpsmin: u8,
    /// Memory Page Size Maximum: 2 to the (12 + value) bytes.
    #[bits(4)]
    pub mpsmax: u8,
    /// Persistent Memory Region Supported.
    pub pmrs: bool,
    /// Controller Memory Buffer Supported.
    pub cmbs: bool,
    /// NVM Subsystem Shutdown Supported.
    pub nsss: bool,
    /// Controller Ready Modes Supported: bit 0 with media (mandatory), bit 1 independent of media.
    #[bits(2)]
    pub crms: u8,
    #[bits(3)]
    __: u8,
}

impl Cap {
    /// Maximum entries of an I/O queue, 1 to 65536.
    #[inline]
    #[must_use]
    pub const fn queue_entries(self) -> u32 {
        self.mqes() as u32 + 1
    }

    /// Timeout for CSTS.RDY to follow CC.EN, in milliseconds.
    #[inline]
    #[must_use]
    pub const fn timeout_ms(self) -> u32 {
        self.to() as u32 * TIMEOUT_UNIT_MS
    }

    /// Bytes from one doorbell to the next.
    #[inline]
    #[must_use]
    pub const fn doorbell_stride(self) -> u32 {
        4 << self.dstrd()
    }

    /// Minimum memory page in bytes: the unit of MDTS.
    #[inline]
    #[must_use]
    pub const fn page_size_min(self) -> u32 {
        1 << (12 + self.mpsmin())
    }

    /// Maximum memory page in bytes.
    #[inline]
    #[must_use]
    pub const fn page_size_max(self) -> u32 {
        1 << (12 + self.mpsmax())
    }
}

/// The unit of CAP.TO and CRTO in milliseconds.
const TIMEOUT_UNIT_MS: u32 = 500;

/// Version (Base 3.1.3.2).
#[bitfield(u32)]
#[derive(PartialEq, Eq)]
pub struct Version {
    /// Tertiary version number.
    pub ter: u8,
    /// Minor version number.
    pub mnr: u8,
    /// Major version number.
    pub mjr: u16,
}

impl Version {
    /// NVM Express 2.0.
    pub const V2_0: Self = Self(0x0002_0000);
}

/// Controller Configuration (Base 3.1.3.5).
#[bitfield(u32)]
#[derive(PartialEq, Eq)]
pub struct Cc {
    /// Enable.
    pub en: bool,
    #[bits(3)]
    __: u8,
    /// I/O Command Set Selected, see `CC_CSS_*`.
    #[bits(3)]
    pub css: u8,
    /// Memory Page Size: 2 to the (12 + value) bytes.
    #[bits(4)]
    pub mps: u8,
    /// Arbitration Mechanism Selected.
    #[bits(3)]
    pub ams: u8,
    /// Shutdown Notification, see `CC_SHN_*`.
    #[bits(2)]
    pub shn: u8,
    /// I/O Submission Queue Entry Size, as a power of two; 6.
    #[bits(4)]
    pub iosqes: u8,
    /// I/O Completion Queue Entry Size, as a power of two; 4.
    #[bits(4)]
    pub iocqes: u8,
    /// Controller Ready Independent of Media Enable.
    pub crime: bool,
    #[bits(7)]
    __: u8,
}

impl Cc {
    /// The memory page in use, in bytes.
    #[inline]
    #[must_use]
    pub const fn page_size(self) -> u32 {
        1 << (12 + self.mps())
    }
}

/// Controller Status (Base 3.1.3.6).
#[bitfield(u32)]
#[derive(PartialEq, Eq)]
pub struct Csts {
    /// Ready.
    pub rdy: bool,
    /// Controller Fatal Status.
    pub cfs: bool,
    /// Shutdown Status, see `CSTS_SHST_*`.
    #[bits(2)]
    pub shst: u8,
    /// NVM Subsystem Reset Occurred.
    pub nssro: bool,
    /// Processing Paused.
    pub pp: bool,
    /// Shutdown Type: 1 if SHST applies to an NVM subsystem shutdown.
    pub st: bool,
    #[bits(25)]
    __: u32,
}

/// Controller Ready Timeouts (Base 3.1.3), both in 500 ms.
#[bitfield(u32)]
#[derive(PartialEq, Eq)]
pub struct Crto {
    /// Controller Ready With Media Timeout.
    pub crwmt: u16,
    /// Controller Ready Independent of Media Timeout.
    pub crimt: u16,
}

impl Crto {
    /// Controller Ready With Media Timeout in milliseconds.
    #[must_use]
    pub const fn with_media_ms(self) -> u32 {
        self.crwmt() as u32 * TIMEOUT_UNIT_MS
    }

    /// Controller Ready Independent of Media Timeout in milliseconds.
    #[must_use]
    pub const fn independent_ms(self) -> u32 {
        self.crimt() as u32 * TIMEOUT_UNIT_MS
    }
}

/// Returns the size in bytes of the property at `offset`, or `None` if this crate defines no
/// property there.
#[must_use]
pub const fn size_of_property(offset: u32) -> Option<u8> {
    match offset {
        offset::CAP => Some(8),
        offset::VS | offset::CC | offset::CSTS | offset::NSSR | offset::CRTO => Some(4),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cap_bits() {
        // Base 3.1.3.1.
        assert_eq!(Cap::new().with_mqes(0xffff).into_bits(), 0xffff);
        assert_eq!(Cap::new().with_cqr(true).into_bits(), 1 << 16);
        assert_eq!(Cap::new().with_ams(3).into_bits(), 3 << 17);
        assert_eq!(Cap::new().with_to(0xff).into_bits(), 0xff << 24);
        assert_eq!(Cap::new().with_dstrd(0xf).into_bits(), 0xf << 32);
        assert_eq!(Cap::new().with_nssrs(true).into_bits(), 1 << 36);
        assert_eq!(Cap::new().with_css(CAP_CSS_NVM).into_bits(), 1 << 37);
        assert_eq!(Cap::new().with_css(CAP_CSS_IO_SETS).into_bits(), 1 << 43);
        assert_eq!(Cap::new().with_css(CAP_CSS_ADMIN_ONLY).into_bits(), 1 << 44);
        assert_eq!(Cap::new().with_bps(true).into_bits(), 1 << 45);
        assert_eq!(Cap::new().with_cps(3).into_bits(), 3 << 46);
        assert_eq!(Cap::new().with_mpsmin(0xf).into_bits(), 0xf << 48);
        assert_eq!(Cap::new().with_mpsmax(0xf).into_bits(), 0xf << 52);
        assert_eq!(Cap::new().with_pmrs(true).into_bits(), 1 << 56);
        assert_eq!(Cap::new().with_cmbs(true).into_bits(), 1 << 57);
        assert_eq!(Cap::new().with_nsss(true).into_bits(), 1 << 58);
        assert_eq!(Cap::new().with_crms(3).into_bits(), 3 << 59);
    }

    #[test]
    fn cc_bits() {
        // Base 3.1.3.5. The value with which Linux enables a controller: IOSQES 6, IOCQES 4, EN.
        let cc = Cc::from_bits(0x0046_0001);
        assert!(cc.en());
        assert_eq!((cc.iosqes(), cc.iocqes(), cc.css(), cc.mps(), cc.shn()), (6, 4, 0, 0, 0));
        assert_eq!(Cc::new().with_css(CC_CSS_ALL).into_bits(), 0b110 << 4);
        assert_eq!(Cc::new().with_mps(0xf).into_bits(), 0xf << 7);
        assert_eq!(Cc::new().with_ams(7).into_bits(), 7 << 11);
        assert_eq!(Cc::new().with_shn(CC_SHN_ABRUPT).into_bits(), 0b10 << 14);
        assert_eq!(Cc::new().with_crime(true).into_bits(), 1 << 24);
    }

    #[test]
    fn csts_crto_and_version_bits() {
        // Base 3.1.3.6, 3.1.3.2.
        assert_eq!(Csts::new().with_rdy(true).into_bits(), 1);
        assert_eq!(Csts::new().with_cfs(true).into_bits(), 1 << 1);
        assert_eq!(Csts::new().with_shst(CSTS_SHST_COMPLETE).into_bits(), 0b10 << 2);
        assert_eq!(Csts::new().with_nssro(true).into_bits(), 1 << 4);
        assert_eq!(Csts::new().with_pp(true).into_bits(), 1 << 5);
        assert_eq!(Csts::new().with_st(true).into_bits(), 1 << 6);
        assert_eq!(Crto::new().with_crwmt(2).with_crimt(1).into_bits(), 0x0001_0002);
        let version = Version::V2_0;
        assert_eq!((version.mjr(), version.mnr(), version.ter()), (2, 0, 0));
        assert_eq!(NSSR_RESET.to_be_bytes(), *b"NVMe");
    }

    #[test]
    fn numbers_of_cap_cc_and_crto() {
        let cap = Cap::new().with_mqes(0xffff).with_to(255).with_dstrd(15).with_mpsmax(15);
        assert_eq!((cap.queue_entries(), Cap::new().queue_entries()), (1 << 16, 1));
        assert_eq!(cap.timeout_ms(), 127_500);
        assert_eq!((cap.doorbell_stride(), Cap::new().doorbell_stride()), (128 << 10, 4));
        assert_eq!((cap.page_size_min(), cap.page_size_max()), (4096, 128 << 20));
        assert_eq!(Cc::new().with_mps(1).page_size(), 8192);
        let crto = Crto::new().with_crwmt(20).with_crimt(3);
        assert_eq!((crto.with_media_ms(), crto.independent_ms()), (10_000, 1500));
    }

    #[test]
    fn sizes() {
        let sizes = [0x00, 0x08, 0x14, 0x1c, 0x20, 0x68].map(size_of_property);
        assert_eq!(sizes, [Some(8), Some(4), Some(4), Some(4), Some(4), Some(4)]);
        assert_eq!([0x04, 0x0c, 0x24, 0xffff_fffc].map(size_of_property), [None; 4]);
    }
}
