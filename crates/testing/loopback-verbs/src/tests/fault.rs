//! Tests that each fault happens as documented, and once.

use std::io;

use nvmeof_verbs::WcStatus::{Flushed, ReceiverNotReady, RemoteAccess, Success, Unreachable};
use nvmeof_verbs::{
    CompletionQueue, ConnectParams, ConnectionEvent, Device, Endpoint, SendOp, VerbsError,
};
use nvmeof_verbs_conformance::{ACCESS, Memory, SPEC, slots, statuses};

use super::fixture::{ASK, Lab, Setup, address, living, opened};
use crate::Side;

#[test]
fn a_lost_completion_is_of_work_that_was_done() {
    let mut lab = Lab::new(1);
    let mut pair = lab.pair();
    let number = pair.asking.endpoint().number();
    lab.fabric.faults().lose_completion(number, Side::Send, 1);
    pair.asking.memory_mut().fill(0, &[7; 8]);
    for id in 0..4u32 {
        let write = pair.answering.memory().write_at(8 * id as usize);
        let work = pair.asking.work(id, write, 0, 8);
        pair.asking.post(&[work]).unwrap();
    }
    let (ended, _) = pair.completions(3, 0);
    assert_eq!(slots(&ended, b's', Success), [0, 2, 3]);
    assert_eq!(pair.answering.memory().bytes(0, 32), [7; 32]);
    assert_eq!(lab.fabric.counters().lost, 1);
    // The entry of the lost completion is free again, because a later one completed.
    assert_eq!(lab.fabric.endpoint(number).unwrap().sends_held, 0);
    // The entry of the last one stays in use.
    lab.fabric.faults().lose_completion(number, Side::Send, 0);
    let work = pair.asking.work(9, pair.answering.memory().write_at(0), 0, 8);
    pair.asking.post(&[work]).unwrap();
    pair.pass();
    assert_eq!(pair.asking.take(), []);
    let counters = lab.fabric.endpoint(number).unwrap();
    assert_eq!((counters.sends_held, counters.sends_waiting), (1, 0));
}

#[test]
fn a_lost_receive_has_its_bytes() {
    for shared in [false, true] {
        let mut lab = Lab::new(2);
        let mut pair = lab.pair_with(&Setup { shared, ..Setup::default() });
        let number = pair.answering.endpoint().number();
        lab.fabric.faults().lose_completion(number, Side::Receive, 0);
        pair.asking.memory_mut().fill(0, &[3; 8]);
        for id in 0..2u32 {
            pair.answering.receive(id, 8 * id as usize, 8).unwrap();
            let work = pair.asking.work(id, SendOp::Send, 0, 8);
            pair.asking.post(&[work]).unwrap();
        }
        let (_, received) = pair.completions(2, 1);
        assert_eq!(slots(&received, b'r', Success), [1]);
        assert_eq!(pair.answering.memory().bytes(0, 16), [3; 16]);
    }
}

#[test]
fn no_receive_for_some_rounds() {
    // (rounds the fault lasts, retries, true if the send arrives)
    for (rounds, retries, arrives) in [(3, 7, true), (3, 3, true), (20, 7, true), (4, 3, false)] {
        let mut lab = Lab::new(3);
        let ask = ConnectParams { rnr_retries: retries, ..ASK };
        let mut pair = lab.pair_with(&Setup { ask, ..Setup::default() });
        let number = pair.asking.endpoint().number();
        lab.fabric.faults().not_ready(number, 1, rounds);
        let start = lab.fabric.now();
        for id in 0..3 {
            pair.answering.receive(id, 0, 8).unwrap();
            let work = pair.asking.work(id, SendOp::Send, 0, 8);
            pair.asking.post(&[work]).unwrap();
        }
        let (sent, _) = pair.completions(3, 1);
        let what = (rounds, retries);
        if arrives {
            assert_eq!(slots(&sent, b's', Success), [0, 1, 2], "{what:?}");
            let waited = lab.fabric.now() - start;
            assert!(waited >= u64::from(rounds) * lab.fabric.costs().not_ready, "{what:?}");
            let counted = lab.fabric.endpoint(number).unwrap().not_ready_rounds;
            assert_eq!(counted, u64::from(rounds));
        } else {
            assert_eq!(statuses(&sent, b's'), [Success, ReceiverNotReady, Flushed]);
        }
    }
}

