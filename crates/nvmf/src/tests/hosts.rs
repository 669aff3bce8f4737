//! Limits on the queues of one host, and the effect of exceeding them.

use std::collections::BTreeMap;

use nvmeof_wire::Status;
use nvmeof_wire::features::{Fid, NumberOfQueues};

use super::support::*;
use crate::{Failure, HostLimits, HostQuotas, HostUsage, TeardownReason};

fn only(connections: Option<u32>, io_queues: Option<u32>) -> HostQuotas {
    let limits = HostLimits { connections, io_queues };
    HostQuotas { others: HostLimits::default(), named: BTreeMap::from([(nqn(HOST), limits)]) }
}

fn had(target: &crate::Target, host: &str) -> HostUsage {
    let all = target.host_counts();
    all.into_iter()
        .find(|(name, ..)| *name == nqn(host))
        .map_or_else(Default::default, |found| found.1)
}

/// Asserts a status after which hosts retry, and that the queue is unchanged.
#[track_caller]
fn is_refused(link: &mut Link, request: &ConnectRequest, why: Failure) {
    let answer = request.send(link);
    assert_eq!(answer.cqe.status(), Status::CONTROLLER_BUSY);
    assert_eq!(link.queue.connected(), None);
    let told = link.queue.take_refusal().expect("it is told of");
    assert_eq!((told.failure, told.qid), (why, request.command.qid));
    assert_eq!(told.host.as_ref(), Some(&request.host));
    assert!(told.had.is_some());
    assert_eq!(link.queue.take_refusal(), None, "once");
    assert_eq!(link.queue.is_dead(), None, "the host may try again");
}

#[test]
fn a_host_gets_as_many_connections_as_it_may_and_others_are_not_touched() {
    let target = target();
    target.limit_hosts(only(Some(3), None));
    let (_admin, cntlid) = enabled_admin(&target);
    let _first = connect_io(&target, cntlid, 1);
    let second = connect_io(&target, cntlid, 2);
    let mut link = Link::new(&target, PORT);
    is_refused(&mut link, &ConnectRequest::io(cntlid, 3), Failure::HostConnections);
    let mut discovery = ConnectRequest::admin("nqn.2014-08.org.nvmexpress.discovery");
    is_refused(&mut link, &discovery, Failure::HostConnections);
    assert_eq!(had(&target, HOST), HostUsage { connections: 3, io_queues: 2, refused: 2 });

    let mut stranger = Link::new(&target, PORT);
    discovery.host = nqn(STRANGER);
    discovery.send(&mut stranger).ok();
    assert_eq!(had(&target, STRANGER).connections, 1);

    // One queue ends, and the refused connection can take its place.
    drop(second);
    ConnectRequest::io(cntlid, 3).send(&mut link).ok();
    assert_eq!(had(&target, HOST).connections, 3);
}

#[test]
fn a_host_without_room_for_an_io_queue_gets_no_controller_either() {
    let target = target();
    target.limit_hosts(only(None, Some(1)));
    let (mut admin, cntlid) = enabled_admin(&target);
    // The grant equals the host's limit, so the host requests no more.
    let counts = NumberOfQueues::new().with_submission(3).with_completion(3).into_bits();
    let granted = admin.run(set_feature(Fid::NUMBER_OF_QUEUES, counts), &[]).ok().result();
    assert_eq!(granted, 0, "one, 0's based");
    assert!(target.may_add_queue(cntlid));
    let queue = connect_io(&target, cntlid, 1);
    assert!(!target.may_add_queue(cntlid));
    let mut link = Link::new(&target, PORT);
    is_refused(&mut link, &ConnectRequest::admin(SUBSYSTEM), Failure::HostQueues);
    // Discovery needs no I/O queue.
    ConnectRequest::admin("nqn.2014-08.org.nvmexpress.discovery").send(&mut link).ok();
    drop(queue);
    assert!(target.may_add_queue(cntlid));
    let (_other, _) = connect_admin(&target, &ConnectRequest::admin(SUBSYSTEM));
}

#[test]
fn limits_that_change_count_from_the_next_connect_on() {
    let target = target();
    let (_admin, cntlid) = enabled_admin(&target);
    let (_one, _two) = (connect_io(&target, cntlid, 1), connect_io(&target, cntlid, 2));
    target.limit_hosts(only(None, Some(1)));
    let mut link = Link::new(&target, PORT);
    is_refused(&mut link, &ConnectRequest::io(cntlid, 3), Failure::HostQueues);
    assert_eq!(had(&target, HOST).io_queues, 2, "what it has it keeps");
    target.limit_hosts(HostQuotas::default());
    ConnectRequest::io(cntlid, 3).send(&mut link).ok();
    // A Connect that fails for another reason does not count.
    let mut again = Link::new(&target, PORT);
    assert!(!ConnectRequest::io(cntlid, 3).send(&mut again).cqe.status().is_success());
    assert_eq!(had(&target, HOST).io_queues, 3);
}

#[test]
fn nothing_is_kept_of_hosts_that_are_gone() {
    let target = target();
    let others = HostLimits { connections: Some(1), io_queues: None };
    target.limit_hosts(HostQuotas { others, named: BTreeMap::new() });
    for nth in 0..50 {
        let mut request = ConnectRequest::admin(SUBSYSTEM);
        request.host = nqn(&format!("nqn.2026-11.org.example:host-{nth}"));
        let (link, _) = connect_admin(&target, &request);
        is_refused(&mut Link::new(&target, PORT), &request, Failure::HostConnections);
        drop(link);
    }
    assert_eq!(target.host_counts(), []);
}

