//! Parses text into [`RawConfig`] and converts the parser's errors to problems.

use nvmeof_api::document::tagged::KeyError;
use nvmeof_api::document::{DeviceConfig, FORMAT, PacingConfig};
use nvmeof_api::suggest::closest;
use serde::Deserialize;
use toml::de::{DeTable, DeValue};
use toml::{Spanned, Table};

use super::raw::RawConfig;
use crate::config::report::{Report, Span};
use crate::config::table::WrittenTable;

/// A config as written.
#[derive(Debug)]
pub(super) struct Parsed {
    /// All tables but those of devices and of pacing.
    pub(super) raw: RawConfig,
    /// `[pacing]`, which may be absent.
    pub(super) pacing: WrittenTable<PacingConfig>,
    /// `[[device]]`.
    pub(super) devices: Vec<WrittenTable<DeviceConfig>>,
}

/// Parses the text, or reports its syntax errors.
pub(super) fn parse(report: &mut Report<'_>) -> Option<Parsed> {
    if is_newer(report) {
        return None;
    }
    match toml::from_str(report.text()) {
        Ok(raw) => tables(report, raw),
        Err(error) => {
            explain(report, &error);
            None
        }
    }
}

/// Reads the tables of devices and of pacing, or reports their unknown keys and wrong types.
fn tables(report: &mut Report<'_>, raw: RawConfig) -> Option<Parsed> {
    let (positions, _) = DeTable::parse_recoverable(report.text());
    let positions = positions.get_ref();
    let members = match positions.get("device").map(Spanned::get_ref) {
        Some(DeValue::Array(members)) => &members[..],
        _ => &[],
    };
    let devices = raw.device.iter().enumerate();
    let devices: Vec<_> = devices
        .map(|(at, device)| WrittenTable::new(device, members.get(at).and_then(table)))
        .collect();
    let none = || Spanned::new(0..0, Table::new());
    let written = raw.pacing.clone().unwrap_or_else(none);
    let pacing = WrittenTable::new(&written, positions.get("pacing").and_then(table));
    let mut is_malformed = malformed(report, "pacing", &pacing);
    for device in &devices {
        is_malformed |= malformed(report, "device", device);
    }
    (!is_malformed).then_some(Parsed { raw, pacing, devices })
}

fn table<'t, 'i>(value: &'t Spanned<DeValue<'i>>) -> Option<&'t DeTable<'i>> {
    match value.get_ref() {
        DeValue::Table(table) => Some(table),
        _ => None,
    }
}

/// Reports the keys that make a table unreadable; returns true if there are any.
fn malformed<T>(report: &mut Report<'_>, name: &str, table: &WrittenTable<T>) -> bool {
    for error in &table.errors {
        match error {
            KeyError::Unknown { key, known } => {
                let span = table.at.of_name(key).unwrap_or(table.at.header.clone());
                unknown_key(report, &span, &join(name, key), key, known);
            }
            KeyError::Form { key, what } => {
                wrong_form(report, &table.at.or_header(key), &join(name, key), what);
            }
            _ => {}
        }
    }
    table.errors.iter().any(KeyError::is_malformed)
}

/// Reports a format of a newer version; then no other problem is reported.
fn is_newer(report: &mut Report<'_>) -> bool {
    #[derive(Deserialize)]
    struct Form {
        format: Spanned<i64>,
    }
    let Ok(Form { format }) = toml::from_str(report.text()) else { return false };
    if *format.get_ref() <= i64::from(FORMAT) {
        return false;
    }
    let version = env!("CARGO_PKG_VERSION");
    let what = format!("this file was written for format {} by a newer version", format.get_ref());
    let allowed = format!(
        "nvmeof-tgt {version} reads formats up to {FORMAT}: use the version that wrote the file, \
         or restore the previous file"
    );
    report.error(&format.span(), "format", what, allowed);
    true
}

