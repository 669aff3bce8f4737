//! Checks of a PDU from its first 8 bytes.

use super::{
    CAPSULE_CMD_LEN, CommonHeader, DIGEST_LEN, Framing, IC_LEN, PduType, SHORT_LEN, TERM_DATA_MAX,
    TERM_LEN, TcpError, flags,
};

/// End of the connection that receives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Receiver {
    /// The controller, that is the target.
    Controller,
    /// The host, that is the initiator.
    Host,
}

/// Limits of the PDUs that one end accepts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RxRules {
    /// End of the connection.
    pub receiver: Receiver,
    /// Digests, and the alignment that this end requested.
    pub framing: Framing,
    /// Maximum bytes of data in a CapsuleCmd.
    pub max_in_capsule: u32,
    /// Maximum bytes of data in a data PDU: MAXH2CDATA for the controller, its own limit for a
    /// host.
    pub max_data: u32,
}

/// Content of a checked common header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PduHead {
    /// PDU type, one that this end can receive.
    pub pdu_type: PduType,
    /// FLAGS as received.
    pub flags: u8,
    /// Bytes of header without digest: HLEN.
    pub hlen: u8,
    /// Bytes of header with digest, which have to be read before the header can be used.
    pub head_len: u8,
    /// A digest of the header follows it.
    pub hdgst: bool,
    /// A digest follows the data.
    pub ddgst: bool,
    /// Bytes from the start of the PDU to the data; `head_len` if there is none.
    pub data_offset: u8,
    /// Bytes of data.
    pub data_len: u32,
    /// Bytes of the whole PDU.
    pub plen: u32,
}

/// Byte offsets of the common header's fields, for Fatal Error Information.
mod at {
    pub(super) const TYPE: u32 = 0;
    pub(super) const FLAGS: u32 = 1;
    pub(super) const HLEN: u32 = 2;
    pub(super) const PDO: u32 = 3;
    pub(super) const PLEN: u32 = 4;
}

/// Limits of a PDU type.
struct Shape {
    hlen: u8,
    digests: bool,
    min_data: u32,
    max_data: u32,
}

impl RxRules {
    /// Returns the rules before ICReq and ICResp are exchanged.
    #[must_use]
    pub fn initial(receiver: Receiver) -> Self {
        Self { receiver, framing: Framing::default(), max_in_capsule: 0, max_data: 0 }
    }

    /// Checks a common header (TCP 3.6.2.1) and returns the layout of the rest. The caller checks
    /// the sequence of PDUs.
    ///
    /// # Errors
    /// The content of a TermReq: an unexpected type, a HLEN other than the type's, or digest flags
    /// that were not negotiated. Also a PDO that is misaligned or inside the header, or a PLEN that
    /// is too short or exceeds the limits. The error names the wrong field with the lowest offset.
    /// A TermReq that is itself wrong gets no reply; the connection is only closed (TCP 3.5).
    #[inline]
    pub fn check(&self, ch: &CommonHeader) -> Result<PduHead, TcpError> {
        let shape = self.shape(ch.pdu_type).ok_or(TcpError::field(at::TYPE))?;
        let framing = if shape.digests {
            self.framing
        } else {
            // ICReq, ICResp and TermReqs never carry a digest.
            Framing { hdgst: false, ddgst: false, ..self.framing }
        };
        if shape.digests && (ch.flags & flags::HDGSTF != 0) != framing.hdgst {
            return Err(TcpError::field(at::FLAGS));
        }
        if ch.hlen != shape.hlen {
            return Err(TcpError::field(at::HLEN));
        }
        let plen = ch.plen.get();
        let head_len = framing.head_len(shape.hlen);
        if plen < u32::from(head_len) {
            return Err(TcpError::field(at::PLEN));
        }
        let mut head = PduHead {
            pdu_type: ch.pdu_type,
            flags: ch.flags,
            hlen: shape.hlen,
            head_len,
            hdgst: framing.hdgst,
            ddgst: false,
            data_offset: head_len,
            data_len: 0,
            plen,
        };
        if plen > u32::from(head_len) {
            head.data_offset = data_offset(ch, &shape, framing, head_len)?;
            head.ddgst = framing.ddgst;
            let around = u32::from(head.data_offset) + u32::from(framing.ddgst_len());
            // A PDU longer than its header has at least one byte of data.
            head.data_len = match plen.checked_sub(around) {
                Some(len) if len > 0 => len,
                _ => return Err(TcpError::field(at::PLEN)),
            };
        }
        if head.data_len < shape.min_data {
            return Err(TcpError::field(at::PLEN));
        }
        if head.data_len > shape.max_data {
            return Err(self.too_long(ch.pdu_type));
        }
        Ok(head)
    }

    #[inline]
    fn shape(&self, pdu_type: PduType) -> Option<Shape> {
        let (hlen, digests, min_data, max_data) = match (self.receiver, pdu_type) {
            (Receiver::Controller, PduType::CAPSULE_CMD) => {
                (CAPSULE_CMD_LEN, true, 0, self.max_in_capsule)
            }
            (Receiver::Controller, PduType::H2C_DATA) | (Receiver::Host, PduType::C2H_DATA) => {
                (SHORT_LEN, true, 1, self.max_data)
            }
            (Receiver::Host, PduType::CAPSULE_RESP | PduType::R2T) => (SHORT_LEN, true, 0, 0),
            (Receiver::Controller, PduType::IC_REQ) | (Receiver::Host, PduType::IC_RESP) => {
                (IC_LEN, false, 0, 0)
            }
            (Receiver::Controller, PduType::H2C_TERM_REQ)
            | (Receiver::Host, PduType::C2H_TERM_REQ) => (TERM_LEN, false, 0, TERM_DATA_MAX),
            _ => return None,
        };
        Some(Shape { hlen, digests, min_data, max_data })
    }

    /// Data beyond MAXH2CDATA exceeds a limit (TCP 3.3.2.2); in other PDUs PLEN is a wrong value.
    #[cold]
    fn too_long(&self, pdu_type: PduType) -> TcpError {
        match pdu_type {
            PduType::H2C_DATA => TcpError::LIMIT,
            _ => TcpError::field(at::PLEN),
        }
    }
}

/// Returns the offset of the data of a PDU that has some.
#[inline]
fn data_offset(
    ch: &CommonHeader,
    shape: &Shape,
    framing: Framing,
    head_len: u8,
) -> Result<u8, TcpError> {
    if !shape.digests {
        return Ok(head_len);
    }
    // In a capsule or PDU type without data, the excess is an error of PLEN, not of PDO.
    if shape.max_data == 0 {
        return Err(TcpError::field(at::PLEN));
    }
    if (ch.flags & flags::DDGSTF != 0) != framing.ddgst {
        return Err(TcpError::field(at::FLAGS));
    }
    if ch.pdo < head_len || !ch.pdo.is_multiple_of(framing.align()) {
        return Err(TcpError::field(at::PDO));
    }
    Ok(ch.pdo)
}

const _: () = assert!(IC_LEN.checked_add(DIGEST_LEN).is_some());
