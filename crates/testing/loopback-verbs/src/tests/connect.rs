//! Connections: request, reply and end.

use std::sync::Arc;

use nvmeof_verbs::{
    AcceptParams, ConnectParams, ConnectionEvent, Device, Endpoint, PendingConnection,
};
use nvmeof_verbs_conformance::{COMPLETIONS, SPEC};

use super::fixture::{ANSWER, ASK, Lab, address, living, opened};
use crate::{
    LoopbackDevice, LoopbackEndpoint, NO_ANSWER, NOBODY_LISTENS, REFUSED, REJECT_DATA, REPLY_DATA,
    REQUEST_DATA,
};

fn rejected(endpoint: &mut LoopbackEndpoint) -> (i32, Vec<u8>) {
    match endpoint.next_event() {
        Some(ConnectionEvent::Rejected { status, private_data }) => {
            (status, private_data.as_slice().to_vec())
        }
        other => panic!("not rejected: {other:?}"),
    }
}

fn padded(data: &[u8], size: usize) -> Vec<u8> {
    let mut bytes = data.to_vec();
    bytes.resize(size, 0);
    bytes
}

#[test]
fn private_data_and_depths_go_both_ways() {
    let mut lab = Lab::new(1);
    let (mut asking, _held) = lab.asks(&ConnectParams { reads_out: 3, reads_in: 5, ..ASK });
    let ticket = lab.listener.next_ticket().unwrap();
    assert_eq!(ticket.private_data().as_slice(), padded(b"ask", REQUEST_DATA));
    assert_eq!(ticket.reads(), (3, 5));
    assert_eq!(ticket.local(), address());
    assert_eq!(ticket.peer().ip(), lab.host.address());
    assert!(Arc::ptr_eq(ticket.device(), &lab.target));
    let (mut answering, _queue) = opened(&lab.target, ticket);
    answering.accept(&AcceptParams { reads_out: 4, reads_in: 2, ..ANSWER }).unwrap();
    lab.fabric.settle();
    // The asking side has not taken its event, so the other is not established yet.
    assert_eq!(answering.next_event(), None);
    let Some(ConnectionEvent::Established { private_data, reads_out }) = asking.next_event() else {
        panic!("not established")
    };
    assert_eq!(private_data.as_slice(), padded(b"answer", REPLY_DATA));
    assert_eq!(reads_out, 2);
    lab.fabric.settle();
    let Some(ConnectionEvent::Established { private_data, reads_out }) = answering.next_event()
    else {
        panic!("not established")
    };
    assert_eq!((private_data.as_slice(), reads_out), (&[][..], 0));
}

#[test]
fn a_rejection_brings_its_data() {
    let mut lab = Lab::new(2);
    let before = living(&lab.fabric);
    let (mut asking, held) = lab.asks(&ASK);
    lab.listener.next_ticket().unwrap().reject(&[6, 0]);
    lab.fabric.settle();
    assert_eq!(rejected(&mut asking), (REFUSED, padded(&[6, 0], REJECT_DATA)));
    drop((asking, held));
    assert_eq!(living(&lab.fabric), before);
    let (mut asking, _held) = lab.asks(&ASK);
    drop(lab.listener.next_ticket().unwrap());
    lab.fabric.settle();
    assert_eq!(rejected(&mut asking), (REFUSED, vec![0; REJECT_DATA]));
    // An endpoint that is opened and dropped leaves no trace.
    let (mut asking, _held) = lab.asks(&ASK);
    let ticket = lab.listener.next_ticket().unwrap();
    drop(opened(&lab.target, ticket));
    lab.fabric.settle();
    assert_eq!(rejected(&mut asking).0, REFUSED);
    assert_eq!(asking.next_event(), None);
}

