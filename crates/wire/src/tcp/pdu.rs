//! Layouts of the PDU headers, and their constructors.

use zerocopy::little_endian::{U16, U32};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::{
    CAPSULE_CMD_LEN, CH_LEN, Fes, Framing, IC_LEN, PDA_MAX, PFV_1_0, PduHead, PduType, Receiver,
    SHORT_LEN, TERM_DATA_MAX, TERM_LEN, TcpError, flags,
};
use crate::cqe::Cqe;
use crate::sqe::Sqe;

/// PDU common header (TCP 3.6.2.1, Figure 19): 8 bytes.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
pub struct CommonHeader {
    /// Byte 0.
    pub pdu_type: PduType,
    /// Byte 1, see [`flags`].
    pub flags: u8,
    /// Byte 2, header length in bytes, without digest.
    pub hlen: u8,
    /// Byte 3, bytes from the start of the PDU to its data; reserved if it has none.
    pub pdo: u8,
    /// Bytes 4-7, length of the whole PDU in bytes.
    pub plen: U32,
}
const _: () = assert!(size_of::<CommonHeader>() == CH_LEN);

impl CommonHeader {
    /// Creates the header of a PDU that has no data and never a digest.
    fn bare(pdu_type: PduType, hlen: u8) -> Self {
        Self { pdu_type, flags: 0, hlen, pdo: 0, plen: U32::new(u32::from(hlen)) }
    }

    /// Creates the header of a PDU without data.
    #[inline]
    fn headless(framing: Framing, pdu_type: PduType, hlen: u8) -> Self {
        Self {
            pdu_type,
            flags: if framing.hdgst { flags::HDGSTF } else { 0 },
            hlen,
            pdo: 0,
            plen: U32::new(u32::from(framing.head_len(hlen))),
        }
    }

    /// Creates the header of a PDU with `data_len` bytes of data, possibly 0. PLEN saturates.
    #[inline]
    fn with_data(framing: Framing, pdu_type: PduType, hlen: u8, data_len: u32) -> Self {
        let mut ch = Self::headless(framing, pdu_type, hlen);
        if data_len > 0 {
            ch.pdo = framing.data_offset(hlen);
            if framing.ddgst {
                ch.flags |= flags::DDGSTF;
            }
            let around = u32::from(ch.pdo) + u32::from(framing.ddgst_len());
            ch.plen.set(data_len.saturating_add(around));
        }
        ch
    }
}

/// Parameters that ICReq and ICResp negotiate. Except for MAXR2T and MAXH2CDATA, both have the
/// same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IcParams {
    /// Alignment of data sent to this end (HPDA or CPDA): 0's based, in dwords, 0 to 31.
    pub pda: u8,
    /// Header digest requested (ICReq) or granted (ICResp).
    pub hdgst: bool,
    /// Data digest requested (ICReq) or granted (ICResp).
    pub ddgst: bool,
    /// ICReq: maximum R2Ts that a command has outstanding, at least 1 (MAXR2T is 0's based; 2^32
    /// becomes `u32::MAX`). ICResp: maximum bytes of data in an H2CData (MAXH2CDATA).
    pub max: u32,
}

impl IcParams {
    const HDGST: u8 = 1 << 0;
    const DDGST: u8 = 1 << 1;

    /// Checks the parameters that an ICResp grants against those that the ICReq `asked` for.
    ///
    /// # Errors
    /// Invalid header field at DGST, if a digest is on that was not requested (TCP 3.3.1.1).
    pub fn check_granted(&self, asked: &Self) -> Result<(), TcpError> {
        if self.hdgst && !asked.hdgst || self.ddgst && !asked.ddgst {
            return Err(TcpError::field(DGST_OFFSET));
        }
        Ok(())
    }

    const fn dgst(self) -> u8 {
        (if self.hdgst { Self::HDGST } else { 0 }) | (if self.ddgst { Self::DDGST } else { 0 })
    }
}

/// Initialize Connection Request (TCP 3.6.2.2, Figure 20): 128 bytes.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
pub struct ICReq {
    /// Bytes 0-7.
    pub ch: CommonHeader,
    /// Bytes 8-9, PDU Format Version.
    pub pfv: U16,
    /// Byte 10, Host PDU Data Alignment, 0's based, in dwords.
    pub hpda: u8,
    /// Byte 11: bit 0 header digest, bit 1 data digest.
    pub dgst: u8,
    /// Bytes 12-15, Maximum Number of Outstanding R2T of a command, 0's based.
    pub maxr2t: U32,
    /// Bytes 16-127, reserved.
    pub reserved16: [u8; 112],
}
const _: () = assert!(size_of::<ICReq>() == IC_LEN as usize);

