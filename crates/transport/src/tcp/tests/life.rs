//! Start and end of connections: deadlines, closing, parking, pausing.

use nvmeof_core::dma::{CorePool, Payload};
use nvmeof_wire::tcp::{CapsuleCmd, ICReq, IcParams, PduType, TcpError};
use nvmeof_wire::zerocopy::IntoBytes;
use nvmeof_wire::{Cqe, Sgl};

use super::world::{World, pattern, sqe, streams};
use crate::tcp::TcpParams;
use crate::{
    CloseReason, Connected, DetachedQueue, Event, FabricOp, Nanos, PollGroup, Progress,
    ReactorResources, RejectReason,
};

const PARAMS: TcpParams = TcpParams {
    in_capsule: 8192,
    max_transfer: 1 << 20,
    header_digest: true,
    data_digest: true,
    handshake_timeout: 10_000,
    pdu_timeout: 30_000,
    linger: 5_000,
};

fn open() -> World {
    World::open_with(PARAMS, false, false, 0)
}

/// Checks that the queue closes at its deadline, which is `at`, and not before.
#[track_caller]
fn closes_at(world: &mut World, at: Nanos) -> CloseReason {
    assert_eq!(world.queue.deadline(), Some(at));
    let before = world.events.len();
    world.now = at - 1;
    world.turn();
    assert_eq!(world.events.len(), before, "{:?}", world.events);
    world.now = at;
    world.turn();
    world.closed()
}

#[test]
fn no_icreq() {
    let mut world = World::raw(PARAMS);
    // The clock starts with the first turn, and received bytes do not stop it.
    assert_eq!(world.queue.deadline(), Some(0));
    world.now = 500;
    world.turn();
    world.host.send(
        &ICReq::new(IcParams { pda: 0, hdgst: false, ddgst: false, max: 1 }).as_bytes()[..127],
    );
    world.now = 1000;
    world.settle();
    assert!(matches!(closes_at(&mut world, 10_500), CloseReason::Timeout(_)));
}

#[test]
fn half_a_pdu_and_silence() {
    let mut world = open();
    assert_eq!(world.queue.deadline(), None, "an idle host owes nothing");
    let pdu = CapsuleCmd::new(world.host.out, sqe(1), 512).as_bytes().to_vec();
    for part in [&pdu[..3], &pdu[3..40], &pdu[40..]] {
        world.now += 7000;
        world.host.send(part);
        world.settle();
        assert_eq!(world.queue.deadline(), Some(world.now + 30_000));
    }
    world.host.send(&[0; 511]);
    world.settle();
    assert_eq!(world.pool.leased(), 1);
    assert!(matches!(closes_at(&mut world, 51_000), CloseReason::Timeout(_)));
    assert!(world.events.is_empty());
    assert_eq!(world.pool.leased(), 0);
}

#[test]
fn a_short_read_ends_a_receive_until_the_host_hangs_up() {
    let mut world = open();
    let mut events = Vec::new();
    for (has_hung_up, progress) in [(false, Progress::Idle), (true, Progress::More)] {
        if has_hung_up {
            world.queue.hung_up();
        }
        world.host.capsule(sqe(1), &[]);
        world.settle_writes();
        assert_eq!(world.queue.receive(world.now, &mut events), progress);
    }
    assert_eq!(world.queue.receive(world.now, &mut events), Progress::Idle);
    assert_eq!(events.len(), 2);
}

#[test]
fn the_last_byte_in_time() {
    let mut world = open();
    let pdu = CapsuleCmd::new(world.host.out, sqe(1), 0).as_bytes().to_vec();
    world.host.send(&pdu[..71]);
    world.settle();
    world.now = 29_999;
    world.host.send(&pdu[71..]);
    assert!(matches!(world.event(), Event::Command { .. }));
    assert_eq!(world.queue.deadline(), None);
    // Late, but present before the queue read.
    world.host.send(&pdu[..71]);
    world.settle();
    world.host.send(&pdu[71..]);
    world.now = 100_000;
    assert!(matches!(world.event(), Event::Command { .. }));
}

