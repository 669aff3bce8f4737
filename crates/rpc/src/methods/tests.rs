//! Methods on a document, as a client calls them.

use nvmeof_api::document::device::MemoryKeys;
use nvmeof_api::document::{Device, DeviceConfig, DiscoverySection, Listener, Size};
use nvmeof_api::view::{ConnectionView, DeviceView, ListenerView, NamespaceView, SubsystemView};
use nvmeof_import::{ImportSource, NoDisks, import};
use serde_json::json;

use super::*;
use crate::{BdevCounters, TransportLimits};

const NQN: &str = "nqn.2016-06.io.spdk:cnode1";
const HOST: &str = "nqn.2014-08.org.nvmexpress:uuid:ceccf520-691e-4b46-9546-34af789907c5";
const UUID: &str = "7a2f6a52-6b0e-4c8b-9d6e-0f3f5f0b7c11";
/// Size of files and drives.
const FILE_SIZE: u64 = 64 << 20;

/// A target whose devices are as large as the document says.
#[derive(Default)]
struct TestTarget {
    document: Document,
    properties: BdevProperties,
    activity: Activity,
}

impl TestTarget {
    fn call(&mut self, name: &str, params: Value) -> Result<Value, RpcError> {
        let Value::Object(params) = params else { panic!("{params} has no names") };
        let (method, params, state) = (find(name).unwrap(), Params::new(params), self.state());
        match &method.kind {
            MethodKind::Query(query) => query.run(params, &state),
            MethodKind::Activity(method) => method.run(params, &state, &self.activity),
            MethodKind::Edit(edit) => {
                let mut document = self.document.clone();
                let done = edit.run(params, &state, &mut document)?;
                self.document = document;
                self.properties.extend(done.properties);
                Ok(done.result)
            }
        }
    }

    #[expect(clippy::needless_pass_by_value, reason = "callers make it in place")]
    fn ok(&mut self, name: &str, params: Value) -> Value {
        self.call(name, params.clone()).unwrap_or_else(|error| panic!("{name} {params}: {error}"))
    }

    /// Checks that a call fails with this code and this part of a message, and changes nothing.
    #[expect(clippy::needless_pass_by_value, reason = "callers make it in place")]
    fn fails(&mut self, name: &str, params: Value, (code, part): (i32, &str)) {
        let before = self.document.clone();
        let error = self.call(name, params.clone()).expect_err(&format!("{name} {params}"));
        assert_eq!(error.code, code, "{name} {params}: {error}");
        assert!(error.message.contains(part), "{name} {params}: {error}");
        assert_eq!(self.document, before, "{name} {params}");
    }

    fn size(&self, name: &str) -> u64 {
        let bytes = |size: &Option<Size>| match size {
            Some(Size::Bytes(bytes)) => Some(*bytes),
            _ => None,
        };
        match &self.document.device(name).unwrap().kind {
            DeviceConfig::Ram(keys) | DeviceConfig::Null(keys) => bytes(&keys.size).unwrap(),
            DeviceConfig::File(_) | DeviceConfig::Nvme(_) => FILE_SIZE,
            DeviceConfig::Split(keys) => bytes(&keys.size).unwrap(),
            other => other.bases().iter().map(|base| self.size(base)).sum(),
        }
    }

    fn state(&self) -> State {
        let block_size = |kind: &DeviceConfig| match kind {
            DeviceConfig::Ram(MemoryKeys { block_size: Some(Size::Bytes(4096)), .. }) => 4096,
            _ => 512,
        };
        let devices = self.document.device.iter().map(|config| DeviceView {
            config: config.clone(),
            size: self.size(&config.name),
            block_size: block_size(&config.kind),
            read_only: false,
            gone: false,
            used_by: self.document.users_of(&config.name),
        });
        let subsystems = self.document.subsystem.iter().map(|config| SubsystemView {
            config: config.clone(),
            serial: config.serial.clone().unwrap_or_else(|| "S1".into()),
            model: config.model.clone().unwrap_or_else(|| "M1".into()),
            controllers: Vec::new(),
        });
        let namespaces = self.document.subsystem.iter().flat_map(|subsystem| {
            subsystem.namespace.iter().map(|config| NamespaceView {
                subsystem: subsystem.nqn.clone(),
                config: config.clone(),
                uuid: config.uuid.clone().unwrap_or_default().replace('-', ""),
                nguid: config.nguid.clone().unwrap_or_default(),
                eui64: String::new(),
                medium: String::new(),
                block_size: 512,
                size: 0,
            })
        });
        let listeners = self.document.listener.iter().map(|config| ListenerView {
            id: config.id(),
            config: config.clone(),
            listening: true,
            waiting: None,
            controllers: 0,
        });
        State {
            version: "1.2.3".into(),
            pid: 7,
            cpus: vec![4, 5],
            limits: TransportLimits { queue_depth: 128, ..TransportLimits::default() },
            devices: devices.collect(),
            subsystems: subsystems.collect(),
            namespaces: namespaces.collect(),
            listeners: listeners.collect(),
            document: self.document.clone(),
            properties: self.properties.clone(),
        }
    }

