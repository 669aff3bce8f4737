//! `[target.pacing]`: each policy accepts its own parameters and no others.

use nvmeof_pacing::{PolicyKey, PolicyName, TunerName};
use toml::Spanned;

use super::check::PlanChecker;
use super::problem::{Span, closest};
use super::raw::RawPacing;
use crate::sweep::setup::{BufferPool, FillRate, PacingSetup, PeriodTuner, PeriodicPacer};

const SECOND: u64 = 1_000_000_000;
/// Longest sensible period between two I/Os: one per second.
const LONGEST_PERIOD: u64 = SECOND;
const TIB: u64 = 1 << 40;
/// Default interval of io_pacing's tuners.
const TUNER_INTERVAL: u64 = SECOND / 1000;
const TUNER_STEP: u64 = 100;

/// A policy of the simulator alone: no pacing, and a cache that never overflows.
const ENDLESS_CACHE: &str = "endless-cache";

/// Returns the policy, for I/Os of at most `block` bytes; `adaptive` by default.
pub(super) fn pacing(
    check: &mut PlanChecker<'_, '_>,
    raw: &RawPacing,
    block: u32,
) -> Option<PacingSetup> {
    let name = raw.policy.as_ref().map_or(PolicyName::ALL[0].name(), |policy| policy.get_ref());
    let span = raw.policy.as_ref().map_or(0..0, Spanned::span);
    let policy = PolicyName::named(name);
    if policy.is_none() && name != ENDLESS_CACHE {
        let known: Vec<_> =
            PolicyName::ALL.map(PolicyName::name).into_iter().chain([ENDLESS_CACHE]).collect();
        let meant = closest(name, &known);
        let meant = meant.map_or_else(String::new, |name| format!(" (did you mean `{name}`?)"));
        let allowed = format!("{}{meant}", known.join(", "));
        check.error(&span, "target.pacing.policy", &format!("`{name}` is no policy"), &allowed);
        return None;
    }
    let takes = policy.map_or(&[][..], PolicyName::keys);
    let mut foreign = false;
    for (key, span) in given(raw).filter(|(key, _)| !takes.contains(key)) {
        let what = format!("is no parameter of the policy `{name}`");
        let takes: Vec<_> = takes.iter().map(|key| key.name()).collect();
        let allowed = if takes.is_empty() { "none".to_owned() } else { takes.join(", ") };
        check.error(&span, &path(key), &what, &allowed);
        foreign = true;
    }
    if foreign {
        return None;
    }
    match policy {
        None => Some(PacingSetup::EndlessCache),
        Some(PolicyName::None) => Some(PacingSetup::None),
        Some(PolicyName::Adaptive) => Some(PacingSetup::Adaptive),
        Some(PolicyName::BufferCredit) => {
            let budget = check.size(&path(PolicyKey::Budget), &raw.budget, block.into()..=TIB);
            missing(check, raw.budget.is_none(), &span, PolicyKey::Budget, "a size");
            Some(PacingSetup::BufferCredit { budget: budget? })
        }
        Some(PolicyName::TokenBucket) => token_bucket(check, raw, block, &span),
        Some(PolicyName::Prototype) => prototype(check, raw, block, &span),
    }
}

/// Returns a key's name in messages.
fn path(key: PolicyKey) -> String {
    format!("target.pacing.{}", key.name())
}

