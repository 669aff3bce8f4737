//! JSON values with their paths, so that every message can name the path.

use std::collections::BTreeSet;
use std::ops::RangeInclusive;

use serde_json::{Map, Value};

use crate::keys::{self, KeyTable, Treatment};
use crate::note::Notes;

/// Error of a text that is not a config of another target.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ImportError {
    /// The text is not JSON.
    #[error("this is no JSON: line {line}, column {column}: {what}")]
    NotJson {
        /// Line, from 1.
        line: usize,
        /// Column, from 1.
        column: usize,
        /// Error of the parser.
        what: String,
    },
    /// A line of a legacy config of SPDK is not valid.
    #[error("line {line}: {what}")]
    NotConf {
        /// Line, from 1.
        line: usize,
        /// The fault.
        what: String,
    },
    /// A text of no known format.
    #[error(
        "this is neither what nvmetcli saves nor an SPDK config: {what}; get one by \
         `nvmetcli save FILE` or `rpc.py save_config > FILE`"
    )]
    NeitherFormat {
        /// The missing part.
        what: String,
    },
    /// A value that is invalid for its key.
    #[error("{path}: {what}; {allowed}")]
    Wrong {
        /// Path of the value: `$.ports[0].addr.trsvcid`.
        path: String,
        /// The wrong value.
        what: String,
        /// Allowed values.
        allowed: String,
    },
    /// The text is longer than any config.
    #[error("{bytes} bytes are no config; at most {} are read", crate::TEXT_MAX)]
    TooLong {
        /// Length of the text.
        bytes: usize,
    },
}

/// Characters of a wrong value that a message shows.
const SHOWN_MAX: usize = 60;

/// A value and its path.
#[derive(Debug, Clone)]
pub(crate) struct JsonNode<'a> {
    value: &'a Value,
    path: String,
}

impl<'a> JsonNode<'a> {
    pub(crate) fn root(value: &'a Value) -> Self {
        Self { value, path: "$".into() }
    }

    pub(crate) fn path(&self) -> &str {
        &self.path
    }

    /// Returns the object with the table of its keys.
    pub(crate) fn object(&self, keys: KeyTable) -> Result<JsonObject<'a>, ImportError> {
        match self.value {
            Value::Object(map) => {
                Ok(JsonObject { map, path: self.path.clone(), keys, seen: BTreeSet::new() })
            }
            _ => Err(self.wrong("an object: { ... }")),
        }
    }

    /// Returns the value of a key of an object, without a record that it is read.
    pub(crate) fn peek(&self, key: &str) -> Option<Self> {
        let value = self.value.get(key).filter(|value| !value.is_null())?;
        Some(Self { value, path: format!("{}.{key}", self.path) })
    }

    /// Returns the entries of a list.
    pub(crate) fn list(&self) -> Result<Vec<Self>, ImportError> {
        let Value::Array(list) = self.value else { return Err(self.wrong("a list: [ ... ]")) };
        let entry = |(index, value)| Self { value, path: format!("{}[{index}]", self.path) };
        Ok(list.iter().enumerate().map(entry).collect())
    }

    pub(crate) fn is_text(&self) -> bool {
        self.value.is_string()
    }

    pub(crate) fn text(&self) -> Result<&'a str, ImportError> {
        self.value.as_str().ok_or_else(|| self.wrong("a text: \"...\""))
    }

    /// Returns a whole number, from a number or from text as in nvmetcli's files.
    pub(crate) fn number(&self, range: RangeInclusive<u64>) -> Result<u64, ImportError> {
        let number = match self.value {
            Value::Number(number) => number.as_u64(),
            Value::String(text) => text.trim().parse().ok(),
            _ => None,
        };
        let fits = number.filter(|number| range.contains(number));
        fits.ok_or_else(|| {
            self.wrong(&format!("a whole number from {} to {}", range.start(), range.end()))
        })
    }

    /// Returns a flag, from true and false or from 1 and 0 as in nvmetcli's files.
    pub(crate) fn flag(&self) -> Result<bool, ImportError> {
        match self.value {
            Value::Bool(flag) => Ok(*flag),
            Value::Number(number) if number.as_u64() == Some(0) => Ok(false),
            Value::Number(number) if number.as_u64() == Some(1) => Ok(true),
            Value::String(text) if text.trim() == "0" => Ok(false),
            Value::String(text) if text.trim() == "1" => Ok(true),
            _ => Err(self.wrong("true or false, or 1 or 0")),
        }
    }

    /// Returns true for null and for an empty text, list or object.
    fn is_empty(&self) -> bool {
        match self.value {
            Value::Null => true,
            Value::String(text) => text.is_empty(),
            Value::Array(list) => list.is_empty(),
            Value::Object(map) => map.is_empty(),
            Value::Bool(_) | Value::Number(_) => false,
        }
    }

    /// Returns the error that this value is not one of the allowed values.
    pub(crate) fn wrong(&self, allowed: &str) -> ImportError {
        ImportError::Wrong {
            path: self.path.clone(),
            what: format!("{} is not valid", self.shown()),
            allowed: format!("allowed: {allowed}"),
        }
    }

    /// Returns the value for a message: truncated, on one line.
    pub(crate) fn shown(&self) -> String {
        let text = match self.value {
            Value::Array(list) => format!("a list of {}", list.len()),
            Value::Object(map) => format!("an object of {}", map.len()),
            other => other.to_string(),
        };
        match text.char_indices().nth(SHOWN_MAX) {
            Some((end, _)) => format!("{}...", &text[..end]),
            None => text,
        }
    }
}

