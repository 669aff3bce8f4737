//! Plan of the mixes: pairs of namespaces, the load on them, and the daemon that serves them all.

use std::fmt;
use std::path::Path;

use super::plan::{BenchPolicy, SEED};
use crate::bench::server::NQN;
use crate::listen::ListenAddress;

/// Size of a namespace with data.
const SIZE: u64 = 64 << 20;
/// Connections in addition to those of the measured jobs: admin queues, and those that fill.
const MORE_CONNECTIONS: u32 = 16;

/// Namespace of a mix. Its ID is its position in [`MIX_DEVICES`], from 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum MixDevice {
    Ram,
    Null,
    /// A file of this machine.
    File,
    /// `null` behind a delay in microseconds, of reads and of writes.
    Delay(u32),
}

use MixDevice::{Delay, File, Null, Ram};

/// All namespaces of the daemon.
pub(super) const MIX_DEVICES: &[MixDevice] =
    &[Ram, Null, File, Delay(100), Delay(1000), Delay(10_000)];

impl MixDevice {
    pub(super) fn nsid(self) -> u32 {
        let position = MIX_DEVICES.iter().position(|&device| device == self).unwrap_or_default();
        u32::try_from(position + 1).unwrap_or(u32::MAX)
    }

    /// Returns its tables in the daemon's config.
    fn config(self, file: &Path) -> String {
        let device = |name: &str, kind: &str, keys: &str| {
            format!("[[device]]\nname = \"{name}\"\ntype = \"{kind}\"\n{keys}")
        };
        let sized = format!("size = {SIZE}\nblock-size = 4096\n");
        let name = self.to_string();
        let text = match self {
            Ram => device(&name, "ram", &sized),
            Null => device(&name, "null", &sized),
            File => device(&name, "file", &format!("path = \"{}\"\n", file.display())),
            Delay(us) => {
                let base = format!("below-{name}");
                let keys = format!(
                    "base = \"{base}\"\nread-latency = \"{us}us\"\nwrite-latency = \"{us}us\"\n"
                );
                device(&base, "null", &sized) + &device(&name, "delay", &keys)
            }
        };
        let nsid = self.nsid();
        format!("{text}[[subsystem.namespace]]\nnsid = {nsid}\ndevice = \"{name}\"\n")
    }
}

impl fmt::Display for MixDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Ram => f.pad("ram"),
            Null => f.pad("null"),
            File => f.pad("file"),
            Delay(us) if us % 1000 == 0 => f.pad(&format!("{}ms", us / 1000)),
            Delay(us) => f.pad(&format!("{us}us")),
        }
    }
}

/// Hosts of a mix. Each has a process, connections and an NQN.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum MixHosts {
    /// One on both namespaces.
    One,
    /// One on each namespace.
    Each,
    /// Two on both namespaces.
    Two,
}

/// A load on a fast and a slow namespace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Mix {
    pub(super) fast: MixDevice,
    pub(super) slow: MixDevice,
    /// KiB of an I/O.
    pub(super) kib: u32,
    /// 70 % reads and 30 % writes, instead of reads.
    pub(super) writes: bool,
    /// I/Os outstanding on each namespace, per host and job.
    pub(super) depth: u32,
    pub(super) hosts: MixHosts,
}

/// Number of mixes in a quick run: the first ones of [`MIXES`].
const QUICK: usize = 6;

/// All mixes. The first ones cover every device, every size and both workloads.
pub(super) const MIXES: &[Mix] = &[
    Mix::reads(Ram, Delay(1000), 128, 16),
    Mix::reads(Ram, Delay(1000), 4, 32),
    Mix::mixed(Ram, Delay(100), 16, 64),
    Mix::reads(Null, Delay(10_000), 16, 256),
    Mix::reads(File, Delay(1000), 4, 32),
    Mix::reads(Ram, Delay(1000), 128, 16).with(MixHosts::Each),
    Mix::reads(Ram, Delay(1000), 4, 1),
    Mix::reads(Ram, Delay(1000), 4, 256),
    Mix::reads(Ram, Delay(1000), 16, 32),
    Mix::mixed(Ram, Delay(1000), 16, 16),
    Mix::reads(Ram, Delay(1000), 128, 1),
    Mix::mixed(Ram, Delay(1000), 128, 64),
    Mix::reads(Ram, Delay(1000), 128, 256),
    Mix::reads(Ram, Delay(100), 4, 32),
    Mix::reads(Ram, Delay(100), 128, 16),
    Mix::reads(Ram, Delay(10_000), 4, 64),
    Mix::reads(Ram, Delay(10_000), 16, 256),
    Mix::reads(Ram, Delay(10_000), 128, 64),
    Mix::reads(Null, Delay(1000), 4, 32),
    Mix::reads(Null, Delay(1000), 128, 16),
    Mix::reads(Null, Delay(100), 16, 64),
    Mix::mixed(Null, Delay(10_000), 128, 64),
    Mix::reads(File, Delay(1000), 128, 16),
    Mix::reads(Ram, File, 16, 32),
    Mix::mixed(Ram, File, 128, 16),
    Mix::reads(Delay(100), Delay(10_000), 16, 64),
    Mix::reads(Ram, Delay(1000), 4, 32).with(MixHosts::Each),
    Mix::reads(Ram, Delay(1000), 128, 64).with(MixHosts::Two),
    Mix::mixed(Ram, Delay(10_000), 16, 64).with(MixHosts::Two),
];

