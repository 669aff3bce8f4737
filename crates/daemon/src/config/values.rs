//! Single values: ranges, sizes, durations, choices.

use std::fmt::{self, Display};
use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::time::Duration;

use nvmeof_api::document::Size;
use nvmeof_api::suggest::closest;
use nvmeof_api::units::{
    DURATION_FORM, LATENCY_FORM, SIZE_FORM, parse_duration, parse_latency, parse_size,
    show_duration, show_size,
};
use nvmeof_wire::Nqn;
use toml::Spanned;

use super::report::{Report, Span};

/// A value and its position; `None` if the key is absent.
pub(crate) type Key<T> = Option<Spanned<T>>;

/// Validates an integer in a range; an absent key has the default.
pub(crate) fn integer<T>(
    report: &mut Report<'_>,
    name: &str,
    key: &Key<i64>,
    default: T,
    range: RangeInclusive<T>,
) -> T
where
    T: TryFrom<i64> + PartialOrd + Display,
{
    let Some(value) = key else { return default };
    match T::try_from(*value.get_ref()) {
        Ok(number) if range.contains(&number) => number,
        _ => {
            let what = format!("{} is out of range", value.get_ref());
            let allowed = format!("allowed: {} to {}", range.start(), range.end());
            report.error(&value.span(), name, what, allowed);
            default
        }
    }
}

/// Parses a size in bytes; reports an invalid one.
pub(crate) fn size(report: &mut Report<'_>, name: &str, value: &Spanned<Size>) -> Option<u64> {
    match value.get_ref() {
        Size::Bytes(bytes) => Some(*bytes),
        Size::Text(text) => match parse_size(text) {
            Ok(bytes) => Some(bytes),
            Err(what) => {
                report.error(&value.span(), name, what, SIZE_FORM);
                None
            }
        },
    }
}

/// Validates a size in a range; an absent key has the default.
pub(crate) fn size_within(
    report: &mut Report<'_>,
    name: &str,
    key: &Key<Size>,
    default: u64,
    range: RangeInclusive<u64>,
) -> u64 {
    let Some(value) = key else { return default };
    match size(report, name, value) {
        Some(bytes) if range.contains(&bytes) => bytes,
        Some(bytes) => {
            let what = format!("{} is out of range", show_size(bytes));
            let allowed =
                format!("allowed: {} to {}", show_size(*range.start()), show_size(*range.end()));
            report.error(&value.span(), name, what, allowed);
            default
        }
        None => default,
    }
}

/// Validates a duration in a range; an absent key has the default.
pub(crate) fn duration(
    report: &mut Report<'_>,
    name: &str,
    key: &Key<String>,
    default: Duration,
    range: RangeInclusive<Duration>,
) -> Duration {
    let Some(value) = key else { return default };
    match parse_duration(value.get_ref()) {
        Ok(duration) if range.contains(&duration) => return duration,
        Ok(duration) => {
            let (least, most) = (show_duration(*range.start()), show_duration(*range.end()));
            let what = format!("{} is out of range", show_duration(duration));
            report.error(&value.span(), name, what, format!("allowed: {least} to {most}"));
        }
        Err(what) => report.error(&value.span(), name, what, DURATION_FORM),
    }
    default
}

/// Converts one of a list of words to its value.
pub(crate) fn choice<T: Copy>(
    report: &mut Report<'_>,
    name: &str,
    value: &Spanned<String>,
    choices: &[(&str, T)],
) -> Option<T> {
    let text = value.get_ref();
    if let Some((_, chosen)) = choices.iter().find(|(word, _)| word == text) {
        return Some(*chosen);
    }
    let words: Vec<&str> = choices.iter().map(|(word, _)| *word).collect();
    let allowed = one_of(&words, text);
    report.error(&value.span(), name, format!("\"{text}\" is not known"), allowed);
    None
}

/// Shows the allowed words, with a suggestion if one is close to `wrong`.
pub(crate) fn one_of(words: &[&str], wrong: &str) -> impl Display {
    fmt::from_fn(move |f| {
        let quoted: Vec<String> = words.iter().map(|word| format!("\"{word}\"")).collect();
        write!(f, "allowed: {}", quoted.join(", "))?;
        match closest(wrong, words.iter().copied()) {
            Some(word) => write!(f, " (did you mean \"{word}\"?)"),
            None => Ok(()),
        }
    })
}

/// Reports an absent key that is required; `header` is the start of its table.
pub(crate) fn required<'k, T>(
    report: &mut Report<'_>,
    header: &Span,
    name: &str,
    key: &'k Key<T>,
    form: impl Display,
) -> Option<&'k Spanned<T>> {
    if key.is_none() {
        report.error(header, name, "missing", form);
    }
    key.as_ref()
}

/// Parses an IPv4 or IPv6 address.
pub(crate) fn address(
    report: &mut Report<'_>,
    name: &str,
    value: &Spanned<String>,
) -> Option<IpAddr> {
    let text = value.get_ref();
    let bare = text.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(text);
    match bare.parse() {
        Ok(address) => Some(address),
        Err(_) => {
            report.error(
                &value.span(),
                name,
                format!("\"{text}\" is no IP address"),
                "allowed: an IPv4 or IPv6 address, as \"192.0.2.1\", \"::1\", or \"0.0.0.0\" and \
                 \"::\" for all of this machine",
            );
            None
        }
    }
}

/// Syntax of an NQN; ends every message about an invalid one.
pub(crate) const NQN_FORM: &str = "allowed: 1 to 223 bytes without control characters, as \
                        nqn.2026-11.org.example:disks";

/// Validates an NQN, of any form: hosts and other targets use many.
pub(crate) fn parse_nqn(
    report: &mut Report<'_>,
    key: &str,
    value: &Spanned<String>,
) -> Option<Nqn> {
    match value.get_ref().parse() {
        Ok(nqn) => Some(nqn),
        Err(error) => {
            let what = format!("\"{}\": {error}", value.get_ref());
            report.error(&value.span(), key, what, NQN_FORM);
            None
        }
    }
}

/// Validates a latency up to `most`; an absent key has the default.
pub(crate) fn latency(
    report: &mut Report<'_>,
    name: &str,
    key: &Key<String>,
    most: Duration,
    default: Duration,
) -> Option<Duration> {
    let Some(value) = key else { return Some(default) };
    let text = value.get_ref();
    match parse_latency(text) {
        Ok(latency) if latency <= most => return Some(latency),
        Ok(_) => {
            let what = format!("{text} is out of range");
            report.error(&value.span(), name, what, format!("allowed: 0 to {}s", most.as_secs()));
        }
        Err(what) => report.error(&value.span(), name, what, LATENCY_FORM),
    }
    None
}
