//! Work that fails: the queue pair at fault fails, and everything posted behind it is flushed.

use nvmeof_verbs::{AccessFlags, ConnectionEvent, Device, SendOp, SendWr, SgeList, WcStatus};

use crate::{ACCESS, Check, Memory, Pair, pattern, slots, statuses};

pub(crate) fn checks<D: Device>() -> Vec<(&'static str, Check<D>)> {
    vec![
        ("a wrong remote key fails both", a_wrong_remote_key_fails_both),
        ("a byte too many fails both", a_byte_too_many_fails_both),
        ("rights are kept", rights_are_kept),
        ("a deregistered key is dead", a_deregistered_key_is_dead),
        ("a wrong local key fails the queue pair", a_wrong_local_key_fails_the_queue_pair),
        ("a receive that is too short fails both", a_receive_that_is_too_short_fails_both),
        ("a receive with a wrong key fails both", a_receive_with_a_wrong_key_fails_both),
        ("what ended before a failure ended well", what_ended_before_a_failure_ended_well),
    ]
}

/// Posts `work` and a write behind it from the asking end. The first has to end with `status`, the
/// other flushed, and the peer has to fail if `both`.
fn fails<D: Device>(pair: &mut Pair<D>, work: SendWr, status: Option<WcStatus>, both: bool) {
    if !pair.answering.is_shared() {
        pair.answering.receive(90, 4_096, 64).expect("a receive");
    }
    let behind = pair.asking.work(91, pair.answering.memory().write_at(0), 0, 8);
    pair.asking.post(&[work, behind]).expect("a chain");
    let (ended, _) = pair.completions(2, 0);
    let got = statuses(&ended, b's');
    assert_eq!(got.len(), 2, "{ended:?}");
    assert_eq!(got[1], WcStatus::Flushed, "{ended:?}");
    match status {
        Some(status) => assert_eq!(got[0], status),
        None => assert!(matches!(got[0], WcStatus::Other(_)), "{got:?}"),
    }
    let mut events = pair.answering.take_events();
    if both {
        pair.until("the peer's failure", |pair| {
            events.extend(pair.answering.take_events());
            events.contains(&ConnectionEvent::QueuePairError) || pair.answering.has_failures()
        });
    } else {
        pair.pass();
        assert!(!pair.answering.has_failures());
        assert_eq!(pair.answering.take_events(), []);
    }
}

fn a_wrong_remote_key_fails_both<D: Device>(pair: &mut Pair<D>) {
    let peer = pair.answering.memory();
    let operation = SendOp::Write { address: peer.address(0), key: peer.rkey() ^ 0x5a5a_0000 };
    let work = pair.asking.work(0, operation, 0, 16);
    fails(pair, work, Some(WcStatus::RemoteAccess), true);
}

fn a_byte_too_many_fails_both<D: Device>(pair: &mut Pair<D>) {
    let peer = pair.answering.memory();
    let operation = peer.read_at(peer.len() - 100);
    let work = pair.asking.work(0, operation, 0, 101);
    fails(pair, work, Some(WcStatus::RemoteAccess), true);
}

fn rights_are_kept<D: Device>(pair: &mut Pair<D>) {
    let readable = AccessFlags { remote_write: false, ..ACCESS };
    let mut closed = Memory::new(pair.answering.device(), 4_096, readable).expect("memory");
    closed.fill(0, &pattern(6, 64));
    let read = pair.asking.work(0, closed.read_at(0), 0, 64);
    pair.asking.post(&[read]).expect("a read");
    let (ended, _) = pair.completions(1, 0);
    assert_eq!(slots(&ended, b's', WcStatus::Success), [0]);
    assert_eq!(pair.asking.memory().bytes(0, 64), pattern(6, 64));
    let write = pair.asking.work(1, closed.write_at(0), 4_096, 64);
    fails(pair, write, Some(WcStatus::RemoteAccess), true);
    assert_eq!(closed.bytes(0, 64), pattern(6, 64));
}

fn a_deregistered_key_is_dead<D: Device>(pair: &mut Pair<D>) {
    let memory = Memory::new(pair.answering.device(), 4_096, ACCESS).expect("memory");
    let operation = memory.write_at(0);
    drop(memory);
    let work = pair.asking.work(0, operation, 0, 16);
    fails(pair, work, Some(WcStatus::RemoteAccess), true);
}

fn a_wrong_local_key_fails_the_queue_pair<D: Device>(pair: &mut Pair<D>) {
    let mut work = pair.asking.work(0, pair.answering.memory().write_at(0), 0, 16);
    let mut piece = pair.asking.memory().piece(0, 16);
    piece.lkey ^= 0x5a5a_0000;
    work.pieces = SgeList::one(piece);
    fails(pair, work, None, false);
}

fn a_receive_that_is_too_short_fails_both<D: Device>(pair: &mut Pair<D>) {
    pair.answering.receive(0, 0, 63).expect("a receive");
    let work = pair.asking.work(0, SendOp::Send, 0, 64);
    fails(pair, work, None, true);
    let received = pair.answering.take();
    let first = received.first().map(|completion| (completion.id.slot(), completion.status));
    assert!(matches!(first, Some((0, WcStatus::Other(_)))), "{received:?}");
}

fn a_receive_with_a_wrong_key_fails_both<D: Device>(pair: &mut Pair<D>) {
    let mut piece = pair.answering.memory().piece(0, 64);
    piece.lkey ^= 0x5a5a_0000;
    pair.answering.receive_into(0, &[piece]).expect("a receive");
    let work = pair.asking.work(0, SendOp::Send, 0, 64);
    fails(pair, work, None, true);
}

fn what_ended_before_a_failure_ended_well<D: Device>(pair: &mut Pair<D>) {
    pair.asking.memory_mut().fill(0, &pattern(7, 64));
    let mut chain = Vec::new();
    for id in 0..6 {
        let write = pair.answering.memory().write_at(64 * id as usize);
        chain.push(pair.asking.work(id, write, 0, 64));
    }
    let peer = pair.answering.memory();
    let beyond = SendOp::Write { address: peer.address(peer.len()), key: peer.rkey() };
    chain[3] = pair.asking.work(3, beyond, 0, 64);
    pair.asking.post(&chain).expect("a chain");
    let (ended, _) = pair.completions(6, 0);
    let (well, failed) = (WcStatus::Success, WcStatus::RemoteAccess);
    let flushed = WcStatus::Flushed;
    assert_eq!(statuses(&ended, b's'), [well, well, well, failed, flushed, flushed]);
    let ids: Vec<_> = ended.iter().map(|completion| completion.id.slot()).collect();
    assert_eq!(ids, [0, 1, 2, 3, 4, 5]);
    assert_eq!(pair.answering.memory().bytes(128, 64), pattern(7, 64));
    assert_eq!(pair.answering.memory().bytes(256, 64), [0; 64]);
}
