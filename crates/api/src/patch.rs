//! Patches of items: keys to set, and keys to remove (JSON Merge Patch, RFC 7396).

use std::borrow::Cow;
use std::fmt;
use std::marker::PhantomData;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use utoipa::openapi::schema::{ArrayItems, SchemaType};
use utoipa::openapi::{RefOr, Schema, Type};
use utoipa::{PartialSchema, ToSchema};

use crate::document::{Device, Namespace, Subsystem};

/// Keys of a `T` to set; `null` removes a key.
///
/// In a table, like `limit` of a namespace, only the named keys change.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Patch<T> {
    keys: Map<String, Value>,
    #[serde(skip)]
    of: PhantomData<fn() -> T>,
}

/// Patch of a device.
pub type DevicePatch = Patch<Device>;
/// Patch of a subsystem.
pub type SubsystemPatch = Patch<Subsystem>;
/// Patch of a namespace.
pub type NamespacePatch = Patch<Namespace>;

impl<T: Serialize + DeserializeOwned> Patch<T> {
    /// Creates a patch of these keys.
    #[must_use]
    pub fn new(keys: Map<String, Value>) -> Self {
        Self { keys, of: PhantomData }
    }

    /// Returns true if the patch contains this key.
    #[must_use]
    pub fn has(&self, key: &str) -> bool {
        self.keys.contains_key(key)
    }

    /// Creates an item of the patch's keys and of these.
    ///
    /// # Errors
    /// A key is missing or does not belong there, or a value has another type.
    pub fn create<'k>(
        &self,
        fixed: impl IntoIterator<Item = (&'k str, &'k str)>,
    ) -> Result<T, serde_json::Error> {
        let mut keys = self.keys.clone();
        keys.extend(fixed.into_iter().map(|(key, text)| (key.to_owned(), text.into())));
        serde_json::from_value(Value::Object(keys))
    }

    /// Applies the patch to `old`.
    ///
    /// # Errors
    /// A key does not exist, or its value has another type.
    pub fn apply(&self, old: &T) -> Result<T, serde_json::Error> {
        let mut item = serde_json::to_value(old)?;
        if let Value::Object(keys) = &mut item {
            merge(keys, &self.keys);
        }
        serde_json::from_value(item)
    }
}

/// Sets keys, also in existing tables. `null` stays, because only the type defines optional keys.
fn merge(keys: &mut Map<String, Value>, patch: &Map<String, Value>) {
    for (key, value) in patch {
        match (keys.get_mut(key), value) {
            (Some(Value::Object(table)), Value::Object(patch)) => merge(table, patch),
            _ => _ = keys.insert(key.clone(), value.clone()),
        }
    }
}

impl<T: Serialize + DeserializeOwned + ToSchema> Patch<T> {
    /// Parses words like `size=1GiB`, `members=a,b`, `limit.iops=1000`, or `weight=` to remove a
    /// key.
    ///
    /// # Errors
    /// The unknown key with the known ones, or the invalid value.
    pub fn from_words<'w>(words: impl IntoIterator<Item = &'w str>) -> Result<Self, String> {
        let known = properties::<T>();
        let mut keys = Map::new();
        for word in words {
            let (key, text) =
                word.split_once('=').ok_or_else(|| format!("{word}: no value; write KEY=VALUE"))?;
            let Some((_, wanted)) = known.iter().find(|(name, _)| name == key) else {
                let names: Vec<&str> = known.iter().map(|(name, _)| name.as_str()).collect();
                return Err(format!("{key}: no such key; there are {}", names.join(", ")));
            };
            let value = wanted.read(text).ok_or_else(|| format!("{word}: no {wanted}"))?;
            if !put(&mut keys, key, value) {
                return Err(format!("{key}: given twice"));
            }
        }
        Ok(Self::new(keys))
    }
}

/// Sets a key, or a key of a table like `limit.iops`. Returns false if it or its whole table is
/// already set.
fn put(keys: &mut Map<String, Value>, key: &str, value: Value) -> bool {
    let Some((table, key)) = key.split_once('.') else {
        return keys.insert(key.to_owned(), value).is_none();
    };
    let table = keys.entry(table).or_insert_with(|| Value::Object(Map::new()));
    table.as_object_mut().is_some_and(|table| table.insert(key.to_owned(), value).is_none())
}

