//! The points of the curves.

use std::collections::BTreeSet;
use std::fmt;
use std::path::Path;
use std::thread;

use anyhow::{Result, ensure};
use clap::ValueEnum;

use super::ScalingArgs;
use crate::bench::server;
use crate::listen::ListenAddress;

/// I/O queues of a controller that holds idle ones: the default of `limits.io-queues`.
pub(super) const QUEUES_PER_CONTROLLER: u32 = 32;
/// Connections of the active host, and as many before their Connect.
const ACTIVE_CONNECTIONS: u32 = 64;
/// Bytes of a file that backs a namespace.
const FILE_BYTES: u64 = 1 << 24;

/// The quantity that a curve varies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum Curve {
    /// I/O queues, all idle except one
    Connections,
    /// Namespaces on null devices
    NullNamespaces,
    /// Namespaces on files
    FileNamespaces,
    /// Reactors
    Reactors,
}

impl Curve {
    /// Returns its title, and the name of what it counts.
    pub(super) fn names(self) -> (&'static str, &'static str) {
        match self {
            Self::Connections => ("Connections, all idle except one", "I/O queues"),
            Self::NullNamespaces => ("Namespaces on null devices", "namespaces"),
            Self::FileNamespaces => ("Namespaces on files", "namespaces"),
            Self::Reactors => ("Reactors", "reactors"),
        }
    }
}

/// A daemon to measure.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ScalingPoint {
    pub(super) curve: Curve,
    pub(super) count: u32,
    /// CPUs of the reactors, one each.
    pub(super) target_cpus: Vec<usize>,
    /// CPUs of the hosts.
    pub(super) host_cpus: Vec<usize>,
    /// Jobs of the load, each with a queue.
    pub(super) jobs: usize,
}

impl fmt::Display for ScalingPoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let many = self.curve.names().1;
        let name = if self.count == 1 { many.trim_end_matches('s') } else { many };
        write!(f, "{} {name}", self.count)
    }
}

/// Returns the points of the chosen curves.
pub(super) fn chosen(args: &ScalingArgs) -> Result<Vec<ScalingPoint>> {
    let cpus = thread::available_parallelism().map_or(1, usize::from);
    ensure!(
        args.target_cpu != args.initiator_cpu,
        "--target-cpu and --initiator-cpu are both {}: each side needs a CPU of its own",
        args.target_cpu
    );
    let mut points = Vec::new();
    for &curve in Curve::value_variants() {
        if !args.curve.is_empty() && !args.curve.contains(&curve) {
            continue;
        }
        let counts = match curve {
            Curve::Connections => args.connections.clone(),
            Curve::NullNamespaces | Curve::FileNamespaces => args.namespaces.clone(),
            Curve::Reactors if args.reactors.is_empty() => default_reactors(cpus),
            Curve::Reactors => args.reactors.clone(),
        };
        let most = counts.iter().copied().max().unwrap_or(1);
        for count in counts {
            points.push(point(args, curve, (count, most), cpus)?);
        }
    }
    Ok(points)
}

fn point(
    args: &ScalingArgs,
    curve: Curve,
    (count, most): (u32, u32),
    cpus: usize,
) -> Result<ScalingPoint> {
    if curve != Curve::Reactors {
        let (target_cpus, host_cpus) = (vec![args.target_cpu], vec![args.initiator_cpu]);
        return Ok(ScalingPoint { curve, count, target_cpus, host_cpus, jobs: 1 });
    }
    let reactors = count as usize;
    ensure!(reactors <= cpus, "--reactors {reactors}: this machine has {cpus} CPUs");
    let hosts_from = reactors.min(cpus - 1);
    Ok(ScalingPoint {
        curve,
        count,
        target_cpus: (0..reactors).collect(),
        host_cpus: (hosts_from..cpus).collect(),
        // The same load at every point, with queues for every reactor.
        jobs: most as usize * 2,
    })
}

/// Returns the powers of two that leave a CPU for the hosts.
fn default_reactors(cpus: usize) -> Vec<u32> {
    let powers = (0..10).map(|power| 1 << power);
    powers.take_while(|&reactors| reactors == 1 || (reactors as usize) < cpus).collect()
}

