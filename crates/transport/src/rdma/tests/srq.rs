//! Receives that I/O queues share.

use nvmeof_verbs::Endpoint;

use super::*;

/// Creates a world with shared receives.
///
/// With `fetches`, queue pairs fetch receives ahead, and lose them if they are destroyed too early.
fn sharing(seed: u64, count: u32, fetches: bool) -> World {
    let params = RdmaParams { shared_receives: count, ..RdmaParams::default() };
    Setup { seed, params, fetches_ahead: fetches, ..Setup::default() }.world()
}

impl World {
    /// Checks that exactly the needed receives are posted.
    #[track_caller]
    fn check_shared(&mut self, wanted: usize) {
        let source = self.source();
        assert_eq!((source.shared_posted(), source.shared_wanted()), (Some(wanted), Some(wanted)));
    }

    fn close(&mut self, at: usize) {
        self.queues[at].queue.as_mut().unwrap().close(CloseReason::Shutdown);
        let now = self.fabric.now();
        self.queues[at].turn(now);
    }

    fn not_ready(&self) -> u64 {
        self.fabric.counters().not_ready
    }
}

fn write(cid: u16, len: u32) -> Sqe {
    Sqe::new(1, cid, 1).with_sgl(Sgl::InCapsule { offset: 0, length: len })
}

#[test]
fn connections_share_receives() {
    let mut world = sharing(1, 64, false);
    let mut hosts: Vec<_> = (0..4).map(|_| world.connect(16).1).collect();
    assert_eq!(world.fabric.counters().shared_queues, 1);
    world.check_shared(64);
    for round in 0..20u16 {
        for (at, host) in (0..).zip(&mut hosts) {
            let bytes = pattern(u32::from(round) + at, 300);
            host.send(write(round, 300), &bytes);
        }
        world.settle(&mut hosts.iter_mut().collect::<Vec<_>>());
        for (at, host) in (0..).zip(&mut hosts) {
            let connection = &mut world.queues[at as usize];
            let (sqe, data) = connection.commands.pop().unwrap();
            assert_eq!(data.unwrap().as_slice(), pattern(u32::from(round) + at, 300));
            connection.answer(&sqe, None);
            world.fabric.settle();
            host.turn();
        }
    }
    world.turn();
    world.check_shared(64);
    world.check_empty(hosts);
}

#[test]
fn a_connection_that_goes_takes_no_receive_with_it() {
    let mut world = sharing(1, 8, true);
    let (other, mut bystander) = world.connect(4);
    for round in 0..10 {
        let (at, mut host) = world.connect(4);
        // Capsules arrive, and then the end.
        (0..3).for_each(|cid| assert!(host.send(Sqe::new(0, cid, 1), &[])));
        for _ in 0..6 {
            world.fabric.step();
        }
        if round % 2 == 0 {
            // They have arrived, but are not polled before the queue pair is destroyed.
            world.fabric.settle();
        }
        world.close(at);
        world.settle(&mut [&mut host, &mut bystander]);
        assert!(world.queues.last().unwrap().closed.is_some());
    }
    (0..4).for_each(|cid| assert!(bystander.send(Sqe::new(0, cid, 1), &[])));
    world.settle(&mut [&mut bystander]);
    assert_eq!(world.queues[other].commands.len(), 4);
    // None is lost, and later capsules have used those of the ended queues.
    assert_eq!(world.source().shared_posted(), Some(4));
    assert_eq!(world.not_ready(), 0);
    world.check_empty(vec![bystander]);
}

#[test]
fn a_device_without_shared_receives_has_its_own() {
    let limits = DeviceLimits { shared_receives: 0, ..DeviceOptions::default().limits };
    let params = RdmaParams { shared_receives: 64, ..RdmaParams::default() };
    let mut world = Setup { limits, params, ..Setup::default() }.world();
    let (at, mut host) = world.connect(4);
    host.send(Sqe::new(0, 1, 1), &[]);
    world.settle(&mut [&mut host]);
    assert_eq!(world.queues[at].commands.len(), 1);
    assert_eq!(world.fabric.counters().shared_queues, 0);
    world.check_empty(vec![host]);
}

#[test]
fn an_admin_queue_has_its_own() {
    let mut world = sharing(1, 64, false);
    let mut host = world.ask(0, 32);
    world.take().unwrap();
    world.settle(&mut [&mut host]);
    assert_eq!(world.fabric.counters().shared_queues, 0);
    // The next queue shares at the same completion queue.
    let (_, io) = world.connect(16);
    assert_eq!(world.sources.iter().count(), 1);
    world.check_shared(16);
    world.check_empty(vec![host, io]);
}

