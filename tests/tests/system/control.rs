//! The API over its socket, with connected hosts.
//!
//! Hosts see its changes, and a rejected request changes nothing.

use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt as _;

use hyper::Method;
use nvmeof_api::{ApiError, ErrorKind};
use nvmeof_initiator::Buffer;
use nvmeof_initiator::IoKind;
use nvmeof_tests::config::{
    NQN, OTHER_NQN, api, delay, file, listener, ram, small, subsystem, subsystem_for,
};
use nvmeof_tests::events::{ask_for_events, assert_event, changed_namespaces, request_event};
use nvmeof_tests::{Api, Daemon, Host, Pdu, Raw, Worker, options};
use nvmeof_wire::aer::AsyncEvent;
use nvmeof_wire::nvm::BlockIo;
use nvmeof_wire::opcode::IoOpcode;
use serde_json::{Value, json};

/// Starts a daemon with one namespace in memory, and its API.
fn controlled(config: &str) -> (Daemon, Api) {
    let daemon = Daemon::start(&(config.to_owned() + &api()));
    let api = Api::of(&daemon);
    (daemon, api)
}

/// Checks that a request is rejected with this kind of error and leaves the state unchanged.
#[expect(clippy::needless_pass_by_value, reason = "callers make it in place")]
fn refused(
    api: &Api,
    kind: ErrorKind,
    method: Method,
    path: &str,
    body: Option<Value>,
) -> ApiError {
    let before = (api.get("/v1/config"), api.get("/v1/status")["revision"].clone());
    let error = api.change(method, path, body.clone()).expect_err(path);
    assert_eq!(error.error, kind, "{path} {body:?}: {error}");
    let after = (api.get("/v1/config"), api.get("/v1/status")["revision"].clone());
    assert_eq!(before, after, "{path} {body:?}: {error}");
    error
}

fn namespaces(nqn: &str) -> String {
    format!("/v1/subsystems/{nqn}/namespaces")
}

#[test]
fn a_disk_is_added_grown_shrunk_and_removed_and_hosts_see_it() {
    let (daemon, api) = controlled(&small());
    let worker = Worker::start(&daemon.endpoint(NQN), &options(1));
    let (mut admin, _) = Raw::admin(daemon.address(), NQN, &options(2));
    ask_for_events(&mut admin);
    let mut seen = |nsid| {
        assert_event(&mut admin, AsyncEvent::NAMESPACE_CHANGED);
        assert_eq!(changed_namespaces(&mut admin), [nsid]);
        request_event(&mut admin);
    };
    let path = daemon.folder().join("disk");
    let size = |nsid| {
        let host = Host::connect(&daemon.endpoint(NQN), &options(3));
        let found = host.controller.namespaces().iter().find(|found| found.nsid == nsid);
        found.map(|found| found.blocks * u64::from(found.block_size))
    };

    let disk = json!({
        "name": "disk", "type": "file", "path": path, "create": true, "size": "8MiB",
        "block-size": 4096,
    });
    let change = api.change(Method::POST, "/v1/devices", Some(disk)).expect("a device");
    assert_eq!((change.changes.len(), change.changes[0].name.as_str()), (1, "disk"));
    let namespace = json!({ "nsid": 2, "device": "disk" });
    api.change(Method::POST, &namespaces(NQN), Some(namespace)).expect("a namespace");
    seen(2);
    let mut host = Host::connect(&daemon.endpoint(NQN), &options(4));
    host.write(2, 0, 65536, 7);
    host.write(2, 2040, 32768, 8);
    host.flush(2);
    for (wanted, bytes) in [("16MiB", 16 << 20), ("8MiB", 8 << 20)] {
        let patch = json!({ "size": wanted });
        api.change(Method::PATCH, "/v1/devices/disk", Some(patch)).expect("another size");
        seen(2);
        assert_eq!(size(2), Some(bytes));
        let mut host = Host::connect(&daemon.endpoint(NQN), &options(4));
        host.check(2, 0, 65536, 7);
        host.check(2, 2040, 32768, 8);
    }
    let patch = json!({ "size": "1GiB" });
    api.change(Method::PATCH, "/v1/devices/ram0", Some(patch)).expect("another size");
    seen(1);
    assert_eq!(size(1), Some(1 << 30));
    worker.goes_on();

    let error = refused(&api, ErrorKind::Conflict, Method::DELETE, "/v1/devices/disk", None);
    assert!(error.what.contains(&format!("namespace 2 of {NQN}")), "{error}");
    let two = format!("{}/2", namespaces(NQN));
    api.change(Method::DELETE, &two, None).expect("it goes");
    seen(2);
    assert_eq!(size(2), None);
    api.change(Method::DELETE, "/v1/devices/disk", None).expect("it goes");
    assert_eq!(std::fs::metadata(&path).expect("the file stays").len(), 8 << 20);
    worker.goes_on();
    worker.stop();
}