    /// A target with one subsystem.
    fn with_subsystem() -> Self {
        let mut target = Self::default();
        target.ok("nvmf_create_subsystem", json!({ "nqn": NQN, "allow_any_host": true }));
        target
    }

    fn malloc(&mut self, name: &str, blocks: u64) {
        let params = json!({ "name": name, "num_blocks": blocks, "block_size": 512 });
        assert_eq!(self.ok("bdev_malloc_create", params), name);
    }

    fn subsystem(&mut self) -> Value {
        self.ok("nvmf_get_subsystems", json!({ "nqn": NQN }))[0].clone()
    }

    fn names(&mut self) -> Vec<String> {
        self.document.device.iter().map(|one| one.name.clone()).collect()
    }
}

fn at(port: &str) -> Value {
    json!({ "trtype": "tcp", "adrfam": "ipv4", "traddr": "127.0.0.1", "trsvcid": port })
}

#[test]
fn every_method_is_listed_once_and_found() {
    let mut target = TestTarget::default();
    let names = target.ok("rpc_get_methods", json!({ "include_aliases": true }));
    let names: Vec<&str> = names.as_array().unwrap().iter().flat_map(Value::as_str).collect();
    for (at, name) in names.iter().enumerate() {
        assert_eq!(find(name).unwrap().name, *name);
        assert!(!names[..at].contains(name), "{name}");
    }
    let current = target.ok("rpc_get_methods", json!({ "current": true }));
    assert_eq!(current.as_array().unwrap().len(), names.len() - 1);
    assert!(find("bdev_lvol_create").is_none());
}

#[test]
fn a_parameter_that_no_method_has_is_refused() {
    let mut target = TestTarget::with_subsystem();
    target.malloc("Malloc0", 8192);
    let known: &[(&str, Value)] = &[
        ("spdk_get_version", json!({})),
        ("nvmf_create_transport", json!({ "trtype": "tcp" })),
        ("nvmf_create_subsystem", json!({ "nqn": "other" })),
        ("nvmf_get_stats", json!({})),
        ("nvmf_subsystem_add_ns", json!({ "nqn": NQN, "namespace": { "bdev_name": "Malloc0" } })),
        ("nvmf_subsystem_add_listener", json!({ "nqn": NQN, "listen_address": at("4420") })),
        ("bdev_get_bdevs", json!({ "name": "Malloc0" })),
        ("bdev_malloc_create", json!({ "num_blocks": 8192, "block_size": 512 })),
    ];
    for (name, params) in known {
        let mut wrong = params.clone();
        wrong["no_such"] = 1.into();
        target.fails(name, wrong, (-32602, "no parameter no_such"));
        target.ok(name, params.clone());
    }
    let nested = json!({ "bdev_name": "Malloc1", "no_such": 1 });
    let params = json!({ "nqn": NQN, "namespace": nested });
    target.fails("nvmf_subsystem_add_ns", params, (-32602, "namespace.no_such"));
    target.fails("nvmf_create_subsystem", json!({}), (-32602, "nqn is missing"));
    target.fails("nvmf_create_subsystem", json!({ "nqn": 5 }), (-32602, "nqn: invalid type"));
}

