//! Slow changes, on a daemon without signals and sockets.
//!
//! Its drives are in memory, and open when the test allows it.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex, PoisonError};

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::http::{Method, Request, StatusCode};
use nvmeof_api::document::Document;
use nvmeof_core::nvme_driver::function::Function;
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tower::ServiceExt as _;

use super::super::devices::tests::{plug_in, take};
use super::super::handle::{ControlHandle, RequestQueue, request_channel};
use super::*;
use crate::api;
use crate::config_file::loaded::Loaded;

/// Longest wait for an event that has to happen.
const GUARD: Duration = Duration::from_secs(120);

/// Gates in front of drives, by address: whether they are shut, and how many openers arrived.
static GATES: Mutex<BTreeMap<String, Gate>> = Mutex::new(BTreeMap::new());
static OPENED: Condvar = Condvar::new();

#[derive(Debug, Default)]
struct Gate {
    is_shut: bool,
    came: usize,
}

fn gate<T>(address: &str, f: impl FnOnce(&mut Gate) -> T) -> T {
    let mut gates = GATES.lock().unwrap_or_else(PoisonError::into_inner);
    f(gates.entry(address.to_owned()).or_default())
}

fn shut(address: &str) {
    gate(address, |gate| gate.is_shut = true);
}

fn open(address: &str) {
    gate(address, |gate| gate.is_shut = false);
    OPENED.notify_all();
}

/// Opens a drive when its gate is open.
fn take_at_gate(address: &str) -> anyhow::Result<Arc<dyn Function>> {
    gate(address, |gate| gate.came += 1);
    let mut gates = GATES.lock().unwrap_or_else(PoisonError::into_inner);
    while gates.get(address).is_some_and(|gate| gate.is_shut) {
        gates = OPENED.wait(gates).unwrap_or_else(PoisonError::into_inner);
    }
    drop(gates);
    take(address)
}

/// The control plane and its clients.
struct Rig {
    handle: ControlHandle,
    router: Router,
    hang_up: mpsc::UnboundedSender<()>,
    stop: mpsc::UnboundedSender<()>,
    file: PathBuf,
    _folder: tempfile::TempDir,
}

/// Runs a test alongside the control plane's loop, and returns the loop's state after it stops.
async fn with_control<T>(test: impl AsyncFnOnce(Rig) -> T) -> (T, ControlState, ChangeQueue) {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("target.toml");
    std::fs::write(&file, text("")).unwrap();
    let running =
        ControlState::start(&file, Loaded::read(&file).unwrap(), take_at_gate).await.unwrap();
    let (handle, asks) = request_channel();
    let (router, _) = api::service(handle.clone());
    let ((hang_up, hung_up), (stop, stopped)) =
        (mpsc::unbounded_channel(), mpsc::unbounded_channel());
    let rig = Rig { handle, router, hang_up, stop, file, _folder: folder };
    let (tested, (running, changes)) =
        tokio::join!(test(rig), control(running, asks, hung_up, stopped));
    (tested, running, changes)
}

/// The part of the loop that handles changes.
async fn control(
    mut running: ControlState,
    mut asks: RequestQueue,
    mut hung_up: mpsc::UnboundedReceiver<()>,
    mut stopped: mpsc::UnboundedReceiver<()>,
) -> (ControlState, ChangeQueue) {
    let mut changes = ChangeQueue::default();
    loop {
        tokio::select! {
            _ = stopped.recv() => return (running, changes),
            Some(()) = hung_up.recv() => changes.hang_up(&mut running),
            done = changes.done() => changes.go_on(done, &mut running).await,
            Some(ask) = asks.recv() => changes.answer(ask, &mut running).await,
        }
    }
}

/// Returns a config with one device and the additional text.
fn text(more: &str) -> String {
    format!("[[listener]]\ntype = \"tcp\"\naddress = \"127.0.0.1\"\nport = 0\n{}{more}", ram("ram"))
}

fn ram(name: &str) -> String {
    format!("[[device]]\nname = \"{name}\"\ntype = \"ram\"\nsize = \"1MiB\"\n")
}

impl Rig {
    async fn call(&self, method: Method, path: &str, body: Option<Value>) -> (StatusCode, Vec<u8>) {
        called(self.router.clone(), method, path, body).await
    }

    /// Begins a call that may wait.
    fn begin(&self, body: Value) -> JoinHandle<(StatusCode, Vec<u8>)> {
        let router = self.router.clone();
        tokio::spawn(async move { called(router, Method::POST, "/v1/devices", Some(body)).await })
    }

    async fn get(&self, path: &str) -> Vec<u8> {
        let (status, body) = self.call(Method::GET, path, None).await;
        assert_eq!(status, StatusCode::OK, "{path}: {}", String::from_utf8_lossy(&body));
        body
    }