#[test]
fn who_does_not_fit_gets_another_queue_to_share() {
    let mut world = sharing(1, 40, false);
    let mut hosts: Vec<_> = (0..5).map(|_| world.connect(16).1).collect();
    // Each shared queue has room for two.
    assert_eq!(world.fabric.counters().shared_queues, 3);
    // A queue larger than any shared queue has its own receives.
    hosts.push(world.connect(60).1);
    assert_eq!(world.fabric.counters().shared_queues, 3);
    for host in &mut hosts {
        assert!(host.send(Sqe::new(0, 1, 1), &[]));
    }
    world.settle(&mut hosts.iter_mut().collect::<Vec<_>>());
    assert!(world.queues.iter().all(|connection| connection.commands.len() == 1));
    assert_eq!(world.not_ready(), 0);
    world.check_empty(hosts);
}

/// Connects hosts until one is rejected; returns that one last.
fn fill(world: &mut World) -> (Vec<Host>, Host) {
    let mut hosts = Vec::new();
    loop {
        let mut host = world.ask(1, 128);
        match world.take() {
            Ok(at) => {
                world.settle(&mut [&mut host]);
                let info = Connected { admin: false, depth: 128 };
                world.queues[at].queue.as_mut().unwrap().connected(info);
                hosts.push(host);
            }
            Err(error) => {
                assert!(matches!(error, TransportError::NoMemory(_)), "{error}");
                world.settle(&mut [&mut host]);
                return (hosts, host);
            }
        }
    }
}

#[test]
fn who_finds_no_memory_is_told_so_and_nobody_else_notices() {
    let mut world = sharing(1, 2048, false);
    let (mut hosts, refused) = fill(&mut world);
    let told = refused.events.iter().any(|event| match event {
        nvmeof_verbs::ConnectionEvent::Rejected { private_data, .. } => {
            nvmeof_wire::rdma::RejectData::parse(private_data.as_slice())
                == Some(nvmeof_wire::rdma::RejectStatus::NO_RESOURCES)
        }
        _ => false,
    });
    assert!(told, "{:?}", refused.events);
    drop(refused);
    // Room for another host exists as soon as one leaves.
    let mut gone = hosts.remove(0);
    world.close(0);
    world.settle(&mut [&mut gone]);
    drop(gone);
    hosts.push(world.connect(128).1);
    assert_eq!(world.not_ready(), 0);
    world.check_empty(hosts);
}

/// The same memory serves nearly twice as many hosts.
///
/// A queue of 128 has 1 MiB for the bytes after commands, not 2, and a few pages.
#[test]
fn receives_that_are_shared_take_half_the_memory() {
    let [own, shared] = [0, 2048].map(|count| {
        let mut world = sharing(1, count, false);
        let (hosts, refused) = fill(&mut world);
        let count = hosts.len();
        drop(refused);
        world.check_empty(hosts);
        count
    });
    assert!((28..=32).contains(&own), "{own} of 64 MiB");
    assert!((56..=64).contains(&shared), "{shared} of 64 MiB");
}

/// Every host sends its maximum together, and commands with data never complete: no host waits for
/// a receive.
#[test]
fn slow_commands_keep_no_receive_from_others() {
    for seed in 0..20 {
        let mut world = sharing(seed, 48, true);
        let mut hosts: Vec<_> = (0..3).map(|_| world.connect(16).1).collect();
        let mut kept = Vec::new();
        // Writes without responses: the second host sends its maximum, the first half of it.
        for (at, count) in [(1, 16), (0, 8)] {
            for cid in 0..count {
                assert!(hosts[at].send(write(cid, 600), &[7; 600]));
            }
        }
        world.settle(&mut hosts.iter_mut().collect::<Vec<_>>());
        world.check_shared(24);
        for connection in &mut world.queues {
            kept.append(&mut connection.commands);
        }
        assert_eq!(kept.len(), 24);
        // The second host leaves, while its commands are still in work.
        let mut gone = hosts.remove(1);
        world.close(1);
        world.settle(&mut [&mut gone]);
        drop(gone);
        let wanted = world.source().shared_wanted();
        assert_eq!(wanted, Some(24), "those of the first and the third");
        hosts.insert(1, world.connect(16).1);
        world.check_shared(40);
        // All other hosts send their maximum: none of them waits.
        for (at, count) in [(0, 8), (1, 16), (2, 16)] {
            for cid in 100..100 + count {
                assert!(hosts[at].send(write(cid, 600), &[9; 600]));
            }
        }
        world.settle(&mut hosts.iter_mut().collect::<Vec<_>>());
        assert_eq!(world.not_ready(), 0, "seed {seed}");
        let came: usize = world.queues.iter().map(|connection| connection.commands.len()).sum();
        assert_eq!(came, 40, "seed {seed}");
        world.check_shared(0);
        drop(kept);
        for connection in &mut world.queues {
            connection.commands.clear();
        }
        world.turn();
        // None of them gets a response: free receives are posted for commands that can still
        // arrive.
        world.check_shared(48);
        world.check_empty(hosts);
    }
}

