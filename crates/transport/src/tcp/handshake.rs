//! ICReq and ICResp: parameters that both ends negotiate before the first command (TCP 3.6.2.2,
//! 3.6.2.3).

use nvmeof_wire::tcp::{
    ADMIN_IN_CAPSULE, Framing, ICReq, ICResp, IcParams, MIN_MAXH2CDATA, TcpError,
};

use super::TcpParams;

/// CPDA that the target requests: data in PDUs from the host is aligned to a dword, the minimum.
const CPDA: u8 = 0;

/// Result of the handshake.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Negotiated {
    /// Framing of PDUs from the host.
    pub(super) inbound: Framing,
    /// Framing of PDUs to the host, with the alignment that the host requested.
    pub(super) outbound: Framing,
    /// Maximum bytes of data in an H2CData.
    pub(super) max_h2c_data: u32,
}

/// Returns the response to an ICReq.
pub(super) fn negotiate(
    request: &ICReq,
    params: &TcpParams,
) -> Result<(Negotiated, ICResp), TcpError> {
    // MAXR2T is at least 1 per command, and the target never has more than one R2T per command in
    // flight: it covers the whole transfer.
    let wanted = request.params()?;
    let hdgst = wanted.hdgst && params.header_digest;
    let ddgst = wanted.ddgst && params.data_digest;
    let settled = Negotiated {
        inbound: Framing::new(hdgst, ddgst, CPDA),
        outbound: Framing::new(hdgst, ddgst, wanted.pda),
        max_h2c_data: max_h2c_data(params),
    };
    let granted = IcParams { pda: CPDA, hdgst, ddgst, max: settled.max_h2c_data };
    Ok((settled, ICResp::new(granted)))
}

/// Returns MAXH2CDATA in dwords: a whole transfer fits one PDU, and the specification's minimum
/// holds.
fn max_h2c_data(params: &TcpParams) -> u32 {
    let most = params.max_transfer.max(MIN_MAXH2CDATA).max(ADMIN_IN_CAPSULE);
    most.checked_next_multiple_of(4).unwrap_or(u32::MAX - 3)
}