#[test]
fn data_asked_for_and_silence() {
    let mut world = open();
    world.command(1);
    world.now = 400_000;
    world.pull(1, 4096);
    world.turn();
    assert!(matches!(closes_at(&mut world, 430_000), CloseReason::Timeout(_)));
    assert!(matches!(world.events[..], [Event::HostDataArrived { token: 1, result: Err(_), .. }]));
    world.events.clear();
    assert_eq!(world.pool.leased(), 0);
}

#[test]
fn a_host_that_takes_nothing() {
    let mut world = open();
    world.host.read_step = 0;
    world.now = 100;
    for cid in 0..32 {
        world.command(cid);
        let data = world.buffer(&pattern(1 << 20, 1));
        world.respond_with(cid, Some(Payload::Buffer(data)), true);
    }
    world.until("a full socket", |world| world.queue.deadline().is_some());
    assert!(matches!(closes_at(&mut world, 30_100), CloseReason::Timeout(_)));
    assert!(world.events.iter().all(|event| matches!(event, Event::Sent { .. })));
    assert_eq!(world.events.len(), 32);
    world.events.clear();
    assert_eq!(world.pool.leased(), 0);
}

/// Creates a connection whose sockets buffer only a few responses.
fn narrow() -> World {
    let (target, host) = streams();
    rustix::net::sockopt::set_socket_send_buffer_size(&target, 16 << 10).unwrap();
    rustix::net::sockopt::set_socket_recv_buffer_size(&host, 16 << 10).unwrap();
    let mut world = World::over(target, host, PARAMS);
    world.hello(IcParams { pda: 0, hdgst: false, ddgst: false, max: 1 });
    world.queue.connected(Connected { admin: true, depth: 32 });
    world
}

/// Responds to every command; returns their number.
fn answer_all(world: &mut World) -> usize {
    let commands: Vec<_> = world.events.extract_if(.., |one| is_command(one)).collect();
    for event in &commands {
        let Event::Command { sqe, .. } = event else { unreachable!() };
        let answer = respond(sqe.cid.get());
        // Rejected once the queue ends.
        let _ = world.queue.submit(answer);
    }
    commands.len()
}

/// Returns true if the queue rejects a response because it ends.
///
/// A response to no command is rejected for another reason.
fn is_closing(world: &mut World) -> bool {
    matches!(world.queue.submit(respond(0)), Err(no) if no.reason == RejectReason::Closing)
}

fn is_command(event: &Event) -> bool {
    matches!(event, Event::Command { .. })
}

/// Sends and completes command `number`; returns true if the queue took it.
///
/// The queue's output stays in the queue.
fn exchange_unsent(world: &mut World, number: u16) -> bool {
    world.host.capsule(sqe(number), &[]);
    while !world.events.iter().any(is_command) {
        if is_closing(world) {
            return false;
        }
        world.host.write_some();
        world.queue.receive(world.now, &mut world.events);
    }
    answer_all(world);
    true
}

#[test]
fn a_response_that_is_not_in_the_socket_keeps_its_place_in_the_window() {
    let mut world = narrow();
    for number in 0..32 {
        assert!(exchange_unsent(&mut world, number), "{number} is within the depth");
    }
    // Bytes that the socket takes make room in the window.
    world.until("the responses", |world| world.host.pdus.len() == 32);
    world.host.pdus.clear();
    let taken = (32..200).take_while(|&number| exchange_unsent(&mut world, number)).count();
    assert_eq!(taken, 32);
    world.until("an end", |world| !world.host.pdus.is_empty());
    let pdu = world.host.pdus.pop_front().unwrap();
    assert_eq!((pdu.kind(), pdu.term()), (PduType::C2H_TERM_REQ, TcpError::SEQUENCE));
}

#[test]
fn a_host_that_keeps_to_its_depth_may_read_as_slowly_as_it_likes() {
    let mut world = narrow();
    let (mut sent, mut answered) = (0u16, 0);
    while answered < 3000 {
        let read = u16::try_from(world.host.pdus.drain(..).count()).unwrap();
        answered += read;
        while sent < answered + 32 {
            world.host.capsule(sqe(sent % 32), &[]);
            sent += 1;
        }
        world.host.read_step = 7;
        world.turn();
        answer_all(&mut world);
        assert!(world.events.is_empty(), "{:?}", world.events);
    }
}

