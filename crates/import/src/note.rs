//! Notes of an import for the operator.

use std::fmt;

/// Treatment of a setting without counterpart.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum NoteKind {
    /// The new config lacks the setting, and a function is missing without it.
    Unsupported,
    /// The new config has the setting, with a changed value.
    Converted,
    /// The setting concerns the internals of the other program; no function is missing.
    NotApplicable,
}

/// One note for the operator.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Note {
    /// Treatment of the setting.
    pub kind: NoteKind,
    /// Path of the setting: `$.ports[0].addr`.
    pub path: String,
    /// Content of the setting, and the reason of the change.
    pub what: String,
}

impl fmt::Display for NoteKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Unsupported => "unsupported",
            Self::Converted => "converted",
            Self::NotApplicable => "not applicable",
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
    pub(crate) fn unsupported(&mut self, path: &str, what: impl Into<String>) {
        self.add(NoteKind::Unsupported, path, what.into());
    }

    pub(crate) fn converted(&mut self, path: &str, what: impl Into<String>) {
        self.add(NoteKind::Converted, path, what.into());
    }

    pub(crate) fn not_applicable(&mut self, path: &str, what: impl Into<String>) {
        self.add(NoteKind::NotApplicable, path, what.into());
    }

    pub(crate) fn into_list(self) -> Vec<Note> {
        self.0
    }

    /// Replaces every path by what `place` returns for it.
    pub(crate) fn place(&mut self, place: impl Fn(&str) -> String) {
        for note in &mut self.0 {
            note.path = place(&note.path);
        }
    }

    fn add(&mut self, kind: NoteKind, path: &str, what: String) {
        self.0.push(Note { kind, path: path.into(), what });
    }
}
