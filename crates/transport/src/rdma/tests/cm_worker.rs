//! Blocking calls outside the reactor: connections that are being accepted or destroyed.

use nvmeof_loopback_verbs::DeviceOptions;
use nvmeof_verbs::{ConnectionEvent, DeviceKind};

use super::memory::Memory;
use super::*;

const SECOND: u64 = 1_000_000_000;

/// Closes a queue while its connection is being accepted, after the given turns of each kind.
fn closed_on_the_way(turns: &[bool], shared: u32) {
    let params = RdmaParams { shared_receives: shared, ..RdmaParams::default() };
    let mut world = Setup { params, ..Setup::default() }.world();
    let mut host = world.ask(1, 8);
    let at = world.take().unwrap();
    for with_usher in turns {
        if *with_usher {
            world.registration.cm_worker().run();
        } else {
            world.turn_alone();
        }
        world.fabric.settle();
        host.turn();
    }
    // The connection can exist already.
    host.send(Sqe::new(0, 1, 1), &[]);
    world.fabric.settle();
    world.queues[at].queue.as_mut().unwrap().close(CloseReason::Shutdown);
    world.settle(&mut [&mut host]);
    assert_eq!(world.queues[at].closed, Some(CloseReason::Shutdown), "{turns:?}");
    let over = |event: &ConnectionEvent| {
        matches!(event, ConnectionEvent::Rejected { .. } | ConnectionEvent::Disconnected)
    };
    assert!(host.events.iter().any(over), "{turns:?}: {:?}", host.events);
    assert_eq!(world.fabric.counters().endpoints, 1, "{turns:?}: ours is gone");
    if shared > 0 && world.sources.iter().count() > 0 {
        assert_eq!(world.source().shared_posted(), Some(shared as usize), "{turns:?}");
    }
    world.check_empty(vec![host]);
}

#[test]
fn a_connection_that_ends_on_its_way_in_is_ended_by_who_has_it() {
    // Steps: the completion queue is created, found, the pair submitted, accepted, found.
    for shared in [0, 8] {
        let way = [true, false, true, false];
        (0..=way.len()).for_each(|stop| closed_on_the_way(&way[..stop], shared));
    }
}

#[test]
fn a_reactor_goes_on_while_a_connection_is_accepted() {
    let mut world = world();
    let (at, mut host) = world.connect(8);
    let mut late = world.ask(1, 8);
    let second = world.take().unwrap();
    // The CM worker has the late pair and does nothing; connected hosts are served.
    for cid in 0..20 {
        host.send(Sqe::new(0, cid, 1), &[]);
        world.fabric.settle();
        world.turn_alone();
        let (sqe, _) = world.queues[at].commands.pop().unwrap();
        world.queues[at].answer(&sqe, None);
        world.turn_alone();
        world.fabric.settle();
        assert_eq!(host.responses(), [(cid, None)]);
        late.turn();
        assert!(late.events.is_empty(), "{:?}", late.events);
    }
    world.settle(&mut [&mut host, &mut late]);
    late.send(Sqe::new(0, 1, 1), &[]);
    world.settle(&mut [&mut host, &mut late]);
    assert_eq!(world.queues[second].commands.len(), 1);
    world.check_empty(vec![host, late]);
}

#[test]
fn what_comes_before_the_reactor_has_its_queue_pair_back_is_kept() {
    let mut world = world();
    let (_, bystander) = world.connect(8);
    let mut host = world.ask(1, 8);
    let at = world.take().unwrap();
    world.registration.cm_worker().run();
    world.fabric.settle();
    host.turn();
    (0..8).for_each(|cid| assert!(host.send(Sqe::new(0, cid, 1), &[])));
    world.fabric.settle();
    world.turn_alone();
    assert_eq!(world.queues[at].commands.len(), 8);
    world.check_empty(vec![bystander, host]);
}

