//! Changes from one config to the next: all of it or nothing, and only the differences.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use nvmeof_wire::nqn::DISCOVERY_NQN;

use super::support::*;
use crate::{Access, ApplyError, Changes, NamespaceSpec, Target, TargetSpec, TeardownReason};

#[test]
fn the_same_again_changes_nothing() {
    let target = target();
    let (admin, _) = enabled_admin(&target);
    let epoch = target.epoch();
    let changes = target.apply(spec()).unwrap();
    assert!(changes.is_empty());
    assert_eq!(changes, Changes::default());
    assert_eq!(target.epoch(), epoch);
    assert_eq!(admin.queue.is_dead(), None);
}

#[test]
fn removed_subsystems_take_their_controllers_along() {
    let target = target();
    let (admin, cntlid) = enabled_admin(&target);
    let mut io = connect_io(&target, cntlid, 1);
    let (other, _) = connect_admin(&target, &ConnectRequest::admin(PRIVATE));
    let mut fewer = spec();
    fewer.subsystems.remove(0);
    let changes = target.apply(fewer).unwrap();
    assert_eq!(changes.subsystems_removed, [nqn(SUBSYSTEM)]);
    assert_eq!((changes.controllers_ended, changes.discovery_changed), (1, true));
    assert_eq!(admin.queue.is_dead(), Some(TeardownReason::SubsystemRemoved));
    assert_eq!(io.queue.is_dead(), Some(TeardownReason::SubsystemRemoved));
    assert_eq!(other.queue.is_dead(), None);
    assert_eq!(target.counts().controllers, 1);
    assert_eq!(changes.quiescing.len(), 1);
    drop(io.queue.handle_disconnect());
    assert!(changes.quiescing[0].is_quiet());

    let changes = target.apply(spec()).unwrap();
    assert_eq!(changes.subsystems_added, [nqn(SUBSYSTEM)]);
    assert_eq!(connect_admin(&target, &ConnectRequest::admin(SUBSYSTEM)).1, 1);
}

#[test]
fn another_identity_is_another_subsystem() {
    let target = target();
    let (admin, _) = enabled_admin(&target);
    let mut renamed = spec();
    renamed.subsystems[0].serial = "OTHER".to_owned();
    let changes = target.apply(renamed).unwrap();
    assert_eq!(changes.subsystems_added, [nqn(SUBSYSTEM)]);
    assert_eq!(changes.subsystems_removed, [nqn(SUBSYSTEM)]);
    assert!(!changes.discovery_changed, "the log names neither serial nor model");
    assert_eq!(admin.queue.is_dead(), Some(TeardownReason::SubsystemRemoved));
}

#[test]
fn hosts_no_longer_allowed_lose_their_controllers() {
    let target = target();
    let request = ConnectRequest::admin(SUBSYSTEM);
    let (allowed, _) = connect_admin(&target, &request);
    let mut request = request;
    request.host = nqn(STRANGER);
    let (stranger, _) = connect_admin(&target, &request);
    let mut closed = spec();
    closed.subsystems[0].access = Access::Hosts(BTreeSet::from([nqn(HOST)]));
    let changes = target.apply(closed).unwrap();
    assert_eq!(changes.controllers_ended, 1);
    assert!(changes.discovery_changed);
    assert_eq!(allowed.queue.is_dead(), None);
    assert_eq!(stranger.queue.is_dead(), Some(TeardownReason::HostNotAllowed));
}

#[test]
fn removed_and_changed_ports_take_their_controllers_along() {
    let target = target();
    let (admin, cntlid) = enabled_admin(&target);
    let io = connect_io(&target, cntlid, 1);
    let (discovery, _) = connect_admin(&target, &ConnectRequest::admin(DISCOVERY_NQN));
    let mut other = spec();
    other.ports.pop();
    assert_eq!(target.apply(other.clone()).unwrap().controllers_ended, 0);
    other.ports[0].service = "4500".to_owned();
    let changes = target.apply(other).unwrap();
    assert_eq!(changes.controllers_ended, 2);
    for link in [&admin, &io, &discovery] {
        assert_eq!(link.queue.is_dead(), Some(TeardownReason::PortRemoved));
    }
}

#[test]
fn namespace_changes_are_listed() {
    let target = target();
    let (admin, _) = enabled_admin(&target);
    let mut changed = spec();
    let namespaces = &mut changed.subsystems[0].namespaces;
    namespaces.remove(2);
    namespaces[0].blocks = 2000;
    namespaces.push(namespace(8));
    let changes = target.apply(changed).unwrap();
    let expected = [1, 3, 8].map(|nsid| (nqn(SUBSYSTEM), nsid));
    assert_eq!(changes.namespaces_changed, expected);
    assert!(!changes.discovery_changed);
    assert_eq!(changes.controllers_ended, 0);
    assert_eq!(admin.queue.is_dead(), None);
}

#[test]
fn the_notifier_is_called_after_the_epoch_moved() {
    let target = target();
    let (_admin, _) = enabled_admin(&target);
    let calls = Arc::new(AtomicUsize::new(0));
    let seen = Arc::clone(&calls);
    target.set_notifier(Box::new(move || {
        seen.fetch_add(1, Ordering::Relaxed);
    }));
    target.apply(spec()).unwrap();
    assert_eq!(calls.load(Ordering::Relaxed), 0);
    let epoch = target.epoch();
    target.apply(TargetSpec::default()).unwrap();
    assert!(calls.load(Ordering::Relaxed) > 0);
    assert!(target.epoch() > epoch);
    assert_eq!(target.counts().controllers, 0);
}