impl Mix {
    const fn reads(fast: MixDevice, slow: MixDevice, kib: u32, depth: u32) -> Self {
        Self { fast, slow, kib, writes: false, depth, hosts: MixHosts::One }
    }

    const fn mixed(fast: MixDevice, slow: MixDevice, kib: u32, depth: u32) -> Self {
        Self { writes: true, ..Self::reads(fast, slow, kib, depth) }
    }

    const fn with(self, hosts: MixHosts) -> Self {
        Self { hosts, ..self }
    }

    /// Returns the namespaces that each host loads.
    pub(super) fn hosts(&self) -> Vec<Vec<u32>> {
        let [fast, slow] = self.nsids();
        match self.hosts {
            MixHosts::One => vec![vec![fast, slow]],
            MixHosts::Each => vec![vec![fast], vec![slow]],
            MixHosts::Two => vec![vec![fast, slow]; 2],
        }
    }

    pub(super) fn nsids(&self) -> [u32; 2] {
        [self.fast.nsid(), self.slow.nsid()]
    }

    /// Returns the number of I/Os outstanding, over all hosts and namespaces.
    pub(super) fn offered(&self, jobs: u32) -> u32 {
        let namespaces = self.hosts().iter().flatten().count();
        jobs * self.depth * u32::try_from(namespaces).unwrap_or(u32::MAX)
    }

    /// Returns the arguments of a host's load, which lasts through all turns.
    pub(super) fn arguments(&self, address: &str, host: usize, jobs: u32) -> Vec<String> {
        let nsids: Vec<_> = self.hosts()[host].iter().map(u32::to_string).collect();
        let words = [
            ("--connect", address.to_owned()),
            ("--hostnqn", format!("{NQN}-host-{}", host + 1)),
            ("--nsid", nsids.join(",")),
            ("--rw", if self.writes { "randrw:70" } else { "randread" }.to_owned()),
            ("--bs", format!("{}k", self.kib)),
            ("--qd", self.depth.to_string()),
            ("--jobs", jobs.to_string()),
            ("--seed", SEED.to_string()),
        ];
        let words = words.into_iter().flat_map(|(option, value)| [option.to_owned(), value]);
        std::iter::once("run".to_owned()).chain(words).collect()
    }
}

impl fmt::Display for Mix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { fast, slow, kib, depth, .. } = self;
        let load = if self.writes { "70/30" } else { "reads" };
        write!(f, "{fast} + {slow}, {kib} KiB {load}, depth {depth}")?;
        f.write_str(match self.hosts {
            MixHosts::One => "",
            MixHosts::Each => ", a host each",
            MixHosts::Two => ", two hosts",
        })
    }
}

/// Returns the mixes whose names contain this text, out of the first ones if `is_quick`.
pub(super) fn chosen(is_quick: bool, only: &str) -> Vec<Mix> {
    let most = if is_quick { QUICK } else { MIXES.len() };
    let mixes = MIXES[..most].iter().filter(|mix| mix.to_string().contains(only));
    mixes.copied().collect()
}

/// Returns the policies of a pair of turns, which changes its order from pair to pair.
pub(super) fn pair(number: u32) -> [BenchPolicy; 2] {
    let [first, second] = [BenchPolicy::None, BenchPolicy::Adaptive];
    if number.is_multiple_of(2) { [first, second] } else { [second, first] }
}

/// Returns arguments that write every namespace with data once.
pub(super) fn fill(address: &str) -> Vec<String> {
    let nsids = format!("{},{}", Ram.nsid(), File.nsid());
    let load = ["--rw", "write", "--bs", "128k", "--qd", "8", "--loops", "1"];
    let args = ["run", "--connect", address, "--nsid", &nsids];
    args.into_iter().chain(load).map(str::to_owned).collect()
}

/// Creates the file of the `file` namespace in this folder; it is removed when dropped.
pub(super) fn make_file(folder: &Path) -> std::io::Result<tempfile::NamedTempFile> {
    let file = tempfile::Builder::new().prefix("mixes-").suffix(".img").tempfile_in(folder)?;
    file.as_file().set_len(SIZE)?;
    Ok(file)
}

