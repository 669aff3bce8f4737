//! Work that succeeds.

use nvmeof_verbs::{Device, Endpoint, SendOp, SgeList, WcStatus};

use crate::{Check, Pair, pattern, slots};

pub(crate) fn checks<D: Device>() -> Vec<(&'static str, Check<D>)> {
    vec![
        ("sends fill the receives in order", sends_fill_the_receives_in_order),
        ("a write is there when the send after it is", a_write_is_there_when_the_send_after_it_is),
        ("reads bring what the peer has", reads_bring_what_the_peer_has),
        ("pieces are gathered and scattered in order", pieces_are_gathered_and_scattered_in_order),
        ("inline bytes may be changed at once", inline_bytes_may_be_changed_at_once),
        ("unsignaled work ends in silence", unsignaled_work_ends_in_silence),
        ("a fence waits for the reads before it", a_fence_waits_for_the_reads_before_it),
        ("a send waits for a receive", a_send_waits_for_a_receive),
        ("both ends send at once", both_ends_send_at_once),
    ]
}

fn sends_fill_the_receives_in_order<D: Device>(pair: &mut Pair<D>) {
    for id in 0..8u32 {
        let offset = 4_096 * id as usize;
        pair.answering.receive(id, offset, 4_096).expect("a receive");
        pair.asking.memory_mut().fill(offset, &pattern(id.to_le_bytes()[0], 4_096));
    }
    for id in 0..8u32 {
        let work = pair.asking.work(id, SendOp::Send, 4_096 * id as usize, 100 * id);
        pair.asking.post(&[work]).expect("a send");
    }
    let (sent, received) = pair.completions(8, 8);
    assert_eq!(slots(&sent, b's', WcStatus::Success), Vec::from_iter(0..8));
    assert_eq!(slots(&received, b'r', WcStatus::Success), Vec::from_iter(0..8));
    for completion in received {
        let id = completion.id.slot();
        assert_eq!((completion.bytes, completion.invalidated), (100 * id, None));
        assert_eq!(completion.queue_pair, pair.answering.endpoint().number());
        let length = 100 * id as usize;
        let came = pair.answering.memory().bytes(4_096 * id as usize, length);
        assert_eq!(came, pattern(id.to_le_bytes()[0], length));
    }
}

fn a_write_is_there_when_the_send_after_it_is<D: Device>(pair: &mut Pair<D>) {
    pair.answering.receive(7, 0, 64).expect("a receive");
    let bytes = pattern(9, 70_000);
    pair.asking.memory_mut().fill(0, &bytes);
    let mut write = pair.asking.work(1, pair.answering.memory().write_at(8_192), 0, 70_000);
    write.signaled = false;
    let send = pair.asking.work(2, SendOp::Send, 0, 16);
    pair.asking.post(&[write, send]).expect("a chain");
    let (_, received) = pair.completions(0, 1);
    assert_eq!(slots(&received, b'r', WcStatus::Success), [7]);
    assert_eq!(pair.answering.memory().bytes(8_192, bytes.len()), bytes);
    let (sent, _) = pair.completions(1, 0);
    assert_eq!(slots(&sent, b's', WcStatus::Success), [2]);
}

fn reads_bring_what_the_peer_has<D: Device>(pair: &mut Pair<D>) {
    // Three times as many as can be outstanding.
    let bytes = pattern(5, 12 * 10_000);
    pair.answering.memory_mut().fill(0, &bytes);
    for id in 0..12u32 {
        let offset = 10_000 * id as usize;
        let read = pair.answering.memory().read_at(offset);
        let work = pair.asking.work(id, read, offset, 10_000);
        pair.asking.post(&[work]).expect("a read");
    }
    let (read, _) = pair.completions(12, 0);
    assert_eq!(slots(&read, b's', WcStatus::Success), Vec::from_iter(0..12));
    assert_eq!(pair.asking.memory().bytes(0, bytes.len()), bytes);
}

fn pieces_are_gathered_and_scattered_in_order<D: Device>(pair: &mut Pair<D>) {
    let pieces = [(5_000, 300), (100, 200)];
    pair.asking.memory_mut().fill(5_000, &pattern(1, 300));
    pair.asking.memory_mut().fill(100, &pattern(2, 200));
    let into = [pair.answering.memory().piece(0, 130), pair.answering.memory().piece(9_000, 4_000)];
    pair.answering.receive_into(0, &into).expect("a receive");
    let mut work = pair.asking.work(0, SendOp::Send, 0, 0);
    work.pieces = SgeList::EMPTY;
    for (offset, length) in pieces {
        assert!(work.pieces.push(pair.asking.memory().piece(offset, length)));
    }
    pair.asking.post(&[work]).expect("a send");
    let (_, received) = pair.completions(1, 1);
    assert_eq!(received[0].bytes, 500);
    let mut came = pair.answering.memory().bytes(0, 130);
    came.extend(pair.answering.memory().bytes(9_000, 370));
    assert_eq!(came, [pattern(1, 300), pattern(2, 200)].concat());
}