#[test]
fn settings_without_effect_are_accepted_and_those_that_change_behavior_are_not() {
    let mut target = TestTarget::with_subsystem();
    target.malloc("Malloc0", 8192);
    for name in ["framework_start_init", "bdev_set_options", "iobuf_set_options"] {
        assert_eq!(target.ok(name, json!({ "anything": [1] })), true);
    }
    let transport = json!({
        "trtype": "TCP", "max_queue_depth": 64, "c2h_success": true, "no_srq": false,
        "dif_insert_or_strip": false, "tgt_name": "nvmf_tgt",
    });
    assert_eq!(target.ok("nvmf_create_transport", transport), true);
    let base = json!({ "name": "a", "num_blocks": 8, "block_size": 512 });
    let delay = |key: &str| {
        let mut params = base.clone();
        params[key] = 1.into();
        params
    };
    let key = |key: &str, value: Value| json!({ "nqn": NQN, "host": HOST, key: value });
    let cases = [
        ("nvmf_create_transport", json!({ "trtype": "VFIOUSER" }), "only TCP and RDMA"),
        ("nvmf_create_transport", json!({ "trtype": "tcp", "tgt_name": "x" }), "nvmf_tgt"),
        (
            "nvmf_create_transport",
            json!({ "trtype": "tcp", "dif_insert_or_strip": true }),
            "metadata",
        ),
        ("nvmf_create_subsystem", json!({ "nqn": "b", "ana_reporting": true }), "asymmetric"),
        ("nvmf_subsystem_add_host", key("psk", json!("k")), "authenticate"),
        ("bdev_malloc_create", delay("md_size"), "metadata"),
        ("bdev_malloc_create", delay("physical_block_size"), "only 512"),
        ("bdev_null_create", delay("optimal_io_boundary"), "geometry"),
        ("nvmf_create_subsystem", json!({ "nqn": "b", "wzsl": 4 }), "limits of the devices"),
        (
            "nvmf_set_config",
            json!({ "discovery_filters": ["match_any", "transport"] }),
            "transport",
        ),
        (
            "nvmf_set_config",
            json!({ "admin_cmd_passthru": { "sanitize": true } }),
            "admin_cmd_passthru.sanitize",
        ),
        ("nvmf_set_crdt", json!({ "crdt1": 0, "crdt2": 5 }), "crdt2"),
        (
            "nvmf_subsystem_add_ns",
            json!({ "nqn": NQN, "namespace": { "bdev_name": "Malloc0", "no_auto_visible": true } }),
            "see all its namespaces",
        ),
        (
            "nvmf_subsystem_add_listener",
            json!({ "nqn": NQN, "listen_address": at("4420"), "secure_channel": true }),
            "not encrypted",
        ),
        (
            "bdev_nvme_attach_controller",
            json!({ "name": "N", "trtype": "tcp", "traddr": "192.0.2.1" }),
            "PCIe",
        ),
        ("bdev_get_iostat", json!({ "reset_mode": "all" }), "subtract"),
        (
            "bdev_raid_create",
            json!({ "name": "r", "raid_level": "raid1", "base_bdevs": ["Malloc0"] }),
            "raid0",
        ),
    ];
    for (name, params, part) in cases {
        target.fails(name, params, (-32602, part));
    }
}

#[test]
fn defaults_in_saved_configs_of_spdk_are_accepted() {
    let mut target = TestTarget::default();
    let defaults = json!({
        "discovery_filter": "match_any", "admin_cmd_passthru": { "identify_ctrlr": false },
        "dhchap_digests": ["sha256"],
    });
    assert_eq!(target.ok("nvmf_set_config", defaults), true);
    let defaults = json!({
        "name": "b", "num_blocks": 8, "block_size": 512, "physical_block_size": 512,
        "optimal_io_boundary": 0,
    });
    assert_eq!(target.ok("bdev_malloc_create", defaults), "b");
}

#[test]
fn a_subsystem_admits_no_host_until_one_is_added() {
    let mut target = TestTarget::default();
    let params = json!({
        "nqn": NQN, "serial_number": "SPDK1", "model_number": "M", "min_cntlid": 5,
        "max_cntlid": 0xffef, "max_namespaces": 32,
    });
    assert_eq!(target.ok("nvmf_create_subsystem", params.clone()), true);
    target.fails("nvmf_create_subsystem", params, (-32603, "already"));
    let shown = target.subsystem();
    assert_eq!((&shown["allow_any_host"], &shown["hosts"]), (&json!(false), &json!([])));
    assert_eq!((&shown["serial_number"], &shown["subtype"]), (&json!("SPDK1"), &json!("NVMe")));
    assert_eq!((&shown["min_cntlid"], &shown["max_cntlid"]), (&json!(5), &json!(0xffef)));
    assert_eq!(target.document.subsystem[0].cntlid_max, None, "the whole range");
    let host = json!({ "nqn": NQN, "host": HOST });
    target.ok("nvmf_subsystem_add_host", host.clone());
    target.fails("nvmf_subsystem_add_host", host.clone(), (-32603, "already"));
    assert_eq!(target.subsystem()["hosts"], json!([{ "nqn": HOST }]));
    let any = |any| json!({ "nqn": NQN, "allow_any_host": any });
    target.fails("nvmf_subsystem_allow_any_host", any(true), (-32602, "remove them first"));
    target.ok("nvmf_subsystem_remove_host", host.clone());
    target.fails("nvmf_subsystem_remove_host", host.clone(), (-32603, "not among"));
    target.ok("nvmf_subsystem_allow_any_host", any(true));
    assert_eq!(target.document.subsystem[0].hosts, None);
    target.fails("nvmf_subsystem_add_host", host, (-32602, "every host"));
    target.ok("nvmf_subsystem_allow_any_host", any(false));
    assert_eq!(target.document.subsystem[0].hosts, Some(Vec::new()));
    let all = target.ok("nvmf_get_subsystems", json!({}));
    assert_eq!(all[0]["subtype"], "Discovery");
    assert_eq!(all.as_array().unwrap().len(), 2);
    target.ok("nvmf_delete_subsystem", json!({ "nqn": NQN }));
    let gone = json!({ "nqn": NQN });
    target.fails("nvmf_delete_subsystem", gone.clone(), (-32602, "not found"));
    target.fails("nvmf_get_subsystems", gone, (-32602, "not found"));
}

