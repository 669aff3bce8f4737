//! The API against its own description, with schemathesis.
//!
//! schemathesis reads the OpenAPI document of a live daemon and sends every call in it, with valid
//! and with invalid arguments. The daemon must answer each as the document specifies, never fail,
//! and end cleanly.
//!
//! The daemon runs in its own folder, and as a user that owns no other files: calls can name any
//! file.

use std::fs::{self, File};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::{PermissionsExt as _, chown};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use nvmeof_console::say;
use nvmeof_workspace::checkout::{Workspace, show};
use rustix::process::{Pid, Signal, geteuid, kill_process};

use crate::setup;

/// User ID of the daemon if xtask runs as root.
const NOBODY: u32 = 65534;
/// Timeout for the daemon to start and to end.
const GUARD: Duration = Duration::from_secs(60);
/// Timeout for all calls; a guard against hanging.
const CALLS: Duration = Duration::from_secs(600);
/// Settings of schemathesis.
///
/// The document cannot express the daemon's state, for example whether a name is free. It is
/// therefore no defect if the daemon rejects a call that the document allows. A call that the
/// document does not allow must be rejected with a status that gives the reason. For a call that
/// also names an old state, this can be 412. A trace takes the requested time, so only invalid ones
/// are requested; the calls are the same each time.
const SETTINGS: &str = "\
seed = 8
request-timeout = 60
color = false
[generation]
max-examples = 25
[phases.examples]
enabled = false
[phases.stateful]
enabled = false
[checks.positive_data_acceptance]
enabled = false
[checks.negative_data_rejection]
expected-statuses = [\"4xx\"]
[[operations]]
include-path = \"/v1/trace\"
generation.mode = \"negative\"
";

/// Installs schemathesis if it is missing, and runs it.
pub(crate) fn run(workspace: &Workspace) -> Result<()> {
    let schemathesis = setup::schemathesis(workspace)?;
    let folder = tempfile::Builder::new().prefix("api-fuzz").tempdir()?;
    let mut daemon = ApiDaemon::start(workspace, folder.path())?;
    let url = format!("http://{}", daemon.address);
    let settings = folder.path().join("settings.toml");
    fs::write(&settings, SETTINGS)?;
    let mut command = Command::new(schemathesis);
    command.arg("--config-file").arg(&settings);
    command.arg("run").arg(format!("{url}/openapi.json")).args(["--url", &url]);
    command.current_dir(folder.path());
    say!("$ {}", show(&command));
    let fuzzed = run_within(&mut command, CALLS);
    let ended = daemon.stop();
    fuzzed?;
    ended?;
    // The daemon answers after a panic in a job and continues.
    let log = fs::read_to_string(&daemon.log)?;
    let panics: Vec<&str> = log.lines().filter(|line| line.contains("panicked")).collect();
    ensure!(panics.is_empty(), "the daemon's log has {panics:?}");
    Ok(())
}

/// Runs a command with a time limit.
fn run_within(command: &mut Command, time: Duration) -> Result<()> {
    let mut child = command.spawn().with_context(|| format!("cannot start {}", show(command)))?;
    let until = Instant::now() + time;
    let status = loop {
        match child.try_wait()? {
            Some(status) => break status,
            None if Instant::now() < until => std::thread::sleep(Duration::from_millis(100)),
            None => {
                child.kill()?;
                child.wait()?;
                bail!("{} does not end within {time:?}", show(command));
            }
        }
    };
    ensure!(status.success(), "{} failed ({status})", show(command));
    Ok(())
}

/// A daemon that is killed if it is left behind.
struct ApiDaemon {
    child: Child,
    address: SocketAddr,
    log: PathBuf,
}

impl ApiDaemon {
    fn start(workspace: &Workspace, folder: &Path) -> Result<Self> {
        // The port is free now, and most likely remains free for a moment.
        let address = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?;
        let config = format!(
            "log = \"info\"\n[api]\nsocket = \"api.sock\"\nlisten = [\"{address}\"]\n\
             [[listener]]\ntype = \"tcp\"\naddress = \"127.0.0.1\"\nport = 0\n\
             [[device]]\nname = \"ram0\"\ntype = \"ram\"\nsize = \"64MiB\"\n\
             [[subsystem]]\nnqn = \"nqn.2026-11.io.nvmeof-tgt:fuzz\"\nhosts = []\n\
             [[subsystem.namespace]]\nnsid = 1\ndevice = \"ram0\"\n"
        );
        fs::write(folder.join("target.toml"), config)?;
        // A copy, because the user can lack access to the target folder.
        let binary = folder.join("nvmeof-tgt");
        fs::copy(workspace.release_binary("nvmeof-tgt"), &binary)
            .context("cannot copy the daemon: cargo build --release -p nvmeof-tgt")?;
        fs::set_permissions(folder, fs::Permissions::from_mode(0o755))?;
        let log = folder.join("log");
        let mut command = Command::new(&binary);
        command.args(["--config", "target.toml"]).current_dir(folder);
        command.env_remove("RUST_LOG").stdin(Stdio::null());
        command.stdout(Stdio::null()).stderr(File::create(&log)?);
        if geteuid().is_root() {
            for path in [folder.to_owned(), folder.join("target.toml")] {
                chown(path, Some(NOBODY), Some(NOBODY))?;
            }
            command.uid(NOBODY).gid(NOBODY);
        }
        let child = command.spawn().context("cannot start the daemon")?;
        let mut daemon = Self { child, address, log };
        let until = Instant::now() + GUARD;
        while TcpStream::connect(address).is_err() {
            if let Some(status) = daemon.child.try_wait()? {
                bail!("the daemon ended ({status}):\n{}", daemon.said());
            }
            ensure!(Instant::now() < until, "the daemon does not come:\n{}", daemon.said());
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(daemon)
    }

    /// Returns the end of its log.
    fn said(&self) -> String {
        let text = fs::read_to_string(&self.log).unwrap_or_default();
        let lines: Vec<&str> = text.lines().collect();
        lines[lines.len().saturating_sub(20)..].join("\n")
    }

    /// Stops it cleanly.
    fn stop(&mut self) -> Result<()> {
        if let Some(status) = self.child.try_wait()? {
            bail!("the daemon ended meanwhile ({status}):\n{}", self.said());
        }
        let pid = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw);
        kill_process(pid.context("no process identifier")?, Signal::TERM)?;
        let until = Instant::now() + GUARD;
        loop {
            match self.child.try_wait()? {
                Some(status) => {
                    ensure!(
                        status.success(),
                        "the daemon ended badly ({status}):\n{}",
                        self.said()
                    );
                    return Ok(());
                }
                None if Instant::now() < until => std::thread::sleep(Duration::from_millis(20)),
                None => bail!("the daemon does not end:\n{}", self.said()),
            }
        }
    }
}

impl Drop for ApiDaemon {
    fn drop(&mut self) {
        // If kill fails, it has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
