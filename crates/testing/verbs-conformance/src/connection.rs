//! End of connections, and wake-up of waiters.

use std::os::fd::BorrowedFd;

use nvmeof_verbs::{CompletionQueue, ConnectionEvent, Device, Endpoint, SendOp, WcStatus};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::{Check, End, Pair, slots};

pub(crate) fn checks<D: Device>() -> Vec<(&'static str, Check<D>)> {
    vec![
        ("a disconnect flushes both ends", a_disconnect_flushes_both_ends),
        ("work under way is flushed in order", work_under_way_is_flushed_in_order),
        ("a dropped endpoint tells the peer", a_dropped_endpoint_tells_the_peer),
        ("a peer that left does not answer", a_peer_that_left_does_not_answer),
        ("completions wake who armed", completions_wake_who_armed),
        ("events wake", events_wake),
    ]
}

/// Waits until both ends have got the one event that the connection ended.
fn both_are_told<D: Device>(pair: &mut Pair<D>) {
    let mut communication_established = (vec![], vec![]);
    pair.until("both being told", |pair| {
        communication_established.0.extend(pair.asking.take_events());
        communication_established.1.extend(pair.answering.take_events());
        !communication_established.0.is_empty() && !communication_established.1.is_empty()
    });
    let told = [ConnectionEvent::Disconnected];
    assert_eq!(
        (&communication_established.0[..], &communication_established.1[..]),
        (&told[..], &told[..])
    );
}

fn a_disconnect_flushes_both_ends<D: Device>(pair: &mut Pair<D>) {
    for end in [&mut pair.asking, &mut pair.answering] {
        for id in 0..4 {
            end.receive(id, 0, 64).expect("a receive");
        }
    }
    pair.asking.endpoint().disconnect();
    pair.asking.endpoint().disconnect();
    both_are_told(pair);
    pair.answering.endpoint().disconnect();
    // Receives of a shared queue stay in that queue.
    let flushed: &[u32] = if pair.asking.is_shared() { &[] } else { &[0, 1, 2, 3] };
    let (here, there) = pair.completions(flushed.len(), flushed.len());
    assert_eq!(slots(&here, b'r', WcStatus::Flushed), flushed);
    assert_eq!(slots(&there, b'r', WcStatus::Flushed), flushed);
    // Work that is posted later is flushed, too.
    let late = pair.asking.work(9, SendOp::Send, 0, 8);
    pair.asking.post(&[late]).expect("a failed queue pair takes work");
    let (here, _) = pair.completions(1, 0);
    assert_eq!(slots(&here, b's', WcStatus::Flushed), [9]);
    for _ in 0..3 {
        pair.pass();
    }
    assert_eq!((pair.asking.take_events(), pair.answering.take_events()), (vec![], vec![]));
}

fn work_under_way_is_flushed_in_order<D: Device>(pair: &mut Pair<D>) {
    let mut chain = Vec::new();
    for id in 0..20 {
        let mut work = pair.asking.work(id, pair.answering.memory().read_at(0), 0, 50_000);
        work.signaled = false;
        chain.push(work);
    }
    // No receive takes this one.
    chain.push(pair.asking.work(20, SendOp::Send, 0, 8));
    pair.asking.post(&chain).expect("a chain");
    pair.asking.endpoint().disconnect();
    pair.until("the last being flushed", |pair| {
        pair.asking.came().last().is_some_and(|completion| completion.id.slot() == 20)
    });
    let flushed = slots(&pair.asking.take(), b's', WcStatus::Flushed);
    assert!(flushed.is_sorted() && flushed.windows(2).all(|two| two[0] + 1 == two[1]));
}

fn a_dropped_endpoint_tells_the_peer<D: Device>(pair: &mut Pair<D>) {
    pair.answering.drop_endpoint();
    pair.until("being told", |pair| pair.asking.take_events() == [ConnectionEvent::Disconnected]);
}

fn a_peer_that_left_does_not_answer<D: Device>(pair: &mut Pair<D>) {
    pair.answering.endpoint().disconnect();
    pair.until("being told", |pair| pair.asking.take_events() == [ConnectionEvent::Disconnected]);
    // The end gets an event, and its queue pair is unchanged: work gets no response.
    let work = pair.asking.work(0, pair.answering.memory().write_at(0), 0, 8);
    pair.asking.post(&[work]).expect("work");
    let (ended, _) = pair.completions(1, 0);
    let statuses = [WcStatus::Unreachable, WcStatus::Flushed];
    assert!(statuses.contains(&ended[0].status), "{ended:?}");
    assert_eq!(pair.answering.memory().bytes(0, 8), [0; 8]);
}

fn readable(fd: BorrowedFd<'_>) -> bool {
    let mut fds = [PollFd::new(&fd, PollFlags::IN)];
    poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).is_ok_and(|count| count == 1)
}

fn send_one<D: Device>(pair: &mut Pair<D>, id: u32) {
    pair.answering.receive(id, 0, 64).expect("a receive");
    let work = pair.asking.work(id, SendOp::Send, 0, 8);
    pair.asking.post(&[work]).expect("a send");
}

fn completions_wake_who_armed<D: Device>(pair: &mut Pair<D>) {
    let woken = |end: &mut End<D>| readable(end.completions().fd());
    // The queue was not armed.
    send_one(pair, 0);
    pair.completions(1, 1);
    assert!(!woken(&mut pair.answering));
    pair.answering.completions().arm().expect("arming");
    for _ in 0..3 {
        pair.pass();
    }
    assert!(!woken(&mut pair.answering));
    send_one(pair, 1);
    pair.until("the descriptor", |pair| woken(&mut pair.answering));
    pair.completions(1, 1);
    // Arming again clears the descriptor, and the next completion sets it again.
    pair.answering.completions().arm().expect("arming");
    assert!(!woken(&mut pair.answering));
    send_one(pair, 2);
    pair.until("the descriptor", |pair| woken(&mut pair.answering));
}

fn events_wake<D: Device>(pair: &mut Pair<D>) {
    let woken = |end: &mut End<D>| end.endpoint().fd().is_none_or(readable);
    if pair.asking.endpoint().fd().is_some() {
        assert!(!woken(&mut pair.asking));
    }
    pair.answering.endpoint().disconnect();
    pair.until("the descriptor", |pair| {
        woken(&mut pair.asking) || !pair.asking.take_events().is_empty()
    });
}
