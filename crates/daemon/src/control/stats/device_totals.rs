//! I/O commands by device and by reactor.

use std::collections::BTreeMap;

use nvmeof_nvmf::DeviceId;

use super::{Labels, Sample, done, total};
use crate::reactor::stats::{Class, CommandCounters, CounterKey, Report};

/// Completed I/O commands of all hosts.
#[derive(Debug, Clone, Default)]
pub(crate) struct DeviceCounters {
    /// Time of the daemon's clock in nanoseconds.
    pub(crate) at_ns: u64,
    /// Commands of each reactor, in order.
    pub(crate) completed: Vec<u64>,
    /// Commands by name of the device; a removed device is absent.
    pub(crate) devices: BTreeMap<String, DeviceTotals>,
}

/// Commands on one device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct DeviceTotals {
    /// Reads answered.
    pub(crate) reads: u64,
    /// Writes answered.
    pub(crate) writes: u64,
    /// Bytes of the reads.
    pub(crate) read_bytes: u64,
    /// Bytes of the writes.
    pub(crate) write_bytes: u64,
}

/// Adds up a sample.
pub(in crate::control) fn device_counters(sample: &Sample, labels: &Labels) -> DeviceCounters {
    let mut devices = BTreeMap::<String, DeviceTotals>::new();
    for (whose, counters) in done(&sample.reactors) {
        let Some(name) = whose.device.and_then(|id| labels.known_device(DeviceId(id))) else {
            continue;
        };
        let totals = devices.entry(name.to_owned()).or_default();
        totals.reads += counters.ops[Class::Read as usize];
        totals.writes += counters.ops[Class::Write as usize];
        totals.read_bytes += counters.bytes[Class::Read as usize];
        totals.write_bytes += counters.bytes[Class::Write as usize];
    }
    DeviceCounters {
        at_ns: total(&sample.reactors).at,
        completed: sample.reactors.iter().map(completed).collect(),
        devices,
    }
}

/// Returns the I/O commands that a reactor has completed.
fn completed(report: &Report) -> u64 {
    let live = report.command_counters.iter().map(|(whose, counters)| (whose, counters));
    let io = |(whose, _): &(&CounterKey, &CommandCounters)| whose.device.is_some();
    let all = report.past.iter().chain(live).filter(io).map(|(_, counters)| counters);
    all.chain([&report.closed]).map(|counters| counters.ops.iter().sum::<u64>()).sum()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use nvmeof_wire::{Nqn, Status};

    use super::*;

    #[test]
    fn commands_are_added_up_by_device_and_by_reactor() {
        let nqn = |name: &str| Nqn::new(name).unwrap();
        let whose =
            |host: &str, device| CounterKey { names: Some((nqn("subsystem"), nqn(host))), device };
        let mut labels = Labels::default();
        labels.add_device(DeviceId(3), "disk", Some(("subsystem", 9)));
        let mut counters = CommandCounters::default();
        counters.count(Class::Read, 4096, Status::SUCCESS);
        counters.count(Class::Write, 512, Status::SUCCESS);
        let mut report = Report { at: 5, ..Report::default() };
        // A live host, admin commands, a host that has left, and a device that is removed.
        report.command_counters =
            vec![(whose("a", Some(3)), counters), (whose("a", None), counters)];
        report.past =
            Arc::new([(whose("b", Some(3)), counters), (whose("b", Some(4)), counters)].into());
        report.closed = counters;
        let other = Report::default();
        let sample = Sample { reactors: vec![report, other], ..Sample::default() };
        let all = device_counters(&sample, &labels);
        assert_eq!((all.at_ns, &all.completed[..]), (5, &[8, 0][..]));
        let disk = DeviceTotals { reads: 2, writes: 2, read_bytes: 8192, write_bytes: 1024 };
        assert_eq!(all.devices, [("disk".to_owned(), disk)].into());
    }
}
