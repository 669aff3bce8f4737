//! Traces of slow commands, from capsule to completion, recorded on request.
//!
//! While tracing is off, a tracepoint is one branch. While it is on, each state of a command is
//! written into a ring of fixed size, with a link to the state before it. When a command ends and
//! was as slow as the filter requires, its states are read from the ring and kept. If the ring has
//! overwritten the first states by then, the trace is marked as truncated.
//!
//! ```text
//!   Capsule -> Waiting -> BufferWait -> H2cTransfer -> Device -> Sending -> Done
//!     a command skips what it does not need; Compare and Deallocate may enter a state again
//! ```

use nvmeof_nvmf::{DeviceId, IoCommand, IoKind, QueueInfo};
use nvmeof_wire::opcode::IoOpcode;
use nvmeof_wire::{Nqn, Status};
use tokio::sync::oneshot;

use super::Reactor;
use super::gen_slab::SlotKey;
use super::io::{Io, Pending};
use super::kind;

/// Number of states in the ring.
const RING: usize = 1 << 15;
/// Maximum number of traces kept between two reads. Further ones are only counted.
const KEPT_MAX: usize = 256;
/// Maximum number of states in one trace.
///
/// A long list of ranges enters `Device` again and again.
const STEPS_MAX: usize = 64;

/// Control message for tracing.
#[derive(Debug)]
pub(crate) enum TraceControl {
    /// Trace the commands that match the filter from now on, and drop earlier traces.
    On(Filter),
    /// Reply with the traces kept since the last read.
    Read(oneshot::Sender<Traces>),
    /// Stop tracing.
    Off,
}

/// Filter of the commands to trace.
#[derive(Debug, Clone, Default)]
pub(crate) struct Filter {
    /// Minimum time of a command in nanoseconds, from its capsule to its end.
    pub(crate) slower_than: u64,
    pub(crate) host: Option<Nqn>,
    pub(crate) subsystem: Option<Nqn>,
    pub(crate) nsid: Option<u32>,
    pub(crate) opcode: Option<u8>,
}

/// State of a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum State {
    /// Its capsule has arrived.
    Capsule,
    /// It waits in its flow queue.
    Waiting,
    /// It is admitted and needs a buffer.
    BufferWait,
    /// The fabric fetches the host's data.
    H2cTransfer,
    /// The device executes it.
    Device,
    /// The fabric sends its data.
    Sending,
    /// Its response has been sent, or no host is left to answer.
    Done,
}

impl State {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Capsule => "capsule",
            Self::Waiting => "waiting",
            Self::BufferWait => "buffer-wait",
            Self::H2cTransfer => "h2c-transfer",
            Self::Device => "device",
            Self::Sending => "sending",
            Self::Done => "done",
        }
    }
}

/// Traces that were kept.
#[derive(Debug, Default)]
pub(crate) struct Traces {
    pub(crate) traces: Vec<CommandTrace>,
    /// Number of slow commands whose traces had no room.
    pub(crate) dropped: u64,
}

/// Trace of one command.
#[derive(Debug, Clone)]
pub(crate) struct CommandTrace {
    /// Its queue.
    pub(crate) queue: Option<QueueInfo>,
    pub(crate) nsid: u32,
    pub(crate) device: DeviceId,
    pub(crate) cid: u16,
    pub(crate) opcode: u8,
    /// First byte on the device.
    pub(crate) offset: u64,
    /// Bytes that moved between host and target.
    pub(crate) bytes: u32,
    /// Time at which its capsule arrived.
    pub(crate) arrived: u64,
    /// Its status, or `None` if no host was left to answer.
    pub(crate) status: Option<Status>,
    /// Its states in order. The times are of the reactors' clock.
    pub(crate) steps: Vec<Step>,
    /// The first states are missing.
    pub(crate) truncated: bool,
}

/// A state, and the time at which it was entered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Step {
    pub(crate) state: State,
    pub(crate) at: u64,
}

