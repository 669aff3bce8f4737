//! Tests of `configs/target.toml`, which documents every key.
//!
//! It is valid, has every key of the parser, and states the defaults of the code.

use std::collections::{BTreeMap, BTreeSet};

use nvmeof_api::document::{Document, PacingConfig, Tagged};
use nvmeof_core::block::fault::FaultPlan;
use nvmeof_pacing::PolicyName;

use super::{LEAST, machine, parse};
use crate::config::{Config, DeviceKind};

const EXAMPLE: &str = include_str!("../../../../../configs/target.toml");

/// Every table, with an unknown key.
const TABLES: [(&str, &str); 17] = [
    ("", "no-such-key = 1\n"),
    ("api", "[api]\nno-such-key = 1\n"),
    ("rpc", "[rpc]\nno-such-key = 1\n"),
    ("limits", "[limits]\nno-such-key = 1\n"),
    ("pacing", "[pacing]\nno-such-key = 1\n"),
    ("discovery", "[discovery]\nno-such-key = 1\n"),
    ("listener", "[[listener]]\nno-such-key = 1\n"),
    ("device", "[[device]]\nno-such-key = 1\n"),
    ("root-complex", "[[root-complex]]\nno-such-key = 1\n"),
    ("subsystem", "[[subsystem]]\nno-such-key = 1\n"),
    ("subsystem.namespace", "[[subsystem]]\n[[subsystem.namespace]]\nno-such-key = 1\n"),
    ("referral", "[[referral]]\nno-such-key = 1\n"),
    ("host-defaults", "[host-defaults]\nno-such-key = 1\n"),
    ("host-defaults.limit", "[host-defaults.limit]\nno-such-key = 1\n"),
    ("host", "[[host]]\nno-such-key = 1\n"),
    ("host.limit", "[[host]]\n[host.limit]\nno-such-key = 1\n"),
    (
        "subsystem.namespace.limit",
        "[[subsystem]]\n[[subsystem.namespace]]\n[subsystem.namespace.limit]\nno-such-key = 1\n",
    ),
];

/// Returns the parser's dotted keys, extracted from its errors for unknown keys.
fn known_keys() -> BTreeSet<String> {
    let mut keys = BTreeSet::new();
    for (table, text) in TABLES {
        let error = parse(text).unwrap_err();
        let allowed = error.problems[0].allowed.strip_prefix("allowed: ").unwrap();
        for key in allowed.split(", ") {
            keys.insert(if table.is_empty() { key.into() } else { format!("{table}.{key}") });
        }
    }
    keys
}

/// Collects the dotted keys of a document.
fn keys_of(table: &toml::Table, prefix: &str, keys: &mut BTreeSet<String>) {
    for (key, value) in table {
        let key = if prefix.is_empty() { key.clone() } else { format!("{prefix}.{key}") };
        match value {
            toml::Value::Table(table) => keys_of(table, &key, keys),
            toml::Value::Array(array) => {
                for member in array.iter().filter_map(toml::Value::as_table) {
                    keys_of(member, &key, keys);
                }
            }
            _ => {}
        }
        keys.insert(key);
    }
}

/// Uncomments the requested alternatives in the example: lines that begin with `#` and a key.
fn with_alternatives(wanted: impl Fn(&str) -> bool) -> String {
    let line = |line: &str| {
        let alternative = line.strip_prefix('#').filter(|rest| !rest.starts_with(' '));
        if let Some(header) = alternative.filter(|rest| rest.starts_with('[') && wanted(rest)) {
            return format!("{header}\n");
        }
        match alternative.and_then(|rest| Some((rest, rest.split_once(" = ")?))) {
            Some((text, (key, _))) if wanted(key) => format!("{text}\n"),
            _ => format!("{line}\n"),
        }
    };
    EXAMPLE.lines().map(line).collect()
}

/// Returns the line above the first mention of each key: `# default: ...` or `# required...`.
fn documented() -> BTreeMap<String, String> {
    let mut documented = BTreeMap::new();
    let (mut table, mut comment) = (String::new(), String::new());
    for line in EXAMPLE.lines().map(str::trim) {
        if let Some(header) = line.trim_start_matches('#').strip_prefix('[') {
            table = header.trim_matches(['[', ']']).to_owned() + ".";
        } else if let Some(text) = line.strip_prefix("# ") {
            comment = text.to_owned();
        } else if let Some((key, _)) = line.trim_start_matches('#').split_once(" = ") {
            documented.entry(format!("{table}{key}")).or_insert(std::mem::take(&mut comment));
        } else {
            comment.clear();
        }
    }
    documented
}

#[test]
fn the_example_passes_the_check() {
    let config = Config::parse("target.toml", EXAMPLE, &machine()).unwrap();
    assert_eq!(config.warnings, []);
    assert_eq!(config.listeners.len(), 2);
}