/// Initialize Connection Response (TCP 3.6.2.3, Figure 21): 128 bytes.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
pub struct ICResp {
    /// Bytes 0-7.
    pub ch: CommonHeader,
    /// Bytes 8-9, PDU Format Version.
    pub pfv: U16,
    /// Byte 10, Controller PDU Data Alignment, 0's based, in dwords.
    pub cpda: u8,
    /// Byte 11: bit 0 header digest, bit 1 data digest.
    pub dgst: u8,
    /// Bytes 12-15, Maximum Host to Controller Data length in bytes.
    pub maxh2cdata: U32,
    /// Bytes 16-127, reserved.
    pub reserved16: [u8; 112],
}
const _: () = assert!(size_of::<ICResp>() == IC_LEN as usize);

const PFV_OFFSET: u32 = 8;
const PDA_OFFSET: u32 = 10;
const DGST_OFFSET: u32 = 11;
const MAX_OFFSET: u32 = 12;

impl ICReq {
    /// Creates the PDU that requests `params`. `params.max` of 0 counts as 1.
    #[must_use]
    pub fn new(params: IcParams) -> Self {
        Self {
            ch: CommonHeader::bare(PduType::IC_REQ, IC_LEN),
            pfv: U16::new(PFV_1_0),
            hpda: params.pda,
            dgst: params.dgst(),
            maxr2t: U32::new(params.max.max(1) - 1),
            ..Self::new_zeroed()
        }
    }

    /// Parameters that the host requests. [`super::RxRules::check`] checks the common header.
    ///
    /// # Errors
    /// If PFV is unknown or HPDA is out of range.
    pub fn params(&self) -> Result<IcParams, TcpError> {
        if self.pfv.get() != PFV_1_0 {
            return Err(TcpError::unsupported(PFV_OFFSET));
        }
        if self.hpda > PDA_MAX {
            return Err(TcpError::field(PDA_OFFSET));
        }
        Ok(IcParams {
            pda: self.hpda,
            hdgst: self.dgst & IcParams::HDGST != 0,
            ddgst: self.dgst & IcParams::DDGST != 0,
            max: self.maxr2t.get().saturating_add(1),
        })
    }
}

impl ICResp {
    /// Creates the PDU that grants `params`.
    #[must_use]
    pub fn new(params: IcParams) -> Self {
        Self {
            ch: CommonHeader::bare(PduType::IC_RESP, IC_LEN),
            pfv: U16::new(PFV_1_0),
            cpda: params.pda,
            dgst: params.dgst(),
            maxh2cdata: U32::new(params.max),
            ..Self::new_zeroed()
        }
    }

    /// Parameters that the controller grants. [`super::RxRules::check`] checks the common header.
    ///
    /// # Errors
    /// If PFV is unknown, CPDA is out of range, or MAXH2CDATA is below 4096 bytes or not a multiple
    /// of 4 (TCP 3.6.2.3).
    pub fn params(&self) -> Result<IcParams, TcpError> {
        if self.pfv.get() != PFV_1_0 {
            return Err(TcpError::unsupported(PFV_OFFSET));
        }
        if self.cpda > PDA_MAX {
            return Err(TcpError::field(PDA_OFFSET));
        }
        let max = self.maxh2cdata.get();
        if max < super::MIN_MAXH2CDATA || !max.is_multiple_of(4) {
            return Err(TcpError::field(MAX_OFFSET));
        }
        Ok(IcParams {
            pda: self.cpda,
            hdgst: self.dgst & IcParams::HDGST != 0,
            ddgst: self.dgst & IcParams::DDGST != 0,
            max,
        })
    }
}

/// Header of an H2CTermReq or C2HTermReq (TCP 3.6.2.4 and 3.6.2.5): 24 bytes. The header of the PDU
/// in error follows, at most [`TERM_DATA_MAX`] bytes of it.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
pub struct TermReq {
    /// Bytes 0-7.
    pub ch: CommonHeader,
    /// Bytes 8-9, Fatal Error Status, see [`Fes`].
    pub fes: U16,
    /// Bytes 10-13, Fatal Error Information.
    pub fei: U32,
    /// Bytes 14-23, reserved.
    pub reserved14: [u8; 10],
}
const _: () = assert!(size_of::<TermReq>() == TERM_LEN as usize);

