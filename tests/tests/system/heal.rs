//! Listeners and devices that cannot be opened at first: the daemon reports them, retries, and
//! opens them without intervention.

use std::net::{TcpListener, TcpStream};
use std::process::Command;

use hyper::Method;
use nvmeof_api::ErrorKind;
use nvmeof_initiator::{Address, Fabric, discover};
use nvmeof_tests::config::{NQN, api, device, listener_at, ram, small, subsystem};
use nvmeof_tests::events::{ask_for_events, assert_event};
use nvmeof_tests::{Api, Daemon, Host, Raw, build, options};
use nvmeof_wire::aer::AsyncEvent;
use serde_json::json;

/// Returns a port of 127.0.0.2 that another socket uses.
fn taken() -> (TcpListener, u16) {
    let other = TcpListener::bind(("127.0.0.2", 0)).expect("a port");
    let port = other.local_addr().expect("its number").port();
    (other, port)
}

/// Returns the ports of the daemon's discovery log.
fn listed(daemon: &Daemon) -> Vec<String> {
    let address = daemon.address();
    let address =
        Address { fabric: Fabric::Tcp, host: address.ip().to_string(), port: address.port() };
    let log = discover(&address, &options(9)).expect("the discovery log");
    let mut places: Vec<String> = log
        .entries
        .iter()
        .filter(|entry| entry.is_nvm)
        .map(|entry| format!("{}:{}", entry.address, entry.service))
        .collect();
    places.sort();
    places
}

