//! Devices of type "nvme".

use std::time::Duration;

use nvmeof_api::document::device::NvmeKeys;
use nvmeof_core::nvme_driver::DEFAULT_IO_TIMEOUT;
use nvmeof_core::pci::Address;

use super::{DeviceKind, Drive};
use crate::config::report::Report;
use crate::config::table::Positions;
use crate::config::values::{duration, integer, required};

const PCI_FORM: &str =
    "allowed: a PCI address, as \"0000:01:00.0\"; `nvmeof-tgt drives list` shows them";

/// Broadcast NSID: the Base specification uses it for all namespaces.
const NSID_ALL: u32 = 0xffff_ffff;
/// Default namespace.
const NSID: u32 = 1;
/// Default entries of a queue.
const QUEUE_DEPTH: u16 = 256;
const QUEUE_DEPTH_MAX: u16 = 4096;

/// Validates a device of type "nvme".
pub(super) fn drive(
    report: &mut Report<'_>,
    keys: &NvmeKeys,
    at: &Positions,
) -> Option<DeviceKind> {
    let nsid = at.key("nsid", &keys.nsid);
    let nsid = integer(report, "device.nsid", &nsid, NSID, 1..=NSID_ALL - 1);
    let queue_depth = integer(
        report,
        "device.queue-depth",
        &at.key("queue-depth", &keys.queue_depth),
        QUEUE_DEPTH,
        2..=QUEUE_DEPTH_MAX,
    );
    let bounds = Duration::from_secs(1)..=Duration::from_secs(600);
    let io_timeout = at.key("io-timeout", &keys.io_timeout);
    let io_timeout = duration(report, "device.io-timeout", &io_timeout, DEFAULT_IO_TIMEOUT, bounds);
    let value = at.key("pci", &keys.pci);
    let value = required(report, &at.header, "device.pci", &value, PCI_FORM)?;
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
