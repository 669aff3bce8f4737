//! Devices of type "nvme".

use std::collections::BTreeMap;
use std::time::Duration;

use nvmeof_core::pci::Address;
use toml::Spanned;

use super::super::raw::RawDevice;
use super::super::report::{Report, Span};
use super::defaults;
use super::values::{duration, integer, required};
use crate::config::{Device, DeviceKind, Drive};

const PCI_FORM: &str =
    "allowed: a PCI address, as \"0000:01:00.0\"; `nvmeof-tgt drives list` shows them";

/// Broadcast NSID: the Base specification uses it for all namespaces.
const NSID_ALL: u32 = 0xffff_ffff;
const QUEUE_DEPTH_MAX: u16 = 4096;

/// Validates a device of type "nvme".
pub(super) fn drive(report: &mut Report<'_>, header: &Span, raw: &RawDevice) -> Option<DeviceKind> {
    let nsid = integer(report, "device.nsid", &raw.nsid, defaults::DRIVE_NSID, 1..=NSID_ALL - 1);
    let queue_depth = integer(
        report,
        "device.queue-depth",
        &raw.queue_depth,
        defaults::DRIVE_QUEUE_DEPTH,
        2..=QUEUE_DEPTH_MAX,
    );
    let bounds = Duration::from_secs(1)..=Duration::from_secs(600);
    let io_timeout =
        duration(report, "device.io-timeout", &raw.io_timeout, defaults::DRIVE_TIMEOUT, bounds);
    let value = required(report, header, "device.pci", &raw.pci, PCI_FORM)?;
    match value.get_ref().parse::<Address>() {
        Ok(address) => {
            let pci = address.to_string();
            Some(DeviceKind::Nvme(Drive { pci, nsid, queue_depth, io_timeout }))
        }
        Err(_) => {
            let what = format!("\"{}\" is no PCI address", value.get_ref());
            report.error(&value.span(), "device.pci", what, PCI_FORM);
            None
        }
    }
}

/// Reports namespaces that are used twice, and drives with conflicting settings.
pub(super) fn each_namespace_once(
    report: &mut Report<'_>,
    devices: &[(Device, &Spanned<RawDevice>)],
) {
    let mut namespaces: BTreeMap<(&str, u32), usize> = BTreeMap::new();
    let mut drives: BTreeMap<&str, (&Drive, usize)> = BTreeMap::new();
    for (device, raw) in devices {
        let DeviceKind::Nvme(drive) = &device.kind else { continue };
        let raw = raw.get_ref();
        let span = raw.pci.as_ref().map_or(0..0, Spanned::span);
        let line = report.line(&span);
        if let Some(first) = namespaces.insert((&drive.pci, drive.nsid), line) {
            let what = format!("the device of line {first} has namespace {} already", drive.nsid);
            let allowed = "give each namespace of a drive one device; stand splits on it";
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