#[test]
fn a_host_that_takes_its_time() {
    let mut world = open();
    world.host.read_step = 0;
    for cid in 0..32 {
        world.command(cid);
        let data = world.buffer(&pattern(1 << 20, 1));
        world.respond_with(cid, Some(Payload::Buffer(data)), true);
    }
    world.until("a full socket", |world| world.queue.deadline().is_some());
    // A few bytes every 20 us keep the connection open.
    for _ in 0..6 {
        world.now += 20_000;
        world.host.read_step = 4 << 20;
        world.turn();
        world.host.read_step = 0;
        world.settle();
    }
    world.host.read_step = usize::MAX;
    world.until("everything", |world| world.host.pdus.len() == 32);
    assert_eq!(world.queue.deadline(), None);
    world.now += 1_000_000;
    world.command(99);
}

#[test]
fn a_host_that_does_not_close_after_a_termreq() {
    let mut world = open();
    world.command(1);
    world.pull(1, 4096);
    world.pdu().r2t();
    world.now = 1000;
    world.host.send(&[0xee; 8]);
    assert_eq!(world.pdu().term(), TcpError::field(0));
    // Operations return before the host closes.
    assert!(matches!(world.events[..], [Event::HostDataArrived { token: 1, result: Err(_), .. }]));
    world.events.clear();
    assert_eq!(world.pool.leased(), 0);
    let refused = world.queue.submit(respond(1)).unwrap_err();
    assert_eq!(refused.reason, RejectReason::Closing);
    assert!(matches!(closes_at(&mut world, 6000), CloseReason::Protocol(_)));
}

#[test]
fn a_termreq_follows_a_whole_pdu() {
    let mut world = open();
    world.host.read_step = 0;
    let data = pattern(1 << 20, 1);
    for cid in 0..32 {
        world.command(cid);
        let payload = Payload::Buffer(world.buffer(&data));
        world.respond_with(cid, Some(payload), true);
    }
    world.until("a full socket", |world| world.queue.deadline().is_some());
    world.events.clear();
    world.host.send(&[0xee; 8]);
    world.settle();
    let back = world.events.len();
    assert!(back > 0 && world.pool.leased() <= back + 1);
    world.host.read_step = usize::MAX;
    loop {
        let pdu = world.pdu();
        if pdu.ch.pdu_type == PduType::C2H_TERM_REQ {
            break;
        }
        assert_eq!(pdu.data, data);
    }
    world.host.close();
    world.closed();
    world.events.clear();
    assert_eq!(world.pool.leased(), 0);
}

fn respond(cid: u16) -> FabricOp {
    FabricOp::Respond {
        token: 0,
        cqe: Cqe::success(cid, 0),
        sgl: Sgl::Transport { length: 0 },
        data: None,
        elidable: false,
    }
}

#[test]
fn the_host_closes_in_the_middle_of_things() {
    for shutdown in [false, true] {
        let mut world = open();
        let ttag = world.asked(1, 65_536);
        world.asked(2, 4096);
        world.host.h2c(1, ttag, 0, &[1; 32_768], false);
        world.settle();
        world.host.capsule(sqe(3), &[1; 4096]);
        world.until("the command", |world| !world.events.is_empty());
        world.events.clear();
        if shutdown {
            world.host.shutdown();
        } else {
            world.host.close();
        }
        assert_eq!(world.closed(), CloseReason::PeerClosed);
        let tokens: Vec<_> = world.events.drain(..).collect();
        assert_eq!(tokens.len(), 2);
        for event in tokens {
            assert!(matches!(event, Event::HostDataArrived { result: Err(_), .. }), "{event:?}");
        }
        assert_eq!(world.pool.leased(), 0);
    }
}