/// Type of a key's value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ExpectedType {
    Text,
    Number,
    Truth,
    List,
    /// A number or text.
    Size,
    /// A table; as a whole it can only be removed.
    Table,
}

impl ExpectedType {
    /// Derives the type from a schema.
    fn of(schema: &RefOr<Schema>) -> Option<Self> {
        let schema = match schema {
            RefOr::Ref(_) => return Some(Self::Size),
            RefOr::T(Schema::Object(object)) => &object.schema_type,
            RefOr::T(Schema::Array(array)) => {
                let items = matches!(&array.items, ArrayItems::RefOrSchema(items)
                    if Self::of(items) == Some(Self::Text));
                return items.then_some(Self::List);
            }
            // An optional size: a reference, or null.
            RefOr::T(_) => return Some(Self::Size),
        };
        let is = |wanted: &Type| match schema {
            SchemaType::Type(one) => one == wanted,
            SchemaType::Array(all) => all.contains(wanted),
            SchemaType::AnyValue => false,
        };
        [(Type::String, Self::Text), (Type::Integer, Self::Number), (Type::Boolean, Self::Truth)]
            .into_iter()
            .find_map(|(kind, wanted)| is(&kind).then_some(wanted))
    }

    fn read(self, text: &str) -> Option<Value> {
        let number = || text.parse::<u64>().ok().map(Value::from);
        match self {
            _ if text.is_empty() => Some(Value::Null),
            Self::Text => Some(text.into()),
            Self::Number => number(),
            Self::Truth => text.parse::<bool>().ok().map(Value::from),
            Self::List => Some(text.split(',').map(str::trim).collect()),
            Self::Size => number().or_else(|| Some(text.into())),
            Self::Table => None,
        }
    }
}

impl fmt::Display for ExpectedType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Text => "text",
            Self::Number => "whole number",
            Self::Truth => "true or false",
            Self::List => "list",
            Self::Size => "size",
            Self::Table => "table; write KEY.NAME=VALUE for what is in it",
        })
    }
}

/// Returns the keys of a `T` that words can set, with their types.
fn properties<T: ToSchema>() -> Vec<(String, ExpectedType)> {
    let RefOr::T(Schema::Object(object)) = T::schema() else { return Vec::new() };
    let mut schemas = Vec::new();
    T::schemas(&mut schemas);
    let mut all = Vec::new();
    for (key, schema) in &object.properties {
        let Some(wanted) = ExpectedType::of(schema) else { continue };
        let table =
            referred(schema).and_then(|name| schemas.iter().find(|(known, _)| known == name));
        let Some((_, RefOr::T(Schema::Object(table)))) = table else {
            all.push((key.clone(), wanted));
            continue;
        };
        all.push((key.clone(), ExpectedType::Table));
        let of_table = table.properties.iter();
        all.extend(of_table.filter_map(|(name, schema)| {
            Some((format!("{key}.{name}"), ExpectedType::of(schema)?))
        }));
    }
    all
}

/// Returns the name of the schema that a key, which may be optional, refers to.
fn referred(schema: &RefOr<Schema>) -> Option<&str> {
    match schema {
        RefOr::Ref(found) => found.ref_location.rsplit('/').next(),
        RefOr::T(Schema::OneOf(either)) => either.items.iter().find_map(referred),
        RefOr::T(_) => None,
    }
}

/// The schema of `T` without required keys.
impl<T: ToSchema> PartialSchema for Patch<T> {
    fn schema() -> RefOr<Schema> {
        let mut schema = T::schema();
        if let RefOr::T(Schema::Object(object)) = &mut schema {
            object.required.clear();
        }
        schema
    }
}

