//! SPDK's JSON-RPC over its socket: the stream, changes that hosts see, and what is saved.

use std::io::{Read as _, Write as _};
use std::net::TcpListener;
use std::os::unix::net::UnixStream;

use hyper::Method;
use nvmeof_initiator::Endpoint;
use nvmeof_tests::config::{NQN, OTHER_NQN, api, small};
use nvmeof_tests::{Api, Daemon, GUARD, Host, options};
use serde_json::{Value, json};

const RPC: &str = "\n[rpc]\nsocket = \"rpc.sock\"\n";

/// A connection of a client.
struct Client(UnixStream);

impl Client {
    fn of(daemon: &Daemon) -> Self {
        let stream = UnixStream::connect(daemon.folder().join("rpc.sock")).expect("the socket");
        stream.set_read_timeout(Some(GUARD)).expect("a timeout");
        Self(stream)
    }

    fn send(&mut self, text: &str) {
        self.0.write_all(text.as_bytes()).expect("the daemon reads");
    }

    /// Returns the next response, which ends with a line feed.
    fn receive(&mut self) -> Value {
        let mut text = Vec::new();
        let mut byte = [0];
        while byte != *b"\n" {
            self.0.read_exact(&mut byte).expect("a response");
            text.extend(byte);
        }
        serde_json::from_slice(&text).expect("JSON")
    }

    /// Calls a method; an error is its code and message.
    #[expect(clippy::needless_pass_by_value, reason = "callers make it in place")]
    fn call(&mut self, method: &str, params: Value) -> Result<Value, (i64, String)> {
        let request = json!({ "jsonrpc": "2.0", "id": method, "method": method, "params": params });
        self.send(&request.to_string());
        let mut response = self.receive();
        assert_eq!(response["id"], method);
        match response["error"].take() {
            Value::Null => Ok(response["result"].take()),
            error => Err((
                error["code"].as_i64().expect("a code"),
                error["message"].as_str().expect("a message").to_owned(),
            )),
        }
    }

    fn ok(&mut self, method: &str, params: Value) -> Value {
        self.call(method, params).unwrap_or_else(|error| panic!("{method}: {error:?}"))
    }
}

/// Returns a port that was free a moment ago.
fn free_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    listener.local_addr().expect("its address").port()
}

fn listen(nqn: &str, port: u16) -> Value {
    let address = json!({
        "trtype": "tcp", "adrfam": "ipv4", "traddr": "127.0.0.1", "trsvcid": port.to_string(),
    });
    json!({ "nqn": nqn, "listen_address": address })
}

fn endpoint(nqn: &str, port: u16) -> Endpoint {
    format!("tcp://127.0.0.1:{port}/{nqn}").parse().expect("an endpoint")
}

