//! Differences of two documents, item by item.

use std::fmt;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use utoipa::ToSchema;

use super::Document;

/// Change of an item.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Action {
    /// The item is added.
    Add,
    /// The item is removed.
    Remove,
    /// Some keys of the item change.
    Change,
}

/// An item that differs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Difference {
    /// Change of the item.
    pub action: Action,
    /// Type of the item: `device`, `subsystem`, `namespace`, `host`, `listener`, `root-complex`,
    /// `referral`, or the section of a key.
    pub item: String,
    /// Name of the item: `NQN/NSID` for a namespace, empty for a section.
    pub name: String,
    /// Keys that differ.
    pub keys: Vec<KeyChange>,
}

/// A key that differs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct KeyChange {
    /// Name of the key.
    pub key: String,
    /// Old value; absent if the key was not set.
    pub from: Option<Value>,
    /// New value; absent if the key is removed.
    pub to: Option<Value>,
}

impl Document {
    /// Returns the changes from this document to another.
    #[must_use]
    pub fn differences(&self, to: &Self) -> Vec<Difference> {
        let mut all = Vec::new();
        let (old, new) = (sections(self), sections(to));
        for (name, section) in &old {
            let other = new.iter().find(|(other, _)| other == name);
            compare(&mut all, name, "", Some(section), other.map(|(_, section)| section));
        }
        for (name, section) in &new {
            if !old.iter().any(|(other, _)| other == name) {
                compare(&mut all, name, "", None, Some(section));
            }
        }
        items(&mut all, "host", &self.host, &to.host, |one| one.nqn.clone());
        items(&mut all, "listener", &self.listener, &to.listener, |one| one.id());
        items(&mut all, "device", &self.device, &to.device, |one| one.name.clone());
        items(&mut all, "root-complex", &self.root_complex, &to.root_complex, |one| {
            one.address.clone()
        });
        items(&mut all, "subsystem", &self.subsystem, &to.subsystem, |one| one.nqn.clone());
        let namespaces = |document: &Self| -> Vec<_> {
            let all = document.subsystem.iter().flat_map(|subsystem| {
                subsystem.namespace.iter().map(|one| (subsystem.nqn.clone(), one.clone()))
            });
            all.collect()
        };
        let (old, new) = (namespaces(self), namespaces(to));
        let name = |(nqn, one): &(String, super::Namespace)| format!("{nqn}/{}", one.nsid);
        items(&mut all, "namespace", &old, &new, name);
        items(&mut all, "referral", &self.referral, &to.referral, |one| {
            format!("{}:{}:{}", one.kind, one.address, one.port.unwrap_or(8009))
        });
        all
    }
}

/// Returns the keys outside of lists: those without a section, and the sections.
fn sections(document: &Document) -> Vec<(String, Map<String, Value>)> {
    let Ok(Value::Object(all)) = serde_json::to_value(document) else { return Vec::new() };
    let mut sections = vec![(String::new(), Map::new())];
    for (key, value) in all {
        match value {
            Value::Object(section) => sections.push((key, section)),
            Value::Array(_) => {}
            value => {
                sections[0].1.insert(key, value);
            }
        }
    }
    sections
}

/// Compares lists by the names of their items; items with the same name are matched in order.
fn items<T: Serialize>(
    all: &mut Vec<Difference>,
    item: &str,
    old: &[T],
    new: &[T],
    name: impl Fn(&T) -> String,
) {
    let mut left: Vec<(String, Map<String, Value>)> =
        new.iter().map(|one| (name(one), keys(one))).collect();
    for one in old {
        let name = name(one);
        let found = left.iter().position(|(other, _)| *other == name).map(|at| left.remove(at));
        compare(all, item, &name, Some(&keys(one)), found.as_ref().map(|(_, keys)| keys));
    }
    for (name, keys) in &left {
        compare(all, item, name, None, Some(keys));
    }
}

/// Returns the keys of an item. Namespaces of a subsystem are separate items.
fn keys(item: &impl Serialize) -> Map<String, Value> {
    let mut keys = match serde_json::to_value(item) {
        Ok(Value::Object(keys)) => keys,
        // A pair of the subsystem's name and a namespace.
        Ok(Value::Array(mut pair)) => match pair.pop() {
            Some(Value::Object(keys)) => keys,
            _ => Map::new(),
        },
        _ => Map::new(),
    };
    keys.remove("namespace");
    keys
}

fn compare(
    all: &mut Vec<Difference>,
    item: &str,
    name: &str,
    old: Option<&Map<String, Value>>,
    new: Option<&Map<String, Value>>,
) {
    let action = match (old, new) {
        (Some(_), None) => Action::Remove,
        (None, Some(_)) => Action::Add,
        _ => Action::Change,
    };
    let none = Map::new();
    let (old, new) = (old.unwrap_or(&none), new.unwrap_or(&none));
    let mut changed = Vec::new();
    for key in old.keys().chain(new.keys().filter(|key| !old.contains_key(*key))) {
        let (from, to) = (old.get(key).cloned(), new.get(key).cloned());
        if from != to {
            changed.push(KeyChange { key: key.clone(), from, to });
        }
    }
    if action != Action::Change || !changed.is_empty() {
        all.push(Difference { action, item: item.into(), name: name.into(), keys: changed });
    }
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Add => "add",
            Self::Remove => "remove",
            Self::Change => "change",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::device::MemoryKeys;
    use super::super::pacing::NoKeys;
    use super::super::{Device, DeviceConfig, Namespace, PacingConfig, Subsystem};
    use super::*;

    fn device(name: &str, size: u64) -> Device {
        let keys = MemoryKeys { size: Some(size.into()), ..MemoryKeys::default() };
        Device { name: name.into(), kind: DeviceConfig::Ram(keys) }
    }

    #[test]
    fn differences_are_told_item_by_item() {
        let namespace = |nsid| Namespace { nsid, device: "a".into(), ..Namespace::default() };
        let subsystem = |nsids: &[u32]| Subsystem {
            nqn: "n".into(),
            namespace: nsids.iter().map(|nsid| namespace(*nsid)).collect(),
            ..Subsystem::default()
        };
        let old = Document {
            device: vec![device("a", 1), device("b", 1)],
            subsystem: vec![subsystem(&[1, 2])],
            ..Document::default()
        };
        let new = Document {
            busy_poll: Some(true),
            pacing: Some(PacingConfig::Unpaced(NoKeys {})),
            device: vec![device("a", 2), device("c", 1)],
            subsystem: vec![subsystem(&[2, 3])],
            ..Document::default()
        };
        let told: Vec<String> = old
            .differences(&new)
            .iter()
            .map(|one| format!("{} {} {} {}", one.action, one.item, one.name, one.keys.len()))
            .collect();
        let wanted = [
            "change   1",
            "add pacing  1",
            "change device a 1",
            "remove device b 3",
            "add device c 3",
            "remove namespace n/1 2",
            "add namespace n/3 2",
        ];
        assert_eq!(told, wanted);
        assert_eq!(old.differences(&old), []);
    }
}
