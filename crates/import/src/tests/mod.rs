//! Whole configs, and configs with errors.

mod audit;
mod conf;
mod identity;

use std::collections::BTreeSet;

use nvmeof_tgt::config::{Config, DeviceKind};
use nvmeof_tgt::config_file::Machine;
use nvmeof_wire::Nqn;
use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;

const KERNEL: &str = include_str!("fixtures/kernel.json");
const SPDK: &str = include_str!("fixtures/spdk.json");

fn machine() -> Machine {
    let open = Vec::new();
    Machine { cpus: (0..4).collect(), open_files: 65_536, memory: 64 << 30, open }
}

/// The text of a fixture with two files that exist.
struct Files {
    _folder: tempfile::TempDir,
    paths: [String; 2],
}

impl Files {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let paths = ["a.raw", "b.raw"].map(|name| {
            let path = folder.path().join(name);
            std::fs::File::create(&path).unwrap().set_len(16 << 20).unwrap();
            path.to_str().unwrap().to_owned()
        });
        Self { _folder: folder, paths }
    }

    fn fill(&self, text: &str) -> String {
        text.replace("@A@", &self.paths[0]).replace("@B@", &self.paths[1])
    }
}

fn taken(toml: &str) -> Config {
    match Config::parse("target.toml", toml, &machine()) {
        Ok(config) => config,
        Err(error) => panic!("the daemon refuses it: {error}\n{toml}"),
    }
}

fn has(notes: &[Note], kind: NoteKind, path: &str, part: &str) {
    let found =
        notes.iter().any(|note| note.kind == kind && note.path == path && note.what.contains(part));
    assert!(found, "no note \"{kind}: {path}: ...{part}\" among\n{}", show(notes));
}

fn show(notes: &[Note]) -> String {
    notes.iter().map(|note| format!("{note}\n")).collect()
}

#[test]
fn a_kernel_config_is_taken() {
    let files = Files::new();
    let imported = import(&files.fill(KERNEL), &NoDisks).unwrap();
    assert_eq!(imported.source, ImportSource::Kernel);
    let config = taken(&imported.toml);
    let listeners: Vec<String> = config
        .listeners
        .iter()
        .map(|one| format!("{} {} {}", one.fabric.name(), one.address, one.port))
        .collect();
    assert_eq!(listeners, ["tcp 192.0.2.10 4420", "rdma 2001:db8::10 4420"]);
    let nqns: Vec<&str> = config.subsystems.iter().map(|one| one.nqn.as_str()).collect();
    assert_eq!(nqns, ["nqn.2026-11.org.example:disks", "nqn.2026-11.org.example:open"]);
    let disks = &config.subsystems[0];
    assert_eq!((disks.serial.as_str(), disks.model.as_str()), ("123456789abcdef", "Linux"));
    assert_eq!(disks.hosts.as_ref().map(BTreeSet::len), Some(1));
    let nsids: Vec<u32> = disks.namespaces.iter().map(|one| one.nsid).collect();
    assert_eq!(nsids, [1, 7, 5000]);
    assert_eq!(disks.namespaces[0].uuid.unwrap()[..4], [0xd5, 0x92, 0xcd, 0xf3]);
    assert_eq!(disks.namespaces[1].nguid.unwrap()[..4], [0xef, 0x90, 0x68, 0x9c]);
    // Two subsystems on one disk: the second has a split of the whole disk.
    let shared = &config.subsystems[1].namespaces[0];
    let shared = config.device(&shared.device).unwrap();
    assert!(matches!(&shared.kind, DeviceKind::Split { offset: 0, size: None, .. }), "{shared:?}");
    assert!(config.subsystems[1].hosts.is_none());
    assert_eq!(config.limits.in_capsule, 16384);
    assert_eq!(config.limits.io_queues, 128);
    assert_eq!(config.referrals.len(), 1);
    assert_eq!(config.subsystems[1].model, "nvmeof-tgt");
    // The second port has one of the two subsystems.
    assert_eq!(served(&config), [None, Some(vec!["nqn.2026-11.org.example:disks".into()])]);
}

