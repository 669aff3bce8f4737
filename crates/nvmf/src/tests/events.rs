//! Asynchronous events: which are reported, when, and when again.

use nvmeof_wire::aer::AsyncEvent;
use nvmeof_wire::features::Fid;
use nvmeof_wire::log::{GetLogPage, Lid};
use nvmeof_wire::nqn::DISCOVERY_NQN;
use nvmeof_wire::opcode::AdminOpcode;
use nvmeof_wire::{Sgl, Sqe};

use super::support::*;
use crate::{Disposition, TargetSpec};

const NAMESPACE_EVENTS: u32 = 1 << 8;
const DISCOVERY_EVENTS: u32 = 1 << 31;

fn hold(link: &mut Link) {
    let aer = Sqe::admin(AdminOpcode::ASYNC_EVENT_REQUEST, 0, 0);
    assert_eq!(link.send(aer), Disposition::Held);
}

fn configure(link: &mut Link, events: u32) {
    link.run(set_feature(Fid::ASYNC_EVENTS, events), &[]).ok();
}

fn read_log(link: &mut Link, lid: Lid, retain_event: bool) -> Vec<u8> {
    let log = GetLogPage { retain_event, ..GetLogPage::new(lid, 4096) };
    link.run(log.encode(0).with_sgl(Sgl::Transport { length: 4096 }), &[]).ok().data
}

fn changed(link: &mut Link, retain_event: bool) -> Vec<u32> {
    let page = read_log(link, Lid::CHANGED_NAMESPACES, retain_event);
    let nsids = page.chunks(4).map(|bytes| u32::from_le_bytes(bytes.try_into().unwrap()));
    nsids.take_while(|nsid| *nsid != 0).collect()
}

/// The event that completes a held request.
fn event(link: &mut Link) -> Option<u32> {
    link.queue.poll_event().map(|response| {
        assert!(response.cqe.status().is_success());
        response.cqe.dw0()
    })
}

/// [`spec`] with the namespaces of these IDs in the first subsystem.
fn with_namespaces(nsids: &[u32]) -> TargetSpec {
    let mut spec = spec();
    spec.subsystems[0].namespaces = nsids.iter().copied().map(namespace).collect();
    spec
}

#[test]
fn namespace_changes_are_reported_once_until_the_log_is_read() {
    let target = target();
    target.apply(with_namespaces(&[1])).unwrap();
    let (mut link, _) = enabled_admin(&target);
    configure(&mut link, NAMESPACE_EVENTS);
    hold(&mut link);
    hold(&mut link);
    assert_eq!(event(&mut link), None);

    let epoch = target.epoch();
    target.apply(with_namespaces(&[1, 2])).unwrap();
    assert!(target.epoch() > epoch);
    assert_eq!(event(&mut link), Some(AsyncEvent::NAMESPACE_CHANGED.encode()));
    assert_eq!(event(&mut link), None);

    // Masked until the host reads the log.
    target.apply(with_namespaces(&[1, 2, 3])).unwrap();
    assert_eq!(event(&mut link), None);
    assert_eq!(changed(&mut link, true), [2, 3]);
    assert_eq!(event(&mut link), None, "reading with RAE clears nothing");
    assert_eq!(changed(&mut link, false), [2, 3]);
    assert_eq!(changed(&mut link, false), []);
    assert_eq!(event(&mut link), None, "what was read is known");

    target.apply(with_namespaces(&[3])).unwrap();
    assert_eq!(event(&mut link), Some(AsyncEvent::NAMESPACE_CHANGED.encode()));
    assert_eq!(changed(&mut link, false), [1, 2]);
}

#[test]
fn events_wait_for_a_request() {
    let target = target();
    let (mut link, _) = enabled_admin(&target);
    configure(&mut link, NAMESPACE_EVENTS);
    target.apply(with_namespaces(&[1])).unwrap();
    assert_eq!(event(&mut link), None);
    let epoch = target.epoch();
    hold(&mut link);
    assert!(target.epoch() > epoch, "the request can complete at once");
    assert!(event(&mut link).is_some());
    assert_eq!(link.queue.outstanding(), 0);
}

#[test]
fn a_command_may_reuse_the_identifier_of_an_event_request() {
    let target = target();
    let (mut link, _) = enabled_admin(&target);
    configure(&mut link, NAMESPACE_EVENTS);
    let aer = Sqe::admin(AdminOpcode::ASYNC_EVENT_REQUEST, 77, 0);
    assert_eq!(link.queue.handle_command(&aer, 0, 0), Disposition::Held);
    let head = |disposition| answer(disposition).ok().cqe.sqhd.get();
    let get = |cid: u16| Sqe { cid: cid.into(), ..get_feature(Fid::ASYNC_EVENTS) };
    let before = head(link.queue.handle_command(&get(1), 0, 0));
    // The host has dropped the request on its side only.
    let after = head(link.queue.handle_command(&get(77), 0, 0));
    assert_eq!(after, before + 2, "the entry of the request is free again, too");
    assert_eq!(link.queue.outstanding(), 0);
    target.apply(with_namespaces(&[1])).unwrap();
    assert_eq!(event(&mut link), None, "no request is left");
    // Another request takes it over as well.
    assert_eq!(link.queue.handle_command(&aer, 0, 0), Disposition::Held);
    assert_eq!(link.queue.handle_command(&aer, 0, 0), Disposition::Held);
    assert!(event(&mut link).is_some());
    assert_eq!(event(&mut link), None);
}