/// Trace mark of an I/O command: the number of its last state in the ring.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct TraceMark(Option<std::num::NonZeroU64>);

/// One entry of the ring.
#[derive(Debug, Clone, Copy)]
struct Event {
    at: u64,
    token: u64,
    before: TraceMark,
    state: State,
}

/// State of tracing, on or off.
#[derive(Debug, Default)]
pub(super) struct Trace {
    on: Option<Box<Session>>,
    /// Number of states ever written, which identifies marks of an earlier session.
    written: u64,
}

#[derive(Debug)]
struct Session {
    filter: Filter,
    ring: Box<[Option<Event>]>,
    /// Number of the first state of this session.
    first: u64,
    kept: Traces,
}

impl Trace {
    #[inline]
    fn is_on(&self) -> bool {
        self.on.is_some()
    }

    pub(super) fn handle_message(&mut self, order: TraceControl) {
        match order {
            TraceControl::On(filter) => {
                let ring = vec![None; RING].into_boxed_slice();
                let first = self.written + 1;
                self.on = Some(Box::new(Session { filter, ring, first, kept: Traces::default() }));
            }
            TraceControl::Read(reply) => {
                let kept = self.on.as_mut().map(|session| std::mem::take(&mut session.kept));
                // A requester that has gone needs no reply.
                let _ = reply.send(kept.unwrap_or_default());
            }
            TraceControl::Off => self.on = None,
        }
    }

    /// Writes a state that follows the one at `before`. Returns its mark.
    fn enter(&mut self, before: TraceMark, token: u64, state: State, at: u64) -> TraceMark {
        let Some(session) = &mut self.on else { return TraceMark::default() };
        if session.event(before, token).is_some_and(|last| last.state == state) {
            // The command tries again, or continues with its next part.
            return before;
        }
        self.written += 1;
        let slot = slot_of(self.written);
        session.ring[slot] = Some(Event { at, token, before, state });
        TraceMark(std::num::NonZeroU64::new(self.written))
    }

    /// Keeps the trace of a command that has ended, if it is slow enough.
    fn keep(
        &mut self,
        last: TraceMark,
        token: u64,
        since: u64,
        ended: impl FnOnce() -> CommandTrace,
    ) {
        let Some(session) = &mut self.on else { return };
        let Some(end) = session.event(last, token).map(|event| event.at) else { return };
        if end.saturating_sub(since) < session.filter.slower_than {
            return;
        }
        let Some((steps, truncated)) = session.steps(last, token) else { return };
        if session.kept.traces.len() >= KEPT_MAX {
            session.kept.dropped += 1;
            return;
        }
        session.kept.traces.push(CommandTrace { steps, truncated, ..ended() });
    }
}

impl Session {
    /// Returns the state with this number, if it belongs to this command and still exists.
    fn event(&self, mark: TraceMark, token: u64) -> Option<&Event> {
        let number = mark.0?.get();
        let event = self.ring[slot_of(number)].as_ref();
        event.filter(|event| number >= self.first && event.token == token)
    }

    /// Returns the states of a command, and true if the first of them are lost.
    ///
    /// Returns `None` if the command was not traced.
    fn steps(&self, last: TraceMark, token: u64) -> Option<(Vec<Step>, bool)> {
        let mut steps = Vec::new();
        let mut next = last;
        while let Some(Event { at, before, state, .. }) = self.event(next, token).copied()
            && steps.len() < STEPS_MAX
        {
            steps.push(Step { state, at });
            next = before;
        }
        steps.reverse();
        let begins = steps.first()?.state == State::Capsule;
        Some((steps, !begins))
    }
}

impl Filter {
    /// Returns true if a command matches the filter.
    fn takes(&self, queue: Option<&QueueInfo>, io: &IoCommand) -> bool {
        let named = |wanted: &Option<Nqn>, name: fn(&QueueInfo) -> &Nqn| {
            wanted.as_ref().is_none_or(|wanted| queue.is_some_and(|queue| name(queue) == wanted))
        };
        self.nsid.is_none_or(|nsid| nsid == io.nsid)
            && self.opcode.is_none_or(|opcode| opcode == opcode_of(io.kind))
            && named(&self.host, |queue| &queue.hostnqn)
            && named(&self.subsystem, |queue| &queue.subnqn)
    }
}

