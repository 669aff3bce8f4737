//! Data in both directions: sizes, digests, alignment, slow hosts.

use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;

use nvmeof_core::dma::{Payload, ZeroCopyRegion, ZeroCopySource};
use nvmeof_wire::tcp::{PduType, flags};
use proptest::prelude::*;

use super::world::{World, pattern, sqe, streams};
use crate::tcp::TcpParams;
use crate::{Event, FabricError};

const FORMS: [(bool, bool, u8); 5] =
    [(false, false, 0), (true, false, 0), (false, true, 0), (true, true, 0), (true, true, 31)];

#[track_caller]
fn sent(event: &Event, token: u64) {
    assert!(matches!(event, Event::Sent { token: got, .. } if *got == token), "{event:?}");
}

#[test]
fn reads_of_all_sizes_and_forms() {
    for (hdgst, ddgst, hpda) in FORMS {
        let mut world = World::open_with(TcpParams::default(), hdgst, ddgst, hpda);
        for (cid, len) in (1..).zip([1, 4, 511, 4096, 8192, 131_072, 1 << 20]) {
            let data = pattern(len, 3);
            for elidable in [false, true] {
                world.command(cid);
                let payload = Payload::Buffer(world.buffer(&data));
                world.respond_with(cid, Some(payload), elidable);
                let pdu = world.pdu();
                let header = pdu.c2h();
                assert_eq!(pdu.data, data);
                assert_eq!((header.cccid.get(), header.datao.get()), (cid, 0));
                assert_eq!(header.datal.get() as usize, len);
                assert_ne!(pdu.ch.flags & flags::LAST_PDU, 0);
                assert_eq!(pdu.ch.flags & flags::SUCCESS != 0, elidable);
                if !elidable {
                    assert_eq!(world.pdu().cqe().cid.get(), cid);
                }
                sent(&world.event(), u64::from(cid));
            }
        }
        assert_eq!(world.pool.leased(), 0);
    }
}

#[test]
fn zero_copy_data_goes_out_from_memory_and_from_its_file() {
    let source = ZeroCopySource::new(&ZeroCopyRegion::zeroes().unwrap());
    for (hdgst, ddgst, hpda) in FORMS {
        let mut world = World::open_with(TcpParams::default(), hdgst, ddgst, hpda);
        let sizes = [4096, 65_536, 131_072, 1 << 20, 512];
        for (cid, len) in (1..).zip(sizes) {
            world.command(cid);
            let data = source.data(len).unwrap();
            world.respond_with(cid, Some(Payload::ZeroCopy(data)), true);
        }
        for (cid, len) in (1..).zip(sizes) {
            let pdu = world.pdu();
            assert_eq!(pdu.c2h().cccid.get(), cid);
            assert_eq!(pdu.data.len(), len);
            assert!(pdu.data.iter().all(|byte| *byte == 0));
            sent(&world.event(), u64::from(cid));
        }
    }
}

#[test]
fn responses_without_data_are_whole_and_yield_nothing() {
    let mut world = World::open();
    world.command(1);
    world.respond_with(1, None, true);
    assert_eq!(world.pdu().cqe().cid.get(), 1);
    // Data of zero bytes is returned.
    world.command(2);
    let mut empty = world.pool.lease(1).unwrap();
    empty.truncate(0);
    world.respond_with(2, Some(Payload::Buffer(empty)), true);
    assert_eq!(world.pdu().cqe().cid.get(), 2);
    sent(&world.event(), 2);
    assert!(world.events.is_empty());
}

#[test]
fn a_turn_of_many_responses_comes_in_order() {
    let mut world = World::open_with(TcpParams::default(), true, true, 7);
    let blocks: Vec<_> = (0..32).map(|cid| pattern(4096, cid)).collect();
    for cid in 0..32 {
        world.host.capsule(sqe(cid), &[]);
    }
    world.until("32 commands", |world| world.events.len() == 32);
    world.events.clear();
    for (cid, block) in (0..32).zip(&blocks) {
        let payload = (cid % 3 != 0).then(|| Payload::Buffer(world.buffer(block)));
        world.respond_with(cid, payload, cid % 2 == 0);
    }
    for (cid, block) in (0..32).zip(&blocks) {
        let pdu = world.pdu();
        if cid % 3 == 0 {
            assert_eq!(pdu.cqe().cid.get(), cid);
            continue;
        }
        assert_eq!((pdu.c2h().cccid.get(), &pdu.data), (cid, block));
        if cid % 2 == 1 {
            assert_eq!(world.pdu().cqe().cid.get(), cid);
        }
    }
    world.events.clear();
    assert_eq!(world.pool.leased(), 0);
}