#[test]
fn events_not_asked_for_are_not_reported() {
    let target = target();
    let (mut link, _) = enabled_admin(&target);
    hold(&mut link);
    target.apply(with_namespaces(&[1])).unwrap();
    assert_eq!(event(&mut link), None);
    assert_eq!(changed(&mut link, false), [2, 3, 4], "the log has it all the same");
    // A reset restores the default, which disables the event, too.
    configure(&mut link, NAMESPACE_EVENTS);
    link.set_cc(enabled().with_en(false)).ok();
    while link.queue.poll_event().is_some() {}
    link.enable();
    hold(&mut link);
    target.apply(spec()).unwrap();
    assert_eq!(event(&mut link), None);
}

#[test]
fn events_from_before_a_reset_are_forgotten() {
    const TEMPERATURE_EVENTS: u32 = 1 << 1;
    let target = target();
    let (mut link, _) = enabled_admin(&target);
    configure(&mut link, NAMESPACE_EVENTS);
    target.apply(with_namespaces(&[1])).unwrap();
    link.set_cc(enabled().with_en(false)).ok();
    link.enable();
    configure(&mut link, NAMESPACE_EVENTS | TEMPERATURE_EVENTS);
    hold(&mut link);
    hold(&mut link);
    assert_eq!(event(&mut link), None);
    assert_eq!(changed(&mut link, false), []);
    // A threshold below the temperature.
    link.run(set_feature(Fid::TEMPERATURE_THRESHOLD, 0x100), &[]).ok();
    assert_eq!(event(&mut link), Some(AsyncEvent::TEMPERATURE.encode()));
    assert_eq!(event(&mut link), None);
}

#[test]
fn every_controller_of_the_subsystem_hears_it_and_no_other() {
    let target = target();
    let (mut first, _) = enabled_admin(&target);
    let (mut second, _) = enabled_admin(&target);
    let (mut other, _) = connect_admin(&target, &ConnectRequest::admin(PRIVATE));
    other.enable();
    for link in [&mut first, &mut second, &mut other] {
        configure(link, NAMESPACE_EVENTS);
        hold(link);
    }
    target.apply(with_namespaces(&[1])).unwrap();
    assert!(event(&mut first).is_some());
    assert!(event(&mut second).is_some());
    assert_eq!(event(&mut other), None);
}

#[test]
fn discovery_changes_reach_the_hosts_they_concern() {
    let target = target();
    let discover = |host: &str| {
        let mut request = ConnectRequest::admin(DISCOVERY_NQN);
        request.host = nqn(host);
        request.command.kato_ms = 30_000;
        let (mut link, _) = connect_admin(&target, &request);
        link.enable();
        configure(&mut link, DISCOVERY_EVENTS);
        hold(&mut link);
        hold(&mut link);
        link
    };
    let mut host = discover(HOST);
    let mut stranger = discover(STRANGER);
    let expected = Some(AsyncEvent::DISCOVERY_CHANGED.encode());

    // Only HOST has access to the private subsystem.
    let mut without = spec();
    without.subsystems.pop();
    assert!(target.apply(without).unwrap().discovery_changed);
    assert_eq!(event(&mut host), expected);
    assert_eq!(event(&mut stranger), None);
    assert!(target.apply(spec()).unwrap().discovery_changed);
    assert_eq!(event(&mut host), None, "masked");
    read_log(&mut host, Lid::DISCOVERY, false);
    assert_eq!(event(&mut host), None);

    // Listeners affect every host.
    let mut fewer_ports = spec();
    fewer_ports.ports.pop();
    target.apply(fewer_ports).unwrap();
    assert_eq!(event(&mut host), expected);
    assert_eq!(event(&mut stranger), expected);

    // Namespaces do not affect the discovery log.
    read_log(&mut host, Lid::DISCOVERY, false);
    let mut spec = spec();
    spec.ports.pop();
    spec.subsystems[0].namespaces.pop();
    assert!(!target.apply(spec).unwrap().discovery_changed);
    assert_eq!(event(&mut host), None);
}

#[test]
fn the_generation_counter_moves_with_the_log() {
    let target = target();
    let generation = || target.registry().discovery_generation;
    let before = generation();
    target.apply(spec()).unwrap();
    assert_eq!(generation(), before);
    let mut fewer = spec();
    fewer.subsystems.pop();
    target.apply(fewer).unwrap();
    assert_eq!(generation(), before + 1);
}
