//! A config together with its document.
//!
//! Both are read from the same file. A changed document is validated through the text that would be
//! written for it.

use std::io;
use std::path::Path;

use nvmeof_api::document::{Document, FORMAT};
use nvmeof_core::block::FileConfig;

use super::Machine;
use crate::config::{Config, ConfigError, Problem};
use crate::regular;

/// Name of a document in messages.
const NAME: &str = "config";

/// A config and its document.
#[derive(Debug, Clone)]
pub(crate) struct Loaded {
    /// Validated form.
    pub(crate) config: Config,
    /// Document form.
    pub(crate) document: Document,
    /// Text of both.
    pub(crate) text: String,
}

impl Loaded {
    /// Reads and validates a file for this machine.
    ///
    /// # Errors
    /// As [`Config::load`].
    pub(crate) fn read(file: &Path) -> Result<Self, ConfigError> {
        // A pipe is acceptable: the process that starts the daemon writes it.
        Self::of_text(file, Vec::new(), std::fs::read_to_string(file))
    }

    /// Reads and validates a file again while these file devices are open.
    ///
    /// Anything but a regular file is rejected, because a pipe may have no writer.
    ///
    /// # Errors
    /// As [`Config::load`].
    pub(crate) fn read_again(file: &Path, open: Vec<FileConfig>) -> Result<Self, ConfigError> {
        Self::of_text(file, open, regular::read(file))
    }

    fn of_text(
        file: &Path,
        open: Vec<FileConfig>,
        text: io::Result<String>,
    ) -> Result<Self, ConfigError> {
        let name = file.display().to_string();
        let machine = machine(&name, open)?;
        let text = text.map_err(|error| {
            let what = format!("cannot read the file: {error}");
            whole(&name, what, "name a readable TOML file")
        })?;
        let config = Config::parse(&name, &text, &machine)?;
        // The document accepts what the parser accepts: a test compares their keys.
        let document = Document::from_toml(&text)
            .map_err(|error| whole(&name, error.to_string(), "this is a defect: report it"))?;
        Ok(Self { config, document: Document { format: Some(FORMAT), ..document }, text })
    }

    /// Validates a document as if it were read from a file.
    ///
    /// # Errors
    /// All problems, at lines of the text that would be written.
    pub(crate) fn of(document: Document, open: Vec<FileConfig>) -> Result<Self, Refused> {
        let machine =
            machine(NAME, open).map_err(|error| Refused { error, text: String::new() })?;
        let text = document.to_toml().map_err(|error| Refused {
            error: whole(NAME, error.to_string(), "allowed: numbers up to 9223372036854775807"),
            text: String::new(),
        })?;
        match Config::parse(NAME, &text, &machine) {
            Ok(config) => {
                Ok(Self { config, document: Document { format: Some(FORMAT), ..document }, text })
            }
            Err(error) => Err(Refused { error, text }),
        }
    }
}

/// An invalid document.
#[derive(Debug)]
pub(crate) struct Refused {
    /// Problems of the document.
    pub(crate) error: ConfigError,
    /// Text that the line numbers refer to.
    pub(crate) text: String,
}

fn machine(name: &str, open: Vec<FileConfig>) -> Result<Machine, ConfigError> {
    match Machine::this() {
        Ok(machine) => Ok(Machine { open, ..machine }),
        Err(error) => Err(whole(name, format!("cannot find out about this machine: {error}"), "")),
    }
}

fn whole(file: &str, what: String, allowed: &str) -> ConfigError {
    let (file, key, allowed) = (file.to_owned(), String::new(), allowed.to_owned());
    ConfigError { problems: vec![Problem { file, position: None, key, what, allowed }] }
}

/// Returns the place of a problem without line numbers, like `device[ram0].size`.
pub(crate) fn place(text: &str, problem: &Problem) -> String {
    let item = problem.position.and_then(|(line, _)| Item::at(text, line));
    let in_limit = problem.key.find(".limit.").map(|at| &problem.key[at + 1..]);
    let last = in_limit.or_else(|| problem.key.rsplit('.').next()).unwrap_or_default();
    match item {
        Some(item) if last == item.table => item.path(),
        Some(item) => format!("{}.{last}", item.path()),
        None => problem.key.clone(),
    }
}