#[test]
fn a_slow_host_gets_everything() {
    let source = ZeroCopySource::new(&ZeroCopyRegion::zeroes().unwrap());
    for ddgst in [false, true] {
        let (target, host) = streams();
        rustix::net::sockopt::set_socket_recv_buffer_size(&host, 32 << 10).unwrap();
        rustix::net::sockopt::set_socket_send_buffer_size(&target, 16 << 10).unwrap();
        let mut world = World::over(target, host, TcpParams::default());
        world.hello(nvmeof_wire::tcp::IcParams { pda: 0, hdgst: true, ddgst, max: 1 });
        world.queue.connected(crate::Connected { admin: false, depth: 32 });
        world.host.read_step = 1777;
        let data = pattern(300_000, 9);
        for cid in 0..6 {
            world.command(cid);
            let payload = match cid {
                2 | 5 => Payload::ZeroCopy(source.data(200_000).unwrap()),
                _ => Payload::Buffer(world.buffer(&data)),
            };
            world.respond_with(cid, Some(payload), cid % 2 == 0);
        }
        for cid in 0..6 {
            let pdu = world.pdu();
            assert_eq!(pdu.c2h().cccid.get(), cid);
            match cid {
                2 | 5 => assert_eq!(pdu.data, vec![0; 200_000]),
                _ => assert_eq!(pdu.data, data),
            }
            if cid % 2 == 1 {
                assert_eq!(world.pdu().cqe().cid.get(), cid);
            }
        }
        let tokens: Vec<_> = world.events.drain(..).collect();
        assert_eq!(tokens.len(), 6);
        (0..).zip(tokens).for_each(|(token, event)| sent(&event, token));
        assert_eq!(world.pool.leased(), 0);
    }
}

#[test]
fn writes_by_r2t() {
    for (hdgst, ddgst, hpda) in FORMS {
        let mut world = World::open_with(TcpParams::default(), hdgst, ddgst, hpda);
        for (cid, len) in (1..).zip([4, 4096, 65_536, 1 << 20]) {
            let data = pattern(len, 5);
            let ttag = world.asked(cid, len);
            // In PDUs of uneven length, with another command between them.
            let cuts = [0, (len / 4) & !3, (len / 2) & !3, len];
            for (part, cut) in cuts.windows(2).enumerate() {
                if cut[0] < cut[1] {
                    let last = cut[1] == len;
                    world.host.h2c(cid, ttag, cut[0], &data[cut[0]..cut[1]], last);
                }
                if part == 0 {
                    world.host.capsule(sqe(900), &[]);
                }
            }
            world.until("command and data", |world| world.events.len() == 2);
            let pulled = world.events.iter().find_map(|event| match event {
                Event::HostDataArrived { token, buf, result: Ok(()) } => {
                    Some((*token, buf.as_slice()))
                }
                _ => None,
            });
            assert_eq!(pulled, Some((u64::from(cid), &data[..])));
            world.events.clear();
            world.respond(900);
            world.respond(cid);
            world.pdu();
            world.pdu();
        }
        assert_eq!(world.pool.leased(), 0);
    }
}

