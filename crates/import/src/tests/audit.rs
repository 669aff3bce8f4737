//! Audit of every key that a reader takes or skips: nothing that hosts can notice is lost silently.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

use super::show;
use crate::keys::{KeyTable, Treatment};
use crate::{ImportedConfig, NoDisks, Note, NoteKind, import, kernel, spdk, spdk_conf};

const SPDK: &str = include_str!("fixtures/audit_spdk.json");
const KERNEL: &str = include_str!("fixtures/audit_kernel.json");
/// Another value of each key that is taken, by the call or the pointer of its object. Each changes
/// the config or the notes.
const OTHERS: &str = include_str!("fixtures/audit_others.json");
const PARAMETERS: &str = include_str!("fixtures/spdk_params.txt");
const NQN: &str = "nqn.2016-06.io.spdk:a";

/// A value that no key has by default.
const TELLING: &str = "telling";

/// An object of a fixture, and the table of its keys.
struct Audited {
    /// Name of the object in [`OTHERS`].
    name: String,
    /// Pointer of the object in the fixture.
    pointer: String,
    table: KeyTable,
}

/// Returns the pointer of the first call of a method.
fn call_of(config: &Value, method: &str) -> String {
    for (part, calls) in config["subsystems"].as_array().unwrap().iter().enumerate() {
        for (index, call) in calls["config"].as_array().unwrap().iter().enumerate() {
            if call["method"] == method {
                return format!("/subsystems/{part}/config/{index}");
            }
        }
    }
    panic!("the fixture has no {method}")
}

fn audited_of_spdk(config: &Value) -> Vec<Audited> {
    let bdev = spdk::keys::bdev::ALL.iter().map(|(method, table)| (*method, "", *table));
    let all = bdev.chain(spdk::keys::nvmf::ALL.iter().copied());
    all.map(|(method, inner, table)| Audited {
        name: format!("{method}{inner}"),
        pointer: format!("{}/params{inner}", call_of(config, method)),
        table,
    })
    .collect()
}

fn audited_of_kernel() -> Vec<Audited> {
    let all = kernel::keys::ALL.iter();
    all.map(|(pointer, table)| Audited {
        name: (*pointer).into(),
        pointer: (*pointer).into(),
        table,
    })
    .collect()
}

/// Returns the path of a note about a key.
fn path(pointer: &str, key: &str) -> String {
    let mut path = String::from("$");
    for part in pointer.split('/').skip(1) {
        match part.parse::<usize>() {
            Ok(index) => path.push_str(&format!("[{index}]")),
            Err(_) => path.push_str(&format!(".{part}")),
        }
    }
    format!("{path}.{key}")
}

fn with(config: &Value, pointer: &str, key: &str, value: Value) -> Value {
    let mut changed = config.clone();
    changed.pointer_mut(pointer).unwrap_or_else(|| panic!("{pointer}"))[key] = value;
    changed
}

fn imported(config: &Value) -> ImportedConfig {
    import(&config.to_string(), &NoDisks).unwrap_or_else(|error| panic!("{error}\n{config}"))
}

fn about<'a>(notes: &'a [Note], path: &str) -> Vec<&'a Note> {
    notes.iter().filter(|note| note.path == path).collect()
}

/// Checks the treatment of every key of every object.
fn audit(text: &str, audited: impl Fn(&Value) -> Vec<Audited>) {
    let config: Value = serde_json::from_str(text).unwrap();
    let base = imported(&config);
    let others: Value = serde_json::from_str(OTHERS).unwrap();
    for object in audited(&config) {
        for (key, treatment) in object.table {
            let at = format!("{} {key}", object.name);
            let telling = || imported(&with(&config, &object.pointer, key, json!(TELLING)));
            let path = path(&object.pointer, key);
            match treatment {
                Treatment::Lost { except, consequence } => {
                    let notes = telling().notes;
                    let about = about(&notes, &path);
                    let is_named = about.iter().any(|note| note.what.starts_with(consequence));
                    assert!(is_named, "{at}:\n{}", show(&notes));
                    for value in *except {
                        let value: Value = serde_json::from_str(value).unwrap();
                        let same = imported(&with(&config, &object.pointer, key, value));
                        assert_eq!(same, base, "{at}");
                    }
                }
                Treatment::Unnoticed(reason) => {
                    assert!(reason.len() > 8, "{at}");
                    assert_eq!(telling(), base, "{at}");
                }
                Treatment::Taken => {
                    let other = others.get(&object.name).and_then(|keys| keys.get(*key));
                    let other = other.unwrap_or_else(|| panic!("no other value of {at}"));
                    let changed = with(&config, &object.pointer, key, other.clone());
                    let result = import(&changed.to_string(), &NoDisks);
                    assert_ne!(result.as_ref(), Ok(&base), "{at} is dropped");
                }
            }
        }
        // A key that no version has.
        let unknown = with(&config, &object.pointer, "key_of_the_future", json!(TELLING));
        let notes = imported(&unknown).notes;
        let about = about(&notes, &path(&object.pointer, "key_of_the_future"));
        assert!(!about.is_empty(), "{}:\n{}", object.name, show(&notes));
    }
}

