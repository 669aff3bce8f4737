//! `[pacing]`: a policy and its keys; their ranges follow from the limits.

use std::ops::RangeInclusive;

use nvmeof_api::document::pacing::{PrototypeKeys, TokenBucketKeys};
use nvmeof_api::document::tagged::{KeyError, one_of};
use nvmeof_api::document::{PacingConfig as Written, Size};
use nvmeof_api::units::show_size;
use nvmeof_api::units::{PERIOD_FORM, RATE_FORM, parse_period, parse_rate, show_period, show_rate};

use nvmeof_pacing::{
    PolicyConfig, PolicyKey as Name, PrototypeConfig, PrototypePacer, PrototypePool,
    PrototypeTuner, RateSpec, TokenBucketConfig, TunerName,
};
use toml::Spanned;

use crate::config::report::{Report, Span};
use crate::config::table::{Positions, WrittenTable};
use crate::config::values::{choice, integer, size, size_within};
use crate::limits::PacingBounds;

/// Validates the policy and its parameters. Problems are reported; then the result is not used.
pub(super) fn pacing(
    report: &mut Report<'_>,
    written: &WrittenTable<Written>,
    bounds: &PacingBounds,
) -> PolicyConfig {
    let at = &written.at;
    written.errors.iter().for_each(|error| refuse(report, error, at));
    match &written.config {
        None | Some(Written::Unpaced(_)) => PolicyConfig::None,
        Some(Written::Adaptive(_)) => PolicyConfig::Adaptive,
        Some(Written::BufferCredit(keys)) => {
            let budget = budget(report, &keys.budget, at, bounds).unwrap_or(bounds.default_budget);
            PolicyConfig::BufferCredit { budget }
        }
        Some(Written::TokenBucket(keys)) => token_bucket(report, keys, at, bounds),
        Some(Written::Prototype(keys)) => {
            PolicyConfig::Prototype(prototype(report, keys, at, bounds))
        }
    }
}

/// Reports an unknown policy, and keys that the policy does not have.
fn refuse(report: &mut Report<'_>, error: &KeyError, at: &Positions) {
    match error {
        KeyError::UnknownTag(name) => {
            let what = format!("there is no policy \"{name}\"");
            report.error(&policy_at(at), "pacing.policy", what, one_of::<Written>(name));
        }
        KeyError::Foreign { key, variant, owners, .. } => {
            let owners: Vec<String> = owners.iter().map(|owner| format!("\"{owner}\"")).collect();
            let default = if at.of("policy").is_none() { " (the default)" } else { "" };
            let what = format!("policy \"{variant}\"{default} has no {key}");
            let allowed = format!("omit the key, or set policy = {}", owners.join(" or "));
            report.error(&at.or_header(key), &format!("pacing.{key}"), what, allowed);
        }
        // The parser has reported the others, and there is a default policy.
        KeyError::Unknown { .. } | KeyError::Form { .. } | KeyError::NoTag => {}
    }
}

/// Returns the position of the policy's name.
fn policy_at(at: &Positions) -> Span {
    at.of("policy").unwrap_or(0..0)
}

fn budget(
    report: &mut Report<'_>,
    key: &Option<Size>,
    at: &Positions,
    bounds: &PacingBounds,
) -> Option<u64> {
    let value = &at.key("budget", key)?;
    let bytes = size(report, "pacing.budget", value)?;
    if !bounds.budget.contains(&bytes) {
        let what = format!("{} is out of range", show_size(bytes));
        let allowed = format!(
            "allowed: {} (twice max-transfer) to {} (buffer-memory)",
            show_size(*bounds.budget.start()),
            show_size(*bounds.budget.end())
        );
        report.error(&value.span(), "pacing.budget", what, allowed);
    }
    Some(bytes)
}

fn token_bucket(
    report: &mut Report<'_>,
    keys: &TokenBucketKeys,
    at: &Positions,
    bounds: &PacingBounds,
) -> PolicyConfig {
    let (rate, period) = (at.key("rate", &keys.rate), at.key("period", &keys.period));
    let pace = match (&rate, &period) {
        (Some(rate), None) => rate_of(report, rate, bounds).map(RateSpec::Rate),
        (None, Some(period)) => {
            period_of(report, "pacing.period", period, &bounds.period).map(RateSpec::Period)
        }
        (Some(_), Some(period)) => {
            let what = "there is a rate, too";
            report.error(&period.span(), "pacing.period", what, "leave out one of the two");
            None
        }
        (None, None) => {
            let what = "a token bucket requires a rate";
            let allowed = "add rate = \"180Gb/s\" (bytes) or period = \"5700ns\" (commands)";
            report.error(&policy_at(at), "pacing.policy", what, allowed);
            None
        }
    };
    let burst = match (&at.key("burst", &keys.burst), pace) {
        (None, Some(pace)) => Some(usual_burst(pace, bounds)),
        (_, None) => None,
        (burst, Some(RateSpec::Rate(_))) => {
            Some(size_within(report, "pacing.burst", burst, 0, bounds.burst_bytes.clone()))
        }
        (Some(burst), Some(RateSpec::Period(_))) => burst_of_commands(report, burst, bounds),
    };
    let budget = budget(report, &keys.budget, at, bounds);
    match pace {
        Some(pace) => PolicyConfig::TokenBucket(TokenBucketConfig { pace, burst, budget }),
        None => PolicyConfig::None,
    }
}