/// The example's alternatives are valid when uncommented together with their policy.
#[test]
fn the_examples_other_policies_pass_the_check() {
    let tuner = ["buffers", "cache", "period", "credit", "bypass-below", "drive-limit", "tuner"];
    let pool = &tuner[..2];
    let by_bandwidth = [&tuner[2..], &["tuner-interval", "tuner-step"]].concat();
    let by_bytes = [&tuner[..], &["tuner-threshold"]].concat();
    let policies: [(&str, &[&str]); 8] = [
        ("none", &[]),
        ("buffer-credit", &["budget"]),
        ("token-bucket", &["rate"]),
        ("token-bucket", &["rate", "budget"]),
        ("token-bucket", &["period", "burst", "budget"]),
        ("prototype", pool),
        ("prototype", &by_bytes),
        ("prototype", &by_bandwidth),
    ];
    for (policy, keys) in policies {
        let text = with_alternatives(|key| keys.contains(&key))
            .replace("policy = \"adaptive\"", &format!("policy = \"{policy}\""));
        let text = match keys.contains(&"tuner-interval") {
            true => text.replace("tuner = \"bytes-in-flight\"", "tuner = \"bandwidth\""),
            false => text,
        };
        let config = Config::parse("target.toml", &text, &machine());
        let config = config.unwrap_or_else(|error| panic!("{policy} {keys:?}: {error}"));
        assert_eq!(config.pacing.name(), policy);
    }
}

#[test]
fn the_example_has_every_key_and_no_other() {
    let mut present = BTreeSet::new();
    keys_of(&with_alternatives(|_| true).parse().unwrap(), "", &mut present);
    assert_eq!(present, known_keys());
}

/// The API's document, which `save` writes, has every key; those of pacing under their policies.
#[test]
fn a_document_has_every_key_of_a_config() {
    let mut kept = BTreeSet::new();
    for policy in PacingConfig::variants() {
        let mut text: toml::Table = with_alternatives(|_| true).parse().unwrap();
        let pacing = text["pacing"].as_table_mut().unwrap();
        pacing.retain(|key: &str, _| policy.keys().contains(&key));
        pacing.insert(PacingConfig::TAG.into(), policy.name.into());
        let written = text.clone();
        let document = Document::from_toml(&text.to_string()).unwrap().to_toml().unwrap();
        let document: toml::Table = document.parse().unwrap();
        assert_eq!(document, written);
        keys_of(&document, "", &mut kept);
    }
    assert_eq!(kept, known_keys());
}

/// The sweeps of `xtask` follow the list of the policies' crate.
#[test]
fn policies_have_the_keys_that_their_crate_lists() {
    let names = PacingConfig::variants().iter().map(|policy| policy.name);
    assert!(names.eq(PolicyName::ALL.map(PolicyName::name)));
    for policy in PacingConfig::variants() {
        let listed = PolicyName::named(policy.name).unwrap().keys().iter().map(|key| key.name());
        assert!(listed.eq(policy.keys().iter().copied()), "{}", policy.name);
    }
}

#[test]
fn every_key_is_documented_with_its_default_or_as_required() {
    let documented = documented();
    let tables: BTreeSet<&str> = TABLES.iter().map(|(table, _)| *table).collect();
    for key in known_keys().iter().filter(|key| !tables.contains(key.as_str())) {
        let text = documented.get(key).map_or("", String::as_str);
        let said = text.starts_with("default") || text.starts_with("required");
        assert!(said, "{key}: no `# default: ...` or `# required` right above it, but: {text:?}");
    }
}

/// Every table with its required keys only, in an order that TOML accepts.
const LEAST_OF_EACH: [(&str, &str); 16] = [
    ("", ""),
    ("api", "[api]\n"),
    ("rpc", "[rpc]\n"),
    ("limits", "[limits]\n"),
    ("pacing", "[pacing]\n"),
    ("host-defaults", "[host-defaults]\n"),
    ("host-defaults.limit", "[host-defaults.limit]\niops = 1\n"),
    ("host", "[[host]]\nnqn = \"nqn.2026-11.org.example:a\"\n"),
    ("host.limit", "[host.limit]\niops = 2\n"),
    ("discovery", "[discovery]\n"),
    ("listener", "[[listener]]\ntype = \"tcp\"\naddress = \"127.0.0.1\"\n"),
    ("device", "[[device]]\nname = \"a\"\ntype = \"null\"\nsize = 4096\n"),
    ("subsystem", "[[subsystem]]\nnqn = \"nqn.2026-11.org.example:x\"\nallow-any-host = true\n"),
    ("subsystem.namespace", "[[subsystem.namespace]]\nnsid = 1\ndevice = \"a\"\n"),
    ("subsystem.namespace.limit", "[subsystem.namespace.limit]\niops = 3\n"),
    ("referral", "[[referral]]\ntype = \"tcp\"\naddress = \"192.0.2.1\"\n"),
];

