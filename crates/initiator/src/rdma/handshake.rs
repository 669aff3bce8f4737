//! The connection request and its reply (RDMA 3.1).

use std::io;
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use nvmeof_verbs::{ConnectParams, ConnectionEvent, DeviceLimits, Endpoint as _};
use nvmeof_wire::rdma::{AcceptData, RejectData, RejectStatus, Request};
use nvmeof_wire::zerocopy::IntoBytes;

use super::RouteResolver;
use super::post::Qp;
use crate::Error;

/// Retries of a packet, the maximum.
const RETRIES: u8 = 7;
/// RNR retries: without limit, because a command has its own timeout.
const RNR_RETRIES: u8 = 7;
/// Maximum duration of one wait if the connection has no descriptor.
const LOOK_AGAIN: Duration = Duration::from_millis(2);
/// Reason code of the connection manager: no listener has the port.
const NO_LISTENER: i32 = 8;

/// Requests the connection and waits for the reply. Returns the number of the controller's
/// receives, if the reply has it.
pub(super) fn connect<R: RouteResolver>(
    resolver: &R,
    qp: &mut Qp<R::Device>,
    limits: &DeviceLimits,
    asked: &Request,
    peer: &str,
    timeout: Duration,
) -> Result<Option<u16>, Error> {
    let private_data = asked.encode();
    let params = ConnectParams {
        private_data: private_data.as_bytes(),
        reads_out: 0,
        reads_in: limits.reads_in,
        retries: RETRIES,
        rnr_retries: RNR_RETRIES,
    };
    let verbs = |cause| Error::Verbs { peer: peer.to_owned(), cause };
    qp.endpoint().connect(&params).map_err(verbs)?;
    let start = Instant::now();
    loop {
        match qp.endpoint().next_event() {
            Some(ConnectionEvent::Established { private_data, .. }) => {
                return Ok(AcceptData::parse(private_data.as_slice()).filter(|&count| count > 0));
            }
            Some(ConnectionEvent::Rejected { status, private_data }) => {
                let reason = reason(status, RejectData::parse(private_data.as_slice()));
                return Err(Error::RejectedCommand {
                    peer: peer.to_owned(),
                    qid: asked.qid,
                    reason,
                });
            }
            Some(ConnectionEvent::Failed { status }) => {
                return Err(Error::Connect { peer: peer.to_owned(), cause: cause(status) });
            }
            Some(event) => {
                let what = format!("the connection ended while connecting ({event:?})");
                return Err(Error::Link { peer: peer.to_owned(), what });
            }
            None => {}
        }
        let left = timeout.saturating_sub(start.elapsed());
        if left.is_zero() {
            let what = "the RDMA connection request".to_owned();
            return Err(Error::Timeout { peer: peer.to_owned(), what, after: timeout });
        }
        wait_for_event::<R>(resolver, qp, left);
    }
}

fn wait_for_event<R: RouteResolver>(resolver: &R, qp: &Qp<R::Device>, left: Duration) {
    match qp.descriptors() {
        (_, Some(connection)) => resolver.wait(&[connection], left),
        (_, None) => resolver.wait(&[] as &[BorrowedFd<'_>], left.min(LOOK_AGAIN)),
    }
}

/// Converts a status of the connection manager: a negative error of the system, or its own number.
fn cause(status: i32) -> io::Error {
    match status.checked_neg() {
        Some(error @ 1..) => io::Error::from_raw_os_error(error),
        _ => io::Error::other(format!("the connection manager gave up (status {status})")),
    }
}

/// Returns the reason of a rejection and the remedy.
fn reason(status: i32, said: Option<RejectStatus>) -> String {
    let Some(said) = said else {
        return if status == NO_LISTENER {
            "nothing listens for RDMA at this port; check the port, and that the target has a listener \
             of type rdma there"
                .into()
        } else {
            format!(
                "no reason given (connection manager status {status}); check that the target \
                 speaks NVMe/RDMA"
            )
        };
    };
    let hint = match said {
        RejectStatus::INVALID_LENGTH | RejectStatus::INVALID_RECFMT => {
            "the target does not understand this host; check that the target speaks NVMe/RDMA"
        }
        RejectStatus::INVALID_QID => {
            "the target does not have that number of queues; run fewer jobs (--jobs), or raise \
             the target's limit"
        }
        RejectStatus::INVALID_HSQSIZE | RejectStatus::INVALID_HRQSIZE => {
            "the target does not support queues of this size; lower --qd, or raise the target's \
             limit"
        }
        RejectStatus::NO_RESOURCES => {
            "the target has no room for another queue now; try again, run fewer jobs, or raise \
             the limits of the target"
        }
        RejectStatus::INVALID_IRD | RejectStatus::INVALID_ORD => {
            "the two RDMA devices do not agree on how many RDMA READs may be outstanding; check their limits"
        }
        RejectStatus::INVALID_CNTLID => {
            "the controller no longer exists, so the connection of the admin queue was lost; \
             connect again"
        }
        _ => "the target has a newer version than this host",
    };
    format!("{said}: {hint}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_reject_code_says_what_to_do() {
        for code in 1..=9 {
            let text = reason(28, Some(RejectStatus(code)));
            assert!(text.starts_with(&RejectStatus(code).to_string()), "{text}");
            assert!(text.len() > RejectStatus(code).to_string().len() + 20, "{text}");
            assert!(!text.contains("newer"), "{text}");
        }
        assert!(reason(28, Some(RejectStatus(77))).contains("0x4d"));
        assert!(reason(NO_LISTENER, None).contains("listener"));
        assert!(reason(28, None).contains("28"));
        assert_eq!(cause(-110).kind(), io::ErrorKind::TimedOut);
        assert!(cause(i32::MIN).to_string().contains("gave up"));
        assert!(cause(0).to_string().contains("gave up"));
    }
}
