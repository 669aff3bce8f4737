//! A target's bytes into the host's side of NVMe/TCP.
//!
//! While the target keeps to the protocol, nothing is allowed to end the connection, and data
//! arrive unchanged. Invariants: each command completes once, with success only if all of its data
//! moved, and the host's PDUs are well formed.

use std::collections::{BTreeMap, VecDeque};

use nvmeof_initiator::fuzzing::FuzzedHost;
use nvmeof_initiator::{Buffer, Command, CompletedCommand, RejectReason, Transfer};
use nvmeof_wire::tcp::{
    C2HData, CapsuleCmd, CapsuleResp, CommonHeader, Framing, H2CData, IcParams, PduHead, PduType,
    R2T, Receiver, RxRules, TcpError, TermReq, flags,
};
use nvmeof_wire::zerocopy::{FromBytes, IntoBytes};
use nvmeof_wire::{Cqe, Sqe, Status};

use crate::input::Input;
use crate::pdu_stream::host::{assemble, check_digests, crc32c, with_pattern};

/// Maximum number of steps of one run.
const STEPS: usize = 64;

/// Runs one input.
///
/// # Panics
/// If the host violates an invariant.
pub fn run(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let mut world = World::new(&mut input);
    for _ in 0..STEPS {
        if input.is_empty() || world.ended {
            break;
        }
        match input.byte() % 16 {
            0..=3 => world.submit(&mut input),
            4 | 5 => world.exchange(usize::from(input.word())),
            6..=8 => world.data(&mut input),
            9 | 10 => world.request(&mut input),
            11..=13 => world.respond(&mut input),
            _ => world.oddity(&mut input),
        }
    }
    world.finish();
}

/// State of a command at the host.
#[derive(Debug)]
enum Wanted {
    Nothing,
    In { len: usize },
    Out { len: usize },
}

/// State of a command at the target.
#[derive(Debug)]
struct Held {
    cid: u16,
    token: u64,
    /// Bytes moved, and bytes of an R2T that have not arrived.
    moved: usize,
    asked: usize,
    bad: bool,
}

#[derive(Debug)]
struct World {
    host: FuzzedHost,
    rules: RxRules,
    out: Framing,
    in_capsule: usize,
    depth: usize,
    wanted: BTreeMap<u64, Wanted>,
    held: Vec<Held>,
    inbox: Vec<u8>,
    /// Submitted commands that the target has not received yet, in their order.
    submitted: VecDeque<u64>,
    done: Vec<CompletedCommand>,
    next_token: u64,
    sound: bool,
    ended: bool,
}

impl World {
    fn new(input: &mut Input<'_>) -> Self {
        let bits = input.byte();
        let (hdgst, ddgst) = (bits & 1 != 0, bits & 2 != 0);
        let max = if bits & 4 == 0 { 8192 } else { 4096 };
        let granted = IcParams { pda: bits >> 5, hdgst, ddgst, max };
        let in_capsule = if bits & 8 == 0 { 4096 } else { 0 };
        let depth = if bits & 16 == 0 { 4 } else { 1 };
        let framing = Framing::new(hdgst, ddgst, granted.pda);
        let receiver = Receiver::Controller;
        Self {
            host: FuzzedHost::new(depth, granted, in_capsule),
            rules: RxRules { receiver, framing, max_in_capsule: 8192, max_data: max },
            out: Framing::new(hdgst, ddgst, 0),
            in_capsule: in_capsule as usize,
            depth: usize::from(depth),
            wanted: BTreeMap::new(),
            held: Vec::new(),
            inbox: Vec::new(),
            submitted: VecDeque::new(),
            done: Vec::new(),
            next_token: 0,
            sound: true,
            ended: false,
        }
    }

    fn submit(&mut self, input: &mut Input<'_>) {
        let len = match input.byte() {
            0..=99 => [512, 4096, 8192][input.below(3)],
            100..=199 => (input.below(6000) + 1).next_multiple_of(4),
            200..=239 => 20_000,
            _ => input.below(40),
        };
        let kind = input.byte() % 4;
        self.next_token += 1;
        let token = self.next_token;
        let (transfer, wanted) = match kind {
            0 => (Transfer::None, Wanted::Nothing),
            1 | 2 => (Transfer::In(Buffer::zeroed(len)), Wanted::In { len }),
            _ => {
                let data = with_pattern(len, seed(token), |data| Buffer::from(data));
                (Transfer::Out(data), Wanted::Out { len })
            }
        };
        let sqe = Sqe::new(if input.one_in(8) { 0x7f } else { 2 }, 0, 1);
        match self.host.submit(Command { token, sqe, transfer }) {
            Ok(()) => {
                self.wanted.insert(token, wanted);
                self.submitted.push_back(token);
            }
            Err(rejected) => {
                assert_eq!(rejected.reason, RejectReason::Full);
                assert_eq!((rejected.command.token, self.wanted.len()), (token, self.depth));
            }
        }
        assert_eq!(self.host.in_flight(), self.wanted.len());
    }