#[test]
fn what_stands_on_a_device_grows_with_it() {
    let config = small()
        + "\n[[device]]\nname = \"part\"\ntype = \"split\"\nbase = \"base\"\n"
        + &ram("base", "1MiB", 512)
        + &subsystem(OTHER_NQN, &[(1, "part")]);
    let (daemon, api) = controlled(&config);
    let mut host = Host::connect(&daemon.endpoint(OTHER_NQN), &options(1));
    host.write(1, 0, 4096, 3);
    let patch = json!({ "size": "2MiB" });
    api.change(Method::PATCH, "/v1/devices/base", Some(patch)).expect("another size");
    assert_eq!(api.get("/v1/devices/part")["size"], 2 << 20);
    let mut host = Host::connect(&daemon.endpoint(OTHER_NQN), &options(1));
    host.check(1, 0, 4096, 3);
    host.write(1, 4088, 4096, 4);
    // A split that no longer fits: the base keeps its size, and so does the file behind another.
    let fixed = json!({ "name": "end", "type": "split", "base": "base", "offset": "1MiB" });
    api.change(Method::POST, "/v1/devices", Some(fixed)).expect("a split");
    let small = Some(json!({ "size": "1MiB" }));
    refused(&api, ErrorKind::Invalid, Method::PATCH, "/v1/devices/base", small);
    host.check(1, 4088, 4096, 4);
}

#[test]
fn a_change_is_made_as_a_whole_or_not_at_all() {
    let (daemon, api) = controlled(&small());
    let worker = Worker::start(&daemon.endpoint(NQN), &options(1));
    let files = daemon.open_files();
    let taken = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = taken.local_addr().expect("its address").port();
    let new_file = daemon.folder().join("new");
    let mut wanted = api.get("/v1/config");
    let list = |wanted: &mut Value, table: &str, item: Value| {
        wanted[table].as_array_mut().expect("a list").push(item);
    };
    list(
        &mut wanted,
        "device",
        json!({
            "name": "new", "type": "file", "path": new_file, "create": true, "size": "1MiB",
        }),
    );
    wanted["pacing"] = json!({ "policy": "none" });
    wanted["subsystem"][0]["namespace"][0]["weight"] = json!(5);
    let mut with_taken = wanted.clone();
    let listener = |port: u16| json!({ "type": "tcp", "address": "127.0.0.1", "port": port });
    list(&mut with_taken, "listener", listener(port));
    // A file that another process has locked: the daemon detects it after it has created sockets
    // and other devices.
    let held = daemon.folder().join("held");
    std::fs::write(&held, [0; 4096]).expect("a file");
    let lock = std::fs::File::open(&held).expect("the file");
    lock.lock().expect("a lock");
    let mut with_held = wanted.clone();
    list(&mut with_held, "device", json!({ "name": "held", "type": "file", "path": held }));
    let free = TcpListener::bind("127.0.0.1:0").expect("a port");
    let free_port = free.local_addr().expect("its address").port();
    drop(free);
    list(&mut with_held, "listener", listener(free_port));
    for (config, part) in [(with_taken, port.to_string()), (with_held, "held".into())] {
        let dry = api.change(Method::PUT, "/v1/config?dry_run=true", Some(config.clone()));
        assert!(dry.expect("it looks good").changes.len() >= 4);
        let error = refused(&api, ErrorKind::Conflict, Method::PUT, "/v1/config", Some(config));
        assert!(error.what.contains(&part), "{error}");
        assert_eq!(api.get("/v1/status")["policy"], "adaptive");
        assert_eq!(api.get("/v1/listeners").as_array().map(Vec::len), Some(1));
        assert!(!new_file.exists(), "a file is left over");
        assert!(TcpListener::bind(("127.0.0.1", free_port)).is_ok(), "a socket is left over");
        worker.goes_on();
    }
    drop((lock, taken));
    daemon.wait_for_counts(&daemon.counts(), files);
    let change = api.change(Method::PUT, "/v1/config", Some(wanted)).expect("without them it goes");
    assert!(!change.dry_run && change.changes.len() == 3, "{change:?}");
    assert_eq!(api.get("/v1/status")["policy"], "none");
    worker.goes_on();
    worker.stop();
}