/// Returns the subsystems of each listener; `None`: all.
fn served(config: &Config) -> Vec<Option<Vec<String>>> {
    let names = |one: &BTreeSet<Nqn>| one.iter().map(|nqn| nqn.as_str().to_owned()).collect();
    config.listeners.iter().map(|one| one.subsystems.as_ref().map(names)).collect()
}

#[test]
fn a_kernel_config_loses_nothing_silently() {
    let files = Files::new();
    let notes = import(&files.fill(KERNEL), &NoDisks).unwrap().notes;
    let unsupported = [
        ("$.ports[1].ana_groups[0]", "non-optimized"),
        ("$.ports[2].addr", "only TCP and RDMA"),
        ("$.ports[3].addr", "TLS only"),
        ("$.subsystems[0].attr.version", "version 2.0"),
        ("$.subsystems[0].allowed_hosts[1]", "DH-HMAC-CHAP"),
        ("$.subsystems[0].namespaces[2]", "disabled"),
        ("$.subsystems[1].attr.model", "40"),
        ("$.subsystems[2]", "no port"),
        ("$.subsystems[3]", "no port"),
    ];
    for (path, part) in unsupported {
        has(&notes, NoteKind::Unsupported, path, part);
    }
    let converted = [
        ("$.ports[0].referrals[0]", "all listeners"),
        ("$.subsystems[0].attr.qid_max", "1 hosts with 128 queues"),
        ("$.subsystems[1].namespaces[0]", "one of its own"),
    ];
    for (path, part) in converted {
        has(&notes, NoteKind::Converted, path, part);
    }
    assert_eq!(notes.len(), unsupported.len() + converted.len(), "{}", show(&notes));
}

#[test]
fn an_spdk_config_is_taken() {
    let files = Files::new();
    let imported = import(&files.fill(SPDK), &NoDisks).unwrap();
    assert_eq!(imported.source, ImportSource::Spdk);
    let config = taken(&imported.toml);
    assert_eq!(config.reactors, [0, 1]);
    assert_eq!(config.limits.max_transfer, 128 << 10);
    assert_eq!(config.limits.in_capsule, 4096);
    assert_eq!(config.listeners.len(), 1);
    assert!(config.listeners[0].address.is_unspecified());
    let [subsystem] = config.subsystems.as_slice() else { panic!("{:?}", config.subsystems) };
    assert_eq!(subsystem.hosts.as_ref().map(BTreeSet::len), Some(1));
    let of = |nsid| {
        let found = subsystem.namespaces.iter().find(|one| one.nsid == nsid).unwrap();
        config.device(&found.device).unwrap()
    };
    assert!(matches!(of(1).kind, DeviceKind::Ram { size } if size == 64 << 20));
    let limits = |nsid| {
        let found = subsystem.namespaces.iter().find(|one| one.nsid == nsid).unwrap();
        (found.limits.iops, found.limits.bandwidth)
    };
    assert_eq!(limits(1), (Some(20_000), Some(100 << 20)));
    assert_eq!(limits(2), (None, None));
    let DeviceKind::Nvme(drive) = &of(2).kind else { panic!("{:?}", of(2)) };
    assert_eq!((drive.pci.as_str(), drive.nsid), ("0000:01:00.0", 1));
    assert_eq!(drive.io_timeout.as_secs(), 8);
    let DeviceKind::Stripe { members, chunk } = &of(3).kind else { panic!("{:?}", of(3)) };
    assert_eq!((members.len(), *chunk), (2, 64 << 10));
    let part = config.device(&members[1]).unwrap();
    assert!(
        matches!(part.kind, DeviceKind::Split { offset: 0, size: Some(size), .. } if size == 16 << 20)
    );
    let DeviceKind::Delay { latency, .. } = &of(9).kind else { panic!("{:?}", of(9)) };
    assert_eq!((latency.read.as_micros(), latency.write.as_micros()), (1000, 250));
    // Number 4 is that of a logical volume, which is not taken over.
    assert!(matches!(of(5).kind, DeviceKind::File(_)));
    assert_eq!(of(5).block_size, Some(4096));
    assert!(matches!(of(6).kind, DeviceKind::Fault { .. }));
    assert_eq!(subsystem.namespaces.len(), 6);
    // Unused devices are not opened.
    assert!(config.device("Uring0").is_none());
}

