//! Admin data, and responses that a peer does not read.

use nvmeof_wire::fabrics::{PropertySet, PropertySize};
use nvmeof_wire::identify::{Cns, Identify};
use nvmeof_wire::log::{GetLogPage, Lid};
use nvmeof_wire::nqn::DISCOVERY_NQN;
use nvmeof_wire::opcode::AdminOpcode;
use nvmeof_wire::properties::{Cc, offset};
use nvmeof_wire::{Sgl, Sqe, Status};

use super::super::admin::Admin;
use super::peer::Peer;
use super::rig::{Rig, SUBSYSTEM};

const PAGE: u32 = 1 << 20;
/// Log pages that a peer requests: one fewer than its queue has entries.
const PAGES: u16 = 31;

/// A command that waits for a buffer is plain bytes: it owns no memory, and is small.
const _: () = {
    const fn is_plain<T: Copy>() -> usize {
        size_of::<T>()
    }
    assert!(is_plain::<Admin>() <= 128);
};

fn log_page(cid: u16, lid: Lid, length: u32) -> Sqe {
    let sgl = Sgl::Transport { length };
    GetLogPage::new(lid, length.into()).encode(cid).with_sgl(sgl)
}

/// Attaches a peer with a discovery controller that requests log pages of 1 MiB.
///
/// The peer does not read the responses.
fn greedy(rig: &mut Rig, number: usize) -> Peer {
    let mut peer = rig.attach_tcp();
    let name = format!("nqn.2026-11.org.example:greedy{number}");
    peer.enable(rig, DISCOVERY_NQN, &name, 32);
    for cid in 0..PAGES {
        peer.capsule(log_page(cid, Lid::DISCOVERY, PAGE), &[]);
    }
    rig.until("room in the socket", |_| peer.write());
    rig.turns_now();
    peer
}

/// Returns a host's result for a command, whatever other hosts do.
fn answered(rig: &mut Rig, host: &mut Peer, sqe: Sqe) -> (Status, usize) {
    host.capsule(sqe, &[]);
    rig.until("an answer", |_| {
        host.write();
        host.read();
        !host.responses.is_empty()
    });
    let data = host.data.drain(..).map(|(_, data)| data.len()).sum();
    (host.responses.remove(0).status(), data)
}

#[test]
fn peers_that_do_not_read_hold_little_and_stop_nobody() {
    let mut rig = Rig::new(None);
    let mut host = rig.attach_tcp();
    host.enable(&mut rig, SUBSYSTEM, "nqn.2026-11.org.example:host", 32);
    let mut discoverer = rig.attach_tcp();
    discoverer.enable(&mut rig, DISCOVERY_NQN, "nqn.2026-11.org.example:honest", 32);
    let before = rig.counts().buffers;
    let mut peers: Vec<_> = (0..4).map(|number| greedy(&mut rig, number)).collect();
    let counts = rig.counts();
    assert_eq!(counts.requests, 4 * usize::from(PAGES), "all wait");
    // Discovery controllers leave half of the reservation, which has two buffers.
    assert_eq!(counts.buffers - before, 1);
    // A host with a permission gets large pages, and every peer gets small ones.
    let large = log_page(7, Lid::ERROR_INFORMATION, 64 << 10);
    assert_eq!(answered(&mut rig, &mut host, large), (Status::SUCCESS, 64 << 10));
    for length in [1024, 4096] {
        let small = log_page(7, Lid::DISCOVERY, length);
        let expected = (Status::SUCCESS, length as usize);
        assert_eq!(answered(&mut rig, &mut discoverer, small), expected);
    }
    let identify = Identify::new(Cns::CONTROLLER, 0).encode(8);
    let identify = identify.with_sgl(Sgl::Transport { length: 4096 });
    assert_eq!(answered(&mut rig, &mut discoverer, identify), (Status::SUCCESS, 4096));
    // A peer that ends returns its buffer, and the next peer gets it.
    drop(peers.remove(0));
    rig.turns_now();
    rig.until("the end", |rig| rig.counts().requests == 3 * usize::from(PAGES));
    assert_eq!(rig.counts().buffers - before, 1);
    // Peers that read get all pages that they requested, in order.
    rig.until("every page", |_| {
        peers.iter_mut().for_each(Peer::read);
        peers.iter().all(|peer| peer.responses.len() == usize::from(PAGES))
    });
    for peer in &peers {
        let pages: Vec<_> = peer.data.iter().map(|(cid, data)| (*cid, data.len())).collect();
        let expected: Vec<_> = (0..PAGES).map(|cid| (cid, PAGE as usize)).collect();
        assert!(pages == expected && peer.responses.iter().all(|cqe| cqe.status().is_success()));
    }
    assert_eq!((rig.counts().requests, rig.counts().buffers), (0, before));
}

#[test]
fn a_connection_that_ends_takes_along_what_waits_for_a_buffer() {
    let mut rig = Rig::new(None);
    let before = rig.counts();
    let peers: Vec<_> = (0..3).map(|number| greedy(&mut rig, number)).collect();
    assert_eq!(rig.counts().requests, 3 * usize::from(PAGES));
    drop(peers);
    rig.until("the end", |rig| rig.counts() == before);
}

/// The fabric counts a command until its response; these have none.
#[test]
fn event_requests_without_a_response_take_no_place_in_the_queue() {
    let mut rig = Rig::new(None);
    let mut host = rig.attach_tcp();
    host.enable(&mut rig, SUBSYSTEM, "nqn.2026-11.org.example:host", 32);
    let event_request = |cid| Sqe::admin(AdminOpcode::ASYNC_EVENT_REQUEST, cid, 0);
    let set_cc = |cc: Cc| {
        let value = u64::from(cc.into_bits());
        PropertySet { size: PropertySize::Four, offset: offset::CC, value }.encode(9)
    };
    let enabled = Cc::new().with_en(true).with_iosqes(6).with_iocqes(4);
    for _ in 0..40 {
        // Four of them, each replaced once, and dropped by a reset.
        for cid in [0, 1, 2, 3, 0, 1, 2, 3] {
            host.capsule(event_request(cid), &[]);
        }
        for cc in [enabled.with_en(false), enabled] {
            assert_eq!(answered(&mut rig, &mut host, set_cc(cc)), (Status::SUCCESS, 0));
        }
    }
    assert_eq!(rig.counts().requests, 0);
}

#[test]
fn commands_of_one_host_move_their_data_one_by_one_and_in_order() {
    let mut rig = Rig::new(None);
    let (admin, io) = rig.connect_both();
    let pages = [
        (10, Lid::SMART, 512),
        (11, Lid::ERROR_INFORMATION, 8192),
        (12, Lid::COMMAND_EFFECTS, 4096),
        (13, Lid::CHANGED_NAMESPACES, 1 << 20),
        (14, Lid::FIRMWARE_SLOT, 512),
    ];
    for (cid, lid, length) in pages {
        admin.send(log_page(cid, lid, length), &[]);
    }
    rig.settle();
    let answers: Vec<_> =
        admin.take().iter().map(|one| (one.cqe.cid.get(), one.data.len())).collect();
    assert_eq!(answers, pages.map(|(cid, _, length)| (cid, length as usize)));
    rig.finish([admin, io]);
}