impl Reactor {
    /// Starts to trace a command that has arrived, if it matches the filter.
    #[inline]
    pub(super) fn trace_capsule(&mut self, request: SlotKey, now: u64) {
        if self.trace.is_on() {
            self.begin_trace(request, now);
        }
    }

    /// Records that a command enters a state.
    #[inline]
    pub(super) fn trace_state(&mut self, request: SlotKey, state: State) {
        if self.trace.is_on() {
            self.follow(request, state);
        }
    }

    /// Records that a command has been answered.
    #[inline]
    pub(super) fn trace_done(&mut self, request: SlotKey, status: Status) {
        if self.trace.is_on() {
            self.end_trace(request, Some(status));
        }
    }

    /// Records that a command ends. It gets no answer if it has none by now.
    #[inline]
    pub(super) fn trace_end(&mut self, request: SlotKey) {
        if self.trace.is_on() {
            self.end_trace(request, None);
        }
    }

    #[cold]
    fn begin_trace(&mut self, request: SlotKey, now: u64) {
        let Some(Pending::Io(io)) = self.requests.get_mut(request) else { return };
        let connection = self.connections.get(io.connection);
        let queue = connection.and_then(|connection| connection.info.as_ref());
        let takes = |session: &Session| session.filter.takes(queue, io.request.io());
        if !self.trace.on.as_deref().is_some_and(takes) {
            return;
        }
        let token = request.token(kind::REQUEST);
        let capsule = self.trace.enter(TraceMark::default(), token, State::Capsule, now);
        io.mark = self.trace.enter(capsule, token, State::Waiting, (self.clock)());
    }

    #[cold]
    fn follow(&mut self, request: SlotKey, state: State) {
        let Some(Pending::Io(io)) = self.requests.get_mut(request) else { return };
        if io.mark != TraceMark::default() {
            let token = request.token(kind::REQUEST);
            io.mark = self.trace.enter(io.mark, token, state, (self.clock)());
        }
    }

    #[cold]
    fn end_trace(&mut self, request: SlotKey, status: Option<Status>) {
        let Some(Pending::Io(io)) = self.requests.get_mut(request) else { return };
        let mark = std::mem::take(&mut io.mark);
        if mark == TraceMark::default() {
            return;
        }
        let token = request.token(kind::REQUEST);
        let last = self.trace.enter(mark, token, State::Done, (self.clock)());
        let connection = self.connections.get(io.connection);
        let queue = connection.and_then(|connection| connection.info.clone());
        let io: &Io = io;
        self.trace.keep(last, token, io.arrived, || life_of(io, queue, status));
    }
}

/// Builds the trace of a command without its states.
fn life_of(io: &Io, queue: Option<QueueInfo>, status: Option<Status>) -> CommandTrace {
    let command = io.request.io();
    CommandTrace {
        queue,
        nsid: command.nsid,
        device: command.device,
        cid: command.cid,
        opcode: opcode_of(command.kind),
        offset: command.offset,
        bytes: command.data_len(),
        arrived: io.arrived,
        status,
        steps: Vec::new(),
        truncated: false,
    }
}

/// Returns the slot of the state with this number in the ring.
#[expect(clippy::cast_possible_truncation, reason = "the remainder is less than RING")]
fn slot_of(number: u64) -> usize {
    (number % RING as u64) as usize
}