#[test]
fn an_spdk_config_loses_nothing_silently() {
    let files = Files::new();
    let notes = import(&files.fill(SPDK), &NoDisks).unwrap().notes;
    for (path, part) in [
        ("$.subsystems[3].config[3]", "VFIOUSER"),
        ("$.subsystems[3].config[6]", "authenticate"),
        ("$.subsystems[3].config[10].params.namespace.ptpl_file", "cannot reserve"),
        ("$.subsystems[3].config[11].params.namespace.bdev_name", "lvs0/lvol0"),
        ("$.subsystems[3].config[17].params.listen_address", "TLS"),
        ("$.subsystems (\"nqn.2016-06.io.spdk:secret\")", "no listener"),
        ("$.subsystems[4].config[3].params.md_size", "metadata"),
        ("$.subsystems[4].config[4]", "520"),
        ("$.subsystems[4].config[6]", "elsewhere"),
        ("$.subsystems[4].config[11]", "\"raid0\" already"),
        ("$.subsystems[4].config[12]", "raid1"),
        ("$.subsystems[4].config[17].params.w_mbytes_per_sec", "writes alone (50 MiB/s)"),
        ("$.subsystems[4].config[18]", "bdev_crypto_create"),
        ("$.subsystems[5]", "iscsi"),
    ] {
        has(&notes, NoteKind::Unsupported, path, part);
    }
    for (path, part) in [
        ("$.subsystems[3].config[15].params.listen_address", "single addresses"),
        ("$.subsystems[3].config[2].params.max_io_qpairs_per_ctrlr", "2 hosts with 127 queues"),
        ("$.subsystems[3].config[2].params.num_shared_buffers", "as a comment"),
        ("$.subsystems[3].config[8].params.namespace", "drive's UUID"),
        ("$.subsystems[4].config[1].params.timeout_us", "8 s"),
        ("$.subsystems[4].config[1].params.timeout_us", "action_on_timeout was none"),
        ("$.subsystems[4].config[5]", "drives bind 0000:01:00.0"),
        ("$.subsystems[4].config[13]", "p99"),
        ("$.subsystems[4].config[15].params.filename", "blockdev --getss"),
    ] {
        has(&notes, NoteKind::Converted, path, part);
    }
    has(&notes, NoteKind::NotApplicable, "$.subsystems[1]", "iobuf");
}

#[test]
fn a_limit_of_a_device_that_no_namespace_is_or_that_several_are_is_told_of() {
    let mut spdk: Value = serde_json::from_str(SPDK).unwrap();
    let calls = spdk["subsystems"][4]["config"].as_array_mut().unwrap();
    let limit = |name: &str, key: &str, figure: u64| json!({ "method": "bdev_set_qos_limit", "params": { "name": name, key: figure } });
    let at = calls.len();
    calls.push(limit("Malloc1", "rw_ios_per_sec", 1000));
    // A later call changes only the limits that it names; 0 removes one.
    calls.push(limit("Malloc0", "rw_ios_per_sec", 0));
    let namespace =
        json!({ "nqn": "nqn.2016-06.io.spdk:cnode1", "namespace": { "bdev_name": "Malloc0" } });
    let served = spdk["subsystems"][3]["config"].as_array_mut().unwrap();
    served.push(json!({ "method": "nvmf_subsystem_add_ns", "params": namespace }));
    let again = format!("$.subsystems[3].config[{}].params.namespace.bdev_name", served.len() - 1);
    let files = Files::new();
    let imported = import(&files.fill(&spdk.to_string()), &NoDisks).unwrap();
    let path = format!("$.subsystems[4].config[{at}]");
    has(&imported.notes, NoteKind::Unsupported, &path, "no namespace is block device \"Malloc1\"");
    has(&imported.notes, NoteKind::Converted, &again, "here each has it");
    let config = taken(&imported.toml);
    let limits = config.subsystems[0].namespaces.iter().map(|one| one.limits);
    let limited: Vec<_> = limits.filter(|limits| limits.is_any()).collect();
    assert_eq!(limited.len(), 2);
    assert!(limited.iter().all(|one| (one.iops, one.bandwidth) == (None, Some(100 << 20))));
}

