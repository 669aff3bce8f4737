//! Tables whose keys depend on the value of one key, the tag: `type` of a device, `policy` of
//! pacing.
//!
//! [`tagged!`] lists the variants of a table once, each with its name and its keys. All readers of
//! the table follow this list: the config file, the API, and the command line.

use std::collections::BTreeMap;
use std::fmt;
use std::marker::PhantomData;

use serde::de::value::Error as ProbeError;
use serde::de::{DeserializeOwned, DeserializeSeed, Deserializer, Error, MapAccess, Visitor};
use serde_json::{Map, Value};
use utoipa::ToSchema;
use utoipa::openapi::schema::{AdditionalProperties, ObjectBuilder, SchemaType};
use utoipa::openapi::{RefOr, Schema, Type};

use super::Tagged;
use crate::suggest::closest;

/// A variant of a table: the value of its tag, and its keys.
#[derive(Debug)]
pub struct Variant<T> {
    /// Value of the tag.
    pub name: &'static str,
    keys: &'static [&'static str],
    read: fn(Map<String, Value>) -> Result<T, serde_json::Error>,
    schema: fn() -> RefOr<Schema>,
    schemas: fn(&mut Vec<(String, RefOr<Schema>)>),
}

impl<T> Variant<T> {
    /// Creates a variant with the keys of `K`, all of them optional.
    pub fn new<K: DeserializeOwned + ToSchema>(
        name: &'static str,
        read: fn(Map<String, Value>) -> Result<T, serde_json::Error>,
    ) -> Self {
        let (schema, schemas) = (K::schema, K::schemas);
        Self { name, keys: field_names::<K>(), read, schema, schemas }
    }

    /// Returns the keys of the variant, without the tag.
    #[must_use]
    pub fn keys(&self) -> &'static [&'static str] {
        self.keys
    }

    /// Checks the form of one value; the error describes it.
    fn check(&self, key: &str, value: &Value) -> Result<(), String> {
        let alone = Map::from_iter([(key.to_owned(), value.clone())]);
        (self.read)(alone).map(drop).map_err(|error| error.to_string())
    }
}

/// A problem with a key of a table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum KeyError {
    /// No variant has the key.
    Unknown {
        /// The key.
        key: String,
        /// All keys of all variants.
        known: Vec<&'static str>,
    },
    /// The value has another form.
    Form {
        /// The key.
        key: String,
        /// Description, as serde words it.
        what: String,
    },
    /// The tag is missing.
    NoTag,
    /// No variant has this name.
    UnknownTag(String),
    /// Other variants have the key, but not this one.
    Foreign {
        /// The key.
        key: String,
        /// Name of this variant.
        variant: &'static str,
        /// Keys of this variant.
        keys: &'static [&'static str],
        /// Names of the variants that have the key.
        owners: Vec<&'static str>,
    },
}

impl KeyError {
    /// Returns true if the table cannot be read as any variant.
    #[must_use]
    pub fn is_malformed(&self) -> bool {
        matches!(self, Self::Unknown { .. } | Self::Form { .. })
    }
}

impl fmt::Display for KeyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unknown { key, known } => {
                write!(f, "unknown field `{key}`, expected one of {}", quoted(known, '`'))?;
                closest(key, known.iter().copied())
                    .map_or(Ok(()), |meant| write!(f, " (did you mean `{meant}`?)"))
            }
            Self::Form { key, what } => write!(f, "{key}: {what}"),
            Self::NoTag => f.write_str("its type is missing"),
            Self::UnknownTag(name) => write!(f, "\"{name}\" is not known"),
            Self::Foreign { key, variant, keys: [], owners } => {
                write!(f, "\"{variant}\" has no key {key}, only {}", quoted(owners, '"'))
            }
            Self::Foreign { key, variant, keys, .. } => {
                write!(f, "\"{variant}\" has no key {key}; allowed: {}", keys.join(", "))
            }
        }
    }
}

fn quoted(names: &[&str], mark: char) -> String {
    let names: Vec<String> = names.iter().map(|name| format!("{mark}{name}{mark}")).collect();
    names.join(", ")
}

/// Returns the names of all variants as in Markdown, in order.
#[must_use]
pub fn names<T: Tagged>() -> Vec<String> {
    T::variants().iter().map(|variant| format!("`{}`", variant.name)).collect()
}

/// Returns all keys of all variants, each once, without the tag.
#[must_use]
pub fn all_keys<T: Tagged>() -> Vec<&'static str> {
    let mut keys = Vec::new();
    for key in T::variants().iter().flat_map(Variant::keys) {
        if !keys.contains(key) {
            keys.push(*key);
        }
    }
    keys
}

/// Returns the names of the variants that have this key.
#[must_use]
pub fn owners<T: Tagged>(key: &str) -> Vec<&'static str> {
    let all = T::variants().iter().filter(|variant| variant.keys().contains(&key));
    all.map(|variant| variant.name).collect()
}

