//! Identities of namespaces, and the listeners of subsystems and of the discovery service.

use serde_json::{Value, json};

use super::{Files, has, served, taken};
use crate::{NoDisks, NoteKind, import};

const NQN: &str = "nqn.2016-06.io.spdk:a";
const UUID: &str = "6e4f9b2a-31cc-4a55-9d0e-2f1f6d2b8c01";

fn call(method: &str, params: Value) -> Value {
    let mut call = json!({ "method": method });
    call["params"] = params;
    call
}

fn listener(nqn: &str, address: &str, port: u16) -> Value {
    let address = json!({ "trtype": "TCP", "traddr": address, "trsvcid": port.to_string() });
    call("nvmf_subsystem_add_listener", json!({ "nqn": nqn, "listen_address": address }))
}

fn subsystem(nqn: &str) -> Value {
    call("nvmf_create_subsystem", json!({ "nqn": nqn, "allow_any_host": true }))
}

fn namespace(bdev: &str) -> Value {
    call("nvmf_subsystem_add_ns", json!({ "nqn": NQN, "namespace": { "bdev_name": bdev } }))
}

fn null(name: &str) -> Value {
    call("bdev_null_create", json!({ "name": name, "num_blocks": 32768, "block_size": 512 }))
}

fn spdk(bdevs: &[Value], nvmf: &[Value]) -> String {
    json!({ "subsystems": [
        { "subsystem": "bdev", "config": bdevs }, { "subsystem": "nvmf", "config": nvmf },
    ] })
    .to_string()
}

/// A namespace without a UUID shows that of its block device, and that is a name of the device.
#[test]
fn the_uuid_of_a_block_device_is_the_namespaces_and_a_name() {
    let mut base = null("N0");
    base["params"]["uuid"] = json!(UUID);
    let over = json!({ "name": "P0", "base_bdev_name": UUID });
    let bdevs = vec![call("bdev_passthru_create", over), base];
    let calls = vec![
        subsystem(NQN),
        namespace(&UUID.to_uppercase()),
        namespace("P0"),
        listener(NQN, "127.0.0.1", 4420),
    ];
    let config = taken(&import(&spdk(&bdevs, &calls), &NoDisks).unwrap().toml);
    let [first, second] = config.subsystems[0].namespaces.as_slice() else { panic!("{config:?}") };
    let bytes = |text: &str| *uuid::Uuid::parse_str(text).unwrap().as_bytes();
    assert_eq!((first.uuid, first.nguid), (Some(bytes(UUID)), Some(bytes(UUID))));
    assert_eq!(second.uuid, Some(bytes("df580498-e813-59ae-9536-8d880646c8b3")));
    // Labels that SPDK shows without any in the config.
    assert_eq!(config.subsystems[0].serial, "00000000000000000000");
    assert_eq!(config.subsystems[0].model, "SPDK bdev Controller");
}

#[test]
fn each_listener_serves_the_subsystems_that_it_had() {
    let other = "0d5d0b5e-8b29-4a58-a6b3-3a6e3b0b5a11";
    let discovery = "nqn.2014-08.org.nvmexpress.discovery";
    let calls = vec![
        subsystem(NQN),
        subsystem(other),
        listener(NQN, "127.0.0.1", 4420),
        listener(other, "127.0.0.1", 4420),
        listener(other, "127.0.0.1", 4421),
        listener(discovery, "127.0.0.1", 8009),
        listener("discovery", "127.0.0.1", 4421),
    ];
    let imported = import(&spdk(&[], &calls), &NoDisks).unwrap();
    let config = taken(&imported.toml);
    assert_eq!(served(&config), [None, Some(vec![other.into()]), Some(vec![])]);
    assert!(imported.notes.is_empty(), "{:?}", imported.notes);
}

#[test]
fn any_address_of_spdk_takes_ipv6_only_and_that_of_nvmet_both() {
    let with = |more: Option<Value>| {
        let mut calls = vec![subsystem(NQN), listener(NQN, "::", 4420)];
        calls.extend(more);
        import(&spdk(&[], &calls), &NoDisks).unwrap()
    };
    let path = "$.subsystems[1].config[1].params.listen_address";
    has(&with(None).notes, NoteKind::Converted, path, "IPv4 hosts can connect, too");
    let both = with(Some(listener(NQN, "192.0.2.1", 4420)));
    assert!(both.notes.is_empty(), "{:?}", both.notes);
    taken(&both.toml);
    let port = |kind: &str| {
        let address = json!({ "trtype": kind, "traddr": "::", "trsvcid": "4420" });
        let subsystem = json!({ "nqn": NQN, "attr": { "allow_any_host": 1 }, "namespaces": [] });
        let ports = json!([{ "addr": address, "subsystems": [NQN] }]);
        let text = json!({ "ports": ports, "subsystems": [subsystem] }).to_string();
        import(&text, &NoDisks).unwrap().notes
    };
    assert!(port("tcp").is_empty());
    has(&port("rdma"), NoteKind::Converted, "$.ports[0]", "IPv4 hosts can connect, too");
}