#[test]
fn a_close_right_behind_a_command_is_seen() {
    let mut world = open();
    world.host.capsule(sqe(1), &[]);
    world.settle_writes();
    world.host.shutdown();
    // An edge-triggered wait reports both together, so the call that takes the command has to
    // request the call that finds the end.
    world.queue.hung_up();
    let progress = world.queue.receive(0, &mut world.events);
    assert!(matches!(world.events[..], [Event::Command { .. }]));
    assert_eq!(progress, Progress::More);
    let progress = world.queue.receive(0, &mut world.events);
    let Some(Event::Closed { reason: CloseReason::PeerClosed }) = world.events.get(1) else {
        panic!("{:?}", world.events);
    };
    assert_eq!(progress, Progress::Idle);
}

#[test]
fn close_gives_everything_back_once() {
    let mut world = open();
    world.asked(1, 65_536);
    world.host.read_step = 0;
    for cid in 2..30 {
        world.command(cid);
        let data = world.buffer(&pattern(1 << 20, 1));
        world.respond_with(cid, Some(Payload::Buffer(data)), true);
    }
    world.queue.close(CloseReason::Shutdown);
    world.queue.close(CloseReason::ControllerGone);
    assert_eq!(world.queue.deadline(), Some(0));
    assert_eq!(world.queue.submit(respond(1)).unwrap_err().reason, RejectReason::Closing);
    assert_eq!(world.closed(), CloseReason::Shutdown);
    let mut tokens: Vec<_> = world
        .events
        .drain(..)
        .map(|event| match event {
            Event::HostDataArrived { token, result: Err(_), .. } | Event::Sent { token, .. } => {
                token
            }
            other => panic!("{other:?}"),
        })
        .collect();
    tokens.sort_unstable();
    assert_eq!(tokens, (1..30).collect::<Vec<u64>>());
    assert_eq!(world.pool.leased(), 0);
    assert_eq!(world.queue.deadline(), None);
}

#[test]
fn operations_that_cannot_be() {
    let mut world = open();
    assert_eq!(world.queue.submit(respond(1)).unwrap_err().reason, RejectReason::Invalid);
    world.command(1);
    let mut buf = world.pool.lease(1).unwrap();
    buf.truncate(0);
    let sgl = Sgl::Transport { length: 0 };
    let op = FabricOp::FetchHostData { token: 1, cid: 1, sgl, buf };
    assert_eq!(world.queue.submit(op).unwrap_err().reason, RejectReason::Invalid);
    for _ in 0..32 {
        world.pull(1, 512);
    }
    let op = FabricOp::FetchHostData { token: 1, cid: 1, sgl, buf: world.pool.lease(1).unwrap() };
    let rejected = world.queue.submit(op).unwrap_err();
    assert_eq!(rejected.reason, RejectReason::QueueFull);
    assert!(matches!(rejected.op, FabricOp::FetchHostData { buf, .. } if buf.len() == 1));
}

#[test]
fn reserves_are_given_back() {
    // Reserves one queue's memory repeatedly: a leak would exhaust it.
    let pool = super::world::pool();
    let promise = pool.reserve(1900, 8192).unwrap();
    for _ in 0..3 {
        let mut world = open();
        world.pool = pool.clone();
        world.queue.close(CloseReason::Shutdown);
        world.closed();
    }
    drop(promise);
    pool.reserve(1900, 8192).unwrap();
}

/// Parks the queue, and moves it to another thread and back.
fn moved(world: &mut World) {
    let placeholder: Box<dyn crate::HostQueue> = crate::tcp::accepted(streams().0, PARAMS)
        .attach(&mut ReactorResources { pool: &world.pool, sources: &mut PollGroup::default() })
        .unwrap();
    let queue = std::mem::replace(&mut world.queue, placeholder);
    let parked = queue.detach().unwrap();
    let parked: Box<dyn DetachedQueue> = std::thread::spawn(move || {
        let pool: CorePool = super::world::pool();
        assert!(parked.peer().starts_with("127.0.0.1:"));
        parked
            .attach(&mut ReactorResources { pool: &pool, sources: &mut PollGroup::default() })
            .unwrap()
            .detach()
            .unwrap()
    })
    .join()
    .unwrap();
    world.queue = parked
        .attach(&mut ReactorResources { pool: &world.pool, sources: &mut PollGroup::default() })
        .unwrap();
}

