//! Access to the API: sockets, tokens, callers that are slow or idle, and the command line.

use std::io::{Read as _, Write as _};
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, Output};

use nvmeof_api::ErrorKind;
use nvmeof_ctl::{ApiClient, CallError};
use nvmeof_tests::config::{NQN, api, small};
use nvmeof_tests::{Api, Daemon, GUARD, build};
use rustix::fs::{CWD, FileType, Mode, mknodat};
use serde_json::Value;

fn ctl(socket: &Path, arguments: &str) -> Output {
    let mut command = Command::new(build::control());
    command.arg("--api").arg(format!("unix:{}", socket.display()));
    command.args(arguments.split(' ')).output().expect("nvmeofctl runs")
}

/// Returns the program's output, if it succeeds.
fn said(socket: &Path, arguments: &str) -> String {
    let output = ctl(socket, arguments);
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{arguments}: {error}");
    String::from_utf8(output.stdout).expect("text")
}

#[test]
fn the_command_line_does_what_it_says() {
    let daemon = Daemon::start(&(small() + &api()));
    let socket = Api::of(&daemon).socket().clone();
    let said = |arguments: &str| said(&socket, arguments);
    assert!(said("status").contains("saved:"), "{}", said("status"));
    let status: Value = serde_json::from_str(&said("status --json")).expect("JSON");
    assert_eq!(status["pid"], daemon.pid());

    assert!(said("device add r1 ram size=1MiB --dry-run").starts_with("would add device r1: "));
    assert!(!said("device list").contains("r1"));
    said("device add r1 ram size=1MiB block-size=4096");
    assert!(said("namespace add nqn.2026-11.io.nvmeof-tgt:test r1 weight=4").contains("/2: "));
    let namespaces = said("namespace list");
    let line = namespaces.lines().find(|line| line.contains(" r1 ")).expect("the namespace");
    let words: Vec<&str> = line.split_whitespace().collect();
    assert_eq!(&words[..7], [NQN, "2", "r1", "1", "MiB", "4096", "4"]);
    assert!(said("device resize r1 2MiB").contains("size 1MiB -> 2MiB"));
    assert!(said("device show r1").contains("2 MiB (2097152 bytes)"));
    said("namespace set nqn.2026-11.io.nvmeof-tgt:test 2 weight=");
    said("pacing set buffer-credit budget=64MiB");
    assert!(said("pacing show").contains("64 MiB"));
    said("subsystem add nqn.2026-11.io.nvmeof-tgt:two model=fast");
    said("host add nqn.2026-11.io.nvmeof-tgt:two nqn.2026-11.io.nvmeof-tgt:host");
    assert!(said("host list nqn.2026-11.io.nvmeof-tgt:two").contains(":host"));
    said("listener add tcp 127.0.0.2:0");
    assert_eq!(said("listener list").lines().count(), 3);
    let config = said("config show");
    let file = daemon.folder().join("other.toml");
    std::fs::write(&file, &config).expect("a file");
    assert_eq!(said(&format!("config apply {} --dry-run", file.display())), "nothing changes\n");
    assert!(said("save").contains("target.toml"));
    assert_eq!(said("reload"), "nothing changes\n");
    assert!(said("connection list").starts_with("id"));

    for (arguments, code, part) in [
        ("device remove r1", 1, "in use by namespace 2"),
        ("device set r1 sice=1", 1, "no such key; there are"),
        ("device show none", 1, "there is no device"),
        ("device resize r1", 2, "Usage"),
        ("reload --revision x-1", 1, "read the current state"),
    ] {
        let output = ctl(&socket, arguments);
        let error = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{arguments}: {error}");
        assert!(error.contains(part), "{arguments}: {error}");
    }
    let pages = daemon.folder().join("man");
    said(&format!("man {}", pages.display()));
    assert!(pages.join("nvmeofctl-namespace-add.1").exists());
    assert!(said("completion bash").contains("nvmeofctl"));
}

