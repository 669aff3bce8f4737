//! Plan of the measurements: policies, devices and depths, their order, and their setup.

use std::fmt;

use crate::bench::server::NQN;
use crate::listen::ListenAddress;

/// Bytes of an I/O.
pub(super) const BLOCK: u64 = 128 << 10;
/// Seed of the addresses that are read.
pub(super) const SEED: u64 = 1;
/// Largest I/O of the daemon: hosts can send it without a split.
const MAX_TRANSFER: u64 = 1 << 20;
/// Size of a namespace; `load::fill` writes as much.
const SIZE: &str = "256MiB";
/// Minimum memory for data in flight. It is twice the data of the deepest queue, and never the
/// limit here.
const BUFFER_MEMORY_LEAST: u64 = 256 << 20;
/// Delay that the slow device adds to a read.
pub(super) const DELAY: &str = "1ms";
/// Connections in addition to those of the measured jobs.
///
/// These are the admin queues, the connections of earlier jobs that are not closed yet, and those
/// that fill.
const MORE_CONNECTIONS: u32 = 16;

/// A pacing policy with its parameters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum BenchPolicy {
    None,
    /// This number of buffers of [`BLOCK`] bytes.
    BufferCredit(u64),
    Adaptive,
}

/// Policies in the order of tables and legends.
pub(super) const POLICIES: &[BenchPolicy] = &[
    BenchPolicy::None,
    BenchPolicy::BufferCredit(16),
    BenchPolicy::BufferCredit(96),
    BenchPolicy::BufferCredit(1024),
    BenchPolicy::Adaptive,
];

impl BenchPolicy {
    /// Returns the section of the daemon's config.
    ///
    /// Policies change only this section, so that the daemon can change from one to the other.
    pub(super) fn config(self) -> String {
        let keys = match self {
            Self::None => "policy = \"none\"\n".to_owned(),
            Self::BufferCredit(buffers) => {
                format!("policy = \"buffer-credit\"\nbudget = {}\n", buffers * BLOCK)
            }
            Self::Adaptive => "policy = \"adaptive\"\n".to_owned(),
        };
        format!("[pacing]\n{keys}")
    }

    /// Returns the buffers of the pool, if it is one.
    pub(super) fn buffers(self) -> Option<u64> {
        match self {
            Self::BufferCredit(buffers) => Some(buffers),
            Self::None | Self::Adaptive => None,
        }
    }
}

impl fmt::Display for BenchPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::None => f.pad("none"),
            Self::BufferCredit(buffers) => f.pad(&format!("buffer-credit {buffers}")),
            Self::Adaptive => f.pad("adaptive"),
        }
    }
}

/// Device to read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum BenchDevice {
    /// A namespace in memory
    Ram,
    /// The same behind 1 ms
    Delay,
    /// One of each, half of the depth on each
    Mix,
}

pub(super) const DEVICES: &[BenchDevice] =
    &[BenchDevice::Ram, BenchDevice::Delay, BenchDevice::Mix];

/// Namespaces of the daemon, for every device: the fast one and the slow one. Each is written once
/// before.
pub(super) const NSIDS: [u32; 2] = [1, 2];

impl BenchDevice {
    /// Returns the number of namespaces that are read.
    pub(super) fn namespaces(self) -> u32 {
        match self {
            Self::Ram | Self::Delay => 1,
            Self::Mix => 2,
        }
    }

    /// Returns their IDs, in the load generator's form.
    fn nsids(self) -> String {
        let [fast, slow] = NSIDS;
        match self {
            Self::Ram => fast.to_string(),
            Self::Delay => slow.to_string(),
            Self::Mix => format!("{fast},{slow}"),
        }
    }

    pub(super) fn about(self) -> &'static str {
        match self {
            Self::Ram => "a namespace in memory",
            Self::Delay => "a namespace in memory behind 1 ms",
            Self::Mix => "one in memory and one behind 1 ms, half of the depth on each",
        }
    }

    /// Returns whether the fast one is among them.
    fn reads_fast(self) -> bool {
        matches!(self, Self::Ram | Self::Mix)
    }

    /// Returns the number of slow namespaces that are read.
    pub(super) fn slow(self) -> u32 {
        match self {
            Self::Ram => 0,
            Self::Delay | Self::Mix => 1,
        }
    }
}

impl fmt::Display for BenchDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Ram => "ram",
            Self::Delay => "delay",
            Self::Mix => "mix",
        })
    }
}

