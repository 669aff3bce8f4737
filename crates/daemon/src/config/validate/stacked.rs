//! Devices made of other devices.

use std::time::Duration;

use nvmeof_core::block::Latency;
use toml::Spanned;

use super::super::problem::{Report, Span};
use super::super::raw::{Key, RawDevice};
use super::super::units::{LATENCY_FORM, parse_latency};
use super::super::{Device, DeviceKind};
use super::values::{one_of, required};

/// The longest latency. Hosts give a command up after 30 s or more.
const LATENCY_MAX: Duration = Duration::from_secs(10);
/// Most devices on top of one another.
const DEPTH_MAX: usize = 8;

/// A device of type "delay"; `known` are the names of all devices.
pub(super) fn delay(
    report: &mut Report<'_>,
    header: &Span,
    raw: &RawDevice,
    name: &str,
    known: &[&str],
) -> Option<DeviceKind> {
    let read = latency(report, "device.read-latency", &raw.read_latency);
    let write = latency(report, "device.write-latency", &raw.write_latency);
    if read == Some(Duration::ZERO) && write == Some(Duration::ZERO) {
        let what = "neither latency is set: it is as fast as its base";
        let allowed = "set read-latency or write-latency, as \"1ms\"";
        report.warning(header, "device.read-latency", what, allowed);
    }
    let others: Vec<&str> = known.iter().copied().filter(|other| *other != name).collect();
    let form = if others.is_empty() {
        "add a [[device]] for it to stand on".to_owned()
    } else {
        one_of(&others, "")
    };
    let value = required(report, header, "device.base", &raw.base, &form)?;
    let base = value.get_ref().as_str();
    if base == name {
        report.error(&value.span(), "device.base", "it cannot stand on itself", form);
        return None;
    }
    if !others.contains(&base) {
        let what = format!("there is no device \"{base}\"");
        let allowed = if others.is_empty() { form } else { one_of(&others, base) };
        report.error(&value.span(), "device.base", what, allowed);
        return None;
    }
    let latency = Latency { read: read?, write: write?, ..Latency::default() };
    Some(DeviceKind::Delay { base: base.to_owned(), latency })
}

/// A latency within bounds, none if the key is left out.
fn latency(report: &mut Report<'_>, name: &str, key: &Key<String>) -> Option<Duration> {
    let Some(value) = key else { return Some(Duration::ZERO) };
    let text = value.get_ref();
    match parse_latency(text) {
        Ok(latency) if latency <= LATENCY_MAX => return Some(latency),
        Ok(_) => {
            let what = format!("{text} is out of range");
            let allowed = format!("allowed: 0 to {}s", LATENCY_MAX.as_secs());
            report.error(&value.span(), name, what, allowed);
        }
        Err(what) => report.error(&value.span(), name, what, LATENCY_FORM),
    }
    None
}

/// The devices in the order of the file, but each behind its base, with its base's block size.
pub(super) fn in_order(
    report: &mut Report<'_>,
    mut left: Vec<(Device, &Spanned<RawDevice>)>,
) -> Vec<Device> {
    let mut ordered: Vec<Device> = Vec::new();
    let mut depths: Vec<usize> = Vec::new();
    loop {
        let before = left.len();
        left.retain_mut(|(device, raw)| {
            let mut depth = 1;
            if let DeviceKind::Delay { base, .. } = &device.kind {
                let place = ordered.iter().position(|placed| placed.name == *base);
                let Some(place) = place else { return true };
                device.block_size = ordered[place].block_size;
                depth = depths[place] + 1;
            }
            if depth == DEPTH_MAX + 1 {
                let what = format!("more than {DEPTH_MAX} devices stand on one another");
                report.error(&base_span(raw), "device.base", what, "name a base further down");
            }
            ordered.push(device.clone());
            depths.push(depth);
            false
        });
        if left.is_empty() || left.len() == before {
            break;
        }
    }
    // What is left stands on itself, or on a device that has been reported already.
    for (device, raw) in &left {
        if leads_back(device, &left) {
            let what = format!("its bases lead back to \"{}\" itself", device.name);
            let allowed = "let one of them stand on another device";
            report.error(&base_span(raw), "device.base", what, allowed);
        }
    }
    ordered
}

fn leads_back(device: &Device, among: &[(Device, &Spanned<RawDevice>)]) -> bool {
    let mut at = device;
    for _ in 0..among.len() {
        let DeviceKind::Delay { base, .. } = &at.kind else { return false };
        if *base == device.name {
            return true;
        }
        let Some((next, _)) = among.iter().find(|(other, _)| other.name == *base) else {
            return false;
        };
        at = next;
    }
    false
}

fn base_span(raw: &Spanned<RawDevice>) -> Span {
    raw.get_ref().base.as_ref().map_or(raw.span(), Spanned::span)
}
