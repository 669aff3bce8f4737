//! Fatal errors, as the target reports them to the host before the connection ends (TCP 3.6.2.5,
//! 3.7).

use nvmeof_wire::tcp::{CH_LEN, Receiver, TERM_DATA_MAX, TcpError, TermReq};
use nvmeof_wire::zerocopy::IntoBytes;

/// A PDU that ends the connection, with the header bytes at fault.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct FatalPduError {
    pub(super) error: TcpError,
    /// At most 128 bytes.
    header: Vec<u8>,
}

impl FatalPduError {
    /// Creates a fault in the first 8 bytes of `pdu`, after which no byte is reliable.
    #[cold]
    pub(super) fn in_common_header(error: TcpError, pdu: &[u8]) -> Self {
        Self::of(error, pdu, CH_LEN)
    }

    /// Creates a fault in `pdu`, whose header has `hlen` bytes.
    #[cold]
    pub(super) fn of(error: TcpError, pdu: &[u8], hlen: usize) -> Self {
        let len = pdu.len().min(hlen).min(TERM_DATA_MAX as usize);
        Self { error, header: pdu[..len].to_vec() }
    }

    /// Encodes the C2HTermReq.
    pub(super) fn encode(&self) -> Vec<u8> {
        let len = u8::try_from(self.header.len()).expect("at most 128 bytes");
        let mut pdu = TermReq::new(Receiver::Controller, self.error, len).as_bytes().to_vec();
        pdu.extend_from_slice(&self.header);
        pdu
    }
}