fn ctl(api: &Api, arguments: &str) -> String {
    let mut command = Command::new(build::control());
    command.arg("--api").arg(format!("unix:{}", api.socket().display()));
    let output = command.args(arguments.split(' ')).output().expect("nvmeofctl runs");
    assert!(output.status.success(), "{arguments}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("text")
}

fn metric(daemon: &Daemon, line: &str) -> bool {
    use std::io::{Read as _, Write as _};
    let socket = daemon.folder().join("api.sock");
    let mut stream = std::os::unix::net::UnixStream::connect(socket).expect("the API");
    let request = b"GET /metrics HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n";
    stream.write_all(request).expect("a request");
    let mut text = String::new();
    stream.read_to_string(&mut text).expect("metrics");
    text.lines().any(|one| one == line)
}

#[test]
fn a_listener_whose_port_is_taken_is_shown_and_comes_up_when_it_is_free() {
    let (other, port) = taken();
    let config = [small(), listener_at("127.0.0.2", port), api()].concat();
    let daemon = Daemon::start(&config);
    let control = Api::of(&daemon);
    let (place, url) = (format!("127.0.0.2:{port}"), format!("tcp://127.0.0.2:{port}"));
    let said = daemon.wait_for_line("cannot listen yet, retrying");
    assert!(said.contains(&place) && said.contains("listener.port: "), "{said}");
    assert_eq!(daemon.addresses().len(), 1, "{}", daemon.ready_line());

    let status = control.get("/v1/status");
    assert_eq!(status["waiting_listeners"][0]["url"], url.as_str(), "{status}");
    assert_eq!(status["listeners"].as_array().map(Vec::len), Some(1), "{status}");
    assert!(ctl(&control, "status").lines().any(|line| {
        line.starts_with("not listening yet:") && line.contains(&url) && line.contains("listens at")
    }));
    let list = ctl(&control, "listener list");
    let line = list.lines().find(|line| line.contains(&place)).expect("the listener");
    assert!(line.contains("waiting") && line.contains("something else listens at"), "{list}");
    let view = control.get(&format!("/v1/listeners/tcp:{place}"));
    assert_eq!(view["listening"], false, "{view}");
    let wait = &view["waiting"];
    assert!(wait["tries"].as_u64() >= Some(1) && wait["next_try_ms"].is_u64(), "{view}");
    assert!(wait["seconds"].is_u64(), "{view}");
    assert!(metric(&daemon, &format!("nvmeof_tgt_listener_up{{listener=\"{url}\"}} 0")));
    let before = listed(&daemon);
    assert!(!before.contains(&place) && before.len() == 1, "{before:?}");

    // A host that keeps a discovery controller gets an event.
    let discovery = nvmeof_wire::Nqn::discovery();
    let (mut admin, _) = Raw::admin(daemon.address(), discovery.as_str(), &options(2));
    ask_for_events(&mut admin);
    drop(other);
    assert_event(&mut admin, AsyncEvent::DISCOVERY_CHANGED);
    assert!(daemon.wait_for_line("hosts can connect to").contains(&url));
    assert!(listed(&daemon).contains(&place));
    let mut host =
        Host::connect(&format!("{url}/{NQN}").parse().expect("an endpoint"), &options(3));
    host.write(1, 0, 4096, 7);
    host.check(1, 0, 4096, 7);
    let view = control.get(&format!("/v1/listeners/tcp:{place}"));
    assert_eq!((&view["listening"], view.get("waiting")), (&json!(true), None), "{view}");
    assert_eq!(control.get("/v1/status")["waiting_listeners"], json!([]));
    assert!(metric(&daemon, &format!("nvmeof_tgt_listener_up{{listener=\"{url}\"}} 1")));
    assert_eq!(ctl(&control, "reload"), "nothing changes\n");
}

#[test]
fn a_listener_that_waits_can_be_removed_and_reload_tries_it_at_once() {
    let (other, port) = taken();
    let config = [small(), listener_at("127.0.0.2", port), api()].concat();
    let daemon = Daemon::start(&config);
    let control = Api::of(&daemon);
    let id = format!("tcp:127.0.0.2:{port}");
    // The API's caller gets an immediate error if the new listener does not work.
    let wanted = json!({ "type": "tcp", "address": "192.0.2.1", "port": 4420 });
    let refused = control.change(Method::POST, "/v1/listeners", Some(wanted));
    assert_eq!(refused.expect_err("no such address").error, ErrorKind::Conflict);
    control.change(Method::DELETE, &format!("/v1/listeners/{id}"), None).expect("it goes");
    assert_eq!(control.get("/v1/status")["waiting_listeners"], json!([]));
    // After SIGHUP it is allowed to wait.
    let said = daemon.reload(&config);
    assert!(said.contains("0 listeners started"), "{said}");
    assert_eq!(control.get("/v1/listeners").as_array().map(Vec::len), Some(2));
    drop(other);
    let change = control.change(Method::POST, "/v1/reload", None).expect("a reload");
    // It can have opened automatically a moment before.
    let came_up_by_itself = !daemon.lines_with("hosts can connect to tcp://127.0.0.2").is_empty();
    let expected = if came_up_by_itself { vec![] } else { vec![format!("tcp://127.0.0.2:{port}")] };
    assert_eq!(change.listening, expected);
    assert!(TcpStream::connect(("127.0.0.2", port)).is_ok());
}

#[test]
fn an_address_that_nobody_has_is_waited_for() {
    // No interface has an address of this block, which is for documentation.
    let config = [small(), listener_at("192.0.2.1", 4420), api()].concat();
    let rdma = listener_at("192.0.2.1", 4420).replace("\"tcp\"", "\"rdma\"");
    let daemon = Daemon::start(&[config, rdma].concat());
    let status = Api::of(&daemon).get("/v1/status");
    let waiting: Vec<_> = status["waiting_listeners"].as_array().expect("a list").clone();
    let urls: Vec<_> = waiting.iter().filter_map(|one| one["url"].as_str()).collect();
    assert_eq!(urls, ["tcp://192.0.2.1:4420", "rdma://192.0.2.1:4420"]);
    let errors: Vec<_> = waiting.iter().filter_map(|one| one["error"].as_str()).collect();
    assert!(errors[1].contains("for RDMA: "), "{errors:?}");
    assert_eq!(listed(&daemon).len(), 1);
}

#[test]
fn a_device_that_is_missing_is_shown() {
    let config = |gone: bool| {
        [
            nvmeof_tests::config::listener("127.0.0.1"),
            ram("base", "1MiB", 512),
            device("frail", "fault", &format!("base = \"base\"\ngone = {gone}")),
            subsystem(NQN, &[(1, "frail")]),
            api(),
        ]
        .concat()
    };
    let daemon = Daemon::start(&config(false));
    let control = Api::of(&daemon);
    assert_eq!(control.get("/v1/status")["missing_devices"], json!([]));
    assert!(metric(&daemon, "nvmeof_tgt_device_up{device=\"frail\"} 1"));
    daemon.reload(&config(true));
    assert_eq!(control.get("/v1/status")["missing_devices"], json!(["frail"]));
    assert!(ctl(&control, "status").contains("missing devices:"));
    assert!(metric(&daemon, "nvmeof_tgt_device_up{device=\"frail\"} 0"));
    assert!(metric(&daemon, "nvmeof_tgt_device_up{device=\"base\"} 1"));
}
