//! Connections, and single commands.

use nvmeof_verbs::ConnectionEvent;
use nvmeof_wire::rdma::{AcceptData, RejectData, RejectStatus};

use super::memory::Memory;
use super::*;

#[test]
fn a_host_connects_and_is_told_our_receives() {
    let mut world = world();
    let (_, host) = world.connect(32);
    let [ConnectionEvent::Established { private_data, reads_out }] = host.events[..] else {
        panic!("{:?}", host.events)
    };
    assert_eq!(AcceptData::parse(private_data.as_slice()), Some(32));
    assert_eq!(reads_out, 0);
    world.check_empty(vec![host]);
}

#[test]
fn a_bad_request_is_rejected_with_its_status() {
    let mut world = world();
    let request = Request { qid: 70, host_receives: 8, entries: 8, cntlid: None };
    let mut host = Host::ask(&world, request.encode().as_bytes(), 4, 8);
    world.fabric.settle();
    let known = |_| true;
    let limits = Limits { max_qid: 64, has_controller: &known, may_add_queue: &|_| true };
    let ticket = world.listener.next_ticket().unwrap();
    let reject = admit(ticket, &world.registration, world.params, &limits).unwrap_err();
    assert_eq!(reject.status, RejectStatus::INVALID_QID);
    reject.tell();
    world.settle(&mut [&mut host]);
    let [ConnectionEvent::Rejected { private_data, .. }] = host.events[..] else {
        panic!("{:?}", host.events)
    };
    assert_eq!(RejectData::parse(private_data.as_slice()), Some(RejectStatus::INVALID_QID));
    world.check_empty(vec![host]);
}

#[test]
fn a_queue_pair_that_cannot_be_made_is_rejected() {
    for is_first in [true, false] {
        let mut world = world();
        let mut hosts = Vec::new();
        if !is_first {
            hosts.push(world.connect(8).1);
        }
        let mut host = world.ask(1, 8);
        world.fabric.faults().refuse_open(&world.target_device, 0);
        let taken = world.take();
        world.settle(&mut [&mut host]);
        if is_first {
            // The queue pair is created only when there is a completion queue.
            let closed = &world.queues[taken.unwrap()].closed;
            assert!(matches!(closed, Some(CloseReason::Lost(_))), "{closed:?}");
        } else {
            taken.unwrap_err();
        }
        let [ConnectionEvent::Rejected { private_data, .. }] = host.events[..] else {
            panic!("{:?}", host.events)
        };
        assert_eq!(RejectData::parse(private_data.as_slice()), Some(RejectStatus::NO_RESOURCES));
        hosts.push(host);
        world.check_empty(hosts);
    }
}

#[test]
fn a_command_without_data_is_answered() {
    for inline in [0, 128] {
        let mut world = Setup { inline, ..Setup::default() }.world();
        let (at, mut host) = world.connect(8);
        for cid in 0..100 {
            host.send(Sqe::new(0, cid, 1), &[]);
            world.settle(&mut [&mut host]);
            let (sqe, data) = world.queues[at].commands.pop().unwrap();
            assert_eq!((sqe.cid.get(), data.is_none()), (cid, true));
            world.queues[at].answer(&sqe, None);
            world.settle(&mut [&mut host]);
            assert_eq!(host.responses(), [(cid, None)]);
        }
        world.check_empty(vec![host]);
    }
}

#[test]
fn a_read_arrives_before_its_response_and_gives_its_buffer_back() {
    let mut world = world();
    let (at, mut host) = world.connect(8);
    let memory = Memory::new(&host.device, 100_000);
    host.send(Sqe::new(2, 5, 1).with_sgl(memory.sgl(10, 70_000, true)), &[]);
    world.settle(&mut [&mut host]);
    let (sqe, _) = world.queues[at].commands.pop().unwrap();
    let bytes = pattern(1, 65_536);
    let data = world.buffer(&bytes);
    let token = world.queues[at].answer(&sqe, Some(data));
    world.turn();
    // Step by step: when the response arrives, its data is already there.
    while host.came.is_empty() {
        assert!(world.fabric.step());
        host.turn();
    }
    assert_eq!(memory.read(10, 65_536), bytes);
    assert_eq!(host.responses(), [(5, Some(memory.rkey()))]);
    world.settle(&mut [&mut host]);
    assert_eq!(world.queues[at].sent, [token]);
    drop(memory);
    world.check_empty(vec![host]);
}

