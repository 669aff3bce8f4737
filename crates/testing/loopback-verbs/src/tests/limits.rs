//! Full queues, reached depths and invalid keys.

use std::io;

use nvmeof_verbs::WcStatus::{Flushed, Other, RemoteAccess, Success};
use nvmeof_verbs::{
    AcceptParams, AccessFlags, ConnectParams, ConnectionEvent, Device, DeviceLimits, Endpoint,
    EndpointSpec, LastWqe, SendOp, SgeList, VerbsError,
};
use nvmeof_verbs_conformance::{ACCESS, COMPLETIONS, Memory, SPEC, slots, statuses};

use super::fixture::{ANSWER, ASK, Lab, Setup, address, living};
use crate::{DeviceOptions, Fabric};

#[test]
fn a_send_queue_is_full_until_a_completion_is_polled() {
    let mut lab = Lab::new(1);
    let mut pair = lab.pair();
    let write = pair.answering.memory().write_at(0);
    let mut chain: Vec<_> = (0..33).map(|id| pair.asking.work(id, write, 0, 8)).collect();
    for work in &mut chain {
        work.signaled = false;
    }
    let refused = pair.asking.post(&chain).unwrap_err();
    assert_eq!((refused.taken, refused.source.kind()), (32, io::ErrorKind::OutOfMemory));
    // All have ended, and no completion says so: the queue stays full.
    pair.pass();
    let number = pair.asking.endpoint().number();
    let counters = lab.fabric.endpoint(number).unwrap();
    assert_eq!((counters.sends_held, counters.sends_waiting), (32, 0));
    assert_eq!(pair.asking.post(&chain[..1]).unwrap_err().taken, 0);

    let mut pair = lab.pair();
    let write = pair.answering.memory().write_at(0);
    let mut chain: Vec<_> = (0..32).map(|id| pair.asking.work(id, write, 0, 8)).collect();
    for work in &mut chain {
        work.signaled = work.id.slot() == 20;
    }
    pair.asking.post(&chain).unwrap();
    lab.fabric.settle();
    assert!(pair.asking.post(&chain[..1]).is_err(), "it completed and was not polled");
    pair.completions(1, 0);
    chain[20].signaled = false;
    let refused = pair.asking.post(&chain).unwrap_err();
    assert_eq!(refused.taken, 21);
}

#[test]
fn a_receive_queue_is_full_until_a_completion_is_polled() {
    for shared in [false, true] {
        let mut lab = Lab::new(2);
        let mut pair = lab.pair_with(&Setup { shared, ..Setup::default() });
        for id in 0..32 {
            pair.answering.receive(id, 0, 8).unwrap();
        }
        let full = pair.answering.receive(32, 0, 8).unwrap_err();
        assert_eq!(full.kind(), io::ErrorKind::OutOfMemory);
        let work = pair.asking.work(0, SendOp::Send, 0, 8);
        pair.asking.post(&[work]).unwrap();
        lab.fabric.settle();
        assert!(pair.answering.receive(32, 0, 8).is_err(), "it completed and was not polled");
        pair.completions(1, 1);
        pair.answering.receive(32, 0, 8).unwrap();
        assert!(pair.answering.receive(33, 0, 8).is_err());
    }
}

#[test]
fn an_overflowing_completion_queue_breaks() {
    let mut lab = Lab::new(3);
    let mut pair = lab.pair_with(&Setup { completions: 4, ..Setup::default() });
    let write = pair.answering.memory().write_at(0);
    let chain: Vec<_> = (0..5).map(|id| pair.asking.work(id, write, 0, 8)).collect();
    pair.asking.post(&chain[..4]).unwrap();
    let (ended, _) = pair.completions(4, 0);
    assert_eq!(slots(&ended, b's', Success), [0, 1, 2, 3]);
    pair.asking.post(&chain).unwrap();
    pair.pass();
    assert!(pair.asking.poll().is_err());
    assert_eq!(pair.asking.take_events(), [ConnectionEvent::QueuePairError]);
}

#[test]
fn reads_stall_at_the_depth_and_are_counted() {
    let mut lab = Lab::new(4);
    let answer = AcceptParams { reads_in: 2, ..ANSWER };
    let mut pair = lab.pair_with(&Setup { answer, ..Setup::default() });
    let number = pair.asking.endpoint().number();
    let read = pair.answering.memory().read_at(0);
    let chain: Vec<_> = (0..6).map(|id| pair.asking.work(id, read, 0, 8)).collect();
    pair.asking.post(&chain[..2]).unwrap();
    pair.completions(2, 0);
    assert_eq!(lab.fabric.endpoint(number).unwrap().read_stalls, 0);
    pair.asking.post(&chain).unwrap();
    pair.completions(6, 0);
    let counters = lab.fabric.endpoint(number).unwrap();
    assert_eq!((counters.most_reads, counters.reads), (2, 0));
    assert_eq!((counters.read_stalls, lab.fabric.counters().read_stalls), (4, 4));
}

