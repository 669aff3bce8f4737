use std::net::TcpStream;

use nvmeof_wire::tcp::{ICReq, IcParams, PduType, Receiver, TcpError, TermReq};
use nvmeof_wire::zerocopy::IntoBytes;

use super::world::World;
use crate::CloseReason;
use crate::tcp::TcpParams;

fn wanted(pda: u8, hdgst: bool, ddgst: bool, max: u32) -> IcParams {
    IcParams { pda, hdgst, ddgst, max }
}

#[test]
fn grants_what_is_asked_for_and_allowed() {
    for asked in 0..4u8 {
        for allowed in 0..4u8 {
            let params = TcpParams {
                header_digest: allowed & 1 != 0,
                data_digest: allowed & 2 != 0,
                max_transfer: 128 << 10,
                ..TcpParams::default()
            };
            let granted = World::raw(params).hello(wanted(0, asked & 1 != 0, asked & 2 != 0, 1));
            assert_eq!(granted.hdgst, asked & allowed & 1 != 0);
            assert_eq!(granted.ddgst, asked & allowed & 2 != 0);
            assert_eq!((granted.pda, granted.max), (0, 128 << 10));
        }
    }
}

#[test]
fn maxh2cdata_is_what_the_specification_allows() {
    for (max_transfer, expected) in [(512, 8192), (65_537, 65_540), (u32::MAX, u32::MAX - 3)] {
        let params = TcpParams { max_transfer, ..TcpParams::default() };
        assert_eq!(World::raw(params).hello(wanted(0, false, false, 1)).max, expected);
    }
}

#[test]
fn takes_every_alignment_and_r2t_limit() {
    for (pda, max) in [(0, 1), (1, 16), (31, u32::MAX)] {
        World::raw(TcpParams::default()).hello(wanted(pda, true, true, max));
    }
}

/// Returns the error sent to the host, and the length of the header that the TermReq includes.
fn refused(bytes: &[u8]) -> (TcpError, usize) {
    let mut world = World::raw(TcpParams::default());
    world.host.send(bytes);
    let pdu = world.pdu();
    assert_eq!(pdu.data, bytes[..pdu.data.len()]);
    assert_eq!(pdu.ch.plen.get() as usize, 24 + pdu.data.len());
    let told = (pdu.term(), pdu.data.len());
    world.host.close();
    assert_eq!(world.closed(), CloseReason::Protocol(told.0.to_string()));
    assert!(world.events.is_empty());
    told
}

fn changed(at: usize, value: u8) -> [u8; 128] {
    let mut bytes = [0; 128];
    bytes.copy_from_slice(ICReq::new(wanted(0, false, false, 1)).as_bytes());
    bytes[at] = value;
    bytes
}

#[test]
fn a_bad_icreq_is_refused() {
    assert_eq!(refused(&changed(8, 1)), (TcpError::unsupported(8), 128), "PFV");
    assert_eq!(refused(&changed(10, 32)), (TcpError::field(10), 128), "HPDA");
    assert_eq!(refused(&changed(2, 72)), (TcpError::field(2), 8), "HLEN");
    assert_eq!(refused(&changed(4, 129)), (TcpError::field(4), 8), "PLEN");
    assert_eq!(refused(&changed(7, 1)), (TcpError::field(4), 8), "PLEN");
}

#[test]
fn an_icreq_comes_first() {
    for kind in [PduType::CAPSULE_CMD, PduType::H2C_DATA] {
        assert_eq!(refused(&changed(0, kind.0)), (TcpError::SEQUENCE, 8), "{kind}");
    }
    let others = [PduType::IC_RESP, PduType::C2H_TERM_REQ, PduType::C2H_DATA, PduType(0xff)];
    for kind in others {
        assert_eq!(refused(&changed(0, kind.0)), (TcpError::field(0), 8), "{kind}");
    }
    // A peer speaks another protocol.
    assert_eq!(refused(b"GET / HTTP/1.1\r\n\r\n").0, TcpError::field(0));
}

#[test]
fn a_second_icreq_is_refused() {
    let mut world = World::open();
    world.host.send(&changed(0, 0));
    assert_eq!(world.pdu().term(), TcpError::SEQUENCE);
}

#[test]
fn a_host_may_give_up_before_it_began() {
    let mut world = World::raw(TcpParams::default());
    let error = TcpError::unsupported(8);
    world.host.send(TermReq::new(Receiver::Host, error, 0).as_bytes());
    assert_eq!(world.closed(), CloseReason::PeerTerminated(error.to_string()));
}

#[test]
fn ipv6() {
    let listener = crate::tcp::listen("[::1]:0".parse().unwrap(), false).unwrap();
    let host = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    host.set_nonblocking(true).unwrap();
    listener.set_nonblocking(false).unwrap();
    let target = listener.accept().unwrap().0;
    let params = TcpParams::default();
    let parked = crate::tcp::accepted(target.try_clone().unwrap(), params);
    assert!(parked.peer().starts_with("[::1]:"), "{}", parked.peer());
    let mut world = World::over(target, host, params);
    world.hello(wanted(0, true, true, 1));
    world.command(1);
}
