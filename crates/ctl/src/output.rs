//! What is printed: tables for people, JSON for programs.

use std::io::{ErrorKind, Write as _};

use anyhow::Context as _;
use serde::Serialize;

/// Writes to standard output. A reader that has seen enough is no error.
pub(crate) fn print(text: &str) -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => {
            Err(error).context("cannot write to standard output")
        }
        _ => Ok(()),
    }
}

/// Writes a value as JSON.
pub(crate) fn print_json(value: &impl Serialize) -> anyhow::Result<()> {
    print(&(serde_json::to_string_pretty(value)? + "\n"))
}

/// Lines of a name and a value, the values below each other. Control characters of values do not reach
/// the terminal.
pub(crate) fn pairs(pairs: &[(&str, String)]) -> String {
    let width = pairs.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
    let line = |(name, value): &(&str, String)| {
        let value = value.replace(char::is_control, " ");
        format!("{:<1$}  {value}", format!("{name}:"), width + 1).trim_end().to_owned() + "\n"
    };
    pairs.iter().map(line).collect()
}

/// Words with commas between; `-` for none.
pub(crate) fn list(words: &[String]) -> String {
    if words.is_empty() { "-".into() } else { words.join(", ") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_stand_below_each_other() {
        let text = pairs(&[("a", "1".into()), ("long", "2\u{1b}".into()), ("b", String::new())]);
        assert_eq!(text, "a:     1\nlong:  2\nb:\n");
        assert_eq!((list(&[]), list(&["x".into(), "y".into()])), ("-".into(), "x, y".into()));
    }
}