/// Reads a table, which has no null values.
///
/// The result is `None` if the tag is wrong or a value has another form. Foreign keys are dropped.
#[must_use]
pub fn read<T: Tagged>(mut table: Map<String, Value>) -> (Option<T>, Vec<KeyError>) {
    let tag = match table.remove(T::TAG) {
        Some(Value::String(tag)) => Ok(tag),
        Some(other) => Err(form(T::TAG, &other)),
        None => T::DEFAULT.map(str::to_owned).ok_or(KeyError::NoTag),
    };
    let malformed = table.iter().filter_map(|(key, value)| check::<T>(key, value).err());
    let mut errors: Vec<KeyError> = malformed.collect();
    let tag = match tag {
        Ok(tag) => tag,
        Err(error) => {
            errors.push(error);
            return (None, errors);
        }
    };
    let Some(variant) = T::variants().iter().find(|variant| variant.name == tag) else {
        errors.push(KeyError::UnknownTag(tag));
        return (None, errors);
    };
    if !errors.is_empty() {
        return (None, errors);
    }
    let (own, foreign): (Map<_, _>, Map<_, _>) =
        table.into_iter().partition(|(key, _)| variant.keys().contains(&key.as_str()));
    errors.extend(foreign.into_iter().map(|(key, _)| {
        let (name, keys, owners) = (variant.name, variant.keys(), owners::<T>(&key));
        KeyError::Foreign { key, variant: name, keys, owners }
    }));
    match (variant.read)(own.clone()) {
        Ok(value) => (Some(value), errors),
        // Another variant takes a value of this form.
        Err(_) => {
            let wrong = own.iter().filter_map(|(key, value)| {
                let what = variant.check(key, value).err()?;
                Some(KeyError::Form { key: key.clone(), what })
            });
            errors.extend(wrong);
            (None, errors)
        }
    }
}

/// Checks that a variant has this key, with a value of this form.
fn check<T: Tagged>(key: &str, value: &Value) -> Result<(), KeyError> {
    if value.is_null() {
        // A float that JSON does not have.
        return Err(KeyError::Form {
            key: key.into(),
            what: "invalid type: floating point".into(),
        });
    }
    let variants = T::variants().iter();
    let mut what = None;
    for variant in variants.filter(|variant| variant.keys().contains(&key)) {
        match variant.check(key, value) {
            Ok(()) => return Ok(()),
            Err(error) => what = what.or(Some(error)),
        }
    }
    Err(match what {
        Some(what) => KeyError::Form { key: key.into(), what },
        None => KeyError::Unknown { key: key.into(), known: known::<T>() },
    })
}

/// Returns all keys of a table, those of all variants included.
fn known<T: Tagged>() -> Vec<&'static str> {
    let mut known = T::COMMON.to_vec();
    known.push(T::TAG);
    known.extend(all_keys::<T>());
    known
}

fn form(key: &str, value: &Value) -> KeyError {
    let what = serde_json::from_value::<String>(value.clone()).err();
    KeyError::Form { key: key.into(), what: what.map_or_else(String::new, |what| what.to_string()) }
}

/// Deserializes a table; returns the texts of the common keys, and the variant.
///
/// # Errors
/// A key is unknown or foreign, a value has another form, or the tag is wrong.
pub fn deserialize<'de, T: Tagged, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<(BTreeMap<&'static str, String>, T), D::Error> {
    deserializer.deserialize_map(TableVisitor(PhantomData))
}

struct TableVisitor<T>(PhantomData<T>);

impl<'de, T: Tagged> Visitor<'de> for TableVisitor<T> {
    type Value = (BTreeMap<&'static str, String>, T);

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a table")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let (mut common, mut table) = (BTreeMap::new(), Map::new());
        while let Some(key) = map.next_key_seed(KeySeed::<T>(PhantomData))? {
            if let Some(name) = T::COMMON.iter().find(|name| **name == key) {
                if common.insert(*name, map.next_value()?).is_some() {
                    return Err(A::Error::duplicate_field(name));
                }
                continue;
            }
            let value = map.next_value_seed(ValueSeed::<T> { key: &key, of: PhantomData })?;
            if let Some(value) = value
                && table.insert(key.clone(), value).is_some()
            {
                return Err(A::Error::custom(format!("duplicate field `{key}`")));
            }
        }
        if let Some(missing) = T::COMMON.iter().find(|name| !common.contains_key(*name)) {
            return Err(A::Error::missing_field(missing));
        }
        match read(table) {
            (Some(value), errors) if errors.is_empty() => Ok((common, value)),
            (_, errors) if errors.contains(&KeyError::NoTag) => {
                Err(A::Error::missing_field(T::TAG))
            }
            (_, errors) => {
                let errors: Vec<String> = errors.iter().map(KeyError::to_string).collect();
                Err(A::Error::custom(errors.join("; ")))
            }
        }
    }
}