fn explain(report: &mut Report<'_>, error: &toml::de::Error) {
    let span = error.span().unwrap_or(0..0);
    let message = error.message();
    let mut key = key_at(report.text(), &span);
    if key.is_empty() {
        key = key_of_line(report.text(), &span);
    }
    if let Some((unknown, allowed)) = unknown_field(message) {
        if !key.ends_with(unknown) {
            key = join(&key, unknown);
        }
        unknown_key(report, &span, &key, unknown, &allowed);
        return;
    }
    wrong_form(report, &span, &key, message);
}

/// Reports an unknown key.
fn unknown_key(report: &mut Report<'_>, span: &Span, key: &str, unknown: &str, known: &[&str]) {
    let meant = closest(unknown, known.iter().copied());
    let meant = meant.map_or_else(String::new, |name| format!(" (did you mean `{name}`?)"));
    let allowed = format!("allowed: {}{meant}", known.join(", "));
    report.error(span, key, "unknown key", allowed);
}

/// Reports a message of serde about a value.
fn wrong_form(report: &mut Report<'_>, span: &Span, key: &str, message: &str) {
    if let Some((what, expected)) = message.split_once(", expected ") {
        report.error(span, key, what, format!("allowed: {expected}"));
    } else {
        report.error(span, key, message, "");
    }
}

/// Extracts the unknown field and the known ones from an error message of serde.
fn unknown_field(message: &str) -> Option<(&str, Vec<&str>)> {
    let rest = message.strip_prefix("unknown field `")?;
    let (unknown, rest) = rest.split_once('`')?;
    // Every second part between backticks is a name.
    let allowed = rest.split('`').skip(1).step_by(2).collect();
    Some((unknown, allowed))
}

/// Returns the dotted key whose value or name is at `span`.
fn key_at(text: &str, span: &Span) -> String {
    let (table, _) = DeTable::parse_recoverable(text);
    let mut path = String::new();
    descend_table(table.get_ref(), span, &mut path);
    path
}

/// Returns the key before the `=` of the line, without its table, if the text does not parse.
fn key_of_line(text: &str, span: &Span) -> String {
    let start = text.get(..span.start).and_then(|before| before.rfind('\n')).map_or(0, |at| at + 1);
    let line = text[start..].lines().next().unwrap_or("");
    let bare = |key: &&str| {
        !key.is_empty() && key.chars().all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c))
    };
    let key = line.split_once('=').map(|(key, _)| key.trim());
    key.filter(bare).unwrap_or_default().to_owned()
}

fn descend_table(table: &DeTable<'_>, span: &Span, path: &mut String) {
    for (key, value) in table {
        if holds(&key.span(), span) {
            *path = join(path, key.get_ref());
            return;
        }
        if holds(&value.span(), span) || nested_holds(value, span) {
            *path = join(path, key.get_ref());
            descend(value, span, path);
            return;
        }
    }
}

fn descend(value: &Spanned<DeValue<'_>>, span: &Span, path: &mut String) {
    match value.get_ref() {
        DeValue::Table(table) => descend_table(table, span, path),
        DeValue::Array(array) => {
            let member = array
                .iter()
                .find(|member| holds(&member.span(), span) || nested_holds(member, span));
            if let Some(member) = member {
                descend(member, span, path);
            }
        }
        _ => {}
    }
}

/// Checks the contents as well: the span of a table covers only its header.
fn nested_holds(value: &Spanned<DeValue<'_>>, span: &Span) -> bool {
    match value.get_ref() {
        DeValue::Table(table) => table.iter().any(|(key, value)| {
            holds(&key.span(), span) || holds(&value.span(), span) || nested_holds(value, span)
        }),
        DeValue::Array(array) => {
            array.iter().any(|member| holds(&member.span(), span) || nested_holds(member, span))
        }
        _ => false,
    }
}

fn holds(outer: &Span, inner: &Span) -> bool {
    outer.start <= inner.start && inner.end <= outer.end && inner.start < outer.end
}

fn join(path: &str, key: &str) -> String {
    if path.is_empty() { key.into() } else { format!("{path}.{key}") }
}
