//! `[pacing]`: a policy and the keys it has; what they may be follows from the limits.

use std::ops::RangeInclusive;

use nvmeof_pacing::{
    Pace, PolicyConfig, PrototypeConfig, PrototypePacer, PrototypePool, PrototypeTuner,
    TokenBucketConfig,
};
use toml::Spanned;

use super::super::problem::{Report, Span};
use super::super::rate::{
    PERIOD_FORM, RATE_FORM, parse_period, parse_rate, show_period, show_rate,
};
use super::super::raw::{Key, RawPacing, RawSize};
use super::super::units::show_size;
use super::values::{choice, integer, one_of, size_within};
use crate::limits::PacingBounds;

/// Every policy, with the keys it has besides `policy`.
const POLICIES: [(&str, &[&str]); 5] = [
    ("adaptive", &[]),
    ("none", &[]),
    ("buffer-credit", &["budget"]),
    ("token-bucket", &["rate", "period", "burst", "budget"]),
    (
        "prototype",
        &[
            "buffers",
            "cache",
            "period",
            "credit",
            "bypass-below",
            "drive-limit",
            "tuner",
            "tuner-threshold",
            "tuner-interval",
            "tuner-step",
        ],
    ),
];

/// The policy where none is named: the first of [`POLICIES`].
const DEFAULT: &str = POLICIES[0].0;

/// How the prototype's tuner may be set.
#[derive(Debug, Clone, Copy)]
enum Tuner {
    BytesInFlight,
    Bandwidth,
}

const TUNERS: [(&str, Tuner); 2] =
    [("bytes-in-flight", Tuner::BytesInFlight), ("bandwidth", Tuner::Bandwidth)];

/// The policy and its parameters; where something is wrong with them, it is reported and what
/// comes back does not count.
pub(super) fn pacing(
    report: &mut Report<'_>,
    raw: &RawPacing,
    bounds: &PacingBounds,
) -> PolicyConfig {
    let name = raw.policy.as_ref().map_or(DEFAULT, |policy| policy.get_ref().as_str());
    let names = POLICIES.map(|(name, _)| name);
    let Some((_, keys)) = POLICIES.iter().find(|(policy, _)| *policy == name) else {
        if let Some(policy) = &raw.policy {
            let what = format!("there is no policy \"{name}\"");
            report.error(&policy.span(), "pacing.policy", what, one_of(&names, name));
        }
        return PolicyConfig::None;
    };
    refuse_foreign_keys(report, raw, name, keys);
    let at = raw.policy.as_ref().map_or(0..0, Spanned::span);
    match name {
        "none" => PolicyConfig::None,
        "buffer-credit" => {
            let budget = budget(report, raw, bounds).unwrap_or(bounds.default_budget);
            PolicyConfig::BufferCredit { budget }
        }
        "token-bucket" => token_bucket(report, raw, &at, bounds),
        "prototype" => PolicyConfig::Prototype(prototype(report, raw, &at, bounds)),
        _ => PolicyConfig::Adaptive,
    }
}

/// A key that the policy does not have is not what was meant.
fn refuse_foreign_keys(report: &mut Report<'_>, raw: &RawPacing, policy: &str, keys: &[&str]) {
    for (key, span) in written(raw) {
        if keys.contains(&key) {
            continue;
        }
        let others: Vec<String> = POLICIES
            .iter()
            .filter(|(_, keys)| keys.contains(&key))
            .map(|(name, _)| format!("\"{name}\""))
            .collect();
        let default = if raw.policy.is_none() { " (the default)" } else { "" };
        let what = format!("policy \"{policy}\"{default} has no {key}");
        let allowed = format!("leave it out, or set policy = {}", others.join(" or "));
        report.error(&span, &format!("pacing.{key}"), what, allowed);
    }
}

/// The keys that are there besides `policy`.
fn written(raw: &RawPacing) -> Vec<(&'static str, Span)> {
    fn at<T>(key: &Key<T>) -> Option<Span> {
        key.as_ref().map(Spanned::span)
    }
    let all = [
        ("budget", at(&raw.budget)),
        ("rate", at(&raw.rate)),
        ("period", at(&raw.period)),
        ("burst", at(&raw.burst)),
        ("buffers", at(&raw.buffers)),
        ("cache", at(&raw.cache)),
        ("credit", at(&raw.credit)),
        ("bypass-below", at(&raw.bypass_below)),
        ("drive-limit", at(&raw.drive_limit)),
        ("tuner", at(&raw.tuner)),
        ("tuner-threshold", at(&raw.tuner_threshold)),
        ("tuner-interval", at(&raw.tuner_interval)),
        ("tuner-step", at(&raw.tuner_step)),
    ];
    all.into_iter().filter_map(|(key, span)| Some((key, span?))).collect()
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

/// What comes in [`BURST_TIME`], within the bounds.
fn usual_burst(pace: Pace, bounds: &PacingBounds) -> u64 {
    let within = |range: &RangeInclusive<u64>, burst| (*range.start()).max(burst).min(*range.end());
    match pace {
        Pace::Rate(rate) => within(&bounds.burst_bytes, rate / (SECOND / BURST_TIME)),
        Pace::Period(period) => within(&bounds.burst_commands, BURST_TIME / period.max(1)),
    }
}

/// The time that a burst is worth where none is set, in ns: a reactor that is woken some time after
/// it asked to be must find what came meanwhile, or the rate is not kept.
const BURST_TIME: u64 = 2_000_000;
const SECOND: u64 = 1_000_000_000;

/// Behind a period, a burst is a number of commands.
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
        let needs = match key {
            "cache" if raw.buffers.is_none() => "buffers",
            "credit" | "bypass-below" | "drive-limit" | "tuner" if raw.period.is_none() => "period",
            "tuner-threshold" | "tuner-interval" | "tuner-step" if raw.tuner.is_none() => "tuner",
            _ => continue,
        };
        let what = format!("it means nothing without {needs}");
        report.error(
            &span,
            &format!("pacing.{key}"),
            what,
            format!("add {needs}, or leave it out"),
        );
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
    let every_poll_to = 0..=*bounds.period.end();
    let period =
        period_of(report, "pacing.period", raw.period.as_ref()?, &every_poll_to).unwrap_or(0);
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
    let kind = choice(report, "pacing.tuner", value, &TUNERS)?;
    let of_other = match kind {
        Tuner::BytesInFlight => [
            ("tuner-interval", raw.tuner_interval.as_ref().map(Spanned::span)),
            ("tuner-step", raw.tuner_step.as_ref().map(Spanned::span)),
        ],
        Tuner::Bandwidth => {
            [("tuner-threshold", raw.tuner_threshold.as_ref().map(Spanned::span)), ("", None)]
        }
    };
    for (key, span) in of_other {
        if let Some(span) = span {
            let what = format!("the tuner \"{}\" has none", value.get_ref());
            report.error(&span, &format!("pacing.{key}"), what, "leave it out");
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
        Tuner::Bandwidth => {
            let interval = time("pacing.tuner-interval", &raw.tuner_interval);
            let step = time("pacing.tuner-step", &raw.tuner_step);
            Some(PrototypeTuner::Bandwidth { interval: interval?, step: step? })
        }
        Tuner::BytesInFlight => {
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
