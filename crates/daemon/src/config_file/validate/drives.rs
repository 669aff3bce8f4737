//! Drives: each namespace serves one device, and all devices of a drive agree.

use std::collections::BTreeMap;

use nvmeof_api::document::DeviceConfig;

use crate::config::report::Report;
use crate::config::table::WrittenTable;
use crate::config::{Device, DeviceKind, Drive};

/// Reports namespaces that are used twice, and drives with conflicting settings.
pub(super) fn each_namespace_once(
    report: &mut Report<'_>,
    devices: &[(Device, &WrittenTable<DeviceConfig>)],
) {
    let mut namespaces: BTreeMap<(&str, u32), usize> = BTreeMap::new();
    let mut drives: BTreeMap<&str, (&Drive, usize)> = BTreeMap::new();
    for (device, written) in devices {
        let DeviceKind::Nvme(drive) = &device.kind else { continue };
        let span = written.at.or_header("pci");
        let line = report.line(&span);
        if let Some(first) = namespaces.insert((&drive.pci, drive.nsid), line) {
            let what = format!("the device of line {first} has namespace {} already", drive.nsid);
            let allowed = "use one device per namespace of a drive, and layer splits on it";
            report.error(&span, "device.pci", what, allowed);
        }
        let (first, at) = drives.entry(&drive.pci).or_insert((drive, line));
        let allowed = "let all namespaces of a drive have the same";
        for (key, same) in [
            ("queue-depth", first.queue_depth == drive.queue_depth),
            ("io-timeout", first.io_timeout == drive.io_timeout),
        ] {
            if !same {
                let what = format!("the device of line {at} has the same drive and another {key}");
                report.error(&span, &format!("device.{key}"), what, allowed);
            }
        }
    }
}