/// A namespace that hosts cannot write stays so, and a device keeps its block size.
#[test]
fn a_second_device_of_a_file_is_served_only_if_it_is_equal() {
    let files = Files::new();
    let with = |second: Value| {
        let file = |name: &str, more: &Value| {
            let mut params = json!({ "name": name, "filename": "@A@", "block_size": 512 });
            params.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            json!({ "method": "bdev_aio_create", "params": params })
        };
        let nqn = "nqn.2016-06.io.spdk:a";
        let namespace = |name: &str| {
            let params = json!({ "nqn": nqn, "namespace": { "bdev_name": name } });
            json!({ "method": "nvmf_subsystem_add_ns", "params": params })
        };
        let address = json!({ "trtype": "tcp", "traddr": "127.0.0.1", "trsvcid": "4420" });
        let text = json!({ "subsystems": [
            { "subsystem": "bdev", "config": [file("W", &json!({})), file("R", &second)] },
            { "subsystem": "nvmf", "config": [
                { "method": "nvmf_create_subsystem", "params": { "nqn": nqn, "allow_any_host": true } },
                namespace("W"),
                namespace("R"),
                { "method": "nvmf_subsystem_add_listener",
                    "params": { "nqn": nqn, "listen_address": address } },
            ] },
        ] });
        let imported = import(&files.fill(&text.to_string()), &NoDisks).unwrap();
        (taken(&imported.toml).subsystems[0].namespaces.len(), imported.notes)
    };
    let path = "$.subsystems[0].config[1].params.filename";
    for second in [json!({ "readonly": true }), json!({ "block_size": 4096 })] {
        let (namespaces, notes) = with(second);
        assert_eq!(namespaces, 1);
        has(&notes, NoteKind::Unsupported, path, "\"R\" and its namespaces are not served");
        let namespace = "$.subsystems[1].config[2].params.namespace.bdev_name";
        has(&notes, NoteKind::Unsupported, namespace, "\"R\"");
    }
    let (namespaces, notes) = with(json!({}));
    assert_eq!(namespaces, 2);
    has(&notes, NoteKind::Converted, path, "both are one");
}

/// A superblock shifts SPDK's data; a stripe of ours would read wrong data.
#[test]
fn a_raid_with_a_superblock_is_unsupported() {
    let mut spdk: Value = serde_json::from_str(SPDK).unwrap();
    spdk["subsystems"][4]["config"][9]["params"]["superblock"] = json!(true);
    let files = Files::new();
    let imported = import(&files.fill(&spdk.to_string()), &NoDisks).unwrap();
    has(&imported.notes, NoteKind::Unsupported, "$.subsystems[4].config[9]", "superblock");
    assert!(!imported.toml.contains("type = \"stripe\""));
    taken(&imported.toml);
}