/// Replaces a line number in a message by the name of the item at that line.
pub(crate) fn without_lines(text: &str, what: &str) -> String {
    let Some((before, rest)) = what.split_once(" of line ") else { return what.to_owned() };
    let end = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
    let (line, after) = rest.split_at(end);
    match line.parse().ok().and_then(|line| Item::at(text, line)) {
        Some(item) => format!("{before} {}{after}", item.path()),
        None => what.to_owned(),
    }
}

/// A member of a list: its table, its name, and its parent.
struct Item<'t> {
    table: &'t str,
    name: String,
    parent: Option<Box<Self>>,
}

impl<'t> Item<'t> {
    /// Finds the member that a line belongs to.
    fn at(text: &'t str, line: usize) -> Option<Self> {
        let lines: Vec<&str> = text.lines().collect();
        // A limit belongs to the member that contains it.
        let is_header = |line: &&str| line.starts_with('[') && !line.ends_with(".limit]");
        let at = (0..line.min(lines.len())).rev().find(|at| is_header(&lines[*at]))?;
        let header = lines[at].strip_prefix("[[")?.trim_end_matches(']');
        let (outer, table) = match header.split_once('.') {
            Some((outer, table)) => (Some(outer), table),
            None => (None, header),
        };
        let parent = outer.and_then(|outer| {
            let header = format!("[[{outer}]]");
            let at = (0..at).rev().find(|at| lines[*at] == header)?;
            Self::at(text, at + 1).map(Box::new)
        });
        let keys = lines[at + 1..].iter().take_while(|line| !is_header(line));
        let pairs: Vec<(&str, &str)> = keys.filter_map(|line| line.split_once(" = ")).collect();
        let value = |key: &str| {
            let found = pairs.iter().find(|(name, _)| *name == key);
            found.map(|(_, value)| value.trim_matches(['"', '\'']).to_owned())
        };
        let name = match table {
            "device" => value("name"),
            "subsystem" | "host" => value("nqn"),
            "namespace" => value("nsid"),
            _ => value("address"),
        };
        Some(Self { table, name: name.unwrap_or_default(), parent })
    }

    fn path(&self) -> String {
        let own = format!("{}[{}]", self.table, self.name);
        match &self.parent {
            Some(parent) => format!("{}.{own}", parent.path()),
            None => own,
        }
    }
}

#[cfg(test)]
mod tests {
    use rustix::fs::{CWD, FileType, Mode, mknodat};

    use super::*;

    const TEXT: &str = "busy-poll = true\n\n[[device]]\nname = \"a\"\nsize = 1\n\n[[subsystem]]\n\
                        nqn = \"n\"\n\n[[subsystem.namespace]]\nnsid = 1\ndevice = \"a\"\n";

    fn problem(line: usize, key: &str) -> Problem {
        let (file, what, allowed) = (String::new(), String::new(), String::new());
        Problem { file, position: Some((line, 1)), key: key.into(), what, allowed }
    }

    #[test]
    fn a_reload_does_not_wait_for_who_writes_a_fifo() {
        let folder = tempfile::tempdir().unwrap();
        let fifo = folder.path().join("target.toml");
        mknodat(CWD, &fifo, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
        let error = Loaded::read_again(&fifo, Vec::new()).unwrap_err();
        assert!(error.to_string().contains("not a regular file"), "{error}");
    }

    #[test]
    fn problems_are_told_by_the_items_names() {
        for (line, key, wanted) in [
            (1, "busy-poll", "busy-poll"),
            (5, "device.size", "device[a].size"),
            (3, "device.type", "device[a].type"),
            (7, "subsystem", "subsystem[n]"),
            (12, "namespace.device", "subsystem[n].namespace[1].device"),
        ] {
            assert_eq!(place(TEXT, &problem(line, key)), wanted);
        }
        let what = without_lines(TEXT, "the namespace of line 11 has device \"a\" already");
        assert_eq!(what, "the namespace subsystem[n].namespace[1] has device \"a\" already");
        assert_eq!(without_lines(TEXT, "of its own"), "of its own");
    }
}