/// One run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct MeasuredStep {
    pub(super) policy: BenchPolicy,
    pub(super) device: BenchDevice,
    /// I/Os outstanding, over all jobs and namespaces.
    pub(super) depth: u32,
}

/// Measurements under a policy before the next policy's turn.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct PolicyRun {
    pub(super) policy: BenchPolicy,
    pub(super) steps: Vec<MeasuredStep>,
}

/// Measurements that are compared with one another: consecutive runs of the policies.
pub(super) type ComparedRuns = Vec<PolicyRun>;

/// Returns everything once at one depth.
///
/// The first policy changes from round to round, so that other load of the machine affects all
/// policies alike. A fast namespace alone is measured directly before or after the fast one next to
/// a slow one.
pub(super) fn round(number: u32, devices: &[BenchDevice], depth: u32) -> Vec<ComparedRuns> {
    let number = usize::try_from(number).unwrap_or(0);
    let mut policies = POLICIES.to_vec();
    policies.rotate_left(number % POLICIES.len());
    // No policy always follows the same one.
    if number / POLICIES.len() % 2 == 1 {
        policies.reverse();
    }
    let with = |is_fast_read: bool| -> Vec<BenchDevice> {
        devices.iter().copied().filter(|device| device.reads_fast() == is_fast_read).collect()
    };
    let comparison = |devices: Vec<BenchDevice>| {
        let steps =
            |policy| devices.iter().map(move |&device| MeasuredStep { policy, device, depth });
        let run = |&policy: &BenchPolicy| PolicyRun { policy, steps: steps(policy).collect() };
        policies.iter().map(run).collect()
    };
    [with(true), with(false)]
        .into_iter()
        .filter(|devices| !devices.is_empty())
        .map(comparison)
        .collect()
}

impl MeasuredStep {
    /// Returns `--qd` of the load generator, if the depth is divisible among the jobs.
    pub(super) fn qd(&self, jobs: u32) -> Option<u32> {
        let lanes = jobs * self.device.namespaces();
        (self.depth >= lanes && self.depth.is_multiple_of(lanes)).then(|| self.depth / lanes)
    }

    /// Returns the I/Os outstanding on each namespace, in the form of the load generator's turns;
    /// `None` if the depth is not divisible.
    pub(super) fn depths(&self, jobs: u32) -> Option<String> {
        let qd = self.qd(jobs)?;
        let [fast, slow] = NSIDS;
        let [on_fast, on_slow] = match self.device {
            BenchDevice::Ram => [qd, 0],
            BenchDevice::Delay => [0, qd],
            BenchDevice::Mix => [qd, qd],
        };
        Some(format!("{fast}={on_fast} {slow}={on_slow}"))
    }

    /// Returns whether it reads this namespace.
    pub(super) fn reads(&self, nsid: u32) -> bool {
        match self.device {
            BenchDevice::Ram => nsid == NSIDS[0],
            BenchDevice::Delay => nsid == NSIDS[1],
            BenchDevice::Mix => true,
        }
    }

    /// Returns the arguments that measure it, without the times; `None` if the depth is not
    /// divisible.
    pub(super) fn arguments(&self, address: &str, jobs: u32) -> Option<Vec<String>> {
        let (qd, jobs) = (self.qd(jobs)?.to_string(), jobs.to_string());
        let (block, nsids) = (BLOCK.to_string(), self.device.nsids());
        let args = [
            "run",
            "--connect",
            address,
            "--rw",
            "randread",
            "--nsid",
            &nsids,
            "--bs",
            &block,
            "--qd",
            &qd,
            "--jobs",
        ];
        Some(args.into_iter().chain([jobs.as_str()]).map(str::to_owned).collect())
    }
}

impl fmt::Display for MeasuredStep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} at depth {} with {}", self.device, self.depth, self.policy)
    }
}

/// Returns the arguments of a load that lasts through all turns of a depth.
///
/// It runs on both namespaces, with at most `depth` I/Os outstanding on each.
pub(super) fn turns_of(address: &str, depth: u32, jobs: u32) -> Vec<String> {
    let (qd, jobs) = ((depth / jobs).to_string(), jobs.to_string());
    let (block, nsids, seed) = (BLOCK.to_string(), BenchDevice::Mix.nsids(), SEED.to_string());
    let args = ["run", "--connect", address, "--rw", "randread", "--nsid", &nsids, "--seed", &seed];
    let more = ["--bs", &block, "--qd", &qd, "--jobs", &jobs];
    args.into_iter().chain(more).map(str::to_owned).collect()
}

