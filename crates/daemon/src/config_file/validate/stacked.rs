//! Layered devices: the keys of each. [`order`](super::order) checks their combination.

use std::collections::BTreeMap;
use std::time::Duration;

use nvmeof_core::block::Latency;
use toml::Spanned;

use super::super::raw::{Key, RawDevice};
use super::super::report::{Report, Span};
use super::defaults;
use super::values::{integer, one_of, required, size, size_within};
use crate::config::DeviceKind;
use nvmeof_api::units::{LATENCY_FORM, SIZE_FORM, parse_latency};

/// Maximum latency. Hosts abort a command after 30 s or more.
const LATENCY_MAX: Duration = Duration::from_secs(10);
/// Bounds of the number of members of a stripe.
const MEMBERS: std::ops::RangeInclusive<usize> = 2..=256;
/// Maximum bytes of a chunk.
const CHUNK_MAX: u64 = 1 << 40;

/// Names of a device and of the others.
pub(super) struct Names<'n> {
    /// Name of this device.
    pub(super) own: &'n str,
    /// Names of all devices.
    pub(super) known: &'n [&'n str],
}

impl Names<'_> {
    fn others(&self) -> Vec<&str> {
        self.known.iter().copied().filter(|other| *other != self.own).collect()
    }

    /// Returns the valid names of a base.
    fn form(&self) -> String {
        match &self.others()[..] {
            [] => "add a [[device]] for it to stand on".to_owned(),
            others => one_of(others, ""),
        }
    }

    /// Returns the device named at `value` if this one can be layered on it.
    fn other(&self, report: &mut Report<'_>, key: &str, value: &Spanned<String>) -> Option<String> {
        let (text, others) = (value.get_ref().as_str(), self.others());
        if text == self.own {
            report.error(&value.span(), key, "it cannot stand on itself", self.form());
            return None;
        }
        if !others.contains(&text) {
            let what = format!("there is no device \"{text}\"");
            let allowed = if others.is_empty() { self.form() } else { one_of(&others, text) };
            report.error(&value.span(), key, what, allowed);
            return None;
        }
        Some(text.to_owned())
    }

    /// Validates the base of a device.
    pub(super) fn base(
        &self,
        report: &mut Report<'_>,
        header: &Span,
        raw: &RawDevice,
    ) -> Option<String> {
        let value = required(report, header, "device.base", &raw.base, &self.form())?;
        self.other(report, "device.base", value)
    }
}

/// Validates a device of type "delay".
pub(super) fn delay(
    report: &mut Report<'_>,
    header: &Span,
    raw: &RawDevice,
    names: &Names<'_>,
) -> Option<DeviceKind> {
    let mut latency = |name, key| latency(report, name, key, LATENCY_MAX, Duration::ZERO);
    let read = latency("device.read-latency", &raw.read_latency);
    let write = latency("device.write-latency", &raw.write_latency);
    let read_jitter = latency("device.read-jitter", &raw.read_jitter);
    let write_jitter = latency("device.write-jitter", &raw.write_jitter);
    if [read, write, read_jitter, write_jitter] == [Some(Duration::ZERO); 4] {
        let what = "neither latency is set: it is as fast as its base";
        let allowed = "set read-latency or write-latency, as \"1ms\"";
        report.warning(header, "device.read-latency", what, allowed);
    }
    let base = names.base(report, header, raw);
    let seed = integer(report, "device.seed", &raw.seed, 0, 0..=i64::MAX.unsigned_abs());
    let latency = Latency {
        read: read?,
        write: write?,
        read_jitter: read_jitter?,
        write_jitter: write_jitter?,
    };
    Some(DeviceKind::Delay { base: base?, latency, seed })
}

/// Validates a device of type "split".
pub(super) fn split(
    report: &mut Report<'_>,
    header: &Span,
    raw: &RawDevice,
    names: &Names<'_>,
) -> Option<DeviceKind> {
    let offset = match &raw.offset {
        Some(value) => size(report, "device.offset", value),
        None => Some(0),
    };
    let length = match &raw.size {
        Some(value) => match size(report, "device.size", value) {
            Some(0) => {
                let what = "a device of 0 bytes holds nothing";
                report.error(&value.span(), "device.size", what, SIZE_FORM);
                return None;
            }
            size => Some(size?),
        },
        None => None,
    };
    let base = names.base(report, header, raw);
    Some(DeviceKind::Split { base: base?, offset: offset?, size: length })
}

/// Validates a device of type "stripe".
pub(super) fn stripe(
    report: &mut Report<'_>,
    header: &Span,
    raw: &RawDevice,
    names: &Names<'_>,
) -> Option<DeviceKind> {
    let chunk = size_within(report, "device.chunk", &raw.chunk, defaults::CHUNK, 512..=CHUNK_MAX);
    let form = format!("allowed: a list of {} to {} devices", MEMBERS.start(), MEMBERS.end());
    let value = required(report, header, "device.members", &raw.members, &form)?;
    if !MEMBERS.contains(&value.get_ref().len()) {
        let what = format!("a stripe of {} devices is none", value.get_ref().len());
        report.error(&value.span(), "device.members", what, form);
        return None;
    }
    let mut seen: BTreeMap<&str, usize> = BTreeMap::new();
    let mut members = Vec::new();
    for value in value.get_ref() {
        let line = report.line(&value.span());
        if let Some(first) = seen.insert(value.get_ref(), line) {
            let what = format!("line {first} has \"{}\" already", value.get_ref());
            report.error(&value.span(), "device.members", what, "name each device once");
            return None;
        }
        members.extend(names.other(report, "device.members", value));
    }
    let all = members.len() == value.get_ref().len();
    all.then_some(DeviceKind::Stripe { members, chunk })
}

/// Validates a latency up to `most`; an absent key has the default.
pub(super) fn latency(
    report: &mut Report<'_>,
    name: &str,
    key: &Key<String>,
    most: Duration,
    default: Duration,
) -> Option<Duration> {
    let Some(value) = key else { return Some(default) };
    let text = value.get_ref();
    match parse_latency(text) {
        Ok(latency) if latency <= most => return Some(latency),
        Ok(_) => {
            let what = format!("{text} is out of range");
            report.error(&value.span(), name, what, format!("allowed: 0 to {}s", most.as_secs()));
        }
        Err(what) => report.error(&value.span(), name, what, LATENCY_FORM),
    }
    None
}
