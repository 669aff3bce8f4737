//! A queue of the target and its host.

use std::collections::VecDeque;
use std::net::TcpStream;
use std::rc::Rc;

use nvmeof_core::dma::{CorePool, Payload, ZeroCopySource};
use nvmeof_transport::tcp::{TcpParams, accepted};
use nvmeof_transport::{
    CloseReason, Connected, DetachedQueue, Event, FabricError, FabricOp, HostQueue, Nanos,
    PollGroup, Progress, ReactorResources, RejectReason,
};
use nvmeof_wire::tcp::{
    ADMIN_IN_CAPSULE, CapsuleCmd, Framing, H2CData, ICReq, IcParams, MIN_MAXH2CDATA, Receiver,
    TcpError, TermReq,
};
use nvmeof_wire::zerocopy::IntoBytes;
use nvmeof_wire::{Cqe, Sgl, Sqe};
use rustix::net::{AddressFamily, SocketFlags, SocketType, sockopt};

use super::host::{Due, Host, Told, assemble, crc32c, with_pattern};
use crate::input::Input;

/// Maximum number of a host's outstanding commands before its Connect.
const EARLY_DEPTH: u16 = 4;
const SECOND: Nanos = 1_000_000_000;
/// Turns after which everything has ended.
const TURNS: usize = 64;

/// A capsule from a sound host.
#[derive(Debug)]
struct Sent {
    sqe: Sqe,
    len: usize,
    seed: u8,
    good: bool,
}

/// A pull that the target submitted.
#[derive(Debug)]
struct Pull {
    token: u64,
    cid: u16,
    len: usize,
    ttag: Option<u16>,
    /// Bytes that the host sent, and whether one of their digests was wrong.
    sent: usize,
    bad: bool,
}

#[derive(Debug)]
pub(super) struct World {
    pool: CorePool,
    source: Rc<ZeroCopySource>,
    params: TcpParams,
    /// `None` only while it is detached.
    queue: Option<Box<dyn HostQueue>>,
    host: Host,
    now: Nanos,
    events: Vec<Event>,
    told: Vec<Told>,
    closed: Option<CloseReason>,

    /// The host has kept to the protocol.
    sound: bool,
    asked: Option<IcParams>,
    out: Framing,
    depth: u16,
    admin: Option<bool>,
    paused: bool,
    /// The queue requests another call, even without new data.
    call_again: bool,

    /// Sound capsules in transit, in order.
    sent: VecDeque<Sent>,
    /// Number of the host's commands without a completion.
    outstanding: usize,
    /// Delivered commands without a completion.
    waiting: Vec<u16>,
    pulls: Vec<Pull>,
    /// Tokens of responses with data.
    sending: Vec<u64>,
    next_token: u64,
}

impl World {
    pub(super) fn new(
        pool: &CorePool,
        source: &Rc<ZeroCopySource>,
        params: TcpParams,
        small_buffers: bool,
    ) -> Self {
        let kind = SocketType::STREAM;
        let flags = SocketFlags::CLOEXEC;
        let (target, host) =
            rustix::net::socketpair(AddressFamily::UNIX, kind, flags, None).expect("two sockets");
        if small_buffers {
            sockopt::set_socket_send_buffer_size(&target, 4096).expect("a smaller buffer");
        }
        let queue = attach(accepted(TcpStream::from(target), params), pool);
        Self {
            pool: pool.clone(),
            source: Rc::clone(source),
            params,
            queue: Some(queue),
            host: Host::new(host),
            now: SECOND,
            events: Vec::new(),
            told: Vec::new(),
            closed: None,
            sound: true,
            asked: None,
            out: Framing::default(),
            depth: EARLY_DEPTH,
            admin: None,
            paused: false,
            call_again: true,
            sent: VecDeque::new(),
            outstanding: 0,
            waiting: Vec::new(),
            pulls: Vec::new(),
            sending: Vec::new(),
            next_token: 0,
        }
    }

    pub(super) fn is_closed(&self) -> bool {
        self.closed.is_some()
    }