/// Returns the burst that accumulates in [`BURST_TIME`], within the bounds.
fn usual_burst(pace: RateSpec, bounds: &PacingBounds) -> u64 {
    let within = |range: &RangeInclusive<u64>, burst| (*range.start()).max(burst).min(*range.end());
    match pace {
        RateSpec::Rate(rate) => within(&bounds.burst_bytes, rate / (SECOND / BURST_TIME)),
        RateSpec::Period(period) => within(&bounds.burst_commands, BURST_TIME / period.max(1)),
    }
}

/// Time in ns that the default burst covers.
///
/// A reactor wakes some time after its timer. The tokens that accumulate in that time must fit the
/// burst, or the rate is not reached.
const BURST_TIME: u64 = 2_000_000;
const SECOND: u64 = 1_000_000_000;

/// Parses the burst of a period, which is a number of commands.
fn burst_of_commands(
    report: &mut Report<'_>,
    value: &Spanned<Size>,
    bounds: &PacingBounds,
) -> Option<u64> {
    let (range, name) = (&bounds.burst_commands, "pacing.burst");
    let allowed = format!("allowed: {} (one a reactor) to {}", range.start(), range.end());
    match value.get_ref() {
        Size::Bytes(commands) if range.contains(commands) => return Some(*commands),
        Size::Bytes(commands) => {
            report.error(&value.span(), name, format!("{commands} is out of range"), allowed);
        }
        Size::Text(text) => {
            let what = format!("with a period, the value is a number of commands, not \"{text}\"");
            report.error(&value.span(), name, what, allowed);
        }
    }
    None
}

fn rate_of(report: &mut Report<'_>, value: &Spanned<String>, bounds: &PacingBounds) -> Option<u64> {
    match parse_rate(value.get_ref()) {
        Ok(rate) if bounds.rate.contains(&rate) => return Some(rate),
        Ok(rate) => {
            let allowed = format!(
                "allowed: {} (the largest command in a second) to {}",
                show_rate(*bounds.rate.start()),
                show_rate(*bounds.rate.end())
            );
            let what = format!("{} is out of range", show_rate(rate));
            report.error(&value.span(), "pacing.rate", what, allowed);
        }
        Err(what) => report.error(&value.span(), "pacing.rate", what, RATE_FORM),
    }
    None
}

fn period_of(
    report: &mut Report<'_>,
    name: &str,
    value: &Spanned<String>,
    range: &RangeInclusive<u64>,
) -> Option<u64> {
    match parse_period(value.get_ref()) {
        Ok(period) if range.contains(&period) => return Some(period),
        Ok(period) => {
            let (least, most) = (show_period(*range.start()), show_period(*range.end()));
            let what = format!("{} is out of range", show_period(period));
            report.error(&value.span(), name, what, format!("allowed: {least} to {most}"));
        }
        Err(what) => report.error(&value.span(), name, what, PERIOD_FORM),
    }
    None
}

fn prototype(
    report: &mut Report<'_>,
    keys: &PrototypeKeys,
    at: &Positions,
    bounds: &PacingBounds,
) -> PrototypeConfig {
    if keys.buffers.is_none() && keys.period.is_none() {
        let what = "the prototype needs a pool or a pacer";
        report.error(
            &policy_at(at),
            "pacing.policy",
            what,
            "add buffers = 96, period = \"5700ns\", or both",
        );
    }
    for (key, span) in present(at) {
        let needs = key.needs().filter(|needs| at.of(needs.name()).is_none());
        let Some(needs) = needs else { continue };
        let what = format!("no effect without {}", needs.name());
        let allowed = format!("add {}, or omit the key", needs.name());
        report.error(&span, &format!("pacing.{}", key.name()), what, allowed);
    }
    PrototypeConfig { pool: pool(report, keys, at, bounds), pacer: pacer(report, keys, at, bounds) }
}

