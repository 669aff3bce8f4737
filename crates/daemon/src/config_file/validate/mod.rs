//! Converts the config as written to a valid [`Config`].

mod api;
mod devices;
mod drives;
mod limits;
mod listeners;
mod order;
mod pacing;
mod root_complexes;
mod subsystems;
mod tenants;

use std::time::Duration;

use nvmeof_api::document::FORMAT;

use super::parse::Parsed;
use super::raw::RawConfig;
use super::{Machine, cpus};
use crate::config::report::{Report, Span};
use crate::config::values::{choice, duration, integer};
use crate::config::{Config, LogFormat, LogLevel};
use crate::limits::LimitInputs;

/// Defaults of absent keys. The example config states the same; a test compares them.
pub(super) mod defaults {
    use std::time::Duration;

    use super::{LogFormat, LogLevel};

    pub(in crate::config_file) const REACTORS: &str = "auto";
    pub(in crate::config_file) const BUSY_POLL: bool = false;
    pub(in crate::config_file) const DRAIN_TIMEOUT: Duration = Duration::from_secs(10);
    pub(in crate::config_file) const LOG: LogLevel = LogLevel::Info;
    pub(in crate::config_file) const LOG_FORMAT: LogFormat = LogFormat::Text;
    pub(in crate::config_file) const API_SOCKET: &str = nvmeof_api::DEFAULT_SOCKET;
    pub(in crate::config_file) const API_MODE: u32 = 0o660;
    pub(in crate::config_file) const RPC_SOCKET: &str = "/var/tmp/spdk.sock";
    pub(in crate::config_file) const RPC_MODE: u32 = 0o660;
    pub(in crate::config_file) use nvmeof_api::document::{DISCOVERY_PORT, NVM_PORT};
    pub(in crate::config_file) const WEIGHT: u16 = 1;
    pub(in crate::config_file) const BURST: u64 = 10_000_000;
    pub(in crate::config_file) const MODEL: &str = "nvmeof-tgt";
}

const LOG_FORMATS: [(&str, LogFormat); 2] = [("text", LogFormat::Text), ("json", LogFormat::Json)];
const LOG_LEVELS: [(&str, LogLevel); 6] = [
    ("off", LogLevel::Off),
    ("error", LogLevel::Error),
    ("warn", LogLevel::Warn),
    ("info", LogLevel::Info),
    ("debug", LogLevel::Debug),
    ("trace", LogLevel::Trace),
];

/// Validates everything and reports all problems; the result is valid only if there are none.
pub(super) fn validate(
    report: &mut Report<'_>,
    parsed: &Parsed,
    machine: &Machine,
) -> Option<Config> {
    let raw = &parsed.raw;
    let reactors = reactors(report, raw, machine);
    let (listeners, port_taken) =
        listeners::listeners(report, &raw.listener, &raw.subsystem, raw.rpc.is_some());
    let devices = devices::devices(report, &parsed.devices, &machine.open);
    let needs = LimitInputs::of(reactors.len(), &listeners, &devices);
    let limits = limits::limits(report, &raw.limits, &needs, machine);
    let pacing = pacing::pacing(report, &parsed.pacing, &limits.pacing());
    let bounds = limits.tenants();
    let subsystems = subsystems::subsystems(report, &raw.subsystem, &parsed.devices, &bounds);
    let (host_defaults, hosts) = tenants::hosts(report, &raw.host_defaults, &raw.host, &bounds);
    let second = Duration::from_secs(1);
    // A newer format was rejected earlier.
    integer(report, "format", &raw.format, FORMAT, 1..=FORMAT);
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
        log_format: raw
            .log_format
            .as_ref()
            .and_then(|value| choice(report, "log-format", value, &LOG_FORMATS))
            .unwrap_or(defaults::LOG_FORMAT),
        api: api::api(report, raw.api.as_ref()),
        rpc: api::rpc(report, raw.rpc.as_ref(), raw.api.as_ref()),
        limits: limits.settings,
        pacing,
        host_defaults,
        hosts,
        listeners,
        port_taken,
        devices,
        root_complexes: root_complexes::capacities(report, &raw.root_complex),
        subsystems,
        referrals: listeners::referrals(report, &raw.referral),
        discovery: listeners::discovery(report, &raw.discovery, &raw.subsystem),
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
        // Validation continues with the minimum of one reactor.
        vec![0]
    })
}
