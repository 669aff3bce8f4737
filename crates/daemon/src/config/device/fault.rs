//! Devices of type "fault".

use std::ops::Range;
use std::time::Duration;

use nvmeof_api::document::device::FaultKeys;
use nvmeof_api::units::parse_size;
use nvmeof_core::block::fault::FaultPlan;
use toml::Spanned;

use super::{DeviceKind, Names};
use crate::config::report::Report;
use crate::config::table::Positions;
use crate::config::values::{Key, integer, latency};

/// Maximum stall: longer than the timeout of any host.
const STALL_MAX: Duration = Duration::from_secs(600);
/// Default length of a stall.
const STALL: Duration = Duration::from_secs(1);
/// Denominator of fault rates.
const MILLION: u32 = 1_000_000;

const BAD_FORM: &str =
    "allowed: ranges of bytes, as \"OFFSET+SIZE\", each as sizes are written: \"1MiB+4KiB\"";

/// Validates a device of type "fault".
pub(super) fn fault(
    report: &mut Report<'_>,
    keys: &FaultKeys,
    at: &Positions,
    names: &Names<'_>,
) -> Option<DeviceKind> {
    let mut share = |name: &str, value: &Option<i64>| {
        integer(report, &format!("device.{name}"), &at.key(name, value), 0, 0..=MILLION)
    };
    let errors = share("errors", &keys.errors);
    let corruptions = share("corruptions", &keys.corruptions);
    let rejects = share("rejects", &keys.rejects);
    let stalls = share("stalls", &keys.stalls);
    let seed = at.key("seed", &keys.seed);
    let seed = integer(report, "device.seed", &seed, 0, 0..=i64::MAX.unsigned_abs());
    let stall = latency(report, "device.stall", &at.key("stall", &keys.stall), STALL_MAX, STALL);
    let bad = bad(report, &at.list("bad", &keys.bad));
    let base = names.base(report, at, &keys.base);
    let reorder = keys.reorder.unwrap_or(false);
    // Without stalls their length is irrelevant: a plan without faults equals the empty plan.
    let stall = if stalls == 0 { stall.map(|_| Duration::ZERO) } else { stall };
    let plan =
        FaultPlan { seed, errors, corruptions, rejects, reorder, stalls, stall: stall?, bad: bad? };
    Some(DeviceKind::Fault { base: base?, plan, gone: keys.gone.unwrap_or(false) })
}

fn bad(report: &mut Report<'_>, list: &Key<Vec<Spanned<String>>>) -> Option<Vec<Range<u64>>> {
    let Some(list) = list else { return Some(Vec::new()) };
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
    let end = offset.checked_add(size).ok_or("the end exceeds 64 bits")?;
    Ok(offset..end)
}