impl TermReq {
    /// Maximum bytes of a TermReq with its data.
    pub const MAX_LEN: usize = TERM_LEN as usize + TERM_DATA_MAX as usize;

    /// Creates the header for `error`, sent by the end `sender`. At most [`TERM_DATA_MAX`] bytes
    /// (`data_len`) of the PDU in error follow.
    #[must_use]
    pub fn new(sender: Receiver, error: TcpError, data_len: u8) -> Self {
        let pdu_type = match sender {
            Receiver::Controller => PduType::C2H_TERM_REQ,
            Receiver::Host => PduType::H2C_TERM_REQ,
        };
        let mut ch = CommonHeader::bare(pdu_type, TERM_LEN);
        ch.plen.set(u32::from(TERM_LEN) + u32::from(data_len).min(TERM_DATA_MAX));
        Self { ch, fes: U16::new(error.fes.0), fei: U32::new(error.fei), reserved14: [0; 10] }
    }

    /// Error that the peer reports.
    #[must_use]
    pub fn error(&self) -> TcpError {
        TcpError { fes: Fes(self.fes.get()), fei: self.fei.get() }
    }
}

/// Command capsule (TCP 3.6.2.6): 72 bytes, then in-capsule data.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
pub struct CapsuleCmd {
    /// Bytes 0-7.
    pub ch: CommonHeader,
    /// Bytes 8-71.
    pub sqe: Sqe,
}
const _: () = assert!(size_of::<CapsuleCmd>() == CAPSULE_CMD_LEN as usize);

impl CapsuleCmd {
    /// Creates the header, with `data_len` bytes of in-capsule data to follow at `ch.pdo`.
    #[inline]
    #[must_use]
    pub fn new(framing: Framing, sqe: Sqe, data_len: u32) -> Self {
        let ch = CommonHeader::with_data(framing, PduType::CAPSULE_CMD, CAPSULE_CMD_LEN, data_len);
        Self { ch, sqe }
    }
}

/// Response capsule (TCP 3.6.2.7): 24 bytes.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
pub struct CapsuleResp {
    /// Bytes 0-7.
    pub ch: CommonHeader,
    /// Bytes 8-23.
    pub cqe: Cqe,
}
const _: () = assert!(size_of::<CapsuleResp>() == SHORT_LEN as usize);

impl CapsuleResp {
    /// Creates the capsule for `cqe`.
    #[inline]
    #[must_use]
    pub fn new(framing: Framing, cqe: Cqe) -> Self {
        Self { ch: CommonHeader::headless(framing, PduType::CAPSULE_RESP, SHORT_LEN), cqe }
    }
}

/// Header of a data PDU from host to controller (TCP 3.6.2.8): 24 bytes.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
pub struct H2CData {
    /// Bytes 0-7.
    pub ch: CommonHeader,
    /// Bytes 8-9, Command Capsule CID.
    pub cccid: U16,
    /// Bytes 10-11, Transfer Tag of the R2T that this PDU serves.
    pub ttag: U16,
    /// Bytes 12-15, offset of this data in the command's data, in bytes.
    pub datao: U32,
    /// Bytes 16-19, length of this data in bytes.
    pub datal: U32,
    /// Bytes 20-23, reserved.
    pub reserved20: U32,
}
const _: () = assert!(size_of::<H2CData>() == SHORT_LEN as usize);

/// Header of a data PDU from controller to host (TCP 3.6.2.9): 24 bytes.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
pub struct C2HData {
    /// Bytes 0-7.
    pub ch: CommonHeader,
    /// Bytes 8-9, Command Capsule CID.
    pub cccid: U16,
    /// Bytes 10-11, reserved.
    pub reserved10: U16,
    /// Bytes 12-15, offset of this data in the command's data, in bytes.
    pub datao: U32,
    /// Bytes 16-19, length of this data in bytes.
    pub datal: U32,
    /// Bytes 20-23, reserved.
    pub reserved20: U32,
}
const _: () = assert!(size_of::<C2HData>() == SHORT_LEN as usize);

