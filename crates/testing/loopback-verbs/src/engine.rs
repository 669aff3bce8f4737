//! Executes work requests.
//!
//! ```text
//! posted --start--> Flying --arrive--> Executed --finish--> ended in order,
//!    ^                 |                                      with or without completion
//!    `-- called back --'  (an earlier SEND found no receive)
//! ```

use nvmeof_verbs::{SendOp, SendWr, SgeList, WcStatus, WorkCompletion};

use crate::completions::Frees;
use crate::faults::WorkFault;
use crate::queue_pair::{Failure, NotReady, Phase, QueuePair, Stage};
use crate::state::{Event, State};

/// Numbers of `enum ibv_wc_status`.
pub(crate) const LOCAL_LENGTH: WcStatus = WcStatus::Other(1);
pub(crate) const LOCAL_OPERATION: WcStatus = WcStatus::Other(2);
pub(crate) const LOCAL_PROTECTION: WcStatus = WcStatus::Other(4);
pub(crate) const REMOTE_INVALID: WcStatus = WcStatus::Other(9);
pub(crate) const REMOTE_OPERATION: WcStatus = WcStatus::Other(11);

/// Value of `rnr_retries` that means unlimited retries.
const FOR_EVER: u8 = 7;

/// Response of the peer to a work request.
enum PeerResponse {
    Done,
    NoReceive,
    /// The peer does not respond.
    Silence,
    PostError(WcStatus),
}

impl State {
    /// Starts all work requests that can start.
    pub(crate) fn pump(&mut self, number: u32) {
        while let Some(sequence) = self.next_to_start(number) {
            self.start(number, sequence);
        }
    }

    fn next_to_start(&mut self, number: u32) -> Option<u64> {
        let queue_pair = self.queue_pairs.get_mut(&number)?;
        let blocked = queue_pair.halted || queue_pair.not_ready.is_some();
        if queue_pair.phase != Phase::Ready || blocked {
            return None;
        }
        let sequence = queue_pair.next;
        let work = queue_pair.send(sequence)?.work;
        if work.fence && queue_pair.reads > 0 {
            return None;
        }
        if let SendOp::Read { .. } = work.operation {
            let most = u32::from(queue_pair.reads_out);
            if most > 0 && queue_pair.reads == most {
                if queue_pair.stalled.replace(sequence) != Some(sequence) {
                    queue_pair.read_stalls += 1;
                    self.counters.read_stalls += 1;
                }
                return None;
            }
        }
        Some(sequence)
    }

    fn start(&mut self, number: u32, sequence: u64) {
        let early = self.random.coin();
        let jitter = self.random.below(self.costs.jitter.saturating_add(1));
        let Some(queue_pair) = self.queue_pairs.get_mut(&number) else { return };
        queue_pair.next = sequence + 1;
        let Some(send) = queue_pair.send(sequence) else { return };
        let work = send.work;
        let is_read = matches!(work.operation, SendOp::Read { .. });
        let wanting = !is_read && send.bytes.is_none();
        send.stage = Stage::Flying;
        queue_pair.reads += u32::from(is_read);
        queue_pair.most_reads = queue_pair.most_reads.max(queue_pair.reads);
        // Hardware reads the memory at some time between the start and the arrival. An access error
        // shows only when the work request is executed.
        if wanting && early {
            let _ = self.gather(number, sequence);
        }
        let carried = if is_read { 0 } else { work.pieces.bytes() };
        let latency = match work.operation {
            SendOp::Send | SendOp::SendInvalidate { .. } => self.costs.send,
            SendOp::Write { .. } => self.costs.write,
            SendOp::Read { .. } => self.costs.read,
        };
        let (now, line) = (self.now, self.costs.bytes(carried));
        let Some(queue_pair) = self.queue_pairs.get_mut(&number) else { return };
        queue_pair.line_free = queue_pair.line_free.max(now) + line;
        let arrival = queue_pair.line_free + latency + jitter;
        queue_pair.last_arrival = arrival.max(queue_pair.last_arrival + 1);
        let (time, epoch) = (queue_pair.last_arrival, queue_pair.epoch);
        self.at(time, Event::Arrive { queue_pair: number, sequence, epoch });
    }

