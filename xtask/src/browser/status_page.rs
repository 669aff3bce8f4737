//! The daemon's status page in a real browser.
//!
//! Under load its plots move, in light and in dark, and its console stays empty.

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result, ensure};
use nvmeof_console::say;
use nvmeof_workspace::checkout::Workspace;

use super::{Browser, SCHEMES};

const NQN: &str = "nqn.2026-11.io.nvmeof-tgt:page";
/// Virtual time of the page, in milliseconds: enough for more than ten requests.
const TIME: u32 = 14_000;
/// Number of plots, and their lines under a load of reads and writes.
const PLOTS: usize = 6;
const LINES: [&str; 8] =
    ["budget", "in flight", "waiting", "p50", "reads", "writes", "read p50", "read p99"];
/// Lines that must not stay at one height.
const MOVING: [&str; 2] = ["reads", "writes"];

/// A child process that ends with the test.
struct GuardedChild(Child);

impl Drop for GuardedChild {
    fn drop(&mut self) {
        // If kill fails, the process has ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Serves, loads and checks the page. Screenshots go into `shots`.
pub(super) fn run(
    workspace: &Workspace,
    browser: &Browser<'_>,
    folder: &Path,
    shots: &Path,
) -> Result<()> {
    // The port was free a moment ago; the daemon reports if another process took it.
    let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
    let (_daemon, target) = serve(workspace, folder, port)?;
    let page = format!("http://127.0.0.1:{port}/");
    let asked = [format!("--virtual-time-budget={TIME}")];
    let idle = browser.dom_of(&page, &asked)?;
    ensure!(
        idle.contains("No host has asked for anything yet."),
        "an idle daemon has hosts: {idle}"
    );
    let _load = load(workspace, &target)?;
    let dom = browser.dom_of(&page, &asked)?;
    let shown = looks_alive(&dom)?;
    let mut pictures = Vec::new();
    for (scheme, number) in SCHEMES {
        let file = shots.join(format!("status-page-{scheme}.png"));
        // As high as the page is; of two sizes the last one counts.
        let asked = [&asked[..], &["--window-size=1280,1150".to_owned()]].concat();
        browser.picture_of(&page, &file, number, &asked)?;
        pictures.push(fs::read(&file)?);
    }
    ensure!(pictures[0] != pictures[1], "the status page: light and dark look the same");
    say!("status page: {shown}; screenshots in {}", shots.display());
    Ok(())
}

/// Starts a daemon with two namespaces, a budget, and its API on loopback; returns the hosts'
/// address.
fn serve(workspace: &Workspace, folder: &Path, port: u16) -> Result<(GuardedChild, String)> {
    let config = folder.join("page.toml");
    let socket = folder.join("page.sock");
    let text = format!(
        "[api]\nsocket = \"{}\"\nlisten = [\"127.0.0.1:{port}\"]\n\
         [pacing]\npolicy = \"buffer-credit\"\nbudget = \"32MiB\"\n\
         [[listener]]\ntype = \"tcp\"\naddress = \"127.0.0.1\"\nport = 0\n\
         [[device]]\nname = \"null0\"\ntype = \"null\"\nsize = \"1GiB\"\n\
         [[device]]\nname = \"ram0\"\ntype = \"ram\"\nsize = \"64MiB\"\n\
         [[subsystem]]\nnqn = \"{NQN}\"\nallow-any-host = true\n\
         [[subsystem.namespace]]\nnsid = 1\ndevice = \"null0\"\n\
         [[subsystem.namespace]]\nnsid = 2\ndevice = \"ram0\"\nlimit = {{ iops = 100000 }}\n",
        socket.display()
    );
    fs::write(&config, text)?;
    let mut command = Command::new(workspace.release_binary("nvmeof-tgt"));
    command.arg("--config").arg(&config).stdin(Stdio::null()).stdout(Stdio::piped());
    let mut daemon = GuardedChild(command.spawn().context("cannot start the daemon")?);
    let stdout = daemon.0.stdout.take().context("no standard output")?;
    let mut ready = String::new();
    BufReader::new(stdout).read_line(&mut ready)?;
    let target = ready.trim().strip_prefix("ready ").context("the daemon does not serve")?;
    Ok((daemon, target.to_owned()))
}

/// Reads and writes for longer than the test runs.
fn load(workspace: &Workspace, target: &str) -> Result<GuardedChild> {
    let mut command = Command::new(workspace.release_binary("nvmeof-perf"));
    command.args(["run", "--connect", &format!("{target}/{NQN}"), "--rw", "randrw:70"]);
    command.args(["--bs", "64k", "--qd", "8", "--time", "10m"]);
    command.stdin(Stdio::null()).stdout(Stdio::null());
    Ok(GuardedChild(command.spawn().context("cannot start the load")?))
}

/// Checks the page's plots under load.
fn looks_alive(dom: &str) -> Result<String> {
    let plots = dom.matches("<svg").count();
    ensure!(plots == PLOTS, "{plots} plots are shown, {PLOTS} are to be");
    let state = between(dom, "role=\"status\">", "<").context("no state")?;
    ensure!(state.starts_with("live, "), "the page says: {state}");
    let mut points = 0;
    for series in LINES {
        let heights = heights(dom, series).with_context(|| format!("no line of {series}"))?;
        ensure!(heights.len() >= 8, "{series}: {} points", heights.len());
        let first = heights.first();
        let moves = heights.iter().any(|height| Some(height) != first);
        ensure!(moves || !MOVING.contains(&series), "{series} does not move");
        points += heights.len();
    }
    let rows =
        between(dom, "id=\"flows\">", "</tbody>").context("no flows")?.matches("<tr>").count();
    ensure!(rows == 2, "{rows} flows of one host and two namespaces");
    let tenants = between(dom, "id=\"tenants\">", "</tbody>").context("no tenants")?;
    ensure!(
        tenants.matches("<tr>").count() == 1 && tenants.contains("/ 100 k/s"),
        "the namespace with a limit is not shown: {tenants}"
    );
    Ok(format!("{plots} plots, {points} points, {rows} flows, a tenant"))
}

/// Returns the heights of a line's points, from the commands of its path.
fn heights<'a>(dom: &'a str, series: &str) -> Option<Vec<&'a str>> {
    let of = format!("data-series=\"{series}\"");
    let path = dom.split("<path ").skip(1).find(|path| {
        path.split('>').next().is_some_and(|element| element.contains(&of) && element.contains('M'))
    })?;
    let commands = between(path, " d=\"", "\"")?;
    let points = commands.split(['M', 'L']).filter(|point| !point.is_empty());
    Some(points.filter_map(|point| point.split(' ').nth(1)).collect())
}

fn between<'a>(text: &'a str, before: &str, after: &str) -> Option<&'a str> {
    text.split_once(before)?.1.split(after).next()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heights_are_read_from_paths() {
        let dom = "<svg><path class=\"line\" d=\"\" data-series=\"reads\"></path>\
            <path class=\"line\" d=\"M1.0 20.5L2.0 19.0M4.0 7.0\" data-series=\"reads\"></path></svg>";
        assert_eq!(heights(dom, "reads"), Some(vec!["20.5", "19.0", "7.0"]));
        assert_eq!(heights(dom, "writes"), None);
    }
}
