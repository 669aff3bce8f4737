//! The daemon under the control of SPDK's own command line.
//!
//! The PyPI package `spdk` is installed without changes. Its `spdk-rpc` builds a target from
//! nothing, `nvmeof-perf` reads from it, and `spdk-rpc` saves it, deletes it, and loads it again.

use std::fs::{self, File};
use std::io::{BufRead as _, BufReader};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use nvmeof_console::say;
use nvmeof_workspace::checkout::{Workspace, run_checked, show};

use crate::setup;

const NQN: &str = "nqn.2016-06.io.spdk:cnode1";
const HOST: &str = "nqn.2014-08.org.nvmexpress:uuid:ceccf520-691e-4b46-9546-34af789907c5";
const UUID: &str = "7a2f6a52-6b0e-4c8b-9d6e-0f3f5f0b7c11";

/// Timeout of the line by which the daemon reports that it serves.
const START_TIMEOUT: Duration = Duration::from_secs(60);
/// Ports outside of those that Linux assigns to outgoing connections by default.
const PORTS: std::ops::Range<u16> = 20_000..30_000;

/// Calls that create a target, with a part of their output. `PORT` and `FILE` are replaced.
const BUILD: &[(&str, &str)] = &[
    ("framework_start_init", ""),
    ("framework_wait_init", ""),
    ("framework_set_scheduler static", ""),
    ("bdev_set_options --bdev-io-pool-size 65535", ""),
    ("nvmf_create_transport -t TCP -q 128 -c 8192", ""),
    ("nvmf_get_transports --trtype TCP", "\"trtype\": \"TCP\""),
    ("bdev_malloc_create -b Malloc0 -u UUID 64 512", "Malloc0"),
    ("bdev_malloc_create 64 4096", "Malloc1"),
    ("bdev_null_create Null0 128 512", "Null0"),
    ("bdev_aio_create FILE Aio0 4096", "Aio0"),
    ("bdev_split_create Malloc1 2", "Malloc1p0 Malloc1p1"),
    ("bdev_raid_create -n Raid0 -z 64 -r raid0 -b 'Malloc1p0 Malloc1p1'", ""),
    ("bdev_delay_create -b Null0 -d Delay0 -r 100 -t 100 -w 100 -n 100", "Delay0"),
    ("bdev_error_create Aio0", "true"),
    ("bdev_wait_for_examine", ""),
    ("bdev_get_bdevs -b Malloc0 -t 1000", "\"num_blocks\": 131072"),
    ("bdev_set_qos_limit Raid0 --rw-ios-per-sec 20000", ""),
    ("nvmf_create_subsystem NQN -s SPDK00000000000001 -d SPDK_Controller -m 32", ""),
    ("nvmf_subsystem_add_ns NQN Malloc0", ""),
    ("nvmf_subsystem_add_ns NQN Raid0 -n 7", ""),
    ("nvmf_subsystem_add_ns NQN EE_Aio0", ""),
    ("nvmf_subsystem_add_listener NQN -t tcp -a 127.0.0.1 -s PORT -f ipv4", ""),
    ("nvmf_subsystem_add_host NQN HOST", ""),
    ("nvmf_discovery_add_referral -t tcp -a 127.0.0.2 -s 8009", ""),
];

/// Calls that show the target while a host is not connected, with a part of their output.
const SHOW: &[(&str, &str)] = &[
    ("rpc_get_methods", "nvmf_create_subsystem"),
    ("spdk_get_version", "nvmeof-tgt"),
    ("framework_get_reactors", "lcore"),
    ("framework_get_scheduler", "static"),
    ("nvmf_get_subsystems", "\"uuid\": \"UUID\""),
    ("nvmf_get_subsystems NQN", "\"trsvcid\": \"PORT\""),
    ("nvmf_subsystem_get_listeners NQN", "\"traddr\": \"127.0.0.1\""),
    ("nvmf_subsystem_get_controllers NQN", "[]"),
    ("nvmf_subsystem_get_qpairs NQN", "[]"),
    ("nvmf_discovery_get_referrals", "\"traddr\": \"127.0.0.2\""),
    ("nvmf_get_stats", "completed_nvme_io"),
    ("bdev_get_iostat --names Malloc0", "num_read_ops"),
    ("bdev_get_bdevs -b Raid0", "\"rw_ios_per_sec\": 20000"),
];