/// Closes a queue with a pull and a push in flight, whose queue pair fails to be destroyed `tries`
/// times.
///
/// Returns its state.
fn stubborn(tries: usize) -> (World, usize, Host, Vec<Memory>) {
    let mut world = world();
    let (at, mut host) = world.connect(8);
    let number = world.number();
    let memory = Memory::new(&host.device, 8192);
    host.send(Sqe::new(1, 1, 1).with_sgl(memory.sgl(0, 4096, false)), &[]);
    host.send(Sqe::new(2, 2, 1).with_sgl(memory.sgl(4096, 4096, false)), &[]);
    world.settle(&mut [&mut host]);
    let commands = std::mem::take(&mut world.queues[at].commands);
    let buffer = world.pool.lease(4096).unwrap();
    world.queues[at].pull(&commands[0].0, buffer);
    let buffer = world.buffer(&pattern(1, 4096));
    world.queues[at].answer(&commands[1].0, Some(buffer));
    world.turn_alone();
    // No work of it is flushed, so that all of it stays to the end.
    for side in [nvmeof_loopback_verbs::Side::Send, nvmeof_loopback_verbs::Side::Receive] {
        (0..100).for_each(|nth| world.fabric.faults().lose_completion(number, side, nth));
    }
    world.fabric.faults().refuse_destroy(number, tries);
    world.queues[at].queue.as_mut().unwrap().close(CloseReason::Shutdown);
    world.turn_alone();
    world.fabric.advance(world.params.drain_timeout);
    (world, at, host, vec![memory])
}

#[test]
fn a_queue_pair_that_cannot_be_destroyed_is_tried_again() {
    let (mut world, at, mut host, memory) = stubborn(3);
    for _ in 0..3 {
        world.turn();
        assert_eq!((world.queues[at].closed.clone(), world.queues[at].held.len()), (None, 2));
    }
    world.settle(&mut [&mut host]);
    assert_eq!(world.queues[at].closed, Some(CloseReason::Shutdown));
    assert_eq!(world.source().counts().quarantined_qps, 0);
    drop(memory);
    world.check_empty(vec![host]);
}

#[test]
fn memory_of_a_queue_pair_that_stays_is_used_for_nothing_else() {
    let (mut world, at, mut host, memory) = stubborn(100);
    world.turn();
    world.fabric.advance(world.params.drain_timeout);
    world.turn();
    world.fabric.advance(world.params.drain_timeout);
    let before = world.pool.leased();
    world.turn();
    // The operations have returned, but not their memory.
    assert_eq!(world.queues[at].closed, Some(CloseReason::Shutdown));
    assert!(world.queues[at].held.is_empty());
    assert_eq!(world.pool.leased(), before);
    assert_eq!(world.source().counts().quarantined_qps, 1);
    assert_eq!(world.fabric.counters().endpoints, 2);
    world.sources.drop_unused(|_| ());
    assert_eq!(world.sources.iter().count(), 1, "who keeps the memory stays");
    // Finally, the destruction succeeds.
    (0..100).for_each(|_| world.turn());
    assert_eq!((world.pool.leased(), world.fabric.counters().endpoints), (0, 1));
    world.settle(&mut [&mut host]);
    drop(memory);
    world.check_empty(vec![host]);
}

#[test]
fn a_reactor_that_ends_waits_for_what_the_usher_has() {
    for turns in 0..4 {
        let mut world = world();
        let (_, mut first) = world.connect(8);
        let mut host = world.ask(1, 8);
        let at = world.take().unwrap();
        (0..turns).for_each(|_| world.turn());
        drop(world.queues.remove(at));
        world.settle(&mut [&mut first, &mut host]);
        assert_eq!(world.fabric.counters().endpoints, 3, "after {turns} turns");
        world.check_empty(vec![first, host]);
    }
}