#[test]
fn of_calls_at_once_one_wins_and_the_others_hear_why() {
    let (_daemon, api) = controlled(&small());
    let socket = api.socket().clone();
    let device = json!({ "name": "one", "type": "null", "size": "1GiB" });
    let at_once = |path: &'static str, method: Method, revision: Option<String>| {
        let callers: Vec<_> = (0..8)
            .map(|number| {
                let (socket, revision) = (socket.clone(), revision.clone());
                let (method, mut device) = (method.clone(), device.clone());
                if revision.is_some() {
                    device["name"] = json!(format!("device-{number}"));
                }
                std::thread::spawn(move || {
                    let url = format!("unix:{}", socket.display());
                    let client = nvmeof_ctl::ApiClient::new(&url, None).expect("a client");
                    let revision = revision.as_deref();
                    client.call::<Value>(method, path, Some(&device), revision).map_err(|error| {
                        match error.downcast() {
                            Ok(nvmeof_ctl::CallError::Refused(error)) => error.error,
                            other => panic!("{other:?}"),
                        }
                    })
                })
            })
            .collect();
        let all: Vec<_> =
            callers.into_iter().map(|caller| caller.join().expect("it ends")).collect();
        let lost = all.iter().filter_map(|one| one.as_ref().err().copied()).collect::<Vec<_>>();
        assert_eq!(lost.len(), 7, "{all:?}");
        lost
    };
    let lost = at_once("/v1/devices", Method::POST, None);
    assert!(lost.iter().all(|kind| *kind == ErrorKind::Conflict), "{lost:?}");
    let revision = api.get("/v1/status")["revision"].as_str().expect("text").to_owned();
    let lost = at_once("/v1/devices", Method::POST, Some(revision));
    assert!(lost.iter().all(|kind| *kind == ErrorKind::PreconditionFailed), "{lost:?}");
    assert_eq!(api.document().device.len(), 3);
}

