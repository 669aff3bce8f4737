//! ICReq and ICResp: what both ends agree on before the first command (TCP 3.6.2.2, 3.6.2.3).

use nvmeof_wire::tcp::{
    ADMIN_IN_CAPSULE, Framing, ICReq, ICResp, IcParams, MIN_MAXH2CDATA, TcpError,
};

use super::TcpParams;

/// CPDA we ask for: data in PDUs from the host aligned to a dword, the least there is.
const CPDA: u8 = 0;

/// What the handshake settled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Negotiated {
    /// PDUs from the host.
    pub(super) inbound: Framing,
    /// PDUs to the host, data aligned as it asked for.
    pub(super) outbound: Framing,
    /// Most bytes of data in an H2CData.
    pub(super) max_h2c_data: u32,
}

/// The answer to an ICReq.
pub(super) fn negotiate(
    request: &ICReq,
    params: &TcpParams,
) -> Result<(Negotiated, ICResp), TcpError> {
    // MAXR2T is at least 1 a command, and one for the whole transfer is all we ever have out.
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

/// MAXH2CDATA: a whole transfer fits one PDU; at least what the specification asks for, in dwords.
fn max_h2c_data(params: &TcpParams) -> u32 {
    let most = params.max_transfer.max(MIN_MAXH2CDATA).max(ADMIN_IN_CAPSULE);
    most.checked_next_multiple_of(4).unwrap_or(u32::MAX - 3)
}
