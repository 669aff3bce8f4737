use nvmeof_core::dma::{ChunkPool, CorePool, Payload, PoolConfig};
use nvmeof_transport::{
    Connected, Event, FabricOp, HostQueue, PollGroup, ReactorResources, RejectReason,
};
use nvmeof_wire::{Cqe, Sgl, Sqe};

use super::*;

fn open(params: LoopbackParams) -> (CorePool, Box<dyn HostQueue>, LoopbackHost) {
    let config = PoolConfig { huge_pages: false, ..PoolConfig::default() };
    let pool = CorePool::new(&ChunkPool::new(config).unwrap());
    let (parked, host) = connect(params);
    let mut queue = parked
        .attach(&mut ReactorResources { pool: &pool, sources: &mut PollGroup::default() })
        .unwrap();
    queue.connected(Connected { admin: false, depth: 4 });
    (pool, queue, host)
}

fn turn(queue: &mut Box<dyn HostQueue>, now: Nanos) -> Vec<Event> {
    let mut events = Vec::new();
    queue.receive(now, &mut events);
    queue.flush(&mut { usize::MAX }, now, &mut events);
    events
}

fn respond(cid: u16, sgl: Sgl, data: Option<Payload>) -> FabricOp {
    FabricOp::Respond { token: 1, cqe: Cqe::success(cid, 0), sgl, data, elidable: true }
}

#[test]
fn a_write_then_a_read_of_host_memory_in_time() {
    let params = LoopbackParams { latency: 10, ..LoopbackParams::default() };
    let (pool, mut queue, host) = open(params);
    let from = host.register(b"from the host".to_vec());
    host.send(Sqe::new(1, 7, 1).with_sgl(from), b"inline");
    let [Event::Command { sqe, data: Some(data) }] = &turn(&mut queue, 0)[..] else { panic!() };
    assert_eq!((sqe.cid.get(), data.as_slice()), (7, &b"inline"[..]));
    let buf = pool.lease(13).unwrap();
    queue.submit(FabricOp::FetchHostData { token: 3, cid: 7, sgl: from, buf }).unwrap();
    assert!(turn(&mut queue, 0).is_empty());
    assert_eq!(queue.deadline(), Some(10));
    let mut events = turn(&mut queue, 10);
    let Some(Event::HostDataArrived { token: 3, buf, result: Ok(()) }) = events.pop() else {
        panic!()
    };
    assert_eq!(buf.as_slice(), b"from the host");
    let to = host.register(vec![0; 13]);
    queue.submit(respond(7, to, Some(Payload::Buffer(buf)))).unwrap();
    turn(&mut queue, 10);
    assert!(host.take().is_empty());
    assert!(matches!(turn(&mut queue, 20)[..], [Event::Sent { token: 1, data: Some(_) }]));
    assert_eq!(host.memory(to), b"from the host");
    assert_eq!(host.take()[0].data, b"from the host");
}

#[test]
fn pulls_wait_for_the_host_and_fail_on_demand() {
    let (pool, mut queue, host) = open(LoopbackParams::default());
    host.send(Sqe::new(1, 7, 1), &[]);
    turn(&mut queue, 0);
    let sgl = Sgl::Transport { length: 4 };
    let buf = pool.lease(4).unwrap();
    queue.submit(FabricOp::FetchHostData { token: 3, cid: 7, sgl, buf }).unwrap();
    assert!(turn(&mut queue, 0).is_empty());
    host.offer(7, b"data".to_vec());
    assert!(matches!(turn(&mut queue, 0)[..], [Event::HostDataArrived { result: Ok(()), .. }]));
    host.fail_next(FabricError::DataDigest);
    let buf = pool.lease(4).unwrap();
    queue.submit(FabricOp::FetchHostData { token: 3, cid: 7, sgl, buf }).unwrap();
    let failed = turn(&mut queue, 0);
    assert!(matches!(
        failed[..],
        [Event::HostDataArrived { result: Err(FabricError::DataDigest), .. }]
    ));
}

#[test]
fn closing_gives_everything_back() {
    for by_host in [false, true] {
        let (pool, mut queue, host) = open(LoopbackParams { latency: 10, ..Default::default() });
        host.send(Sqe::new(1, 7, 1), &[]);
        turn(&mut queue, 0);
        let sgl = Sgl::Transport { length: 4 };
        let buf = pool.lease(4).unwrap();
        queue.submit(FabricOp::FetchHostData { token: 3, cid: 7, sgl, buf }).unwrap();
        turn(&mut queue, 0);
        let data = Payload::Buffer(pool.lease(4).unwrap());
        queue.submit(respond(7, sgl, Some(data))).unwrap();
        if by_host {
            host.close();
        } else {
            queue.close(CloseReason::Shutdown);
        }
        let events = turn(&mut queue, 0);
        assert!(matches!(
            events[..],
            [
                Event::HostDataArrived { token: 3, result: Err(FabricError::Closed), .. },
                Event::Sent { token: 1, data: Some(_) },
                Event::Closed { .. }
            ]
        ));
        assert!(turn(&mut queue, 99).is_empty());
        assert!(host.closed().is_some());
        let rejected = queue.submit(respond(7, sgl, None)).unwrap_err();
        assert_eq!(rejected.reason, RejectReason::Closing);
        drop(events);
        assert_eq!(pool.leased(), 0);
    }
}

#[test]
fn limits_hold() {
    let (_pool, mut queue, host) = open(LoopbackParams::default());
    for cid in 0..5 {
        host.send(Sqe::new(1, cid, 1), &[]);
    }
    let events = turn(&mut queue, 0);
    assert_eq!(events.len(), 5);
    assert!(matches!(events[4], Event::Closed { reason: CloseReason::Protocol(_) }));
    let (_pool, mut queue, host) = open(LoopbackParams::default());
    host.send(Sqe::new(1, 1, 1), &[0; 8193]);
    assert!(matches!(turn(&mut queue, 0)[..], [Event::Closed { .. }]));
}

#[test]
fn parks_and_pauses() {
    let (pool, mut queue, host) = open(LoopbackParams::default());
    queue.set_paused(true);
    host.send(Sqe::new(1, 1, 1), &[]);
    assert!(turn(&mut queue, 0).is_empty());
    let mut queue = queue
        .detach()
        .unwrap()
        .attach(&mut ReactorResources { pool: &pool, sources: &mut PollGroup::default() })
        .unwrap();
    assert_eq!(turn(&mut queue, 0).len(), 1);
    queue.detach().unwrap_err();
}
