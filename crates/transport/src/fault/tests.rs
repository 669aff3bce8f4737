use nvmeof_core::dma::{ChunkPool, CorePool, Payload, PoolConfig};
use nvmeof_wire::{Cqe, Sgl, Sqe};

use super::*;
use crate::loopback::{LoopbackHost, LoopbackParams, connect};
use crate::queue::{Connected, Event, FabricOp, PollGroup, ReactorResources};

struct World {
    pool: CorePool,
    queue: Box<dyn HostQueue>,
    host: LoopbackHost,
}

impl World {
    fn new(plan: FaultPlan) -> Self {
        let config = PoolConfig { huge_pages: false, ..PoolConfig::default() };
        let pool = CorePool::new(&ChunkPool::new(config).unwrap());
        let (parked, host) = connect(LoopbackParams::default());
        let mut queue = inject_parked(parked, plan)
            .attach(&mut ReactorResources { pool: &pool, sources: &mut PollGroup::default() })
            .unwrap();
        queue.connected(Connected { admin: false, depth: 1024 });
        Self { pool, queue, host }
    }

    fn at(point: u64, fault: Fault) -> Self {
        Self::new(FaultPlan { points: vec![(point, fault)], ..FaultPlan::default() })
    }

    fn turn(&mut self, now: Nanos) -> Vec<Event> {
        let mut events = Vec::new();
        self.queue.receive(now, &mut events);
        self.queue.flush(&mut { usize::MAX }, now, &mut events);
        events
    }

    fn commands(&self, count: u16) {
        for cid in 0..count {
            self.host.send(Sqe::new(1, cid, 1), &[1; 512]);
        }
    }

    fn respond(&mut self, cid: u16) {
        let data = Some(Payload::Buffer(self.pool.lease(8).unwrap()));
        let sgl = Sgl::Transport { length: 8 };
        let (token, cqe) = (u64::from(cid), Cqe::success(cid, 0));
        let op = FabricOp::Respond { token, cqe, sgl, data, elidable: false };
        self.queue.submit(op).unwrap();
    }
}

fn cids(events: &[Event]) -> Vec<u16> {
    let cid = |event: &Event| match event {
        Event::Command { sqe, .. } => sqe.cid.get(),
        other => panic!("{other:?}"),
    };
    events.iter().map(cid).collect()
}

#[test]
fn chosen_points() {
    let mut world = World::at(1, Fault::DropCommand);
    world.commands(3);
    assert_eq!(cids(&world.turn(0)), [0, 2]);

    let mut world = World::at(1, Fault::FailCommand);
    world.commands(2);
    assert!(matches!(world.turn(0)[..], [Event::Command { .. }, Event::CommandFailed { .. }]));

    let mut world = World::at(0, Fault::Delay(50));
    world.commands(3);
    assert_eq!(cids(&world.turn(0)), [1, 2]);
    assert_eq!(world.queue.deadline(), Some(50));
    assert!(world.turn(49).is_empty());
    assert_eq!(cids(&world.turn(50)), [0]);

    let mut world = World::at(0, Fault::DropResponse);
    world.commands(2);
    assert_eq!(world.turn(0).len(), 2);
    world.respond(0);
    world.respond(1);
    let sent = world.turn(0);
    assert!(matches!(sent[..], [Event::Sent { token: 0, .. }, Event::Sent { token: 1, .. }]));
    assert_eq!(world.host.take().len(), 1);

    let mut world = World::at(0, Fault::FailPull);
    world.commands(1);
    world.turn(0);
    let sgl = world.host.register(vec![0; 8]);
    let buf = world.pool.lease(8).unwrap();
    world.queue.submit(FabricOp::FetchHostData { token: 0, cid: 0, sgl, buf }).unwrap();
    assert!(matches!(world.turn(0)[..], [Event::HostDataArrived { result: Err(_), .. }]));
}

#[test]
fn closing_releases_what_is_late() {
    let plan = FaultPlan {
        points: vec![(0, Fault::Delay(1000)), (1, Fault::Close)],
        ..FaultPlan::default()
    };
    let mut world = World::new(plan);
    world.commands(2);
    let events = world.turn(0);
    assert!(matches!(
        events[..],
        [Event::Command { .. }, Event::Command { .. }, Event::Closed { .. }]
    ));
    drop(events);
    assert_eq!(world.pool.leased(), 0);
}

#[test]
fn the_same_seed_gives_the_same_faults() {
    let run = |seed| {
        let chances = vec![(Fault::DropCommand, 100_000), (Fault::FailCommand, 100_000)];
        let mut world = World::new(FaultPlan { seed, chances, points: Vec::new() });
        world.commands(500);
        let mut log = Vec::new();
        for _ in 0..20 {
            log.extend(world.turn(0).iter().map(|event| match event {
                Event::Command { sqe, .. } => (sqe.cid.get(), true),
                Event::CommandFailed { sqe, .. } => (sqe.cid.get(), false),
                other => panic!("{other:?}"),
            }));
        }
        log
    };
    let log = run(7);
    assert_eq!(log, run(7));
    assert_ne!(log, run(8));
    let failed = log.iter().filter(|(_, good)| !good).count();
    assert!((20..100).contains(&failed), "{failed}");
    assert!((400..490).contains(&log.len()), "{}", log.len());
}