#[test]
fn what_stands_on_a_disk_is_asked_of_the_machine() {
    struct Large;
    impl DiskProperties for Large {
        fn block_size(&self, path: &str) -> Option<u32> {
            path.ends_with("b.raw").then_some(4096)
        }
        fn size(&self, _path: &str) -> Option<u64> {
            Some(16 << 20)
        }
        fn drive_namespace(&self, pci: &str, nsid: u64) -> Option<DriveNamespace> {
            let known = DriveNamespace { size: 1 << 30, block_size: 4096 };
            (pci == "0000:05:00.0" && nsid == 1).then_some(known)
        }
    }
    let files = Files::new();
    let config = json!({"subsystems": [
        {"subsystem": "bdev", "config": [
            {"method": "bdev_uring_create", "params": {"name": "u", "filename": "@B@"}},
            {"method": "bdev_split_create", "params": {"base_bdev": "u", "split_count": 4}},
            {"method": "bdev_nvme_attach_controller", "params": {"name": "D", "trtype": "pcie", "traddr": "05:00.0"}},
            {"method": "bdev_split_create", "params": {"base_bdev": "Dn1", "split_count": 3}},
        ]},
        {"subsystem": "nvmf", "config": [
            {"method": "nvmf_create_subsystem", "params": {"nqn": "nqn.2016-06.io.spdk:a", "allow_any_host": true}},
            {"method": "nvmf_subsystem_add_ns", "params": {"nqn": "nqn.2016-06.io.spdk:a", "namespace": {"bdev_name": "up3"}}},
            {"method": "nvmf_subsystem_add_ns", "params": {"nqn": "nqn.2016-06.io.spdk:a", "namespace": {"bdev_name": "Dn1p2"}}},
            {"method": "nvmf_subsystem_add_listener", "params": {"nqn": "nqn.2016-06.io.spdk:a",
                "listen_address": {"trtype": "tcp", "traddr": "[::1]", "trsvcid": "4420"}}},
        ]},
    ]});
    let text = files.fill(&config.to_string());
    let imported = import(&text, &Large).unwrap();
    let config = taken(&imported.toml);
    assert_eq!(config.device("u").unwrap().block_size, Some(4096));
    let split = &config.device("up3").unwrap().kind;
    assert!(matches!(split, DeviceKind::Split { offset, .. } if *offset == 12 << 20), "{split:?}");
    let split = &config.device("Dn1p2").unwrap().kind;
    let third = (1 << 30) / 4096 / 3 * 4096;
    assert!(
        matches!(split, DeviceKind::Split { offset, size: Some(size), .. } if (*offset, *size) == (2 * third, third)),
        "{split:?}"
    );
    // On another machine the size is unknown.
    has(
        &import(&text, &NoDisks).unwrap().notes,
        NoteKind::Unsupported,
        "$.subsystems[0].config[1]",
        "split_size_mb",
    );
}

