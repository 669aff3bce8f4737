//! Endpoints: posting, and access to their queue pair.

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use nvmeof_verbs::{EndpointSpec, LastWqe, PostError, SendOp, SendWr, Sge, VerbsError, WrId};
use rustix::io::Errno;

use crate::completions::{LoopbackCompletions, LoopbackSharedReceives, pieces_of};
use crate::connection::{Link, LoopbackTicket, Role};
use crate::device::{LoopbackDevice, invalid};
use crate::queue_pair::{LastStage, Phase, QueuePair, Receive, Send, Stage};
use crate::signal::Signal;
use crate::state::State;

/// A queue pair of a [`LoopbackDevice`] and its connection.
#[derive(Debug)]
pub struct LoopbackEndpoint {
    pub(crate) device: Arc<LoopbackDevice>,
    pub(crate) number: u32,
    pub(crate) inline: u32,
    pub(crate) signal: Arc<Signal>,
    pub(crate) peer: SocketAddr,
    pub(crate) local: SocketAddr,
}

impl LoopbackEndpoint {
    /// Implements [`Device::open`](nvmeof_verbs::Device::open).
    #[expect(
        clippy::result_large_err,
        reason = "the interface returns the pending connection unchanged"
    )]
    pub(crate) fn open(
        device: &Arc<LoopbackDevice>,
        mut ticket: LoopbackTicket,
        completions: &LoopbackCompletions,
        shared: Option<&LoopbackSharedReceives>,
        spec: &EndpointSpec,
    ) -> Result<Self, (VerbsError, LoopbackTicket)> {
        let signal = match Signal::new() {
            Ok(signal) => Arc::new(signal),
            Err(error) => return Err((error, ticket)),
        };
        let mut state = device.fabric.lock();
        let ours = ticket.device.number == device.number
            && completions.device.number == device.number
            && shared.is_none_or(|shared| shared.device.number == device.number);
        let checked = state.check_open(device.number, spec, shared.is_some(), ours);
        if let Err(error) = checked {
            drop(state);
            return Err((error, ticket));
        }
        let mut spec = *spec;
        spec.inline = spec.inline.min(device.options.inline);
        let number = state.name();
        let role = std::mem::replace(&mut ticket.role, Role::Used);
        let mut queue_pair = QueuePair::new(number, device.number, spec, &signal);
        queue_pair.completions = completions.number;
        queue_pair.shared = shared.map(|shared| shared.number);
        if let Role::Asked(connection) = role {
            queue_pair.link = Link::Asked;
            queue_pair.connection = Some(connection);
            state.opened(number, connection);
        }
        state.queue_pairs.insert(number, queue_pair);
        state.counters.tickets -= 1;
        drop(state);
        let (peer, local) = (ticket.peer, ticket.local);
        Ok(Self { device: Arc::clone(device), number, inline: spec.inline, signal, peer, local })
    }

    /// Implements [`Endpoint::last_receive`](nvmeof_verbs::Endpoint::last_receive).
    pub(crate) fn last_shared(&self) -> LastWqe {
        let state = self.device.fabric.lock();
        let stage = state.queue_pairs.get(&self.number).map(|pair| pair.last_receive);
        match stage {
            _ if !self.device.options.tells_last_receive => LastWqe::Untold,
            Some(LastStage::Said) => LastWqe::Reached,
            _ => LastWqe::Awaited,
        }
    }

    pub(crate) fn add_receive(&self, id: WrId, pieces: &[Sge]) -> io::Result<()> {
        self.device.fabric.lock().post_receive(self.number, id, pieces)
    }

    /// Posts a chain. `inline` has the bytes of its inline work requests, each with its index in
    /// the chain.
    pub(crate) fn add_sends(
        &self,
        chain: &[SendWr],
        mut inline: VecDeque<(usize, Vec<u8>)>,
    ) -> Result<(), PostError> {
        let mut state = self.device.fabric.lock();
        let most = state.faults.refuse_send(self.number);
        for (taken, work) in chain.iter().enumerate() {
            let bytes = match inline.front() {
                Some((place, _)) if *place == taken => inline.pop_front().map(|(_, bytes)| bytes),
                _ => None,
            };
            let posted = if most.is_some_and(|most| most <= taken) {
                Err(Errno::NOMEM.into())
            } else {
                state.post_send(self.number, work, bytes, self.inline)
            };
            if let Err(source) = posted {
                state.pump(self.number);
                return Err(PostError { taken, source });
            }
        }
        state.pump(self.number);
        Ok(())
    }
}

impl Drop for LoopbackEndpoint {
    fn drop(&mut self) {
        self.device.fabric.lock().remove_endpoint(self.number);
    }
}