#[test]
fn bad_calls_change_nothing_and_say_where_they_are_bad() {
    let (_daemon, api) = controlled(&small());
    let post = |path: &str, body: Value, kind, place: &str| {
        let error = refused(&api, kind, Method::POST, path, Some(body));
        assert_eq!(error.place, place, "{error}");
    };
    let (malformed, invalid) = (ErrorKind::Malformed, ErrorKind::Invalid);
    post("/v1/devices", json!({ "name": "a", "type": "ram", "sice": 1 }), malformed, "sice");
    post("/v1/devices", json!({ "name": 1, "type": "ram" }), malformed, "name");
    post("/v1/devices", json!({ "name": "a", "type": "ram" }), invalid, "device[a].size");
    let size = json!({ "name": "a", "type": "ram", "size": "64Mib!" });
    post("/v1/devices", size, invalid, "device[a].size");
    let huge = json!({ "name": "a", "type": "ram", "size": u64::MAX });
    assert_eq!(refused(&api, invalid, Method::POST, "/v1/devices", Some(huge)).error, invalid);
    let no_device = json!({ "nsid": 2, "device": "none" });
    let place = format!("subsystem[{NQN}].namespace[2].device");
    post(&namespaces(NQN), no_device, invalid, &place);
    let taken = json!({ "nsid": 2, "device": "ram0" });
    let error = refused(&api, invalid, Method::POST, &namespaces(NQN), Some(taken));
    assert!(error.what.contains(&format!("subsystem[{NQN}].namespace[1]")), "{error}");
    let newer = Some(json!({ "format": 2 }));
    let error = refused(&api, invalid, Method::PUT, "/v1/config", newer);
    assert!(error.what.contains("newer version"), "{error}");
    for (method, path) in [
        (Method::DELETE, "/v1/devices/none"),
        (Method::DELETE, "/v1/subsystems/none"),
        (Method::DELETE, "/v1/listeners/tcp:127.0.0.1:1"),
        (Method::DELETE, "/v1/connections/4711"),
        (Method::GET, "/v1/subsystems/none/hosts"),
    ] {
        refused(&api, ErrorKind::NotFound, method, path, None);
    }
    let any = format!("/v1/subsystems/{NQN}/hosts/{OTHER_NQN}");
    refused(&api, ErrorKind::Conflict, Method::PUT, &any, None);
    let last = api.get("/v1/listeners")[0]["id"].as_str().expect("its name").to_owned();
    refused(&api, invalid, Method::DELETE, &format!("/v1/listeners/{last}"), None);
    let elsewhere = json!({ "type": "tcp", "address": "192.0.2.1", "port": 4420 });
    refused(&api, ErrorKind::Conflict, Method::POST, "/v1/listeners", Some(elsewhere));
    let budget = json!({ "policy": "buffer-credit", "budget": 1 });
    let error = refused(&api, invalid, Method::PUT, "/v1/pacing", Some(budget));
    assert_eq!(error.place, "pacing.budget");
}

#[test]
fn connections_are_listed_and_dropped() {
    let (daemon, api) = controlled(&small());
    let mut one = Host::connect(&daemon.endpoint(NQN), &options(1));
    let other = Worker::start(&daemon.endpoint(NQN), &options(2));
    let name = options(1).hostnqn.to_string();
    let of_one = || {
        let all = api.get("/v1/connections");
        let mut all = all.as_array().expect("a list").clone();
        all.retain(|each| each["host"] == json!(name));
        all
    };
    one.write(1, 0, 4096, 1);
    let all = of_one();
    assert!(all.len() >= 2 && all.iter().all(|each| each["subsystem"] == json!(NQN)), "{all:?}");
    let listener = api.get("/v1/listeners")[0]["id"].clone();
    assert!(all.iter().all(|each| each["listener"] == listener), "{all:?}");
    let admin = all.iter().find(|each| each["qid"] == 0).expect("the admin queue");
    let path = format!("/v1/connections/{}", admin["id"]);
    let dropped = api.call(Method::DELETE, &path, None, None).expect("it is dropped");
    assert_eq!(dropped["host"], json!(name));
    let read = || IoKind::Read(Buffer::zeroed(4096));
    let io = |token| nvmeof_initiator::Io { token, nsid: 1, slba: 0, blocks: 8, kind: read() };
    // The host sees its queues end eventually.
    while one.execute(0, vec![io(0)]).is_ok() {}
    while !of_one().is_empty() {
        std::thread::yield_now();
    }
    let error = api.call(Method::DELETE, &path, None, None).expect_err("it is gone");
    assert_eq!(error.error, ErrorKind::NotFound);
    let mut again = Host::connect(&daemon.endpoint(NQN), &options(1));
    again.check(1, 0, 4096, 1);
    other.goes_on();
    other.stop();
}

