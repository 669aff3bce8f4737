//! What is measured: policies, devices and depths, in which order, and how each is set up.

use std::fmt;

use crate::bench::server::NQN;
use crate::listen::Listen;

/// Bytes of an I/O.
pub(super) const BLOCK: u64 = 128 << 10;
/// Largest I/O the daemon takes: what a host may ask for without being asked to split.
const MAX_TRANSFER: u64 = 1 << 20;
/// Bytes of a namespace; as many as `load::fill` writes.
const SIZE: &str = "256MiB";
/// Memory for data in flight: never the bound here, at twice the data of the deepest queue.
const BUFFER_MEMORY_LEAST: u64 = 256 << 20;
/// What the slow device adds to a read.
pub(super) const DELAY: &str = "1ms";
/// Connections beside those of the measured jobs: the admin queues, and those that fill.
const MORE_CONNECTIONS: u32 = 16;

/// A pacing policy, as it is set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Policy {
    None,
    /// So many buffers of [`BLOCK`] bytes.
    BufferCredit(u64),
    Adaptive,
}

/// In the order of tables and legends.
pub(super) const POLICIES: &[Policy] = &[
    Policy::None,
    Policy::BufferCredit(16),
    Policy::BufferCredit(96),
    Policy::BufferCredit(1024),
    Policy::Adaptive,
];

impl Policy {
    fn config(self) -> String {
        match self {
            Self::None => "policy = \"none\"\n".to_owned(),
            Self::BufferCredit(buffers) => {
                format!("policy = \"buffer-credit\"\nbudget = {}\n", buffers * BLOCK)
            }
            Self::Adaptive => "policy = \"adaptive\"\n".to_owned(),
        }
    }

    /// Buffers of the pool, if it is one.
    pub(super) fn buffers(self) -> Option<u64> {
        match self {
            Self::BufferCredit(buffers) => Some(buffers),
            Self::None | Self::Adaptive => None,
        }
    }
}

impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::None => f.pad("none"),
            Self::BufferCredit(buffers) => f.pad(&format!("buffer-credit {buffers}")),
            Self::Adaptive => f.pad("adaptive"),
        }
    }
}

/// What is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum Device {
    /// A namespace in memory
    Ram,
    /// The same behind 1 ms
    Delay,
    /// One of each, half of the depth on each
    Mix,
}

pub(super) const DEVICES: &[Device] = &[Device::Ram, Device::Delay, Device::Mix];

impl Device {
    /// Namespaces, numbered from 1; each is written once before it is read.
    pub(super) fn namespaces(self) -> u32 {
        match self {
            Self::Ram | Self::Delay => 1,
            Self::Mix => 2,
        }
    }

    pub(super) fn about(self) -> &'static str {
        match self {
            Self::Ram => "a namespace in memory",
            Self::Delay => "a namespace in memory behind 1 ms",
            Self::Mix => "one in memory and one behind 1 ms, half of the depth on each",
        }
    }

    /// Namespaces that are slowed.
    pub(super) fn slow(self) -> u32 {
        match self {
            Self::Ram => 0,
            Self::Delay | Self::Mix => 1,
        }
    }

    fn config(self) -> String {
        let ram = |name: &str| {
            format!(
                "[[device]]\nname = \"{name}\"\ntype = \"ram\"\nsize = \"{SIZE}\"\nblock-size = 4096\n"
            )
        };
        let delay = format!(
            "[[device]]\nname = \"slow\"\ntype = \"delay\"\nbase = \"below\"\nread-latency = \"{DELAY}\"\n"
        );
        match self {
            Self::Ram => ram("fast"),
            Self::Delay => ram("below") + &delay,
            Self::Mix => ram("fast") + &ram("below") + &delay,
        }
    }

    /// Devices behind the namespaces, in their order.
    fn served(self) -> &'static [&'static str] {
        match self {
            Self::Ram => &["fast"],
            Self::Delay => &["slow"],
            Self::Mix => &["fast", "slow"],
        }
    }
}

impl fmt::Display for Device {
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
pub(super) struct Step {
    pub(super) policy: Policy,
    pub(super) device: Device,
    /// I/Os outstanding, over all jobs and namespaces.
    pub(super) depth: u32,
}

/// One round: what is compared with one another stands together, and who comes first changes from
/// round to round, so that what the machine does meanwhile meets all policies alike.
pub(super) fn round(number: u32, devices: &[Device], depths: &[u32]) -> Vec<Step> {
    let first = usize::try_from(number).unwrap_or(0) % POLICIES.len();
    let mut steps = Vec::new();
    for &depth in depths {
        for &device in devices {
            let policies = POLICIES.iter().cycle().skip(first).take(POLICIES.len());
            steps.extend(policies.map(|&policy| Step { policy, device, depth }));
        }
    }
    steps
}

impl Step {
    /// `--qd` of the load generator, if the depth can be shared among the jobs without a rest.
    pub(super) fn qd(&self, jobs: u32) -> Option<u32> {
        let lanes = jobs * self.device.namespaces();
        (self.depth >= lanes && self.depth.is_multiple_of(lanes)).then(|| self.depth / lanes)
    }

