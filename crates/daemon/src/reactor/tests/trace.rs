//! Traces of commands from capsule to completion.

use std::time::Duration;

use super::rig::{Rig, pattern};
use crate::reactor::trace::{CommandTrace, Filter, State, TraceControl};

const KIB: u32 = 1024;
const MILLI: u64 = 1_000_000;

fn slower_than(slower_than: u64) -> TraceControl {
    TraceControl::On(Filter { slower_than, ..Filter::default() })
}

fn states(trace: &CommandTrace) -> Vec<State> {
    trace.steps.iter().map(|step| step.state).collect()
}

#[test]
fn each_kind_of_command_tells_its_way() {
    let mut rig = Rig::new(None);
    let host = rig.connect_io();
    host.read(9, 0, 4 * KIB);
    rig.settle();
    rig.trace(slower_than(0));
    host.read(1, 0, 4 * KIB);
    host.write_in_capsule(2, 0, &pattern(3, 4 * KIB));
    host.write_pulled(3, 64, &pattern(3, 32 * KIB));
    host.flush(4);
    rig.settle();
    assert_eq!(host.statuses().len(), 5);
    let mut traces = rig.traces().traces;
    traces.sort_by_key(|trace| trace.cid);
    let ways: Vec<_> = traces.iter().map(|trace| (trace.cid, trace.bytes, states(trace))).collect();
    use State::{BufferWait, Capsule, Device, Done, H2cTransfer, Sending, Waiting};
    let expected = [
        (1, 4 * KIB, vec![Capsule, Waiting, BufferWait, Device, Sending, Done]),
        (2, 4 * KIB, vec![Capsule, Waiting, Device, Done]),
        (3, 32 * KIB, vec![Capsule, Waiting, BufferWait, H2cTransfer, Device, Done]),
        (4, 0, vec![Capsule, Waiting, Device, Done]),
    ];
    assert_eq!(ways, expected);
    assert!(
        traces.iter().all(|trace| !trace.truncated && trace.status.is_some_and(|s| s.is_success()))
    );
    // Tracing is off: nothing is traced, and earlier traces are not returned again.
    rig.trace(TraceControl::Off);
    host.read(1, 0, 4 * KIB);
    rig.settle();
    assert!(rig.traces().traces.is_empty());
    rig.finish([host]);
}

#[test]
fn only_what_is_slow_and_asked_for_is_kept() {
    let mut rig = Rig::new(None);
    let host = rig.connect_io();
    rig.trace(slower_than(4 * MILLI));
    host.read(1, 0, 4 * KIB);
    rig.turns_now();
    rig.slow(Duration::from_millis(5), Duration::ZERO);
    host.read(2, 0, 4 * KIB);
    rig.settle();
    let traces = rig.traces().traces;
    let [trace] = &traces[..] else { panic!("one trace: {traces:?}") };
    let at = |state| trace.steps.iter().find(|step| step.state == state).unwrap().at;
    assert_eq!(trace.cid, 2);
    // The time was spent at the device.
    assert!(at(State::Sending) - at(State::Device) >= 5 * MILLI, "{trace:?}");
    assert_eq!(at(State::Device), at(State::Waiting));

    for filter in [
        Filter { nsid: Some(2), ..Filter::default() },
        Filter { opcode: Some(1), ..Filter::default() },
        Filter { host: "nqn.2026-11.org.example:other".parse().ok(), ..Filter::default() },
        Filter { subsystem: "nqn.2026-11.org.example:other".parse().ok(), ..Filter::default() },
    ] {
        rig.trace(TraceControl::On(filter.clone()));
        host.read(3, 0, 4 * KIB);
        rig.settle();
        assert!(rig.traces().traces.is_empty(), "{filter:?}");
        host.collect();
    }
    rig.finish([host]);
}

#[test]
fn a_command_that_waits_for_its_budget_says_so() {
    let mut rig = Rig::new(Some(32 * u64::from(KIB)));
    let host = rig.connect_io();
    rig.trace(slower_than(0));
    rig.faults.hold();
    host.read(1, 0, 32 * KIB);
    host.read(2, 0, 32 * KIB);
    rig.turns(3);
    rig.faults.release();
    rig.settle();
    let traces = rig.traces().traces;
    let waited = |cid| {
        let trace = traces.iter().find(|trace| trace.cid == cid).unwrap();
        let at = |state| trace.steps.iter().find(|step| step.state == state).unwrap().at;
        at(State::BufferWait) - at(State::Waiting)
    };
    assert_eq!((waited(1), waited(2) >= 3 * MILLI), (0, true), "{traces:?}");
    rig.finish([host]);
}

#[test]
fn a_command_whose_host_goes_ends_without_a_status() {
    let mut rig = Rig::new(None);
    let host = rig.connect_io();
    rig.trace(slower_than(0));
    rig.faults.hold();
    host.read(1, 0, 4 * KIB);
    rig.turns(3);
    host.close();
    rig.turns(3);
    rig.faults.release();
    rig.settle();
    let traces = rig.traces().traces;
    let [trace] = &traces[..] else { panic!("one trace: {traces:?}") };
    assert_eq!((trace.status, states(trace).last()), (None, Some(&State::Done)));
    rig.finish([host]);
}
