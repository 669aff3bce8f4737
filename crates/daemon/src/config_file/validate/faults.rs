//! Devices of type "fault".

use std::ops::Range;
use std::time::Duration;

use nvmeof_core::block::fault::FaultPlan;
use toml::Spanned;

use super::super::raw::{Key, RawDevice};
use super::super::report::{Report, Span};
use super::defaults;
use super::stacked::{Names, latency};
use super::values::integer;
use crate::config::DeviceKind;
use nvmeof_api::units::parse_size;

/// Maximum stall: longer than the timeout of any host.
const STALL_MAX: Duration = Duration::from_secs(600);
/// Denominator of fault rates.
const MILLION: u32 = 1_000_000;

const BAD_FORM: &str =
    "allowed: ranges of bytes, as \"OFFSET+SIZE\", each as sizes are written: \"1MiB+4KiB\"";

/// Validates a device of type "fault".
pub(super) fn fault(
    report: &mut Report<'_>,
    header: &Span,
    raw: &RawDevice,
    names: &Names<'_>,
) -> Option<DeviceKind> {
    let mut share = |name: &str, key: &Key<i64>| {
        integer(report, &format!("device.{name}"), key, 0, 0..=MILLION)
    };
    let errors = share("errors", &raw.errors);
    let corruptions = share("corruptions", &raw.corruptions);
    let rejects = share("rejects", &raw.rejects);
    let stalls = share("stalls", &raw.stalls);
    let seed = integer(report, "device.seed", &raw.seed, 0, 0..=i64::MAX.unsigned_abs());
    let stall = latency(report, "device.stall", &raw.stall, STALL_MAX, defaults::STALL);
    let flag = |key: &Key<bool>| key.as_ref().is_some_and(|value| *value.get_ref());
    let bad = bad(report, raw);
    let base = names.base(report, header, raw);
    let reorder = flag(&raw.reorder);
    // Without stalls their length is irrelevant: a plan without faults equals the empty plan.
    let stall = if stalls == 0 { stall.map(|_| Duration::ZERO) } else { stall };
    let plan =
        FaultPlan { seed, errors, corruptions, rejects, reorder, stalls, stall: stall?, bad: bad? };
    Some(DeviceKind::Fault { base: base?, plan, gone: flag(&raw.gone) })
}

fn bad(report: &mut Report<'_>, raw: &RawDevice) -> Option<Vec<Range<u64>>> {
    let Some(list) = &raw.bad else { return Some(Vec::new()) };
    let ranges = list.get_ref().iter().map(|value| match range(value) {
        Ok(range) => Some(range),
        Err(what) => {
            report.error(&value.span(), "device.bad", what, BAD_FORM);
            None
        }
    });
    // Check all ranges before returning `None`.
    ranges.collect::<Vec<_>>().into_iter().collect()
}

fn range(value: &Spanned<String>) -> Result<Range<u64>, String> {
    let text = value.get_ref();
    let (offset, size) =
        text.split_once('+').ok_or_else(|| format!("\"{text}\" is no range of bytes"))?;
    let (offset, size) = (parse_size(offset)?, parse_size(size)?);
    let end = offset.checked_add(size).ok_or("it ends beyond what 64 bits hold")?;
    Ok(offset..end)
}