/// Reads a key that exists, so that an error has the place of the key.
struct KeySeed<T>(PhantomData<T>);

impl<'de, T: Tagged> DeserializeSeed<'de> for KeySeed<T> {
    type Value = String;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<String, D::Error> {
        let key: String = serde::Deserialize::deserialize(deserializer)?;
        let known = known::<T>();
        if known.contains(&key.as_str()) {
            return Ok(key);
        }
        Err(D::Error::custom(KeyError::Unknown { key, known }))
    }
}

/// Reads a value of the form of its key, so that an error has its place; `None` for null.
struct ValueSeed<'k, T> {
    key: &'k str,
    of: PhantomData<T>,
}

impl<'de, T: Tagged> DeserializeSeed<'de> for ValueSeed<'_, T> {
    type Value = Option<Value>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        let value: Option<Value> = serde::Deserialize::deserialize(deserializer)?;
        let Some(value) = value else { return Ok(None) };
        let error = if self.key != T::TAG {
            check::<T>(self.key, &value).err()
        } else if let Value::String(name) = &value {
            let is_known = T::variants().iter().any(|variant| variant.name == name);
            if !is_known {
                return Err(D::Error::custom(format!(
                    "\"{name}\" is not known; {}",
                    one_of::<T>(name)
                )));
            }
            None
        } else {
            Some(form(self.key, &value))
        };
        match error {
            Some(KeyError::Form { what, .. }) => Err(D::Error::custom(what)),
            Some(error) => Err(D::Error::custom(error)),
            None => Ok(Some(value)),
        }
    }
}

/// Lists the allowed names of variants, with a suggestion if one is close to `wrong`.
#[must_use]
pub fn one_of<T: Tagged>(wrong: &str) -> String {
    let names: Vec<&str> = T::variants().iter().map(|variant| variant.name).collect();
    let meant = closest(wrong, names.iter().copied());
    let meant = meant.map_or_else(String::new, |name| format!(" (did you mean \"{name}\"?)"));
    format!("allowed: {}{meant}", quoted(&names, '"'))
}

/// Returns one schema for all variants: it has the keys of all of them.
#[must_use]
pub fn schema<T: Tagged>(about: &str, common: &[(&str, &str)], tag: &str) -> RefOr<Schema> {
    let mut object = ObjectBuilder::new()
        .description(Some(about))
        .additional_properties(Some(AdditionalProperties::FreeForm(false)));
    let text = |about: &str, kind| ObjectBuilder::new().schema_type(kind).description(Some(about));
    for (key, about) in common {
        object = object.property(*key, text(about, SchemaType::Type(Type::String))).required(*key);
    }
    let kind = match T::DEFAULT {
        Some(_) => SchemaType::Array(vec![Type::String, Type::Null]),
        None => {
            object = object.required(T::TAG);
            SchemaType::Type(Type::String)
        }
    };
    object = object.property(T::TAG, text(tag, kind));
    let mut done: Vec<String> = Vec::new();
    for variant in T::variants() {
        let RefOr::T(Schema::Object(keys)) = (variant.schema)() else { continue };
        for (key, schema) in keys.properties {
            if !done.contains(&key) {
                object = object.property(&key, schema);
                done.push(key);
            }
        }
    }
    RefOr::T(Schema::Object(object.build()))
}

/// Adds the schemas that the keys of all variants refer to.
pub fn schemas<T: Tagged>(schemas: &mut Vec<(String, RefOr<Schema>)>) {
    T::variants().iter().for_each(|variant| (variant.schemas)(schemas));
}

/// Returns the names of a struct's fields in order, as serde reads them.
fn field_names<T: DeserializeOwned>() -> &'static [&'static str] {
    struct Probe<'a>(&'a mut &'static [&'static str]);
    impl<'de> Deserializer<'de> for Probe<'_> {
        type Error = ProbeError;

        fn deserialize_any<V: Visitor<'de>>(self, _: V) -> Result<V::Value, ProbeError> {
            Err(ProbeError::custom("it is no struct"))
        }

        fn deserialize_struct<V: Visitor<'de>>(
            self,
            _: &'static str,
            fields: &'static [&'static str],
            visitor: V,
        ) -> Result<V::Value, ProbeError> {
            *self.0 = fields;
            self.deserialize_any(visitor)
        }

        serde::forward_to_deserialize_any! {
            bool i8 i16 i32 i64 u8 u16 u32 u64 f32 f64 char str string bytes byte_buf option unit
            unit_struct newtype_struct seq tuple tuple_struct map enum identifier ignored_any
        }
    }
    let mut fields: &'static [&'static str] = &[];
    // The probe itself is the error.
    let _: Result<T, ProbeError> = T::deserialize(Probe(&mut fields));
    fields
}

