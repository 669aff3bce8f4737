//! `[pacing]`: a policy and its keys; their ranges follow from the limits.

use std::ops::RangeInclusive;

use nvmeof_pacing::keys::{Key as Name, PolicyName, TunerName};
use nvmeof_pacing::{
    Pace, PolicyConfig, PrototypeConfig, PrototypePacer, PrototypePool, PrototypeTuner,
    TokenBucketConfig,
};
use toml::Spanned;

use super::super::raw::{Key, RawPacing, RawSize};
use super::super::report::{Report, Span};
use super::values::{choice, integer, one_of, size_within};
use crate::limits::PacingBounds;
use nvmeof_api::units::show_size;
use nvmeof_api::units::{PERIOD_FORM, RATE_FORM, parse_period, parse_rate, show_period, show_rate};

/// Validates the policy and its parameters. Problems are reported; then the result is not used.
pub(super) fn pacing(
    report: &mut Report<'_>,
    raw: &RawPacing,
    bounds: &PacingBounds,
) -> PolicyConfig {
    let Some(policy) = named(report, raw) else { return PolicyConfig::None };
    refuse_foreign_keys(report, raw, policy);
    let at = raw.policy.as_ref().map_or(0..0, Spanned::span);
    match policy {
        PolicyName::Adaptive => PolicyConfig::Adaptive,
        PolicyName::None => PolicyConfig::None,
        PolicyName::BufferCredit => {
            let budget = budget(report, raw, bounds).unwrap_or(bounds.default_budget);
            PolicyConfig::BufferCredit { budget }
        }
        PolicyName::TokenBucket => token_bucket(report, raw, &at, bounds),
        PolicyName::Prototype => PolicyConfig::Prototype(prototype(report, raw, &at, bounds)),
    }
}

/// Returns the named policy, or the default; `None` if the name is unknown.
fn named(report: &mut Report<'_>, raw: &RawPacing) -> Option<PolicyName> {
    let Some(written) = &raw.policy else { return Some(PolicyName::ALL[0]) };
    let name = written.get_ref();
    let policy = PolicyName::named(name);
    if policy.is_none() {
        let names = PolicyName::ALL.map(PolicyName::name);
        let what = format!("there is no policy \"{name}\"");
        report.error(&written.span(), "pacing.policy", what, one_of(&names, name));
    }
    policy
}

/// Reports keys that the policy does not have.
fn refuse_foreign_keys(report: &mut Report<'_>, raw: &RawPacing, policy: PolicyName) {
    for (key, span) in written(raw) {
        if policy.keys().contains(&key) {
            continue;
        }
        let (policy, key_name) = (policy.name(), key.name());
        let others = PolicyName::ALL.into_iter().filter(|other| other.keys().contains(&key));
        let others: Vec<String> = others.map(|other| format!("\"{}\"", other.name())).collect();
        let default = if raw.policy.is_none() { " (the default)" } else { "" };
        let what = format!("policy \"{policy}\"{default} has no {key_name}");
        let allowed = format!("leave it out, or set policy = {}", others.join(" or "));
        report.error(&span, &format!("pacing.{key_name}"), what, allowed);
    }
}

/// Returns the keys that are present, except `policy`.
fn written(raw: &RawPacing) -> impl Iterator<Item = (Name, Span)> + '_ {
    Name::ALL.into_iter().filter_map(|key| Some((key, span_of(raw, key)?)))
}

/// Returns the position of a key if it is present.
fn span_of(raw: &RawPacing, key: Name) -> Option<Span> {
    fn at<T>(key: &Key<T>) -> Option<Span> {
        key.as_ref().map(Spanned::span)
    }
    match key {
        Name::Budget => at(&raw.budget),
        Name::Rate => at(&raw.rate),
        Name::Period => at(&raw.period),
        Name::Burst => at(&raw.burst),
        Name::Buffers => at(&raw.buffers),
        Name::Cache => at(&raw.cache),
        Name::Credit => at(&raw.credit),
        Name::BypassBelow => at(&raw.bypass_below),
        Name::DriveLimit => at(&raw.drive_limit),
        Name::Tuner => at(&raw.tuner),
        Name::TunerThreshold => at(&raw.tuner_threshold),
        Name::TunerInterval => at(&raw.tuner_interval),
        Name::TunerStep => at(&raw.tuner_step),
    }
}

fn budget(report: &mut Report<'_>, raw: &RawPacing, bounds: &PacingBounds) -> Option<u64> {
    let value = raw.budget.as_ref()?;
    let bytes = super::values::size(report, "pacing.budget", value)?;
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
    raw: &RawPacing,
    at: &Span,
    bounds: &PacingBounds,
) -> PolicyConfig {
    let pace = match (&raw.rate, &raw.period) {
        (Some(rate), None) => rate_of(report, rate, bounds).map(Pace::Rate),
        (None, Some(period)) => {
            period_of(report, "pacing.period", period, &bounds.period).map(Pace::Period)
        }
        (Some(_), Some(period)) => {
            let what = "there is a rate, too";
            report.error(&period.span(), "pacing.period", what, "leave out one of the two");
            None
        }
        (None, None) => {
            let what = "a token bucket needs to know how fast it fills";
            let allowed = "add rate = \"180Gb/s\" (bytes) or period = \"5700ns\" (commands)";
            report.error(at, "pacing.policy", what, allowed);
            None
        }
    };
    let burst = match (&raw.burst, pace) {
        (None, Some(pace)) => Some(usual_burst(pace, bounds)),
        (_, None) => None,
        (burst, Some(Pace::Rate(_))) => {
            Some(size_within(report, "pacing.burst", burst, 0, bounds.burst_bytes.clone()))
        }
        (Some(burst), Some(Pace::Period(_))) => burst_of_commands(report, burst, bounds),
    };
    let budget = budget(report, raw, bounds);
    match pace {
        Some(pace) => PolicyConfig::TokenBucket(TokenBucketConfig { pace, burst, budget }),
        None => PolicyConfig::None,
    }
}