    fn queue(&mut self) -> &mut Box<dyn HostQueue> {
        self.queue.as_mut().expect("it is not parked")
    }

    // Actions of the host.

    /// Sends the ICReq.
    pub(super) fn greet(&mut self, input: &mut Input<'_>) {
        if self.asked.is_some() {
            self.sound = false;
        }
        let bits = input.byte();
        let wanted =
            IcParams { pda: bits >> 3, hdgst: bits & 1 != 0, ddgst: bits & 2 != 0, max: 1 };
        self.asked.get_or_insert(wanted);
        self.send(input, ICReq::new(wanted).as_bytes().to_vec(), false);
        self.turn();
    }

    /// Sends a command, with or without data.
    pub(super) fn capsule(&mut self, input: &mut Input<'_>) {
        if self.asked.is_none() && !input.one_in(16) {
            self.greet(input);
        }
        let opcode = input.byte();
        let mut sqe = Sqe::new(opcode, input.word(), u32::from(input.byte()));
        let seed = opcode ^ 0x5a;
        let len = match input.byte() {
            0..=99 => 0,
            100..=199 => input.below(64) + 1,
            200..=239 => input.below(4096) + 1,
            240..=251 => [512, 4096, 8192][input.below(3)],
            _ => input.below(9000) + 1,
        };
        let length = u32::try_from(len).expect("at most 9000");
        if len > 0 {
            sqe = sqe.with_sgl(Sgl::InCapsule { offset: 0, length });
        }
        let limit = match self.admin {
            Some(false) if !sqe.is_fabrics() => self.params.in_capsule,
            _ => ADMIN_IN_CAPSULE,
        };
        let in_order = self.host.framing.is_some()
            && self.outstanding < usize::from(self.depth)
            && length <= limit;
        self.sound &= in_order;
        let header = CapsuleCmd::new(self.out, sqe, length);
        let out = self.out;
        let mut bytes = with_pattern(len, seed, |data| assemble(out, &header, data));
        let good = self.corrupt_digest(input, &mut bytes, len);
        self.outstanding += 1;
        self.sent.push_back(Sent { sqe, len, seed, good });
        self.send(input, bytes, true);
    }

    /// Sends requested data, or unrequested data.
    pub(super) fn data(&mut self, input: &mut Input<'_>) {
        if input.one_in(24) {
            self.unasked_data(input);
            return;
        }
        let asked: Vec<usize> =
            (0..self.pulls.len()).filter(|at| self.pulls[*at].ttag.is_some()).collect();
        if asked.is_empty() {
            return self.target_step(input);
        }
        let at = input.pick(&asked);
        let most = self.params.max_transfer.max(MIN_MAXH2CDATA).max(ADMIN_IN_CAPSULE) as usize;
        let pull = &self.pulls[at];
        let left = pull.len - pull.sent;
        let Some(ttag) = pull.ttag.filter(|_| left > 0) else { return };
        let (cid, sent, token) = (pull.cid, pull.sent, pull.token);
        let len = match input.byte() {
            0..=127 => left,
            _ => (input.below(left) & !3).max(4).min(left),
        };
        let len = len.min(most);
        self.sound &= len % 4 == 0;
        let [datao, datal] = [sent, len].map(|n| u32::try_from(n).expect("bounded"));
        let header = H2CData::new(self.out, cid, ttag, datao, datal, len == left);
        let out = self.out;
        let mut bytes = with_pattern(left + sent, token.to_le_bytes()[0], |data| {
            assemble(out, &header, &data[sent..sent + len])
        });
        let good = self.corrupt_digest(input, &mut bytes, len);
        let pull = &mut self.pulls[at];
        pull.sent += len;
        pull.bad |= !good;
        self.send(input, bytes, true);
    }

