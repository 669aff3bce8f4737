//! Test of the remote sweep with real processes: target and two hosts are network namespaces of
//! this machine.
//!
//! The sweep reaches each host by the host's own sshd. During the sweep a host dies; in another run
//! the test sends Ctrl-C. Finally the target, too, runs on a machine behind ssh: it is measured,
//! it dies, Ctrl-C is sent, the sweep is killed.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use nvmeof_console::say;
use nvmeof_report::{Point, RunOrigin};
use nvmeof_workspace::checkout::{Workspace, output_of, run_checked};
use nvmeof_workspace::running_program;
use rustix::process::{Pid, Signal, kill_process};

use crate::points;
use crate::rows::{self, ResultRow};

/// Two points with a short runtime.
const PLAN: &str = r#"
name = "remote"
about = "Two hosts, reads and writes."
[target]
cores = 1
devices = { kind = "drive", count = 4 }
[load]
block-size = "16KiB"
reads = 70
time = "600ms"
ramp = "200ms"
[[host]]
initiator = "nvmeof-perf"
count = 2
[[job]]
name = "all"
queue-depth = 8
[vary]
target.pacing.policy = ["none", "adaptive"]
job.queue-depth = [4, 16]
target.set.limits.in-capsule = ["0", "8KiB"]
"#;
const POINTS: usize = 8;
/// The same for a remote target: the points are long enough to be interrupted while they run.
const FAR_PLAN: &str = r#"
name = "far"
about = "The target over ssh."
[target]
cores = 1
devices = { kind = "null", count = 2 }
[load]
block-size = "4KiB"
time = "800ms"
ramp = "200ms"
[[host]]
initiator = "nvmeof-perf"
count = 2
[[job]]
queue-depth = 4
[vary]
target.pacing.policy = ["none", "adaptive"]
"#;
const FAR_POINTS: usize = 2;
/// Time limit of every step; no step takes as long, however busy the machine is.
const LIMIT: Duration = Duration::from_secs(240);
const TARGET: &str = "10.77.7.1";
const PORT: &str = "2222";

/// Runs the test; leaves nothing behind.
pub(crate) fn run() -> Result<ExitCode> {
    let test = RemoteTest::set_up(&Workspace::find()?)?;
    test.goes_through()?;
    test.outlives_a_host()?;
    let mut test = test.ends_cleanly()?;
    test.starts_a_far_target()?;
    test.outlives_a_far_target()?;
    test.leaves_no_far_target()?;
    test.kills()?;
    Ok(ExitCode::SUCCESS)
}

struct RemoteTest {
    folder: tempfile::TempDir,
    /// Path of the running program.
    lab: PathBuf,
    tgt: PathBuf,
    perf: PathBuf,
    hosts: Vec<TestHost>,
    target: NetworkNamespace,
}

struct TestHost {
    address: String,
    /// Before the namespace, so that it is ended first.
    sshd: Child,
    namespace: NetworkNamespace,
}

/// A network namespace, removed when dropped.
struct NetworkNamespace(String);

impl RemoteTest {
    fn set_up(workspace: &Workspace) -> Result<Self> {
        let folder = tempfile::Builder::new().prefix("remote-test").tempdir()?;
        let id = std::process::id();
        let target = NetworkNamespace::make(&format!("nvt{id}t"))?;
        target.run(&["ip", "link", "add", "br0", "type", "bridge"])?;
        target.run(&["ip", "addr", "add", &format!("{TARGET}/24"), "dev", "br0"])?;
        target.run(&["ip", "link", "set", "br0", "up"])?;
        let path = |name: &str| folder.path().join(name);
        keys(folder.path())?;
        let mut hosts = Vec::new();
        for number in 1..=2 {
            let namespace = NetworkNamespace::make(&format!("nvt{id}h{number}"))?;
            let address = format!("10.77.7.{}", number + 1);
            let cable = format!("cable{number}");
            let peer = ["peer", "name", "eth0", "netns", &namespace.0];
            let add = ["ip", "link", "add", &cable, "type", "veth"];
            target.run(&[&add[..], &peer[..]].concat())?;
            target.run(&["ip", "link", "set", &cable, "master", "br0", "up"])?;
            namespace.run(&["ip", "addr", "add", &format!("{address}/24"), "dev", "eth0"])?;
            namespace.run(&["ip", "link", "set", "eth0", "up"])?;
            let sshd = sshd(&namespace, folder.path(), &address)?;
            hosts.push(TestHost { address, sshd, namespace });
        }
        fs::write(path("plan.toml"), PLAN)?;
        fs::write(path("far.toml"), FAR_PLAN)?;
        Ok(Self {
            lab: running_program::path(),
            tgt: workspace.release_binary("nvmeof-tgt"),
            perf: workspace.release_binary("nvmeof-perf"),
            hosts,
            target,
            folder,
        })
    }