#[test]
fn without_a_listener_nobody_is_there() {
    let mut lab = Lab::new(3);
    let (mut waiting, _held) = lab.asks(&ASK);
    let Lab { fabric, host, listener, .. } = lab;
    assert_eq!(fabric.counters().tickets, 1);
    // The waiting request is rejected; a later one finds no listener.
    drop(listener);
    let (mut late, _queue) = opened(&host, fabric.route(&host, address()));
    late.connect(&ASK).unwrap();
    fabric.settle();
    assert_eq!(rejected(&mut waiting).0, REFUSED);
    assert_eq!(rejected(&mut late).0, NOBODY_LISTENS);
    drop((waiting, late));
    assert_eq!((fabric.counters().tickets, fabric.counters().connections), (0, 0));
}

#[test]
fn patience_ends() {
    let mut lab = Lab::new(4);
    let (mut asking, _held) = lab.asks(&ASK);
    let ticket = lab.listener.next_ticket().unwrap();
    assert_eq!(asking.next_event(), None);
    lab.fabric.advance(lab.fabric.costs().patience);
    assert_eq!(asking.next_event(), Some(ConnectionEvent::Failed { status: NO_ANSWER }));
    // A later accept gets a rejection, because the asking side is gone.
    let (mut answering, _queue) = opened(&lab.target, ticket);
    answering.accept(&ANSWER).unwrap();
    lab.fabric.settle();
    assert_eq!(rejected(&mut answering).0, REFUSED);
    assert_eq!((asking.next_event(), answering.next_event()), (None, None));
}

#[test]
fn who_does_not_take_the_reply_is_given_up() {
    let mut lab = Lab::new(5);
    let (mut asking, _held) = lab.asks(&ASK);
    let ticket = lab.listener.next_ticket().unwrap();
    let (mut answering, _queue) = opened(&lab.target, ticket);
    answering.accept(&ANSWER).unwrap();
    lab.fabric.settle();
    assert_eq!(answering.next_event(), None);
    lab.fabric.advance(lab.fabric.costs().patience);
    assert_eq!(answering.next_event(), Some(ConnectionEvent::Failed { status: NO_ANSWER }));
    drop(answering);
    // Taking the event later reports that the peer is gone.
    assert!(matches!(asking.next_event(), Some(ConnectionEvent::Established { .. })));
    lab.fabric.settle();
    assert_eq!(asking.next_event(), Some(ConnectionEvent::Disconnected));
    assert_eq!(asking.next_event(), None);
}

#[test]
fn a_host_that_went_away_refuses_the_reply() {
    // Before the request arrives, before it is opened, before it is accepted, before the reply.
    for stage in 0..4 {
        let mut lab = Lab::new(6);
        let before = living(&lab.fabric);
        let (asking, held) = lab.asks_only(&ASK);
        let mut asking = Some(asking);
        let mut leave = |now: bool| {
            if now {
                asking = None;
            }
        };
        leave(stage == 0);
        lab.fabric.settle();
        let ticket = lab.listener.next_ticket().unwrap();
        leave(stage == 1);
        let (mut answering, queue) = opened(&lab.target, ticket);
        leave(stage == 2);
        answering.accept(&ANSWER).unwrap();
        leave(stage == 3);
        lab.fabric.settle();
        assert_eq!(rejected(&mut answering).0, REFUSED, "stage {stage}");
        assert_eq!(answering.next_event(), None);
        drop((answering, queue, held));
        assert_eq!(living(&lab.fabric), before, "stage {stage}");
    }
}

#[test]
fn each_side_hears_of_the_end_once() {
    for seed in 0..40 {
        let mut lab = Lab::new(seed);
        let mut pair = lab.pair();
        // Both ends at the same time, or one before the other gets its message.
        pair.asking.endpoint().disconnect();
        lab.fabric.advance(seed * 200);
        pair.answering.endpoint().disconnect();
        for _ in 0..3 {
            pair.pass();
        }
        let told = [ConnectionEvent::Disconnected];
        assert_eq!(pair.asking.take_events(), told, "seed {seed}");
        assert_eq!(pair.answering.take_events(), told, "seed {seed}");
    }
}