#[test]
fn parking_keeps_what_was_settled() {
    let mut world = World::open_with(PARAMS, true, true, 3);
    world.command(1);
    let queue = world.queue;
    world.queue = queue.detach().expect_err("a command is out");
    world.respond(1);
    world.pdu();
    moved(&mut world);
    for cid in 0..32 {
        world.command(cid);
    }
    let payload = Payload::Buffer(world.buffer(&pattern(4096, 1)));
    world.respond_with(3, Some(payload), true);
    assert_eq!(world.pdu().data, pattern(4096, 1));
}

#[test]
fn parking_keeps_part_of_a_header() {
    let mut world = open();
    let pdu = CapsuleCmd::new(world.host.out, sqe(7), 0).as_bytes().to_vec();
    world.host.send(&pdu[..50]);
    world.settle();
    moved(&mut world);
    world.host.send(&pdu[50..]);
    assert!(matches!(world.event(), Event::Command { sqe: got, .. } if got == sqe(7)));
    // Also before the handshake.
    let mut world = World::raw(PARAMS);
    moved(&mut world);
    world.hello(IcParams { pda: 0, hdgst: true, ddgst: false, max: 1 });
}

#[test]
fn what_is_in_flight_is_not_parked() {
    let mut world = open();
    world.host.capsule(sqe(1), &[0; 512]);
    let half = world.host.take_unsent(300);
    world.settle();
    world.queue = world.queue.detach().expect_err("data is arriving");
    world.host.send(&half);
    assert!(matches!(world.event(), Event::Command { .. }));
    world.respond(1);
    world.queue = world.queue.detach().expect_err("the response has not left");
    world.turn();
    world.queue.close(CloseReason::Shutdown);
    world.queue = world.queue.detach().expect_err("closing");
}

#[test]
fn a_paused_queue_takes_no_commands_but_the_data_it_asked_for() {
    let mut world = open();
    let ttag = world.asked(1, 8192);
    world.queue.set_paused(true);
    world.host.capsule(sqe(2), &[4; 4096]);
    world.host.h2c(1, ttag, 0, &[1; 8192], true);
    world.host.capsule(sqe(3), &[]);
    world.host.capsule(sqe(4), &[5; 8192]);
    assert!(matches!(world.event(), Event::HostDataArrived { token: 1, result: Ok(()), .. }));
    world.respond(1);
    assert_eq!(world.pdu().cqe().cid.get(), 1);
    world.settle();
    assert!(world.events.is_empty(), "{:?}", world.events);
    world.queue.set_paused(false);
    for cid in 2..5 {
        assert!(matches!(world.event(), Event::Command { sqe: got, .. } if got == sqe(cid)));
        world.respond(cid);
    }
    // A paused and idle queue can be parked, and stays paused.
    world.queue.set_paused(true);
    world.host.capsule(sqe(5), &[6; 512]);
    world.settle();
    moved(&mut world);
    world.settle();
    assert!(world.events.is_empty());
    world.queue.set_paused(false);
    assert!(matches!(world.event(), Event::Command { sqe: got, data: Some(_) } if got == sqe(5)));
}