#[test]
fn what_is_no_config_is_told_apart() {
    for (text, part) in [
        ("", "no JSON: line 1"),
        ("{", "no JSON: line 1"),
        ("[listener]", "none is [Subsystem1]"),
        ("// a comment\n{ /* another */ \"jsonrpc\": 2 }", "a call of SPDK's RPC"),
        ("{ /* no end", "no JSON"),
        ("[]", "$: a list of 0 is not valid; allowed: an object"),
        ("{}", "neither \"ports\" nor \"subsystems\""),
        ("{\"subsystems\": []}", "neither \"nqn\""),
        ("{\"subsystems\": 7}", "$.subsystems: 7 is not valid; allowed: a list"),
        ("{\"jsonrpc\": \"2.0\", \"method\": \"x\"}", "a call of SPDK's RPC"),
        ("{\"ports\": [7]}", "$.ports[0]: 7 is not valid; allowed: an object"),
        ("{\"ports\": [{}]}", "$.ports[0]: it has no \"addr\""),
        (
            "{\"hosts\": [{\"nqn\": 3}], \"ports\": []}",
            "$.hosts[0].nqn: 3 is not valid; allowed: a text",
        ),
        (
            "{\"ports\": [{\"addr\": {\"trtype\": \"tcp\", \"traddr\": \"::1\", \"trsvcid\": \"99999\"}}]}",
            "$.ports[0].addr.trsvcid: \"99999\" is not valid; allowed: a whole number from 0 to \
             65535",
        ),
        (
            "{\"subsystems\": [{\"subsystem\": \"bdev\", \"config\": [{\"method\": \"bdev_null_create\", \
             \"params\": {\"name\": \"n\", \"block_size\": 4096, \"num_blocks\": 18446744073709551615}}]}]}",
            "$.subsystems[0].config[0].params.num_blocks: 18446744073709551615 is not valid; \
             allowed: fewer",
        ),
        (
            "{\"subsystems\": [{\"subsystem\": \"bdev\", \"config\": [{\"method\": \"bdev_null_create\", \
             \"params\": {\"name\": \"n\", \"block_size\": 1e300, \"num_blocks\": 1}}]}]}",
            "params.block_size: 1e+300 is not valid",
        ),
        (
            "{\"subsystems\": [{\"subsystem\": \"bdev\", \"config\": [{\"method\": \"bdev_null_create\"}]}]}",
            "$.subsystems[0].config[0]: bdev_null_create has no \"params\"",
        ),
        (
            "{\"subsystems\": [{\"subsystem\": \"bdev\", \"config\": [{\"method\": \
             \"bdev_nvme_attach_controller\", \"params\": {\"name\": \"n\", \"trtype\": \"PCIe\", \
             \"traddr\": \"/dev/nvme0n1\"}}]}]}",
            "allowed: a PCI address",
        ),
    ] {
        let error = import(text, &NoDisks).expect_err(text).to_string();
        assert!(error.contains(part), "{text}: {error}");
    }
    let deep = "[".repeat(10_000);
    assert!(import(&deep, &NoDisks).unwrap_err().to_string().contains("no JSON"));
    let long = " ".repeat(TEXT_MAX + 1);
    assert_eq!(import(&long, &NoDisks), Err(ImportError::TooLong { bytes: TEXT_MAX + 1 }));
}

/// Collects the path of every value, for a change of one.
fn places(value: &Value, at: &str, all: &mut Vec<String>) {
    all.push(at.to_owned());
    match value {
        Value::Object(map) => {
            for (key, inner) in map {
                places(inner, &format!("{at}/{}", key.replace('~', "~0").replace('/', "~1")), all);
            }
        }
        Value::Array(list) => {
            for (index, inner) in list.iter().enumerate() {
                places(inner, &format!("{at}/{index}"), all);
            }
        }
        _ => {}
    }
}

fn odd_values() -> impl Strategy<Value = Value> {
    prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<u64>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        "\\PC{0,300}".prop_map(Value::from),
        Just(json!("nqn.2026-11.org.example:other")),
        Just(json!("0x\u{7f}\n# \"\"\"\n[[device]]")),
        Just(json!([])),
        Just(json!({})),
        Just(json!([{"nqn": "x"}, 3])),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    /// Any value at any path gives an error with a path, or a config that the daemon accepts.
    #[test]
    fn one_odd_value_makes_an_error_or_a_config(
        kernel in any::<bool>(),
        pick in any::<prop::sample::Index>(),
        odd in odd_values(),
    ) {
        let files = Files::new();
        let text = files.fill(if kernel { KERNEL } else { SPDK });
        let mut value: Value = serde_json::from_str(&text).unwrap();
        let mut all = Vec::new();
        places(&value, "", &mut all);
        let place = &all[pick.index(all.len())];
        *value.pointer_mut(place).unwrap() = odd;
        match import(&value.to_string(), &NoDisks) {
            Ok(imported) => {
                // A missing file depends on the machine, and a name can be any text.
                let absent = |error: &str| error.lines().all(|line| {
                    line.is_empty() || line.contains("device.path") || line.contains("more problems")
                });
                if let Err(error) = Config::parse("t", &imported.toml, &machine()) {
                    let text = error.to_string();
                    prop_assert!(absent(&text), "{place}: {text}\n{}", imported.toml);
                }
            }
            Err(ImportError::Wrong { path, .. }) => prop_assert!(path.starts_with('$')),
            Err(ImportError::NeitherFormat { .. }) => {}
            Err(other) => prop_assert!(false, "{place}: {other}"),
        }
    }
}