/// No host gets in that had to authenticate, and none that was removed.
#[test]
fn later_calls_take_permissions_away() {
    let host = |method: &str, more: Value| {
        let mut params = json!({ "nqn": NQN, "host": "h" });
        params.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        call(method, params)
    };
    let any = |nqn: &str, any: bool| {
        call("nvmf_subsystem_allow_any_host", json!({ "nqn": nqn, "allow_any_host": any }))
    };
    let hosts_after = |more: Vec<Value>| {
        let mut calls = vec![subsystem(NQN), any(NQN, false), listener(NQN, "127.0.0.1", 4420)];
        calls.push(host("nvmf_subsystem_add_host", json!({})));
        calls.extend(more);
        let config = taken(&import(&spdk(&[], &calls), &NoDisks).unwrap().toml);
        config.subsystems[0].hosts.as_ref().map(std::collections::BTreeSet::len)
    };
    assert_eq!(hosts_after(vec![]), Some(1));
    let key = json!({ "dhchap_key": "k" });
    assert_eq!(hosts_after(vec![host("nvmf_subsystem_set_keys", key)]), Some(0));
    assert_eq!(hosts_after(vec![host("nvmf_subsystem_remove_host", json!({}))]), Some(0));
    assert_eq!(hosts_after(vec![any(NQN, true)]), None);
    let closed = vec![subsystem(NQN), listener(NQN, "127.0.0.1", 4420), any("discovery", false)];
    let imported = import(&spdk(&[], &closed), &NoDisks).unwrap();
    assert!(imported.toml.contains("restricted = true"), "{}", imported.toml);
    taken(&imported.toml);
}

/// SPDK requires the flag, and a subsystem does not become open without it.
#[test]
fn a_call_for_any_host_needs_its_flag() {
    for nqn in [NQN, "discovery"] {
        let open = call("nvmf_subsystem_allow_any_host", json!({ "nqn": nqn }));
        let error = import(&spdk(&[], &[subsystem(NQN), open]), &NoDisks).unwrap_err().to_string();
        let part = "$.subsystems[1].config[1].params: it has no \"allow_any_host\"";
        assert!(error.starts_with(part), "{error}");
    }
}

/// A later call removes a namespace, a listener or a subsystem, and other ones stay.
#[test]
fn later_calls_remove_namespaces_listeners_and_subsystems() {
    let other = "nqn.2016-06.io.spdk:other";
    let mut malloc = null("M0");
    malloc["params"]["uuid"] = json!(UUID);
    let limit = call("bdev_set_qos_limit", json!({ "name": "M0", "rw_ios_per_sec": 1000 }));
    let over = call("bdev_passthru_create", json!({ "name": "P0", "base_bdev_name": "M0" }));
    let base = vec![
        subsystem(NQN),
        subsystem(other),
        namespace("M0"),
        namespace("P0"),
        listener(NQN, "127.0.0.1", 4420),
        listener(other, "127.0.0.1", 4420),
        listener(NQN, "127.0.0.1", 4421),
        listener("discovery", "127.0.0.1", 8009),
    ];
    let with = |more: &[Value]| {
        let calls = [base.as_slice(), more].concat();
        let text = spdk(&[malloc.clone(), limit.clone(), over.clone()], &calls);
        let imported = import(&text, &NoDisks).unwrap();
        (taken(&imported.toml), imported.notes)
    };
    let without = |mut listener: Value| {
        listener["method"] = json!("nvmf_subsystem_remove_listener");
        listener
    };
    let one = || Some(vec![NQN.to_owned()]);
    assert_eq!(served(&with(&[]).0), [None, one(), Some(vec![])]);

    // The listener of one subsystem, and a port that no subsystem has after that.
    let (config, notes) = with(&[
        without(listener(other, "127.0.0.1", 4420)),
        listener(other, "127.0.0.1", 4422),
        without(listener(NQN, "127.0.0.1", 4421)),
    ]);
    assert_eq!(served(&config), [one(), Some(vec![]), Some(vec![other.into()])]);
    assert!(notes.is_empty(), "{notes:?}");
    let discovery = "nqn.2014-08.org.nvmexpress.discovery";
    let (config, _) = with(&[without(listener(discovery, "127.0.0.1", 8009))]);
    assert_eq!(served(&config), [None, one()]);
    // A listener for all addresses does not keep a removed one of a single address.
    let all = [listener(other, "0.0.0.0", 4421), without(listener(NQN, "127.0.0.1", 4421))];
    assert_eq!(served(&with(&all).0)[2], Some(vec![other.into()]));
    let (_, notes) = with(&[without(listener(NQN, "127.0.0.1", 4499))]);
    let path = "$.subsystems[1].config[8].params.listen_address";
    has(&notes, NoteKind::Unsupported, path, "no listener at this address");

    // A namespace: its limit, its number, its device and its UUID are free.
    let remove = |nsid: u64| call("nvmf_subsystem_remove_ns", json!({ "nqn": NQN, "nsid": nsid }));
    let (config, notes) = with(&[remove(1)]);
    let [left] = config.subsystems[0].namespaces.as_slice() else { panic!("{config:?}") };
    assert_eq!(left.nsid, 2);
    has(&notes, NoteKind::Unsupported, "$.subsystems[0].config[1]", "no namespace is block device");
    let (config, notes) = with(&[remove(1), namespace("M0")]);
    let again = config.subsystems[0].namespaces.iter().find(|one| one.nsid == 1);
    assert_eq!(again, with(&[]).0.subsystems[0].namespaces.first());
    assert!(notes.is_empty(), "{notes:?}");
    // One that is not taken over has a number, too.
    let (config, notes) = with(&[namespace("lvol"), remove(3)]);
    assert_eq!(config.subsystems, with(&[]).0.subsystems);
    assert_eq!(notes.len(), 1, "{notes:?}");
    has(&with(&[remove(7)]).1, NoteKind::Unsupported, "$.subsystems[1].config[8]", "namespace 7");

    // A subsystem, also by the call of SPDK before 20.01.
    for method in ["nvmf_delete_subsystem", "delete_nvmf_subsystem"] {
        let (config, _) = with(&[call(method, json!({ "nqn": NQN }))]);
        let [left] = config.subsystems.as_slice() else { panic!("{config:?}") };
        assert_eq!(left.nqn.as_str(), other);
        assert!(left.namespaces.is_empty() && config.devices.is_empty());
        assert_eq!(served(&config), [None, Some(vec![])]);
    }
}