/// An object that records every key that is read.
#[derive(Debug)]
pub(crate) struct JsonObject<'a> {
    map: &'a Map<String, Value>,
    path: String,
    keys: KeyTable,
    seen: BTreeSet<&'a str>,
}

impl<'a> JsonObject<'a> {
    pub(crate) fn path(&self) -> &str {
        &self.path
    }

    /// Returns the value of a key that its table has as taken, unless it is absent or null.
    pub(crate) fn get(&mut self, key: &str) -> Option<JsonNode<'a>> {
        debug_assert!(
            matches!(keys::treatment(self.keys, key), Some(Treatment::Taken)),
            "the table has no taken key {key}"
        );
        let (key, value) = self.map.get_key_value(key)?;
        self.seen.insert(key);
        (!value.is_null()).then(|| JsonNode { value, path: self.path_of(key) })
    }

    /// Returns the value of a required key.
    pub(crate) fn need(&mut self, key: &str) -> Result<JsonNode<'a>, ImportError> {
        self.get(key).ok_or_else(|| ImportError::Wrong {
            path: self.path.clone(),
            what: format!("it has no \"{key}\""),
            allowed: "the config is not whole".into(),
        })
    }

    /// Returns the text of a key; `None` also for an empty one.
    pub(crate) fn text(&mut self, key: &str) -> Result<Option<&'a str>, ImportError> {
        let text = self.get(key).map(|node| node.text()).transpose()?;
        Ok(text.filter(|text| !text.is_empty()))
    }

    /// Returns the flag of a key; false if it is absent.
    pub(crate) fn flag(&mut self, key: &str) -> Result<bool, ImportError> {
        self.get(key).map_or(Ok(false), |node| node.flag())
    }

    /// Returns the entries of a list; none if the key is absent.
    pub(crate) fn list(&mut self, key: &str) -> Result<Vec<JsonNode<'a>>, ImportError> {
        self.get(key).map_or(Ok(Vec::new()), |node| node.list())
    }

    /// Marks keys as read that another note covers.
    pub(crate) fn skip(&mut self, keys: &[&str]) {
        for key in keys {
            self.get(key);
        }
    }

    /// Returns true if the object has the key.
    pub(crate) fn has(&self, key: &str) -> bool {
        self.map.contains_key(key)
    }

    /// Adds the notes of the keys that were not read, according to the table.
    pub(crate) fn finish(self, notes: &mut Notes) {
        for (key, value) in self.map {
            let node = JsonNode { value, path: self.path_of(key) };
            if self.seen.contains(key.as_str()) || node.is_empty() {
                continue;
            }
            let what = match keys::treatment(self.keys, key) {
                Some(Treatment::Unnoticed(_)) => continue,
                Some(Treatment::Lost { except, .. }) if keys::is_excepted(value, except) => {
                    continue;
                }
                Some(Treatment::Lost { consequence, .. }) => consequence,
                Some(Treatment::Taken) | None => "this key has no counterpart",
            };
            notes.unsupported(node.path(), format!("{what} ({})", node.shown()));
        }
    }

    fn path_of(&self, key: &str) -> String {
        let plain = key.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
        if plain && !key.is_empty() {
            format!("{}.{key}", self.path)
        } else {
            format!("{}[{}]", self.path, Value::from(key))
        }
    }
}