const DISCOVERY: &str = "nqn.2014-08.org.nvmexpress.discovery";

fn crowded(connections: u32) -> std::sync::Arc<crate::Target> {
    target_with(crate::Limits { connections, ..limits() })
}

/// A discovery controller of host number `nth`, from this address.
fn discover(target: &std::sync::Arc<crate::Target>, nth: usize, peer: &str) -> (Link, Status) {
    let mut link = Link::new(target, PORT);
    link.queue = crate::Queue::new(target, PORT, peer, 0);
    let mut request = ConnectRequest::admin(DISCOVERY);
    request.host = nqn(&format!("nqn.2026-11.org.example:host-{nth}"));
    let status = request.send(&mut link).cqe.status();
    (link, status)
}

#[test]
fn discovery_takes_a_quarter_and_the_oldest_from_a_crowded_address_goes() {
    let target = crowded(16);
    let (kept, status) = discover(&target, 0, "192.0.2.7:1");
    assert_eq!(status, Status::SUCCESS);
    // Any number of controllers, under any number of names.
    let mut flood: Vec<Link> = Vec::new();
    for nth in 1..50 {
        let (link, status) = discover(&target, nth, &format!("192.0.2.1:{nth}"));
        assert_eq!(status, Status::SUCCESS);
        // As the reactor of the connection does.
        flood.retain(|one| one.queue.is_dead().is_none());
        flood.push(link);
        assert!(flood.len() <= 3 + 1, "{}", flood.len());
    }
    assert_eq!(kept.queue.is_dead(), None, "its address has no more than this one");
    let (_late, status) = discover(&target, 99, "[2001:db8::1]:1");
    assert_eq!(status, Status::SUCCESS);
    let (_admin, cntlid) = enabled_admin(&target);
    let _io = connect_io(&target, cntlid, 1);
}

#[test]
fn discovery_controllers_of_as_many_addresses_do_not_push_each_other_out() {
    let target = crowded(16);
    let all: Vec<_> =
        (0..4).map(|nth| discover(&target, nth, &format!("192.0.2.{nth}:1"))).collect();
    assert!(all.iter().all(|(_, status)| status.is_success()));
    let (mut late, status) = discover(&target, 9, "192.0.2.9:1");
    assert_eq!(status, Status::CONTROLLER_BUSY);
    assert_eq!(late.queue.take_refusal().unwrap().failure, Failure::DiscoveryControllers);
    assert!(all.iter().all(|(link, _)| link.queue.is_dead().is_none()));
    // One controller ends, and the refused connection can take its place.
    drop(all.into_iter().next());
    let mut request = ConnectRequest::admin(DISCOVERY);
    request.host = nqn("nqn.2026-11.org.example:host-9");
    request.send(&mut late).ok();
}

#[test]
fn a_host_that_a_subsystem_lists_finds_its_volumes_beside_any_number_of_addresses() {
    let target = crowded(16);
    let all: Vec<_> =
        (0..4).map(|nth| discover(&target, nth, &format!("192.0.2.{nth}:1"))).collect();
    let mut listed = Vec::new();
    for nth in 0..4 {
        let mut link = Link::new(&target, PORT);
        link.queue = crate::Queue::new(&target, PORT, &format!("198.51.100.{nth}:1"), 0);
        // `PRIVATE` lists `HOST`.
        let request = ConnectRequest::admin(DISCOVERY);
        assert_eq!(request.send(&mut link).cqe.status(), Status::SUCCESS);
        listed.push(link);
    }
    assert!(all.iter().all(|(link, _)| link.queue.is_dead() == Some(TeardownReason::MadeRoom)));
    let (_late, status) = discover(&target, 9, "192.0.2.9:1");
    assert_eq!(status, Status::CONTROLLER_BUSY);
    assert!(listed.iter().all(|link| link.queue.is_dead().is_none()));
}

#[test]
fn room_is_kept_for_hosts_that_subsystems_list() {
    let target = crowded(8);
    // `PRIVATE` lists `HOST`. Other hosts use their limit in the open subsystem.
    let mut others = Vec::new();
    for nth in 0..6 {
        let mut request = ConnectRequest::admin(SUBSYSTEM);
        request.host = nqn(&format!("nqn.2026-11.org.example:host-{nth}"));
        others.push(connect_admin(&target, &request));
    }
    let mut request = ConnectRequest::admin(SUBSYSTEM);
    request.host = nqn(STRANGER);
    is_refused(&mut Link::new(&target, PORT), &request, Failure::UnlistedConnections);
    let (_admin, cntlid) = enabled_admin(&target);
    let _io = connect_io(&target, cntlid, 1);
    is_refused(
        &mut Link::new(&target, PORT),
        &ConnectRequest::admin(SUBSYSTEM),
        Failure::TargetConnections,
    );
}

#[test]
fn who_waits_for_connect_is_known_until_then_and_not_for_ever() {
    let target = crowded(8);
    let token = std::sync::Arc::default();
    let mut link = Link::new(&target, PORT);
    link.queue.keep_until_connect(std::sync::Arc::clone(&token));
    assert_eq!(std::sync::Arc::strong_count(&token), 2);
    ConnectRequest::admin(SUBSYSTEM).send(&mut link).ok();
    assert_eq!(std::sync::Arc::strong_count(&token), 1);
    let mut silent = Link::new(&target, PORT);
    silent.queue.keep_until_connect(std::sync::Arc::clone(&token));
    let until = silent.queue.deadline().unwrap();
    silent.queue.handle_timeout(until);
    assert!(silent.queue.is_dead().is_some());
    assert_eq!(std::sync::Arc::strong_count(&token), 1);
}
