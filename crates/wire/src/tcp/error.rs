//! Content of a TermReq (TCP 3.6.2.4 and 3.6.2.5).

use core::fmt;

use crate::open::open_enum;

open_enum! {
    /// Fatal Error Status of an H2CTermReq or C2HTermReq (TCP 3.6.2.4, Figure 22; 3.6.2.5, Figure
    /// 23).
    pub struct Fes(pub u16) {
        INVALID_HEADER_FIELD = 0x01 => "invalid PDU header field",
        SEQUENCE_ERROR = 0x02 => "PDU sequence error",
        HEADER_DIGEST_ERROR = 0x03 => "header digest error",
        DATA_OUT_OF_RANGE = 0x04 => "data transfer out of range",
        LIMIT_EXCEEDED = 0x05 => "data transfer or R2T limit exceeded",
        UNSUPPORTED_PARAMETER = 0x06 => "unsupported parameter",
    }
}

/// A fatal transport error, which the peer gets before the connection is closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TcpError {
    /// Fatal Error Status.
    pub fes: Fes,
    /// Fatal Error Information: the byte offset of the field in error for
    /// [`Fes::INVALID_HEADER_FIELD`] and [`Fes::UNSUPPORTED_PARAMETER`], the digest as received for
    /// [`Fes::HEADER_DIGEST_ERROR`], otherwise 0.
    pub fei: u32,
}

impl TcpError {
    /// The field at byte `offset` of the header has an invalid value.
    #[must_use]
    pub const fn field(offset: u32) -> Self {
        Self { fes: Fes::INVALID_HEADER_FIELD, fei: offset }
    }

    /// The parameter at byte `offset` of the header has a value that this end does not support.
    #[must_use]
    pub const fn unsupported(offset: u32) -> Self {
        Self { fes: Fes::UNSUPPORTED_PARAMETER, fei: offset }
    }

    /// A PDU arrived out of sequence.
    pub const SEQUENCE: Self = Self { fes: Fes::SEQUENCE_ERROR, fei: 0 };

    /// Data outside the requested range.
    pub const OUT_OF_RANGE: Self = Self { fes: Fes::DATA_OUT_OF_RANGE, fei: 0 };

    /// More data than the limit (controller), or more R2Ts than the limit (host).
    pub const LIMIT: Self = Self { fes: Fes::LIMIT_EXCEEDED, fei: 0 };

    /// The received header digest does not match the header.
    #[must_use]
    pub const fn header_digest(received: u32) -> Self {
        Self { fes: Fes::HEADER_DIGEST_ERROR, fei: received }
    }
}

impl fmt::Display for TcpError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.fes {
            Fes::INVALID_HEADER_FIELD | Fes::UNSUPPORTED_PARAMETER => {
                write!(f, "NVMe/TCP {} at byte {} of the PDU", self.fes, self.fei)
            }
            Fes::HEADER_DIGEST_ERROR => {
                write!(f, "NVMe/TCP {}: received {:#010x}", self.fes, self.fei)
            }
            _ => write!(f, "NVMe/TCP {}", self.fes),
        }
    }
}

impl std::error::Error for TcpError {}