#[test]
fn two_daemons_never_serve_one_socket_and_a_dead_ones_is_replaced() {
    let mut first = Daemon::start(&(small() + &api()));
    let socket = Api::of(&first).socket().clone();
    let mode = std::fs::metadata(&socket).expect("the socket").permissions().mode();
    assert_eq!(mode & 0o777, 0o660);
    let config = small() + &format!("\n[api]\nsocket = \"{}\"\n", socket.display());
    let file = first.folder().join("second.toml");
    std::fs::write(&file, config).expect("a config");
    let second = Command::new(build::target_daemon()).arg("--config").arg(&file).output();
    let second = second.expect("it runs");
    let error = String::from_utf8_lossy(&second.stderr).into_owned();
    assert_eq!(second.status.code(), Some(1), "{error}");
    assert!(error.contains("another daemon serves the socket"), "{error}");
    assert!(Api::of(&first).get("/v1/status").is_object());

    let again = first.kill_and_restart();
    assert!(Api::of(&again).get("/v1/status").is_object());
    first = again;
    assert!(first.stop().success());
    assert!(!socket.exists(), "the socket goes with the daemon");
}

#[test]
fn over_tcp_only_with_the_token() {
    let token = tempfile::NamedTempFile::new().expect("a file");
    std::fs::write(&token, "0123456789abcdefX\n").expect("a token");
    let free = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = free.local_addr().expect("its address");
    drop(free);
    let config = format!(
        "{}\n[api]\nsocket = \"api.sock\"\nlisten = [\"{address}\"]\ntoken-file = \"{}\"\n",
        small(),
        token.path().display()
    );
    let daemon = Daemon::start(&config);
    daemon.wait_for_line("API listens on TCP");
    let url = format!("http://{address}");
    let with = ApiClient::new(&url, Some(token.path())).expect("a client");
    assert!(with.get::<Value>("/v1/status").expect("the status").is_object());
    std::fs::write(&token, "0123456789abcdefY\n").expect("another token");
    for file in [None, Some(token.path())] {
        let without = ApiClient::new(&url, file).expect("a client");
        let error = without.get::<Value>("/v1/status").expect_err("no token");
        match error.downcast() {
            Ok(CallError::Refused(error)) => assert_eq!(error.error, ErrorKind::Unauthorized),
            other => panic!("{other:?}"),
        }
    }
    // The socket's mode controls access; no token is required.
    assert!(Api::of(&daemon).get("/v1/status").is_object());
}

