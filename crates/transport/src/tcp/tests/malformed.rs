//! Malformed PDUs after the handshake, and the error that the target sends for each.

use nvmeof_wire::Sqe;
use nvmeof_wire::opcode::FabricsType;
use nvmeof_wire::tcp::{CapsuleCmd, Framing, H2CData, Receiver, TcpError, TermReq};
use nvmeof_wire::zerocopy::IntoBytes;

use super::world::{World, assemble, pattern, sqe};
use crate::tcp::TcpParams;
use crate::{CloseReason, Connected, Event};

/// Checks that the queue sends `error` with `blamed` bytes of `pdu`, and leaves nothing behind.
#[track_caller]
fn fatal(mut world: World, pdu: &[u8], error: TcpError, blamed: usize) {
    world.host.send(pdu);
    let term = world.pdu();
    assert_eq!(term.term(), error);
    assert_eq!(term.data, pdu[..blamed]);
    world.host.close();
    assert_eq!(world.closed(), CloseReason::Protocol(error.to_string()));
    world.events.clear();
    assert_eq!(world.pool.leased(), 0);
}

fn with(mut bytes: Vec<u8>, at: usize, value: u8) -> Vec<u8> {
    bytes[at] = value;
    bytes
}

fn capsule(framing: Framing, data: &[u8]) -> Vec<u8> {
    let len = u32::try_from(data.len()).unwrap();
    assemble(framing, &CapsuleCmd::new(framing, sqe(1), len), data)
}

const PLAIN: (bool, bool) = (false, false);

fn open(digests: (bool, bool)) -> (World, Framing) {
    let world = World::open_with(TcpParams::default(), digests.0, digests.1, 0);
    let framing = world.host.out;
    (world, framing)
}

#[test]
fn unknown_and_wrong_way_types() {
    for kind in [0x01, 0x03, 0x05, 0x07, 0x08, 0x09, 0x0a, 0x7f, 0xff] {
        let (world, framing) = open(PLAIN);
        let pdu = with(capsule(framing, &[]), 0, kind);
        fatal(world, &pdu, TcpError::field(0), 8);
    }
}

#[test]
fn capsule_header_fields() {
    let data = pattern(512, 0);
    let cases: [(&[u8], usize, u8, u32); 9] = [
        (&[], 2, 71, 2),   // HLEN
        (&[], 2, 255, 2),  // HLEN
        (&[], 1, 1, 1),    // HDGSTF, not negotiated
        (&data, 1, 2, 1),  // DDGSTF, not negotiated
        (&data, 3, 71, 3), // PDO within the header
        (&data, 3, 74, 3), // PDO misaligned
        (&[], 4, 71, 4),   // PLEN below the header
        (&[], 4, 0, 4),    // PLEN of zero
        (&data, 3, 0, 3),  // PDO missing
    ];
    for (data, at, value, field) in cases {
        let (world, framing) = open(PLAIN);
        let pdu = with(capsule(framing, data), at, value);
        fatal(world, &pdu, TcpError::field(field), 8);
    }
    // PDO after the PDU's end.
    let (world, framing) = open(PLAIN);
    let pdu = with(capsule(framing, &[0; 4]), 3, 128);
    fatal(world, &pdu, TcpError::field(4), 8);
}

#[test]
fn missing_digest_flags() {
    let (world, framing) = open((true, false));
    fatal(world, &with(capsule(framing, &[]), 1, 0), TcpError::field(1), 8);
    let (world, framing) = open((false, true));
    fatal(world, &with(capsule(framing, &[0; 512]), 1, 0), TcpError::field(1), 8);
}