/// Defines the enum of a table's variants, and lists them for [`Tagged`].
macro_rules! tagged {
    (
        $(#[$outer:meta])*
        $name:ident by $tag:literal, default $default:expr, common $common:expr;
        $($(#[$inner:meta])* $text:literal => $variant:ident($keys:ty),)+
    ) => {
        $(#[$outer])*
        #[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
        #[serde(tag = $tag)]
        pub enum $name {
            $($(#[$inner])* #[serde(rename = $text)] $variant($keys),)+
        }

        impl $crate::document::Tagged for $name {
            const TAG: &'static str = $tag;
            const DEFAULT: Option<&'static str> = $default;
            const COMMON: &'static [&'static str] = $common;

            fn variants() -> &'static [$crate::document::tagged::Variant<Self>] {
                use std::sync::LazyLock;
                use $crate::document::tagged::Variant;
                static VARIANTS: LazyLock<Vec<Variant<$name>>> = LazyLock::new(|| vec![
                    $(Variant::new::<$keys>($text, |keys| {
                        serde_json::from_value(serde_json::Value::Object(keys)).map($name::$variant)
                    }),)+
                ]);
                &VARIANTS
            }

            fn name(&self) -> &'static str {
                match self {
                    $(Self::$variant(_) => $text,)+
                }
            }
        }
    };
}
pub(crate) use tagged;

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::{Device, DeviceConfig, PacingConfig};
    use super::*;

    fn device(value: Value) -> Result<Device, String> {
        serde_json::from_value(value).map_err(|error| error.to_string())
    }

    /// The daemon says what is missing, so no key is required here.
    #[test]
    fn every_variant_reads_a_table_without_keys_and_writes_its_name() {
        fn check<T: Tagged + serde::Serialize>() {
            for variant in T::variants() {
                let tag = Map::from_iter([(T::TAG.to_owned(), variant.name.into())]);
                let (read, errors) = read::<T>(tag.clone());
                let read = read.expect(variant.name);
                assert_eq!((read.name(), &errors[..]), (variant.name, &[][..]));
                assert_eq!(serde_json::to_value(read).unwrap(), Value::Object(tag));
            }
        }
        check::<DeviceConfig>();
        check::<PacingConfig>();
    }

    #[test]
    fn what_is_written_is_read_back() {
        for value in [
            json!({ "name": "a", "type": "null", "size": 4096, "block-size": "4k" }),
            json!({ "name": "a", "type": "stripe", "members": ["b", "c"] }),
            json!({ "name": "a", "type": "fault", "base": "b", "errors": 5, "gone": true }),
        ] {
            let read = device(value.clone()).unwrap();
            assert_eq!(serde_json::to_value(&read).unwrap(), value);
            let text = toml::to_string(&read).unwrap();
            assert!(text.starts_with("name = \"a\"\ntype = "), "{text}");
            assert_eq!(toml::from_str::<Device>(&text).unwrap(), read);
        }
        let with_null = json!({ "name": "a", "type": "ram", "size": 1, "path": null });
        assert_eq!(device(with_null).unwrap().kind.name(), "ram");
    }

    #[test]
    fn what_is_wrong_is_refused_with_its_reason() {
        for (value, part) in [
            (json!({ "type": "ram" }), "missing field `name`"),
            (json!({ "name": "a" }), "missing field `type`"),
            (json!({ "name": 1, "type": "ram" }), "invalid type: integer `1`, expected a string"),
            (json!({ "name": "a", "type": 1 }), "invalid type: integer `1`, expected a string"),
            (json!({ "name": "a", "type": "rma" }), "\"rma\" is not known; allowed: \"null\""),
            (json!({ "name": "a", "type": "rma" }), "did you mean \"ram\"?"),
            (json!({ "name": "a", "type": "ram", "sice": 1 }), "did you mean `size`?"),
            (json!({ "name": "a", "type": "ram", "size": true }), "expected a size"),
            (json!({ "name": "a", "type": "ram", "size": -1 }), "a size is not negative"),
            (
                json!({ "name": "a", "type": "ram", "path": "/x" }),
                "\"ram\" has no key path; allowed: size, block-size",
            ),
        ] {
            let error = device(value.clone()).unwrap_err();
            assert!(error.contains(part), "{value}: {error}");
        }
        let error = serde_json::from_value::<PacingConfig>(json!({ "budget": 1 })).unwrap_err();
        let only = "\"adaptive\" has no key budget, only \"buffer-credit\", \"token-bucket\"";
        assert_eq!(error.to_string(), only);
        assert!(toml::from_str::<Device>("name = \"a\"\ntype = \"ram\"\nsize = nan").is_err());
    }
}
