//! `cargo xtask bench memory`: memory per connection and per namespace, for docs/sizing.md.
//!
//! Each figure is a slope: the daemon's resident memory with many instances minus that with few,
//! divided by the difference. Reserved memory that is never touched costs nothing, so an idle
//! connection and one with a full queue have separate figures.

use std::fs;
use std::path::PathBuf;
use std::process::{Command, ExitCode};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use nvmeof_console::say;
use nvmeof_workspace::checkout::{Workspace, output_of, run_checked};
use serde_json::json;

use super::load::{self, Endpoint};
use super::server::{self, DaemonServer};
use crate::listen::ListenAddress;
use crate::output;

/// Hosts of a slope's two ends; each has an admin queue and an I/O queue.
const HOSTS: [usize; 2] = [4, 36];
/// Namespaces of a slope's two ends.
const NAMESPACES: [usize; 2] = [8, 264];
/// Bytes of a file that backs a namespace.
const FILE_BYTES: u64 = 1 << 20;
/// Time for hosts to connect, and time they then stay.
const SETTLE: Duration = Duration::from_secs(3);
/// Bytes of a write that fits into its capsule, and entries of a queue, by default.
const IN_CAPSULE: &str = "8k";
const DEPTH: &str = "128";

#[derive(Debug, clap::Args)]
#[command(after_help = "Example: cargo xtask bench memory")]
pub(crate) struct MemoryArgs {
    /// Use the existing release binaries
    #[arg(long)]
    no_build: bool,
    /// Write what was measured to this file as JSON
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// Medium of a namespace.
#[derive(Debug, Clone, Copy)]
enum Medium {
    Null,
    File,
}

pub(super) fn run(args: &MemoryArgs) -> Result<ExitCode> {
    let workspace = Workspace::find()?;
    if !args.no_build {
        let build = ["build", "--release", "--locked", "-p", "nvmeof-tgt", "-p", "nvmeof-perf"];
        run_checked(&mut workspace.cargo(build))?;
    }
    let bench =
        MemoryBench { folder: workspace.target().join("bench-memory"), workspace: &workspace };
    fs::create_dir_all(&bench.folder)?;
    let alone = bench.at_rest(1, Medium::Null)?;
    let idle = bench.slope(HOSTS, |hosts| bench.connected(hosts, false))? / 2.0;
    let full = bench.slope(HOSTS, |hosts| bench.connected(hosts, true))? - idle;
    let null = bench.slope(NAMESPACES, |count| bench.at_rest(count, Medium::Null))?;
    let file = bench.slope(NAMESPACES, |count| bench.at_rest(count, Medium::File))?;
    say!("machine: {}", super::machine());
    for (name, kib) in [
        ("the daemon, one reactor, one namespace", alone),
        ("a connection (queue) that is idle", idle),
        ("an I/O queue that is full of 8 KiB writes, 128 entries", full),
        ("a namespace on a null device", null),
        ("a namespace on a file, a reactor", file),
    ] {
        say!("{kib:>9.1} KiB  {name}");
    }
    if let Some(path) = &args.json {
        let text = json!({
            "schema_version": 1, "machine": super::machine(), "daemon_kib": alone,
            "idle_connection_kib": idle, "full_queue_kib": full,
            "null_namespace_kib": null, "file_namespace_kib": file,
        });
        output::write(path, &(serde_json::to_string_pretty(&text)? + "\n"))?;
    }
    Ok(ExitCode::SUCCESS)
}

struct MemoryBench<'a> {
    folder: PathBuf,
    workspace: &'a Workspace,
}

impl MemoryBench<'_> {
    /// Returns the cost of one more instance, in KiB.
    fn slope(&self, ends: [usize; 2], measure: impl Fn(usize) -> Result<f64>) -> Result<f64> {
        let [few, many] = ends;
        let difference = measure(many)? - measure(few)?;
        // Counts of a few hundred.
        let count = u32::try_from(many - few)?;
        Ok(difference / f64::from(count))
    }

    fn start(&self, namespaces: usize, medium: Medium) -> Result<DaemonServer> {
        let config = self.folder.join("target.toml");
        output::write(&config, &self.config(namespaces, medium)?)?;
        let mut command = Command::new(self.workspace.release_binary("nvmeof-tgt"));
        command.arg("--config").arg(&config);
        DaemonServer::start(command)
    }

    fn config(&self, namespaces: usize, medium: Medium) -> Result<String> {
        let mut text =
            format!("reactors = \"0\"\nlog = \"warn\"\n{}", ListenAddress::default().config());
        text.push_str(&format!("[api]\nsocket = \"{}\"\n", self.folder.join("api.sock").display()));
        text.push_str(&server::namespaces(u32::try_from(namespaces)?, |nsid| match medium {
            Medium::Null => Ok("type = \"null\"\nsize = \"1TiB\"\n".to_owned()),
            Medium::File => server::file_device(&self.folder, nsid, FILE_BYTES),
        })?);
        Ok(text)
    }

    /// Returns the daemon's memory without connections, in KiB.
    fn at_rest(&self, namespaces: usize, medium: Medium) -> Result<f64> {
        let server = self.start(namespaces, medium)?;
        let kib = server.process().rss_mib()? * 1024.0;
        server.stop()?;
        Ok(kib)
    }

    /// Returns its memory with `hosts` connections, in KiB; if `full`, they have filled their
    /// queues once.
    fn connected(&self, hosts: usize, full: bool) -> Result<f64> {
        let server = self.start(1, Medium::Null)?;
        let endpoint = server.endpoint();
        let mut command = Command::new(self.workspace.release_binary("nvmeof-perf"));
        command.args(if full {
            writing(&endpoint, hosts)
        } else {
            load::idle(&endpoint, hosts, SETTLE * 2)
        });
        let hosts = thread::spawn(move || output_of(&mut command));
        thread::sleep(SETTLE);
        let kib = server.process().rss_mib()? * 1024.0;
        match hosts.join() {
            Ok(result) => result.context("the hosts")?,
            Err(_) => bail!("the thread that watches the hosts panicked"),
        };
        server.stop()?;
        Ok(kib)
    }
}

/// Returns arguments for hosts that keep their queues full of writes.
fn writing(endpoint: &Endpoint, hosts: usize) -> Vec<String> {
    let mut args: Vec<String> =
        ["run", "--nsid", "1", "--rw", "randwrite", "--bs", IN_CAPSULE].map(str::to_owned).to_vec();
    for _ in 0..hosts {
        args.extend(["--connect".to_owned(), endpoint.address.clone()]);
    }
    args.extend(["--qd", DEPTH, "--time"].map(str::to_owned));
    args.push(format!("{}s", (SETTLE * 2).as_secs()));
    args
}
