//! The daemon under a service manager: what it says, in order, at a socket of this test.

use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

/// Nothing is that slow; a test that waits for ever says nothing.
const PATIENCE: Duration = Duration::from_secs(60);

const CONFIG: &str = r#"
reactors = "auto"
[[listener]]
type = "tcp"
address = "127.0.0.1"
port = 0
[[device]]
name = "null0"
type = "null"
size = "1GiB"
[[subsystem]]
nqn = "nqn.2026-11.io.nvmeof-tgt:notify"
allow-any-host = true
[[subsystem.namespace]]
nsid = 1
device = "null0"
"#;

struct Daemon(Child);

impl Daemon {
    fn start(config: &Path, socket: &Path) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_nvmeof-tgt"));
        command.arg("--config").arg(config);
        command
            .env("NOTIFY_SOCKET", socket)
            .env("WATCHDOG_USEC", "60000")
            .env_remove("WATCHDOG_PID");
        Self(command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("the daemon"))
    }

    fn signal(&self, signal: Signal) {
        let pid = i32::try_from(self.0.id()).ok().and_then(Pid::from_raw).expect("a pid");
        kill_process(pid, signal).expect("it lives");
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        // It has ended where the test passed.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The next message that is no sign of life.
fn said(socket: &UnixDatagram) -> String {
    loop {
        let mut bytes = [0; 4096];
        let length = socket.recv(&mut bytes).expect("the daemon says something");
        let text = std::str::from_utf8(&bytes[..length]).expect("text");
        if text.trim_end() != "WATCHDOG=1" {
            return text.to_owned();
        }
    }
}

fn sign_of_life(socket: &UnixDatagram) {
    let mut bytes = [0; 4096];
    let length = socket.recv(&mut bytes).expect("a sign of life");
    assert_eq!(&bytes[..length], b"WATCHDOG=1\n");
}

#[test]
fn a_life_under_a_service_manager() {
    let folder = tempfile::tempdir().expect("a folder");
    let (config, path) = (folder.path().join("target.toml"), folder.path().join("notify"));
    std::fs::write(&config, CONFIG).expect("a config");
    let socket = UnixDatagram::bind(&path).expect("a socket");
    socket.set_read_timeout(Some(PATIENCE)).expect("a timeout");
    let mut daemon = Daemon::start(&config, &path);
    let ready = said(&socket);
    assert!(ready.starts_with("READY=1\nSTATUS=ready tcp://127.0.0.1:"), "{ready}");
    // Reactors sleep, and answer all the same.
    for _ in 0..3 {
        sign_of_life(&socket);
    }
    daemon.signal(Signal::HUP);
    let reloading = said(&socket);
    assert!(reloading.starts_with("RELOADING=1\nMONOTONIC_USEC="), "{reloading}");
    let ready = said(&socket);
    assert!(ready.starts_with("READY=1\n") && ready.contains("; config reloaded"), "{ready}");
    std::fs::write(&config, "nonsense").expect("a config");
    daemon.signal(Signal::HUP);
    assert!(said(&socket).starts_with("RELOADING=1\n"));
    let ready = said(&socket);
    assert!(ready.starts_with("READY=1\n") && ready.contains("not reloaded"), "{ready}");
    daemon.signal(Signal::TERM);
    let stopping = said(&socket);
    assert!(stopping.starts_with("STOPPING=1\nSTATUS=stopping: "), "{stopping}");
    assert!(daemon.0.wait().expect("its end").success());
}