#[test]
fn more_reads_than_the_peer_takes_fail_both() {
    // The target accepts with more READs than the host accepts.
    let mut lab = Lab::new(5);
    let ask = ConnectParams { reads_in: 1, ..ASK };
    let mut pair = lab.pair_with(&Setup { ask, ..Setup::default() });
    let read = pair.asking.memory().read_at(0);
    let chain: Vec<_> = (0..4).map(|id| pair.answering.work(id, read, 0, 100_000)).collect();
    pair.answering.post(&chain).unwrap();
    let (_, ended) = pair.completions(0, 4);
    assert_eq!(statuses(&ended, b's'), [Success, Other(9), Flushed, Flushed]);
    assert_eq!(pair.asking.take_events(), [ConnectionEvent::QueuePairError]);

    let ask = ConnectParams { reads_out: 0, ..ASK };
    let mut pair = lab.pair_with(&Setup { ask, ..Setup::default() });
    let read = pair.answering.memory().read_at(0);
    let work = pair.asking.work(0, read, 0, 8);
    pair.asking.post(&[work]).unwrap();
    let (ended, _) = pair.completions(1, 0);
    assert_eq!(statuses(&ended, b's'), [Other(2)]);
}

#[test]
fn an_invalidated_key_is_dead_and_the_receive_says_so() {
    let mut lab = Lab::new(6);
    let mut pair = lab.pair();
    let mut memory = Memory::new(&lab.target, 4_096, ACCESS).unwrap();
    memory.fill(0, &[1; 8]);
    pair.answering.receive(0, 0, 8).unwrap();
    let invalidate = SendOp::SendInvalidate { key: memory.rkey() };
    let chain =
        [pair.asking.work(0, memory.read_at(0), 0, 8), pair.asking.work(1, invalidate, 0, 8)];
    pair.asking.post(&chain).unwrap();
    let (ended, received) = pair.completions(2, 1);
    assert_eq!(slots(&ended, b's', Success), [0, 1]);
    assert_eq!((received[0].bytes, received[0].invalidated), (8, Some(memory.rkey())));
    assert_eq!(lab.fabric.counters().invalidated, 1);
    let work = pair.asking.work(2, memory.read_at(0), 0, 8);
    pair.asking.post(&[work]).unwrap();
    let (ended, _) = pair.completions(1, 0);
    assert_eq!(statuses(&ended, b's'), [RemoteAccess]);
}

#[test]
fn a_key_that_cannot_be_invalidated_fails_both() {
    for case in 0..4 {
        let options = DeviceOptions { invalidation: case != 3, ..DeviceOptions::default() };
        let mut lab = Lab::with(7, options);
        let mut pair = lab.pair();
        let local = AccessFlags { local_write: true, ..AccessFlags::default() };
        let memory = Memory::new(&lab.target, 64, local).unwrap();
        let key = match case {
            0 => 0x5a5a_5a5a,
            // The key of the other end.
            1 => pair.asking.memory().rkey(),
            2 => memory.rkey(),
            _ => pair.answering.memory().rkey(),
        };
        pair.answering.receive(0, 0, 8).unwrap();
        pair.answering.receive(1, 0, 8).unwrap();
        let work = pair.asking.work(0, SendOp::SendInvalidate { key }, 0, 8);
        pair.asking.post(&[work]).unwrap();
        let (ended, received) = pair.completions(1, 2);
        assert_eq!(statuses(&ended, b's'), [RemoteAccess], "case {case}");
        assert_eq!(statuses(&received, b'r'), [Other(9), Flushed], "case {case}");
        assert_eq!(lab.fabric.counters().invalidated, 0);
    }
}

#[test]
fn keys_are_not_mixed_up() {
    // A remote key is invalid for local work, and vice versa; so is the key of another device.
    for case in 0..3 {
        let mut lab = Lab::new(8);
        let mut pair = lab.pair();
        let mut work = pair.asking.work(0, pair.answering.memory().write_at(0), 0, 8);
        let mut piece = pair.asking.memory().piece(0, 8);
        let expected = match case {
            0 => {
                piece.lkey = pair.asking.memory().rkey();
                Other(4)
            }
            1 => {
                piece = pair.answering.memory().piece(0, 8);
                Other(4)
            }
            _ => {
                let memory = pair.answering.memory();
                work.operation = SendOp::Write { address: memory.address(0), key: memory.lkey() };
                RemoteAccess
            }
        };
        work.pieces = SgeList::one(piece);
        pair.asking.post(&[work]).unwrap();
        let (ended, _) = pair.completions(1, 0);
        assert_eq!(statuses(&ended, b's'), [expected], "case {case}");
    }
}

