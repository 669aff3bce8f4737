//! Hosts that always send something but make no progress, and hosts that are only slow.

use nvmeof_core::dma::Payload;
use nvmeof_wire::tcp::{CapsuleCmd, H2CData};
use nvmeof_wire::zerocopy::IntoBytes;

use super::world::{World, pattern, sqe};
use crate::tcp::TcpParams;
use crate::{CloseReason, Event, MIN_RATE, Nanos, PollGroup, ReactorResources};

const SECOND: Nanos = 1_000_000_000;
const TIMEOUT: Nanos = 10 * SECOND;
/// Bytes of the transfers here: four seconds at the minimum rate.
const LEN: usize = 64 << 10;
const ALLOWED: Nanos = TIMEOUT + LEN as u64 * SECOND / MIN_RATE;

fn open() -> World {
    World::open_with(TcpParams { pdu_timeout: TIMEOUT, ..TcpParams::default() }, false, false, 0)
}

/// Calls `each` once per second until the queue closes; returns the elapsed time.
#[track_caller]
fn closes_after(world: &mut World, mut each: impl FnMut(&mut World, Nanos)) -> Nanos {
    let began = world.now;
    for second in 1..1000 {
        world.now = began + second * SECOND;
        each(world, second);
        world.settle();
        if let Some(Event::Closed { reason }) = world.events.last() {
            assert!(matches!(reason, CloseReason::Timeout(_)), "{reason:?}");
            world.events.clear();
            assert_eq!(world.pool.leased(), 0);
            return world.now - began;
        }
    }
    panic!("still open: {:?}", world.queue.deadline());
}

#[test]
fn data_byte_by_byte_ends_with_the_time_for_all_of_it() {
    let mut world = open();
    let tag = world.asked(1, LEN);
    let len = u32::try_from(LEN).unwrap();
    let header = H2CData::new(world.host.out, 1, tag, 0, len, true);
    world.host.send(header.as_bytes());
    assert_eq!(closes_after(&mut world, |world, _| world.host.send(&[0])), ALLOWED);
}

#[test]
fn commands_do_not_stand_for_data_that_was_asked_for() {
    let mut world = open();
    world.asked(1, LEN);
    let chat = |world: &mut World, second: Nanos| {
        let cid = 2 + u16::try_from(second % 8).unwrap();
        world.host.capsule(sqe(cid), &[]);
        world.settle();
        world.events.retain(|event| !matches!(event, Event::Command { .. }));
        if world.events.is_empty() {
            world.respond(cid);
        }
    };
    assert_eq!(closes_after(&mut world, chat), TIMEOUT);
}

#[test]
fn one_transfer_done_after_the_other_does_not_excuse_the_first() {
    let mut world = open();
    world.asked(1, LEN);
    let mut other = |world: &mut World, second: Nanos| {
        let cid = 2 + u16::try_from(second % 8).unwrap();
        if second >= ALLOWED / SECOND {
            return;
        }
        world.host.pdus.clear();
        let tag = world.asked(cid, 512);
        world.host.h2c(cid, tag, 0, &[0; 512], true);
        world.settle();
        assert!(matches!(world.events[..], [Event::HostDataArrived { .. }]), "{:?}", world.events);
        world.events.clear();
        world.respond(cid);
    };
    assert_eq!(closes_after(&mut world, &mut other), ALLOWED);
}

#[test]
fn a_header_byte_by_byte() {
    let mut world = open();
    let pdu = CapsuleCmd::new(world.host.out, sqe(1), 0).as_bytes().to_vec();
    world.host.send(&pdu[..1]);
    world.settle();
    let mut rest = pdu[1..].iter();
    let took = closes_after(&mut world, |world, _| world.host.send(&[*rest.next().unwrap()]));
    // The time allowed for the longest data of a capsule.
    assert!(took > TIMEOUT && took < TIMEOUT + 2 * SECOND, "{took}");
}

