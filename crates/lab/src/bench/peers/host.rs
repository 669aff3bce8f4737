//! The host: `nvmeof-perf`, or SPDK's `spdk_nvme_perf`. Its arguments for a line, and its report.

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use nvmeof_workspace::checkout::output_of;
use nvmeof_workspace::prerequisites::find_program;

use super::lines::{Access, PeerLine};
use crate::bench::load::LineSample;

/// Name of SPDK's load generator.
const SPDK_PERF: &str = "spdk_nvme_perf";

/// Choice of the host on the command line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum HostChoice {
    /// spdk_nvme_perf if it is on the path, otherwise nvmeof-perf
    Auto,
    /// Our own load generator
    #[value(name = "nvmeof-perf")]
    Own,
    /// SPDK's load generator
    #[value(name = "spdk_nvme_perf")]
    Spdk,
}

/// One subsystem of a running target.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct PeerAddress {
    address: SocketAddr,
    subnqn: String,
}

impl std::str::FromStr for PeerAddress {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let form = "write tcp://ADDR:PORT/SUBNQN, with a numeric address";
        let rest = text.strip_prefix("tcp://").ok_or(form)?;
        let (address, subnqn) = rest.split_once('/').ok_or(form)?;
        let address = address.parse().map_err(|error| format!("{address}: {error}; {form}"))?;
        if subnqn.is_empty() {
            return Err(format!("the subsystem's NQN is missing; {form}"));
        }
        Ok(Self { address, subnqn: subnqn.to_owned() })
    }
}

impl std::fmt::Display for PeerAddress {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "tcp://{}/{}", self.address, self.subnqn)
    }
}

/// The host that loads both targets.
#[derive(Debug)]
pub(super) enum Host {
    Own { program: PathBuf, json: PathBuf },
    Spdk { program: PathBuf },
}

impl Host {
    /// Finds the host. `own` is our load generator, and `folder` is for its reports.
    pub(super) fn find(choice: HostChoice, own: PathBuf, folder: &Path) -> Result<Self> {
        let spdk = find_program(SPDK_PERF);
        match (choice, spdk) {
            (HostChoice::Spdk | HostChoice::Auto, Some(program)) => Ok(Self::Spdk { program }),
            (HostChoice::Spdk, None) => {
                bail!("there is no {SPDK_PERF} on the path: build SPDK, and add its build/bin")
            }
            (HostChoice::Own | HostChoice::Auto, _) => {
                Ok(Self::Own { program: own, json: folder.join("point.json") })
            }
        }
    }

    pub(super) fn name(&self) -> &'static str {
        match self {
            Self::Own { .. } => "nvmeof-perf",
            Self::Spdk { .. } => SPDK_PERF,
        }
    }

    /// Returns why the host cannot produce the load of a line, if so.
    pub(super) fn lacks(&self, line: &PeerLine) -> Option<&'static str> {
        let is_own = matches!(self, Self::Own { .. });
        (is_own && !line.depth.is_multiple_of(line.queues))
            .then_some("nvmeof-perf keeps the same depth on each queue: use spdk_nvme_perf")
    }

    /// Runs a line to its end on this CPU. `cpu_time` returns the CPU time of the target so far.
    pub(super) fn run(
        &self,
        line: &PeerLine,
        (peer, nsid): (&PeerAddress, u32),
        (cpu, time): (usize, Duration),
        cpu_time: impl Fn() -> Result<Option<Duration>>,
    ) -> Result<LineSample> {
        let before = cpu_time()?;
        let mut command = Command::new("taskset");
        command.args(["--cpu-list", &cpu.to_string()]);
        let text = match self {
            Self::Own { program, json } => {
                command.arg(program).args(own_arguments(line, peer, nsid, time));
                output_of(command.arg("--json").arg(json))?;
                fs::read_to_string(json)
                    .with_context(|| format!("cannot read {}", json.display()))?
            }
            Self::Spdk { program } => {
                command.arg(program).args(spdk_arguments(line, peer, nsid, cpu, time));
                String::from_utf8_lossy(&output_of(&mut command)?).into_owned()
            }
        };
        let used = before.zip(cpu_time()?).map(|(before, after)| after.saturating_sub(before));
        match self {
            Self::Own { .. } => LineSample::read(&serde_json::from_str(&text)?, used),
            Self::Spdk { .. } => read_spdk(&text, line.bytes, time, used),
        }
    }
}

fn own_arguments(line: &PeerLine, peer: &PeerAddress, nsid: u32, time: Duration) -> Vec<String> {
    let rw = match line.access {
        Access::Read => "randread",
        Access::Write => "randwrite",
        Access::Mix => "randrw:70",
    };
    let mut args: Vec<String> = ["run", "--rw", rw].map(str::to_owned).to_vec();
    let values = [
        ("--connect", peer.to_string()),
        ("--nsid", nsid.to_string()),
        ("--bs", line.bytes.to_string()),
        ("--qd", (line.depth / line.queues).to_string()),
        ("--jobs", line.queues.to_string()),
        ("--time", format!("{}ms", time.as_millis())),
    ];
    args.extend(values.into_iter().flat_map(|(key, value)| [key.to_owned(), value]));
    if line.has_digests {
        args.extend(["--hdgst", "--ddgst"].map(str::to_owned));
    }
    args
}