#[test]
fn a_namespace_takes_the_lowest_free_number_and_the_uuid_of_its_bdev() {
    let mut target = TestTarget::with_subsystem();
    let params = json!({ "name": "a", "num_blocks": 64, "block_size": 512, "uuid": UUID });
    target.ok("bdev_malloc_create", params);
    target.malloc("b", 64);
    target.malloc("c", 64);
    let mut add = |bdev: &str, more: Value| {
        let mut namespace = more;
        namespace["bdev_name"] = bdev.into();
        target.call("nvmf_subsystem_add_ns", json!({ "nqn": NQN, "namespace": namespace }))
    };
    assert_eq!(add("a", json!({})).unwrap(), 1);
    assert_eq!(add("b", json!({ "nsid": 3, "anagrpid": 3 })).unwrap(), 3);
    // An alias names the bdev as well.
    assert_eq!(add("nope", json!({})).unwrap_err().code, -19);
    assert_eq!(add("c", json!({ "nsid": 3 })).unwrap_err().code, -32602);
    assert_eq!(add("c", json!({ "uuid": "x" })).unwrap_err().code, -32602);
    let own = "11111111-2222-3333-4444-555555555555";
    assert_eq!(add("c", json!({ "uuid": own, "nsid": 0 })).unwrap(), 2);
    let shown = target.subsystem()["namespaces"].clone();
    assert_eq!((&shown[0]["uuid"], &shown[0]["bdev_name"]), (&json!(UUID), &json!("a")));
    assert_eq!(shown[2]["uuid"], own);
    let found = target.ok("bdev_get_bdevs", json!({ "name": UUID }));
    assert_eq!((&found[0]["name"], &found[0]["aliases"]), (&json!("a"), &json!([UUID])));
    assert_eq!(found[0]["claimed"], true);
    let remove = json!({ "nqn": NQN, "nsid": 1 });
    target.ok("nvmf_subsystem_remove_ns", remove.clone());
    target.fails("nvmf_subsystem_remove_ns", remove, (-32602, "no namespace 1"));
    assert_eq!(target.ok("bdev_get_bdevs", json!({ "name": "a" }))[0]["claimed"], false);
}

#[test]
fn a_listener_goes_with_the_last_subsystem_that_it_serves() {
    let mut target = TestTarget::with_subsystem();
    target.ok("nvmf_create_subsystem", json!({ "nqn": "other" }));
    let of = |nqn: &str, port: &str| json!({ "nqn": nqn, "listen_address": at(port) });
    let (add, remove) = ("nvmf_subsystem_add_listener", "nvmf_subsystem_remove_listener");
    target.ok(add, of(NQN, "4420"));
    target.ok(add, of("other", "4420"));
    target.ok(add, of("other", "4421"));
    target.fails(add, of("other", "4421"), (-32602, "already"));
    let served = |target: &TestTarget| -> Vec<_> {
        target.document.listener.iter().map(|one| one.subsystems.clone().unwrap()).collect()
    };
    assert_eq!(served(&target), [vec![NQN, "other"], vec!["other"]]);
    let address =
        json!({ "trtype": "TCP", "adrfam": "IPv4", "traddr": "127.0.0.1", "trsvcid": "4420" });
    assert_eq!(target.subsystem()["listen_addresses"], json!([address]));
    let listed = target.ok("nvmf_subsystem_get_listeners", json!({ "nqn": NQN }));
    assert_eq!(listed, json!([{ "address": address }]));
    target.ok(remove, of(NQN, "4420"));
    target.fails(remove, of(NQN, "4420"), (-32602, "no listener"));
    assert_eq!(served(&target), [vec!["other"], vec!["other"]]);
    target.ok(remove, of("other", "4421"));
    assert_eq!(served(&target), [vec!["other"]]);
    // Discovery has a listener without subsystems, and is served at every other.
    target.ok(add, of(DISCOVERY_NQN, "8009"));
    target.ok(add, of(DISCOVERY_NQN, "4420"));
    target.fails(remove, of(DISCOVERY_NQN, "4420"), (-32602, "serves subsystems"));
    target.ok("nvmf_delete_subsystem", json!({ "nqn": "other" }));
    assert_eq!(served(&target), [Vec::<String>::new()]);
    target.ok(remove, of(DISCOVERY_NQN, "8009"));
    assert_eq!(target.document.listener, []);
    for (key, value) in
        [("trsvcid", json!("x")), ("traddr", json!("host")), ("adrfam", json!("ipv6"))]
    {
        let mut address = at("4420");
        address[key] = value;
        let params = json!({ "nqn": NQN, "listen_address": address });
        target.fails(add, params, (-32602, &format!("listen_address.{key}")));
    }
}