/// Returns the keys that are present, except `policy`.
fn present(at: &Positions) -> impl Iterator<Item = (Name, Span)> + '_ {
    Name::ALL.into_iter().filter_map(|key| Some((key, at.of(key.name())?)))
}

fn pool(
    report: &mut Report<'_>,
    keys: &PrototypeKeys,
    at: &Positions,
    bounds: &PacingBounds,
) -> Option<PrototypePool> {
    let buffers = at.key("buffers", &keys.buffers);
    buffers.as_ref()?;
    let buffers = integer(report, "pacing.buffers", &buffers, 1, 1..=bounds.buffers_max);
    let share = buffers / u32::try_from(bounds.machine.cores).unwrap_or(u32::MAX).max(1);
    let cache = at.key("cache", &keys.cache);
    let cache = match &cache {
        None => share,
        Some(value) => {
            let cache = integer(report, "pacing.cache", &cache, 0, 0..=bounds.buffers_max);
            if cache > share {
                let what = format!("{} reactors have {buffers} buffers", bounds.machine.cores);
                let allowed = format!("allowed: up to {share}, or add buffers");
                report.error(&value.span(), "pacing.cache", what, allowed);
            }
            cache
        }
    };
    Some(PrototypePool { buffers, cache })
}

fn pacer(
    report: &mut Report<'_>,
    keys: &PrototypeKeys,
    at: &Positions,
    bounds: &PacingBounds,
) -> Option<PrototypePacer> {
    // A tuner multiplies the period and depends on it.
    let least = if keys.tuner.is_some() { *bounds.period.start() } else { 0 };
    let range = least..=*bounds.period.end();
    let period = at.key("period", &keys.period)?;
    let period = period_of(report, "pacing.period", &period, &range).unwrap_or(0);
    let mut bytes = |key: &str, value: &Option<Size>, default: u32, range| {
        let (name, key) = (format!("pacing.{key}"), at.key(key, value));
        u32::try_from(size_within(report, &name, &key, default.into(), range)).unwrap_or(u32::MAX)
    };
    let largest = bounds.machine.largest;
    let credit = bytes("credit", &keys.credit, largest, bounds.credit.clone());
    let bypass_below = bytes("bypass-below", &keys.bypass_below, 0, 0..=u64::from(largest));
    let limit = at.key("drive-limit", &keys.drive_limit);
    let drive_limit = limit
        .as_ref()
        .map(|_| integer(report, "pacing.drive-limit", &limit, 1, 1..=bounds.buffers_max));
    let tuner = tuner(report, keys, at, bounds);
    Some(PrototypePacer { period, credit, bypass_below, drive_limit, tuner })
}

fn tuner(
    report: &mut Report<'_>,
    keys: &PrototypeKeys,
    at: &Positions,
    bounds: &PacingBounds,
) -> Option<PrototypeTuner> {
    let value = &at.key("tuner", &keys.tuner)?;
    let kind = choice(report, "pacing.tuner", value, &TunerName::NAMES)?;
    for (key, span) in present(at) {
        if key.needs() == Some(Name::Tuner) && !kind.keys().contains(&key) {
            let what = format!("the tuner \"{}\" has none", value.get_ref());
            report.error(&span, &format!("pacing.{}", key.name()), what, "omit the key");
        }
    }
    let mut time = |key: &str, text: &Option<String>| match at.key(key, text) {
        Some(value) => period_of(report, &format!("pacing.{key}"), &value, &bounds.period),
        None => {
            let what = "the tuner \"bandwidth\" requires the key";
            report.error(&value.span(), &format!("pacing.{key}"), what, PERIOD_FORM);
            None
        }
    };
    match kind {
        TunerName::Bandwidth => {
            let interval = time("tuner-interval", &keys.tuner_interval);
            let step = time("tuner-step", &keys.tuner_step);
            Some(PrototypeTuner::Bandwidth { interval: interval?, step: step? })
        }
        TunerName::BytesInFlight => {
            if keys.tuner_threshold.is_none() {
                let what = "the tuner \"bytes-in-flight\" requires the key";
                let allowed = "add bytes in flight above which the period grows, as \"12MiB\"";
                report.error(&value.span(), "pacing.tuner-threshold", what, allowed);
            }
            let range = 1..=*bounds.budget.end();
            let key = at.key("tuner-threshold", &keys.tuner_threshold);
            let threshold = size_within(report, "pacing.tuner-threshold", &key, 1, range);
            Some(PrototypeTuner::BytesInFlight { threshold })
        }
    }
}