#[test]
fn header_digest() {
    let (world, framing) = open((true, true));
    let mut pdu = capsule(framing, &[0; 512]);
    pdu[72..76].copy_from_slice(&0xdead_beef_u32.to_le_bytes());
    fatal(world, &pdu, TcpError::header_digest(0xdead_beef), 72);
    // A digest that was correct before a bit of the header flipped.
    let (world, framing) = open((true, false));
    let mut pdu = capsule(framing, &[]);
    pdu[40] ^= 1;
    let received = u32::from_le_bytes(pdu[72..76].try_into().unwrap());
    fatal(world, &pdu, TcpError::header_digest(received), 72);
}

#[test]
fn in_capsule_data_beyond_the_limit() {
    let params = TcpParams { in_capsule: 4096, ..TcpParams::default() };
    let world = World::open_with(params, false, false, 0);
    let pdu = capsule(world.host.out, &[0; 4097]);
    fatal(world, &pdu, TcpError::LIMIT, 72);
    // Fabrics and admin commands: always 8192, regardless of the limit.
    let mut world = World::open_with(params, false, false, 0);
    let command = Sqe::fabrics(FabricsType::CONNECT, 1);
    world.host.capsule(command, &[7; 8192]);
    assert!(matches!(world.event(), Event::Command { data: Some(data), .. } if data.len() == 8192));
    let header = CapsuleCmd::new(world.host.out, command, 8193);
    let pdu = assemble(world.host.out, &header, &[0; 8193]);
    fatal(world, &pdu, TcpError::LIMIT, 72);
    let mut world = World::open_with(params, false, false, 0);
    world.queue.connected(Connected { admin: true, depth: 32 });
    let pdu = capsule(world.host.out, &[0; 8193]);
    fatal(world, &pdu, TcpError::LIMIT, 72);
    // A length that exceeds all memory.
    let (world, framing) = open(PLAIN);
    let pdu = CapsuleCmd::new(framing, sqe(1), u32::MAX - 200).as_bytes().to_vec();
    fatal(world, &pdu, TcpError::LIMIT, 72);
    // No in-capsule data.
    let params = TcpParams { in_capsule: 0, ..TcpParams::default() };
    let world = World::open_with(params, false, false, 0);
    let pdu = capsule(world.host.out, &[0; 4]);
    fatal(world, &pdu, TcpError::LIMIT, 72);
}

#[test]
fn more_commands_than_the_queue_is_deep() {
    let mut world = World::open();
    for cid in 0..32 {
        world.command(cid);
    }
    let pdu = capsule(world.host.out, &[]);
    fatal(world, &pdu, TcpError::SEQUENCE, 72);
    // A response makes room for one command.
    let mut world = World::open();
    for cid in 0..32 {
        world.command(cid);
    }
    world.respond(3);
    world.pdu();
    world.command(32);
}

fn h2c(framing: Framing, cid: u16, ttag: u16, offset: u32, data: &[u8], last: bool) -> Vec<u8> {
    let len = u32::try_from(data.len()).unwrap();
    assemble(framing, &H2CData::new(framing, cid, ttag, offset, len, last), data)
}

/// Sends an H2CData made by `pdu`, after an R2T for 8192 bytes of command 5.
#[track_caller]
fn fatal_h2c(pdu: impl Fn(Framing, u16) -> Vec<u8>, error: TcpError) {
    let (mut world, framing) = open(PLAIN);
    let ttag = world.asked(5, 8192);
    fatal(world, &pdu(framing, ttag), error, 24);
}