fn token_bucket(
    check: &mut PlanChecker<'_, '_>,
    raw: &RawPacing,
    block: u32,
    span: &Span,
) -> Option<PacingSetup> {
    let rate = check.size(&path(PolicyKey::Rate), &raw.rate, 1..=TIB);
    let period = check.time(&path(PolicyKey::Period), &raw.period, 1..=LONGEST_PERIOD);
    let pace = match (rate, period) {
        (Some(rate), None) => FillRate::Rate(rate),
        (None, Some(period)) => FillRate::Period(period),
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
    // A burst is in bytes with a rate, and in I/Os with a period.
    let least = if matches!(pace, FillRate::Rate(_)) { block.into() } else { 1 };
    Some(PacingSetup::TokenBucket {
        pace,
        burst: check.size(&path(PolicyKey::Burst), &raw.burst, least..=TIB),
        budget: check.size(&path(PolicyKey::Budget), &raw.budget, block.into()..=TIB),
    })
}

fn prototype(
    check: &mut PlanChecker<'_, '_>,
    raw: &RawPacing,
    block: u32,
    span: &Span,
) -> Option<PacingSetup> {
    let buffers = check.whole(&path(PolicyKey::Buffers), &raw.buffers, 1..=1 << 24);
    let most = buffers.map_or(1 << 24, i64::from);
    let cache = check.whole(&path(PolicyKey::Cache), &raw.cache, 0..=most);
    let pool = buffers.map(|buffers| BufferPool { buffers, cache });
    let period = check.time(&path(PolicyKey::Period), &raw.period, 0..=LONGEST_PERIOD);
    let small = |size: Option<u64>| size.and_then(|size| u32::try_from(size).ok());
    // A tick that grants less than the largest I/O would never start it.
    let credit = check.size(&path(PolicyKey::Credit), &raw.credit, block.into()..=1 << 30);
    let bypass = check.size(&path(PolicyKey::BypassBelow), &raw.bypass_below, 0..=1 << 30);
    let drive_limit = check.whole(&path(PolicyKey::DriveLimit), &raw.drive_limit, 1..=1 << 20);
    let tuner = tuner(check, raw, span)?;
    let pacer = period.map(|period| PeriodicPacer {
        period,
        credit: small(credit).unwrap_or(block),
        bypass_below: small(bypass).unwrap_or(0),
        drive_limit,
        tuner,
    });
    for (key, span) in given(raw) {
        if let Some(needs) = key.needs().filter(|needs| span_of(raw, *needs).is_none()) {
            let with = format!("with {}", needs.name());
            check.error(&span, &path(key), "means nothing alone", &with);
        }
    }
    if raw.buffers.is_none() && raw.period.is_none() {
        let what = "has neither a pool nor a pacer";
        check.error(span, "target.pacing", what, "buffers, period, or both; or policy = \"none\"");
    }
    Some(PacingSetup::Prototype { pool, pacer })
}

/// Returns the tuner, if there is one; the outer `None` if it is invalid.
fn tuner(
    check: &mut PlanChecker<'_, '_>,
    raw: &RawPacing,
    span: &Span,
) -> Option<Option<PeriodTuner>> {
    let threshold = check.size(&path(PolicyKey::TunerThreshold), &raw.tuner_threshold, 1..=TIB);
    let interval = check.time(&path(PolicyKey::TunerInterval), &raw.tuner_interval, 1..=SECOND);
    let step = check.time(&path(PolicyKey::TunerStep), &raw.tuner_step, 1..=LONGEST_PERIOD);
    let Some(word) = &raw.tuner else { return Some(None) };
    match TunerName::named(word.get_ref()) {
        Some(TunerName::BytesInFlight) => {
            let is_missing = raw.tuner_threshold.is_none();
            missing(check, is_missing, span, PolicyKey::TunerThreshold, "a size");
            Some(Some(PeriodTuner::BytesInFlight { threshold: threshold? }))
        }
        Some(TunerName::Bandwidth) => Some(Some(PeriodTuner::Bandwidth {
            interval: interval.unwrap_or(TUNER_INTERVAL),
            step: step.unwrap_or(TUNER_STEP),
        })),
        None => {
            let what = format!("`{}` is no tuner", word.get_ref());
            let names = TunerName::NAMES.map(|(name, _)| name).join(", ");
            check.error(&word.span(), &path(PolicyKey::Tuner), &what, &names);
            None
        }
    }
}

fn missing(check: &mut PlanChecker<'_, '_>, is: bool, span: &Span, key: PolicyKey, allowed: &str) {
    if is {
        check.error(span, &path(key), "is missing", allowed);
    }
}

/// Returns the parameters that are set.
fn given(raw: &RawPacing) -> impl Iterator<Item = (PolicyKey, Span)> + '_ {
    PolicyKey::ALL.into_iter().filter_map(|key| Some((key, span_of(raw, key)?)))
}

/// Returns the position of a parameter, if it is set.
fn span_of(raw: &RawPacing, key: PolicyKey) -> Option<Span> {
    let of_size = |value: &Option<Spanned<_>>| value.as_ref().map(Spanned::span);
    let of_number = |value: &Option<Spanned<i64>>| value.as_ref().map(Spanned::span);
    let of_word = |value: &Option<Spanned<String>>| value.as_ref().map(Spanned::span);
    match key {
        PolicyKey::Budget => of_size(&raw.budget),
        PolicyKey::Burst => of_size(&raw.burst),
        PolicyKey::Rate => of_size(&raw.rate),
        PolicyKey::Credit => of_size(&raw.credit),
        PolicyKey::BypassBelow => of_size(&raw.bypass_below),
        PolicyKey::TunerThreshold => of_size(&raw.tuner_threshold),
        PolicyKey::Buffers => of_number(&raw.buffers),
        PolicyKey::Cache => of_number(&raw.cache),
        PolicyKey::DriveLimit => of_number(&raw.drive_limit),
        PolicyKey::Period => of_word(&raw.period),
        PolicyKey::Tuner => of_word(&raw.tuner),
        PolicyKey::TunerInterval => of_word(&raw.tuner_interval),
        PolicyKey::TunerStep => of_word(&raw.tuner_step),
    }
}