impl<T: ToSchema> ToSchema for Patch<T> {
    fn name() -> Cow<'static, str> {
        Cow::Owned(format!("{}Patch", T::name()))
    }

    fn schemas(schemas: &mut Vec<(String, RefOr<Schema>)>) {
        T::schemas(schemas);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::document::Limit;

    fn patch(text: &str) -> Patch<Namespace> {
        serde_json::from_str(text).unwrap()
    }

    #[test]
    fn keys_as_people_write_them() {
        let words = ["size=1GiB", "block-size=4096", "read-only=true", "path=1", "members=a,b"];
        let patch = DevicePatch::from_words(words).unwrap();
        let wanted = serde_json::json!({
            "size": "1GiB", "block-size": 4096, "read-only": true, "path": "1", "members": ["a", "b"],
        });
        assert_eq!(serde_json::to_value(&patch).unwrap(), wanted);
        let patch = DevicePatch::from_words(["size="]).unwrap();
        assert_eq!(serde_json::to_value(&patch).unwrap(), serde_json::json!({ "size": null }));
        for (word, part) in [
            ("sice=1", "there are"),
            ("size", "KEY=VALUE"),
            ("seed=x", "no whole number"),
            ("create=1", "no true or false"),
        ] {
            let error = DevicePatch::from_words([word]).unwrap_err();
            assert!(error.contains(part), "{word}: {error}");
        }
        let patch =
            NamespacePatch::from_words(["limit.iops=1000", "limit.bandwidth=1Gb/s"]).unwrap();
        let wanted = serde_json::json!({ "limit": { "iops": 1000, "bandwidth": "1Gb/s" } });
        assert_eq!(serde_json::to_value(&patch).unwrap(), wanted);
        let patch = NamespacePatch::from_words(["limit="]).unwrap();
        assert_eq!(serde_json::to_value(&patch).unwrap(), serde_json::json!({ "limit": null }));
        for (words, part) in [
            (&["limit=5"][..], "limit=5: no table; write KEY.NAME=VALUE"),
            (&["limit.iop=5"], "limit.iops"),
            (&["limit.iops=x"], "no whole number"),
            (&["limit=", "limit.iops=5"], "given twice"),
            (&["limit.iops=5", "limit.iops=6"], "given twice"),
        ] {
            let error = NamespacePatch::from_words(words.iter().copied()).unwrap_err();
            assert!(error.contains(part), "{words:?}: {error}");
        }
        // Words cannot set the namespaces of a subsystem.
        assert!(SubsystemPatch::from_words(["namespace=1"]).is_err());
    }

    #[test]
    fn every_key_of_every_item_can_be_written() {
        fn left_out<T: ToSchema>() -> Vec<String> {
            let RefOr::T(Schema::Object(object)) = T::schema() else { panic!("no object") };
            let known = properties::<T>();
            let all = object.properties.keys().cloned();
            all.filter(|key| !known.iter().any(|(name, _)| name == key)).collect()
        }
        assert_eq!(left_out::<Device>(), [""; 0]);
        assert_eq!(left_out::<Namespace>(), [""; 0]);
        assert_eq!(left_out::<crate::document::PacingConfig>(), [""; 0]);
        assert_eq!(left_out::<crate::document::Listener>(), [""; 0]);
        assert_eq!(left_out::<Subsystem>(), ["namespace"]);
    }

    #[test]
    fn a_patch_sets_leaves_out_and_refuses() {
        let old = Namespace { nsid: 1, device: "a".into(), weight: Some(7), ..Default::default() };
        let new = patch(r#"{"device": "b", "weight": null}"#).apply(&old).unwrap();
        assert_eq!(new, Namespace { nsid: 1, device: "b".into(), ..Default::default() });
        assert_eq!(patch("{}").apply(&old).unwrap(), old);
        // Keys of a table that the patch does not name stay.
        let limited = patch(r#"{"limit": {"iops": 5, "burst": "1ms"}}"#).apply(&old).unwrap();
        let changed = patch(r#"{"limit": {"iops": 6, "burst": null}}"#).apply(&limited).unwrap();
        let limit = Limit { iops: Some(6), ..Limit::default() };
        assert_eq!(changed.limit, Some(limit.clone()));
        let both = patch(r#"{"limit": {"bandwidth": "1Gb/s"}}"#).apply(&changed).unwrap();
        assert_eq!(both.limit, Some(Limit { bandwidth: Some("1Gb/s".into()), ..limit }));
        assert_eq!(patch(r#"{"limit": null}"#).apply(&both).unwrap().limit, None);
        assert!(patch(r#"{"limit": {"iop": null}}"#).apply(&both).is_err());
        for wrong in [r#"{"x": 1}"#, r#"{"weight": "1"}"#, r#"{"device": null}"#] {
            assert!(patch(wrong).apply(&old).is_err(), "{wrong}");
        }
        assert!(serde_json::from_str::<Patch<Namespace>>("[]").is_err());
    }
}
