//! Cuts of the stream at any byte leave the events unchanged, and no bytes cause a panic.

use nvmeof_core::dma::CorePool;
use nvmeof_wire::Sqe;
use nvmeof_wire::tcp::{
    CapsuleCmd, Framing, H2CData, ICReq, IcParams, Receiver, TcpError, TermReq,
};
use nvmeof_wire::zerocopy::{FromBytes, IntoBytes};
use proptest::prelude::*;

use super::world::{World, assemble, pattern, pool, sqe};
use crate::tcp::TcpParams;
use crate::tcp::command_window::CommandWindow;
use crate::tcp::handshake::negotiate;
use crate::tcp::pdu_reader::{ParseContext, ParseStop, PduReader};
use crate::tcp::transfer::Transfers;
use crate::{Connected, Event};

const PULLS: u16 = 4;
const PULL_LEN: usize = 3 * 4096;

/// A parser with four pulls in flight, and its events.
struct Parser {
    inbound: PduReader,
    capsules: CommandWindow,
    transfers: Transfers,
    tags: Vec<u16>,
    leftover: Vec<u8>,
    log: Vec<String>,
    ended: bool,
}

impl Parser {
    fn new(pool: &CorePool) -> Self {
        let mut capsules = CommandWindow::new(pool).unwrap();
        capsules.connect(Connected { admin: false, depth: 64 }, 8192).unwrap();
        let mut transfers = Transfers::new(64);
        let tags = (0..PULLS)
            .map(|cid| {
                let mut buf = pool.lease(PULL_LEN).unwrap();
                buf.as_mut_slice().fill(0);
                transfers.begin(u64::from(cid), cid, buf).unwrap()
            })
            .collect();
        Self {
            inbound: PduReader::new(),
            capsules,
            transfers,
            tags,
            leftover: Vec::new(),
            log: Vec::new(),
            ended: false,
        }
    }

    /// Passes bytes in as `Receiver` does: bytes that belong in a buffer first.
    fn feed(&mut self, bytes: &[u8]) {
        let mut events = Vec::new();
        let mut intake = ParseContext {
            capsules: &mut self.capsules,
            transfers: &mut self.transfers,
            events: &mut events,
        };
        let direct = self.inbound.direct(intake.transfers);
        let (now, rest) = bytes.split_at(direct.len().min(bytes.len()));
        direct[..now.len()].copy_from_slice(now);
        if !now.is_empty() {
            self.inbound.filled(now.len(), &mut intake);
        }
        let mut input = std::mem::take(&mut self.leftover);
        input.extend(rest);
        while !self.ended {
            let parsed = self.inbound.parse(&input, &mut intake);
            self.log.extend(intake.events.drain(..).map(|event| describe(&event)));
            match parsed {
                Ok((done, stop)) => {
                    input.drain(..done);
                    match stop {
                        None => break,
                        Some(ParseStop::Hello(request)) => {
                            match negotiate(&request, &TcpParams::default()) {
                                Ok((negotiated, _)) => self.inbound.settle(&negotiated),
                                Err(error) => {
                                    self.ended = true;
                                    self.log.push(error.to_string());
                                }
                            }
                        }
                        Some(stop) => {
                            self.ended = true;
                            self.log.push(format!("{stop:?}"));
                        }
                    }
                }
                Err(fault) => {
                    let told = fault.encode();
                    self.ended = true;
                    self.log.push(format!("{:?} {told:?}", fault.error));
                }
            }
        }
        self.leftover = input;
    }
}

fn describe(event: &Event) -> String {
    match event {
        Event::Command { sqe, data } => {
            format!("{:?} {:?}", sqe, data.as_ref().map(|data| data.as_slice().to_vec()))
        }
        Event::HostDataArrived { token, buf, result } => {
            format!("{token} {result:?} {:?}", buf.as_slice())
        }
        other => format!("{other:?}"),
    }
}

/// Item that the host sends, in order.
#[derive(Debug, Clone)]
enum Item {
    Command {
        cid: u16,
        data: usize,
        good: bool,
    },
    /// The next part of a pull.
    Data {
        pull: u16,
        good: bool,
    },
    Terminate,
}

fn item() -> impl Strategy<Value = Item> {
    prop_oneof![
        4 => (any::<u16>(), prop_oneof![Just(0usize), 1..8193usize], prop::bool::weighted(0.9))
            .prop_map(|(cid, data, good)| Item::Command { cid, data, good }),
        4 => (0..PULLS, prop::bool::weighted(0.9)).prop_map(|(pull, good)| Item::Data { pull, good }),
        1 => Just(Item::Terminate),
    ]
}