#[test]
fn an_empty_target_is_built_served_and_taken_down_by_calls() {
    let daemon = Daemon::start(RPC);
    assert_eq!(daemon.ready_line(), "ready");
    let mut client = Client::of(&daemon);
    let uuid = "7a2f6a52-6b0e-4c8b-9d6e-0f3f5f0b7c11";
    client.ok("nvmf_create_transport", json!({ "trtype": "TCP", "c2h_success": true }));
    let malloc =
        json!({ "name": "Malloc0", "num_blocks": 131072, "block_size": 512, "uuid": uuid });
    assert_eq!(client.ok("bdev_malloc_create", malloc.clone()), "Malloc0");
    let (code, message) = client.call("bdev_malloc_create", malloc).expect_err("it exists");
    assert_eq!((code, message.starts_with("File exists")), (-17, true), "{message}");
    client.ok("nvmf_create_subsystem", json!({ "nqn": NQN, "serial_number": "SPDK1" }));
    let namespace = json!({ "nqn": NQN, "namespace": { "bdev_name": "Malloc0" } });
    assert_eq!(client.ok("nvmf_subsystem_add_ns", namespace), 1);
    let port = free_port();
    client.ok("nvmf_subsystem_add_listener", listen(NQN, port));
    // No host may connect until one is added.
    let host_nqn = options(1).hostnqn.to_string();
    let subsystems = client.ok("nvmf_get_subsystems", json!({}));
    assert_eq!(
        (&subsystems[0]["subtype"], &subsystems[1]["hosts"]),
        (&json!("Discovery"), &json!([]))
    );
    client.ok("nvmf_subsystem_add_host", json!({ "nqn": NQN, "host": host_nqn }));
    let mut host = Host::connect(&endpoint(NQN, port), &options(1));
    host.write(1, 0, 65536, 7);
    host.check(1, 0, 65536, 7);
    let shown = client.ok("nvmf_get_subsystems", json!({ "nqn": NQN }));
    assert_eq!(shown[0]["namespaces"][0]["uuid"], uuid);
    assert_eq!(shown[0]["max_namespaces"], 1024);
    assert_eq!(shown[0]["listen_addresses"][0]["trsvcid"], port.to_string());
    let controllers = client.ok("nvmf_subsystem_get_controllers", json!({ "nqn": NQN }));
    assert_eq!(controllers[0]["hostnqn"], host_nqn);
    let queues = client.ok("nvmf_subsystem_get_qpairs", json!({ "nqn": NQN }));
    assert_eq!(queues[0]["listen_address"]["trsvcid"], port.to_string());
    let io = client.ok("bdev_get_iostat", json!({ "names": ["Malloc0"] }));
    let bytes = |key: &str| io["bdevs"][0][key].as_u64().expect("a number");
    assert!(bytes("bytes_written") >= 65536 && bytes("bytes_read") >= 65536, "{io}");
    let stats = client.ok("nvmf_get_stats", json!({}));
    let groups = stats["poll_groups"].as_array().expect("a list");
    let completed = groups.iter().filter_map(|one| one["completed_nvme_io"].as_u64());
    assert!(completed.sum::<u64>() > 0, "{stats}");
    // With a connected host.
    client.ok("nvmf_delete_subsystem", json!({ "nqn": NQN }));
    client.ok("bdev_malloc_delete", json!({ "name": "Malloc0" }));
    assert_eq!(client.ok("bdev_get_bdevs", json!({})), json!([]));
    let subsystems = client.ok("nvmf_get_subsystems", json!({}));
    assert_eq!(subsystems.as_array().expect("a list").len(), 1);
    assert_eq!(subsystems[0]["listen_addresses"], json!([]));
}

#[test]
fn a_subsystem_is_reached_only_at_its_listeners() {
    let daemon = Daemon::start(RPC);
    let mut client = Client::of(&daemon);
    for nqn in [NQN, OTHER_NQN] {
        client.ok("nvmf_create_subsystem", json!({ "nqn": nqn, "allow_any_host": true }));
    }
    let (port, other) = (free_port(), free_port());
    client.ok("nvmf_subsystem_add_listener", listen(NQN, port));
    client.ok("nvmf_subsystem_add_listener", listen(OTHER_NQN, other));
    let connects = |nqn, port| Host::try_connect(&endpoint(nqn, port), &options(1)).is_ok();
    assert!(connects(NQN, port) && connects(OTHER_NQN, other));
    assert!(!connects(NQN, other) && !connects(OTHER_NQN, port));
    client.ok("nvmf_subsystem_add_listener", listen(OTHER_NQN, port));
    assert!(connects(OTHER_NQN, port));
    client.ok("nvmf_subsystem_remove_listener", listen(NQN, port));
    assert!(!connects(NQN, port) && connects(OTHER_NQN, port));
    client.ok("nvmf_subsystem_remove_listener", listen(OTHER_NQN, port));
    let closed = std::net::TcpStream::connect(("127.0.0.1", port));
    assert!(closed.is_err(), "the listener went with its last subsystem");
}