#[test]
fn a_listener_for_all_subsystems_stays_as_it_is() {
    let mut target = TestTarget::with_subsystem();
    target.document.listener.push(Listener {
        kind: "tcp".into(),
        address: "127.0.0.1".into(),
        ..Listener::default()
    });
    let before = target.document.clone();
    let params = json!({ "nqn": NQN, "listen_address": at("4420") });
    target.ok("nvmf_subsystem_add_listener", params.clone());
    assert_eq!(target.document, before);
    target.fails("nvmf_subsystem_remove_listener", params, (-32602, "serves all subsystems"));
    assert_eq!(target.subsystem()["listen_addresses"].as_array().unwrap().len(), 1);
    target.ok("nvmf_delete_subsystem", json!({ "nqn": NQN }));
    assert_eq!(target.document.listener, before.listener);
}

#[test]
fn a_listener_without_a_port_keeps_its_port_when_its_list_changes() {
    let mut target = TestTarget::with_subsystem();
    target.document.listener.push(Listener {
        kind: "tcp".into(),
        address: "127.0.0.1".into(),
        subsystems: Some(Vec::new()),
        ..Listener::default()
    });
    assert_eq!(target.document.listener[0].port(), 8009);
    let params = json!({ "nqn": NQN, "listen_address": at("8009") });
    target.ok("nvmf_subsystem_add_listener", params);
    assert_eq!(target.document.listener[0].port(), 8009);
    assert_eq!(target.document.listener[0].subsystems, Some(vec![NQN.to_owned()]));
}

#[test]
fn a_bdev_goes_with_everything_on_it() {
    let mut target = TestTarget::with_subsystem();
    target.malloc("base", 4096);
    target.malloc("other", 4096);
    target.fails(
        "bdev_malloc_create",
        json!({ "name": "base", "num_blocks": 1, "block_size": 512 }),
        (-17, "File exists"),
    );
    let names = target.ok("bdev_split_create", json!({ "base_bdev": "base", "split_count": 2 }));
    assert_eq!(names, json!(["basep0", "basep1"]));
    let raid = json!({
        "name": "raid", "raid_level": "0", "strip_size_kb": 64,
        "base_bdevs": ["basep0", "other"], "superblock": false,
    });
    assert_eq!(target.ok("bdev_raid_create", raid), true);
    for bdev in ["raid", "basep1"] {
        let namespace = json!({ "bdev_name": bdev });
        target.ok("nvmf_subsystem_add_ns", json!({ "nqn": NQN, "namespace": namespace }));
    }
    target.fails("bdev_null_delete", json!({ "name": "base" }), (-19, "another type"));
    target.fails("bdev_malloc_delete", json!({ "name": "nope" }), (-19, "No such device"));
    target.ok("bdev_malloc_delete", json!({ "name": "base" }));
    assert_eq!(target.names(), ["other"]);
    assert_eq!(target.document.subsystem[0].namespace, []);
}

#[test]
fn layers_have_the_names_and_the_sizes_of_spdk() {
    let mut target = TestTarget::default();
    target.malloc("m", 8192);
    let split = |mib: u64| json!({ "base_bdev": "m", "split_count": 8, "split_size_mb": mib });
    // 4 MiB have room for two parts.
    assert_eq!(target.ok("bdev_split_create", split(2)), json!(["mp0", "mp1"]));
    target.fails("bdev_split_create", split(1), (-32602, "splits already"));
    target.ok("bdev_split_delete", json!({ "base_bdev": "m" }));
    target.fails("bdev_split_delete", json!({ "base_bdev": "m" }), (-32602, "no splits"));
    target.fails("bdev_split_create", split(5), (-32602, "less than one part"));
    assert_eq!(target.ok("bdev_error_create", json!({ "base_name": "m" })), true);
    let delay = json!({
        "name": "slow", "base_bdev_name": "EE_m", "avg_read_latency": 10, "p99_read_latency": 10,
        "avg_write_latency": 20, "p99_write_latency": 20,
    });
    assert_eq!(target.ok("bdev_delay_create", delay), "slow");
    assert_eq!(target.names(), ["m", "EE_m", "slow"]);
    let drive = json!({ "name": "Nvme0", "trtype": "PCIe", "traddr": "0000:01:00.0" });
    let attached = target.ok("bdev_nvme_attach_controller", drive.clone());
    assert_eq!(attached, json!(["Nvme0n1"]));
    target.fails("bdev_nvme_attach_controller", drive, (-17, "Nvme0n1"));
    target.fails("bdev_nvme_detach_controller", json!({ "name": "Nvme" }), (-19, "Nvme"));
    target.ok("bdev_nvme_detach_controller", json!({ "name": "Nvme0" }));
    target.ok("bdev_error_delete", json!({ "name": "EE_m" }));
    assert_eq!(target.names(), ["m"]);
}