#[test]
fn without_a_receive_the_rounds_run_out() {
    for retries in [0, 1, 6] {
        let mut lab = Lab::new(4);
        let ask = ConnectParams { rnr_retries: retries, ..ASK };
        let mut pair = lab.pair_with(&Setup { ask, ..Setup::default() });
        let number = pair.asking.endpoint().number();
        let work = pair.asking.work(0, SendOp::Send, 0, 8);
        pair.asking.post(&[work]).unwrap();
        let (sent, _) = pair.completions(1, 0);
        assert_eq!(statuses(&sent, b's'), [ReceiverNotReady]);
        let rounds = lab.fabric.endpoint(number).unwrap().not_ready_rounds;
        assert_eq!(rounds, u64::from(retries));
        // The end without a receive is unchanged.
        assert_eq!(pair.answering.take_events(), []);
    }
}

#[test]
fn a_refused_access_fails_both() {
    let mut lab = Lab::new(5);
    let mut pair = lab.pair();
    lab.fabric.faults().remote_access(pair.asking.endpoint().number(), 1);
    pair.answering.receive(0, 0, 8).unwrap();
    pair.answering.receive(1, 0, 8).unwrap();
    let read = pair.answering.memory().read_at(0);
    // SENDs do not count.
    let chain = [
        pair.asking.work(0, read, 0, 8),
        pair.asking.work(1, SendOp::Send, 0, 8),
        pair.asking.work(2, read, 0, 8),
        pair.asking.work(3, read, 0, 8),
    ];
    pair.asking.post(&chain).unwrap();
    let (ended, received) = pair.completions(4, 2);
    assert_eq!(statuses(&ended, b's'), [Success, Success, RemoteAccess, Flushed]);
    assert_eq!(statuses(&received, b'r'), [Success, Flushed]);
    assert_eq!(pair.answering.take_events(), [ConnectionEvent::QueuePairError]);
    assert_eq!(pair.asking.take_events(), []);
}

#[test]
fn an_unanswered_request_may_have_been_carried_out() {
    let mut done = [0; 2];
    for seed in 0..40 {
        let mut lab = Lab::new(seed);
        let mut pair = lab.pair();
        lab.fabric.faults().unreachable(pair.asking.endpoint().number(), 0);
        pair.asking.memory_mut().fill(0, &[5; 8]);
        let write = pair.answering.memory().write_at(0);
        let chain = [pair.asking.work(0, write, 0, 8), pair.asking.work(1, write, 8, 8)];
        pair.asking.post(&chain).unwrap();
        let start = lab.fabric.now();
        let (ended, _) = pair.completions(2, 0);
        assert_eq!(statuses(&ended, b's'), [Unreachable, Flushed], "seed {seed}");
        assert!(lab.fabric.now() - start >= 4 * lab.fabric.costs().timeout);
        assert_eq!(pair.answering.take_events(), []);
        let wrote = pair.answering.memory().bytes(0, 8) == [5; 8];
        done[usize::from(wrote)] += 1;
    }
    assert!(done[0] > 5 && done[1] > 5, "{done:?}");
}

#[test]
fn a_queue_pair_fails_amid_reads() {
    for seed in 0..20 {
        let mut lab = Lab::new(seed);
        let mut pair = lab.pair();
        lab.fabric.faults().break_at(pair.asking.endpoint().number(), 3);
        pair.answering.memory_mut().fill(0, &[9; 8 * 64]);
        let mut chain = Vec::new();
        for id in 0..8u32 {
            let read = pair.answering.memory().read_at(64 * id as usize);
            chain.push(pair.asking.work(id, read, 64 * id as usize, 64));
        }
        pair.asking.post(&chain).unwrap();
        let (ended, _) = pair.completions(8, 0);
        let (well, flushed) = ([Success; 3], [Flushed; 5]);
        assert_eq!(statuses(&ended, b's'), [&well[..], &flushed[..]].concat(), "seed {seed}");
        assert_eq!(pair.asking.memory().bytes(0, 192), [9; 192]);
        assert_eq!(pair.asking.memory().bytes(7 * 64, 64), [0; 64]);
        assert_eq!(pair.asking.take_events(), [ConnectionEvent::QueuePairError]);
    }
}

#[test]
fn a_chain_is_refused_in_the_middle() {
    let mut lab = Lab::new(6);
    let mut pair = lab.pair();
    lab.fabric.faults().refuse_send(pair.asking.endpoint().number(), 1, 2);
    let write = pair.answering.memory().write_at(0);
    let chain: Vec<_> = (0..4).map(|id| pair.asking.work(id, write, 0, 8)).collect();
    pair.asking.post(&chain).unwrap();
    let refused = pair.asking.post(&chain).unwrap_err();
    assert_eq!((refused.taken, refused.source.kind()), (2, io::ErrorKind::OutOfMemory));
    let (ended, _) = pair.completions(6, 0);
    assert_eq!(slots(&ended, b's', Success), [0, 1, 2, 3, 0, 1]);
    pair.asking.post(&chain).unwrap();
    let (ended, _) = pair.completions(4, 0);
    assert_eq!(slots(&ended, b's', Success), [0, 1, 2, 3]);
}