#[test]
fn many_pulls_at_once_in_any_order() {
    let mut world = World::open_with(TcpParams::default(), false, true, 0);
    let tags: Vec<_> = (0..32).map(|cid| world.asked(cid, 8192)).collect();
    for (cid, ttag) in (0..32u16).zip(&tags).rev() {
        world.host.h2c(cid, *ttag, 0, &pattern(4096, cid), false);
    }
    for (cid, ttag) in (0..32u16).zip(&tags) {
        world.host.h2c(cid, *ttag, 4096, &pattern(4096, !cid), true);
    }
    for cid in 0..32u16 {
        match world.event() {
            Event::HostDataArrived { token, buf, result: Ok(()) } => {
                assert_eq!(token, u64::from(cid));
                assert_eq!(buf.as_slice()[..4096], pattern(4096, cid));
                assert_eq!(buf.as_slice()[4096..], pattern(4096, !cid));
            }
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn in_capsule_data_of_all_forms() {
    for (hdgst, ddgst, hpda) in FORMS {
        let mut world = World::open_with(TcpParams::default(), hdgst, ddgst, hpda);
        for (cid, len) in (1..).zip([1, 4, 512, 4096, 8192]) {
            let data = pattern(len, 8);
            world.host.capsule(sqe(cid), &data);
            match world.event() {
                Event::Command { sqe: got, data: Some(buf) } => {
                    assert_eq!((got, buf.as_slice()), (sqe(cid), &data[..]));
                }
                other => panic!("{other:?}"),
            }
            world.respond(cid);
            world.pdu();
        }
        // A whole window together, more than one read takes.
        for cid in 100..132 {
            world.host.capsule(sqe(cid), &pattern(8192, cid));
        }
        world.until("32 commands", |world| world.events.len() == 32);
        for (cid, event) in (100..).zip(world.events.drain(..)) {
            let Event::Command { sqe: got, data: Some(buf) } = event else { panic!() };
            assert_eq!((got.cid.get(), buf.as_slice()), (cid, &pattern(8192, cid)[..]));
        }
        assert_eq!(world.pool.leased(), 0);
    }
}

#[test]
fn padding_before_data_is_skipped() {
    let mut world = World::open();
    let mut header = nvmeof_wire::tcp::CapsuleCmd::new(world.host.out, sqe(1), 8);
    header.ch.pdo = 128;
    header.ch.plen.set(136);
    world.host.send(&super::world::assemble(world.host.out, &header, b"payload!"));
    world.command_data(b"payload!");
}

#[test]
fn bad_data_digest_fails_the_command_alone() {
    for hdgst in [false, true] {
        let mut world = World::open_with(TcpParams::default(), hdgst, true, 0);
        // In a capsule.
        let header = nvmeof_wire::tcp::CapsuleCmd::new(world.host.out, sqe(1), 512);
        let mut pdu = super::world::assemble(world.host.out, &header, &[5; 512]);
        *pdu.last_mut().unwrap() ^= 0x80;
        world.host.send(&pdu);
        match world.event() {
            Event::CommandFailed { sqe: got, error: FabricError::DataDigest } => {
                assert_eq!(got, sqe(1));
            }
            other => panic!("{other:?}"),
        }
        world.respond(1);
        assert_eq!(world.pdu().kind(), PduType::CAPSULE_RESP);
        // In the first of two data PDUs: the command has failed when both have arrived.
        let ttag = world.asked(2, 8192);
        let header = nvmeof_wire::tcp::H2CData::new(world.host.out, 2, ttag, 0, 4096, false);
        let mut pdu = super::world::assemble(world.host.out, &header, &[5; 4096]);
        pdu[100] ^= 1;
        world.host.send(&pdu);
        world.settle();
        assert!(world.events.is_empty());
        world.host.h2c(2, ttag, 4096, &[6; 4096], true);
        match world.event() {
            Event::HostDataArrived { token: 2, result: Err(FabricError::DataDigest), .. } => {}
            other => panic!("{other:?}"),
        }
        // The connection continues.
        world.respond(2);
        assert_eq!(world.pdu().cqe().cid.get(), 2);
        world.command(3);
        assert_eq!(world.pool.leased(), 0);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, ..ProptestConfig::default() })]

    /// The host gets the same bytes, however the socket takes them and in any number of turns.
    #[test]
    fn output_survives_any_partial_send(
        responses in prop::collection::vec((0..90_000usize, any::<bool>(), any::<bool>()), 1..20),
        digests in any::<(bool, bool)>(),
        hpda in 0..32u8,
        read_step in 500..20_000usize,
        turns in prop::collection::vec(0..4usize, 20),
    ) {
        let (target, host) = UnixStream::pair().unwrap();
        host.set_nonblocking(true).unwrap();
        rustix::net::sockopt::set_socket_send_buffer_size(&target, 4096).unwrap();
        let [target, host] = [target, host].map(|stream| OwnedFd::from(stream).into());
        let mut world = World::over(target, host, TcpParams::default());
        let (hdgst, ddgst) = digests;
        world.hello(nvmeof_wire::tcp::IcParams { pda: hpda, hdgst, ddgst, max: 1 });
        world.queue.connected(crate::Connected { admin: false, depth: 32 });
        world.host.read_step = read_step;
        let source = ZeroCopySource::new(&ZeroCopyRegion::zeroes().unwrap());
        for (((len, is_zero_copy, elidable), cid), turns) in responses.iter().zip(0..).zip(turns) {
            world.command(cid);
            let payload = match (*len, is_zero_copy) {
                (0, _) => None,
                (len, true) => source.data(len).map(Payload::ZeroCopy),
                (len, false) => Some(Payload::Buffer(world.buffer(&pattern(len, cid)))),
            };
            world.respond_with(cid, payload, *elidable);
            for _ in 0..turns {
                world.turn();
            }
        }
        for ((len, is_zero_copy, elidable), cid) in responses.iter().zip(0..) {
            if *len > 0 {
                let pdu = world.pdu();
                prop_assert_eq!(pdu.c2h().cccid.get(), cid);
                let expected = if *is_zero_copy { vec![0; *len] } else { pattern(*len, cid) };
                prop_assert!(pdu.data == expected, "data of {}", cid);
            }
            if *len == 0 || !elidable {
                prop_assert_eq!(world.pdu().cqe().cid.get(), cid);
            }
        }
        let with_data = responses.iter().filter(|(len, ..)| *len > 0).count();
        prop_assert_eq!(world.events.len(), with_data);
        world.events.clear();
        prop_assert_eq!(world.pool.leased(), 0);
    }
}

impl World {
    #[track_caller]
    fn command_data(&mut self, expected: &[u8]) {
        match self.event() {
            Event::Command { data: Some(data), .. } => assert_eq!(data.as_slice(), expected),
            other => panic!("{other:?}"),
        }
    }
}