    /// Sends data with fields of the fuzzer's choice.
    fn unasked_data(&mut self, input: &mut Input<'_>) {
        self.sound = false;
        let (cid, ttag, datao) = match self.pulls.first() {
            Some(pull) if input.coin() => {
                let ttag = pull.ttag.unwrap_or(0).wrapping_add(u16::from(input.byte() & 3));
                (pull.cid, ttag, u32::try_from(pull.sent).expect("bounded"))
            }
            _ => (input.word(), input.word(), input.dword()),
        };
        let len = input.below(256) * 4;
        let datal = u32::try_from(len).expect("bounded");
        let header = H2CData::new(self.out, cid, ttag, datao, datal, input.coin());
        let out = self.out;
        let bytes = with_pattern(len, 1, |data| assemble(out, &header, data));
        self.send(input, bytes, true);
    }

    /// Does something rare or invalid for a host.
    pub(super) fn host_oddity(&mut self, input: &mut Input<'_>) {
        match input.byte() % 8 {
            0 => {
                let len = input.below(64) + 1;
                self.send_raw(input.bytes(len));
            }
            1 if self.asked.is_none() || input.one_in(4) => self.greet(input),
            2 if input.one_in(4) => {
                let error =
                    TcpError { fes: nvmeof_wire::tcp::Fes(input.word()), fei: input.dword() };
                let len = input.below(140);
                let data_len = u8::try_from(len).expect("bounded");
                let mut bytes = TermReq::new(Receiver::Host, error, data_len).as_bytes().to_vec();
                bytes.resize(bytes.len() + len.min(128), 7);
                self.send(input, bytes, true);
                self.turn();
            }
            3 if input.one_in(4) => {
                self.host.shut_down();
                self.turn();
            }
            4 if input.one_in(4) => {
                self.host.close();
                self.turn();
            }
            5 => {
                let seconds = [1, 5, 11, 31][input.below(4)];
                self.now += seconds * SECOND;
                self.call_again = true;
                self.turn();
                self.call_again = true;
                self.turn();
                self.check_deadline();
            }
            _ => self.turn(),
        }
    }

    /// Sends bytes unchanged.
    pub(super) fn send_raw(&mut self, bytes: &[u8]) {
        if bytes.is_empty() {
            return;
        }
        self.sound = false;
        self.host.queue(bytes);
        self.host.write(usize::MAX);
    }

    /// Makes the data digest of `bytes` wrong, sometimes and if there is one. Returns whether the
    /// data is valid.
    fn corrupt_digest(&mut self, input: &mut Input<'_>, bytes: &mut [u8], len: usize) -> bool {
        if len == 0 || !self.out.ddgst || !input.one_in(16) {
            return true;
        }
        if let Some(last) = bytes.last_mut() {
            *last ^= 1;
        }
        false
    }

    /// Sends a PDU, in pieces or changed if the input says so.
    fn send(&mut self, input: &mut Input<'_>, mut bytes: Vec<u8>, digest: bool) {
        let how = input.byte();
        if how >= 224 {
            self.mutate(input, &mut bytes, digest);
        }
        self.host.queue(&bytes);
        match how % 8 {
            0..=3 => self.host.write(usize::MAX),
            // Sent together with the next PDU.
            4 => {}
            5 | 6 => {
                self.host.write(input.below(bytes.len().max(1)) + 1);
                self.turn_of_target();
                self.host.write(usize::MAX);
            }
            _ => {
                let step = input.below(16) + 1;
                for _ in 0..8 {
                    self.host.write(step);
                    self.turn_of_target();
                }
            }
        }
    }

    fn mutate(&mut self, input: &mut Input<'_>, bytes: &mut Vec<u8>, digest: bool) {
        let before = bytes.clone();
        for _ in 0..=input.below(3) {
            let at = match input.byte() {
                0..=199 => input.below(24),
                _ => input.below(bytes.len()),
            };
            let value = input.byte();
            let how = input.byte() % 8;
            let Some(byte) = bytes.get_mut(at) else { continue };
            match how {
                0..=2 => *byte = value,
                3 | 4 => *byte ^= 1 << (value & 7),
                5 | 6 => *byte = byte.wrapping_add((value % 9).wrapping_sub(4)),
                _ => bytes.truncate(at.max(8)),
            }
        }
        // With a correct digest the change passes the first checks.
        let hlen = usize::from(before[2]);
        if digest && self.out.hdgst && !input.one_in(4) && bytes.len() >= hlen + 4 {
            let crc = crc32c(&bytes[..hlen]);
            bytes[hlen..hlen + 4].copy_from_slice(&crc.to_le_bytes());
        }
        self.sound &= *bytes == before;
    }