#[test]
fn a_host_whose_word_is_lost_is_connected_by_its_first_command() {
    for speaks in [true, false] {
        let mut world = world();
        let mut host = world.ask(1, 8);
        let number = nvmeof_verbs::Endpoint::number(&host.endpoint);
        world.fabric.faults().lose_ready(number);
        let at = world.take().unwrap();
        world.settle(&mut [&mut host]);
        if !speaks {
            world.fabric.advance(world.params.handshake_timeout);
            world.settle(&mut [&mut host]);
            assert_eq!(world.queues[at].closed, Some(CloseReason::Timeout("no Connect")));
            world.check_empty(vec![host]);
            continue;
        }
        let memory = Memory::new(&host.device, 4096);
        host.send(Sqe::new(2, 7, 1).with_sgl(memory.sgl(0, 4096, false)), &[]);
        world.settle(&mut [&mut host]);
        let (sqe, _) = world.queues[at].commands.pop().unwrap();
        let queue = world.queues[at].queue.as_mut().unwrap();
        queue.connected(Connected { admin: false, depth: 8 });
        let data = world.buffer(&pattern(3, 4096));
        world.queues[at].answer(&sqe, Some(data));
        world.settle(&mut [&mut host]);
        assert_eq!(host.responses(), [(7, None)]);
        assert_eq!(memory.read(0, 4096), pattern(3, 4096));
        // The connection manager also has the confirmation, and does not end the connection when
        // its timeout expires.
        world.fabric.advance(60 * SECOND);
        world.settle(&mut [&mut host]);
        assert_eq!(world.queues[at].closed, None);
        drop(memory);
        world.check_empty(vec![host]);
    }
}

/// Creates a queue of 8 entries whose host has no receive posted for its ninth response.
fn unheard() -> (World, usize, Host) {
    let mut world = world();
    assert_eq!(world.params.rnr_retries, 7, "for ever");
    let (at, mut host) = world.connect(8);
    host.reposts = false;
    for cid in 0..8 {
        host.send(Sqe::new(0, cid, 1), &[]);
        world.settle(&mut [&mut host]);
        let (sqe, _) = world.queues[at].commands.pop().unwrap();
        world.queues[at].answer(&sqe, None);
        world.settle(&mut [&mut host]);
    }
    assert_eq!(host.responses().len(), 8);
    (world, at, host)
}

#[test]
fn a_host_that_takes_no_response_is_not_waited_for() {
    let (mut world, at, mut host) = unheard();
    host.send(Sqe::new(0, 9, 1), &[]);
    world.settle(&mut [&mut host]);
    let (sqe, _) = world.queues[at].commands.pop().unwrap();
    world.queues[at].answer(&sqe, None);
    world.settle(&mut [&mut host]);
    let mut waited = 0;
    while world.queues[at].closed.is_none() {
        let now = world.fabric.now();
        let due = world.queues[at].queue.as_ref().unwrap().deadline().expect("something is due");
        let pause = due.saturating_sub(now) + 1;
        world.fabric.advance(pause);
        waited += pause;
        world.settle(&mut [&mut host]);
        assert!(waited <= 2 * world.params.transfer_timeout, "for ever");
    }
    let reason = CloseReason::Timeout("the host receives no responses");
    assert_eq!(world.queues[at].closed, Some(reason));
    assert!(waited >= world.params.transfer_timeout / 2);
    world.check_empty(vec![host]);
}

#[test]
fn a_host_that_is_silent_and_takes_its_responses_stays() {
    for repeats in [1, 20] {
        let (mut world, at, mut host) = unheard();
        // The host has taken all responses so far, and no completion reported any of them.
        for _ in 0..repeats {
            world.fabric.advance(10 * world.params.transfer_timeout / repeats);
            world.settle(&mut [&mut host]);
        }
        assert_eq!(world.queues[at].closed, None);
        let number = world.number();
        let counters = world.fabric.endpoint(number).unwrap();
        assert_eq!(counters.sends_waiting, 0);
        assert!(counters.sends_posted <= 8 + 1, "asked once: {}", counters.sends_posted);
        world.check_empty(vec![host]);
    }
}