#[test]
fn what_hosts_are_connected_through_goes_only_by_force() {
    let [one, two] = [options(1), options(2)].map(|host| host.hostnqn.to_string());
    let config = [
        listener("127.0.0.1"),
        listener("127.0.0.2"),
        ram("ram0", "64MiB", 512),
        subsystem_for(&[&one, &two], NQN, &[(1, "ram0")]),
    ];
    let (daemon, api) = controlled(&config.concat());
    let worker = Worker::start(&daemon.endpoint(NQN), &options(1));
    let hosts = format!("/v1/subsystems/{NQN}/hosts");
    let conflict = |path: &str| {
        let error = refused(&api, ErrorKind::Conflict, Method::DELETE, path, None);
        assert!(error.what.contains(&one), "{error}");
    };
    conflict(&format!("{hosts}/{one}"));
    conflict(&format!("/v1/subsystems/{NQN}"));
    let listeners = api.get("/v1/listeners");
    let id = |at: usize| listeners[at]["id"].as_str().expect("its name").to_owned();
    conflict(&format!("/v1/listeners/{}", id(0)));
    api.change(Method::DELETE, &format!("/v1/listeners/{}", id(1)), None).expect("nobody uses it");
    api.change(Method::DELETE, &format!("{hosts}/{two}"), None).expect("it is not connected");
    assert!(Host::try_connect(&daemon.endpoint(NQN), &options(2)).is_err(), "no longer allowed");
    api.change(Method::PUT, &format!("{hosts}/{two}"), None).expect("it may again");
    drop(Host::connect(&daemon.endpoint(NQN), &options(2)));
    worker.goes_on();
    let (mut admin, _) = Raw::admin(daemon.address(), NQN, &options(1));
    api.change(Method::DELETE, &format!("{hosts}/{one}?force=true"), None).expect("by force");
    assert!(matches!(admin.pdu(), Pdu::End), "the host is cut off");
    worker.fails();
}

/// A caller that lost the first response interprets "not there" as the end of the removed object.
#[test]
fn what_is_removed_twice_is_said_to_be_gone_when_its_commands_have_ended() {
    let host = options(1).hostnqn.to_string();
    let config = [
        listener("127.0.0.1"),
        ram("ram0", "16MiB", 512),
        delay("slow", "ram0", "0ms", "3s"),
        subsystem_for(&[&host], NQN, &[(1, "slow")]),
    ];
    let (daemon, api) = controlled(&config.concat());
    let quiescing = || api.get("/v1/status")["quiescing"].as_u64().expect("a number");
    for path in [namespaces(NQN) + "/1", format!("/v1/subsystems/{NQN}/hosts/{host}?force=true")] {
        let (_admin, cntlid) = Raw::admin(daemon.address(), NQN, &options(1));
        let mut io = Raw::io(daemon.address(), NQN, &options(1), cntlid, 32);
        let sqe = io.in_capsule(BlockIo::new(0, 8).encode(IoOpcode::WRITE, 0, 1), 4096);
        let capsule = io.capsule(sqe, &[7; 4096]);
        io.send(&capsule);
        while api.get("/v1/status")["in_flight"] == 0 {}
        std::thread::scope(|scope| {
            let first = scope.spawn(|| api.call(Method::DELETE, &path, None, None));
            while quiescing() == 0 {
                assert!(!first.is_finished(), "{path}: answered while the write is out");
            }
            let error = api.call(Method::DELETE, &path, None, None).expect_err("it is gone");
            assert_eq!((error.error, quiescing()), (ErrorKind::NotFound, 0), "{path}");
            first.join().expect("an answer").expect("a removal");
        });
        let namespace = json!({ "nsid": 1, "device": "slow" });
        // Either of the two outcomes.
        let _ = api.call(Method::POST, &namespaces(NQN), Some(namespace), None);
    }
}

