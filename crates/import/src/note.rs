//! What a person has to be told of an import.

use std::fmt;

/// What became of something that has no counterpart.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// It is not in the new config, and something is missing without it.
    LeftOut,
    /// It is there, but not quite as it was.
    Changed,
    /// It says how the other program works inside; nothing is missing.
    NotNeeded,
}

/// One thing to be told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Note {
    /// What became of it.
    pub kind: Kind,
    /// Where it was: `$.ports[0].addr`.
    pub path: String,
    /// What it was, and why it is not as it was.
    pub what: String,
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::LeftOut => "left out",
            Self::Changed => "changed",
            Self::NotNeeded => "not needed",
        })
    }
}

impl fmt::Display for Note {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Names may have any character; a note is one line, and no terminal obeys it.
        let plain = |text: &str| text.replace(char::is_control, " ");
        write!(f, "{}: {}: {}", self.kind, plain(&self.path), plain(&self.what))
    }
}

/// The notes so far.
#[derive(Debug, Default)]
pub(crate) struct Notes(Vec<Note>);

impl Notes {
    pub(crate) fn left_out(&mut self, path: &str, what: impl Into<String>) {
        self.add(Kind::LeftOut, path, what.into());
    }

    pub(crate) fn changed(&mut self, path: &str, what: impl Into<String>) {
        self.add(Kind::Changed, path, what.into());
    }

    pub(crate) fn not_needed(&mut self, path: &str, what: impl Into<String>) {
        self.add(Kind::NotNeeded, path, what.into());
    }

    pub(crate) fn into_list(self) -> Vec<Note> {
        self.0
    }

    fn add(&mut self, kind: Kind, path: &str, what: String) {
        self.0.push(Note { kind, path: path.into(), what });
    }
}