    /// Reads the pieces of a SEND or RDMA WRITE. Returns false if a key does not allow it.
    fn gather(&mut self, number: u32, sequence: u64) -> bool {
        let Some(queue_pair) = self.queue_pairs.get_mut(&number) else { return false };
        let device = queue_pair.device;
        let Some(send) = queue_pair.send(sequence) else { return false };
        let pieces = send.work.pieces;
        let mut bytes = Vec::new();
        for piece in pieces.as_slice().iter().filter(|piece| piece.length > 0) {
            let Some(region) = self.local_region(device, piece.lkey) else { return false };
            let Ok(length) = usize::try_from(piece.length) else { return false };
            if !region.span.copy_out(piece.address, length, &mut bytes) {
                return false;
            }
        }
        if let Some(send) = self.queue_pairs.get_mut(&number).and_then(|pair| pair.send(sequence)) {
            send.bytes = Some(bytes);
        }
        true
    }

    /// Writes `bytes` to the start of `pieces`. Returns false if a key does not allow it; some
    /// bytes may be written then.
    fn scatter(&mut self, device: u32, pieces: &SgeList, bytes: &[u8]) -> bool {
        let mut rest = bytes;
        for piece in pieces.as_slice() {
            let length = usize::try_from(piece.length).unwrap_or(usize::MAX).min(rest.len());
            if length == 0 {
                continue;
            }
            let (part, after) = rest.split_at(length);
            let region = self.local_region(device, piece.lkey);
            let region = region.filter(|region| region.access.local_write);
            if !region.is_some_and(|region| region.span.copy_in(piece.address, part)) {
                return false;
            }
            rest = after;
        }
        true
    }

    pub(crate) fn arrive(&mut self, number: u32, sequence: u64, epoch: u32) {
        let Some(queue_pair) = self.queue_pairs.get(&number) else { return };
        if queue_pair.epoch == epoch {
            self.attempt(number, sequence);
        }
    }

    pub(crate) fn retry(&mut self, number: u32, sequence: u64, epoch: u32) {
        let Some(queue_pair) = self.queue_pairs.get_mut(&number) else { return };
        if queue_pair.epoch == epoch
            && queue_pair.not_ready.is_some_and(|wait| wait.sequence == sequence)
        {
            self.attempt(number, sequence);
        }
    }

    pub(crate) fn give_up(&mut self, number: u32, sequence: u64, epoch: u32) {
        let Some(queue_pair) = self.queue_pairs.get_mut(&number) else { return };
        if queue_pair.epoch == epoch
            && queue_pair.not_ready.is_some_and(|wait| wait.sequence == sequence)
        {
            let rounds = u64::from(queue_pair.rnr_retries);
            queue_pair.not_ready = None;
            queue_pair.not_ready_rounds += rounds;
            self.answer(number, sequence, WcStatus::ReceiverNotReady, 0);
        }
    }