#[test]
fn weights_and_policies_change_while_hosts_read() {
    let (daemon, api) = controlled(&small());
    let worker = Worker::start(&daemon.endpoint(NQN), &options(1));
    for (pacing, policy) in [
        (json!({ "policy": "token-bucket", "rate": "10Gb/s" }), "token-bucket"),
        (json!({ "policy": "buffer-credit", "budget": "64MiB" }), "buffer-credit"),
        (json!({}), "adaptive"),
    ] {
        api.change(Method::PUT, "/v1/pacing", Some(pacing)).expect("another policy");
        assert_eq!(api.get("/v1/pacing")["policy"], policy);
        worker.goes_on();
    }
    let one = format!("{}/1", namespaces(NQN));
    api.change(Method::PATCH, &one, Some(json!({ "weight": 7 }))).expect("another weight");
    assert_eq!(api.document().subsystem[0].namespace[0].weight, Some(7));
    api.change(Method::PATCH, &one, Some(json!({ "weight": null }))).expect("the default");
    assert_eq!(api.document().subsystem[0].namespace[0].weight, None);
    let change = json!({ "reactors": "0", "limits": { "queue-depth": 64 } });
    let mut wanted = api.get("/v1/config");
    for (key, value) in change.as_object().expect("keys") {
        wanted[key] = value.clone();
    }
    let change = api.change(Method::PUT, "/v1/config", Some(wanted)).expect("it goes");
    assert!(change.pending_restart.contains(&"[limits]".to_owned()), "{change:?}");
    assert!(api.get("/v1/status")["pending_restart"].to_string().contains("[limits]"));
    worker.goes_on();
    worker.stop();
}

#[test]
fn what_is_saved_is_there_after_a_restart() {
    let (daemon, api) = controlled(&("# mine\n".to_owned() + &small()));
    let path = daemon.folder().join("target.toml");
    let by_hand = std::fs::read_to_string(&path).expect("the file");
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).expect("a mode");
    let disk = daemon.folder().join("disk");
    let disk =
        json!({ "name": "disk", "type": "file", "path": disk, "create": true, "size": 65536 });
    api.change(Method::POST, "/v1/devices", Some(disk)).expect("a device");
    let namespace = json!({ "nsid": 9, "device": "disk", "weight": 3 });
    api.change(Method::POST, &namespaces(NQN), Some(namespace)).expect("a namespace");
    assert_eq!(api.get("/v1/status")["saved"], false);
    let back =
        api.change(Method::POST, "/v1/reload?dry_run=true", None).expect("what would change");
    assert_eq!(back.changes.len(), 2, "{back:?}");
    let saved = api.call(Method::POST, "/v1/save", None, None).expect("it is saved");
    let kept = std::fs::read_to_string(saved["previous"].as_str().expect("a file"));
    assert_eq!(kept.expect("what was there"), by_hand);
    assert_eq!(api.get("/v1/status")["saved"], true);
    assert_eq!(std::fs::metadata(&path).expect("the file").permissions().mode() & 0o777, 0o600);
    let document = api.document();

    let daemon = daemon.restart();
    let api = Api::of(&daemon);
    assert_eq!(api.document(), document);
    assert_eq!(api.get("/v1/status")["saved"], true);
    // A manual edit is applied or kept, never lost.
    let text =
        std::fs::read_to_string(&path).expect("the file").replace("weight = 3", "weight = 4");
    std::fs::write(&path, &text).expect("an edit");
    let gone = format!("{}/9", namespaces(NQN));
    api.change(Method::PATCH, &gone, Some(json!({ "weight": 5 }))).expect("a change");
    let error = api.call(Method::POST, "/v1/save", None, None).expect_err("somebody edited it");
    assert_eq!(error.error, ErrorKind::Conflict);
    assert_eq!(std::fs::read_to_string(&path).expect("the file"), text);
    api.change(Method::POST, "/v1/reload", None).expect("the edit is applied");
    assert_eq!(api.document().subsystem[0].namespace[1].weight, Some(4));
    std::fs::write(&path, "reactors = 5\n").expect("a bad edit");
    let error = refused(&api, ErrorKind::Invalid, Method::POST, "/v1/reload", None);
    assert!(error.place.contains("target.toml:1:"), "{error}");
}