#[test]
fn a_limit_is_the_namespaces_whenever_that_is_added() {
    let mut target = TestTarget::with_subsystem();
    target.malloc("a", 64);
    let limit = |iops: u64| json!({ "name": "a", "rw_ios_per_sec": iops });
    target.ok("bdev_set_qos_limit", limit(2000));
    target.ok("bdev_set_qos_limit", json!({ "name": "a", "rw_mbytes_per_sec": 100 }));
    let rates = |target: &mut TestTarget| {
        let bdev = target.ok("bdev_get_bdevs", json!({ "name": "a" }))[0].clone();
        let rates = &bdev["assigned_rate_limits"];
        (rates["rw_ios_per_sec"].as_u64().unwrap(), rates["rw_mbytes_per_sec"].as_u64().unwrap())
    };
    assert_eq!(rates(&mut target), (2000, 100));
    let add = json!({ "nqn": NQN, "namespace": { "bdev_name": "a" } });
    target.ok("nvmf_subsystem_add_ns", add);
    let of_namespace =
        |target: &TestTarget| target.document.subsystem[0].namespace[0].limit.clone();
    let set = of_namespace(&target).unwrap();
    assert_eq!((set.iops, set.bandwidth.as_deref()), (Some(2000), Some("104857.600kB/s")));
    assert_eq!(rates(&mut target), (2000, 100));
    target.ok("bdev_set_qos_limit", limit(0));
    assert_eq!(of_namespace(&target).unwrap().iops, None);
    target.ok("bdev_set_qos_limit", json!({ "name": "a", "rw_mbytes_per_sec": 0 }));
    assert_eq!(of_namespace(&target), None);
    target.fails("bdev_set_qos_limit", json!({ "name": "a" }), (-32602, "no limit"));
    let reads = json!({ "name": "a", "r_mbytes_per_sec": 5 });
    target.fails("bdev_set_qos_limit", reads, (-32602, "reads and writes together"));
    target.fails("bdev_set_qos_limit", json!({ "name": "x" }), (-19, "No such device"));
}

#[test]
fn a_bdev_is_waited_for_only_with_a_timeout() {
    let mut target = TestTarget::default();
    let error = target.call("bdev_get_bdevs", json!({ "name": "a", "timeout": 5 })).unwrap_err();
    assert_eq!((error.code, error.retry), (-19, Some(std::time::Duration::from_millis(5))));
    assert_eq!(target.call("bdev_get_bdevs", json!({ "name": "a" })).unwrap_err().retry, None);
}

#[test]
fn hosts_and_their_commands_are_counted() {
    let mut target = TestTarget::with_subsystem();
    target.malloc("a", 64);
    target.ok("nvmf_subsystem_add_listener", json!({ "nqn": NQN, "listen_address": at("4420") }));
    let queue = |qid: Option<u16>, reactor| ConnectionView {
        id: 1,
        host: qid.map(|_| HOST.into()),
        subsystem: qid.map(|_| NQN.into()),
        cntlid: qid.map(|_| 3),
        qid,
        depth: None,
        peer: "127.0.0.1:5000".into(),
        listener: Some("tcp:127.0.0.1:4420".into()),
        reactor,
        in_flight: 0,
        waiting: 0,
    };
    let counters = BdevCounters { reads: 2, writes: 1, read_bytes: 8192, write_bytes: 512 };
    target.activity = Activity {
        connections: vec![queue(Some(0), 0), queue(Some(1), 1), queue(Some(2), 1), queue(None, 0)],
        at_ns: 77,
        completed: vec![1, 2],
        bdevs: [("a".to_owned(), counters)].into(),
    };
    let controllers = target.ok("nvmf_subsystem_get_controllers", json!({ "nqn": NQN }));
    let one = json!({ "cntlid": 3, "cntrltype": "io", "hostnqn": HOST, "num_io_qpairs": 2 });
    assert_eq!(controllers, json!([one]));
    let queues = target.ok("nvmf_subsystem_get_qpairs", json!({ "nqn": NQN }));
    assert_eq!(queues.as_array().unwrap().len(), 3);
    assert_eq!((&queues[2]["qid"], &queues[2]["thread"]), (&json!(2), &json!("reactor-1")));
    assert_eq!(queues[0]["listen_address"]["trsvcid"], "4420");
    assert_eq!(queues[0]["peer_address"]["trsvcid"], "5000");
    target.fails("nvmf_subsystem_get_qpairs", json!({ "nqn": "x" }), (-32602, "not found"));
    let stats = target.ok("nvmf_get_stats", json!({}));
    let groups = &stats["poll_groups"];
    assert_eq!(
        (&groups[1]["current_io_qpairs"], &groups[1]["completed_nvme_io"]),
        (&2.into(), &2.into())
    );
    assert_eq!(groups[0]["current_unassociated_qpairs"], 1);
    target.malloc("b", 64);
    let io = target.ok("bdev_get_iostat", json!({ "names": ["a"] }));
    let one = json!({
        "name": "a", "bytes_read": 8192, "num_read_ops": 2, "bytes_written": 512,
        "num_write_ops": 1,
    });
    assert_eq!((&io["ticks"], &io["bdevs"]), (&json!(77), &json!([one])));
    assert_eq!(target.ok("bdev_get_iostat", json!({}))["bdevs"].as_array().unwrap().len(), 2);
    target.fails("bdev_get_iostat", json!({ "name": "x" }), (-19, "No such device"));
}

