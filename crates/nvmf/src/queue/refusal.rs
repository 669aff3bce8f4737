//! A refused Connect, with the field that caused it: for the log, and for the Failure to respond.

use std::fmt::Display;

use nvmeof_wire::Nqn;

use crate::failure::Failure;
use crate::hosts::HostUsage;

/// A Connect that the target refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConnectRefusal {
    /// Reason.
    pub failure: Failure,
    /// The field that is not accepted, or another condition of the Connect.
    pub field: &'static str,
    /// Its value.
    pub value: String,
    /// The values that would be accepted.
    pub allowed: String,
    /// The host; `None` if the Connect does not name one.
    pub host: Option<Nqn>,
    /// The subsystem; `None` if the Connect does not name one.
    pub subsystem: Option<Nqn>,
    /// ID of the queue; 0 for a controller.
    pub qid: u16,
    /// Usage of the host, if a limit on queues refused the Connect.
    pub had: Option<HostUsage>,
}

/// A check of Connect that failed.
#[derive(Debug)]
pub(super) struct Refused {
    pub(super) failure: Failure,
    field: &'static str,
    value: String,
    allowed: String,
    had: Option<HostUsage>,
}

impl Refused {
    /// `field` has `value`, which `failure` reports to the host; `allowed` would be accepted.
    pub(super) fn new(
        failure: Failure,
        field: &'static str,
        value: impl Display,
        allowed: impl Display,
    ) -> Self {
        let (value, allowed) = (value.to_string(), allowed.to_string());
        Self { failure, field, value, allowed, had: None }
    }

    /// A limit on queues is reached.
    pub(super) fn quota(failure: Failure, had: HostUsage) -> Self {
        let HostUsage { connections, io_queues, .. } = had;
        let value = format_args!("{connections} connections, {io_queues} of them I/O queues");
        let allowed = "fewer, as the limits of the host and the target say";
        Self { had: Some(had), ..Self::new(failure, "usage of the host", value, allowed) }
    }

    /// Commands of the host's previous association have to complete first.
    pub(super) fn quiescing(failure: Failure) -> Self {
        let value = "with commands at a device";
        Self::new(failure, "previous association", value, "wait until they have completed")
    }

    /// Adds the names of the Connect.
    pub(super) fn of(self, host: Option<Nqn>, subsystem: Option<Nqn>, qid: u16) -> ConnectRefusal {
        let Self { failure, field, value, allowed, had } = self;
        ConnectRefusal { failure, field, value, allowed, host, subsystem, qid, had }
    }
}