    /// Returns the number of changes, and the names of devices.
    async fn state(&self) -> (u64, Vec<String>) {
        let status: Value = serde_json::from_slice(&self.get("/v1/status").await).unwrap();
        let revision = status["revision"].as_str().unwrap().rsplit_once('-').unwrap().1.to_owned();
        let config: Value = serde_json::from_slice(&self.get("/v1/config").await).unwrap();
        let devices = config["device"].as_array().unwrap().iter();
        let names = devices.map(|device| device["name"].as_str().unwrap().to_owned());
        (revision.parse().unwrap(), names.collect())
    }

    /// Checks that every read request is answered.
    async fn look_at_all(&self) {
        for path in [
            "/",
            "/metrics",
            "/v1/status",
            "/v1/stats",
            "/v1/config",
            "/v1/devices",
            "/v1/listeners",
            "/v1/subsystems",
            "/v1/pacing",
            "/v1/connections",
        ] {
            assert!(!self.get(path).await.is_empty(), "{path}");
        }
    }
}

async fn called(
    router: Router,
    method: Method,
    path: &str,
    body: Option<Value>,
) -> (StatusCode, Vec<u8>) {
    let request = Request::builder().method(method).uri(path);
    let request = request.header("content-type", "application/json");
    let body = body.map_or_else(Body::empty, |body| Body::from(body.to_string()));
    let response = router.oneshot(request.body(body).unwrap()).await.unwrap();
    let status = response.status();
    (status, to_bytes(response.into_body(), usize::MAX).await.unwrap().to_vec())
}

