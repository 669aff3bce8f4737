//! Devices that are added and removed while hosts stay connected.
//!
//! A connection's flow to a device ends with the device.

use nvmeof_nvmf::Failure;
use nvmeof_wire::Status;

use super::KIB;
use super::rig::{BLOCKS, Host, Rig, pattern};
use crate::reactor::stats::{CommandCounters, Report};

/// Blocks of the devices that replace the first one, in turn.
const SIZES: [u64; 2] = [BLOCKS / 2, BLOCKS];

/// Returns the counters of all commands.
fn done(report: &Report) -> CommandCounters {
    let live = report.command_counters.iter().map(|(_, counters)| counters);
    let mut sum = report.closed;
    live.chain(report.past.values()).for_each(|counters| sum.add(counters));
    sum
}

#[test]
fn a_host_that_stays_has_a_device_flow_for_the_device_there_is_however_many_there_were() {
    for budget in [None, Some(64 * u64::from(KIB))] {
        let mut rig = Rig::new(budget);
        let hosts = [rig.connect_io(), rig.connect_io()];
        for round in 0..500 {
            // More than the budget admits.
            for cid in 0..3 {
                hosts.iter().for_each(|host| host.read(cid, 0, 32 * KIB));
            }
            rig.turn_after(0);
            let mut removed = rig.replace_device(SIZES[round % 2]);
            rig.settle();
            assert!(removed.try_recv().is_ok());
            for host in &hosts {
                let statuses = host.statuses();
                assert_eq!(statuses.len(), 3);
                assert!(statuses.iter().all(|(_, status)| *status == Status::SUCCESS));
                host.write_in_capsule(7, SIZES[round % 2] - 8, &pattern(1, 4 * KIB));
            }
            rig.turns(4);
            assert!(hosts.iter().all(|host| host.statuses() == [(7, Status::SUCCESS)]));
            assert_eq!(rig.device_flows(), (2, 2), "after {} devices", round + 2);
        }
        let report = rig.report(false);
        assert_eq!((report.flows.len(), report.counters.devices.len()), (2, 1));
        assert!(report.past.keys().all(|whose| whose.device.is_none()), "{:?}", report.past);
        assert_eq!(done(&report).ops[..2], [2 * 3 * 500, 2 * 500]);
        rig.finish(hosts);
    }
}

/// Connects a host with a read whose device is closed while the read data is still being sent.
///
/// The loopback sends in order. A write for the next device, whose data the host withholds, is
/// before the read.
fn read_of_a_closed_device(rig: &mut Rig, data: &[u8]) -> Host {
    let host = rig.connect_io();
    host.write_in_capsule(1, 0, data);
    rig.turns(4);
    assert_eq!(host.statuses(), [(1, Status::SUCCESS)]);
    rig.faults.hold();
    host.read(2, 0, 4 * KIB);
    rig.turns(4);
    let mut removed = rig.replace_device(SIZES[0]);
    host.write_unoffered(3, 0, 60 * KIB);
    rig.settle();
    assert!(removed.try_recv().is_err(), "the device is at work");
    rig.faults.release();
    rig.settle();
    assert!(removed.try_recv().is_ok(), "the device has nothing more to do");
    assert!(host.statuses().is_empty());
    host
}

/// The permit returns to the flow that it was granted to, and only then the flow ends.
#[test]
fn a_device_flow_stays_until_what_its_device_read_has_been_sent() {
    let mut rig = Rig::new(Some(64 * u64::from(KIB)));
    rig.report(true);
    let data = pattern(3, 4 * KIB);
    let host = read_of_a_closed_device(&mut rig, &data);
    let counts = rig.counts();
    assert_eq!((counts.requests, counts.permits, rig.device_flows()), (2, 2, (2, 2)));

    host.offer(3, pattern(4, 60 * KIB));
    rig.turns(4);
    let answers = host.take();
    let read = answers.iter().find(|answer| answer.cqe.cid.get() == 2).expect("an answer");
    assert_eq!((answers.len(), read.cqe.status(), &read.data), (2, Status::SUCCESS, &data));
    let counts = rig.counts();
    assert_eq!((counts.requests, counts.permits, counts.buffers), (0, 0, 0));
    assert_eq!(rig.device_flows(), (1, 1));

    // The recorder gets the flow once more. The sums keep its counters.
    let report = rig.report(true);
    let flows: Vec<_> = report
        .flows
        .iter()
        .map(|flow| (flow.device.0, flow.ended, flow.figures.completed))
        .collect();
    assert_eq!(flows, [(0, true, 1), (1, false, 1)]);
    assert_eq!((report.closed.ops, &done(&report).ops[..2]), ([1, 1, 0], &[1, 2][..]));
    assert_eq!(rig.report(true).flows.len(), 1);
    rig.finish([host]);
}

/// The connection ends instead, by its host or by the target.
///
/// No permit is lost. Only the sums keep counters of a closed device.
#[test]
fn a_connection_that_ends_takes_the_device_flow_of_a_closed_device_along() {
    for by_host in [true, false] {
        let mut rig = Rig::new(Some(64 * u64::from(KIB)));
        let host = read_of_a_closed_device(&mut rig, &pattern(3, 4 * KIB));
        assert_eq!((rig.counts().permits, rig.device_flows()), (2, (2, 2)));
        if by_host {
            host.close();
        } else {
            rig.close_all();
        }
        rig.settle();
        assert_eq!((rig.counts().permits, rig.device_flows()), (0, (0, 0)));
        let report = rig.report(false);
        assert!(report.past.keys().all(|whose| whose.device != Some(0)), "{:?}", report.past);
        // Data that a leaving host's fabric returns counts as sent.
        assert_eq!(report.closed.ops, [u64::from(by_host), 1, 0]);
        rig.finish([]);
    }
}

/// A missing device is closed immediately, while commands wait for it and more arrive.
///
/// Commands for its namespace fail until another device replaces it.
#[test]
fn a_device_flow_of_a_device_that_is_gone_ends_when_its_place_is_taken() {
    let mut rig = Rig::new(Some(64 * u64::from(KIB)));
    let host = rig.connect_io();
    host.write_unoffered(1, 0, 64 * KIB);
    host.read(2, 0, 64 * KIB);
    rig.turns(4);
    rig.faults.remove();
    let mut removed = rig.remove_device();
    rig.turns(4);
    assert!(removed.try_recv().is_ok());
    assert_eq!((rig.counts().waiting, rig.device_flows()), (1, (1, 1)));
    host.offer(1, pattern(1, 64 * KIB));
    rig.turns(4);
    let gone = Failure::DeviceGone.status();
    assert_eq!(host.statuses(), [(1, gone), (2, gone)]);
    assert_eq!(rig.device_flows(), (0, 0));

    host.read(3, 0, 4 * KIB);
    rig.turns(4);
    assert_eq!(host.statuses(), [(3, gone)]);
    assert_eq!(rig.device_flows(), (1, 1));
    assert!(rig.replace_device(SIZES[0]).try_recv().is_ok());
    assert_eq!(rig.device_flows(), (0, 0));
    host.read(4, 0, 4 * KIB);
    rig.turns(4);
    assert_eq!(host.statuses(), [(4, Status::SUCCESS)]);
    assert_eq!((rig.device_flows(), rig.report(false).counters.devices.len()), ((1, 1), 1));
    rig.finish([host]);
}