    /// Executes a work request at the peer.
    fn attempt(&mut self, number: u32, sequence: u64) {
        let Some(queue_pair) = self.queue_pairs.get_mut(&number) else { return };
        let Some(send) = queue_pair.send(sequence) else { return };
        let (work, fault, wanting) = (send.work, send.fault, send.bytes.is_none());
        let is_read = matches!(work.operation, SendOp::Read { .. });
        if is_read && queue_pair.reads_out == 0 {
            return self.answer(number, sequence, LOCAL_OPERATION, 0);
        }
        if wanting && !is_read && !self.gather(number, sequence) {
            return self.answer(number, sequence, LOCAL_PROTECTION, 0);
        }
        let verdict = match fault {
            Some(WorkFault::NotReady(rounds)) if self.waited(number) < rounds => {
                return self.wait_for_receive(number, sequence, rounds);
            }
            Some(WorkFault::Unreachable) => {
                // Either the request or only its response is lost.
                if self.random.coin() {
                    let _ = self.execute(number, sequence, &work);
                }
                PeerResponse::Silence
            }
            Some(WorkFault::RemoteAccess) => self.refuse_access(number),
            _ => self.execute(number, sequence, &work),
        };
        let answer_bytes = if is_read { work.pieces.bytes() } else { 0 };
        match verdict {
            PeerResponse::Done => {
                self.ready_again(number);
                self.answer(number, sequence, WcStatus::Success, answer_bytes);
            }
            PeerResponse::NoReceive => self.wait_for_receive(number, sequence, 0),
            PeerResponse::Silence => self.time_out(number, sequence),
            PeerResponse::PostError(status) => self.answer(number, sequence, status, 0),
        }
    }

    /// Rounds that the queue pair has waited for a receive.
    fn waited(&self, number: u32) -> u64 {
        let wait = self.queue_pairs.get(&number).and_then(|pair| pair.not_ready);
        wait.map_or(0, |wait| (self.now - wait.since) / self.costs.not_ready.max(1))
    }

    fn wait_for_receive(&mut self, number: u32, sequence: u64, forced: u64) {
        let (now, round) = (self.now, self.costs.not_ready.max(1));
        let Some(queue_pair) = self.queue_pairs.get_mut(&number) else { return };
        if queue_pair.not_ready.is_some() {
            return;
        }
        queue_pair.not_ready = Some(NotReady { sequence, since: now, forced });
        queue_pair.call_back(sequence + 1);
        let (epoch, retries) = (queue_pair.epoch, queue_pair.rnr_retries);
        self.counters.not_ready += 1;
        if forced > 0 {
            let event = Event::Retry { queue_pair: number, sequence, epoch };
            self.at(now + forced * round, event);
        }
        if retries < FOR_EVER {
            // One nanosecond later than the last retry.
            let event = Event::GiveUp { queue_pair: number, sequence, epoch };
            self.at(now + u64::from(retries) * round + 1, event);
        }
    }

    /// Schedules a retry, at the next round, for senders that wait for a receive of a peer that
    /// satisfies `is_it`.
    pub(crate) fn wake_senders(&mut self, is_it: impl Fn(&QueuePair) -> bool) {
        let round = self.costs.not_ready.max(1);
        let mut retries = Vec::new();
        for (number, queue_pair) in &self.queue_pairs {
            let Some(wait) = queue_pair.not_ready else { continue };
            let peer = queue_pair.peer.and_then(|peer| self.queue_pairs.get(&peer));
            if peer.is_some_and(|peer| !is_it(peer)) {
                continue;
            }
            let rounds = ((self.now - wait.since) / round + 1).max(wait.forced);
            let (sequence, epoch) = (wait.sequence, queue_pair.epoch);
            let event = Event::Retry { queue_pair: *number, sequence, epoch };
            retries.push((wait.since + rounds * round, event));
        }
        for (time, event) in retries {
            self.at(time, event);
        }
    }

    /// Resumes the work requests behind a SEND that found a receive.
    fn ready_again(&mut self, number: u32) {
        let rounds = self.waited(number);
        let Some(queue_pair) = self.queue_pairs.get_mut(&number) else { return };
        if queue_pair.not_ready.take().is_some() {
            queue_pair.not_ready_rounds += rounds;
            queue_pair.epoch = queue_pair.epoch.wrapping_add(1);
            self.pump(number);
        }
    }

    fn time_out(&mut self, number: u32, sequence: u64) {
        let Some(queue_pair) = self.queue_pairs.get_mut(&number) else { return };
        let tries = u64::from(queue_pair.retries) + 1;
        queue_pair.not_ready = None;
        let wait = self.costs.timeout.saturating_mul(tries);
        self.answer_after(number, sequence, WcStatus::Unreachable, wait);
    }