#[test]
fn requests_are_answered_in_order_however_they_arrive() {
    let daemon = Daemon::start(&(small() + RPC));
    let mut client = Client::of(&daemon);
    // Two requests, and the first part of another one.
    client.send(
        "{\"jsonrpc\":\"2.0\",\"method\":\"spdk_get_version\",\"id\":1} {\"method\":\"no_such\",\
         \"id\":\"b\"}{\"method\":\"bdev_get_bdevs\",\"par",
    );
    assert_eq!(client.receive()["result"]["fields"]["major"], 0);
    let unknown = client.receive();
    assert_eq!((&unknown["id"], &unknown["error"]["code"]), (&json!("b"), &json!(-32601)));
    assert_eq!(unknown["error"]["message"], "Method not found");
    client.send("ams\":{\"name\":\"ram0\"},\"id\":3}\n");
    let bdev = client.receive();
    assert_eq!((&bdev["id"], &bdev["result"][0]["name"]), (&json!(3), &json!("ram0")));
    // A batch: a failure does not stop the others, and a notification has no response.
    let batch = json!([
        { "method": "bdev_null_create", "id": 1,
          "params": { "name": "n", "num_blocks": 8, "block_size": 512 } },
        { "method": "bdev_null_delete", "params": { "name": "x" }, "id": 2 },
        { "method": "bdev_null_delete", "params": { "name": "n" } },
        5,
    ]);
    client.send(&batch.to_string());
    let answers = client.receive();
    assert_eq!(answers[0]["result"], "n");
    assert_eq!(
        (&answers[1]["error"]["code"], &answers[2]["error"]["code"]),
        (&json!(-19), &json!(-32600))
    );
    assert_eq!(answers.as_array().expect("a list").len(), 3);
    // After bytes that are not JSON, nothing shows where the next request begins.
    let mut other = Client::of(&daemon);
    other.send("hello");
    assert_eq!(other.receive()["error"]["code"], -32700);
    assert_eq!(other.0.read(&mut [0]).expect("the end"), 0);
    assert_eq!(client.ok("bdev_get_bdevs", json!({})).as_array().expect("a list").len(), 1);
}

#[test]
fn a_bdev_is_waited_for() {
    let daemon = Daemon::start(&["log = \"debug\"\n", &small(), RPC].concat());
    let mut waiting = Client::of(&daemon);
    let request = json!({
        "method": "bdev_get_bdevs", "params": { "name": "late", "timeout": 600_000 }, "id": 1,
    });
    waiting.send(&request.to_string());
    daemon.wait_for_line("RPC call waits");
    let mut client = Client::of(&daemon);
    client.ok("bdev_null_create", json!({ "name": "late", "num_blocks": 8, "block_size": 512 }));
    assert_eq!(waiting.receive()["result"][0]["name"], "late");
}

#[test]
fn calls_and_the_api_change_one_document_and_save_keeps_it() {
    let daemon = Daemon::start(&[api().as_str(), &small(), RPC].concat());
    let mut client = Client::of(&daemon);
    let path = daemon.folder().join("disk");
    std::fs::File::create(&path).and_then(|file| file.set_len(8 << 20)).expect("a file");
    let aio = json!({ "name": "disk", "filename": path, "block_size": 4096 });
    assert_eq!(client.ok("bdev_aio_create", aio), "disk");
    let namespace = json!({ "nqn": NQN, "namespace": { "bdev_name": "disk" } });
    assert_eq!(client.ok("nvmf_subsystem_add_ns", namespace), 2);
    client.ok("bdev_set_qos_limit", json!({ "name": "disk", "rw_ios_per_sec": 20000 }));
    let api = Api::of(&daemon);
    let namespace = api.get(&format!("/v1/subsystems/{NQN}/namespaces/2"));
    assert_eq!(namespace["config"]["limit"]["iops"], 20000);
    let uuid = namespace["uuid"].as_str().expect("a UUID").to_owned();
    // The checks of a config file apply.
    let missing = json!({ "name": "x", "filename": "/nonexistent/x" });
    let (code, message) = client.call("bdev_aio_create", missing).expect_err("no file");
    assert!(code == -32602 && message.contains("does not exist"), "{code} {message}");
    // The listener of the config serves all subsystems already.
    client.ok("nvmf_subsystem_add_listener", listen(NQN, daemon.address().port()));
    api.call(Method::POST, "/v1/save", None, None).expect("it is saved");
    let daemon = daemon.restart();
    let api = Api::of(&daemon);
    let namespace = api.get(&format!("/v1/subsystems/{NQN}/namespaces/2"));
    assert_eq!(namespace["uuid"], uuid);
    let mut client = Client::of(&daemon);
    let bdev = client.ok("bdev_get_bdevs", json!({ "name": "disk" }));
    assert_eq!(bdev[0]["assigned_rate_limits"]["rw_ios_per_sec"], 20000);
}