/// Offset of DATAO, H2CData and C2HData; of R2TO in an R2T.
const DATAO_OFFSET: u32 = 12;
/// Offset of DATAL, H2CData and C2HData; of R2TL in an R2T.
const DATAL_OFFSET: u32 = 16;

/// Checks that DATAO and DATAL are multiples of dwords, and that DATAL is the data's length in
/// PLEN.
#[inline]
fn check_data(head: &PduHead, datao: u32, datal: u32) -> Result<(), TcpError> {
    if !datao.is_multiple_of(4) {
        return Err(TcpError::field(DATAO_OFFSET));
    }
    if datal != head.data_len || !datal.is_multiple_of(4) {
        return Err(TcpError::field(DATAL_OFFSET));
    }
    Ok(())
}

impl H2CData {
    /// Creates the header of `datal` bytes of data, the last of its R2T if `last`.
    #[inline]
    #[must_use]
    pub fn new(
        framing: Framing,
        cccid: u16,
        ttag: u16,
        datao: u32,
        datal: u32,
        last: bool,
    ) -> Self {
        let mut ch = CommonHeader::with_data(framing, PduType::H2C_DATA, SHORT_LEN, datal);
        if last {
            ch.flags |= flags::LAST_PDU;
        }
        Self {
            ch,
            cccid: U16::new(cccid),
            ttag: U16::new(ttag),
            datao: U32::new(datao),
            datal: U32::new(datal),
            reserved20: U32::ZERO,
        }
    }

    /// Checks that the header agrees with `head`, the checked common header. The receiver checks
    /// the requested range.
    ///
    /// # Errors
    /// Invalid header field at DATAO or DATAL.
    #[inline]
    pub fn check(&self, head: &PduHead) -> Result<(), TcpError> {
        check_data(head, self.datao.get(), self.datal.get())
    }
}

impl C2HData {
    /// Creates the header of `datal` bytes of data. `last` ends the command's data; `success` (only
    /// with `last`) also ends the command.
    #[inline]
    #[must_use]
    pub fn new(
        framing: Framing,
        cccid: u16,
        datao: u32,
        datal: u32,
        last: bool,
        success: bool,
    ) -> Self {
        let mut ch = CommonHeader::with_data(framing, PduType::C2H_DATA, SHORT_LEN, datal);
        if last {
            ch.flags |= flags::LAST_PDU;
        }
        if success {
            ch.flags |= flags::SUCCESS;
        }
        Self {
            ch,
            cccid: U16::new(cccid),
            reserved10: U16::ZERO,
            datao: U32::new(datao),
            datal: U32::new(datal),
            reserved20: U32::ZERO,
        }
    }

    /// Checks that the header agrees with `head`, the checked common header. The receiver checks
    /// the range of the command.
    ///
    /// # Errors
    /// Invalid header field at FLAGS (SUCCESS without LAST_PDU), DATAO or DATAL.
    #[inline]
    pub fn check(&self, head: &PduHead) -> Result<(), TcpError> {
        if self.ch.flags & (flags::LAST_PDU | flags::SUCCESS) == flags::SUCCESS {
            return Err(TcpError::field(1));
        }
        check_data(head, self.datao.get(), self.datal.get())
    }
}

/// Ready to Transfer (TCP 3.6.2.10): 24 bytes.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
pub struct R2T {
    /// Bytes 0-7.
    pub ch: CommonHeader,
    /// Bytes 8-9, Command Capsule CID.
    pub cccid: U16,
    /// Bytes 10-11, Transfer Tag for the H2CData.
    pub ttag: U16,
    /// Bytes 12-15, offset of the requested data in the command's data, in bytes.
    pub r2to: U32,
    /// Bytes 16-19, length of the requested data in bytes.
    pub r2tl: U32,
    /// Bytes 20-23, reserved.
    pub reserved20: U32,
}
const _: () = assert!(size_of::<R2T>() == SHORT_LEN as usize);

impl R2T {
    /// Creates a request for `length` bytes at `offset`.
    #[inline]
    #[must_use]
    pub fn new(framing: Framing, cccid: u16, ttag: u16, offset: u32, length: u32) -> Self {
        Self {
            ch: CommonHeader::headless(framing, PduType::R2T, SHORT_LEN),
            cccid: U16::new(cccid),
            ttag: U16::new(ttag),
            r2to: U32::new(offset),
            r2tl: U32::new(length),
            reserved20: U32::ZERO,
        }
    }
}