/// Creates one of everything.
fn full() -> TestTarget {
    let mut target = TestTarget::default();
    target.malloc("m", 64 << 11);
    let calls = [
        ("bdev_null_create", json!({ "name": "n", "num_blocks": 2048, "block_size": 512 })),
        ("bdev_aio_create", json!({ "name": "f", "filename": "/a", "block_size": 512 })),
        ("bdev_split_create", json!({ "base_bdev": "m", "split_count": 2 })),
        (
            "bdev_raid_create",
            json!({ "name": "r", "raid_level": "raid0", "strip_size_kb": 64,
                    "base_bdevs": ["mp0", "n"] }),
        ),
        ("bdev_error_create", json!({ "base_name": "f" })),
        (
            "bdev_delay_create",
            json!({ "name": "d", "base_bdev_name": "EE_f", "avg_read_latency": 10,
                    "p99_read_latency": 10, "avg_write_latency": 20, "p99_write_latency": 20 }),
        ),
        ("bdev_set_qos_limit", json!({ "name": "d", "rw_mbytes_per_sec": 100 })),
        (
            "nvmf_create_subsystem",
            json!({ "nqn": NQN, "serial_number": "S", "model_number": "M", "min_cntlid": 2 }),
        ),
        ("nvmf_subsystem_add_host", json!({ "nqn": NQN, "host": HOST })),
        ("nvmf_subsystem_add_ns", json!({ "nqn": NQN, "namespace": { "bdev_name": "r" } })),
        (
            "nvmf_subsystem_add_ns",
            json!({ "nqn": NQN, "namespace": { "bdev_name": "d", "nsid": 7 } }),
        ),
        ("nvmf_subsystem_add_listener", json!({ "nqn": NQN, "listen_address": at("4420") })),
        ("nvmf_discovery_add_referral", json!({ "address": at("8009") })),
        ("nvmf_subsystem_allow_any_host", json!({ "nqn": DISCOVERY_NQN, "allow_any_host": false })),
        (
            "nvmf_subsystem_add_listener",
            json!({ "nqn": DISCOVERY_NQN, "listen_address": at("8009") }),
        ),
    ];
    for (name, params) in calls {
        target.ok(name, params);
    }
    target
}

/// Runs the calls of a saved config on a new target.
fn loaded(target: &mut TestTarget) -> TestTarget {
    let mut again = TestTarget::default();
    let saved = target.ok("save_config", json!({}));
    for part in saved["subsystems"].as_array().unwrap() {
        let name = json!({ "name": part["subsystem"] });
        assert_eq!(target.ok("framework_get_config", name), part["config"]);
        for call in part["config"].as_array().unwrap() {
            let name = call["method"].as_str().unwrap();
            again.ok(name, call["params"].clone());
        }
    }
    again
}

#[test]
fn a_saved_config_creates_the_same_target() {
    let mut target = full();
    assert_eq!(target.document.discovery.as_ref().unwrap().restricted, Some(true));
    // A base may come after its layers in the config.
    target.document.device.reverse();
    let again = loaded(&mut target);
    let sorted = |document: &Document| {
        let mut document = document.clone();
        document.device.sort_by(|a, b| a.name.cmp(&b.name));
        document
    };
    assert_eq!(sorted(&again.document), sorted(&target.document));
    let uuid = |target: &TestTarget, name: &str| target.state().uuid(name);
    assert_eq!(uuid(&again, "n"), uuid(&target, "n"));
    target.fails("framework_get_config", json!({ "name": "iscsi" }), (-32602, "only bdev"));
}

