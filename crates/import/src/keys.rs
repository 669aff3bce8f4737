//! Tables of the keys of other targets' configs: the treatment of each key, and its reason.
//!
//! A reader opens every object with its table. A key that no table has gives a note, and so does a
//! key of the table that the reader did not read: nothing is dropped silently.

use serde_json::Value;

/// Treatment of a key.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Treatment {
    /// The reader takes the value over, or notes the reason against it.
    Taken,
    /// The value has no counterpart, which hosts can notice.
    Lost {
        /// Values, as JSON, that equal the behavior of nvmeof-tgt. They need no note.
        except: &'static [&'static str],
        /// Difference to hosts or to the operator.
        consequence: &'static str,
    },
    /// No host notices the value; the text is the reason.
    Unnoticed(&'static str),
}

/// Keys of one kind of object.
pub(crate) type KeyTable = &'static [(&'static str, Treatment)];

/// [`Treatment::Taken`].
pub(crate) const TAKEN: Treatment = Treatment::Taken;

/// Values of a flag that is off, in both forms.
pub(crate) const OFF: &[&str] = &["false", "0", "\"0\""];

/// Returns [`Treatment::Lost`].
pub(crate) const fn lost(except: &'static [&'static str], consequence: &'static str) -> Treatment {
    Treatment::Lost { except, consequence }
}

/// Returns [`Treatment::Unnoticed`].
pub(crate) const fn unnoticed(reason: &'static str) -> Treatment {
    Treatment::Unnoticed(reason)
}

/// Returns the treatment of a key; `None` if the table does not have it.
pub(crate) fn treatment(table: KeyTable, key: &str) -> Option<Treatment> {
    table.iter().find(|(name, _)| *name == key).map(|(_, treatment)| *treatment)
}

/// Returns true if the value is one of `except`.
pub(crate) fn is_excepted(value: &Value, except: &[&str]) -> bool {
    // Legacy configs have all values as text.
    let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    except.iter().any(|one| *one == text || one.trim_matches('"') == text)
}