    /// Sends the result to the poster; `bytes` is the payload of an RDMA READ.
    fn answer(&mut self, number: u32, sequence: u64, status: WcStatus, bytes: u64) {
        let jitter = self.random.below(self.costs.jitter.saturating_add(1));
        let delay = self.costs.answer + self.costs.bytes(bytes) + jitter;
        self.answer_after(number, sequence, status, delay);
    }

    fn answer_after(&mut self, number: u32, sequence: u64, status: WcStatus, delay: u64) {
        let now = self.now;
        let Some(queue_pair) = self.queue_pairs.get_mut(&number) else { return };
        if status != WcStatus::Success {
            queue_pair.halted = true;
            queue_pair.not_ready = None;
            queue_pair.call_back(sequence + 1);
        }
        let Some(send) = queue_pair.send(sequence) else { return };
        send.stage = Stage::Executed;
        queue_pair.last_finish = (now + delay).max(queue_pair.last_finish + 1);
        let time = queue_pair.last_finish;
        self.at(time, Event::Finish { queue_pair: number, sequence, status });
    }

    fn execute(&mut self, number: u32, sequence: u64, work: &SendWr) -> PeerResponse {
        let Some(queue_pair) = self.queue_pairs.get_mut(&number) else {
            return PeerResponse::Silence;
        };
        let (peer, reads_at_peer) = (queue_pair.peer, queue_pair.reads_at_peer);
        let bytes = queue_pair.send(sequence).and_then(|send| send.bytes.clone());
        let bytes = bytes.unwrap_or_default();
        let peer = peer.and_then(|peer| self.queue_pairs.get(&peer));
        let Some(peer) = peer.filter(|peer| matches!(peer.phase, Phase::Receiving | Phase::Ready))
        else {
            return PeerResponse::Silence;
        };
        let (peer, device, reads_in) = (peer.number, peer.device, peer.reads_in);
        if self.devices.get(&device).is_none_or(|device| device.removed) {
            return PeerResponse::Silence;
        }
        match work.operation {
            SendOp::Send => self.take_send(peer, &bytes, None),
            SendOp::SendInvalidate { key } => self.take_send(peer, &bytes, Some(key)),
            SendOp::Write { address, key } => {
                let region = self.remote_region(device, key);
                let region = region.filter(|region| region.access.remote_write);
                let fits = region.is_some_and(|region| region.span.copy_in(address, &bytes));
                if !fits && !bytes.is_empty() {
                    return self.refuse_access(number);
                }
                self.counters.written += bytes.len() as u64;
                PeerResponse::Done
            }
            SendOp::Read { address, key } => {
                if reads_at_peer >= u32::from(reads_in) {
                    self.fail(peer, Failure::Silent);
                    return PeerResponse::PostError(REMOTE_INVALID);
                }
                let length = usize::try_from(work.pieces.bytes()).unwrap_or(usize::MAX);
                let mut bytes = Vec::new();
                let region = self.remote_region(device, key);
                let region = region.filter(|region| region.access.remote_read);
                let fits =
                    region.is_some_and(|region| region.span.copy_out(address, length, &mut bytes));
                if !fits && length > 0 {
                    return self.refuse_access(number);
                }
                if let Some(queue_pair) = self.queue_pairs.get_mut(&number) {
                    queue_pair.reads_at_peer += 1;
                    if let Some(send) = queue_pair.send(sequence) {
                        send.bytes = Some(bytes);
                    }
                }
                PeerResponse::Done
            }
        }
    }

    /// Rejects an access; the peer's queue pair fails, too.
    fn refuse_access(&mut self, number: u32) -> PeerResponse {
        if let Some(peer) = self.queue_pairs.get(&number).and_then(|queue_pair| queue_pair.peer) {
            self.fail(peer, Failure::Silent);
        }
        PeerResponse::PostError(WcStatus::RemoteAccess)
    }