    /// The host sends, the target reads.
    fn exchange(&mut self, most: usize) {
        let bytes = self.host.send(most, &mut self.done);
        self.complete();
        self.inbox.extend_from_slice(&bytes);
        let inbox = std::mem::take(&mut self.inbox);
        let mut rest = &inbox[..];
        while let Ok((ch, _)) = CommonHeader::ref_from_prefix(rest) {
            let head = self.rules.check(ch).unwrap_or_else(|error| panic!("{error}: {ch:?}"));
            if rest.len() < head.plen as usize {
                break;
            }
            let (pdu, after) = rest.split_at(head.plen as usize);
            rest = after;
            self.hear(&head, pdu);
        }
        self.inbox.extend_from_slice(rest);
    }

    fn hear(&mut self, head: &PduHead, pdu: &[u8]) {
        let data = check_digests(head, pdu);
        match head.pdu_type {
            PduType::CAPSULE_CMD => {
                let capsule = CapsuleCmd::ref_from_prefix(pdu).expect("checked").0;
                let token = self.submitted.pop_front().expect("a command");
                let most = if capsule.sqe.is_fabrics() { 8192 } else { self.in_capsule };
                assert!(data.len() <= most);
                with_pattern(data.len(), seed(token), |sent| assert!(*data == *sent));
                let cid = capsule.sqe.cid.get();
                let (moved, asked, bad) = (data.len(), 0, false);
                // An earlier command with this identifier, which a faulty target ended early.
                self.held.retain(|held| held.cid != cid);
                self.held.push(Held { cid, token, moved, asked, bad });
            }
            PduType::H2C_DATA => {
                let header = H2CData::ref_from_prefix(pdu).expect("checked").0;
                // A target that requests other than whole dwords receives them.
                assert!(header.check(head).is_ok() || !self.sound);
                let cid = header.cccid.get();
                let held = self.held.iter_mut().find(|held| held.cid == cid);
                let Some(held) = held else {
                    assert!(!self.sound, "data for no command");
                    return;
                };
                let start = header.datao.get() as usize;
                if self.sound {
                    assert_eq!((header.ttag.get(), start), (cid ^ 0x55, held.moved));
                    let end = start + data.len();
                    with_pattern(end, seed(held.token), |sent| assert!(*data == sent[start..]));
                    assert!(data.len() <= held.asked);
                    assert_eq!(head.flags & flags::LAST_PDU != 0, data.len() == held.asked);
                }
                held.asked = held.asked.saturating_sub(data.len());
                held.moved += data.len();
            }
            other => panic!("a {other}"),
        }
    }

    /// Chooses a command for the target's next step, among those that `able` accepts.
    fn choose(
        &self,
        input: &mut Input<'_>,
        able: impl Fn(&Held, &Wanted) -> bool,
    ) -> Option<usize> {
        let able: Vec<usize> = (0..self.held.len())
            .filter(|at| {
                let held = &self.held[*at];
                self.wanted.get(&held.token).is_some_and(|wanted| able(held, wanted))
            })
            .collect();
        (!able.is_empty()).then(|| input.pick(&able))
    }

    /// Sends data to the host.
    fn data(&mut self, input: &mut Input<'_>) {
        let able = |held: &Held, wanted: &Wanted| matches!(wanted, Wanted::In { len } if held.moved < *len);
        let Some(at) = self.choose(input, able) else { return self.exchange(usize::MAX) };
        let held = &mut self.held[at];
        let Some(Wanted::In { len }) = self.wanted.get(&held.token) else { return };
        let left = len - held.moved;
        let now = if input.coin() { left } else { (input.below(left) & !3).max(4).min(left) };
        let last = now == left;
        let success = last && input.coin();
        self.sound &= now.is_multiple_of(4);
        let (cid, start, token) = (held.cid, held.moved, held.token);
        held.moved += now;
        let [datao, datal] = [start, now].map(|n| u32::try_from(n).expect("bounded"));
        let header = C2HData::new(self.out, cid, datao, datal, last, success);
        let out = self.out;
        let mut bytes =
            with_pattern(start + now, seed(token), |data| assemble(out, &header, &data[start..]));
        if self.out.ddgst && input.one_in(16) {
            held.bad = true;
            if let Some(byte) = bytes.last_mut() {
                *byte ^= 1;
            }
        }
        if success {
            self.held.swap_remove(at);
        }
        self.send(input, bytes);
    }

