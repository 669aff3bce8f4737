//! `[target.pacing]`: each policy takes its own parameters and no other's.

use toml::Spanned;

use super::check::Check;
use super::problem::{Span, closest};
use super::raw::RawPacing;
use crate::sweep::setup::{Pace, Pacer, Pacing, Pool, Tuner};

const SECOND: u64 = 1_000_000_000;
/// Longest period between two I/Os that makes sense: one a second.
const LONGEST_PERIOD: u64 = SECOND;
const TIB: u64 = 1 << 40;
/// What the prototype's tuners do where a plan does not say.
const TUNER_INTERVAL: u64 = SECOND / 1000;
const TUNER_STEP: u64 = 100;

/// Policies, and what each takes.
const POLICIES: &[(&str, &[&str])] = &[
    ("none", &[]),
    ("endless-cache", &[]),
    ("adaptive", &[]),
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

/// The policy, for I/Os of at most `block` bytes; `adaptive` where none is named.
pub(super) fn pacing(check: &mut Check<'_, '_>, raw: &RawPacing, block: u32) -> Option<Pacing> {
    let name = raw.policy.as_ref().map_or("adaptive", |policy| policy.get_ref());
    let span = raw.policy.as_ref().map_or(0..0, Spanned::span);
    let Some((_, takes)) = POLICIES.iter().find(|(known, _)| *known == name) else {
        let known: Vec<_> = POLICIES.iter().map(|(name, _)| *name).collect();
        let meant = closest(name, &known);
        let meant = meant.map_or_else(String::new, |name| format!(" (did you mean `{name}`?)"));
        let allowed = format!("{}{meant}", known.join(", "));
        check.error(&span, "target.pacing.policy", &format!("`{name}` is no policy"), &allowed);
        return None;
    };
    let mut foreign = false;
    for (key, span) in given(raw) {
        if !takes.contains(&key) {
            let what = format!("is no parameter of the policy `{name}`");
            let allowed = if takes.is_empty() { "none".to_owned() } else { takes.join(", ") };
            check.error(&span, &format!("target.pacing.{key}"), &what, &allowed);
            foreign = true;
        }
    }
    if foreign {
        return None;
    }
    match name {
        "none" => Some(Pacing::None),
        "endless-cache" => Some(Pacing::EndlessCache),
        "adaptive" => Some(Pacing::Adaptive),
        "buffer-credit" => {
            let budget = check.size("target.pacing.budget", &raw.budget, block.into()..=TIB);
            missing(check, raw.budget.is_none(), &span, "budget", "a size");
            Some(Pacing::BufferCredit { budget: budget? })
        }
        "token-bucket" => token_bucket(check, raw, block, &span),
        _ => prototype(check, raw, block, &span),
    }
}

fn token_bucket(
    check: &mut Check<'_, '_>,
    raw: &RawPacing,
    block: u32,
    span: &Span,
) -> Option<Pacing> {
    let rate = check.size("target.pacing.rate", &raw.rate, 1..=TIB);
    let period = check.time("target.pacing.period", &raw.period, 1..=LONGEST_PERIOD);
    let pace = match (rate, period) {
        (Some(rate), None) => Pace::Rate(rate),
        (None, Some(period)) => Pace::Period(period),
        _ => {
            let neither = raw.rate.is_none() && raw.period.is_none();
            let both = rate.is_some() && period.is_some();
            if neither || both {
                let what =
                    if both { "has a rate and a period" } else { "has neither rate nor period" };
                check.error(
                    span,
                    "target.pacing",
                    what,
                    "rate (bytes a second) or period (a time)",
                );
            }
            return None;
        }
    };
    // A burst is in bytes with a rate, in I/Os with a period.
    let least = if matches!(pace, Pace::Rate(_)) { block.into() } else { 1 };
    Some(Pacing::TokenBucket {
        pace,
        burst: check.size("target.pacing.burst", &raw.burst, least..=TIB),
        budget: check.size("target.pacing.budget", &raw.budget, block.into()..=TIB),
    })
}

fn prototype(
    check: &mut Check<'_, '_>,
    raw: &RawPacing,
    block: u32,
    span: &Span,
) -> Option<Pacing> {
    let at = |key: &str| format!("target.pacing.{key}");
    let buffers = check.whole(&at("buffers"), &raw.buffers, 1..=1 << 24);
    let most = buffers.map_or(1 << 24, i64::from);
    let cache = check.whole(&at("cache"), &raw.cache, 0..=most);
    if let (None, Some(cache)) = (&raw.buffers, &raw.cache) {
        check.error(&cache.span(), &at("cache"), "is of a pool, and there is none", "with buffers");
    }
    let pool = buffers.map(|buffers| Pool { buffers, cache });
    let period = check.time(&at("period"), &raw.period, 0..=LONGEST_PERIOD);
    let small = |size: Option<u64>| size.and_then(|size| u32::try_from(size).ok());
    // A tick that grants less than the largest I/O would never start it.
    let credit = check.size(&at("credit"), &raw.credit, block.into()..=1 << 30);
    let bypass = check.size(&at("bypass-below"), &raw.bypass_below, 0..=1 << 30);
    let drive_limit = check.whole(&at("drive-limit"), &raw.drive_limit, 1..=1 << 20);
    let tuner = tuner(check, raw, span)?;
    let pacer = period.map(|period| Pacer {
        period,
        credit: small(credit).unwrap_or(block),
        bypass_below: small(bypass).unwrap_or(0),
        drive_limit,
        tuner,
    });
    let of_pacer = ["credit", "bypass-below", "drive-limit", "tuner"];
    for (key, span) in given(raw) {
        if pacer.is_none() && raw.period.is_none() && of_pacer.contains(&key) {
            check.error(&span, &at(key), "is of a pacer, and there is none", "with period");
        }
    }
    if raw.buffers.is_none() && raw.period.is_none() {
        let what = "has neither a pool nor a pacer";
        check.error(span, "target.pacing", what, "buffers, period, or both; or policy = \"none\"");
    }
    Some(Pacing::Prototype { pool, pacer })
}

/// The tuner, if there is one; nothing if what is there is wrong.
fn tuner(check: &mut Check<'_, '_>, raw: &RawPacing, span: &Span) -> Option<Option<Tuner>> {
    let at = |key: &str| format!("target.pacing.{key}");
    let threshold = check.size(&at("tuner-threshold"), &raw.tuner_threshold, 1..=TIB);
    let interval = check.time(&at("tuner-interval"), &raw.tuner_interval, 1..=SECOND);
    let step = check.time(&at("tuner-step"), &raw.tuner_step, 1..=LONGEST_PERIOD);
    let word = raw.tuner.as_ref().map(|word| word.get_ref().as_str());
    match word {
        None => Some(None),
        Some("bytes-in-flight") => {
            missing(check, raw.tuner_threshold.is_none(), span, "tuner-threshold", "a size");
            Some(Some(Tuner::BytesInFlight { threshold: threshold? }))
        }
        Some("bandwidth") => Some(Some(Tuner::Bandwidth {
            interval: interval.unwrap_or(TUNER_INTERVAL),
            step: step.unwrap_or(TUNER_STEP),
        })),
        Some(word) => {
            let span = raw.tuner.as_ref().map_or(0..0, Spanned::span);
            let what = format!("`{word}` is no tuner");
            check.error(&span, &at("tuner"), &what, "bytes-in-flight, bandwidth");
            None
        }
    }
}

fn missing(check: &mut Check<'_, '_>, is: bool, span: &Span, key: &str, allowed: &str) {
    if is {
        check.error(span, &format!("target.pacing.{key}"), "is missing", allowed);
    }
}

/// The parameters that are there.
fn given(raw: &RawPacing) -> Vec<(&'static str, Span)> {
    let spans = [
        ("budget", raw.budget.as_ref().map(Spanned::span)),
        ("burst", raw.burst.as_ref().map(Spanned::span)),
        ("rate", raw.rate.as_ref().map(Spanned::span)),
        ("period", raw.period.as_ref().map(Spanned::span)),
        ("buffers", raw.buffers.as_ref().map(Spanned::span)),
        ("cache", raw.cache.as_ref().map(Spanned::span)),
        ("credit", raw.credit.as_ref().map(Spanned::span)),
        ("bypass-below", raw.bypass_below.as_ref().map(Spanned::span)),
        ("drive-limit", raw.drive_limit.as_ref().map(Spanned::span)),
        ("tuner", raw.tuner.as_ref().map(Spanned::span)),
        ("tuner-threshold", raw.tuner_threshold.as_ref().map(Spanned::span)),
        ("tuner-interval", raw.tuner_interval.as_ref().map(Spanned::span)),
        ("tuner-step", raw.tuner_step.as_ref().map(Spanned::span)),
    ];
    spans.into_iter().filter_map(|(key, span)| Some((key, span?))).collect()
}
