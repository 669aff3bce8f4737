//! What every provider of the [seam](crate::seam) has to do, as checks that panic where one does not.
//!
//! A provider's tests make a fresh [`Pair`] for each of the [`checks`]. Sizes a pair needs: [`SPEC`],
//! [`MEMORY`], [`ACCESS`] and [`READS`].

mod rig;

pub use rig::{End, Memory, Pair};

use crate::seam::{ConnectionEvent, Device, Endpoint, EndpointSpec};
use crate::work::{Access, Completion, CompletionStatus, Operation};

/// How the endpoints of a [`Pair`] are opened.
pub const SPEC: EndpointSpec = EndpointSpec {
    sends: 32,
    receives: 32,
    send_pieces: 2,
    receive_pieces: 2,
    inline: 64,
    traffic_class: None,
};

/// Entries of each completion queue.
pub const COMPLETIONS: u32 = 256;

/// Bytes of each end's memory.
pub const MEMORY: usize = 1 << 20;

/// What the memory is registered for.
pub const ACCESS: Access = Access { local_write: true, remote_read: true, remote_write: true };

/// RDMA READs that may be outstanding, each way.
pub const READS: u8 = 4;

/// A check of one property.
pub type Check<D> = fn(&mut Pair<D>);

/// Every check with its name.
#[must_use]
pub fn checks<D: Device>() -> Vec<(&'static str, Check<D>)> {
    vec![
        ("sends fill the receives in order", sends_fill_the_receives_in_order),
        ("a write is there when a send after it is", a_write_is_there_when_a_send_after_it_is),
        ("reads bring what the peer has", reads_bring_what_the_peer_has),
        ("a disconnect flushes both ends", a_disconnect_flushes_both_ends),
    ]
}

/// A pattern that differs by `seed` and place.
#[must_use]
pub fn pattern(seed: u8, length: usize) -> Vec<u8> {
    (0..length).map(|place| seed ^ (place.wrapping_mul(31) >> 3).to_le_bytes()[0]).collect()
}

fn ids(completions: &[Completion], status: CompletionStatus, kind: u8) -> Vec<u32> {
    let of_kind = completions.iter().filter(|completion| completion.id.kind() == kind);
    of_kind
        .map(|completion| {
            assert_eq!(completion.status, status, "{completion:?}");
            completion.id.slot()
        })
        .collect()
}

fn sends_fill_the_receives_in_order<D: Device>(pair: &mut Pair<D>) {
    for id in 0..8u32 {
        let offset = 4_096 * id as usize;
        pair.answering.receive(id, offset, 4_096).expect("a receive");
        pair.asking.memory_mut().fill(offset, &pattern(id.to_le_bytes()[0], 4_096));
    }
    for id in 0..8u32 {
        let work = pair.asking.work(id, Operation::Send, 4_096 * id as usize, 100 * id);
        pair.asking.post(&[work]).expect("a send");
    }
    let (sent, received) = pair.completions(8, 8);
    assert_eq!(ids(&sent, CompletionStatus::Success, b's'), Vec::from_iter(0..8));
    assert_eq!(ids(&received, CompletionStatus::Success, b'r'), Vec::from_iter(0..8));
    for completion in received {
        let id = completion.id.slot();
        assert_eq!(completion.bytes, 100 * id);
        assert_eq!(completion.queue_pair, pair.answering.endpoint().number());
        let length = 100 * id as usize;
        let came = pair.answering.memory().bytes(4_096 * id as usize, length);
        assert_eq!(came, pattern(id.to_le_bytes()[0], length));
    }
}

fn a_write_is_there_when_a_send_after_it_is<D: Device>(pair: &mut Pair<D>) {
    pair.answering.receive(7, 0, 64).expect("a receive");
    let bytes = pattern(9, 70_000);
    pair.asking.memory_mut().fill(0, &bytes);
    let peer = pair.answering.memory();
    let operation = Operation::Write { address: peer.address(8_192), key: peer.rkey() };
    let mut write = pair.asking.work(1, operation, 0, 70_000);
    write.signaled = false;
    let send = pair.asking.work(2, Operation::Send, 0, 16);
    pair.asking.post(&[write, send]).expect("a chain");
    let (sent, received) = pair.completions(1, 1);
    assert_eq!(ids(&sent, CompletionStatus::Success, b's'), [2]);
    assert_eq!(ids(&received, CompletionStatus::Success, b'r'), [7]);
    assert_eq!(pair.answering.memory().bytes(8_192, bytes.len()), bytes);
}

fn reads_bring_what_the_peer_has<D: Device>(pair: &mut Pair<D>) {
    let bytes = pattern(5, 12 * 10_000);
    pair.answering.memory_mut().fill(0, &bytes);
    for id in 0..12u32 {
        let offset = 10_000 * id as usize;
        let peer = pair.answering.memory();
        let operation = Operation::Read { address: peer.address(offset), key: peer.rkey() };
        let work = pair.asking.work(id, operation, offset, 10_000);
        pair.asking.post(&[work]).expect("a read");
    }
    let (read, _) = pair.completions(12, 0);
    assert_eq!(ids(&read, CompletionStatus::Success, b's'), Vec::from_iter(0..12));
    assert_eq!(pair.asking.memory().bytes(0, bytes.len()), bytes);
}

fn a_disconnect_flushes_both_ends<D: Device>(pair: &mut Pair<D>) {
    for end in [&mut pair.asking, &mut pair.answering] {
        for id in 0..4 {
            end.receive(id, 0, 64).expect("a receive");
        }
    }
    pair.asking.endpoint().disconnect();
    pair.asking.endpoint().disconnect();
    let mut heard = (vec![], vec![]);
    pair.until("both being told", |pair| {
        heard.0.extend(pair.asking.take_events());
        heard.1.extend(pair.answering.take_events());
        !heard.0.is_empty() && !heard.1.is_empty()
    });
    let told = [ConnectionEvent::Disconnected];
    assert_eq!((&heard.0[..], &heard.1[..]), (&told[..], &told[..]));
    pair.answering.endpoint().disconnect();
    // What is in a shared queue belongs to that.
    let flushed: &[u32] = if pair.asking.is_shared() { &[] } else { &[0, 1, 2, 3] };
    let (here, there) = pair.completions(flushed.len(), flushed.len());
    assert_eq!(ids(&here, CompletionStatus::Flushed, b'r'), flushed);
    assert_eq!(ids(&there, CompletionStatus::Flushed, b'r'), flushed);
    // What is posted after it is handed back, too.
    let late = pair.asking.work(9, Operation::Send, 0, 8);
    pair.asking.post(&[late]).expect("a failed queue pair takes work");
    let (here, _) = pair.completions(1, 0);
    assert_eq!(ids(&here, CompletionStatus::Flushed, b's'), [9]);
}