/// A daemon for all runs of a depth.
#[derive(Debug, Clone, Copy)]
pub(super) struct DaemonConfig {
    pub(super) depth: u32,
    pub(super) jobs: u32,
    pub(super) cpu: usize,
    pub(super) listen: ListenAddress,
}

impl DaemonConfig {
    /// Returns its config without a policy: one reactor, and limits that leave the bytes in flight
    /// to the policy.
    pub(super) fn config(&self) -> String {
        let Self { depth, jobs, cpu, listen } = *self;
        // The load generator starts with this number for each of the two namespaces, until its
        // first turn.
        let queue_depth = (2 * depth.div_ceil(jobs)).next_power_of_two().clamp(128, 4096);
        // The largest pool has to fit, even if it is larger than the depth.
        let most = POLICIES.iter().filter_map(|policy| policy.buffers()).max().unwrap_or(0);
        let memory = (2 * BLOCK * most.max(depth.into())).max(BUFFER_MEMORY_LEAST);
        let connections = 4 * jobs + MORE_CONNECTIONS;
        let ram = |name: &str| {
            format!(
                "[[device]]\nname = \"{name}\"\ntype = \"ram\"\nsize = \"{SIZE}\"\nblock-size = 4096\n"
            )
        };
        let [fast, slow] = NSIDS;
        format!(
            "reactors = \"{cpu}\"\nlog = \"warn\"\n\
             [limits]\nconnections = {connections}\nqueue-depth = {queue_depth}\n\
             max-transfer = {MAX_TRANSFER}\nbuffer-memory = {memory}\n\
             {}{}{}\
             [[device]]\nname = \"slow\"\ntype = \"delay\"\nbase = \"below\"\nread-latency = \"{DELAY}\"\n\
             [[subsystem]]\nnqn = \"{NQN}\"\nallow-any-host = true\n\
             [[subsystem.namespace]]\nnsid = {fast}\ndevice = \"fast\"\n\
             [[subsystem.namespace]]\nnsid = {slow}\ndevice = \"slow\"\n",
            listen.config(),
            ram("fast"),
            ram("below"),
        )
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    const DEPTHS: &[u32] = &[32, 64, 256, 1024, 2048];

    fn steps(number: u32, devices: &[BenchDevice], depth: u32) -> Vec<MeasuredStep> {
        let runs = round(number, devices, depth).into_iter().flatten();
        runs.flat_map(|run| run.steps).collect()
    }

    #[test]
    fn every_round_has_every_point_once_and_compares_like_with_like() {
        let names = |steps: &[MeasuredStep]| {
            steps.iter().map(MeasuredStep::to_string).collect::<HashSet<_>>()
        };
        let first = steps(0, DEVICES, 64);
        assert_eq!(first.len(), POLICIES.len() * DEVICES.len());
        assert_eq!(names(&first).len(), first.len());
        for number in 1..12 {
            assert_eq!(names(&steps(number, DEVICES, 64)), names(&first), "round {number}");
            for comparison in round(number, DEVICES, 64) {
                let policies: HashSet<_> =
                    comparison.iter().map(|run| run.policy.to_string()).collect();
                assert_eq!(policies.len(), POLICIES.len(), "round {number}");
                let devices = |run: &PolicyRun| -> Vec<_> {
                    assert!(run.steps.iter().all(|step| step.policy == run.policy));
                    run.steps.iter().map(|step| step.device).collect()
                };
                let first = devices(&comparison[0]);
                assert!(comparison.iter().all(|run| devices(run) == first), "round {number}");
            }
        }
        assert_eq!(round(0, &[BenchDevice::Delay], 64).len(), 1);
    }

    #[test]
    fn what_the_fast_one_gets_alone_is_measured_beside_what_it_gets_next_to_a_slow_one() {
        for number in 0..4 {
            let comparisons = round(number, DEVICES, 64);
            let devices: Vec<_> = comparisons[0][0].steps.iter().map(|step| step.device).collect();
            assert_eq!(devices, [BenchDevice::Ram, BenchDevice::Mix]);
        }
    }

    #[test]
    fn every_policy_comes_first_as_often_as_the_others() {
        let count = u32::try_from(POLICIES.len()).expect("a few");
        let firsts: HashSet<_> =
            (0..count).map(|number| steps(number, DEVICES, 64)[0].policy.to_string()).collect();
        assert_eq!(firsts.len(), POLICIES.len());
    }

    #[test]
    fn every_policy_comes_after_several_others() {
        let rounds = 2 * u32::try_from(POLICIES.len()).expect("a few");
        for policy in POLICIES {
            let before: HashSet<_> = (0..rounds)
                .filter_map(|number| {
                    let steps = steps(number, &[BenchDevice::Ram], 64);
                    let at = steps.iter().position(|step| step.policy == *policy)?;
                    at.checked_sub(1).map(|before| steps[before].policy.to_string())
                })
                .collect();
            assert!(before.len() > 1, "{policy} after {before:?}");
        }
    }

    #[test]
    fn a_turn_loads_what_its_step_reads_and_as_deep() {
        for step in steps(0, DEVICES, 64) {
            let depths = step.depths(2).expect("it can be shared");
            let mut all = 0;
            for (word, nsid) in depths.split(' ').zip(NSIDS) {
                let (named, depth) = word.split_once('=').expect("NSID=DEPTH");
                let depth: u32 = depth.parse().expect("a number");
                assert_eq!((named, depth > 0), (nsid.to_string().as_str(), step.reads(nsid)));
                assert!(depth * 2 <= step.depth, "the load generator has no more: {depths}");
                all += 2 * depth;
            }
            assert_eq!(all, step.depth, "{step}: {depths}");
        }
        let odd = MeasuredStep { policy: BenchPolicy::None, device: BenchDevice::Mix, depth: 30 };
        assert_eq!(odd.depths(4), None);
        let args = turns_of("tcp://h:1/n", 64, 2).join(" ");
        assert!(args.contains("--nsid 1,2") && args.ends_with("--qd 32 --jobs 2"), "{args}");
    }

    #[test]
    fn the_product_of_jobs_namespaces_and_queue_depth_is_the_depth() {
        for step in DEPTHS.iter().flat_map(|&depth| steps(0, DEVICES, depth)) {
            for jobs in [1, 2, 4, 8] {
                let qd = step.qd(jobs).expect("these depths can be shared");
                assert_eq!(qd * jobs * step.device.namespaces(), step.depth, "{step}");
                let args = step.arguments("tcp://h:1/n", jobs).expect("the same").join(" ");
                assert!(args.contains(&format!("--qd {qd} --jobs {jobs}")), "{args}");
            }
        }
        let step = MeasuredStep { policy: BenchPolicy::None, device: BenchDevice::Mix, depth: 30 };
        assert_eq!((step.qd(4), step.qd(32)), (None, None));
    }

    #[test]
    fn a_config_has_room_for_what_is_asked_of_it() {
        for (&depth, &policy) in DEPTHS.iter().flat_map(|d| POLICIES.iter().map(move |p| (d, p))) {
            let served = DaemonConfig { depth, jobs: 4, cpu: 0, listen: ListenAddress::default() };
            let config: toml::Value =
                toml::from_str(&(served.config() + &policy.config())).expect("TOML");
            let limit = |key: &str| config["limits"][key].as_integer().expect("a number");
            assert!(limit("queue-depth") > i64::from(depth / 4), "{policy} at {depth}");
            assert!(limit("buffer-memory") >= 2 * i64::from(depth) * (128 << 10), "{depth}");
            if let Some(budget) = config["pacing"].get("budget").and_then(toml::Value::as_integer) {
                assert!(budget >= 2 * limit("max-transfer"), "{policy} at {depth}");
                assert!(budget <= limit("buffer-memory"), "{policy} at {depth}");
            }
            let namespaces = config["subsystem"][0]["namespace"].as_array().expect("a list");
            assert_eq!(namespaces.len(), NSIDS.len());
        }
    }

    /// Any other change would require another daemon.
    #[test]
    fn policies_differ_in_pacing_alone() {
        let served = DaemonConfig { depth: 64, jobs: 1, cpu: 0, listen: ListenAddress::default() };
        let without = |policy: BenchPolicy| {
            let mut config: toml::Table =
                toml::from_str(&(served.config() + &policy.config())).expect("TOML");
            let pacing = config.remove("pacing").expect("there is one");
            (config, pacing)
        };
        let first = without(BenchPolicy::None);
        for &policy in &POLICIES[1..] {
            let other = without(policy);
            assert_eq!(other.0, first.0, "{policy}");
            assert_ne!(other.1, first.1, "{policy}");
        }
    }
}