fn spdk_arguments(
    line: &PeerLine,
    peer: &PeerAddress,
    nsid: u32,
    cpu: usize,
    time: Duration,
) -> Vec<String> {
    let rw = match line.access {
        Access::Read => "randread",
        Access::Write => "randwrite",
        Access::Mix => "randrw",
    };
    let family = if peer.address.is_ipv4() { "IPv4" } else { "IPv6" };
    let transport = format!(
        "trtype:tcp adrfam:{family} traddr:{} trsvcid:{} subnqn:{} ns:{nsid}",
        peer.address.ip(),
        peer.address.port(),
        peer.subnqn
    );
    let values = [
        ("-w", rw.to_owned()),
        ("-o", line.bytes.to_string()),
        ("-q", line.depth.to_string()),
        ("-P", line.queues.to_string()),
        // Whole seconds only.
        ("-t", time.as_secs().max(1).to_string()),
        ("-c", format!("[{cpu}]")),
        ("-r", transport),
    ];
    let mut args: Vec<String> =
        values.into_iter().flat_map(|(key, value)| [key.to_owned(), value]).collect();
    args.push("-L".to_owned());
    if line.access == Access::Mix {
        args.extend(["-M", "70"].map(str::to_owned));
    }
    if line.has_digests {
        args.extend(["-H", "-I"].map(str::to_owned));
    }
    args
}

/// Parses the report of spdk_nvme_perf with its latency summary (`-L`).
fn read_spdk(text: &str, bytes: u32, time: Duration, cpu: Option<Duration>) -> Result<LineSample> {
    let totals = text.lines().find_map(|line| line.trim_start().strip_prefix("Total"));
    let totals = totals.and_then(|rest| rest.trim_start().strip_prefix(':'));
    let iops = totals.and_then(|rest| rest.split_whitespace().next()?.parse::<f64>().ok());
    let iops = iops.with_context(|| format!("{SPDK_PERF} reports no total: {text}"))?;
    ensure!(iops > 0.0, "{SPDK_PERF} completed no I/O: {text}");
    let percentile = |of: &str| {
        let line = text.lines().find(|line| line.trim_start().starts_with(of));
        let value = line.and_then(|line| line.split_once(':')?.1.trim().strip_suffix("us"));
        value
            .and_then(|value| value.trim().parse::<f64>().ok())
            .with_context(|| format!("{SPDK_PERF} reports no {of}: {text}"))
    };
    Ok(LineSample {
        iops,
        gbps: iops * f64::from(bytes) * 8.0 / 1e9,
        p50: percentile("50.00000%")?,
        p99: percentile("99.00000%")?,
        cpu: cpu.map(|cpu| {
            let seconds = time.as_secs().max(1);
            cpu.as_secs_f64() / (iops * Duration::from_secs(seconds).as_secs_f64()) * 1e6
        }),
    })
}

#[cfg(test)]
mod tests {
    use super::super::lines::LINES;
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn addresses() {
        let peer: PeerAddress = "tcp://127.0.0.1:4420/nqn.x:y".parse().unwrap();
        assert_eq!(peer.to_string(), "tcp://127.0.0.1:4420/nqn.x:y");
        assert!("tcp://[::1]:4420/nqn.x:y".parse::<PeerAddress>().is_ok());
        for wrong in ["127.0.0.1:4420/n", "tcp://host:4420/n", "tcp://127.0.0.1:4420", "tcp://1/"] {
            assert!(wrong.parse::<PeerAddress>().unwrap_err().contains("SUBNQN"), "{wrong}");
        }
    }

    #[test]
    fn both_hosts_get_the_same_load() {
        let peer: PeerAddress = "tcp://127.0.0.1:4420/nqn.x:y".parse().unwrap();
        let line = LINES.iter().find(|line| line.queues == 16 && line.depth == 256).unwrap();
        let own = own_arguments(line, &peer, 3, SECOND).join(" ");
        assert!(own.contains("--qd 16 --jobs 16 --time 1000ms"), "{own}");
        let spdk = spdk_arguments(line, &peer, 3, 1, SECOND).join(" ");
        assert!(spdk.contains("-q 256 -P 16 -t 1 -c [1]"), "{spdk}");
        assert!(spdk.contains("trsvcid:4420 subnqn:nqn.x:y ns:3"), "{spdk}");
    }

    #[test]
    fn a_report_is_read_or_shown() {
        let text = "Device Information : IOPS MiB/s Average min max\n\
             TCP (...) NSID 1 from core 1: 100.00 0.39 9.6 6.2 2028.4\n\
             Total                       :     250000.50     976.56       9.65       6.22    2028.48\n\
             \nSummary latency data\n\
             \x20 50.00000% :     9.067us\n  99.00000% :    12.161us\n";
        let sample = read_spdk(text, 4096, SECOND, Some(Duration::from_millis(500))).unwrap();
        assert_eq!((sample.iops, sample.p50, sample.p99), (250_000.5, 9.067, 12.161));
        assert!((sample.cpu.unwrap() - 2.0).abs() < 1e-4);
        let error = read_spdk("starved", 4096, SECOND, None).unwrap_err().to_string();
        assert!(error.contains("starved"), "{error}");
    }
}
