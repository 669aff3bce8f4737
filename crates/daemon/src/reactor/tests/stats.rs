//! Reports: requests by stage at three points of a turn, and the counters at that time.

use nvmeof_wire::opcode::IoOpcode;
use nvmeof_wire::{Nqn, Sgl};

use super::rig::{Rig, pattern};
use crate::reactor::stats::{
    Class, CommandCounters, CounterKey, ErrorClass, NAMES_MAX, Report, StageCounts, add_counters,
};

const KIB: u32 = 1024;

#[test]
fn requests_are_counted_at_three_moments_of_the_turn() {
    // Room for two of the reads at a time.
    let mut rig = Rig::new(Some(64 * u64::from(KIB)));
    let host = rig.connect_io();
    rig.faults.hold();
    for cid in 0..3 {
        host.read(cid, u64::from(cid) * 64, 32 * KIB);
    }
    let report = rig.report(false);
    let [received, admitted, sent] = report.stages;
    assert_eq!(received, StageCounts { waiting: 3, ..StageCounts::default() });
    assert_eq!(admitted, StageCounts { waiting: 1, on_device: 2, ..StageCounts::default() });
    assert_eq!(sent, admitted);
    assert_eq!((report.pacer.waiting(), report.pacer.outstanding()), (1, 2));
    let [flow] = &report.flows[..] else { panic!("one flow: {:?}", report.flows) };
    assert_eq!((flow.figures.in_flight, flow.figures.waiting, flow.ended), (2, 1, false));

    rig.faults.release();
    rig.settle();
    assert_eq!(host.statuses().len(), 3);
    let report = rig.report(false);
    assert_eq!(report.stages, [StageCounts::default(); 3]);
    let [device] = &report.counters.devices[..] else { panic!("one device") };
    assert_eq!((device.reads, device.zero_copy_reads), (3, 0));
    let [port] = &report.counters.ports[..] else { panic!("one listener") };
    assert_eq!((port.ios, port.completions), (3, port.requests));
    assert!(port.latency >= port.latency_max && port.latency_max > 0, "{port:?}");
    for latencies in [&port.latencies, &device.latencies] {
        assert_eq!(Class::ALL.map(|class| latencies.of(class).count()), [3, 0, 0]);
        assert_eq!(latencies.of(Class::Read).sum(), port.latency);
    }
    // Their data was sent in the turn in which it arrived.
    assert_eq!(report.counters.wire.count(), 3);
    rig.finish([host]);
}

#[test]
fn flows_that_end_are_kept_for_the_recorder_once() {
    let mut rig = Rig::new(None);
    rig.report(true);
    let host = rig.connect_io();
    host.read(1, 0, 32 * KIB);
    rig.settle();
    host.collect();
    host.close();
    rig.settle();
    // A report for another requester does not remove them.
    assert!(rig.report(false).flows.is_empty());
    let report = rig.report(true);
    let [flow] = &report.flows[..] else { panic!("one flow: {:?}", report.flows) };
    assert!(flow.ended && flow.queue.as_ref().is_some_and(|queue| queue.qid == 1));
    assert_eq!((flow.figures.admitted, flow.figures.completed), (1, 1));
    assert!(rig.report(true).flows.is_empty());
    rig.finish([host]);
}

/// Returns the counters of a device, or of commands answered without one.
fn done(report: &Report, device: Option<u32>) -> CommandCounters {
    let mut sum = CommandCounters::default();
    let live = report.command_counters.iter().map(|(whose, counters)| (whose, counters));
    live.chain(report.past.iter())
        .filter(|(whose, _)| whose.device == device)
        .for_each(|(_, counters)| sum.add(counters));
    sum
}

#[test]
fn what_was_done_for_a_host_is_counted_by_kind_and_kept_when_it_has_gone() {
    let mut rig = Rig::new(None);
    let host = rig.connect_io();
    let connecting = done(&rig.report(false), None);
    host.read(1, 0, 32 * KIB);
    host.write_in_capsule(2, 0, &pattern(3, 4 * KIB));
    host.write_pulled(3, 64, &pattern(3, 32 * KIB));
    host.flush(4);
    // Beyond the end of the namespace: the command is refused before it reaches the device.
    host.raw(IoOpcode::READ, 5, u64::MAX / 1024, Sgl::Transport { length: 512 });
    rig.settle();
    host.compare(6, 0, &pattern(4, 4 * KIB));
    rig.settle();
    assert_eq!(host.statuses().len(), 6);

    let expected = CommandCounters {
        ops: [1, 2, 2],
        bytes: [32 * 1024, 36 * 1024, 0],
        errors: [0, 0, 1, 0, 0],
    };
    let report = rig.report(false);
    assert_eq!(done(&report, Some(0)), expected, "{:?}", report.command_counters);
    let [device] = &report.counters.devices[..] else { panic!("one device") };
    assert_eq!(Class::ALL.map(|class| device.latencies.of(class).count()), expected.ops);
    let refused = done(&report, None).errors[ErrorClass::Generic as usize];
    assert_eq!(refused, connecting.errors[ErrorClass::Generic as usize] + 1);

    let answered = done(&report, None);
    host.close();
    rig.settle();
    let report = rig.report(false);
    assert!(report.command_counters.is_empty(), "{:?}", report.command_counters);
    assert_eq!((done(&report, Some(0)), done(&report, None)), (expected, answered));
    // The names are those of the Connect.
    let whose = report.past.keys().next_back().unwrap();
    let (subsystem, name) = whose.names.as_ref().unwrap();
    assert!(subsystem.as_str().ends_with("test") && name.as_str().ends_with("host"));
    // The counters of a closed device go with it.
    let _gone = rig.remove_device();
    rig.settle();
    let report = rig.report(false);
    assert!(report.counters.devices.is_empty());
    assert_eq!(
        (done(&report, Some(0)), done(&report, None)),
        (CommandCounters::default(), answered)
    );
    rig.finish([]);
}

#[test]
fn hosts_of_ever_new_names_are_added_up_under_none() {
    let mut command_counters = std::collections::BTreeMap::new();
    let mut one = CommandCounters::default();
    one.count(Class::Read, 512, nvmeof_wire::Status::SUCCESS);
    for index in 0..NAMES_MAX + 10 {
        let name = Nqn::new(&format!("nqn.2026-11.org.example:{index}")).unwrap();
        let whose = CounterKey { names: Some((name.clone(), name)), device: Some(1) };
        add_counters(&mut command_counters, whose, &one);
    }
    assert_eq!(command_counters.len(), NAMES_MAX + 1);
    assert_eq!(command_counters[&CounterKey::default()].ops, [10, 0, 0]);
}
