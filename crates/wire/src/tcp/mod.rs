//! NVMe/TCP PDUs (TCP 3.6.2).
//!
//! A PDU has these parts: a header (`HLEN` bytes), a header digest (4 bytes, if negotiated) and
//! padding. Then follow data (from `PDO`) and a data digest (4 bytes, if negotiated and there is
//! data). `PLEN` counts all of it. A receiver reads the 8 bytes of [`CommonHeader`], and
//! [`RxRules::check`] checks them and returns the layout of the rest. The receiver then reads the
//! rest and views it as one of the structs in [`pdu`].

mod check;
mod error;
pub mod pdu;

pub use check::{PduHead, Receiver, RxRules};
pub use error::{Fes, TcpError};
pub use pdu::{
    C2HData, CapsuleCmd, CapsuleResp, CommonHeader, H2CData, ICReq, ICResp, IcParams, R2T, TermReq,
};

use crate::open::open_enum;

open_enum! {
    /// PDU type, byte 0 of the common header (TCP 3.3, Figure 10).
    #[derive(zerocopy::Unaligned)]
    pub struct PduType(pub u8) {
        IC_REQ = 0x00 => "ICReq",
        IC_RESP = 0x01 => "ICResp",
        H2C_TERM_REQ = 0x02 => "H2CTermReq",
        C2H_TERM_REQ = 0x03 => "C2HTermReq",
        CAPSULE_CMD = 0x04 => "CapsuleCmd",
        CAPSULE_RESP = 0x05 => "CapsuleResp",
        H2C_DATA = 0x06 => "H2CData",
        C2H_DATA = 0x07 => "C2HData",
        R2T = 0x09 => "R2T",
    }
}

/// Bits of the common header's FLAGS (TCP 3.6.2.6 to 3.6.2.10).
pub mod flags {
    /// The PDU has a header digest.
    pub const HDGSTF: u8 = 1 << 0;
    /// The PDU has a data digest.
    pub const DDGSTF: u8 = 1 << 1;
    /// Last data PDU of the transfer (C2HData) or of the R2T (H2CData).
    pub const LAST_PDU: u8 = 1 << 2;
    /// C2HData: the command succeeded and no CapsuleResp follows. Only with `LAST_PDU`.
    pub const SUCCESS: u8 = 1 << 3;
}

/// Bytes of the common header.
pub const CH_LEN: usize = 8;
/// HLEN of ICReq and ICResp.
pub const IC_LEN: u8 = 128;
/// HLEN of H2CTermReq and C2HTermReq.
pub const TERM_LEN: u8 = 24;
/// Maximum bytes of data in a TermReq: the header of the PDU in error (TCP 3.5).
pub const TERM_DATA_MAX: u32 = 128;
/// HLEN of CapsuleCmd.
pub const CAPSULE_CMD_LEN: u8 = 72;
/// HLEN of CapsuleResp, H2CData, C2HData and R2T.
pub const SHORT_LEN: u8 = 24;
/// Bytes of a header or data digest (CRC32C, TCP 3.3.1.1).
pub const DIGEST_LEN: u8 = 4;
/// PDU Format Version of ICReq and ICResp.
pub const PFV_1_0: u16 = 0;
/// In-capsule data bytes that every controller accepts in fabrics and admin commands (TCP 3.3,
/// Figure 11).
pub const ADMIN_IN_CAPSULE: u32 = 8192;
/// Minimum MAXH2CDATA that a controller can request (TCP 3.6.2.3).
pub const MIN_MAXH2CDATA: u32 = 4096;
/// Maximum HPDA or CPDA (0's based, in dwords): data aligned to 128 bytes.
pub const PDA_MAX: u8 = 31;

/// Negotiated framing of the PDUs of one direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Framing {
    /// PDUs other than ICReq, ICResp and TermReqs have a header digest.
    pub hdgst: bool,
    /// Data has a data digest.
    pub ddgst: bool,
    /// Bytes from the start of the PDU to which data is aligned: 4 to 128, a multiple of 4.
    align: u8,
}

impl Default for Framing {
    /// Framing before the exchange of ICReq and ICResp: no digests, dword alignment.
    fn default() -> Self {
        Self::new(false, false, 0)
    }
}

impl Framing {
    /// Creates a framing. `pda` is the receiver's data alignment as on the wire (HPDA or CPDA: 0's
    /// based, in dwords; values above [`PDA_MAX`] count as that).
    #[must_use]
    pub const fn new(hdgst: bool, ddgst: bool, pda: u8) -> Self {
        let pda = if pda > PDA_MAX { PDA_MAX } else { pda };
        Self { hdgst, ddgst, align: (pda + 1) * 4 }
    }

    /// Bytes to which data is aligned.
    #[inline]
    #[must_use]
    pub const fn align(self) -> u8 {
        self.align
    }

    /// Bytes of a header of `hlen` bytes (at most 128) and its digest.
    #[inline]
    #[must_use]
    pub const fn head_len(self, hlen: u8) -> u8 {
        hlen + if self.hdgst { DIGEST_LEN } else { 0 }
    }

    /// PDO: offset of the data of a PDU with a header of `hlen` bytes (at most 72).
    #[inline]
    #[must_use]
    pub const fn data_offset(self, hlen: u8) -> u8 {
        self.head_len(hlen).next_multiple_of(self.align)
    }

    /// Bytes of the digest behind data.
    #[inline]
    #[must_use]
    pub const fn ddgst_len(self) -> u8 {
        if self.ddgst { DIGEST_LEN } else { 0 }
    }
}

#[cfg(test)]
mod tests;