#[test]
fn settings_of_the_discovery_service_stay() {
    let calls = vec![
        subsystem(NQN),
        listener(NQN, "127.0.0.1", 4420),
        call("nvmf_publish_mdns_prr", json!({})),
        call(
            "nvmf_discovery_add_referral",
            json!({ "subnqn": "nqn.2026-11.org.example:other",
                "address": { "trtype": "TCP", "traddr": "192.0.2.9", "trsvcid": "8010" } }),
        ),
    ];
    let imported = import(&spdk(&[], &calls), &NoDisks).unwrap();
    for part in ["mdns = true", "nqn = \"nqn.2026-11.org.example:other\"", "port = 8010"] {
        assert!(imported.toml.contains(part), "{}", imported.toml);
    }
    taken(&imported.toml);
    assert!(imported.notes.is_empty(), "{:?}", imported.notes);
}

/// SPDK makes TLS the default of all sockets by an option of the sockets.
#[test]
fn a_listener_of_tls_sockets_is_not_served_in_the_clear() {
    let text = json!({ "subsystems": [
        { "subsystem": "sock", "config": [call("sock_set_default_impl", json!({ "impl_name": "ssl" }))] },
        { "subsystem": "nvmf", "config": [subsystem(NQN), listener(NQN, "192.0.2.1", 4420)] },
    ] });
    let imported = import(&text.to_string(), &NoDisks).unwrap();
    assert!(!imported.toml.contains("192.0.2.1"), "{}", imported.toml);
    let path = "$.subsystems[1].config[1].params.listen_address";
    has(&imported.notes, NoteKind::Unsupported, path, "TLS only");
}

/// SPDK 18.04 had one call for a subsystem with all of it, and other names.
#[test]
fn a_config_of_an_old_spdk_is_taken() {
    let files = Files::new();
    let address = json!({ "transport": "TCP", "traddr": "127.0.0.1", "trsvcid": "4420" });
    let old = json!({ "nqn": NQN, "mode": "Virtual", "hosts": ["h"], "serial_number": "S",
        "namespaces": [{ "nsid": 3, "bdev_name": "A" }], "listen_addresses": [address] });
    let file = json!({ "name": "A", "filename": "@A@", "block_size": 512 });
    let text = spdk(&[call("construct_aio_bdev", file)], &[call("construct_nvmf_subsystem", old)]);
    let imported = import(&files.fill(&text), &NoDisks).unwrap();
    let config = taken(&imported.toml);
    assert_eq!(config.subsystems[0].namespaces[0].nsid, 3);
    assert_eq!(config.subsystems[0].hosts.as_ref().map(std::collections::BTreeSet::len), Some(1));
    assert!(imported.notes.is_empty(), "{:?}", imported.notes);
}

/// The largest NSID, and names of other forms than that of Base 4.5.
#[test]
fn names_and_numbers_of_any_form_stay() {
    let files = Files::new();
    let (nqn, host) = ("2b1a44e0-2f44-4f7e-b0a5-1f9f3c1d7a10", "nqn.host-1");
    let text = json!({
        "ports": [{ "addr": { "trtype": "tcp", "traddr": "127.0.0.1", "trsvcid": "4420" }, "subsystems": [nqn] }],
        "subsystems": [{ "nqn": nqn, "allowed_hosts": [host],
            "namespaces": [{ "nsid": "4294967294", "device": { "path": "@A@" } }] }],
    });
    let imported = import(&files.fill(&text.to_string()), &NoDisks).unwrap();
    let config = taken(&imported.toml);
    assert_eq!(config.subsystems[0].nqn.as_str(), nqn);
    assert_eq!(config.subsystems[0].namespaces[0].nsid, 0xffff_fffe);
    assert!(imported.notes.is_empty(), "{:?}", imported.notes);
}