    /// Starts the sweep with the command of a user, in the target's namespace.
    fn sweep(&self, results: &str, more: &[&str]) -> Result<RunningSweep> {
        let hosts = self.hosts.iter().map(|host| format!("--host=root@{}", host.address));
        let own = ["--plan=plan.toml".to_owned(), format!("--listen=tcp://{TARGET}")];
        let more = more.iter().map(|&word| word.to_owned());
        self.start(results, own.into_iter().chain(hosts).chain(more))
    }

    /// Starts the sweep with the target on the first host's machine, and both hosts of the plan on
    /// the second's.
    fn far_sweep(&self, results: &str) -> Result<RunningSweep> {
        let [target, host] = &self.hosts[..] else { bail!("there are two hosts") };
        let words = [
            "--plan=far.toml".to_owned(),
            format!("--listen=tcp://{}", target.address),
            format!("--target=root@{}", target.address),
            format!("--host=root@{}", host.address),
        ];
        self.start(results, words)
    }

    fn start(&self, results: &str, more: impl IntoIterator<Item = String>) -> Result<RunningSweep> {
        let path = |name: &str| self.folder.path().join(name).display().to_string();
        let mut args = vec![
            "sweep".to_owned(),
            "--where=remote".to_owned(),
            format!("--ssh-option=-F{}", path("ssh_config")),
            format!("--tgt={}", self.tgt.display()),
            format!("--perf={}", self.perf.display()),
            "--no-build".to_owned(),
            format!("--json={}", path(results)),
        ];
        args.extend(more);
        let mut command = self.target.command(&[&self.lab.display().to_string()]);
        command.args(&args).current_dir(self.folder.path());
        command.stdin(Stdio::null()).stdout(Stdio::null());
        let complaints = fs::File::create(path("stderr"))?;
        let child = command.stderr(complaints).spawn().context("cannot start the sweep")?;
        Ok(RunningSweep { child, results: path(results).into(), stderr: path("stderr").into() })
    }

    fn goes_through(&self) -> Result<()> {
        let page = self.folder.path().join("page.html");
        let csv = self.folder.path().join("rows.csv");
        let more = [format!("--html={}", page.display()), format!("--csv={}", csv.display())];
        let mut sweep = self.sweep("whole.jsonl", &[&more[0], &more[1]])?;
        let status = sweep.end()?;
        ensure!(status.success(), "the sweep failed ({status}): {}", sweep.complaints());
        let points = sweep.points()?;
        ensure!(points.len() == POINTS, "{} of {POINTS} points", points.len());
        for point in &points {
            check(point)?;
        }
        let rows = rows::read(&csv)?;
        ensure!(rows.len() == POINTS, "the CSV has not every point: {rows:?}");
        let is_remote = |row: &ResultRow| row.place.as_deref() == Some("remote");
        ensure!(rows.iter().all(is_remote), "the CSV does not say where: {rows:?}");
        ensure!(
            fs::read_to_string(page)?.contains("measured remotely"),
            "the page does not say where"
        );
        self.nothing_runs()?;
        say!("remote sweep: {POINTS} points on two hosts over ssh");
        Ok(())
    }

    /// The first point is kept, the others fail with the host's name, and the sweep runs to its
    /// end.
    fn outlives_a_host(&self) -> Result<()> {
        let mut sweep = self.sweep("dead.jsonl", &[])?;
        sweep.wait_for_points(1)?;
        let dead = &self.hosts[1];
        dead.namespace.kill_all()?;
        let status = sweep.end()?;
        ensure!(status.code() == Some(1), "a host died, and the sweep ended with {status}");
        let (points, complaints) = (sweep.points()?, sweep.complaints());
        ensure!(!points.is_empty() && points.len() < POINTS, "{} points", points.len());
        ensure!(
            complaints.contains(&dead.address)
                && complaints.contains("remote, target.pacing.policy"),
            "the dead host or the point is not named: {complaints}"
        );
        self.nothing_runs()?;
        say!("dead host: named, {} points kept, the sweep continued", points.len());
        Ok(())
    }