    /// The daemon's config: one reactor, and bounds that leave it to the policy what is in flight.
    pub(super) fn config(&self, cpu: usize, listen: Listen, jobs: u32) -> String {
        let listener = listen.config();
        let a_queue = self.depth.div_ceil(jobs) + 1;
        let queue_depth = a_queue.next_power_of_two().clamp(128, 4096);
        let memory = (2 * u64::from(self.depth) * BLOCK).max(BUFFER_MEMORY_LEAST);
        // A pool that is larger than the depth still has to fit.
        let memory = memory.max(2 * self.policy.buffers().unwrap_or(0) * BLOCK);
        let connections = 2 * jobs + MORE_CONNECTIONS;
        let mut text = format!(
            "reactors = \"{cpu}\"\nlog = \"warn\"\n\
             [limits]\nconnections = {connections}\nqueue-depth = {queue_depth}\n\
             max-transfer = {MAX_TRANSFER}\nbuffer-memory = {memory}\n\
             [pacing]\n{}\
             {listener}\
             {}\
             [[subsystem]]\nnqn = \"{NQN}\"\nallow-any-host = true\n",
            self.policy.config(),
            self.device.config(),
        );
        for (index, device) in self.device.served().iter().enumerate() {
            let nsid = index + 1;
            text += &format!("[[subsystem.namespace]]\nnsid = {nsid}\ndevice = \"{device}\"\n");
        }
        text
    }

    /// Arguments that measure it, but for the times; `None` if the depth cannot be shared.
    pub(super) fn arguments(&self, address: &str, jobs: u32) -> Option<Vec<String>> {
        let (qd, jobs) = (self.qd(jobs)?.to_string(), jobs.to_string());
        let block = BLOCK.to_string();
        let args = [
            "run",
            "--connect",
            address,
            "--rw",
            "randread",
            "--bs",
            &block,
            "--qd",
            &qd,
            "--jobs",
        ];
        Some(args.into_iter().chain([jobs.as_str()]).map(str::to_owned).collect())
    }
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} at depth {} with {}", self.device, self.depth, self.policy)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    const DEPTHS: &[u32] = &[32, 64, 256, 1024, 2048];

    #[test]
    fn every_round_has_every_point_once_and_policies_beside_one_another() {
        let names = |steps: &[Step]| steps.iter().map(Step::to_string).collect::<HashSet<_>>();
        let first = round(0, DEVICES, DEPTHS);
        assert_eq!(first.len(), POLICIES.len() * DEVICES.len() * DEPTHS.len());
        assert_eq!(names(&first).len(), first.len());
        for number in 1..8 {
            let steps = round(number, DEVICES, DEPTHS);
            assert_eq!(names(&steps), names(&first), "round {number}");
            for group in steps.chunks(POLICIES.len()) {
                assert!(
                    group.iter().all(|s| (s.device, s.depth) == (group[0].device, group[0].depth))
                );
            }
        }
    }

    #[test]
    fn every_policy_comes_first_as_often_as_the_others() {
        let count = u32::try_from(POLICIES.len()).expect("a few");
        let firsts: HashSet<_> =
            (0..count).map(|number| round(number, DEVICES, DEPTHS)[0].policy.to_string()).collect();
        assert_eq!(firsts.len(), POLICIES.len());
    }

    #[test]
    fn the_product_of_jobs_namespaces_and_queue_depth_is_the_depth() {
        for step in round(0, DEVICES, DEPTHS) {
            for jobs in [1, 2, 4, 8] {
                let qd = step.qd(jobs).expect("these depths can be shared");
                assert_eq!(qd * jobs * step.device.namespaces(), step.depth, "{step}");
                let args = step.arguments("tcp://h:1/n", jobs).expect("the same").join(" ");
                assert!(args.contains(&format!("--qd {qd} --jobs {jobs}")), "{args}");
            }
        }
        let step = Step { policy: Policy::None, device: Device::Mix, depth: 30 };
        assert_eq!((step.qd(4), step.qd(32)), (None, None));
    }

    #[test]
    fn a_config_has_room_for_what_is_asked_of_it() {
        for step in round(0, DEVICES, DEPTHS) {
            let config: toml::Value =
                toml::from_str(&step.config(0, Listen::default(), 4)).expect("TOML");
            let limit = |key: &str| config["limits"][key].as_integer().expect("a number");
            assert!(limit("queue-depth") > i64::from(step.depth / 4), "{step}");
            assert!(limit("buffer-memory") >= 2 * i64::from(step.depth) * (128 << 10), "{step}");
            if let Some(budget) = config["pacing"].get("budget").and_then(toml::Value::as_integer) {
                assert!(budget >= 2 * limit("max-transfer"), "{step}");
                assert!(budget <= limit("buffer-memory"), "{step}");
            }
            let served = config["subsystem"][0]["namespace"].as_array().expect("a list");
            assert_eq!(u32::try_from(served.len()).ok(), Some(step.device.namespaces()), "{step}");
        }
    }
}
