//! The daemon as a process, and the kernel's statistics of a process.

use std::fs;
use std::io::{BufRead, BufReader, Lines};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use rustix::process::{Pid, Signal, kill_process};

use super::load::Endpoint;
use crate::listen::ListenAddress;

pub(super) const NQN: &str = "nqn.2026-11.io.nvmeof-tgt:bench";

/// Returns the daemon's config: one reactor, and defaults for the rest.
pub(super) fn config(cpu: usize, listen: ListenAddress) -> String {
    let listener = listen.config();
    format!(
        "reactors = \"{cpu}\"\n\
         log = \"warn\"\n\
         {listener}\
         [[device]]\nname = \"null0\"\ntype = \"null\"\nsize = \"1TiB\"\nblock-size = 4096\n\
         [[device]]\nname = \"ram0\"\ntype = \"ram\"\nsize = \"256MiB\"\nblock-size = 4096\n\
         [[subsystem]]\nnqn = \"{NQN}\"\nallow-any-host = true\n\
         [[subsystem.namespace]]\nnsid = 1\ndevice = \"null0\"\n\
         [[subsystem.namespace]]\nnsid = 2\ndevice = \"ram0\"\n"
    )
}

/// Returns a subsystem of namespaces from 1 on, each with its own device: `device` returns the
/// config of one.
pub(super) fn namespaces(count: u32, device: impl Fn(u32) -> Result<String>) -> Result<String> {
    let mut devices = String::new();
    let mut subsystem = format!("[[subsystem]]\nnqn = \"{NQN}\"\nallow-any-host = true\n");
    for nsid in 1..=count {
        devices.push_str(&format!("[[device]]\nname = \"d{nsid}\"\n{}", device(nsid)?));
        subsystem
            .push_str(&format!("[[subsystem.namespace]]\nnsid = {nsid}\ndevice = \"d{nsid}\"\n"));
    }
    Ok(devices + &subsystem)
}

/// Makes a file without data for a namespace, and returns the config of a device on it.
pub(super) fn file_device(folder: &Path, nsid: u32, bytes: u64) -> Result<String> {
    let path = folder.join(format!("{nsid}.raw"));
    fs::File::create(&path)
        .and_then(|file| file.set_len(bytes))
        .with_context(|| format!("cannot make {}", path.display()))?;
    Ok(format!("type = \"file\"\npath = \"{}\"\n", path.display()))
}

/// A process of this program; killed when dropped.
#[derive(Debug)]
pub(super) struct KilledChild(pub(super) Child);