/// Breaks a valid spec; none of it may take effect.
#[track_caller]
fn refused(break_it: impl FnOnce(&mut TargetSpec)) -> ApplyError {
    let target = target();
    let (admin, _) = enabled_admin(&target);
    let epoch = target.epoch();
    let mut bad = spec();
    // The valid part would remove the other subsystem and a port.
    bad.subsystems.remove(1);
    bad.ports.remove(1);
    break_it(&mut bad);
    let error = target.apply(bad).unwrap_err();
    assert_eq!(target.epoch(), epoch);
    assert_eq!(admin.queue.is_dead(), None);
    assert_eq!(target.registry().subsystems.len(), 2);
    assert_eq!(target.registry().ports.len(), 2);
    assert!(target.apply(spec()).unwrap().is_empty());
    error
}

#[test]
fn names_are_checked() {
    let error = refused(|spec| spec.subsystems.push(subsystem(SUBSYSTEM, Vec::new())));
    assert_eq!(error, ApplyError::DuplicateNqn(nqn(SUBSYSTEM)));
    let error = refused(|spec| spec.subsystems.push(subsystem(DISCOVERY_NQN, Vec::new())));
    assert_eq!(error, ApplyError::ReservedNqn(nqn(DISCOVERY_NQN)));
    for serial in ["", "123456789012345678901", "tab\t", "\u{e4}"] {
        let error = refused(|spec| spec.subsystems[0].serial = serial.to_owned());
        assert!(matches!(error, ApplyError::BadSerial { .. }), "{error}");
    }
    for model in ["", &"m".repeat(41), "\u{7f}"] {
        let error = refused(|spec| spec.subsystems[0].model = model.to_owned());
        assert!(matches!(error, ApplyError::BadModel { .. }), "{error}");
    }
}

#[test]
fn controller_id_ranges_are_checked() {
    for (min, max) in [(0, 10), (11, 10), (1, 0xfff0), (1, 0)] {
        let error = refused(|spec| {
            spec.subsystems[0].cntlid_min = min;
            spec.subsystems[0].cntlid_max = max;
        });
        assert_eq!(error, ApplyError::BadCntlidRange { nqn: nqn(SUBSYSTEM), min, max });
    }
}

#[test]
fn namespaces_are_checked() {
    fn with(change: impl Fn(&mut NamespaceSpec)) -> ApplyError {
        refused(|spec| change(&mut spec.subsystems[0].namespaces[1]))
    }
    for nsid in [0, u32::MAX] {
        let error = with(|namespace| namespace.nsid = nsid);
        assert_eq!(error, ApplyError::BadNsid { nqn: nqn(SUBSYSTEM), nsid });
    }
    let error = refused(|spec| spec.subsystems[0].namespaces = (1..=1025).map(namespace).collect());
    assert_eq!(error, ApplyError::TooManyNamespaces { nqn: nqn(SUBSYSTEM), count: 1025 });
    let error = with(|namespace| namespace.nsid = 1);
    assert_eq!(error, ApplyError::DuplicateNsid { nqn: nqn(SUBSYSTEM), nsid: 1 });
    for block_size in [0, 256, 513, 131_072] {
        let error = with(|namespace| namespace.block_size = block_size);
        assert!(matches!(error, ApplyError::BadBlockSize { nsid: 2, .. }), "{error}");
    }
    for blocks in [0, u64::MAX, 1 << 51] {
        let error = with(|namespace| namespace.blocks = blocks);
        assert!(matches!(error, ApplyError::BadSize { nsid: 2, .. }), "{error}");
    }
}

#[test]
fn namespace_identifiers_are_unique_over_all_subsystems() {
    let twin = |change: fn(&mut NamespaceSpec, &NamespaceSpec)| {
        refused(|spec| {
            let mut twin = namespace(7);
            change(&mut twin, &namespace(1));
            spec.subsystems.push(subsystem(PRIVATE, vec![twin]));
        })
    };
    for (error, expected) in [
        (twin(|twin, first| twin.uuid = first.uuid), "UUID"),
        (twin(|twin, first| twin.nguid = first.nguid), "NGUID"),
        (twin(|twin, first| twin.eui64 = first.eui64), "EUI64"),
    ] {
        match error {
            ApplyError::DuplicateIdentifier { nsid: 7, identifier, .. } => {
                assert_eq!(identifier, expected);
            }
            other => panic!("{other}"),
        }
    }
    // Missing identifiers are no duplicates.
    let target = Target::new(limits());
    let mut anonymous = spec();
    for namespace in &mut anonymous.subsystems[0].namespaces {
        (namespace.uuid, namespace.nguid, namespace.eui64) = ([0; 16], [0; 16], [0; 8]);
    }
    target.apply(anonymous).unwrap();
}

#[test]
fn ports_are_checked() {
    let error = refused(|spec| spec.ports.push(spec.ports[0].clone()));
    assert_eq!(error, ApplyError::DuplicatePort(PORT));
    let error = refused(|spec| spec.ports[0].address = "a".repeat(257));
    assert!(matches!(error, ApplyError::BadAddress { .. }));
    let error = refused(|spec| spec.ports[0].service = String::new());
    assert!(matches!(error, ApplyError::BadAddress { .. }));
}