/// Returns the config of the daemon without a policy: one reactor, every namespace, and limits that
/// leave the bytes in flight to the policy.
pub(super) fn config(
    mix: &Mix,
    jobs: u32,
    cpu: usize,
    listen: ListenAddress,
    file: &Path,
) -> String {
    let memory = 2 * u64::from(mix.offered(jobs)) * u64::from(mix.kib << 10);
    let memory = memory.max(32 << 20);
    let queue_depth = (2 * mix.depth + 1).next_power_of_two().clamp(128, 4096);
    let connections = 4 * jobs + MORE_CONNECTIONS;
    let devices: String = MIX_DEVICES.iter().map(|device| device.config(file)).collect();
    format!(
        "reactors = \"{cpu}\"\nlog = \"warn\"\n\
         [limits]\nconnections = {connections}\nqueue-depth = {queue_depth}\n\
         max-transfer = \"1MiB\"\nbuffer-memory = {memory}\n\
         {}[[subsystem]]\nnqn = \"{NQN}\"\nallow-any-host = true\n{devices}",
        listen.config(),
    )
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn the_mixes_cover_every_named_value() {
        let devices: HashSet<_> =
            MIXES.iter().flat_map(|mix| [mix.fast.to_string(), mix.slow.to_string()]).collect();
        let named = ["ram", "null", "file", "100us", "1ms", "10ms"];
        assert_eq!(devices, named.map(str::to_owned).into());
        let sizes: HashSet<_> = MIXES.iter().map(|mix| (mix.kib, mix.writes)).collect();
        for kib in [4, 16, 128] {
            assert!(sizes.contains(&(kib, false)), "{kib} KiB");
        }
        assert!(sizes.contains(&(16, true)) && sizes.contains(&(128, true)));
        let depths: HashSet<_> = MIXES.iter().map(|mix| mix.depth).collect();
        assert!([1, 16, 64, 256].iter().all(|depth| depths.contains(depth)), "{depths:?}");
        for hosts in [MixHosts::One, MixHosts::Each, MixHosts::Two] {
            assert!(MIXES.iter().any(|mix| mix.hosts == hosts), "{hosts:?}");
        }
        let names: HashSet<_> = MIXES.iter().map(Mix::to_string).collect();
        assert_eq!(names.len(), MIXES.len(), "names are distinct");
    }

    #[test]
    fn mixes_are_chosen_by_their_names() {
        let quick = chosen(true, "");
        assert_eq!(quick.len(), QUICK);
        let nsids: HashSet<_> = quick.iter().flat_map(Mix::nsids).collect();
        assert_eq!(nsids.len(), MIX_DEVICES.len(), "every device");
        assert_eq!(chosen(false, ""), MIXES);
        let hosts = chosen(false, "a host each");
        assert!(hosts.len() == 2 && hosts.iter().all(|mix| mix.hosts == MixHosts::Each));
        assert!(chosen(false, "no name").is_empty());
    }

    #[test]
    fn a_pair_has_both_policies_and_the_next_one_the_other_order() {
        for number in 0..4 {
            let [first, second] = pair(number);
            assert_ne!(first, second);
            assert_eq!(pair(number + 1), [second, first]);
        }
    }

    #[test]
    fn hosts_load_both_namespaces_under_names_of_their_own() {
        for mix in MIXES {
            let hosts = mix.hosts();
            let loaded: HashSet<_> = hosts.iter().flatten().copied().collect();
            assert_eq!(loaded, mix.nsids().into(), "{mix}");
            let names: HashSet<_> = (0..hosts.len())
                .map(|host| mix.arguments("tcp://h:1/n", host, 1).join(" "))
                .map(|args| args.split("--hostnqn ").nth(1).map(|rest| rest[..60].to_owned()))
                .collect();
            assert_eq!(names.len(), hosts.len(), "{mix}");
        }
        let mix = Mix::mixed(Ram, Delay(1000), 16, 32).with(MixHosts::Each);
        let args = mix.arguments("tcp://h:1/n", 1, 2).join(" ");
        let load = "--nsid 5 --rw randrw:70 --bs 16k --qd 32 --jobs 2";
        assert!(args.contains(load), "{args}");
        assert_eq!(mix.offered(2), 128);
    }

    #[test]
    fn every_config_serves_all_namespaces_and_policies_differ_in_pacing_alone() {
        for mix in MIXES {
            let listen = ListenAddress::default();
            let rest = config(mix, 2, 0, listen, Path::new("/tmp/file"));
            let [none, adaptive] = pair(0).map(|policy| {
                toml::from_str::<toml::Table>(&(rest.clone() + &policy.config())).expect("TOML")
            });
            let keys = |config: &toml::Table| config.keys().cloned().collect::<Vec<_>>();
            assert_eq!(keys(&none), keys(&adaptive));
            let differs = |key: &&String| none[*key] != adaptive[*key];
            assert_eq!(none.keys().filter(differs).collect::<Vec<_>>(), ["pacing"], "{mix}");
            let namespaces = none["subsystem"][0]["namespace"].as_array().expect("a list");
            let names: Vec<_> =
                namespaces.iter().map(|namespace| namespace["device"].as_str()).collect();
            for device in MIX_DEVICES {
                let index = usize::try_from(device.nsid() - 1).expect("small");
                assert_eq!(names[index], Some(device.to_string().as_str()));
            }
            let limit = |key: &str| none["limits"][key].as_integer().expect("a number");
            assert!(limit("queue-depth") > i64::from(2 * mix.depth), "{mix}");
            let bytes = i64::from(mix.offered(2)) * i64::from(mix.kib << 10);
            assert!(limit("buffer-memory") >= 2 * bytes, "{mix}");
        }
    }
}
