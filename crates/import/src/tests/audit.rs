//! Audit of every key that a reader takes or skips: nothing that hosts can notice is lost silently.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

use super::show;
use crate::keys::{KeyTable, Treatment};
use crate::{ImportedConfig, NoDisks, Note, NoteKind, import, kernel, spdk, spdk_conf};

const SPDK: &str = include_str!("fixtures/audit_spdk.json");
const KERNEL: &str = include_str!("fixtures/audit_kernel.json");
const PARAMETERS: &str = include_str!("fixtures/spdk_params.txt");
const NQN: &str = "nqn.2016-06.io.spdk:a";

/// A value that no key has by default.
const TELLING: &str = "telling";

/// Another value of each key that is taken, by the last call of the method or the pointer of the
/// object. Each changes the config or the notes.
fn others() -> BTreeMap<&'static str, Value> {
    let uuid = "00000000-1111-4222-8333-444444444444";
    let mut all = BTreeMap::new();
    let mut add = |at: &'static str, value: Value| all.insert(at, value);
    for (at, keys) in [
        (
            "bdev_malloc_create",
            json!({ "name": "X", "num_blocks": 32, "block_size": 4096, "physical_block_size": 4096, "uuid": uuid }),
        ),
        (
            "bdev_null_create",
            json!({ "name": "X", "num_blocks": 32, "block_size": 512, "physical_block_size": 16384, "uuid": uuid }),
        ),
        (
            "bdev_aio_create",
            json!({ "name": "X", "filename": "/dev/x", "block_size": 4096, "readonly": true, "uuid": uuid }),
        ),
        (
            "bdev_uring_create",
            json!({ "name": "X", "filename": "/dev/x", "block_size": 4096, "readonly": true, "uuid": uuid }),
        ),
        (
            "bdev_nvme_attach_controller",
            json!({ "name": "X", "trtype": "TCP", "traddr": "0000:02:00.0" }),
        ),
        (
            "bdev_nvme_set_options",
            json!({ "timeout_us": 9_000_000, "action_on_timeout": "none", "generate_uuids": true }),
        ),
        (
            "bdev_raid_create",
            json!({ "name": "X", "strip_size": 32, "strip_size_kb": 32, "raid_level": "raid1", "base_bdevs": ["M2", "M1"], "superblock": true, "uuid": uuid }),
        ),
        ("bdev_split_create", json!({ "base_bdev": "M2", "split_count": 1, "split_size_mb": 8 })),
        (
            "bdev_delay_create",
            json!({ "name": "X", "base_bdev_name": "M0", "avg_read_latency": 5, "p99_read_latency": 20, "avg_write_latency": 5, "p99_write_latency": 20, "uuid": uuid }),
        ),
        (
            "bdev_passthru_create",
            json!({ "name": "X", "passthru_bdev_name": "X", "base_bdev_name": "M0", "uuid": uuid }),
        ),
        ("bdev_error_create", json!({ "base_name": "M0", "uuid": uuid })),
        (
            "bdev_set_qos_limit",
            json!({ "name": "N0", "rw_ios_per_sec": 2000, "rw_mbytes_per_sec": 20, "r_mbytes_per_sec": 1, "w_mbytes_per_sec": 1 }),
        ),
        (
            "nvmf_set_config",
            json!({ "poll_groups_mask": "[0-2]", "admin_cmd_passthru": { "sanitize": true } }),
        ),
        (
            "nvmf_create_transport",
            json!({ "trtype": "FC", "max_queue_depth": 64, "max_io_qpairs_per_ctrlr": 8, "max_qpairs_per_ctrlr": 64, "in_capsule_data_size": 8192, "max_io_size": 262_144, "max_aq_depth": 256, "min_kato": 3000, "c2h_success": false, "num_shared_buffers": 48, "buf_cache_size": 3, "io_unit_size": 8192, "io_pacer_period": 6000, "io_pacer_credit": 131_072, "io_pacer_threshold": 8192, "io_pacer_disk_credit": 16, "io_pacer_tuner_period": 20_000, "io_pacer_tuner_step": 50, "io_pacer_tuner_threshold": 1_000_000, "io_pacer_tuner_factor": 2 }),
        ),
        (
            "set_nvmf_target_options",
            json!({ "max_queue_depth": 256, "max_qpairs_per_ctrlr": 128, "in_capsule_data_size": 8192, "max_io_size": 262_144 }),
        ),
        (
            "nvmf_create_subsystem",
            json!({ "nqn": "nqn.2016-06.io.spdk:b", "serial_number": "T", "model_number": "N", "allow_any_host": true, "min_cntlid": 2, "max_cntlid": 99, "hosts": ["i"], "namespaces": [], "listen_addresses": [] }),
        ),
        (
            "nvmf_subsystem_add_ns",
            json!({ "nqn": "nqn.2016-06.io.spdk:b", "namespace": { "bdev_name": "M0" } }),
        ),
        (
            "nvmf_subsystem_add_ns/namespace",
            json!({ "bdev_name": "N1", "nsid": 9, "uuid": uuid, "nguid": uuid, "eui64": "0000000000000001", "no_auto_visible": true }),
        ),
        (
            "nvmf_subsystem_add_listener",
            json!({ "nqn": "nqn.2016-06.io.spdk:b", "listen_address": { "trtype": "TCP", "traddr": "::" }, "secure_channel": true, "sock_impl": "ssl" }),
        ),
        (
            "nvmf_subsystem_add_listener/listen_address",
            json!({ "trtype": "FC", "transport": "FC", "traddr": "192.0.2.3", "trsvcid": "4421" }),
        ),
        (
            "nvmf_subsystem_add_host",
            json!({ "nqn": "nqn.2016-06.io.spdk:b", "host": "i", "psk": "k", "dhchap_key": "k", "dhchap_ctrlr_key": "k" }),
        ),
        ("nvmf_subsystem_allow_any_host", json!({ "nqn": "discovery", "allow_any_host": true })),
        (
            "nvmf_discovery_add_referral",
            json!({ "address": { "trtype": "TCP", "traddr": "192.0.2.8" }, "secure_channel": true, "subnqn": "nqn.2026-11.org.example:other" }),
        ),
        (
            "nvmf_discovery_add_referral/address",
            json!({ "trtype": "FC", "transport": "FC", "traddr": "192.0.2.8", "trsvcid": "8010", "subnqn": "nqn.2026-11.org.example:other" }),
        ),
        (
            "",
            json!({ "hosts": [], "ports": [], "subsystems": [], "discovery_nqn": "nqn.2026-11.org.example:discovery" }),
        ),
        ("/hosts/0", json!({ "nqn": "other", "attr": {}, "dhchap": "no object" })),
        (
            "/hosts/1/attr",
            json!({ "dhchap_key": "k", "key": "k", "dhchap_ctrl_key": "k", "ctrl_key": "k" }),
        ),
        (
            "/ports/0",
            json!({ "addr": { "trtype": "loop" }, "param": {}, "referrals": [], "ana_groups": [{ "ana": { "state": "inaccessible" } }], "subsystems": [] }),
        ),
        (
            "/ports/0/addr",
            json!({ "trtype": "rdma", "traddr": "192.0.2.2", "trsvcid": "4421", "treq": "required", "tsas": "tls1.3" }),
        ),
        (
            "/ports/0/param",
            json!({ "inline_data_size": "8192", "max_queue_size": "64", "mdts": "5" }),
        ),
        (
            "/ports/0/referrals/0",
            json!({ "addr": { "trtype": "tcp", "traddr": "192.0.2.8" }, "enable": "0" }),
        ),
        (
            "/ports/0/referrals/0/addr",
            json!({ "trtype": "rdma", "traddr": "192.0.2.8", "trsvcid": "8010", "treq": "required", "tsas": "tls1.3" }),
        ),
        ("/ports/0/ana_groups/0", json!({ "ana": { "state": "change" } })),
        ("/ports/0/ana_groups/0/ana", json!({ "state": "inaccessible" })),
        (
            "/subsystems/0",
            json!({ "nqn": "b", "attr": {}, "allowed_hosts": [], "namespaces": [], "passthru": { "enable": 1 }, "device": { "path": "/dev/nvme0" } }),
        ),
        (
            "/subsystems/0/attr",
            json!({ "allow_any_host": "1", "serial": "t", "model": "n", "cntlid_min": "2", "cntlid_max": "99", "qid_max": "8" }),
        ),
        (
            "/subsystems/0/passthru",
            json!({ "device_path": "/dev/nvme0", "path": "/dev/nvme0", "enable": "1" }),
        ),
        (
            "/subsystems/0/namespaces/0",
            json!({ "nsid": 2, "enable": 0, "device": { "path": "/srv/b.raw" }, "buffered_io": 1 }),
        ),
        (
            "/subsystems/0/namespaces/0/device",
            json!({ "path": "/srv/b.raw", "uuid": uuid, "nguid": uuid, "eui64": "0000000000000001", "buffered_io": 1 }),
        ),
    ] {
        add(at, keys);
    }
    all
}

/// An object of a fixture, and the table of its keys.
struct Audited {
    /// Name of the object in [`others`].
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
    let others = others();
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
                    let other = others.get(object.name.as_str()).and_then(|keys| keys.get(*key));
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