impl ScalingPoint {
    /// Returns the number of idle I/O queues next to the active one.
    pub(super) fn idle_queues(&self) -> u32 {
        if self.curve == Curve::Connections { self.count - 1 } else { 0 }
    }

    /// Returns the number of connections that hold them: each controller has an admin queue, too.
    pub(super) fn idle_connections(&self) -> u32 {
        let queues = self.idle_queues();
        queues + queues.div_ceil(QUEUES_PER_CONTROLLER)
    }

    /// Returns the namespace to load: the last one.
    pub(super) fn nsid(&self) -> u32 {
        match self.curve {
            Curve::NullNamespaces | Curve::FileNamespaces => self.count,
            Curve::Connections | Curve::Reactors => 1,
        }
    }

    /// Writes the files of its namespaces to `folder`, and returns the daemon's config.
    pub(super) fn config(&self, folder: &Path) -> Result<String> {
        let reactors = list(&self.target_cpus);
        let connections = self.idle_connections() + ACTIVE_CONNECTIONS;
        let mut text = format!(
            "reactors = \"{reactors}\"\nlog = \"warn\"\n[limits]\nconnections = {connections}\n{}",
            ListenAddress::default().config()
        );
        text.push_str(&server::namespaces(self.nsid(), |nsid| {
            let device = match self.curve {
                Curve::FileNamespaces => server::file_device(folder, nsid, FILE_BYTES)?,
                _ => "type = \"null\"\nsize = \"1TiB\"\n".to_owned(),
            };
            Ok(device + "block-size = 4096\n")
        })?);
        Ok(text)
    }
}

/// Returns the CPUs of all points, each once.
pub(super) fn cpus(points: &[ScalingPoint]) -> Vec<usize> {
    let all = points.iter().flat_map(|point| point.target_cpus.iter().chain(&point.host_cpus));
    all.copied().collect::<BTreeSet<_>>().into_iter().collect()
}

/// Returns numbers as a list for the daemon, `taskset` and `--cpus`.
pub(super) fn list(numbers: &[usize]) -> String {
    numbers.iter().map(usize::to_string).collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Line {
        #[command(flatten)]
        args: ScalingArgs,
    }

    fn of(line: &str) -> Vec<ScalingPoint> {
        let words = std::iter::once("bench").chain(line.split_whitespace());
        let line = Line::try_parse_from(words).expect("it parses");
        chosen(&line.args).expect("this machine can")
    }

    #[test]
    fn connections_are_idle_except_one_and_controllers_have_admin_queues() {
        let points = of("--curve connections --connections 1,34");
        assert_eq!(points.iter().map(ScalingPoint::idle_queues).collect::<Vec<_>>(), [0, 33]);
        assert_eq!(points.iter().map(ScalingPoint::idle_connections).collect::<Vec<_>>(), [0, 35]);
        let config = points[1].config(Path::new("/nowhere")).expect("no files");
        assert!(config.contains("connections = 99\n"), "{config}");
        assert_eq!(config.matches("[[device]]").count(), 1, "{config}");
    }

    #[test]
    fn the_last_of_all_namespaces_is_loaded() {
        let folder = tempfile::tempdir().expect("a folder");
        for point in of("--curve null-namespaces,file-namespaces --namespaces 3") {
            let config = point.config(folder.path()).expect("a config");
            assert_eq!((config.matches("nsid = ").count(), point.nsid()), (3, 3), "{config}");
        }
        assert_eq!(std::fs::read_dir(folder.path()).expect("the folder").count(), 3);
    }

    #[test]
    fn reactors_leave_a_cpu_for_hosts_by_default() {
        assert_eq!(default_reactors(2), [1]);
        assert_eq!(default_reactors(16), [1, 2, 4, 8]);
        let points = of("--curve reactors --reactors 1");
        assert_eq!((&points[0].target_cpus, points[0].jobs), (&vec![0], 2));
        let point = |target_cpus: &[usize], host_cpus: &[usize]| ScalingPoint {
            target_cpus: target_cpus.to_vec(),
            host_cpus: host_cpus.to_vec(),
            ..points[0].clone()
        };
        assert_eq!(cpus(&[point(&[0, 1], &[2, 3]), point(&[0], &[7])]), [0, 1, 2, 3, 7]);
    }
}