    /// Ctrl-C keeps the results, ends all processes, and `--resume` runs only the remaining points.
    fn ends_cleanly(mut self) -> Result<Self> {
        let address = self.hosts[1].address.clone();
        self.hosts[1].sshd = sshd(&self.hosts[1].namespace, self.folder.path(), &address)?;
        let mut sweep = self.sweep("part.jsonl", &[])?;
        sweep.wait_for_points(2)?;
        kill_process(Pid::from_child(&sweep.child), Signal::INT)?;
        let status = sweep.end()?;
        let complaints = sweep.complaints();
        ensure!(
            status.code() == Some(130),
            "interrupted, and it ended with {status}: {complaints}"
        );
        ensure!(complaints.contains("--resume"), "{complaints}");
        let kept = sweep.points()?;
        ensure!((2..POINTS).contains(&kept.len()), "{} points kept", kept.len());
        self.nothing_runs()?;
        let mut sweep = self.sweep("part.jsonl", &["--resume"])?;
        let status = sweep.end()?;
        ensure!(status.success(), "resumed, and it failed ({status}): {}", sweep.complaints());
        let points = sweep.points()?;
        ensure!(points.len() == POINTS && points[..kept.len()] == kept, "points were run again");
        self.nothing_runs()?;
        say!(
            "Ctrl-C: {} points kept, {} resumed, nothing left running",
            kept.len(),
            POINTS - kept.len()
        );
        Ok(self)
    }

    /// The target is started over ssh, measured, and stopped.
    fn starts_a_far_target(&mut self) -> Result<()> {
        let mut sweep = self.far_sweep("far.jsonl")?;
        let daemon = self.far_daemon(&mut sweep)?;
        let status = sweep.end()?;
        ensure!(status.success(), "the sweep failed ({status}): {}", sweep.complaints());
        let points = sweep.points()?;
        ensure!(points.len() == FAR_POINTS, "{} of {FAR_POINTS} points", points.len());
        points.iter().try_for_each(check)?;
        self.is_gone(daemon)?;
        say!("target over ssh: {FAR_POINTS} points, its daemon {} is gone", number(daemon));
        Ok(())
    }

    /// The running point fails with the target's name; the next one has a new daemon.
    fn outlives_a_far_target(&self) -> Result<()> {
        let mut sweep = self.far_sweep("far-dead.jsonl")?;
        let daemon = self.far_daemon(&mut sweep)?;
        kill_process(daemon, Signal::KILL)?;
        let status = sweep.end()?;
        let (points, complaints) = (sweep.points()?, sweep.complaints());
        ensure!(
            status.code() == Some(1),
            "the target died, and it ended with {status}: {complaints}"
        );
        ensure!(points.len() == FAR_POINTS - 1, "{} points are kept: {complaints}", points.len());
        ensure!(
            complaints.contains(&self.hosts[0].address)
                && complaints.contains("far, target.pacing"),
            "the target or the point is not named: {complaints}"
        );
        self.is_gone(daemon)?;
        say!("target over ssh died: named, {} point kept, nothing left running", points.len());
        Ok(())
    }

    fn leaves_no_far_target(&self) -> Result<()> {
        let mut sweep = self.far_sweep("far-part.jsonl")?;
        let daemon = self.far_daemon(&mut sweep)?;
        kill_process(Pid::from_child(&sweep.child), Signal::INT)?;
        let status = sweep.end()?;
        let complaints = sweep.complaints();
        ensure!(
            status.code() == Some(130),
            "interrupted, and it ended with {status}: {complaints}"
        );
        self.is_gone(daemon)?;
        say!("target over ssh, Ctrl-C: its daemon {} is gone", number(daemon));
        Ok(())
    }

    /// The sweep is killed and cannot stop the target: the target ends automatically.
    fn kills(&self) -> Result<()> {
        let mut sweep = self.far_sweep("far-killed.jsonl")?;
        let daemon = self.far_daemon(&mut sweep)?;
        kill_process(Pid::from_child(&sweep.child), Signal::KILL)?;
        sweep.end()?;
        self.is_gone(daemon)?;
        say!("target over ssh, sweep killed: its daemon {} is gone", number(daemon));
        Ok(())
    }

    /// Returns the daemon on the first host's machine, once it runs there.
    fn far_daemon(&self, sweep: &mut RunningSweep) -> Result<Pid> {
        let limit = Instant::now() + LIMIT;
        loop {
            let daemons = self.hosts[0].namespace.daemons();
            if let Some(pid) = daemons.first().and_then(|pid| Pid::from_raw(*pid)) {
                let here = self.target.daemons();
                ensure!(
                    here.is_empty(),
                    "a target runs on the machine of the sweep, too: {here:?}"
                );
                return Ok(pid);
            }
            if let Some(status) = sweep.child.try_wait()? {
                bail!("the sweep ended without a target ({status}): {}", sweep.complaints());
            }
            ensure!(Instant::now() < limit, "no target in time: {}", sweep.complaints());
            thread::sleep(Duration::from_millis(5));
        }
    }

