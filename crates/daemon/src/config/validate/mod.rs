//! From what is written to what can be used.

mod devices;
mod limits;
mod listeners;
mod stacked;
mod subsystems;
mod values;

use std::time::Duration;

use super::problem::{Report, Span};
use super::raw::{RawConfig, RawPacing};
use super::{Config, LogLevel, Machine, Pacing, cpus};
use crate::limits::{Limits, Needs};

use values::{choice, duration, size};

/// What holds where a key is left out. The example config states the same, and a test compares.
pub(super) mod defaults {
    use std::time::Duration;

    use super::LogLevel;

    pub(in crate::config) const REACTORS: &str = "auto";
    pub(in crate::config) const BUSY_POLL: bool = false;
    pub(in crate::config) const DRAIN_TIMEOUT: Duration = Duration::from_secs(10);
    pub(in crate::config) const LOG: LogLevel = LogLevel::Info;
    pub(in crate::config) const PORT: u16 = 4420;
    pub(in crate::config) const DISCOVERY_PORT: u16 = 8009;
    pub(in crate::config) const BLOCK_SIZE: u32 = 512;
    pub(in crate::config) const MODEL: &str = "nvmeof-tgt";
}

const LOG_LEVELS: [(&str, LogLevel); 6] = [
    ("off", LogLevel::Off),
    ("error", LogLevel::Error),
    ("warn", LogLevel::Warn),
    ("info", LogLevel::Info),
    ("debug", LogLevel::Debug),
    ("trace", LogLevel::Trace),
];

/// Policies that have a name but are not built.
const LATER_POLICIES: [&str; 3] = ["token-bucket", "adaptive", "prototype"];

/// Checks everything and reports all that is wrong; the result counts only if nothing is.
pub(super) fn validate(
    report: &mut Report<'_>,
    raw: &RawConfig,
    machine: &Machine,
) -> Option<Config> {
    let reactors = reactors(report, raw, machine);
    let (listeners, port_taken) = listeners::listeners(report, &raw.listener);
    let devices = devices::devices(report, &raw.device);
    let subsystems = subsystems::subsystems(report, &raw.subsystem, &raw.device);
    let needs = Needs::of(reactors.len(), &listeners, &devices);
    let limits = limits::limits(report, &raw.limits, &needs, machine);
    let pacing = pacing(report, &raw.pacing, &limits);
    let second = Duration::from_secs(1);
    Some(Config {
        reactors,
        busy_poll: raw.busy_poll.as_ref().map_or(defaults::BUSY_POLL, |value| *value.get_ref()),
        drain_timeout: duration(
            report,
            "drain-timeout",
            &raw.drain_timeout,
            defaults::DRAIN_TIMEOUT,
            Duration::ZERO..=3600 * second,
        ),
        log: raw
            .log
            .as_ref()
            .and_then(|value| choice(report, "log", value, &LOG_LEVELS))
            .unwrap_or(defaults::LOG),
        limits,
        pacing,
        listeners,
        port_taken,
        devices,
        subsystems,
        referrals: listeners::referrals(report, &raw.referral),
        warnings: Vec::new(),
    })
}

fn reactors(report: &mut Report<'_>, raw: &RawConfig, machine: &Machine) -> Vec<usize> {
    let all: Span = 0..0;
    let (text, span) = match &raw.reactors {
        Some(value) => (value.get_ref().as_str(), value.span()),
        None => (defaults::REACTORS, all),
    };
    cpus::parse(text, &machine.cpus).unwrap_or_else(|what| {
        report.error(&span, "reactors", what, cpus::FORM);
        // Only to go on looking: one is the least there can be.
        vec![0]
    })
}

fn pacing(report: &mut Report<'_>, raw: &RawPacing, limits: &Limits) -> Pacing {
    let Some(policy) = &raw.policy else {
        if let Some(budget) = &raw.budget {
            let what = "without a policy there is no budget";
            let allowed = "set policy = \"buffer-credit\", or leave it out";
            report.error(&budget.span(), "pacing.budget", what, allowed);
        }
        return Pacing::None;
    };
    let name = policy.get_ref().as_str();
    match name {
        "none" => {
            if let Some(budget) = &raw.budget {
                let what = "policy \"none\" has no budget";
                let allowed = "set policy = \"buffer-credit\", or leave it out";
                report.error(&budget.span(), "pacing.budget", what, allowed);
            }
            return Pacing::None;
        }
        "buffer-credit" => {}
        _ => {
            let what = if LATER_POLICIES.contains(&name) {
                format!("policy \"{name}\" is not built yet")
            } else {
                format!("there is no policy \"{name}\"")
            };
            let allowed = values::one_of(&["none", "buffer-credit"], name);
            report.error(&policy.span(), "pacing.policy", what, allowed);
            return Pacing::None;
        }
    }
    let budget = match &raw.budget {
        None => limits.default_budget(),
        Some(value) => {
            let Some(bytes) = size(report, "pacing.budget", value) else { return Pacing::None };
            if let Err(problem) = limits.check_budget(bytes) {
                report.error(&value.span(), "pacing.budget", problem.what, problem.allowed);
            }
            bytes
        }
    };
    Pacing::BufferCredit { budget }
}