#[test]
fn an_admin_command_may_bring_its_data() {
    let mut world = world();
    let mut host = world.ask(0, 8);
    let at = world.take().unwrap();
    world.settle(&mut [&mut host]);
    let bytes = pattern(4, 8192);
    host.send(Sqe::new(9, 1, 1).with_sgl(Sgl::InCapsule { offset: 0, length: 8192 }), &bytes);
    world.settle(&mut [&mut host]);
    let (sqe, data) = world.queues[at].commands.pop().unwrap();
    assert_eq!(data.unwrap().as_slice(), bytes);
    world.queues[at].answer(&sqe, None);
    world.settle(&mut [&mut host]);
    assert_eq!(host.responses(), [(1, None)]);
    world.check_empty(vec![host]);
}

#[test]
fn other_kinds_of_devices_are_told_in_one_line() {
    let config =
        PoolConfig { cap: 8 << 20, reserve: 8 << 20, huge_pages: false, max_lease: 1 << 20 };
    let shared = ChunkPool::new(config).unwrap();
    let fabric = Fabric::new(1);
    for (kind, word) in [(DeviceKind::Iwarp, "iWARP"), (DeviceKind::Other, "no kind")] {
        let device = fabric.device_with("eth7", DeviceOptions { kind, ..DeviceOptions::default() });
        let error = Registration::new(&device, &shared).unwrap_err().to_string();
        assert!(error.contains("eth7") && error.contains(word), "{error}");
        assert!(error.contains("RoCE") && !error.contains('\n'), "{error}");
    }
    assert_eq!(fabric.counters().regions, 0);
}

#[test]
fn threads_do_it_too() {
    let fabric = Fabric::new(5);
    let _clock = fabric.follow_clock().unwrap();
    let device = fabric.device("target");
    let address = SocketAddr::new(device.address(), 4420);
    let listener = fabric.listen(&device, address).unwrap();
    let config =
        PoolConfig { cap: 64 << 20, reserve: 64 << 20, huge_pages: false, max_lease: 2 << 20 };
    let shared = ChunkPool::new(config).unwrap();
    let registration = Registration::new(&device, &shared).unwrap();
    let mut world = World {
        pool: CorePool::new(&shared),
        host_device: fabric.device("host"),
        fabric: fabric.clone(),
        queues: Vec::new(),
        sources: PollGroup::default(),
        target_device: device,
        listener,
        address,
        registration,
        shared,
        params: RdmaParams::default(),
        ready: Vec::new(),
    };
    let begin = std::time::Instant::now();
    let guard = std::time::Duration::from_secs(60);
    let mut hosts: Vec<_> = (0..6)
        .map(|_| {
            let request = Request { qid: 1, host_receives: 8, entries: 8, cntlid: None };
            Host::ask(&world, request.encode().as_bytes(), 16, 8)
        })
        .collect();
    while hosts.iter().any(|host| host.events.is_empty()) {
        assert!(begin.elapsed() < guard, "not connected");
        while let Some(ticket) = world.listener.next_ticket() {
            world.take_ticket(ticket).unwrap();
        }
        world.turn();
        hosts.iter_mut().for_each(Host::turn);
    }
    for connection in &mut world.queues {
        connection.queue.as_mut().unwrap().close(CloseReason::Shutdown);
    }
    while world.queues.iter().any(|connection| connection.closed.is_none()) {
        assert!(begin.elapsed() < guard, "not ended");
        world.turn();
        hosts.iter_mut().for_each(Host::turn);
    }
    assert_eq!(fabric.counters().endpoints, hosts.len());
    world.queues.clear();
    world.sources.drop_unused(|_| ());
    while fabric.counters().completion_queues > hosts.len() {
        assert!(begin.elapsed() < guard, "a completion queue is left");
    }
    assert_eq!(world.pool.leased(), 0);
    let registrar: Arc<dyn MemoryRegistrar> = world.registration.clone();
    world.shared.remove_registrar(&registrar);
}