    // Actions of the target.

    /// Runs a reactor's step with the current commands.
    pub(super) fn target_step(&mut self, input: &mut Input<'_>) {
        let quiet = self.outstanding == self.waiting.len() || !self.sound;
        if self.admin.is_none() && self.pulls.is_empty() && quiet && input.coin() {
            self.connect(input);
        }
        let idle = self.idle();
        if idle.is_empty() {
            return self.turn();
        }
        let cid = input.pick(&idle);
        match input.byte() % 8 {
            0..=3 => self.pull(input, cid),
            4 | 5 => self.respond(cid, None, None, false),
            _ => {
                let elidable = input.coin();
                if input.one_in(16) {
                    let len = [1, 512, 65_536, 100_000][input.below(4)];
                    let data = self.source.data(len).expect("less than the limit");
                    self.respond(cid, Some(Payload::ZeroCopy(data)), None, elidable);
                } else {
                    let seed = input.byte();
                    let len = [4, 16, 512, 4096, 0, 1, 6000, 20_000][input.below(8)];
                    let mut buf = self.pool.lease(len.max(1)).expect("there is plenty");
                    buf.truncate(len);
                    with_pattern(len, seed, |data| buf.as_mut_slice().copy_from_slice(data));
                    self.respond(cid, Some(Payload::Buffer(buf)), Some(seed), elidable);
                }
            }
        }
        if input.coin() {
            self.turn();
        }
    }

    /// Returns commands without a pull.
    fn idle(&self) -> Vec<u16> {
        let pulled = |cid: &u16| self.pulls.iter().any(|pull| pull.cid == *cid);
        self.waiting.iter().copied().filter(|cid| !pulled(cid)).collect()
    }

    fn connect(&mut self, input: &mut Input<'_>) {
        let admin = input.coin();
        let depth = [2, 5, 32, 33][input.below(4)];
        // The depth applies after the host receives it, with the completion of its Connect.
        if self.outstanding > usize::from(depth) {
            return;
        }
        self.admin = Some(admin);
        self.depth = depth;
        self.queue().connected(Connected { admin, depth });
    }

    fn pull(&mut self, input: &mut Input<'_>, cid: u16) {
        let len = match input.byte() {
            0..=127 => [4, 512, 1024, 4096][input.below(4)],
            128..=250 => (input.below(4096) + 1).next_multiple_of(4),
            _ => [1, 3, 9000, 20_000][input.below(4)],
        };
        let token = self.token();
        let mut buf = self.pool.lease(len).expect("there is plenty");
        buf.as_mut_slice().fill(0);
        let length = u32::try_from(len).expect("bounded");
        let sgl = Sgl::Transport { length };
        match self.queue().submit(FabricOp::FetchHostData { token, cid, sgl, buf }) {
            Ok(()) => {
                self.pulls.push(Pull { token, cid, len, ttag: None, sent: 0, bad: false });
                self.host.due.push_back(Due::R2t { cid, len });
            }
            Err(rejected) => {
                assert_eq!(rejected.reason, RejectReason::Closing);
                assert!(
                    matches!(rejected.op, FabricOp::FetchHostData { token: same, .. } if same == token)
                );
            }
        }
    }

    fn respond(&mut self, cid: u16, data: Option<Payload>, seed: Option<u8>, elidable: bool) {
        let token = self.token();
        let len = data.as_ref().map(Payload::len);
        let length = u32::try_from(len.unwrap_or(0)).expect("bounded");
        let op = FabricOp::Respond {
            token,
            cqe: Cqe::success(cid, 0),
            sgl: Sgl::Transport { length },
            data,
            elidable,
        };
        match self.queue().submit(op) {
            Ok(()) => {
                let at = self.waiting.iter().position(|waits| *waits == cid);
                self.waiting.swap_remove(at.expect("it waits"));
                self.host.due.push_back(match len {
                    Some(len) if len > 0 => Due::Data { cid, len, seed, elidable },
                    _ => Due::Response { cid },
                });
                self.sending.extend(len.map(|_| token));
            }
            Err(rejected) => assert_eq!(rejected.reason, RejectReason::Closing),
        }
    }