#[test]
fn little_taken_now_and_then() {
    let mut world = open();
    world.host.read_step = 0;
    for cid in 0..32 {
        world.command(cid);
        let data = world.buffer(&pattern(1 << 20, 1));
        world.respond_with(cid, Some(Payload::Buffer(data)), true);
    }
    world.until("a full socket", |world| world.queue.deadline().is_some());
    world.settle();
    let took = closes_after(&mut world, |world, _| {
        // Below this amount, no data leaves a socket on this machine.
        world.host.read_step = 2048;
        world.host.read_some();
        world.host.read_step = 0;
    });
    assert!(took <= 2 * TIMEOUT, "{took}");
}

#[test]
fn a_slow_link_is_no_fault() {
    let mut world = open();
    let rate = 2 * usize::try_from(MIN_RATE).unwrap();
    // Requested data arrives in order, at twice the minimum rate.
    let tags: Vec<u16> = (1..=16).map(|cid| world.asked(cid, LEN)).collect();
    for (cid, tag) in (1..).zip(tags) {
        let data = pattern(LEN, cid);
        for (at, part) in data.chunks(rate).enumerate() {
            world.now += SECOND;
            world.host.h2c(cid, tag, at * rate, part, (at + 1) * rate >= LEN);
            world.settle();
        }
        assert!(matches!(world.event(), Event::HostDataArrived { result: Ok(()), .. }));
        world.respond(cid);
        world.settle();
    }
    assert_eq!(world.queue.deadline(), None);
}

#[test]
fn time_that_the_target_stood_still_is_not_the_hosts() {
    let mut world = open();
    world.asked(1, LEN);
    let due = world.queue.deadline().unwrap();
    world.queue.extend_deadlines(6 * SECOND);
    assert_eq!(world.queue.deadline(), Some(due + 6 * SECOND));
    world.now = due + 6 * SECOND - 1;
    world.settle();
    assert!(world.events.is_empty());
    world.now += 1;
    world.settle();
    assert!(matches!(world.closed(), CloseReason::Timeout(_)));
}

#[test]
fn while_memory_is_short_a_host_that_hardly_moves_has_two_seconds() {
    let mut world = open();
    let tag = world.asked(1, LEN);
    let usual = world.queue.deadline();
    world.queue.set_memory_short(true, world.now);
    let due = world.now + 2 * SECOND;
    assert_eq!(world.queue.deadline(), Some(due));
    // Time that the target stood still is not the host's here, either.
    world.queue.extend_deadlines(3 * SECOND);
    assert_eq!(world.queue.deadline(), Some(due + 3 * SECOND));
    // What moves 16 KiB has as long again.
    world.now += 4 * SECOND;
    let rate = usize::try_from(MIN_RATE).unwrap();
    world.host.h2c(1, tag, 0, &pattern(LEN, 1)[..rate], false);
    world.settle();
    assert_eq!(world.queue.deadline(), Some(world.now + 2 * SECOND));
    world.queue.set_memory_short(false, world.now);
    assert!(world.queue.deadline() > usual, "as long as ever, once there is memory");
    world.queue.set_memory_short(true, world.now);
    world.now += 2 * SECOND;
    world.settle();
    assert!(matches!(world.closed(), CloseReason::Timeout(_)));
    // The event of the failed transfer returns its buffer.
    world.events.clear();
    assert_eq!(world.pool.leased(), 0);
}

#[test]
fn half_a_header_that_moves_to_another_reactor_is_still_half_a_header() {
    let mut world = open();
    let pdu = CapsuleCmd::new(world.host.out, sqe(1), 0).as_bytes().to_vec();
    world.host.send(&pdu[..40]);
    world.settle();
    assert!(world.queue.deadline().is_some());
    let World { queue, pool, .. } = &mut world;
    let taken = std::mem::replace(queue, World::open().queue);
    let parked = taken.detach().unwrap();
    let mut sources = PollGroup::default();
    *queue = parked.attach(&mut ReactorResources { pool, sources: &mut sources }).unwrap();
    world.settle();
    assert!(world.queue.deadline().is_some());
    world.host.send(&pdu[40..]);
    assert!(matches!(world.event(), Event::Command { .. }));
    assert_eq!(world.queue.deadline(), None);
}