#[test]
fn reading_into_memory_that_may_not_be_written_fails() {
    let mut lab = Lab::new(9);
    let mut pair = lab.pair();
    let memory =
        Memory::new(&lab.host, 64, AccessFlags { remote_read: true, ..AccessFlags::default() });
    let memory = memory.unwrap();
    let mut work = pair.asking.work(0, pair.answering.memory().read_at(0), 0, 8);
    work.pieces = SgeList::one(memory.piece(0, 8));
    pair.asking.post(&[work]).unwrap();
    let (ended, _) = pair.completions(1, 0);
    assert_eq!(statuses(&ended, b's'), [Other(4)]);
}

#[test]
fn what_a_queue_pair_was_not_made_for_is_refused() {
    let mut lab = Lab::new(10);
    let mut pair = lab.pair();
    let piece = pair.asking.memory().piece(0, 8);
    assert!(pair.asking.receive_into(0, &[piece; 3]).is_err());
    let mut three = pair.asking.work(0, SendOp::Send, 0, 8);
    assert!(three.pieces.push(piece) && three.pieces.push(piece));
    let mut inline = pair.asking.work(0, SendOp::Send, 0, 65);
    inline.inline = true;
    let mut read = pair.asking.work(0, pair.answering.memory().read_at(0), 0, 8);
    read.inline = true;
    for work in [three, inline, read] {
        let refused = pair.asking.post(&[work]).unwrap_err();
        assert_eq!(refused.source.raw_os_error(), Some(libc::EINVAL), "{work:?}");
    }
    assert_eq!(lab.fabric.counters().sends_posted, 0);

    let queue = lab.host.completions(COMPLETIONS).unwrap();
    for spec in [
        EndpointSpec { sends: 0, ..SPEC },
        EndpointSpec { sends: 4_097, ..SPEC },
        EndpointSpec { receives: 4_097, ..SPEC },
        EndpointSpec { send_pieces: 5, ..SPEC },
        EndpointSpec { receive_pieces: 5, ..SPEC },
    ] {
        let route = lab.fabric.route(&lab.host, address());
        assert!(lab.host.open(route, &queue, None, &spec).is_err(), "{spec:?}");
    }
    assert!(lab.host.completions(0).is_err());
    assert!(lab.host.completions(65_537).is_err());
    assert!(Memory::new(&lab.host, 64, AccessFlags { local_write: false, ..ACCESS }).is_err());
}

#[test]
fn sends_wait_for_the_connection() {
    let mut lab = Lab::new(11);
    let memory = Memory::new(&lab.host, 64, ACCESS).unwrap();
    let (asking, queue) = lab.asks(&ASK);
    let device = std::sync::Arc::clone(&lab.host);
    let mut end = nvmeof_verbs_conformance::End::new(device, memory, queue, None, asking);
    end.receive(0, 0, 8).unwrap();
    let work = end.work(0, SendOp::Send, 0, 8);
    let refused = end.post(&[work]).unwrap_err();
    assert_eq!(refused.source.raw_os_error(), Some(libc::EINVAL));
}

#[test]
fn a_device_without_shared_queues_or_memory_says_so() {
    let fabric = Fabric::new(12);
    let options = DeviceOptions::default();
    let limits = DeviceLimits { shared_receives: 0, ..options.limits };
    let options = DeviceOptions { limits, locked_memory: 8_192, ..options };
    let device = fabric.device_with("small", options);
    assert!(device.shared_receives(16, 1).unwrap().is_none());
    let one = Memory::new(&device, 4_096, ACCESS).unwrap();
    let two = Memory::new(&device, 4_096, ACCESS).unwrap();
    let error = Memory::new(&device, 1, ACCESS).unwrap_err();
    assert!(matches!(error, VerbsError::LockedMemory { bytes: 1, .. }));
    assert_eq!((fabric.counters().regions, fabric.counters().registered), (2, 8_192));
    drop(one);
    Memory::new(&device, 4_096, ACCESS).unwrap();
    drop((two, device));
    assert_eq!(living(&fabric), [0; 8]);
}