/// Calls that fail, with a part of the response.
const FAIL: &[(&str, &str)] = &[
    ("bdev_lvol_get_lvstores", "-32601"),
    ("bdev_malloc_create -b Malloc0 64 512", "-17"),
    ("bdev_get_bdevs -b nope", "-19"),
    ("bdev_malloc_delete nope", "-19"),
    ("nvmf_get_subsystems nqn.2016-06.io.spdk:nope", "-32602"),
    ("nvmf_create_subsystem NQN", "-32603"),
    ("nvmf_create_subsystem nqn.2016-06.io.spdk:ana -r", "ana_reporting"),
    ("nvmf_subsystem_add_host NQN nqn.x --psk key", "psk"),
    ("bdev_set_qos_limit Raid0 --r-mbytes-per-sec 10", "r_mbytes_per_sec"),
];

/// Calls that delete the target.
const DELETE: &[&str] = &[
    "nvmf_discovery_remove_referral -t tcp -a 127.0.0.2 -s 8009",
    "nvmf_subsystem_remove_host NQN HOST",
    "nvmf_subsystem_allow_any_host NQN --allow-any-host",
    "nvmf_subsystem_remove_ns NQN 7",
    "nvmf_subsystem_remove_listener NQN -t tcp -a 127.0.0.1 -s PORT",
    "nvmf_delete_subsystem NQN",
    "bdev_raid_delete Raid0",
    "bdev_split_delete Malloc1",
    "bdev_error_delete EE_Aio0",
    "bdev_delay_delete Delay0",
    "bdev_aio_delete Aio0",
    "bdev_null_delete Null0",
    "bdev_malloc_delete Malloc1",
    "bdev_malloc_delete Malloc0",
];

/// Installs SPDK's command line if it is missing, and runs it against a daemon.
pub(crate) fn run(workspace: &Workspace) -> Result<()> {
    let program = setup::spdk_rpc(workspace)?;
    let folder = tempfile::Builder::new().prefix("spdk-rpc").tempdir()?;
    let daemon = RpcDaemon::start(workspace, folder.path())?;
    let line = CommandLine {
        program,
        socket: folder.path().join("spdk.sock"),
        port: free_port()?,
        file: folder.path().join("aio.img"),
    };
    File::create(&line.file)?.set_len(64 << 20)?;
    for (words, part) in BUILD.iter().chain(SHOW) {
        line.expect(words, part)?;
    }
    for (words, part) in FAIL {
        line.expect_failure(words, part)?;
    }
    load(workspace, line.port)?;
    let io = line.run("bdev_get_iostat --names Malloc0")?;
    ensure!(!io.contains("\"num_read_ops\": 0,"), "no read of the host is counted: {io}");
    let saved = line.run("save_config")?;
    for words in DELETE {
        line.run(words)?;
    }
    line.expect("bdev_get_bdevs", "[]")?;
    let empty = line.run("save_config")?;
    ensure!(!empty.contains("_create"), "something is left: {empty}");
    let file = folder.path().join("saved.json");
    fs::write(&file, &saved)?;
    line.run(&format!("load_config -j {}", file.display()))?;
    let again = line.run("save_config")?;
    ensure!(again == saved, "the loaded config is another one:\n{again}\ninstead of\n{saved}");
    load(workspace, line.port)?;
    say!("{} calls of spdk-rpc", BUILD.len() + SHOW.len() + FAIL.len() + DELETE.len() + 6);
    drop(daemon);
    Ok(())
}

/// Returns a free port that no outgoing connection takes until the target is loaded again.
fn free_port() -> Result<u16> {
    let is_free = |port: &u16| TcpListener::bind(("127.0.0.1", *port)).is_ok();
    // Concurrent checks begin at ports of their own.
    let first = std::process::id() as usize % PORTS.len();
    let mut ports = PORTS.cycle().skip(first).take(PORTS.len());
    ports.find(is_free).context("no port is free on 127.0.0.1; end other daemons")
}