    /// Puts the payload of a SEND into the oldest receive of `peer`.
    fn take_send(&mut self, peer: u32, bytes: &[u8], invalidate: Option<u32>) -> PeerResponse {
        let Some(queue_pair) = self.queue_pairs.get_mut(&peer) else {
            return PeerResponse::Silence;
        };
        let device = queue_pair.device;
        let (receive, frees) = match queue_pair.shared {
            None => (queue_pair.receives.pop_front(), Frees::Receive),
            Some(shared) => {
                let queue = self.shared_queues.get_mut(&shared);
                (queue.and_then(|queue| queue.receives.pop_front()), Frees::FabricInner(shared))
            }
        };
        let Some(receive) = receive else { return PeerResponse::NoReceive };
        self.counters.ended += 1;
        let mut completion = WorkCompletion {
            id: receive.id,
            status: WcStatus::Success,
            queue_pair: peer,
            bytes: 0,
            invalidated: None,
        };
        let refused = if receive.pieces.bytes() < bytes.len() as u64 {
            Some((LOCAL_LENGTH, REMOTE_INVALID))
        } else if !self.scatter(device, &receive.pieces, bytes) {
            Some((LOCAL_PROTECTION, REMOTE_OPERATION))
        } else if invalidate.is_some_and(|key| !self.invalidate(device, key)) {
            Some((REMOTE_INVALID, WcStatus::RemoteAccess))
        } else {
            None
        };
        if let Some((here, there)) = refused {
            completion.status = here;
            self.complete(completion, frees);
            self.fail(peer, Failure::Completed);
            return PeerResponse::PostError(there);
        }
        completion.bytes = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
        completion.invalidated = invalidate;
        self.counters.sent += bytes.len() as u64;
        self.complete(completion, frees);
        PeerResponse::Done
    }

    /// Handles a result that has reached the poster.
    pub(crate) fn finish(&mut self, number: u32, sequence: u64, status: WcStatus) {
        let Some(queue_pair) = self.queue_pairs.get_mut(&number) else { return };
        let (device, failed) = (queue_pair.device, queue_pair.phase == Phase::Error);
        let is_first = queue_pair.first() == sequence;
        let Some(send) = queue_pair.send(sequence).filter(|_| is_first || failed) else { return };
        let work = send.work;
        let breaks = matches!(send.fault, Some(WorkFault::Break));
        let is_read = matches!(work.operation, SendOp::Read { .. });
        let brought = if is_read { send.bytes.take() } else { None };
        let mut status = status;
        if let Some(bytes) = brought.filter(|_| status == WcStatus::Success) {
            if self.scatter(device, &work.pieces, &bytes) {
                self.counters.read += bytes.len() as u64;
            } else {
                status = LOCAL_PROTECTION;
            }
        }
        if failed {
            // The flush completes it in order, whatever the result.
            return;
        }
        if breaks && status == WcStatus::Success {
            return self.fail(number, Failure::Told);
        }
        self.end_first(number, &work, status, sequence);
        if is_read && let Some(queue_pair) = self.queue_pairs.get_mut(&number) {
            queue_pair.reads = queue_pair.reads.saturating_sub(1);
            queue_pair.reads_at_peer = queue_pair.reads_at_peer.saturating_sub(1);
        }
        self.pump(number);
    }

    /// Ends the oldest work request of the send queue.
    fn end_first(&mut self, number: u32, work: &SendWr, status: WcStatus, sequence: u64) {
        if let Some(queue_pair) = self.queue_pairs.get_mut(&number) {
            queue_pair.sends.pop_front();
        }
        self.counters.ended += 1;
        if work.signaled || status != WcStatus::Success {
            let completion = WorkCompletion {
                id: work.id,
                status,
                queue_pair: number,
                bytes: 0,
                invalidated: None,
            };
            self.complete(completion, Frees::Sends(sequence + 1));
        }
        if status != WcStatus::Success {
            self.fail(number, Failure::Completed);
        }
    }
}