/// A config with all defaults written out equals one without them.
#[test]
fn the_stated_defaults_are_the_codes() {
    let mut tables: BTreeMap<&str, String> = BTreeMap::new();
    let documented = documented();
    let mut compared = BTreeSet::new();
    for (key, text) in &documented {
        let Some(default) = text.strip_prefix("default: ") else { continue };
        let elsewhere = ["none", "derived", "derived from the NQN", "as in [host-defaults]"];
        if elsewhere.contains(&default) {
            continue;
        }
        let (table, name) = key.rsplit_once('.').unwrap_or(("", key));
        // Keys of some types only, an alternative, and a budget without a default: tested below.
        let elsewhere = [
            "create",
            "read-only",
            "direct",
            "allow-any-host",
            "budget",
            "rnr-retry-count",
            "shared-receives",
            "completion-queue-depth",
        ];
        if !elsewhere.contains(&name) && !of_some_devices(key) {
            *tables.entry(table).or_default() += &format!("{name} = {default}\n");
            compared.insert(key.as_str());
        }
    }
    let without: String = LEAST_OF_EACH.map(|(_, least)| least).concat();
    let with: String = LEAST_OF_EACH
        .map(|(table, least)| least.to_owned() + tables.get(table).map_or("", String::as_str))
        .concat();
    let (without, with) = (parse(&without).unwrap(), parse(&with).unwrap());
    // Messages that contain line numbers differ.
    let plain = |config: Config| Config { warnings: Vec::new(), port_taken: Vec::new(), ..config };
    assert_eq!(plain(without), plain(with));
    assert_eq!(compared.len(), 36, "{compared:?}");
}

#[test]
fn the_defaults_of_rdma_listeners_are_the_codes() {
    let documented = documented();
    let listener = format!("{LEAST}[[listener]]\ntype = \"rdma\"\naddress = \"::1\"\n");
    let written = ["rnr-retry-count", "shared-receives", "completion-queue-depth"].map(|key| {
        let text = &documented[&format!("listener.{key}")];
        format!("{key} = {}\n", text.strip_prefix("default: ").unwrap())
    });
    let with = parse(&format!("{listener}{}", written.concat())).unwrap();
    assert_eq!(parse(&listener).unwrap().listeners, with.listeners);
}

#[test]
fn the_defaults_of_files_and_the_budget_are_the_codes() {
    let documented = documented();
    let default = |key: &str| documented[key].strip_prefix("default: ").unwrap().to_owned();

    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(&file, [0; 4096]).unwrap();
    let device = format!(
        "{LEAST}[[device]]\nname = \"a\"\ntype = \"file\"\npath = \"{}\"\n",
        file.path().display()
    );
    let written = ["create", "read-only", "direct"]
        .map(|key| format!("{key} = {}\n", default(&format!("device.{key}"))));
    let with = parse(&format!("{device}{}", written.concat())).unwrap();
    assert_eq!(parse(&device).unwrap().devices, with.devices);

    let policy = format!("{LEAST}[pacing]\npolicy = \"buffer-credit\"\n");
    let with = format!("{policy}budget = {}\n", default("pacing.budget"));
    assert_eq!(parse(&policy).unwrap().pacing, parse(&with).unwrap().pacing);
    assert_eq!(default("subsystem.allow-any-host"), "false");
}

/// Keys of layered devices and of drives.
const OF_SOME: [(&str, &str, &[&str]); 5] = [
    ("nvme", "pci = \"0000:01:00.0\"\n", &["nsid", "queue-depth", "io-timeout"]),
    ("split", "base = \"a\"\n", &["offset"]),
    ("stripe", "members = [\"a\", \"b\"]\n", &["chunk"]),
    (
        "delay",
        "base = \"a\"\n",
        &["read-latency", "write-latency", "read-jitter", "write-jitter", "seed"],
    ),
    (
        "fault",
        "base = \"a\"\nstalls = 1\n",
        &["errors", "corruptions", "rejects", "stall", "reorder", "seed", "gone"],
    ),
];

fn of_some_devices(key: &str) -> bool {
    let Some(name) = key.strip_prefix("device.") else { return false };
    name == "stalls" || OF_SOME.iter().any(|(_, _, keys)| keys.contains(&name))
}

#[test]
fn the_defaults_of_drives_and_of_devices_on_others_are_the_codes() {
    let documented = documented();
    let bases: String = ["a", "b"]
        .map(|name| format!("[[device]]\nname = \"{name}\"\ntype = \"null\"\nsize = \"1MiB\"\n"))
        .concat();
    for (kind, required, keys) in OF_SOME {
        let device =
            format!("{LEAST}{bases}[[device]]\nname = \"x\"\ntype = \"{kind}\"\n{required}");
        let written: String = keys
            .iter()
            .map(|key| {
                let text = &documented[&format!("device.{key}")];
                format!("{key} = {}\n", text.strip_prefix("default: ").unwrap())
            })
            .collect();
        let with = parse(&format!("{device}{written}")).unwrap();
        assert_eq!(parse(&device).unwrap().devices, with.devices, "{kind}");
    }
    assert_eq!(documented["device.stalls"], "default: 0");
    let fault = format!("{LEAST}{bases}[[device]]\nname = \"x\"\ntype = \"fault\"\nbase = \"a\"\n");
    let none = FaultPlan::default();
    let kind = &parse(&fault).unwrap().devices[2].kind;
    assert_eq!(kind, &DeviceKind::Fault { base: "a".into(), plan: none, gone: false });
}