#[test]
fn a_write_is_pulled() {
    let mut world = world();
    let (at, mut host) = world.connect(8);
    let bytes = pattern(2, 30_000);
    let memory = Memory::with(&host.device, &bytes);
    host.send(Sqe::new(1, 5, 1).with_sgl(memory.sgl(0, 30_000, true)), &[]);
    world.settle(&mut [&mut host]);
    let (sqe, _) = world.queues[at].commands.pop().unwrap();
    let buffer = world.pool.lease(30_000).unwrap();
    let token = world.queues[at].pull(&sqe, buffer);
    world.settle(&mut [&mut host]);
    assert_eq!(world.queues[at].pulled, [(token, Ok(()), bytes)]);
    // Its response has no data, and invalidates the key regardless.
    world.queues[at].answer(&sqe, None);
    world.settle(&mut [&mut host]);
    assert_eq!(host.responses(), [(5, Some(memory.rkey()))]);
    drop(memory);
    world.check_empty(vec![host]);
}

#[test]
fn data_in_capsules_never_holds_a_receive() {
    let mut world = world();
    let (at, mut host) = world.connect(4);
    // The data of four commands stays with the target, while four more start and complete.
    for cid in 0..4u16 {
        let bytes = pattern(u32::from(cid), 4096);
        let sgl = Sgl::InCapsule { offset: 0, length: 4096 };
        host.send(Sqe::new(1, cid, 1).with_sgl(sgl), &bytes);
    }
    world.settle(&mut [&mut host]);
    let kept = std::mem::take(&mut world.queues[at].commands);
    for (sqe, data) in &kept {
        let bytes = pattern(u32::from(sqe.cid.get()), 4096);
        assert_eq!(data.as_ref().unwrap().as_slice(), bytes);
    }
    let number = world.fabric.counters().receives_posted;
    assert!(number >= 8, "receives are posted again at once: {number}");
    let held: Vec<_> = world.queues[at].commands.drain(..).collect();
    assert!(held.is_empty());
    for (sqe, data) in kept {
        drop(data);
        world.queues[at].answer(&sqe, None);
    }
    world.settle(&mut [&mut host]);
    assert_eq!(host.responses().len(), 4);
    world.check_empty(vec![host]);
}

#[test]
fn a_queue_that_is_paused_keeps_commands_and_goes_on_receiving() {
    let mut world = world();
    let (at, mut host) = world.connect(4);
    world.queues[at].queue.as_mut().unwrap().set_paused(true);
    (0..3).for_each(|cid| assert!(host.send(Sqe::new(0, cid, 1), &[])));
    world.settle(&mut [&mut host]);
    assert!(world.queues[at].commands.is_empty());
    assert_eq!(host.failed, []);
    world.queues[at].queue.as_mut().unwrap().set_paused(false);
    world.settle(&mut [&mut host]);
    let cids: Vec<_> = world.queues[at].commands.iter().map(|(sqe, _)| sqe.cid.get()).collect();
    assert_eq!(cids, [0, 1, 2]);
    world.check_empty(vec![host]);
}

#[test]
fn what_cannot_work_is_handed_back() {
    let mut world = world();
    let (at, mut host) = world.connect(4);
    let memory = Memory::new(&host.device, 4096);
    host.send(Sqe::new(1, 5, 1).with_sgl(memory.sgl(0, 4096, false)), &[]);
    world.settle(&mut [&mut host]);
    let (sqe, _) = world.queues[at].commands.pop().unwrap();
    let sgl = sqe.dptr.parse();
    let pull = |world: &World, cid, sgl, len| {
        let buf = world.pool.lease(len).unwrap();
        FabricOp::FetchHostData { token: 1, cid, sgl, buf }
    };
    let ops = [
        pull(&world, 5, sgl, 0),
        pull(&world, 5, sgl, 4097),
        pull(&world, 6, sgl, 4096),
        pull(&world, 5, Sgl::Transport { length: 4096 }, 4096),
        FabricOp::Respond { token: 1, cqe: Cqe::success(6, 0), sgl, data: None, elidable: false },
    ];
    for op in ops {
        let rejected = world.queues[at].submit(op).unwrap_err();
        assert_eq!(rejected.reason, crate::queue::RejectReason::Invalid, "{:?}", rejected.op);
    }
    drop(memory);
    world.check_empty(vec![host]);
}

#[test]
fn queues_that_do_not_fit_in_a_completion_queue_get_another() {
    let params = RdmaParams { cq_depth: 100, ..RdmaParams::default() };
    let mut world = Setup { params, ..Setup::default() }.world();
    let mut hosts = Vec::new();
    for _ in 0..5 {
        hosts.push(world.connect(16).1);
    }
    assert!(world.sources.iter().count() > 1);
    for (at, host) in hosts.iter_mut().enumerate() {
        host.send(Sqe::new(0, 9, 1), &[]);
        world.settle(&mut [host]);
        assert_eq!(world.queues[at].commands.len(), 1);
    }
    world.check_empty(hosts);
}

#[test]
fn an_empty_payload_is_given_back_with_its_response() {
    let mut world = world();
    let (at, mut host) = world.connect(4);
    host.send(Sqe::new(2, 5, 1), &[]);
    world.settle(&mut [&mut host]);
    let (sqe, _) = world.queues[at].commands.pop().unwrap();
    let empty = world.pool.lease(0).unwrap();
    let token = world.queues[at].answer(&sqe, Some(empty));
    world.settle(&mut [&mut host]);
    assert_eq!((host.responses(), &world.queues[at].sent), (vec![(5, None)], &vec![token]));
    world.check_empty(vec![host]);
}