/// The control interface is never opened to a network by accident, and its token is never readable
/// by other users of the machine.
#[test]
fn what_is_open_to_others_is_refused_unless_it_is_meant() {
    let folder = tempfile::tempdir().expect("a folder");
    let token = folder.path().join("token");
    std::fs::write(&token, "0123456789abcdefX\n").expect("a token");
    let run = |api: &str, more: &[&str]| {
        let file = folder.path().join("target.toml");
        let socket = folder.path().join("api.sock");
        let text = format!("{}\n[api]\nsocket = \"{}\"\n{api}\n", small(), socket.display());
        std::fs::write(&file, text).expect("a config");
        let mut daemon = Command::new(build::target_daemon());
        let output = daemon.arg("--config").arg(&file).args(more).output().expect("it runs");
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let everywhere = "listen = [\"0.0.0.0:0\"]";
    let (status, error) = run(everywhere, &["--check"]);
    assert_eq!(status, Some(2), "{error}");
    assert!(error.contains("api.listen: any client that reaches 0.0.0.0:0"), "{error}");
    assert!(error.contains("token-file") && error.contains("insecure = true"), "{error}");
    assert_eq!(run(everywhere, &[]).0, Some(2));
    let meant = format!("{everywhere}\ninsecure = true");
    assert_eq!(run(&meant, &["--check"]).0, Some(0));

    let with_token = format!("{everywhere}\ntoken-file = \"{}\"", token.display());
    let set = |mode| {
        let mode = std::fs::Permissions::from_mode(mode);
        std::fs::set_permissions(&token, mode).expect("a mode");
    };
    // A check and a start report the same error, with the exit status of one that no restart
    // repairs.
    let refused = |said: &[&str]| {
        for more in [&["--check"][..], &[]] {
            let (status, error) = run(&with_token, more);
            assert_eq!(status, Some(2), "{error}");
            assert!(said.iter().all(|part| error.contains(part)), "{error}");
        }
    };
    set(0o640);
    refused(&["mode 0640", "chmod 0600"]);
    assert_eq!(run(&format!("{with_token}\ninsecure = true"), &["--check"]).0, Some(0));
    set(0o600);
    assert_eq!(run(&with_token, &["--check"]).0, Some(0));
    for wrong in ["", "short\n", "0123456789abcdefX\nmore\n", "0123456789abcdef\0"] {
        std::fs::write(&token, wrong).expect("no token");
        refused(&["api.token-file", "one line of 16 to 256"]);
    }
    std::fs::remove_file(&token).expect("a removal");
    refused(&["api.token-file", "No such file", "mode 0600"]);
    mknodat(CWD, &token, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).expect("a FIFO");
    refused(&["api.token-file", "not a regular file"]);
}

/// The server's unit tests check that these callers lose their places in time, without the long
/// wait.
#[test]
fn callers_that_are_silent_or_never_read_take_no_more_than_their_places() {
    let daemon = Daemon::start(&(small() + &api()));
    let api = Api::of(&daemon);
    let files = daemon.open_files();
    let open = || UnixStream::connect(api.socket()).expect("a connection");
    // One caller sends requests without end and reads nothing: the daemon reads its requests only
    // while it can send responses.
    let mut greedy = open();
    greedy.set_nonblocking(true).expect("no waiting");
    let request = b"GET /openapi.json HTTP/1.1\r\nhost: x\r\n\r\n";
    let mut asked = 0;
    while let Ok(sent) = greedy.write(request) {
        asked += sent;
        assert!(asked < 64 << 20, "it takes whatever comes");
    }
    // One caller that gets its response nevertheless, and stays.
    let mut answered = open();
    answered.write_all(b"GET /v1/status HTTP/1.1\r\nhost: x\r\n\r\n").expect("a request");
    let mut status = [0; 15];
    answered.set_read_timeout(Some(GUARD)).expect("a guard");
    answered.read_exact(&mut status).expect("an answer");
    assert_eq!(&status, b"HTTP/1.1 200 OK");
    // All places are taken, the others by callers that send nothing, or half a request.
    let mut silent: Vec<UnixStream> = (0..62).map(|_| open()).collect();
    for (at, stream) in silent.iter_mut().enumerate().filter(|(at, _)| at % 2 == 0) {
        let half: &[u8] = if at % 4 == 0 { b"GET /v1/sta" } else { b"PUT /v1/config HTTP/1.1\r\n" };
        stream.write_all(half).expect("half a request");
    }
    let mut one_more = open();
    one_more.set_read_timeout(Some(GUARD)).expect("a guard");
    let mut answer = String::new();
    one_more.read_to_string(&mut answer).expect("an answer");
    assert!(answer.starts_with("HTTP/1.1 503") && answer.contains("too many"), "{answer}");
    drop((greedy, answered, silent, one_more));
    daemon.wait_for_counts(&daemon.counts(), files);
    assert!(api.get("/v1/status").is_object());
}

#[test]
fn a_file_of_a_newer_version_is_refused_at_start() {
    let file = tempfile::NamedTempFile::new().expect("a file");
    let text = format!("format = 2\nnew-key = 1\n{}", small());
    std::fs::write(&file, text).expect("a config");
    let daemon = Command::new(build::target_daemon()).arg("--config").arg(file.path()).output();
    let daemon = daemon.expect("it runs");
    let error = String::from_utf8_lossy(&daemon.stderr).into_owned();
    assert_eq!(daemon.status.code(), Some(2), "{error}");
    assert!(error.contains(":1:10: format: ") && error.contains("newer version"), "{error}");
    assert_eq!(error.lines().count(), 1, "{error}");
}
