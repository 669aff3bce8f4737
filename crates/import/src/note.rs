//! Notes of an import for the operator.

use std::fmt;

/// Treatment of a setting without counterpart.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// The new config lacks the setting, and a function is missing without it.
    LeftOut,
    /// The new config has the setting, with a changed value.
    Changed,
    /// The setting concerns the internals of the other program; no function is missing.
    NotNeeded,
}

/// One note for the operator.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Note {
    /// Treatment of the setting.
    pub kind: Kind,
    /// Path of the setting: `$.ports[0].addr`.
    pub path: String,
    /// Content of the setting, and the reason of the change.
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
        // Names can have any character. A note is one line without control characters, so that it
        // does not control a terminal.
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