#[test]
fn a_device_without_a_call_is_not_saved_nor_is_anything_on_it() {
    let mut target = full();
    // SPDK names these by their base.
    for device in &mut target.document.device {
        if device.name == "EE_f" {
            device.name = "faulty".into();
        }
        if let DeviceConfig::Delay(keys) = &mut device.kind {
            keys.base = Some("faulty".into());
        }
    }
    let again = loaded(&mut target);
    let is_kept = |one: &&Device| !["faulty", "d"].contains(&one.name.as_str());
    let kept: Vec<_> = target.document.device.iter().filter(is_kept).cloned().collect();
    assert_eq!(again.document.device, kept);
    let namespaces = &again.document.subsystem[0].namespace;
    assert_eq!(namespaces.iter().map(|one| one.device.as_str()).collect::<Vec<_>>(), ["r"]);
}

#[test]
fn the_discovery_subsystem_admits_every_host_or_those_of_subsystems() {
    let mut target = TestTarget::default();
    let any = |any| json!({ "nqn": DISCOVERY_NQN, "allow_any_host": any });
    target.ok("nvmf_subsystem_allow_any_host", any(false));
    let shown = target.ok("nvmf_get_subsystems", json!({ "nqn": DISCOVERY_NQN }));
    assert_eq!(shown[0]["allow_any_host"], false);
    target.ok("nvmf_subsystem_allow_any_host", any(true));
    assert_eq!(target.document, Document::default());
}

#[test]
fn discovery_has_a_well_known_and_a_unique_name() {
    const UNIQUE: &str = "nqn.2026-11.org.example:discovery";
    let mut target = TestTarget::default();
    let unknown = json!({ "nqn": UNIQUE });
    target.fails("nvmf_subsystem_get_controllers", unknown, (-32602, "not found"));
    target.document.discovery =
        Some(DiscoverySection { nqn: Some(UNIQUE.into()), ..DiscoverySection::default() });
    let listen = json!({ "nqn": UNIQUE, "listen_address": at("8009") });
    target.ok("nvmf_subsystem_add_listener", listen);
    target.ok("nvmf_subsystem_allow_any_host", json!({ "nqn": UNIQUE, "allow_any_host": false }));
    let queue = |cntlid: u16, nqn: &str| ConnectionView {
        id: cntlid.into(),
        host: Some(HOST.into()),
        subsystem: Some(nqn.into()),
        cntlid: Some(cntlid),
        qid: Some(0),
        depth: None,
        peer: "127.0.0.1:5000".into(),
        listener: None,
        reactor: 0,
        in_flight: 0,
        waiting: 0,
    };
    target.activity.connections = vec![queue(1, DISCOVERY_NQN), queue(2, UNIQUE), queue(3, NQN)];
    for nqn in [DISCOVERY_NQN, UNIQUE] {
        let of = json!({ "nqn": nqn });
        let shown = target.ok("nvmf_get_subsystems", of.clone());
        assert_eq!(shown[0]["listen_addresses"][0]["trsvcid"], "8009", "{nqn}");
        assert_eq!(shown[0]["allow_any_host"], false, "{nqn}");
        let controllers = target.ok("nvmf_subsystem_get_controllers", of.clone());
        let ids: Vec<_> =
            controllers.as_array().unwrap().iter().map(|one| &one["cntlid"]).collect();
        assert_eq!(ids, [1, 2], "{nqn}");
        assert_eq!(controllers[0]["cntrltype"], "discovery");
        let listeners = target.ok("nvmf_subsystem_get_listeners", of);
        assert_eq!(listeners.as_array().unwrap().len(), 1, "{nqn}");
    }
}

#[test]
fn a_saved_config_can_be_imported() {
    let saved = full().ok("save_config", json!({}));
    let imported = import(&saved.to_string(), &NoDisks).unwrap();
    assert_eq!(imported.source, ImportSource::Spdk);
    let document = Document::from_toml(&imported.toml).unwrap();
    assert_eq!(document.subsystem[0].namespace.len(), 2, "{}", imported.toml);
    assert_eq!(document.subsystem[0].hosts, Some(vec![HOST.to_owned()]));
    assert!(document.device("r").is_some() && document.device("d").is_some());
}

#[test]
fn referrals_are_added_once_and_removed() {
    let mut target = TestTarget::default();
    let named = json!({ "address": at("8009"), "subnqn": "nqn.2016-06.io.spdk:other" });
    for _ in 0..2 {
        target.ok("nvmf_discovery_add_referral", json!({ "address": at("8009") }));
    }
    target.ok("nvmf_discovery_add_referral", named.clone());
    let all = target.ok("nvmf_discovery_get_referrals", json!({}));
    assert_eq!(
        (all[0]["subnqn"].as_str(), all.as_array().unwrap().len()),
        (Some(DISCOVERY_NQN), 2)
    );
    target.ok("nvmf_discovery_remove_referral", named.clone());
    target.fails("nvmf_discovery_remove_referral", named, (-32603, "Unable to remove"));
    assert_eq!(target.document.referral.len(), 1);
}