impl Drop for KilledChild {
    fn drop(&mut self) {
        // After a `wait` the process no longer exists; both calls detect that.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A running daemon; killed when dropped.
#[derive(Debug)]
pub(super) struct DaemonServer {
    child: KilledChild,
    /// Kept open, so that the daemon can always write.
    _output: Lines<BufReader<ChildStdout>>,
    address: String,
    ready_after: Duration,
}

impl DaemonServer {
    /// Starts the daemon and waits for its ready line.
    pub(super) fn start(mut command: Command) -> Result<Self> {
        let begun = Instant::now();
        let child = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .context("cannot start the daemon")?;
        let mut child = KilledChild(child);
        let stdout = child.0.stdout.take().context("the daemon has no standard output")?;
        let mut output = BufReader::new(stdout).lines();
        let address = loop {
            let Some(line) = output.next().transpose()? else {
                let status = child.0.wait()?;
                bail!("the daemon ended before it was ready ({status})");
            };
            if let Some(addresses) = line.strip_prefix("ready ") {
                break addresses.split_whitespace().next().unwrap_or_default().to_owned();
            }
        };
        Ok(Self { child, _output: output, address, ready_after: begun.elapsed() })
    }

    pub(super) fn endpoint(&self) -> Endpoint {
        Endpoint { address: format!("{}/{NQN}", self.address), null: 1, ram: 2 }
    }

    pub(super) fn process(&self) -> TargetProcess {
        TargetProcess(self.child.0.id())
    }

    /// Returns the time from the fork to the line that says `ready`.
    pub(super) fn ready_after(&self) -> Duration {
        self.ready_after
    }

    /// Stops it and waits for its end.
    pub(super) fn stop(mut self) -> Result<()> {
        kill_process(Pid::from_child(&self.child.0), Signal::TERM)
            .context("the daemon ended while it was measured")?;
        let status = self.child.0.wait()?;
        ensure!(status.success(), "the daemon ended badly: {status}");
        Ok(())
    }
}

/// Any process of this machine.
#[derive(Debug, Clone, Copy)]
pub(super) struct TargetProcess(pub(super) u32);

impl TargetProcess {
    /// Returns its identifier, for signals.
    pub(super) fn pid(self) -> Result<Pid> {
        let raw = i32::try_from(self.0).ok().and_then(Pid::from_raw);
        raw.with_context(|| format!("{} is no process identifier", self.0))
    }

    /// Returns the CPU time of all its live threads, to the nanosecond.
    ///
    /// `/proc/PID/stat` has a resolution of only 10 ms.
    pub(super) fn cpu(self) -> Result<Duration> {
        let folder = format!("/proc/{}/task", self.0);
        let mut nanos = 0;
        for task in fs::read_dir(&folder).with_context(|| format!("no process {}", self.0))? {
            let path = task?.path().join("schedstat");
            // A thread can end after the listing.
            let Ok(text) = fs::read_to_string(&path) else { continue };
            let spent = text.split_whitespace().next().and_then(|first| first.parse::<u64>().ok());
            nanos += spent.with_context(|| format!("{}: not understood", path.display()))?;
        }
        ensure!(nanos > 0, "{folder}: the kernel counts no CPU time (CONFIG_SCHED_INFO)");
        Ok(Duration::from_nanos(nanos))
    }

    /// Returns its resident memory, in MiB.
    pub(super) fn rss_mib(self) -> Result<f64> {
        let path = format!("/proc/{}/status", self.0);
        let text = fs::read_to_string(&path).with_context(|| format!("cannot read {path}"))?;
        text.lines()
            .find_map(|line| line.strip_prefix("VmRSS:")?.split_whitespace().next()?.parse().ok())
            .map(|kib: f64| kib / 1024.0)
            .with_context(|| format!("{path}: no VmRSS"))
    }
}

/// Time of CPUs so far, in ticks.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct CpuTime {
    all: f64,
    /// Time in which they were ready to run, but the hypervisor ran another task.
    stolen: f64,
}

impl CpuTime {
    /// Returns the percentage of the time since `before`.
    pub(super) fn stolen_since(self, before: Self) -> f64 {
        (self.stolen - before.stolen) / (self.all - before.all).max(1.0) * 100.0
    }
}

/// Returns the time of these CPUs since the machine started.
pub(super) fn time_of(cpus: impl IntoIterator<Item = usize>) -> Result<CpuTime> {
    let text = fs::read_to_string("/proc/stat").context("cannot read /proc/stat")?;
    sum(&text, cpus)
}

fn sum(stat: &str, cpus: impl IntoIterator<Item = usize>) -> Result<CpuTime> {
    let mut sum = CpuTime::default();
    for cpu in cpus {
        let name = format!("cpu{cpu} ");
        let line = stat.lines().find_map(|line| line.strip_prefix(&name));
        let line = line.with_context(|| format!("this machine has no CPU {cpu}"))?;
        let ticks = line.split_whitespace().map(str::parse).collect::<Result<Vec<f64>, _>>()?;
        // user nice system idle iowait irq softirq steal; guest time is part of user's.
        sum.all += ticks.iter().take(8).sum::<f64>();
        sum.stolen += ticks.get(7).copied().unwrap_or(0.0);
    }
    Ok(sum)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stolen_time_is_a_share_of_all_time() {
        let stat = "cpu  9 9 9 9 9 9 9 9 9 9\ncpu0 1 2 3 4 5 6 7 8 9 9\ncpu1 1 1 1 1 1 1 1 2 1 1\n";
        let time = sum(stat, [0, 1]).expect("both are there");
        assert_eq!(time, CpuTime { all: 45.0, stolen: 10.0 });
        let later = CpuTime { all: 145.0, stolen: 35.0 };
        assert_eq!(later.stolen_since(time), 25.0);
        let error = sum(stat, [0, 7]).expect_err("there is no CPU 7");
        assert!(error.to_string().contains("CPU 7"), "{error}");
    }

    #[test]
    fn this_process_has_memory_and_has_run() {
        let me = TargetProcess(std::process::id());
        assert!(me.cpu().expect("it runs") > Duration::ZERO);
        assert!(me.rss_mib().expect("it has memory") > 0.1);
    }
}
