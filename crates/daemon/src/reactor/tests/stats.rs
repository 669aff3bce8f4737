//! Reports: what stands where at the moments of a turn, and what was counted by then.

use super::rig::Rig;
use crate::reactor::stats::Stages;

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
    assert_eq!(received, Stages { waiting: 3, ..Stages::default() });
    assert_eq!(admitted, Stages { waiting: 1, on_device: 2, ..Stages::default() });
    assert_eq!(sent, admitted);
    assert_eq!((report.pacer.waiting(), report.pacer.outstanding()), (1, 2));
    let [flow] = &report.flows[..] else { panic!("one flow: {:?}", report.flows) };
    assert_eq!((flow.figures.in_flight, flow.figures.waiting, flow.ended), (2, 1, false));

    rig.faults.release();
    rig.settle();
    assert_eq!(host.statuses().len(), 3);
    let report = rig.report(false);
    assert_eq!(report.stages, [Stages::default(); 3]);
    let [device] = report.counters.devices[..] else { panic!("one device") };
    assert_eq!((device.reads, device.lent), (3, 0));
    let [port] = report.counters.ports[..] else { panic!("one listener") };
    assert_eq!((port.ios, port.completions), (3, port.requests));
    assert!(port.latency >= port.latency_max && port.latency_max > 0, "{port:?}");
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
    // Whoever else asks does not take them away.
    assert!(rig.report(false).flows.is_empty());
    let report = rig.report(true);
    let [flow] = &report.flows[..] else { panic!("one flow: {:?}", report.flows) };
    assert!(flow.ended && flow.queue.as_ref().is_some_and(|queue| queue.qid == 1));
    assert_eq!((flow.figures.granted, flow.figures.over), (1, 1));
    assert!(rig.report(true).flows.is_empty());
    rig.finish([host]);
}