fn stream(items: &[Item], hdgst: bool, ddgst: bool, tags: &[u16]) -> Vec<u8> {
    let framing = Framing::new(hdgst, ddgst, 0);
    let mut bytes = ICReq::new(IcParams { pda: 0, hdgst, ddgst, max: 1 }).as_bytes().to_vec();
    let mut sent = [0usize; PULLS as usize];
    for item in items {
        let (pdu, good) = match item {
            Item::Command { cid, data, good } => {
                let header = CapsuleCmd::new(framing, sqe(*cid), u32::try_from(*data).unwrap());
                (assemble(framing, &header, &pattern(*data, 1)), *good)
            }
            Item::Data { pull, good } => {
                let offset = &mut sent[usize::from(*pull)];
                let header = H2CData::new(
                    framing,
                    *pull,
                    tags[usize::from(*pull)],
                    u32::try_from(*offset).unwrap(),
                    4096,
                    *offset + 4096 == PULL_LEN,
                );
                *offset += 4096;
                (assemble(framing, &header, &pattern(4096, *pull)), *good)
            }
            Item::Terminate => {
                (TermReq::new(Receiver::Host, TcpError::SEQUENCE, 0).as_bytes().to_vec(), true)
            }
        };
        bytes.extend(pdu);
        if !good {
            *bytes.last_mut().unwrap() ^= 1;
        }
    }
    bytes
}

/// Returns the events of a stream passed in pieces that end at `cuts`.
fn events_of(bytes: &[u8], cuts: &[prop::sample::Index]) -> Vec<String> {
    let pool = pool();
    let mut parser = Parser::new(&pool);
    let mut at: Vec<usize> = cuts.iter().map(|cut| cut.index(bytes.len() + 1)).collect();
    at.push(bytes.len());
    at.sort_unstable();
    let mut from = 0;
    for to in at {
        parser.feed(&bytes[from..to]);
        from = to;
    }
    let log = std::mem::take(&mut parser.log);
    drop(parser);
    assert_eq!(pool.leased(), 0);
    log
}

fn tags() -> Vec<u16> {
    Parser::new(&pool()).tags
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn any_cut_gives_the_same_events(
        items in prop::collection::vec(item(), 0..20),
        hdgst: bool,
        ddgst: bool,
        cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..60),
    ) {
        let bytes = stream(&items, hdgst, ddgst, &tags());
        prop_assert_eq!(events_of(&bytes, &cuts), events_of(&bytes, &[]));
    }

    #[test]
    fn changed_bytes_are_met_the_same_however_they_are_cut(
        items in prop::collection::vec(item(), 1..8),
        hdgst: bool,
        ddgst: bool,
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
        cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..60),
    ) {
        let mut bytes = stream(&items, hdgst, ddgst, &tags());
        for (at, value) in changes {
            let at = at.index(bytes.len());
            bytes[at] = value;
        }
        prop_assert_eq!(events_of(&bytes, &cuts), events_of(&bytes, &[]));
    }

    #[test]
    fn any_bytes_are_met_with_events_or_a_fault(
        bytes in prop::collection::vec(any::<u8>(), 0..2000),
        hello: bool,
    ) {
        let mut stream = if hello { stream(&[], false, false, &[]) } else { Vec::new() };
        stream.extend(bytes);
        events_of(&stream, &[]);
    }
}

#[test]
fn one_byte_at_a_time_over_a_socket() {
    for digests in [false, true] {
        let mut world = World::open_with(TcpParams::default(), digests, digests, 0);
        world.host.send_step = 1;
        let ttag = world.asked(1, 600);
        world.host.capsule(sqe(2), &pattern(300, 2));
        world.host.h2c(1, ttag, 0, &pattern(400, 3), false);
        world.host.h2c(1, ttag, 400, &pattern(200, 4), true);
        world.host.capsule(sqe(3), &[]);
        match world.event() {
            Event::Command { sqe: got, data: Some(data) } => {
                assert_eq!((got, data.as_slice()), (sqe(2), &pattern(300, 2)[..]));
            }
            other => panic!("{other:?}"),
        }
        match world.event() {
            Event::HostDataArrived { token: 1, buf, result: Ok(()) } => {
                assert_eq!(buf.as_slice()[..400], pattern(400, 3));
                assert_eq!(buf.as_slice()[400..], pattern(200, 4));
            }
            other => panic!("{other:?}"),
        }
        assert!(matches!(world.event(), Event::Command { sqe: got, .. } if got == sqe(3)));
    }
}

/// Checks that the stream of the properties above is valid.
#[test]
fn the_stream_is_understood() {
    let items = [
        Item::Command { cid: 9, data: 0, good: true },
        Item::Data { pull: 2, good: true },
        Item::Command { cid: 10, data: 100, good: true },
        Item::Data { pull: 2, good: true },
        Item::Data { pull: 2, good: true },
        Item::Terminate,
    ];
    for digests in [false, true] {
        let log = events_of(&stream(&items, digests, digests, &tags()), &[]);
        assert_eq!(log.len(), 4, "{log:?}");
        let sqe = Sqe::read_from_bytes(sqe(9).as_bytes()).unwrap();
        assert_eq!(log[0], format!("{sqe:?} None"));
        assert!(log[2].starts_with("2 Ok(())"));
        assert!(log[3].starts_with("Terminated"));
    }
}