#[test]
fn held_commands_move_with_their_queue() {
    let mut world = World::open_with(PARAMS, false, true, 0);
    let ttag = world.asked(1, 4096);
    world.queue.set_paused(true);
    world.host.capsule(sqe(2), &[4; 4096]);
    world.host.capsule(sqe(3), &[]);
    let mut bad = super::world::assemble(
        world.host.out,
        &CapsuleCmd::new(world.host.out, sqe(4), 8),
        b"spoiled!",
    );
    *bad.last_mut().unwrap() ^= 1;
    world.host.send(&bad);
    world.host.h2c(1, ttag, 0, &[1; 4096], true);
    assert!(matches!(world.event(), Event::HostDataArrived { .. }));
    world.respond(1);
    world.pdu();
    moved(&mut world);
    world.settle();
    assert!(world.events.is_empty());
    world.queue.set_paused(false);
    match world.event() {
        Event::Command { sqe: got, data: Some(data) } => {
            assert_eq!((got, data.as_slice()), (sqe(2), &[4; 4096][..]));
        }
        other => panic!("{other:?}"),
    }
    assert!(matches!(world.event(), Event::Command { data: None, .. }));
    assert!(matches!(world.event(), Event::CommandFailed { sqe: got, .. } if got == sqe(4)));
    for cid in 2..5 {
        world.respond(cid);
        assert_eq!(world.pdu().cqe().cid.get(), cid);
    }
    world.queue.detach().unwrap();
    // Held commands end with their connection.
    let mut world = open();
    world.asked(1, 4096);
    world.queue.set_paused(true);
    world.host.capsule(sqe(2), &[4; 4096]);
    world.settle();
    world.queue.close(CloseReason::Shutdown);
    world.closed();
    assert!(matches!(world.events[..], [Event::HostDataArrived { .. }]));
    world.events.clear();
    assert_eq!(world.pool.leased(), 0);
}

#[test]
fn the_last_words_before_an_end_of_ours_are_heard() {
    let mut world = open();
    world.command(1);
    world.respond(1);
    world.queue.close(CloseReason::ControllerGone);
    assert_eq!(world.pdu().cqe().cid.get(), 1);
    assert_eq!(world.closed(), CloseReason::ControllerGone);
}

/// The socket takes more than the host's window.
///
/// The buffer returns immediately; the rest of the response stays in the socket's queue.
#[test]
fn data_has_left_when_the_socket_has_sent_it_and_not_when_it_took_it() {
    let mut world = open();
    world.queue.set_tx_tracked(true);
    world.host.read_step = 0;
    world.command(1);
    let data = world.buffer(&pattern(160 << 10, 1));
    world.respond_with(1, Some(Payload::Buffer(data)), true);
    world.until("room in the socket", |world| world.pool.leased() == 0);
    assert!(world.events.is_empty(), "{:?}", world.events);
    assert!(world.queue.next_tx_poll().is_some());

    // Only the host reads from now on, and the queue checks at the time it reported.
    world.host.read_step = 64 << 10;
    for _ in 0..200_000 {
        world.host.read_some();
        let Some(due) = world.queue.next_tx_poll() else { break };
        assert!(due <= world.now + 1_000_000, "due {due} at {}", world.now);
        world.now = due;
        world.queue.poll_tx_done(due, &mut world.events);
        std::thread::yield_now();
    }
    assert!(matches!(world.events[..], [Event::Sent { token: 1, data: None }]));
    assert_eq!(world.queue.next_tx_poll(), None);
}

/// The time at which data has left is not used: it counts as sent when the socket has taken it.
#[test]
fn data_that_is_not_tracked_has_left_when_the_socket_took_it() {
    let mut world = open();
    world.host.read_step = 0;
    world.command(1);
    let data = world.buffer(&pattern(160 << 10, 1));
    world.respond_with(1, Some(Payload::Buffer(data)), true);
    world.until("an event", |world| !world.events.is_empty());
    assert!(matches!(world.events[..], [Event::Sent { token: 1, data: None }]));
    assert_eq!((world.pool.leased(), world.queue.next_tx_poll()), (0, None));
}

/// A host that takes none of the socket's data cannot keep permits for ever.
#[test]
fn a_host_that_takes_nothing_of_what_the_socket_took() {
    let mut world = open();
    world.queue.set_tx_tracked(true);
    world.host.read_step = 0;
    world.now = 100;
    world.command(1);
    let data = world.buffer(&pattern(160 << 10, 1));
    world.respond_with(1, Some(Payload::Buffer(data)), true);
    world.until("room in the socket", |world| world.pool.leased() == 0);
    world.until("a queue that stands still", |world| world.queue.deadline() == Some(30_100));
    assert!(matches!(closes_at(&mut world, 30_100), CloseReason::Timeout(_)));
    assert!(matches!(world.events[..], [Event::Sent { token: 1, data: None }]));
}