/// Compares a value with a schema of the document: types, required and unknown fields, references.
///
/// Returns the position of the first mismatch.
fn mismatch(document: &Value, schema: &Value, value: &Value, at: &str) -> Option<String> {
    if let Some(name) = schema["$ref"].as_str() {
        let name = name.strip_prefix("#/components/schemas/").expect("a schema of the document");
        return mismatch(document, &document["components"]["schemas"][name], value, at);
    }
    for either in ["oneOf", "anyOf"] {
        if let Some(all) = schema[either].as_array() {
            let fits = all.iter().any(|one| mismatch(document, one, value, at).is_none());
            return (!fits).then(|| format!("{at}: {value} is none of {schema}"));
        }
    }
    let kind = match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(number) if number.is_f64() => "number",
        Value::Number(_) => "integer",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    };
    let allowed = &schema["type"];
    let is = |name: &Value| *name == kind || (*name == "number" && kind == "integer");
    if !allowed.is_null()
        && !is(allowed)
        && !allowed.as_array().is_some_and(|all| all.iter().any(is))
    {
        return Some(format!("{at}: {value} is no {allowed}"));
    }
    if let Value::Array(items) = value {
        return items.iter().find_map(|item| mismatch(document, &schema["items"], item, at));
    }
    let (Value::Object(fields), Some(known)) = (value, schema["properties"].as_object()) else {
        return None;
    };
    let missing = schema["required"].as_array().into_iter().flatten();
    let mut missing = missing.filter(|name| !fields.contains_key(name.as_str().expect("a name")));
    if let Some(name) = missing.next() {
        return Some(format!("{at}: no {name}"));
    }
    fields.iter().find_map(|(name, value)| match known.get(name) {
        Some(schema) => mismatch(document, schema, value, &format!("{at}.{name}")),
        None => Some(format!("{at}.{name}: not in the document")),
    })
}

#[test]
fn every_answer_is_what_the_document_says() {
    let host = options(1).hostnqn.to_string();
    let config = [
        listener("127.0.0.1"),
        ram("ram0", "64MiB", 512),
        file(
            "disk",
            &std::env::temp_dir().join(format!("control-{}", std::process::id())),
            "1MiB",
            512,
        ),
        subsystem_for(&[&host], NQN, &[(1, "ram0"), (2, "disk")]),
    ];
    let (daemon, api) = controlled(&config.concat());
    let _host = Host::connect(&daemon.endpoint(NQN), &options(1));
    let document = api.get("/openapi.json");
    let answer = |method: &str, path: &str, value: &Value| {
        let responses = &document["paths"][path][method]["responses"];
        let schema = &responses["200"]["content"]["application/json"]["schema"];
        assert!(schema.is_object(), "{method} {path} is not described");
        assert_eq!(mismatch(&document, schema, value, path), None);
    };
    let id = |path: &str| api.get(path)[0]["id"].to_string().trim_matches('"').to_owned();
    let (listener, connection) = (id("/v1/listeners"), id("/v1/connections"));
    let mut seen = 0;
    for (path, item) in document["paths"].as_object().expect("paths") {
        let name = if path.contains("listeners") { &listener } else { &connection };
        let filled = path.replace("{nqn}", NQN).replace("{nsid}", "1").replace("{id}", name);
        let filled = filled.replace("{name}", "disk");
        let json = &item["get"]["responses"]["200"]["content"]["application/json"];
        if json.is_object() && !filled.contains('{') {
            answer("get", path, &api.get(&filled));
            seen += 1;
        }
    }
    assert!(seen >= 14, "{seen} answers");
    let device = json!({ "name": "d", "type": "null", "size": "1GiB" });
    let change = |method: Method, path, body| api.call(method, path, body, None).expect("a change");
    answer("post", "/v1/devices", &change(Method::POST, "/v1/devices", Some(device)));
    let patch = Some(json!({ "size": "2GiB" }));
    let patched = change(Method::PATCH, "/v1/devices/d", patch);
    answer("patch", "/v1/devices/{name}", &patched);
    answer("delete", "/v1/devices/{name}", &change(Method::DELETE, "/v1/devices/d", None));
    answer("post", "/v1/save", &change(Method::POST, "/v1/save?dry_run=true", None));
    let error = api.call(Method::DELETE, "/v1/devices/ram0", None, None).expect_err("in use");
    let error = serde_json::to_value(error).expect("JSON");
    let schema = json!({ "$ref": "#/components/schemas/ApiError" });
    assert_eq!(mismatch(&document, &schema, &error, "error"), None);
    // The check can fail.
    assert!(mismatch(&document, &schema, &json!({ "error": "conflict" }), "error").is_some());
}
