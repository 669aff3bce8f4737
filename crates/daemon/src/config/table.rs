//! A table of the file that the model reads, with the positions of its keys.
//!
//! The model (`nvmeof_api::document`) has no positions, because the API and the command line have
//! none. They are kept beside it, by key.

use std::collections::BTreeMap;

use nvmeof_api::document::Tagged;
use nvmeof_api::document::tagged::{self, KeyError};
use serde_json::Value;
use toml::de::{DeTable, DeValue};
use toml::{Spanned, Table};

use super::report::Span;
use super::values::Key;

/// A table as written: its keys as the model reads them, and their positions.
#[derive(Debug)]
pub(crate) struct WrittenTable<T> {
    /// The keys; `None` if the tag is wrong or a value has another form.
    pub(crate) config: Option<T>,
    /// Problems of the keys.
    pub(crate) errors: Vec<KeyError>,
    /// Positions.
    pub(crate) at: Positions,
    common: BTreeMap<&'static str, String>,
}

impl<T: Tagged> WrittenTable<T> {
    /// Reads a table; `positions` is the same table with positions.
    pub(crate) fn new(table: &Spanned<Table>, positions: Option<&DeTable<'_>>) -> Self {
        let at = Positions::new(table.span(), positions);
        // A table of TOML is a map of JSON.
        let mut keys = match serde_json::to_value(table.get_ref()) {
            Ok(Value::Object(keys)) => keys,
            _ => serde_json::Map::new(),
        };
        let (mut common, mut errors) = (BTreeMap::new(), Vec::new());
        for key in T::COMMON {
            match keys.remove(*key).map(serde_json::from_value) {
                Some(Ok(text)) => _ = common.insert(*key, text),
                Some(Err(error)) => {
                    errors.push(KeyError::Form { key: (*key).into(), what: error.to_string() });
                }
                None => {}
            }
        }
        let (config, others) = tagged::read(keys);
        errors.extend(others);
        Self { config, errors, at, common }
    }

    /// Returns a key that all variants have, with its position.
    pub(crate) fn common(&self, key: &str) -> Key<String> {
        let value = self.common.get(key).cloned();
        self.at.key(key, &value)
    }
}

/// Positions of a table and of its keys.
#[derive(Debug)]
pub(crate) struct Positions {
    /// Header of the table.
    pub(crate) header: Span,
    keys: BTreeMap<String, KeyPosition>,
}

#[derive(Debug)]
struct KeyPosition {
    name: Span,
    value: Span,
    members: Vec<Span>,
}

impl Positions {
    fn new(header: Span, table: Option<&DeTable<'_>>) -> Self {
        let position = |(key, value): (&Spanned<_>, &Spanned<DeValue<'_>>)| {
            let members = match value.get_ref() {
                DeValue::Array(members) => members.iter().map(Spanned::span).collect(),
                _ => Vec::new(),
            };
            KeyPosition { name: key.span(), value: value.span(), members }
        };
        let keys = table.into_iter().flatten();
        let keys = keys.map(|(key, value)| (key.get_ref().to_string(), position((key, value))));
        Self { header, keys: keys.collect() }
    }

    /// Returns the position of a key's name.
    pub(crate) fn of_name(&self, key: &str) -> Option<Span> {
        self.keys.get(key).map(|position| position.name.clone())
    }

    /// Returns the position of a key's value.
    pub(crate) fn of(&self, key: &str) -> Option<Span> {
        self.keys.get(key).map(|position| position.value.clone())
    }

    /// Returns the position of a key's value, or of the header if the key is absent.
    pub(crate) fn or_header(&self, key: &str) -> Span {
        self.of(key).unwrap_or(self.header.clone())
    }

    /// Returns the value of a key with its position.
    pub(crate) fn key<V: Clone>(&self, key: &str, value: &Option<V>) -> Key<V> {
        value.as_ref().map(|value| Spanned::new(self.or_header(key), value.clone()))
    }

    /// Returns the members of a list, each with its position.
    pub(crate) fn list(&self, key: &str, value: &Option<Vec<String>>) -> Key<Vec<Spanned<String>>> {
        let spans = self.keys.get(key).map_or(&[][..], |position| &position.members);
        let span = |at: usize| spans.get(at).cloned().unwrap_or_else(|| self.or_header(key));
        value.as_ref().map(|members| {
            let members = members.iter().enumerate();
            let members = members.map(|(at, member)| Spanned::new(span(at), member.clone()));
            Spanned::new(self.or_header(key), members.collect())
        })
    }
}
