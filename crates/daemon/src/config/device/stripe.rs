//! Devices of type "stripe".

use std::collections::BTreeMap;
use std::ops::RangeInclusive;

use nvmeof_api::document::device::{DEFAULT_CHUNK, StripeKeys};

use super::{DeviceKind, Names};
use crate::config::report::Report;
use crate::config::table::Positions;
use crate::config::values::{required, size_within};

/// Bounds of the number of members of a stripe.
const MEMBERS: RangeInclusive<usize> = 2..=256;
/// Maximum bytes of a chunk.
const CHUNK_MAX: u64 = 1 << 40;

/// Validates a device of type "stripe".
pub(super) fn stripe(
    report: &mut Report<'_>,
    keys: &StripeKeys,
    at: &Positions,
    names: &Names<'_>,
) -> Option<DeviceKind> {
    let chunk = at.key("chunk", &keys.chunk);
    let chunk = size_within(report, "device.chunk", &chunk, DEFAULT_CHUNK, 512..=CHUNK_MAX);
    let form = format!("allowed: a list of {} to {} devices", MEMBERS.start(), MEMBERS.end());
    let value = at.list("members", &keys.members);
    let value = required(report, &at.header, "device.members", &value, &form)?;
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