#[test]
fn every_key_of_spdk_is_taken_or_named_or_without_effect_for_hosts() {
    audit(SPDK, audited_of_spdk);
}

#[test]
fn every_key_of_nvmetcli_is_taken_or_named_or_without_effect_for_hosts() {
    audit(KERNEL, |_| audited_of_kernel());
}

#[test]
fn the_tables_have_every_parameter_of_spdk() {
    let config: Value = serde_json::from_str(SPDK).unwrap();
    let known: BTreeMap<&str, BTreeSet<&str>> = PARAMETERS
        .lines()
        .filter_map(|line| line.split_once(": "))
        .map(|(name, keys)| (name, keys.split(' ').collect()))
        .collect();
    let mut by_table: BTreeMap<*const (&str, Treatment), (KeyTable, BTreeSet<&str>)> =
        BTreeMap::new();
    for object in audited_of_spdk(&config) {
        let known = known.get(object.name.as_str()).unwrap_or_else(|| panic!("{}", object.name));
        let table: BTreeSet<&str> = object.table.iter().map(|(key, _)| *key).collect();
        let missing: Vec<_> = known.difference(&table).collect();
        assert!(missing.is_empty(), "{}: {missing:?}", object.name);
        let (_, all) =
            by_table.entry(object.table.as_ptr()).or_insert((object.table, BTreeSet::new()));
        all.extend(known);
    }
    for (table, known) in by_table.into_values() {
        let invented = table.iter().find(|(key, _)| !known.contains(key));
        assert!(invented.is_none(), "no version of SPDK has {invented:?}");
    }
}

/// Calls, parts and sections without a reader give their note.
#[test]
fn every_call_and_part_without_a_reader_is_named() {
    let config: Value = serde_json::from_str(SPDK).unwrap();
    let is_named = |notes: &[Note], treatment: &Treatment| {
        let (kind, text) = match treatment {
            Treatment::Lost { consequence, .. } => (NoteKind::Unsupported, *consequence),
            Treatment::Unnoticed(reason) => (NoteKind::NotApplicable, *reason),
            Treatment::Taken => panic!("there is no reader"),
        };
        notes.iter().any(|note| note.kind == kind && note.what.contains(text))
    };
    let calls = [(0, spdk::keys::bdev::CALLS), (1, spdk::keys::nvmf::CALLS)];
    for (part, method, treatment) in
        calls.iter().flat_map(|(part, calls)| calls.iter().map(move |(name, it)| (part, name, it)))
    {
        let mut changed = config.clone();
        let calls = changed["subsystems"][*part]["config"].as_array_mut().unwrap();
        calls.push(json!({ "method": method, "params": { "nqn": NQN } }));
        assert!(is_named(&imported(&changed).notes, treatment), "{method}");
    }
    for (part, treatment) in spdk::keys::PARTS {
        let mut changed = config.clone();
        let parts = changed["subsystems"].as_array_mut().unwrap();
        parts.push(json!({ "subsystem": part, "config": [{ "method": "any" }] }));
        assert!(is_named(&imported(&changed).notes, treatment), "{part}");
    }
    for (section, treatment) in spdk_conf::keys::SECTIONS {
        let text = format!("{}\n[{section}]\n  Any 1\n", super::conf::MINIMAL);
        assert!(is_named(&import(&text, &NoDisks).unwrap().notes, treatment), "{section}");
    }
}