#[test]
fn data_nobody_asked_for() {
    let data = [0; 4096];
    // Tags: of another slot, of another generation, and none.
    for wrong in [1u16, 1 << 5, 1 << 15, 0xffff] {
        fatal_h2c(|f, ttag| h2c(f, 5, ttag ^ wrong, 0, &data, false), TcpError::field(10));
    }
    fatal_h2c(|f, ttag| h2c(f, 6, ttag, 0, &data, false), TcpError::field(8));
    fatal_h2c(|f, ttag| h2c(f, 5, ttag, 4096, &data, true), TcpError::OUT_OF_RANGE);
    fatal_h2c(|f, ttag| h2c(f, 5, ttag, 8192, &data, true), TcpError::OUT_OF_RANGE);
    fatal_h2c(|f, ttag| h2c(f, 5, ttag, u32::MAX - 3, &data, true), TcpError::OUT_OF_RANGE);
    fatal_h2c(|f, ttag| h2c(f, 5, ttag, 0, &[0; 8196], true), TcpError::OUT_OF_RANGE);
    fatal_h2c(|f, ttag| h2c(f, 5, ttag, 2, &data, false), TcpError::field(12));
    // The last flag where data follows, and its absence at the end.
    fatal_h2c(|f, ttag| h2c(f, 5, ttag, 0, &data, true), TcpError::SEQUENCE);
    fatal_h2c(|f, ttag| h2c(f, 5, ttag, 0, &[0; 8192], false), TcpError::SEQUENCE);
    // DATAL contradicts PLEN.
    fatal_h2c(|f, ttag| with(h2c(f, 5, ttag, 0, &data, false), 17, 0), TcpError::field(16));
}

#[test]
fn the_same_data_twice() {
    let (mut world, framing) = open(PLAIN);
    let ttag = world.asked(5, 8192);
    world.host.h2c(5, ttag, 0, &[1; 8192], true);
    assert!(matches!(world.event(), Event::HostDataArrived { result: Ok(()), .. }));
    fatal(world, &h2c(framing, 5, ttag, 0, &[1; 8192], true), TcpError::field(10), 24);
    // A tag is not reused immediately.
    let (mut world, _) = open(PLAIN);
    let first = world.asked(5, 4096);
    world.host.h2c(5, first, 0, &[1; 4096], true);
    assert!(matches!(world.event(), Event::HostDataArrived { result: Ok(()), .. }));
    assert_ne!(world.asked(6, 4096), first);
}

#[test]
fn data_pdus_of_bad_length() {
    let params = TcpParams { max_transfer: 8192, ..TcpParams::default() };
    let mut world = World::open_with(params, false, false, 0);
    let ttag = world.asked(5, 65_536);
    let pdu = h2c(world.host.out, 5, ttag, 0, &[0; 8196], false);
    fatal(world, &pdu, TcpError::LIMIT, 8);
    // A data PDU without data.
    let (mut world, framing) = open(PLAIN);
    let ttag = world.asked(5, 8192);
    fatal(world, &h2c(framing, 5, ttag, 0, &[], false), TcpError::field(4), 8);
}

#[test]
fn the_host_terminates() {
    let (mut world, _) = open(PLAIN);
    world.command(1);
    world.pull(1, 4096);
    let error = TcpError::header_digest(0x1234);
    world.host.send(TermReq::new(Receiver::Host, error, 24).as_bytes());
    world.host.send(&[0; 24]);
    assert_eq!(world.closed(), CloseReason::PeerTerminated(error.to_string()));
    assert!(matches!(world.events[..], [Event::HostDataArrived { result: Err(_), .. }]));
    assert!(!world.host.pdus.iter().any(|pdu| pdu.ch.pdu_type.0 == 3), "no TermReq in answer");
    // A TermReq that is itself malformed.
    let (world, _) = open(PLAIN);
    let mut term = TermReq::new(Receiver::Host, error, 0).as_bytes().to_vec();
    term[4] = 200;
    fatal(world, &term, TcpError::field(4), 8);
}

#[test]
fn what_follows_a_fault_is_ignored() {
    let (mut world, framing) = open(PLAIN);
    world.host.send(&with(capsule(framing, &[]), 2, 9));
    world.host.send(&capsule(framing, &[]));
    world.host.send(&vec![0xff; 1 << 20]);
    assert_eq!(world.pdu().term(), TcpError::field(2));
    world.settle();
    assert!(world.events.is_empty() && world.host.pdus.is_empty() && !world.host.eof);
    assert!(world.queue.deadline().is_some());
    world.host.close();
    world.closed();
}
