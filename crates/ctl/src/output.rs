//! Output: tables as text, or JSON.

use std::io::{self, ErrorKind, Write};
use std::ops::ControlFlow;

use anyhow::Context as _;
use serde::Serialize;

/// Writes to standard output. A reader that has closed the pipe is not an error.
pub(crate) fn print(text: &str) -> anyhow::Result<()> {
    print_next(text).map(drop)
}

/// Writes one of many texts to standard output.
///
/// Breaks if the reader has closed the pipe, so that no more text is produced.
pub(crate) fn print_next(text: &str) -> anyhow::Result<ControlFlow<()>> {
    put(&mut io::stdout().lock(), text).context("cannot write to standard output")
}

fn put(out: &mut impl Write, text: &str) -> io::Result<ControlFlow<()>> {
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Ok(()) => Ok(ControlFlow::Continue(())),
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(ControlFlow::Break(())),
        Err(error) => Err(error),
    }
}

/// Writes a value as JSON.
pub(crate) fn print_json(value: &impl Serialize) -> anyhow::Result<()> {
    print(&(serde_json::to_string_pretty(value)? + "\n"))
}

/// Formats names and values, one pair per line, with the values aligned.
///
/// Control characters in values do not reach the terminal.
pub(crate) fn pairs(pairs: &[(&str, String)]) -> String {
    let width = pairs.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
    let line = |(name, value): &(&str, String)| {
        let value = value.replace(char::is_control, " ");
        format!("{:<1$}  {value}", format!("{name}:"), width + 1).trim_end().to_owned() + "\n"
    };
    pairs.iter().map(line).collect()
}

/// Formats bytes with a unit.
pub(crate) fn bytes(bytes: u64) -> String {
    let units = [(40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")];
    match units.iter().find(|(shift, _)| bytes >> shift > 0) {
        None => format!("{bytes} B"),
        Some((shift, unit)) => {
            // One digit after the point, rounded down: a size never appears larger than it is.
            let tenths = (u128::from(bytes) * 10) >> shift;
            match (tenths / 10, tenths % 10) {
                (whole, 0) => format!("{whole} {unit}"),
                (whole, tenth) => format!("{whole}.{tenth} {unit}"),
            }
        }
    }
}

/// Joins words with commas; `-` for none.
pub(crate) fn list(words: &[String]) -> String {
    if words.is_empty() { "-".into() } else { words.join(", ") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reader_that_has_seen_enough_ends_what_goes_on() {
        let (reader, mut writer) = io::pipe().unwrap();
        assert!(put(&mut writer, "a").unwrap().is_continue());
        drop(reader);
        assert!(put(&mut writer, "a").unwrap().is_break());
        let mut full = std::fs::File::options().write(true).open("/dev/full").unwrap();
        assert_eq!(put(&mut full, "a").unwrap_err().kind(), ErrorKind::StorageFull);
    }

    #[test]
    fn sizes() {
        for (size, text) in [
            (0, "0 B"),
            (1023, "1023 B"),
            (1024, "1 KiB"),
            (1536, "1.5 KiB"),
            ((1 << 30) - 1, "1023.9 MiB"),
            (u64::MAX, "16777215.9 TiB"),
        ] {
            assert_eq!(bytes(size), text);
        }
    }

    #[test]
    fn values_stand_below_each_other() {
        let text = pairs(&[("a", "1".into()), ("long", "2\u{1b}".into()), ("b", String::new())]);
        assert_eq!(text, "a:     1\nlong:  2\nb:\n");
        assert_eq!((list(&[]), list(&["x".into(), "y".into()])), ("-".into(), "x, y".into()));
    }
}
