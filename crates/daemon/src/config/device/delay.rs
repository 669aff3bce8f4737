//! Devices of type "delay".

use std::time::Duration;

use nvmeof_api::document::device::DelayKeys;
use nvmeof_core::block::Latency;

use super::{DeviceKind, Names};
use crate::config::report::Report;
use crate::config::table::Positions;
use crate::config::values::{self, integer};

/// Maximum latency. Hosts abort a command after 30 s or more.
const LATENCY_MAX: Duration = Duration::from_secs(10);

/// Validates a device of type "delay".
pub(super) fn delay(
    report: &mut Report<'_>,
    keys: &DelayKeys,
    at: &Positions,
    names: &Names<'_>,
) -> Option<DeviceKind> {
    let mut latency = |name: &str, value: &Option<String>| {
        let (key, most) = (at.key(name, value), LATENCY_MAX);
        values::latency(report, &format!("device.{name}"), &key, most, Duration::ZERO)
    };
    let read = latency("read-latency", &keys.read_latency);
    let write = latency("write-latency", &keys.write_latency);
    let read_jitter = latency("read-jitter", &keys.read_jitter);
    let write_jitter = latency("write-jitter", &keys.write_jitter);
    if [read, write, read_jitter, write_jitter] == [Some(Duration::ZERO); 4] {
        let what = "no latency is set: no delay is added";
        let allowed = "set read-latency or write-latency, as \"1ms\"";
        report.warning(&at.header, "device.read-latency", what, allowed);
    }
    let base = names.base(report, at, &keys.base);
    let seed = at.key("seed", &keys.seed);
    let seed = integer(report, "device.seed", &seed, 0, 0..=i64::MAX.unsigned_abs());
    let latency = Latency {
        read: read?,
        write: write?,
        read_jitter: read_jitter?,
        write_jitter: write_jitter?,
    };
    Some(DeviceKind::Delay { base: base?, latency, seed })
}
