//! Decides about connection requests: checks the host's parameters before it allocates anything.

use std::net::SocketAddr;
use std::sync::Arc;

use nvmeof_verbs::{Device, DeviceLimits, PendingConnection};
use nvmeof_wire::rdma::{RejectStatus, Request};

use super::cm_worker::reject;
use super::params::RdmaParams;
use super::queue::{DetachedRdma, NegotiatedParams};
use super::registration::Registration;

/// Limits of a host's requests in addition to [`RdmaParams`].
#[derive(Clone, Copy)]
pub struct Limits<'a> {
    /// The maximum queue identifier.
    pub max_qid: u16,
    /// Returns true if a controller exists; called only for a controller that the host named.
    pub has_controller: &'a dyn Fn(u16) -> bool,
    /// Returns true if the controller's host is allowed another I/O queue; called afterwards.
    pub may_add_queue: &'a dyn Fn(u16) -> bool,
}

impl std::fmt::Debug for Limits<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Limits").field("max_qid", &self.max_qid).finish_non_exhaustive()
    }
}

/// A rejected connection request; if dropped, it is rejected without a reason.
#[derive(Debug)]
pub struct Reject<D: Device> {
    /// Status for the host.
    pub status: RejectStatus,
    /// The field, its value and what is allowed; for the log.
    pub reason: String,
    ticket: D::PendingConnection,
}

impl<D: Device> Reject<D> {
    /// Sends the status to the host.
    pub fn tell(self) {
        reject(self.ticket, self.status);
    }

    /// Returns the host's address.
    pub fn peer(&self) -> SocketAddr {
        self.ticket.peer()
    }
}

/// Decides about a connection request (RDMA 3.1) without I/O.
///
/// The registration is that of the ticket's device.
///
/// # Errors
/// Returns the request, with the status to [tell](Reject::tell) the host.
pub fn admit<D: Device>(
    ticket: D::PendingConnection,
    registration: &Arc<Registration<D>>,
    params: RdmaParams,
    limits: &Limits<'_>,
) -> Result<DetachedRdma<D>, Reject<D>> {
    let device = registration.device().limits();
    match check(ticket.private_data().as_slice(), ticket.reads(), device, params, limits) {
        Ok(terms) => {
            Ok(DetachedRdma { ticket, terms, registration: Arc::clone(registration), params })
        }
        Err((status, reason)) => Err(Reject { status, reason, ticket }),
    }
}

/// Negotiates the parameters of a request. `reads` is as in [`PendingConnection::reads`].
fn check(
    private_data: &[u8],
    reads: (u8, u8),
    device: DeviceLimits,
    params: RdmaParams,
    limits: &Limits<'_>,
) -> Result<NegotiatedParams, (RejectStatus, String)> {
    let request = Request::parse(private_data).map_err(|status| {
        (
            status,
            format!("the private data is {:02x?}", &private_data[..private_data.len().min(10)]),
        )
    })?;
    let refused = |status, field: &str, value: u32, allowed: String| {
        Err((status, format!("{field} is {value}; allowed: {allowed}")))
    };
    if request.qid > limits.max_qid {
        let allowed = format!("0 to {} (limits.io-queues)", limits.max_qid);
        return refused(RejectStatus::INVALID_QID, "QID", request.qid.into(), allowed);
    }
    let deepest = if request.qid == 0 { params.admin_depth } else { params.queue_depth };
    let receives = match u16::try_from(request.entries) {
        Ok(entries) if entries <= deepest && u32::from(entries) <= device.queue_depth => entries,
        _ => {
            let most = device.queue_depth.min(deepest.into());
            let allowed = format!("1 to {} (limits.queue-depth, the device)", most - 1);
            return refused(RejectStatus::INVALID_HSQSIZE, "HSQSIZE", request.entries - 1, allowed);
        }
    };
    // Every outstanding command needs a response: a ring of N entries contains N - 1 commands. More
    // than twice as many receives as a queue has entries serve no response.
    let enough = u32::from(request.host_receives) + 1 >= request.entries;
    if !enough || u32::from(request.host_receives) > 2 * u32::from(deepest) {
        let allowed = format!("{} to {} for this HSQSIZE", request.entries - 1, 2 * deepest);
        let receives = request.host_receives.into();
        return refused(RejectStatus::INVALID_HRQSIZE, "HRQSIZE", receives, allowed);
    }
    // An admin queue creates its controller. A host that names its previous controller gives no
    // information.
    let named = request.cntlid.filter(|_| request.qid != 0);
    if let Some(cntlid) = named.filter(|cntlid| !(limits.has_controller)(*cntlid)) {
        let allowed = "the ID of a controller, or 0".to_owned();
        return refused(RejectStatus::INVALID_CNTLID, "CNTLID", cntlid.into(), allowed);
    }
    if named.is_some_and(|cntlid| !(limits.may_add_queue)(cntlid)) {
        let reason = "the host has reached its limit on I/O queues (max-queues)".to_owned();
        return Err((RejectStatus::NO_RESOURCES, reason));
    }
    let (theirs, taken_by_them) = reads;
    // A host from which the target cannot read cannot even send the data of a Connect command.
    let reads_out = device.reads_out.min(taken_by_them);
    if reads_out == 0 {
        let allowed = "1 or more RDMA READs that the host serves".to_owned();
        return refused(RejectStatus::INVALID_IRD, "initiator depth", 0, allowed);
    }
    Ok(NegotiatedParams { request, receives, reads_out, reads_in: device.reads_in.min(theirs) })
}