    /// Waits until neither this process nor another one of the sweep is left.
    fn is_gone(&self, daemon: Pid) -> Result<()> {
        self.nothing_runs()?;
        let limit = Instant::now() + Duration::from_secs(30);
        // Another process can have this number by now.
        while self.hosts[0].namespace.pids().contains(&number(daemon)) {
            ensure!(Instant::now() < limit, "process {} is still there", number(daemon));
            thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    }

    /// Checks that neither target nor load generator is left.
    fn nothing_runs(&self) -> Result<()> {
        let limit = Instant::now() + Duration::from_secs(30);
        loop {
            let spaces = self.hosts.iter().map(|host| &host.namespace).chain([&self.target]);
            let left: Vec<_> = spaces.flat_map(NetworkNamespace::programs).collect();
            let left: Vec<_> = left.iter().filter(|name| name.starts_with("nvmeof-")).collect();
            if left.is_empty() {
                return Ok(());
            }
            ensure!(Instant::now() < limit, "still running: {left:?}");
            thread::sleep(Duration::from_millis(50));
        }
    }
}

impl Drop for RemoteTest {
    fn drop(&mut self) {
        for host in &mut self.hosts {
            // A shared connection of ssh can have outlived it.
            let _ = host.namespace.kill_all();
            let _ = host.sshd.wait();
        }
        let _ = self.target.kill_all();
    }
}

/// Checks that a point of the remote sweep has all its values.
fn check(point: &Point) -> Result<()> {
    let label = point.label();
    let has = |what: bool, name: &str| {
        ensure!(what, "{label}: {name} is missing: {point:?}");
        Ok(())
    };
    has(point.place == RunOrigin::Remote, "where it ran")?;
    has(point.total.kiops > 0.0 && point.total.gbps > 0.0, "the rate")?;
    has(
        point.hosts.len() == 2 && point.hosts.iter().all(|host| host.figures.kiops > 0.0),
        "a host",
    )?;
    let sum: f64 = point.hosts.iter().map(|host| host.figures.kiops).sum();
    has((sum / point.total.kiops - 1.0).abs() < 0.01, "the hosts' sum")?;
    let latency = point.total.latency_us;
    has(latency.p50 > 0.0 && latency.p50 <= latency.p99 && latency.p99 <= latency.max, "latency")?;
    has(point.wire_gbps.is_some_and(|gbps| gbps > 0.0), "wire bandwidth")?;
    has(point.stddev_gbps.is_some() && point.fairness.is_some(), "steadiness or fairness")?;
    has(point.buffers_max.is_some() && point.in_flight_mib.is_some(), "buffers in flight")?;
    has(point.target_cpus.is_some_and(|cpus| cpus > 0.0), "the target's CPU")?;
    has(point.host_cpus.is_some_and(|cpus| cpus > 0.0), "the hosts' CPU")?;
    has(point.network.is_some() && point.series.len() >= 5, "the network or the time series")
}

/// A running sweep; ended when dropped.
struct RunningSweep {
    child: Child,
    results: PathBuf,
    stderr: PathBuf,
}

impl RunningSweep {
    fn end(&mut self) -> Result<ExitStatus> {
        let limit = Instant::now() + LIMIT;
        loop {
            if let Some(status) = self.child.try_wait()? {
                return Ok(status);
            }
            ensure!(Instant::now() < limit, "the sweep does not end: {}", self.complaints());
            thread::sleep(Duration::from_millis(20));
        }
    }

    fn wait_for_points(&mut self, wanted: usize) -> Result<()> {
        let limit = Instant::now() + LIMIT;
        while self.points().map_or(0, |points| points.len()) < wanted {
            if let Some(status) = self.child.try_wait()? {
                bail!("the sweep ended early ({status}): {}", self.complaints());
            }
            ensure!(Instant::now() < limit, "no {wanted} points in time: {}", self.complaints());
            thread::sleep(Duration::from_millis(10));
        }
        Ok(())
    }

    fn points(&self) -> Result<Vec<Point>> {
        points::read(&self.results)
    }