#[test]
fn leaving_before_the_reply_is_taken_rejects_it() {
    let mut lab = Lab::new(7);
    let (mut asking, _held) = lab.asks(&ASK);
    let ticket = lab.listener.next_ticket().unwrap();
    let (mut answering, _queue) = opened(&lab.target, ticket);
    answering.accept(&ANSWER).unwrap();
    lab.fabric.settle();
    asking.disconnect();
    lab.fabric.settle();
    assert_eq!(asking.next_event(), None);
    assert_eq!(rejected(&mut answering).0, REFUSED);
}

#[test]
fn a_target_that_leaves_at_once_is_heard_in_order() {
    let mut lab = Lab::new(8);
    let (mut asking, _held) = lab.asks(&ASK);
    let ticket = lab.listener.next_ticket().unwrap();
    let (mut answering, _queue) = opened(&lab.target, ticket);
    answering.accept(&ANSWER).unwrap();
    drop(answering);
    lab.fabric.settle();
    assert!(matches!(asking.next_event(), Some(ConnectionEvent::Established { .. })));
    assert_eq!(asking.next_event(), Some(ConnectionEvent::Disconnected));
    asking.disconnect();
    lab.fabric.settle();
    assert_eq!(asking.next_event(), None);
}

#[test]
fn what_makes_no_sense_is_refused() {
    let mut lab = Lab::new(9);
    let device = |lab: &Lab| -> Arc<LoopbackDevice> { Arc::clone(&lab.host) };
    let long = [0; REPLY_DATA + 1];
    let bad = [
        ConnectParams { private_data: &long[..REQUEST_DATA + 1], ..ASK },
        ConnectParams { reads_out: 17, ..ASK },
        ConnectParams { reads_in: 17, ..ASK },
        ConnectParams { retries: 8, ..ASK },
        ConnectParams { rnr_retries: 8, ..ASK },
    ];
    let (mut asking, _queue) = opened(&lab.host, lab.fabric.route(&lab.host, address()));
    assert!(asking.accept(&ANSWER).is_err());
    for params in bad {
        assert!(asking.connect(&params).is_err(), "{params:?}");
    }
    asking.connect(&ASK).unwrap();
    assert!(asking.connect(&ASK).is_err());
    lab.fabric.settle();
    let ticket = lab.listener.next_ticket().unwrap();
    // The wrong device returns the ticket.
    let host = device(&lab);
    let queue = host.completions(COMPLETIONS).unwrap();
    let (_, ticket) = host.open(ticket, &queue, None, &SPEC).unwrap_err();
    let (mut answering, _queue) = opened(&lab.target, ticket);
    assert!(answering.connect(&ASK).is_err());
    for params in [
        AcceptParams { private_data: &long, ..ANSWER },
        AcceptParams { reads_out: 17, ..ANSWER },
        AcceptParams { reads_in: 17, ..ANSWER },
        AcceptParams { rnr_retries: 8, ..ANSWER },
    ] {
        assert!(answering.accept(&params).is_err(), "{params:?}");
    }
    answering.accept(&ANSWER).unwrap();
    assert!(answering.accept(&ANSWER).is_err());
    assert!(lab.fabric.listen(&lab.target, address()).is_err());
}

#[test]
fn time_can_follow_the_clock() {
    let mut lab = Lab::new(10);
    let (mut asking, _queue) = opened(&lab.host, lab.fabric.route(&lab.host, address()));
    let time = lab.fabric.follow_clock().unwrap();
    asking.connect(&ASK).unwrap();
    let wait = |fd: std::os::fd::BorrowedFd<'_>| {
        let mut fds = [rustix::event::PollFd::new(&fd, rustix::event::PollFlags::IN)];
        rustix::event::poll(&mut fds, None).unwrap();
    };
    wait(lab.listener.fd());
    lab.listener.next_ticket().unwrap().reject(b"no");
    wait(asking.fd().unwrap());
    assert_eq!(&rejected(&mut asking).1[..2], b"no");
    drop(time);
}