/// A host that sends more than its queue's size ends its own queue, and no other.
#[test]
fn a_greedy_host_ends_its_own_queue() {
    for seed in 0..40 {
        let mut world = sharing(seed, 32, true);
        let (victim, mut polite) = world.connect(16);
        let (at, mut greedy) = world.connect(16);
        // More than all receives together, before any poll; with data, and without.
        for cid in 0..60 {
            let sent = if seed % 2 == 0 {
                greedy.send(Sqe::new(0, cid, 1), &[])
            } else {
                greedy.send(write(cid, 100), &[1; 100])
            };
            assert!(sent);
        }
        world.fabric.settle();
        (0..16).for_each(|cid| assert!(polite.send(Sqe::new(0, cid, 1), &[])));
        world.settle(&mut [&mut greedy, &mut polite]);
        let closed = world.queues[at].closed.clone();
        assert!(matches!(closed, Some(CloseReason::Protocol(_))), "seed {seed}: {closed:?}");
        assert_eq!(world.queues[victim].closed, None, "seed {seed}");
        world.settle(&mut [&mut greedy, &mut polite]);
        assert_eq!(world.queues[victim].commands.len(), 16, "seed {seed}");
        for (sqe, _) in std::mem::take(&mut world.queues[victim].commands) {
            world.queues[victim].answer(&sqe, None);
        }
        world.queues[at].commands.clear();
        world.settle(&mut [&mut polite]);
        assert_eq!(polite.responses().len(), 16, "seed {seed}");
        let number = polite.endpoint.number();
        assert!(world.fabric.endpoint(number).is_some());
        world.check_empty(vec![greedy, polite]);
    }
}

/// The device reports the last receive, at different times or never.
///
/// The queue waits for the report, but not for ever.
#[test]
fn the_end_waits_for_the_last_receive() {
    for seed in 0..60 {
        let params = RdmaParams { shared_receives: 32, ..RdmaParams::default() };
        let says = seed % 5 != 4;
        let setup = Setup { seed, params, fetches_ahead: says, ..Setup::default() };
        let mut world = Setup { tells_last_receive: says, ..setup }.world();
        let (_, mut bystander) = world.connect(8);
        let (at, mut host) = world.connect(8);
        let number = world.number();
        let faults = world.fabric.faults();
        match seed % 5 {
            1 => faults.lose_last_receive(number),
            2 => faults.delay_last_receive(number, 500_000_000),
            3 => faults.hurry_last_receive(number),
            _ => {}
        }
        (0..5).for_each(|cid| assert!(host.send(write(cid, 50), &[3; 50])));
        (0..seed).for_each(|_| {
            world.fabric.step();
        });
        if seed % 2 == 0 {
            world.close(at);
        } else {
            // A host that dies: its queue pair no longer exists.
            host.endpoint.disconnect();
        }
        world.settle(&mut [&mut host, &mut bystander]);
        let waits = matches!(seed % 5, 1 | 2);
        assert_eq!(world.queues[at].closed.is_none(), waits, "seed {seed}");
        if waits {
            world.fabric.advance(510_000_000);
            world.settle(&mut [&mut host, &mut bystander]);
            assert_eq!(world.queues[at].closed.is_none(), seed % 5 == 1, "seed {seed}");
            world.fabric.advance(world.params.drain_timeout);
            world.settle(&mut [&mut host, &mut bystander]);
        }
        assert!(world.queues[at].closed.is_some(), "seed {seed}");
        world.queues[at].commands.clear();
        world.turn();
        assert_eq!(world.source().shared_wanted(), Some(8), "seed {seed}");
        // Receives that it left posted serve the next queue.
        drop(host);
        let (next, mut host) = world.connect(8);
        assert!(world.source().shared_posted() >= Some(16), "seed {seed}");
        (0..8).for_each(|cid| assert!(host.send(write(cid, 50), &[3; 50])));
        (0..8).for_each(|cid| assert!(bystander.send(write(cid, 50), &[3; 50])));
        world.settle(&mut [&mut host, &mut bystander]);
        let counters = world.fabric.counters();
        assert_eq!(
            world.queues[next].commands.len(),
            8,
            "seed {seed}: {counters:?} {:?}",
            world.queues[next]
        );
        assert_eq!(world.not_ready(), 0, "seed {seed}");
        world.check_empty(vec![host, bystander]);
    }
}
