//! `cargo xtask run`: from a fresh machine to a target that serves.

use std::io::{BufRead, BufReader};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, ChildStdout, Command, ExitCode, ExitStatus, Stdio};
use std::thread;

use anyhow::{Context, Result};
use nvmeof_console::{say, show};
use nvmeof_workspace::checkout::{Workspace, run_checked};
use rustix::process::{Pid, Signal, kill_process};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::setup;

/// The subsystem that configs/loopback.toml serves.
const DEMO_NQN: &str = "nqn.2026-11.io.nvmeof-tgt:demo";
/// Command of the load generator.
const PERF: &str = "cargo run --release -p nvmeof-perf --";

#[derive(Debug, clap::Args)]
#[command(after_help = "Example: cargo xtask run\n\
    Ctrl-C stops the target: the target drains commands in flight and exits with 0.")]
pub(crate) struct RunArgs {
    /// Configuration to serve
    #[arg(long, value_name = "FILE", default_value = "configs/loopback.toml")]
    config: String,
}

/// Serves until the daemon ends; returns its exit code.
pub(crate) fn run(args: &RunArgs) -> Result<ExitCode> {
    let workspace = Workspace::find()?;
    setup::ensure(&[setup::BUILD])?;
    say!("building nvmeof-tgt (release): minutes the first time, seconds afterwards");
    let build = ["build", "--release", "--locked", "-p", "nvmeof-tgt"];
    run_checked(&mut workspace.cargo(build))?;
    say!("serving {}", args.config);

    // Registered before the daemon starts: from here on no signal can end xtask and leave the
    // daemon running.
    let signals = Signals::new([SIGINT, SIGTERM, SIGHUP])?;
    let mut daemon = Command::new(workspace.release_binary("nvmeof-tgt"))
        .args(["--config", &args.config])
        .current_dir(workspace.root())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        // A separate process group: Ctrl-C reaches xtask alone, which forwards it exactly once.
        .process_group(0)
        .spawn()
        .context("cannot start the daemon that was just built")?;
    let pid = Pid::from_child(&daemon);
    forward(signals, pid);
    if let Some(stdout) = daemon.stdout.take() {
        relay(stdout);
    }
    let status = wait(&mut daemon)?;
    say!("nvmeof-tgt ended: {status}");
    Ok(exit_code(status))
}

/// Forwards every signal to the daemon.
fn forward(mut signals: Signals, daemon: Pid) {
    thread::spawn(move || {
        for number in signals.forever() {
            let signal = match number {
                SIGINT => Signal::INT,
                SIGHUP => Signal::HUP,
                _ => Signal::TERM,
            };
            // If the daemon has ended already, no process is left to notify.
            let _ = kill_process(daemon, signal);
        }
    });
}

/// Relays the daemon's output until the daemon closes it; after the ready line, prints the commands
/// to connect.
fn relay(stdout: ChildStdout) {
    for line in BufReader::new(stdout).lines().map_while(Result::ok) {
        say!("{line}");
        if let Some(addresses) = line.strip_prefix("ready ") {
            show(how_to_connect(addresses));
        }
    }
}

fn how_to_connect(addresses: &str) -> String {
    let Some((host, port)) = addresses.split_whitespace().find_map(tcp_address) else {
        return "no TCP listener: connect by the fabric named above\n".to_owned();
    };
    let plain = host.trim_matches(['[', ']']);
    let mut text = format!(
        "\n\
         From the Linux kernel's host (as root):\n  \
         modprobe nvme-tcp\n  \
         nvme discover -t tcp -a {plain} -s {port}\n  \
         nvme connect -t tcp -a {plain} -s {port} -n {DEMO_NQN}\n  \
         nvme disconnect -n {DEMO_NQN}\n"
    );
    if setup::find_program("nvme").is_none() {
        text.push_str(
            "  (the `nvme` command is in the package nvme-cli: apt-get install nvme-cli)\n",
        );
    }
    text.push_str(&format!(
        "From the load generator nvmeof-perf, which this builds first:\n  \
         {PERF} run --connect tcp://{host}:{port}/{DEMO_NQN} --nsid 1 --rw randread --bs 4k --qd 32 --time 10s\n  \
         {PERF} run --connect tcp://{host}:{port}/{DEMO_NQN} --nsid 1 --rw randwrite --bs 4k --qd 32 --time 10s --verify\n\
         Ctrl-C stops the target.\n\n"
    ));
    text
}

/// Splits `tcp://127.0.0.1:4420` or `tcp://[::1]:4420`; the brackets stay on the host.
fn tcp_address(word: &str) -> Option<(&str, &str)> {
    word.strip_prefix("tcp://")?.rsplit_once(':')
}

/// Waits for the daemon; continues after a signal, which was forwarded.
fn wait(daemon: &mut Child) -> Result<ExitStatus> {
    loop {
        match daemon.wait() {
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            outcome => return outcome.context("waiting for the daemon"),
        }
    }
}

/// Converts the daemon's exit code; death by a signal becomes 128 plus its number, as in shells.
fn exit_code(status: ExitStatus) -> ExitCode {
    let code = status.code().or_else(|| status.signal().map(|signal| 128 + signal));
    code.and_then(|code| u8::try_from(code).ok()).map_or(ExitCode::FAILURE, ExitCode::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_split_at_the_port() {
        assert_eq!(tcp_address("tcp://127.0.0.1:4420"), Some(("127.0.0.1", "4420")));
        assert_eq!(tcp_address("tcp://[::1]:4421"), Some(("[::1]", "4421")));
        assert_eq!(tcp_address("rdma://10.0.1.1:4420"), None);
    }

    #[test]
    fn the_daemons_end_is_ours() {
        assert_eq!(exit_code(ExitStatus::from_raw(0)), ExitCode::SUCCESS);
        assert_eq!(exit_code(ExitStatus::from_raw(2 << 8)), ExitCode::from(2));
        assert_eq!(exit_code(ExitStatus::from_raw(9)), ExitCode::from(137));
    }

    #[test]
    fn ipv6_hosts_lose_their_brackets_only_for_the_kernel() {
        let text = how_to_connect("tcp://[::1]:4420");
        assert!(text.contains("-a ::1 -s 4420"), "{text}");
        assert!(text.contains("tcp://[::1]:4420/nqn"), "{text}");
    }
}
