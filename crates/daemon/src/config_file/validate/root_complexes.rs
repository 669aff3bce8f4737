//! `[[root-complex]]`.

use std::collections::BTreeMap;

use nvmeof_api::units::{RATE_FORM, parse_rate, show_rate};
use nvmeof_core::pci::{Capacities, RootComplex};
use toml::Spanned;

use super::super::raw::RawRootComplex;
use crate::config::report::{Report, Span};
use crate::config::values::required;

const ADDRESS_FORM: &str =
    "allowed: domain and root bus, as \"0000:60\"; `nvmeof-tgt drives list` shows them";

/// Bounds in bytes per second: one lane of PCIe 1.0, and more than any machine.
const LEAST: u64 = 250_000_000;
const MOST: u64 = 100_000_000_000_000;

/// Validates the configured capacities of root complexes.
pub(super) fn capacities(report: &mut Report<'_>, raw: &[Spanned<RawRootComplex>]) -> Capacities {
    let mut capacities = Capacities::default();
    let mut seen: BTreeMap<RootComplex, usize> = BTreeMap::new();
    for entry in raw {
        let (header, raw) = (entry.span(), entry.get_ref());
        let address = address(report, &header, raw, &mut seen);
        let bandwidth = bandwidth(report, &header, raw);
        if let (Some(address), Some(bandwidth)) = (address, bandwidth) {
            capacities.set(address, bandwidth);
        }
    }
    capacities
}

fn address(
    report: &mut Report<'_>,
    header: &Span,
    raw: &RawRootComplex,
    seen: &mut BTreeMap<RootComplex, usize>,
) -> Option<RootComplex> {
    let key = "root-complex.address";
    let value = required(report, header, key, &raw.address, ADDRESS_FORM)?;
    let Ok(address) = value.get_ref().parse::<RootComplex>() else {
        let what = format!("\"{}\" is no root complex", value.get_ref());
        report.error(&value.span(), key, what, ADDRESS_FORM);
        return None;
    };
    if let Some(first) = seen.insert(address, report.line(&value.span())) {
        let what = format!("line {first} says already what {address} carries");
        report.error(&value.span(), key, what, "name each root complex once");
    }
    Some(address)
}

/// Validates a capacity, in GB/s.
fn bandwidth(report: &mut Report<'_>, header: &Span, raw: &RawRootComplex) -> Option<f64> {
    let key = "root-complex.bandwidth";
    let value = required(report, header, key, &raw.bandwidth, RATE_FORM)?;
    match parse_rate(value.get_ref()) {
        #[expect(clippy::cast_precision_loss, reason = "far below 2^53")]
        Ok(bytes) if (LEAST..=MOST).contains(&bytes) => return Some(bytes as f64 / 1e9),
        Ok(bytes) => {
            let what = format!("{} is out of range", show_rate(bytes));
            let allowed = format!("allowed: {} to {}", show_rate(LEAST), show_rate(MOST));
            report.error(&value.span(), key, what, allowed);
        }
        Err(what) => report.error(&value.span(), key, what, RATE_FORM),
    }
    None
}