impl QueuePair {
    fn new(number: u32, device: u32, spec: EndpointSpec, signal: &Arc<Signal>) -> Self {
        Self {
            number,
            device,
            completions: 0,
            shared: None,
            spec,
            phase: Phase::Init,
            link: Link::Idle,
            connection: None,
            peer: None,
            events: VecDeque::new(),
            signal: Arc::clone(signal),
            sends: VecDeque::new(),
            sends_posted: 0,
            sends_freed: 0,
            receives: VecDeque::new(),
            receives_posted: 0,
            receives_freed: 0,
            next: 0,
            halted: false,
            epoch: 0,
            line_free: 0,
            last_arrival: 0,
            last_finish: 0,
            reads_out: 0,
            reads_in: 0,
            reads: 0,
            reads_at_peer: 0,
            retries: 7,
            rnr_retries: 7,
            not_ready: None,
            stalled: None,
            flushing: false,
            last_receive: LastStage::Taking,
            hurried: false,
            most_reads: 0,
            read_stalls: 0,
            not_ready_rounds: 0,
        }
    }
}

impl State {
    fn check_open(
        &mut self,
        device: u32,
        spec: &EndpointSpec,
        shared: bool,
        ours: bool,
    ) -> Result<(), VerbsError> {
        let what = "making a queue pair";
        self.check_device(device, what)?;
        if self.faults.refuse_open(device) {
            return Err(VerbsError::call(what, Errno::NOMEM.into()));
        }
        let limits = self.devices.get(&device).map(|device| device.options.limits);
        let fits = limits.is_some_and(|limits| {
            (1..=limits.queue_depth).contains(&spec.sends)
                && (shared || (1..=limits.queue_depth).contains(&spec.receives))
                && (1..=limits.pieces).contains(&spec.send_pieces)
                && (shared || (1..=limits.pieces).contains(&spec.receive_pieces))
        });
        if fits && ours { Ok(()) } else { Err(invalid(what)) }
    }

    fn post_receive(&mut self, number: u32, id: WrId, pieces: &[Sge]) -> io::Result<()> {
        let refused = self.faults.refuse_receive(number);
        let Some(queue_pair) = self.queue_pairs.get_mut(&number) else {
            return Err(Errno::INVAL.into());
        };
        let most = usize::try_from(queue_pair.spec.receive_pieces).unwrap_or(usize::MAX);
        let list = pieces_of(pieces, most).filter(|_| queue_pair.shared.is_none());
        let Some(pieces) = list else { return Err(Errno::INVAL.into()) };
        let held = queue_pair.receives_posted - queue_pair.receives_freed;
        if refused || held >= u64::from(queue_pair.spec.receives) {
            return Err(Errno::NOMEM.into());
        }
        queue_pair.receives_posted += 1;
        queue_pair.receives.push_back(Receive { id, pieces });
        self.counters.receives_posted += 1;
        if queue_pair.phase == Phase::Error {
            self.flush_soon(number);
        } else {
            self.wake_senders(|peer| peer.number == number);
        }
        Ok(())
    }

    fn post_send(
        &mut self,
        number: u32,
        work: &SendWr,
        bytes: Option<Vec<u8>>,
        inline: u32,
    ) -> io::Result<()> {
        let Some(queue_pair) = self.queue_pairs.get_mut(&number) else {
            return Err(Errno::INVAL.into());
        };
        let limits = self.devices.get(&queue_pair.device).map(|device| device.options.limits);
        let most = limits.map_or(0, |limits| limits.message);
        let length = work.pieces.bytes();
        let pieces = u32::try_from(work.pieces.as_slice().len()).unwrap_or(u32::MAX);
        let is_read = matches!(work.operation, SendOp::Read { .. });
        let takes = matches!(queue_pair.phase, Phase::Ready | Phase::Error);
        let sane = length <= u64::from(most)
            && pieces <= queue_pair.spec.send_pieces
            && (!work.inline || !is_read && length <= u64::from(inline));
        if !takes || !sane {
            return Err(Errno::INVAL.into());
        }
        if queue_pair.sends_posted - queue_pair.sends_freed >= u64::from(queue_pair.spec.sends) {
            return Err(Errno::NOMEM.into());
        }
        let fault = self.faults.take_work(number, work);
        queue_pair.sends_posted += 1;
        let send = Send { work: *work, stage: Stage::Waiting, bytes, fault };
        queue_pair.sends.push_back(send);
        self.counters.sends_posted += 1;
        if queue_pair.phase == Phase::Error {
            self.flush_soon(number);
        }
        Ok(())
    }
}