#[test]
fn queues_live_as_long_as_their_queue_pairs() {
    let lab = Lab::new(14);
    let queue = lab.host.completions(16).unwrap();
    let shared = lab.host.shared_receives(16, 1).unwrap().unwrap();
    let memory = Memory::new(&lab.host, 64, ACCESS).unwrap();
    let route = lab.fabric.route(&lab.host, address());
    let first = lab.host.open(route, &queue, Some(&shared), &SPEC).unwrap();
    let route = lab.fabric.route(&lab.host, address());
    let second = lab.host.open(route, &queue, Some(&shared), &SPEC).unwrap();
    let device = std::sync::Arc::clone(&lab.host);
    let mut end = nvmeof_verbs_conformance::End::new(device, memory, queue, Some(shared), second);
    end.receive(0, 0, 64).unwrap();
    // The shared queue's receives can be used until the last endpoint is gone.
    drop(end);
    assert_eq!(living(&lab.fabric), [2, 1, 1, 1, 0, 0, 1, 0]);
    assert_eq!(lab.fabric.counters().misuses, 1);
    drop(first);
    assert_eq!(living(&lab.fabric), [2, 0, 0, 0, 0, 0, 1, 0]);
}

#[test]
fn a_failure_is_told_where_nothing_else_shows_it() {
    // (shared receives, a device that reports failures, true if the endpoint gets a report)
    for (shared, tells, told) in
        [(false, true, true), (false, false, false), (true, true, true), (true, false, true)]
    {
        let options = DeviceOptions { tells_failures: tells, ..DeviceOptions::default() };
        let mut lab = Lab::with(15, options);
        let mut pair = lab.pair_with(&Setup { shared, ..Setup::default() });
        pair.answering.receive(0, 0, 64).unwrap();
        let operation = SendOp::Read { address: 0, key: 1 };
        let work = pair.asking.work(0, operation, 0, 8);
        pair.asking.post(&[work]).unwrap();
        pair.completions(1, 0);
        pair.pass();
        let events = pair.answering.take_events();
        let expected: &[_] = if told { &[ConnectionEvent::QueuePairError] } else { &[] };
        assert_eq!(events, expected, "{:?}", (shared, tells));
        let flushed: &[_] = if shared { &[] } else { &[Flushed] };
        assert_eq!(statuses(pair.answering.came(), b'r'), flushed);
        // The asking end's failed work reports the failure; with shared receives an event does,
        // too.
        let expected: &[_] = if shared { &[ConnectionEvent::QueuePairError] } else { &[] };
        assert_eq!(pair.asking.take_events(), expected, "{:?}", (shared, tells));
    }
}

#[test]
fn a_failed_queue_pair_says_when_it_takes_no_more_shared_receives() {
    for seed in 0..20 {
        let options = DeviceOptions { fetches_ahead: true, ..DeviceOptions::default() };
        let mut lab = Lab::with(seed, options);
        let mut pair = lab.pair_with(&Setup { shared: true, ..Setup::default() });
        let number = pair.answering.endpoint().number();
        (0..4).for_each(|id| pair.answering.receive(id, 0, 64).unwrap());
        assert_eq!(pair.answering.endpoint().last_receive(), LastWqe::Awaited);
        match seed % 4 {
            1 => lab.fabric.faults().lose_last_receive(number),
            2 => lab.fabric.faults().delay_last_receive(number, 1_000_000_000),
            3 => lab.fabric.faults().hurry_last_receive(number),
            _ => {}
        }
        pair.answering.endpoint().disconnect();
        let early = pair.answering.endpoint().last_receive();
        assert_eq!(early == LastWqe::Reached, seed % 4 == 3, "seed {seed}");
        lab.fabric.advance(900_000_000);
        let later = pair.answering.endpoint().last_receive();
        assert_eq!(later == LastWqe::Reached, matches!(seed % 4, 0 | 3), "seed {seed}");
        lab.fabric.advance(200_000_000);
        let last = pair.answering.endpoint().last_receive();
        assert_eq!(last == LastWqe::Reached, seed % 4 != 1, "seed {seed}");
        // At most the receive that was fetched has completed.
        pair.answering.poll().unwrap();
        let came = statuses(pair.answering.came(), b'r');
        assert!(came.is_empty() || came == [Flushed], "seed {seed}: {came:?}");
        pair.answering.drop_endpoint();
        assert_eq!(lab.fabric.counters().receives_lost, 0, "seed {seed}");
        // Destroying a queue pair without waiting loses the receive that it has fetched.
        pair.asking.receive(9, 0, 64).unwrap();
        pair.asking.endpoint().disconnect();
        pair.asking.drop_endpoint();
        assert_eq!(lab.fabric.counters().receives_lost, 1, "seed {seed}");
    }
}

#[test]
fn memory_deregistered_under_work_is_a_misuse() {
    let mut lab = Lab::new(13);
    let mut pair = lab.pair();
    let memory = Memory::new(&lab.target, 64, ACCESS).unwrap();
    pair.answering.receive_into(0, &[memory.piece(0, 8)]).unwrap();
    drop(memory);
    assert_eq!(lab.fabric.counters().misuses, 1);
}