    /// Sends an R2T.
    fn request(&mut self, input: &mut Input<'_>) {
        let able = |held: &Held, wanted: &Wanted| matches!(wanted, Wanted::Out { len } if held.moved < *len && held.asked == 0);
        let Some(at) = self.choose(input, able) else { return self.exchange(usize::MAX) };
        let held = &mut self.held[at];
        let Some(Wanted::Out { len }) = self.wanted.get(&held.token) else { return };
        let left = len - held.moved;
        let now = if input.coin() { left } else { (input.below(left) & !3).max(4).min(left) };
        held.asked = now;
        // H2CData has whole dwords.
        self.sound &= now.is_multiple_of(4);
        let [r2to, r2tl] = [held.moved, now].map(|n| u32::try_from(n).expect("bounded"));
        let header = R2T::new(self.out, held.cid, held.cid ^ 0x55, r2to, r2tl);
        let bytes = assemble(self.out, &header, &[]);
        if !now.is_multiple_of(4) {
            // The host then sends no more than the requested bytes, but not in dwords.
            self.ended = true;
            return;
        }
        self.send(input, bytes);
    }

    fn respond(&mut self, input: &mut Input<'_>) {
        let Some(at) = self.choose(input, |_, _| true) else { return self.exchange(usize::MAX) };
        // Without its data the response is false, but no protocol error.
        let held = self.held.swap_remove(at);
        self.sound &= held.asked == 0;
        let status = if input.one_in(4) { Status::INTERNAL_ERROR } else { Status::SUCCESS };
        let bytes =
            assemble(self.out, &CapsuleResp::new(self.out, Cqe::new(held.cid, status)), &[]);
        self.send(input, bytes);
    }

    fn oddity(&mut self, input: &mut Input<'_>) {
        match input.byte() % 4 {
            0 => {
                self.sound = false;
                let len = input.below(64) + 1;
                let bytes = input.bytes(len).to_vec();
                self.deliver(&bytes);
            }
            1 if input.one_in(4) => {
                let error = TcpError { fes: nvmeof_wire::tcp::Fes(input.word()), fei: 0 };
                self.sound = false;
                let term = TermReq::new(Receiver::Controller, error, 0);
                self.deliver(term.as_bytes());
            }
            2 => {
                self.sound = false;
                let [cid, ttag] = [input.word() & 0x1003, input.word()];
                let offset = if input.coin() { 0 } else { input.dword() };
                let header = R2T::new(self.out, cid, ttag, offset, input.dword() & 0x1fffc);
                let bytes = assemble(self.out, &header, &[]);
                self.deliver(&bytes);
            }
            _ => self.exchange(usize::MAX),
        }
    }

    fn send(&mut self, input: &mut Input<'_>, mut bytes: Vec<u8>) {
        let how = input.byte();
        if how >= 224 {
            let before = bytes.clone();
            for _ in 0..=input.below(2) {
                let at = input.below(24.min(bytes.len()));
                bytes[at] = input.byte();
            }
            if self.out.hdgst && !input.one_in(4) {
                let crc = crc32c(&bytes[..24]);
                bytes[24..28].copy_from_slice(&crc.to_le_bytes());
            }
            self.sound &= bytes == before;
        }
        if how.is_multiple_of(4) {
            let at = input.below(bytes.len());
            self.deliver(&bytes[..at]);
            self.exchange(usize::MAX);
            self.deliver(&bytes[at..]);
        } else {
            self.deliver(&bytes);
        }
    }

    fn deliver(&mut self, bytes: &[u8]) {
        if self.ended {
            return;
        }
        if let Err(term) = self.host.receive(bytes, &mut self.done) {
            assert!(!self.sound, "a sound target is refused");
            self.ended = true;
            if let Some(term) = term {
                let (header, rest) = TermReq::ref_from_prefix(&term).expect("a TermReq");
                assert_eq!(header.ch.pdu_type, PduType::H2C_TERM_REQ);
                assert_eq!(header.ch.plen.get() as usize, term.len());
                assert!(rest.len() <= 128);
            }
        }
        self.complete();
    }

    /// Checks completed commands: each completes once.
    fn complete(&mut self) {
        for completed in self.done.drain(..) {
            let wanted = self.wanted.remove(&completed.token).expect("it was outstanding");
            let len = completed.buffer.as_ref().map_or(0, Buffer::len);
            match wanted {
                Wanted::Nothing => assert!(completed.buffer.is_none()),
                Wanted::In { len: want } => {
                    assert_eq!(len, want);
                    if let (Ok(_), Some(buffer), true) =
                        (&completed.result, &completed.buffer, self.sound)
                    {
                        with_pattern(want, seed(completed.token), |data| {
                            assert!(buffer.as_slice() == data);
                        });
                    }
                }
                Wanted::Out { len: want } => assert_eq!(len, want),
            }
        }
        assert_eq!(self.host.in_flight(), self.wanted.len());
    }

    fn finish(mut self) {
        if !self.ended {
            self.exchange(usize::MAX);
        }
        self.host.close(&mut self.done);
        for completed in self.done.drain(..) {
            assert!(self.wanted.remove(&completed.token).is_some());
            assert!(completed.result.is_err());
        }
        assert!(self.wanted.is_empty() && self.host.in_flight() == 0);
    }
}

fn seed(token: u64) -> u8 {
    token.to_le_bytes()[0]
}