/// Returns the opcode of this kind of command.
fn opcode_of(kind: IoKind) -> u8 {
    let opcode = match kind {
        IoKind::Read => IoOpcode::READ,
        IoKind::Write => IoOpcode::WRITE,
        IoKind::Flush => IoOpcode::FLUSH,
        IoKind::WriteZeroes { .. } => IoOpcode::WRITE_ZEROES,
        IoKind::Compare => IoOpcode::COMPARE,
        IoKind::Verify => IoOpcode::VERIFY,
        IoKind::Deallocate { .. } => IoOpcode::DATASET_MANAGEMENT,
    };
    opcode.0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn on(slower_than: u64) -> Trace {
        let mut trace = Trace::default();
        trace.handle_message(TraceControl::On(Filter { slower_than, ..Filter::default() }));
        trace
    }

    fn command() -> CommandTrace {
        CommandTrace {
            queue: None,
            nsid: 1,
            device: DeviceId(0),
            cid: 7,
            opcode: 2,
            offset: 0,
            bytes: 512,
            arrived: 0,
            status: Some(Status::SUCCESS),
            steps: Vec::new(),
            truncated: false,
        }
    }

    fn read(trace: &mut Trace) -> Traces {
        let (reply, mut answer) = oneshot::channel();
        trace.handle_message(TraceControl::Read(reply));
        answer.try_recv().unwrap()
    }

    /// A command from 0 to `end`, with states of other commands in between.
    fn run(trace: &mut Trace, token: u64, others: usize, end: u64) {
        let mark = trace.enter(TraceMark::default(), token, State::Capsule, 0);
        let mark = trace.enter(mark, token, State::Waiting, 1);
        for other in 0..others {
            trace.enter(TraceMark::default(), 1 << 40 | other as u64, State::Capsule, 2);
        }
        let mark = trace.enter(mark, token, State::Device, 3);
        let again = trace.enter(mark, token, State::Device, 4);
        assert_eq!(again, mark, "a state that is entered again is not told of");
        let mark = trace.enter(again, token, State::Done, end);
        trace.keep(mark, token, 0, command);
    }

    #[test]
    fn only_the_slow_are_kept_and_whole() {
        let mut trace = on(100);
        run(&mut trace, 1, 3, 99);
        run(&mut trace, 2, 3, 100);
        let Traces { traces, dropped } = read(&mut trace);
        let [command] = &traces[..] else { panic!("one trace: {traces:?}") };
        let steps: Vec<_> = command.steps.iter().map(|step| (step.state, step.at)).collect();
        let expected =
            [(State::Capsule, 0), (State::Waiting, 1), (State::Device, 3), (State::Done, 100)];
        assert_eq!((steps.as_slice(), command.truncated, dropped), (&expected[..], false, 0));
        assert!(read(&mut trace).traces.is_empty(), "what was read is kept no longer");
    }

    #[test]
    fn what_the_ring_has_overwritten_is_missing_in_front_and_never_anothers() {
        let mut trace = on(0);
        run(&mut trace, 1, RING, 10);
        let traces = read(&mut trace).traces;
        let [command] = &traces[..] else { panic!("one trace: {traces:?}") };
        assert!(command.truncated);
        assert_eq!(command.steps.first().map(|step| step.state), Some(State::Device));
        // The same command again, so that only the number separates the lost states from the
        // current ones.
        let stale = trace.enter(TraceMark::default(), 5, State::Waiting, 1);
        trace.handle_message(TraceControl::On(Filter::default()));
        let mark = trace.enter(stale, 5, State::Done, 2);
        trace.keep(mark, 5, 0, command_five);
        let traces = read(&mut trace).traces;
        assert_eq!(traces[0].steps.len(), 1, "{traces:?}");
    }

    fn command_five() -> CommandTrace {
        CommandTrace { cid: 5, ..command() }
    }

    #[test]
    fn more_than_fit_are_counted() {
        let mut trace = on(0);
        for token in 0..KEPT_MAX as u64 + 5 {
            run(&mut trace, token, 0, 10);
        }
        let Traces { traces, dropped } = read(&mut trace);
        assert_eq!((traces.len(), dropped), (KEPT_MAX, 5));
        trace.handle_message(TraceControl::Off);
        run(&mut trace, 1, 0, 10);
        assert!(read(&mut trace).traces.is_empty());
    }
}