    /// Runs a reactor's operation on a whole queue.
    pub(super) fn target_oddity(&mut self, input: &mut Input<'_>) {
        match input.byte() % 8 {
            0..=2 => {
                self.paused = !self.paused;
                let paused = self.paused;
                self.queue().set_paused(paused);
                self.call_again = true;
            }
            3..=5 => self.detach(),
            6 if input.one_in(8) => {
                self.close();
            }
            _ => self.turn(),
        }
    }

    fn detach(&mut self) {
        let queue = self.queue.take().expect("it is not parked");
        match queue.detach() {
            Ok(parked) => {
                assert!(self.waiting.is_empty() && self.pulls.is_empty());
                assert!(self.sending.is_empty());
                self.queue = Some(attach(parked, &self.pool));
                // A descriptor that is registered again reports what it is ready for.
                self.host.woke = true;
            }
            Err(queue) => self.queue = Some(queue),
        }
    }

    fn token(&mut self) -> u64 {
        self.next_token += 1;
        self.next_token
    }

    // Progress of both ends.

    /// Runs one turn of both ends.
    pub(super) fn turn(&mut self) {
        self.host.write(usize::MAX);
        self.turn_of_target();
        // Without an expected PDU the host reads at the end.
        if !self.host.expects() {
            return;
        }
        self.listen();
    }

    /// The host reads.
    fn listen(&mut self) {
        let was_granted = self.host.framing.is_some();
        self.host.read(&mut self.told);
        for told in std::mem::take(&mut self.told) {
            self.hear(&told);
        }
        if !was_granted && self.host.framing.is_some() {
            self.listen();
        }
    }

    fn turn_of_target(&mut self) {
        let mut events = std::mem::take(&mut self.events);
        let now = self.now;
        // As in the reactor, which is edge-triggered: no call without a cause.
        let woke = std::mem::take(&mut self.host.woke);
        if woke && self.host.hung_up {
            self.queue().hung_up();
        }
        if woke || self.call_again {
            self.call_again = self.queue().receive(now, &mut events) == Progress::More;
            for event in events.drain(..) {
                self.happen(event);
            }
        }
        self.queue().flush(&mut { usize::MAX }, now, &mut events);
        for event in events.drain(..) {
            assert!(matches!(
                event,
                Event::Sent { .. }
                    | Event::HostDataArrived { result: Err(_), .. }
                    | Event::Closed { .. }
            ));
            self.happen(event);
        }
        self.events = events;
    }

    fn happen(&mut self, event: Event) {
        assert!(self.closed.is_none(), "after Closed: {event:?}");
        match event {
            Event::Command { sqe, data } => {
                self.delivered(&sqe, data.as_ref().map_or(&[][..], |data| data.as_slice()), true);
            }
            Event::CommandFailed { sqe, error } => {
                assert_eq!(error, FabricError::DataDigest);
                assert!(self.out.ddgst || !self.sound);
                self.delivered(&sqe, &[], false);
            }
            Event::HostDataArrived { token, buf, result } => {
                let at = self.pulls.iter().position(|pull| pull.token == token);
                let pull = self.pulls.swap_remove(at.expect("a pull that is out"));
                assert_eq!(buf.len(), pull.len);
                match result {
                    Ok(()) if self.sound => {
                        assert!(!pull.bad && pull.sent == pull.len);
                        let seed = token.to_le_bytes()[0];
                        with_pattern(pull.len, seed, |data| assert!(buf.as_slice() == data));
                    }
                    Err(FabricError::DataDigest) if self.sound => assert!(pull.bad),
                    Ok(()) | Err(FabricError::DataDigest | FabricError::Closed) => {}
                    Err(error) => panic!("{error}"),
                }
            }
            Event::Sent { token, .. } => {
                let at = self.sending.iter().position(|sending| *sending == token);
                self.sending.swap_remove(at.expect("a response that is out"));
            }
            Event::Closed { reason } => {
                assert!(self.pulls.is_empty(), "pulls are missing: {:?}", self.pulls);
                assert!(self.sending.is_empty(), "responses are missing: {:?}", self.sending);
                let unjust = matches!(reason, CloseReason::Protocol(_) | CloseReason::NoMemory(_));
                assert!(!(self.sound && unjust), "{reason}");
                self.closed = Some(reason);
            }
            Event::RegisterFd => panic!("a queue over TCP has one descriptor as long as it lives"),
        }
    }