#[cfg(test)]
mod tests {
    use nvmeof_wire::zerocopy::IntoBytes;

    use super::*;

    const DEVICE: DeviceLimits = DeviceLimits {
        queue_depth: 100,
        completions: 1000,
        pieces: 4,
        message: 1 << 20,
        reads_out: 16,
        reads_in: 8,
        shared_receives: 0,
    };

    fn ask(change: impl FnOnce(&mut Request)) -> Result<NegotiatedParams, RejectStatus> {
        ask_with((0, 4), change)
    }

    fn ask_with(
        reads: (u8, u8),
        change: impl FnOnce(&mut Request),
    ) -> Result<NegotiatedParams, RejectStatus> {
        let mut request = Request { qid: 1, host_receives: 64, entries: 64, cntlid: None };
        change(&mut request);
        let known = |cntlid| cntlid == 5;
        let limits = Limits { max_qid: 8, has_controller: &known, may_add_queue: &|_| true };
        let private_data = request.encode();
        check(private_data.as_bytes(), reads, DEVICE, RdmaParams::default(), &limits)
            .map_err(|(status, _)| status)
    }

    #[test]
    fn a_refusal_names_the_field_its_value_and_what_is_allowed() {
        let limits = Limits { max_qid: 8, has_controller: &|_| false, may_add_queue: &|_| true };
        let reason = |request: Request| {
            let private_data = request.encode();
            let params = RdmaParams::default();
            check(private_data.as_bytes(), (0, 4), DEVICE, params, &limits).unwrap_err().1
        };
        let request = Request { qid: 1, host_receives: 64, entries: 64, cntlid: None };
        assert_eq!(
            reason(Request { entries: 128, ..request }),
            "HSQSIZE is 127; allowed: 1 to 99 (limits.queue-depth, the device)"
        );
        assert_eq!(
            reason(Request { qid: 9, ..request }),
            "QID is 9; allowed: 0 to 8 (limits.io-queues)"
        );
        assert_eq!(
            reason(Request { host_receives: 3, ..request }),
            "HRQSIZE is 3; allowed: 63 to 256 for this HSQSIZE"
        );
    }

    #[test]
    fn a_sound_request_is_taken() {
        let terms = ask(|_| ()).unwrap();
        assert_eq!((terms.receives, terms.reads_out, terms.reads_in), (64, 4, 0));
        assert_eq!(ask(|request| request.cntlid = Some(5)).unwrap().request.cntlid, Some(5));
        let terms = ask_with((200, 200), |_| ()).unwrap();
        assert_eq!((terms.reads_out, terms.reads_in), (16, 8));
        // A host can rely on one outstanding command less than the ring has entries.
        assert!(ask(|request| request.host_receives = 63).is_ok());
    }

    #[test]
    fn an_admin_queue_belongs_to_no_controller_yet() {
        let admin = |request: &mut Request| {
            (request.qid, request.entries, request.cntlid) = (0, 32, Some(6));
        };
        assert!(ask(admin).is_ok());
    }

    #[test]
    fn each_fault_has_its_status() {
        type Change = fn(&mut Request);
        let cases: [(Change, RejectStatus); 9] = [
            (|request| request.qid = 9, RejectStatus::INVALID_QID),
            (|request| request.entries = 1, RejectStatus::INVALID_HSQSIZE),
            (|request| request.entries = 65536, RejectStatus::INVALID_HSQSIZE),
            // More than the device's queue pairs support.
            (|request| request.entries = 101, RejectStatus::INVALID_HSQSIZE),
            (
                |request| {
                    request.qid = 0;
                    request.entries = 33;
                },
                RejectStatus::INVALID_HSQSIZE,
            ),
            (|request| request.host_receives = 0, RejectStatus::INVALID_HRQSIZE),
            (|request| request.host_receives = 62, RejectStatus::INVALID_HRQSIZE),
            (|request| request.host_receives = 257, RejectStatus::INVALID_HRQSIZE),
            (|request| request.cntlid = Some(6), RejectStatus::INVALID_CNTLID),
        ];
        for (at, (change, status)) in cases.into_iter().enumerate() {
            assert_eq!(ask(change), Err(status), "case {at}");
        }
        assert_eq!(ask_with((1, 0), |_| ()), Err(RejectStatus::INVALID_IRD));
        let known = |_| false;
        let limits = Limits { max_qid: 8, has_controller: &known, may_add_queue: &|_| true };
        let short = check(&[0; 31], (1, 1), DEVICE, RdmaParams::default(), &limits);
        assert_eq!(short.unwrap_err().0, RejectStatus::INVALID_LENGTH);
        let recfmt = check(&[1; 32], (1, 1), DEVICE, RdmaParams::default(), &limits);
        assert_eq!(recfmt.unwrap_err().0, RejectStatus::INVALID_RECFMT);
    }
}