#[test]
fn a_receive_is_refused() {
    let mut lab = Lab::new(7);
    let mut pair = lab.pair();
    lab.fabric.faults().refuse_receive(pair.asking.endpoint().number(), 1);
    pair.asking.receive(0, 0, 8).unwrap();
    assert!(pair.asking.receive(1, 0, 8).is_err());
    pair.asking.receive(2, 0, 8).unwrap();
}

#[test]
fn registrations_and_queue_pairs_are_refused() {
    let lab = Lab::new(8);
    lab.fabric.faults().refuse_register(&lab.host, 1);
    let one = Memory::new(&lab.host, 64, ACCESS).unwrap();
    let refused = Memory::new(&lab.host, 4_096, ACCESS).unwrap_err();
    let VerbsError::LockedMemory { bytes, device } = refused else { panic!("{refused}") };
    assert_eq!((bytes, &device[..]), (4_096, "host"));
    Memory::new(&lab.target, 64, ACCESS).unwrap();
    Memory::new(&lab.host, 64, ACCESS).unwrap();
    drop(one);

    lab.fabric.faults().refuse_open(&lab.host, 0);
    let queue = lab.host.completions(16).unwrap();
    let route = lab.fabric.route(&lab.host, address());
    let (_, route) = lab.host.open(route, &queue, None, &SPEC).unwrap_err();
    assert_eq!(lab.fabric.counters().tickets, 1);
    let endpoint = lab.host.open(route, &queue, None, &SPEC).unwrap();
    assert_eq!(lab.fabric.counters().tickets, 0);
    drop((endpoint, queue));
    assert_eq!(living(&lab.fabric), [2, 0, 0, 0, 0, 0, 1, 0]);
}

#[test]
fn a_broken_completion_queue_takes_its_queue_pairs_along() {
    let mut lab = Lab::new(9);
    let mut pair = lab.pair();
    pair.asking.receive(0, 0, 8).unwrap();
    lab.fabric.faults().break_completions(pair.asking.completions());
    assert!(pair.asking.poll().is_err());
    assert!(pair.asking.completions().arm().is_err());
    assert_eq!(pair.asking.take_events(), [ConnectionEvent::QueuePairError]);
    pair.pass();
    assert!(pair.asking.poll().is_err());
    // The peer's SEND gets no response.
    let work = pair.answering.work(0, SendOp::Send, 0, 8);
    pair.answering.post(&[work]).unwrap();
    let (_, ended) = pair.completions(0, 1);
    assert_eq!(statuses(&ended, b's'), [Unreachable]);
}

#[test]
fn a_device_goes_away() {
    let mut lab = Lab::new(10);
    let before = living(&lab.fabric);
    let mut pair = lab.pair();
    let work = pair.answering.work(0, SendOp::Send, 0, 8);
    pair.answering.post(&[work]).unwrap();
    pair.pass();
    // It waits for a receive without limit, and that receive can no longer come.
    lab.fabric.faults().remove_device(&lab.host);
    pair.pass();
    assert!(pair.asking.completions().poll(1, &mut Vec::new()).is_err());
    assert_eq!(pair.asking.take_events(), [ConnectionEvent::DeviceRemoved]);
    let (_, ended) = pair.completions(0, 1);
    assert_eq!(statuses(&ended, b's'), [Unreachable]);
    assert!(lab.host.completions(16).is_err());
    assert!(Memory::new(&lab.host, 64, ACCESS).is_err());
    drop(pair);
    lab.fabric.settle();
    assert_eq!(living(&lab.fabric), before);

    let (mut asking, _queue) = opened(&lab.target, lab.fabric.route(&lab.target, address()));
    lab.fabric.faults().remove_device(&lab.target);
    assert_eq!(asking.next_event(), Some(ConnectionEvent::DeviceRemoved));
}

#[test]
fn events_on_demand() {
    let mut lab = Lab::new(11);
    let mut pair = lab.pair();
    let number = pair.asking.endpoint().number();
    lab.fabric.faults().address_changed(number);
    pair.pass();
    assert_eq!(pair.asking.take_events(), [ConnectionEvent::AddressChanged]);
    pair.asking.receive(0, 0, 8).unwrap();
    lab.fabric.faults().queue_pair_error(number);
    let (ended, _) = pair.completions(1, 0);
    assert_eq!(statuses(&ended, b'r'), [Flushed]);
    assert_eq!(pair.asking.take_events(), [ConnectionEvent::QueuePairError]);
}
