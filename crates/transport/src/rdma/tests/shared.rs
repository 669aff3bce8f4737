//! Receives that connections share.

use super::*;

fn sharing(count: u32) -> World {
    let params = RdmaParams { shared_receives: count, ..RdmaParams::default() };
    Setup { params, ..Setup::default() }.world()
}

#[test]
fn connections_share_receives() {
    let mut world = sharing(8);
    let mut hosts: Vec<_> = (0..4).map(|_| world.connect(16).1).collect();
    assert_eq!(world.fabric.counters().shared_queues, 1);
    for round in 0..20u16 {
        for (at, host) in (0..).zip(&mut hosts) {
            let bytes = pattern(u32::from(round) + at, 300);
            let sgl = Sgl::InCapsule { offset: 0, length: 300 };
            host.send(Sqe::new(1, round, 1).with_sgl(sgl), &bytes);
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
    world.check_empty(hosts);
}

#[test]
fn a_connection_that_goes_takes_no_receive_with_it() {
    let mut world = sharing(4);
    let (other, mut bystander) = world.connect(4);
    for round in 0..10 {
        let (at, mut host) = world.connect(4);
        // Capsules come, and with them the end.
        (0..3).for_each(|cid| assert!(host.send(Sqe::new(0, cid, 1), &[])));
        for _ in 0..6 {
            world.fabric.step();
        }
        if round % 2 == 0 {
            // They are there, and nobody has looked for them when the queue pair goes.
            world.fabric.settle();
        }
        world.queues[at].queue.as_mut().unwrap().close(CloseReason::Shutdown);
        let now = world.fabric.now();
        world.queues[at].turn(now);
        world.settle(&mut [&mut host, &mut bystander]);
        assert!(world.queues.last().unwrap().closed.is_some());
    }
    (0..4).for_each(|cid| assert!(bystander.send(Sqe::new(0, cid, 1), &[])));
    world.settle(&mut [&mut bystander]);
    assert_eq!(world.queues[other].commands.len(), 4);
    // All of them are posted, still.
    assert_eq!(world.source().shared_posted(), Some(4));
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
    world.check_empty(vec![host]);
}
