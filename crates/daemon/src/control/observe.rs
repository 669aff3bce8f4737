//! Read-only access to the running state: metrics, and tracing of commands.

use std::time::{Instant, SystemTime, UNIX_EPOCH};

use nvmeof_api::{ApiError, ErrorKind, TraceOp, TraceRequest, TracedCommand, TracedState};
use nvmeof_wire::Nqn;
use nvmeof_wire::opcode::IoOpcode;
use tokio::sync::oneshot;

use super::running::ControlState;
use super::stats::Labels;
use super::stats::metrics::Scrape;
use super::trace_session::TraceId;
use crate::clock;
use crate::reactor::mailbox::Message;
use crate::reactor::trace::{CommandTrace, Filter, TraceControl};

/// Traced commands, and the number of commands that did not fit.
#[derive(Debug, Default)]
pub(crate) struct TraceBatch {
    pub(crate) commands: Vec<TracedCommand>,
    pub(crate) dropped: u64,
}

impl ControlState {
    /// Collects the metrics for Prometheus.
    pub(crate) async fn scrape(&mut self) -> Scrape {
        self.server_mut().scrape().await
    }

    /// Traces commands until [`Self::end_trace`].
    ///
    /// # Errors
    /// Another caller is tracing, or a name is invalid.
    pub(crate) fn start_trace(&mut self, wanted: &TraceRequest) -> Result<TraceId, ApiError> {
        let filter = filter(wanted)?;
        let server = self.server_mut();
        let Some(session) = server.tracing.begin(wanted.seconds, Instant::now()) else {
            let what = "commands are being followed already";
            let hint = "wait until that ends: one call at a time, of 60 seconds at most";
            return Err(ApiError::new(ErrorKind::Conflict, what).hint(hint));
        };
        server.tell(|| Message::Trace(TraceControl::On(filter.clone())));
        Ok(session)
    }

    /// Returns the commands that have ended since the last call.
    pub(crate) async fn read_trace(&mut self, session: TraceId) -> TraceBatch {
        let server = self.server_mut();
        let mut all = TraceBatch::default();
        if !server.tracing.is(session) {
            return all;
        }
        let mut answers = Vec::new();
        for sender in server.senders() {
            let (reply, answer) = oneshot::channel();
            sender.send(Message::Trace(TraceControl::Read(reply)));
            answers.push(answer);
        }
        let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let boot = u64::try_from(since_1970.as_micros()).unwrap_or(u64::MAX);
        let boot = boot.saturating_sub(clock::now() / 1000);
        for (reactor, answer) in answers.into_iter().enumerate() {
            // A reactor that has ended has nothing to report.
            let traces = answer.await.unwrap_or_default();
            all.dropped += traces.dropped;
            let traced = traces.traces.into_iter();
            all.commands
                .extend(traced.map(|trace| traced_command(&trace, reactor, boot, server.labels())));
        }
        all.commands.sort_by_key(|command| command.unix_us);
        all
    }

    /// Ends the session; traced commands that were not read are discarded.
    pub(crate) fn end_trace(&mut self, session: TraceId) {
        let server = self.server_mut();
        if server.tracing.end(session) {
            server.tell(|| Message::Trace(TraceControl::Off));
        }
    }

    /// Ends a session that its caller did not end.
    pub(super) fn end_overdue_trace(&mut self) {
        let server = self.server_mut();
        if server.tracing.end_overdue(Instant::now()) {
            tracing::warn!("trace stopped: its caller has disconnected");
            server.tell(|| Message::Trace(TraceControl::Off));
        }
    }
}

/// Converts a request to the filter of the reactors.
fn filter(wanted: &TraceRequest) -> Result<Filter, ApiError> {
    let name = |field: &str, name: &Option<String>| {
        let parsed = name.as_deref().map(Nqn::new).transpose();
        parsed.map_err(|error| ApiError::new(ErrorKind::Invalid, error.to_string()).at(field))
    };
    Ok(Filter {
        slower_than: wanted.slower_than_us.saturating_mul(1000),
        host: name("host", &wanted.host)?,
        subsystem: name("subsystem", &wanted.subsystem)?,
        nsid: wanted.nsid,
        opcode: wanted.op.map(|op| opcode_of(op).0),
    })
}

/// Converts a traced command to the API's type.
///
/// `boot` is the start of the reactors' clock, in microseconds since 1970.
fn traced_command(
    trace: &CommandTrace,
    reactor: usize,
    boot: u64,
    labels: &Labels,
) -> TracedCommand {
    let begin = trace.arrived;
    let state = |step: &crate::reactor::trace::Step| TracedState {
        state: step.state.name().to_owned(),
        at_ns: step.at.saturating_sub(begin),
    };
    let states: Vec<_> = trace.steps.iter().map(state).collect();
    let queue = trace.queue.as_ref();
    TracedCommand {
        unix_us: boot.saturating_add(begin / 1000),
        duration_ns: states.last().map_or(0, |last| last.at_ns),
        reactor,
        subsystem: queue.map_or_else(String::new, |queue| queue.subnqn.to_string()),
        host: queue.map_or_else(String::new, |queue| queue.hostnqn.to_string()),
        qid: queue.map(|queue| queue.qid),
        cid: trace.cid,
        nsid: trace.nsid,
        device: labels.device_name(trace.device),
        op: op_of(IoOpcode(trace.opcode)),
        offset: trace.offset,
        bytes: trace.bytes,
        status: trace.status.map(|status| status.to_string()),
        states,
        truncated: trace.truncated,
    }
}

const OPS: [TraceOp; 7] = [
    TraceOp::Read,
    TraceOp::Write,
    TraceOp::Flush,
    TraceOp::Compare,
    TraceOp::WriteZeroes,
    TraceOp::Deallocate,
    TraceOp::Verify,
];

fn opcode_of(op: TraceOp) -> IoOpcode {
    match op {
        TraceOp::Read => IoOpcode::READ,
        TraceOp::Write => IoOpcode::WRITE,
        TraceOp::Flush => IoOpcode::FLUSH,
        TraceOp::Compare => IoOpcode::COMPARE,
        TraceOp::WriteZeroes => IoOpcode::WRITE_ZEROES,
        TraceOp::Deallocate => IoOpcode::DATASET_MANAGEMENT,
        TraceOp::Verify => IoOpcode::VERIFY,
    }
}

fn op_of(opcode: IoOpcode) -> TraceOp {
    let op = OPS.into_iter().find(|op| opcode_of(*op) == opcode);
    debug_assert!(op.is_some(), "a traced command has opcode {opcode:?}");
    op.unwrap_or(TraceOp::Read)
}