#[test]
fn a_send_queue_of_few_places_takes_everything_in_order() {
    let limits = DeviceLimits { queue_depth: 16, ..DeviceOptions::default().limits };
    let mut world = Setup { limits, ..Setup::default() }.world();
    let (at, mut host) = world.connect(16);
    let memory = Memory::new(&host.device, 16 * 512);
    for round in 0..5u16 {
        for cid in 0..16u16 {
            let sgl = memory.sgl(u32::from(cid) * 512, 512, false);
            host.send(Sqe::new(2, cid, 1).with_sgl(sgl), &[]);
        }
        world.settle(&mut [&mut host]);
        // 32 work requests together.
        for (sqe, _) in std::mem::take(&mut world.queues[at].commands) {
            let cid = sqe.cid.get();
            let data = world.buffer(&pattern(u32::from(round * 16 + cid), 512));
            world.queues[at].answer(&sqe, Some(data));
        }
        world.settle(&mut [&mut host]);
        let cids: Vec<_> = host.responses().into_iter().map(|(cid, _)| cid).collect();
        assert_eq!(cids, (0..16).collect::<Vec<_>>());
        for cid in 0..16u16 {
            let expected = pattern(u32::from(round * 16 + cid), 512);
            assert_eq!(memory.read(usize::from(cid) * 512, 512), expected);
        }
    }
    drop(memory);
    world.check_empty(vec![host]);
}

#[test]
fn no_more_reads_are_out_than_the_two_agreed_on_and_responses_pass_them() {
    let limits = DeviceLimits { reads_out: 2, ..DeviceOptions::default().limits };
    let mut world = Setup { limits, ..Setup::default() }.world();
    let (at, mut host) = world.connect(16);
    let memory = Memory::new(&host.device, 15 * 4096);
    for cid in 0..15u16 {
        let sgl = memory.sgl(u32::from(cid) * 4096, 4096, false);
        host.send(Sqe::new(1, cid, 1).with_sgl(sgl), &[]);
    }
    host.send(Sqe::new(0, 99, 1), &[]);
    world.settle(&mut [&mut host]);
    for (sqe, _) in std::mem::take(&mut world.queues[at].commands) {
        if sqe.opcode == 1 {
            let buffer = world.pool.lease(4096).unwrap();
            world.queues[at].pull(&sqe, buffer);
        } else {
            world.queues[at].answer(&sqe, None);
        }
    }
    world.turn();
    while host.came.is_empty() {
        assert!(world.fabric.step());
        host.turn();
    }
    // The response arrives before most of the data is even requested.
    assert_eq!(host.responses(), [(99, None)]);
    assert!(world.queues[at].pulled.is_empty());
    world.settle(&mut [&mut host]);
    assert_eq!(world.queues[at].pulled.len(), 15);
    let number = world.number();
    let counters = world.fabric.endpoint(number).unwrap();
    assert_eq!((counters.most_reads, counters.read_stalls), (2, 0));
    drop(memory);
    world.check_empty(vec![host]);
}

/// Returns true if a descriptor is readable now.
fn is_readable(fd: std::os::fd::BorrowedFd<'_>) -> bool {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let mut fds = [PollFd::from_borrowed_fd(fd, PollFlags::IN)];
    poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).unwrap() > 0
}

#[test]
fn a_reactor_that_sleeps_is_woken() {
    let mut world = world();
    let (at, mut host) = world.connect(4);
    let before = world.source().counts();
    world.source().arm();
    world.turn();
    assert!(!is_readable(world.source().fd()));
    host.send(Sqe::new(0, 1, 1), &[]);
    world.fabric.settle();
    assert!(is_readable(world.source().fd()), "by a capsule");
    let mut ready = Vec::new();
    world.source().poll(0, &mut ready);
    assert_eq!(ready, [at as u64]);
    // The source reports once until the queue takes its completions.
    host.send(Sqe::new(0, 2, 1), &[]);
    world.fabric.settle();
    world.source().poll(0, &mut ready);
    assert_eq!(ready, [at as u64]);
    world.turn();
    assert_eq!(world.queues[at].commands.len(), 2);
    let counts = world.source().counts();
    assert_eq!(counts.requests - before.requests, 2);
    assert!(counts.busy_polls > before.busy_polls && counts.polls > counts.busy_polls);
    assert!(!is_readable(world.queues[at].queue.as_ref().unwrap().fd().unwrap()));
    nvmeof_verbs::Endpoint::disconnect(&mut host.endpoint);
    world.fabric.settle();
    assert!(is_readable(world.queues[at].queue.as_ref().unwrap().fd().unwrap()), "by the end");
    world.check_empty(vec![host]);
}