async fn until(mut what: impl AsyncFnMut() -> bool) {
    let happens = async {
        while !what().await {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(GUARD, happens).await.expect("it happens");
}

/// Waits until a change opens the drive.
async fn wanted(address: &str) {
    until(async || gate(address, |gate| gate.came > 0)).await;
}

fn drive(address: &str) -> Value {
    json!({"name": "drive", "type": "nvme", "pci": address})
}

fn memory(name: &str) -> Value {
    json!({"name": name, "type": "ram", "size": "1MiB"})
}

#[tokio::test]
async fn while_a_drive_opens_looks_are_answered_and_changes_wait_their_turn() {
    const AT: &str = "0000:71:00.0";
    plug_in(AT);
    shut(AT);
    let ((), running, changes) = with_control(async |rig| {
        let first = rig.begin(drive(AT));
        wanted(AT).await;
        rig.look_at_all().await;
        let save = {
            let router = rig.router.clone();
            tokio::spawn(async move {
                called(router, Method::POST, "/v1/save?dry_run=true", None).await
            })
        };
        let (second, given_up) = (rig.begin(memory("second")), rig.begin(memory("given-up")));
        rig.look_at_all().await;
        given_up.abort();
        let _ = given_up.await;
        // The file is read when the reload's turn comes, however often it was requested.
        std::fs::write(&rig.file, text("wrong")).unwrap();
        rig.hang_up.send(()).unwrap();
        rig.hang_up.send(()).unwrap();
        rig.look_at_all().await;
        std::fs::write(&rig.file, text(&ram("of-file"))).unwrap();
        assert_eq!(rig.state().await, (0, vec!["ram".to_owned()]));
        assert!(!first.is_finished() && !second.is_finished() && !save.is_finished());
        open(AT);
        for (call, number) in [(first, 1), (second, 2)] {
            let (status, body) = call.await.unwrap();
            let change: Value = serde_json::from_slice(&body).unwrap();
            assert_eq!(status, StatusCode::OK, "{change}");
            let revision = change["revision"].as_str().unwrap();
            assert!(revision.ends_with(&format!("-{number}")), "{revision}");
        }
        let saved: Value = serde_json::from_slice(&save.await.unwrap().1).unwrap();
        assert!(saved["revision"].as_str().unwrap().ends_with("-1"), "{saved}");
        let all = (3, vec!["ram".to_owned(), "of-file".to_owned()]);
        until(async || rig.state().await == all).await;
        rig.stop.send(()).unwrap();
    })
    .await;
    changes.end(GUARD).await;
    running.stop().await;
}

#[tokio::test]
async fn a_config_that_waits_for_a_drive_makes_way_for_a_newer_one() {
    const AT: &str = "0000:72:00.0";
    let fake = plug_in(AT);
    shut(AT);
    let ((), running, changes) = with_control(async |rig| {
        let drive = format!("[[device]]\nname = \"drive\"\ntype = \"nvme\"\npci = \"{AT}\"\n");
        std::fs::write(&rig.file, text(&drive)).unwrap();
        rig.hang_up.send(()).unwrap();
        wanted(AT).await;
        std::fs::write(&rig.file, text(&ram("newer"))).unwrap();
        rig.hang_up.send(()).unwrap();
        let all = (1, vec!["ram".to_owned(), "newer".to_owned()]);
        until(async || rig.state().await == all).await;
        open(AT);
        // The drive that no change needs any more is opened and closed.
        until(async || fake.taken(0, 0x06) > 0).await;
        until(async || !fake.is_running()).await;
        assert_eq!(rig.state().await, all);
        rig.stop.send(()).unwrap();
    })
    .await;
    changes.end(GUARD).await;
    running.stop().await;
}

#[tokio::test]
async fn a_drive_that_the_newer_config_wants_as_well_is_opened_once() {
    const AT: &str = "0000:75:00.0";
    plug_in(AT);
    shut(AT);
    let ((), running, changes) = with_control(async |rig| {
        let drive = format!("[[device]]\nname = \"drive\"\ntype = \"nvme\"\npci = \"{AT}\"\n");
        for more in ["", "one", "two"] {
            let more = if more.is_empty() { String::new() } else { ram(more) };
            std::fs::write(&rig.file, text(&(drive.clone() + &more))).unwrap();
            rig.hang_up.send(()).unwrap();
            wanted(AT).await;
            rig.look_at_all().await;
        }
        open(AT);
        let all = (1, ["ram", "drive", "two"].map(str::to_owned).to_vec());
        until(async || rig.state().await == all).await;
        assert_eq!(gate(AT, |gate| gate.came), 1);
        rig.stop.send(()).unwrap();
    })
    .await;
    changes.end(GUARD).await;
    running.stop().await;
}

#[tokio::test]
async fn a_daemon_that_stops_while_a_drive_opens_tells_callers_and_closes_it() {
    const AT: &str = "0000:73:00.0";
    let fake = plug_in(AT);
    shut(AT);
    let (calls, running, changes) = with_control(async |rig| {
        let first = rig.begin(drive(AT));
        wanted(AT).await;
        let second = rig.begin(memory("second"));
        rig.look_at_all().await;
        rig.stop.send(()).unwrap();
        [first, second]
    })
    .await;
    let opens = async {
        for call in calls {
            let (status, body) = call.await.unwrap();
            let said = String::from_utf8_lossy(&body).into_owned();
            assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE, "{said}");
            assert!(said.contains("the daemon is stopping"), "{said}");
        }
        open(AT);
    };
    tokio::join!(changes.end(GUARD), running.stop(), opens);
    assert!(fake.taken(0, 0x06) > 0, "it was opened");
    assert!(!fake.is_running(), "and closed");
    fake.assert_clean();
}

#[tokio::test]
async fn a_drive_that_does_not_open_changes_nothing_and_frees_what_was_made_for_it() {
    const AT: &str = "0000:74:00.0";
    let ((), running, changes) = with_control(async |rig| {
        let disk = rig.file.with_file_name("disk");
        let mut config: Value = serde_json::from_slice(&rig.get("/v1/config").await).unwrap();
        let file =
            json!({"name": "disk", "type": "file", "path": disk, "create": true, "size": "1MiB"});
        let devices = config["device"].as_array_mut().unwrap();
        devices.extend([drive(AT), file.clone()]);
        let (status, body) = rig.call(Method::PUT, "/v1/config", Some(config)).await;
        let said = String::from_utf8_lossy(&body).into_owned();
        assert_eq!(status, StatusCode::CONFLICT, "{said}");
        assert!(said.contains(&format!("there is no drive at {AT}")), "{said}");
        assert_eq!(rig.state().await, (0, vec!["ram".to_owned()]));
        assert!(!disk.exists(), "it was made for nothing");
        // The file is not locked either.
        let (status, body) = rig.begin(file).await.unwrap();
        assert_eq!(status, StatusCode::OK, "{}", String::from_utf8_lossy(&body));
        rig.stop.send(()).unwrap();
    })
    .await;
    changes.end(GUARD).await;
    running.stop().await;
}

#[tokio::test]
async fn the_next_change_begins_after_the_callback_of_the_applied_one() {
    let calls = Arc::new(Mutex::new(Vec::new()));
    let add = |name: &'static str| {
        let calls = Arc::clone(&calls);
        move || calls.lock().unwrap().push(name)
    };
    let ((), running, changes) = with_control(async |rig| {
        let (first, applied, next) = (add("first"), add("applied"), add("next"));
        let edit = move |_: &ControlState, document: &mut Document| {
            first();
            document.drain_timeout = Some("7s".into());
            Ok(())
        };
        let edit_next = move |_: &ControlState, _: &mut Document| {
            next();
            Err(ApiError::new(ErrorKind::Invalid, "rejected"))
        };
        let (first, next) = tokio::join!(
            rig.handle.change_then(edit, applied),
            rig.handle.change_then(edit_next, add("never")),
        );
        assert!(first.is_ok() && next.is_err());
        rig.stop.send(()).unwrap();
    })
    .await;
    assert_eq!(*calls.lock().unwrap(), ["first", "applied", "next"]);
    changes.end(GUARD).await;
    running.stop().await;
}