fn inline_bytes_may_be_changed_at_once<D: Device>(pair: &mut Pair<D>) {
    let room = pair.asking.endpoint().inline().min(16);
    if room == 0 {
        return;
    }
    pair.answering.receive(0, 0, 64).expect("a receive");
    let bytes = pattern(3, room as usize);
    pair.asking.memory_mut().fill(0, &bytes);
    let mut work = pair.asking.work(0, SendOp::Send, 0, room);
    work.inline = true;
    let mut piece = pair.asking.memory().piece(0, room);
    piece.lkey = 0;
    work.pieces = SgeList::one(piece);
    pair.asking.post(&[work]).expect("a send");
    pair.asking.memory_mut().fill(0, &[0xee; 16]);
    let (_, received) = pair.completions(1, 1);
    assert_eq!(received[0].bytes, room);
    assert_eq!(pair.answering.memory().bytes(0, bytes.len()), bytes);
}

fn unsignaled_work_ends_in_silence<D: Device>(pair: &mut Pair<D>) {
    // More than the queue holds in total: a later completion frees the entries it covers.
    for round in 0..8u32 {
        let mut chain = Vec::new();
        for id in 0..16 {
            let write = pair.answering.memory().write_at(0);
            let mut work = pair.asking.work(16 * round + id, write, 0, 512);
            work.signaled = id == 15;
            chain.push(work);
        }
        pair.asking.post(&chain).expect("a chain");
        let (sent, _) = pair.completions(1, 0);
        assert_eq!(slots(&sent, b's', WcStatus::Success), [16 * round + 15]);
    }
    for _ in 0..3 {
        pair.pass();
    }
    assert_eq!(pair.asking.take(), []);
}

fn a_fence_waits_for_the_reads_before_it<D: Device>(pair: &mut Pair<D>) {
    let bytes = pattern(8, 100_000);
    pair.answering.memory_mut().fill(0, &bytes);
    let mut read = pair.asking.work(0, pair.answering.memory().read_at(0), 0, 100_000);
    read.signaled = false;
    let mut write = pair.asking.work(1, pair.answering.memory().write_at(500_000), 0, 100_000);
    write.fence = true;
    pair.asking.post(&[read, write]).expect("a chain");
    let (ended, _) = pair.completions(1, 0);
    assert_eq!(slots(&ended, b's', WcStatus::Success), [1]);
    assert_eq!(pair.answering.memory().bytes(500_000, bytes.len()), bytes);
}

fn a_send_waits_for_a_receive<D: Device>(pair: &mut Pair<D>) {
    pair.asking.memory_mut().fill(0, &pattern(4, 64));
    for id in 0..3 {
        let work = pair.asking.work(id, SendOp::Send, 0, 64);
        pair.asking.post(&[work]).expect("a send");
    }
    for _ in 0..3 {
        pair.pass();
    }
    assert_eq!(pair.asking.take(), []);
    for id in 0..3 {
        pair.answering.receive(id, 64 * id as usize, 64).expect("a receive");
    }
    let (sent, received) = pair.completions(3, 3);
    assert_eq!(slots(&sent, b's', WcStatus::Success), [0, 1, 2]);
    assert_eq!(slots(&received, b'r', WcStatus::Success), [0, 1, 2]);
    assert_eq!(pair.answering.memory().bytes(128, 64), pattern(4, 64));
}

fn both_ends_send_at_once<D: Device>(pair: &mut Pair<D>) {
    for round in 0..10u32 {
        for id in 0..16 {
            let offset = 64 * id as usize;
            for end in [&mut pair.asking, &mut pair.answering] {
                end.receive(16 * round + id, offset, 64).expect("a receive");
            }
        }
        for id in 0..16 {
            for end in [&mut pair.asking, &mut pair.answering] {
                let work = end.work(16 * round + id, SendOp::Send, 4_096, id);
                end.post(&[work]).expect("a send");
            }
        }
        let (here, there) = pair.completions(32, 32);
        let all = Vec::from_iter(16 * round..16 * (round + 1));
        for came in [here, there] {
            assert_eq!(slots(&came, b's', WcStatus::Success), all);
            assert_eq!(slots(&came, b'r', WcStatus::Success), all);
            let received = came.iter().filter(|completion| completion.id.kind() == b'r');
            assert!(received.map(|completion| completion.bytes).eq(0..16));
        }
    }
}