/// Returns the burst that accumulates in [`BURST_TIME`], within the bounds.
fn usual_burst(pace: Pace, bounds: &PacingBounds) -> u64 {
    let within = |range: &RangeInclusive<u64>, burst| (*range.start()).max(burst).min(*range.end());
    match pace {
        Pace::Rate(rate) => within(&bounds.burst_bytes, rate / (SECOND / BURST_TIME)),
        Pace::Period(period) => within(&bounds.burst_commands, BURST_TIME / period.max(1)),
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
    value: &Spanned<RawSize>,
    bounds: &PacingBounds,
) -> Option<u64> {
    let (range, name) = (&bounds.burst_commands, "pacing.burst");
    let allowed = format!("allowed: {} (one a reactor) to {}", range.start(), range.end());
    match value.get_ref() {
        RawSize::Bytes(commands) if range.contains(commands) => return Some(*commands),
        RawSize::Bytes(commands) => {
            report.error(&value.span(), name, format!("{commands} is out of range"), allowed);
        }
        RawSize::Text(text) => {
            let what = format!("behind a period it is a number of commands, not \"{text}\"");
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
    raw: &RawPacing,
    at: &Span,
    bounds: &PacingBounds,
) -> PrototypeConfig {
    if raw.buffers.is_none() && raw.period.is_none() {
        let what = "the prototype needs a pool or a pacer";
        report.error(at, "pacing.policy", what, "add buffers = 96, period = \"5700ns\", or both");
    }
    for (key, span) in written(raw) {
        let Some(needs) = key.needs().filter(|needs| span_of(raw, *needs).is_none()) else {
            continue;
        };
        let what = format!("it means nothing without {}", needs.name());
        let allowed = format!("add {}, or leave it out", needs.name());
        report.error(&span, &format!("pacing.{}", key.name()), what, allowed);
    }
    PrototypeConfig { pool: pool(report, raw, bounds), pacer: pacer(report, raw, bounds) }
}

fn pool(report: &mut Report<'_>, raw: &RawPacing, bounds: &PacingBounds) -> Option<PrototypePool> {
    raw.buffers.as_ref()?;
    let buffers = integer(report, "pacing.buffers", &raw.buffers, 1, 1..=bounds.buffers_max);
    let share = buffers / u32::try_from(bounds.machine.cores).unwrap_or(u32::MAX).max(1);
    let cache = match &raw.cache {
        None => share,
        Some(value) => {
            let cache = integer(report, "pacing.cache", &raw.cache, 0, 0..=bounds.buffers_max);
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
    raw: &RawPacing,
    bounds: &PacingBounds,
) -> Option<PrototypePacer> {
    // A tuner multiplies the period and depends on it.
    let least = if raw.tuner.is_some() { *bounds.period.start() } else { 0 };
    let range = least..=*bounds.period.end();
    let period = period_of(report, "pacing.period", raw.period.as_ref()?, &range).unwrap_or(0);
    let mut bytes = |name: &str, key: &Key<RawSize>, default: u32, range| {
        u32::try_from(size_within(report, name, key, default.into(), range)).unwrap_or(u32::MAX)
    };
    let largest = bounds.machine.largest;
    let credit = bytes("pacing.credit", &raw.credit, largest, bounds.credit.clone());
    let bypass_below = bytes("pacing.bypass-below", &raw.bypass_below, 0, 0..=u64::from(largest));
    let drive_limit = raw.drive_limit.as_ref().map(|_| {
        integer(report, "pacing.drive-limit", &raw.drive_limit, 1, 1..=bounds.buffers_max)
    });
    let tuner = raw.tuner.as_ref().and_then(|value| tuner(report, raw, value, bounds));
    Some(PrototypePacer { period, credit, bypass_below, drive_limit, tuner })
}

fn tuner(
    report: &mut Report<'_>,
    raw: &RawPacing,
    value: &Spanned<String>,
    bounds: &PacingBounds,
) -> Option<PrototypeTuner> {
    let kind = choice(report, "pacing.tuner", value, &TunerName::NAMES)?;
    for (key, span) in written(raw) {
        if key.needs() == Some(Name::Tuner) && !kind.keys().contains(&key) {
            let what = format!("the tuner \"{}\" has none", value.get_ref());
            report.error(&span, &format!("pacing.{}", key.name()), what, "leave it out");
        }
    }
    let mut time = |name: &str, key: &Key<String>| match key {
        Some(value) => period_of(report, name, value, &bounds.period),
        None => {
            let what = "the tuner \"bandwidth\" needs it";
            report.error(&value.span(), name, what, PERIOD_FORM);
            None
        }
    };
    match kind {
        TunerName::Bandwidth => {
            let interval = time("pacing.tuner-interval", &raw.tuner_interval);
            let step = time("pacing.tuner-step", &raw.tuner_step);
            Some(PrototypeTuner::Bandwidth { interval: interval?, step: step? })
        }
        TunerName::BytesInFlight => {
            if raw.tuner_threshold.is_none() {
                let what = "the tuner \"bytes-in-flight\" needs it";
                let allowed = "add bytes in flight above which the period grows, as \"12MiB\"";
                report.error(&value.span(), "pacing.tuner-threshold", what, allowed);
            }
            let (key, range) = (&raw.tuner_threshold, 1..=*bounds.budget.end());
            let threshold = size_within(report, "pacing.tuner-threshold", key, 1, range);
            Some(PrototypeTuner::BytesInFlight { threshold })
        }
    }
}