    fn delivered(&mut self, sqe: &Sqe, data: &[u8], good: bool) {
        assert!(!self.paused, "a command while paused");
        let most = self.depth.max(EARLY_DEPTH);
        assert!(self.waiting.len() < usize::from(most), "more than the depth");
        self.waiting.push(sqe.cid.get());
        if self.sound {
            let sent = self.sent.pop_front().expect("it was sent");
            assert_eq!(sent.sqe.as_bytes(), sqe.as_bytes());
            assert_eq!(sent.good, good);
            if good {
                assert_eq!(sent.len, data.len());
                with_pattern(sent.len, sent.seed, |whole| assert!(whole == data));
            }
        }
    }

    fn hear(&mut self, told: &Told) {
        match told {
            Told::Granted(response) => {
                let granted = response.params().expect("checked");
                let mut pda = 0;
                if let Some(asked) = self.asked.filter(|_| self.sound) {
                    assert!(granted.check_granted(&asked).is_ok());
                    assert_eq!(granted.hdgst, asked.hdgst && self.params.header_digest);
                    assert_eq!(granted.ddgst, asked.ddgst && self.params.data_digest);
                    pda = asked.pda;
                }
                self.out = Framing::new(granted.hdgst, granted.ddgst, granted.pda);
                self.host.framing = Some(Framing::new(granted.hdgst, granted.ddgst, pda));
            }
            Told::Asked { cid, ttag } => {
                if let Some(pull) = self.pulls.iter_mut().find(|pull| pull.cid == *cid) {
                    pull.ttag.get_or_insert(*ttag);
                }
            }
            Told::Answered => self.outstanding = self.outstanding.saturating_sub(1),
            Told::Terminated => assert!(!self.sound, "terminated without cause"),
        }
    }

    /// Checks that an expired deadline was handled.
    fn check_deadline(&mut self) {
        let now = self.now;
        let deadline = self.queue().deadline();
        assert!(deadline.is_none_or(|at| at > now) || self.paused, "a deadline was missed");
    }

    fn close(&mut self) {
        self.queue().close(CloseReason::Shutdown);
        self.call_again = true;
        self.turn();
        assert!(self.is_closed(), "still open");
    }

    /// Ends the connection in one of several ways and checks its end.
    pub(super) fn finish(&mut self, input: &mut Input<'_>) {
        if self.paused {
            self.paused = false;
            self.queue().set_paused(false);
            self.call_again = true;
        }
        for _ in 0..TURNS {
            self.turn();
            let quiet = !self.host.has_unsent() && !self.call_again && self.host.due.is_empty();
            if self.is_closed() || quiet {
                break;
            }
        }
        self.listen();
        if !self.is_closed() {
            assert!(!self.sound || self.sent.is_empty(), "{:?} did not arrive", self.sent);
            if input.coin() {
                self.close();
            } else {
                self.host.close();
                for _ in 0..TURNS {
                    self.turn();
                    if self.is_closed() {
                        break;
                    }
                }
                assert!(self.is_closed(), "still open");
            }
        }
        self.call_again = true;
        self.turn_of_target();
        assert!(self.queue().deadline().is_none());
    }
}

/// Attaches a connection; over TCP, connections share nothing.
fn attach(parked: Box<dyn DetachedQueue>, pool: &CorePool) -> Box<dyn HostQueue> {
    parked
        .attach(&mut ReactorResources { pool, sources: &mut PollGroup::default() })
        .expect("a queue")
}