    fn complaints(&self) -> String {
        fs::read_to_string(&self.stderr).unwrap_or_default()
    }
}

impl Drop for RunningSweep {
    fn drop(&mut self) {
        // Both fail if it has ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl NetworkNamespace {
    fn make(name: &str) -> Result<Self> {
        run_checked(Command::new("ip").args(["netns", "add", name]))
            .context("a network namespace needs root (or CAP_SYS_ADMIN)")?;
        let this = Self(name.to_owned());
        this.run(&["ip", "link", "set", "lo", "up"])?;
        Ok(this)
    }

    fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.0]).args(words);
        command
    }

    fn run(&self, words: &[&str]) -> Result<()> {
        run_checked(&mut self.command(words))
    }

    /// Returns the processes in the namespace.
    fn pids(&self) -> Vec<i32> {
        let listed = output_of(Command::new("ip").args(["netns", "pids", &self.0]));
        let listed = String::from_utf8(listed.unwrap_or_default()).unwrap_or_default();
        listed.lines().filter_map(|line| line.trim().parse().ok()).collect()
    }

    /// Returns their names.
    fn programs(&self) -> Vec<String> {
        let name = |pid: &i32| fs::read_to_string(format!("/proc/{pid}/comm")).ok();
        self.pids().iter().filter_map(name).collect()
    }

    /// Returns the daemons in the namespace, without the short-lived process that prints its
    /// version.
    fn daemons(&self) -> Vec<i32> {
        let serves = |pid: &i32| {
            let command = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            let mut words = command.split(|byte| *byte == 0);
            words.next().is_some_and(|program| program.ends_with(b"nvmeof-tgt"))
                && words.any(|word| word == b"--config")
        };
        self.pids().into_iter().filter(serves).collect()
    }

    /// Ends all processes in the namespace; the test started all of them.
    fn kill_all(&self) -> Result<()> {
        for pid in self.pids().into_iter().filter_map(Pid::from_raw) {
            // The process can have ended by now.
            let _ = kill_process(pid, Signal::KILL);
        }
        Ok(())
    }
}

impl Drop for NetworkNamespace {
    fn drop(&mut self) {
        // The kernel removes the rest of it with its last process.
        let _ = Command::new("ip").args(["netns", "del", &self.0]).status();
    }
}

fn number(process: Pid) -> i32 {
    process.as_raw_nonzero().get()
}

/// Writes the keys of both sides and ssh's config.
fn keys(folder: &Path) -> Result<()> {
    for name in ["host_key", "user_key"] {
        let mut command = Command::new("ssh-keygen");
        command.args(["-q", "-t", "ed25519", "-N", "", "-f"]).arg(folder.join(name));
        run_checked(&mut command)?;
    }
    fs::copy(folder.join("user_key.pub"), folder.join("authorized_keys"))?;
    let folder = folder.display();
    let config = format!(
        "Port {PORT}\nIdentityFile {folder}/user_key\nIdentitiesOnly yes\n\
         UserKnownHostsFile {folder}/known_hosts\nStrictHostKeyChecking accept-new\nLogLevel ERROR\n"
    );
    fs::write(format!("{folder}/ssh_config"), config)?;
    Ok(())
}

/// Starts a sshd in a namespace, which accepts the test's key.
fn sshd(namespace: &NetworkNamespace, folder: &Path, address: &str) -> Result<Child> {
    // sshd requires its folder, and checks its permissions.
    fs::create_dir_all("/run/sshd").context("sshd needs the folder /run/sshd")?;
    fs::set_permissions("/run/sshd", fs::Permissions::from_mode(0o755))?;
    let shown = folder.display();
    // A home without start files: the user's shell setup is not under test.
    let config = format!(
        "ListenAddress {address}:{PORT}\nHostKey {shown}/host_key\nPidFile none\nUsePAM no\n\
         AuthorizedKeysFile {shown}/authorized_keys\nPasswordAuthentication no\nStrictModes no\n\
         PermitRootLogin yes\nLogLevel ERROR\nSetEnv HOME={shown}\n"
    );
    let file = folder.join(format!("sshd-{address}"));
    fs::write(&file, config)?;
    let mut command = namespace.command(&["/usr/sbin/sshd", "-D", "-e", "-f"]);
    command.arg(&file).stdin(Stdio::null()).stdout(Stdio::null());
    let mut child = command.spawn().context("cannot start sshd")?;
    let limit = Instant::now() + LIMIT;
    // `ss` shows when it listens.
    loop {
        let listening = output_of(&mut namespace.command(&["ss", "-Hltn"]))?;
        if String::from_utf8_lossy(&listening).contains(&format!("{address}:{PORT}")) {
            return Ok(child);
        }
        if let Some(status) = child.try_wait()? {
            bail!("sshd ended ({status})");
        }
        ensure!(Instant::now() < limit, "sshd does not listen");
        thread::sleep(Duration::from_millis(20));
    }
}