/// Reads from the first namespace as the host that the subsystem admits.
fn load(workspace: &Workspace, port: u16) -> Result<()> {
    let mut command = Command::new(workspace.release_binary("nvmeof-perf"));
    let target = format!("tcp://127.0.0.1:{port}/{NQN}");
    command.args(["run", "--connect", &target, "--hostnqn", HOST, "--nsid", "1"]);
    command.args(["--rw", "randread", "--bs", "4k", "--qd", "4", "--time", "1s"]);
    command.stdin(Stdio::null()).stdout(Stdio::null());
    run_checked(&mut command)
}

/// SPDK's command line.
struct CommandLine {
    program: PathBuf,
    socket: PathBuf,
    port: u16,
    file: PathBuf,
}

impl CommandLine {
    fn output(&self, words: &str) -> Result<Output> {
        let mut command = Command::new(&self.program);
        command.arg("-s").arg(&self.socket).args(split(&self.fill(words)));
        command.stdin(Stdio::null());
        command.output().with_context(|| format!("cannot run {}", show(&command)))
    }

    fn fill(&self, words: &str) -> String {
        let filled = words.replace("NQN", NQN).replace("HOST", HOST).replace("UUID", UUID);
        let filled = filled.replace("PORT", &self.port.to_string());
        filled.replace("FILE", &self.file.display().to_string())
    }

    /// Runs a call and returns its output.
    fn run(&self, words: &str) -> Result<String> {
        let output = self.output(words)?;
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        if !output.status.success() {
            let error = String::from_utf8_lossy(&output.stderr);
            bail!("spdk-rpc {words} failed ({}):\n{said}{error}", output.status);
        }
        Ok(said)
    }

    /// Runs a call whose output has to contain `part`.
    fn expect(&self, words: &str, part: &str) -> Result<()> {
        let (said, part) = (self.run(words)?, self.fill(part));
        ensure!(said.contains(&part), "spdk-rpc {words} does not print {part}:\n{said}");
        Ok(())
    }

    /// Runs a call that has to fail with a response that contains `part`.
    fn expect_failure(&self, words: &str, part: &str) -> Result<()> {
        let output = self.output(words)?;
        let said = String::from_utf8_lossy(&output.stdout);
        let failed = !output.status.success() && said.contains(part);
        ensure!(failed, "spdk-rpc {words} does not fail with {part} ({}):\n{said}", output.status);
        Ok(())
    }
}

/// Splits words at blanks outside of single quotes.
fn split(words: &str) -> Vec<String> {
    let parts = words.split('\'').enumerate();
    let split = parts.flat_map(|(index, part)| match index % 2 {
        0 => part.split_whitespace().map(str::to_owned).collect(),
        _ => vec![part.to_owned()],
    });
    split.collect()
}

/// A daemon without listeners, killed if it is left behind.
struct RpcDaemon(Child);

impl RpcDaemon {
    fn start(workspace: &Workspace, folder: &Path) -> Result<Self> {
        fs::write(folder.join("target.toml"), "[rpc]\nsocket = \"spdk.sock\"\n")?;
        let mut command = Command::new(workspace.release_binary("nvmeof-tgt"));
        command.args(["--config", "target.toml"]).current_dir(folder).env_remove("RUST_LOG");
        command.stdin(Stdio::null()).stdout(Stdio::piped());
        command.stderr(File::create(folder.join("log"))?);
        let mut daemon = Self(command.spawn().context("cannot start the daemon")?);
        let stdout = daemon.0.stdout.take().context("no standard output")?;
        let (sender, first_line) = mpsc::channel();
        // The thread ends with the daemon, whose standard output it reads.
        thread::spawn(move || {
            let mut line = String::new();
            let read = BufReader::new(stdout).read_line(&mut line);
            // After the timeout, the line is not needed.
            let _ = sender.send(read.map(|_| line));
        });
        let ready = first_line.recv_timeout(START_TIMEOUT);
        let ready = ready.context("the daemon does not start in time")??;
        let log = fs::read_to_string(folder.join("log"))?;
        ensure!(ready == "ready\n", "the daemon does not serve:\n{log}");
        Ok(daemon)
    }
}

impl Drop for RpcDaemon {
    fn drop(&mut self) {
        // If kill fails, it has ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_split_as_in_a_shell() {
        assert_eq!(split("a -b 'c d' e"), ["a", "-b", "c d", "e"]);
    }
}
