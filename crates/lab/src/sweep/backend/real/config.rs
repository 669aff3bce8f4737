//! The daemon's config for a point.
//!
//! It is built from the plan's devices or read from the file that the plan names, and then merged
//! with the plan's settings.

use anyhow::{Context, Result, bail, ensure};
use nvmeof_pacing::{PolicyKey, TunerName};
use toml::{Table, Value};

use super::super::super::setup::{DeviceKind, FillRate, PacingSetup, PeriodTuner, PointSetup};
use crate::listen::ListenAddress;

/// Name of the subsystem if the plan names no config.
pub(super) const NQN: &str = "nqn.2026-11.io.nvmeof-tgt:sweep";
/// Size of a namespace that replaces a drive or a null device.
const SIZE: &str = "1TiB";
const BLOCK_SIZE: i64 = 4096;
/// Latency added to reads of a null device that replaces a drive: the latency of an unloaded drive
/// of platform A.
pub(super) const STAND_IN_LATENCY: u64 = 87_000;
/// Memory for data in flight: minimum and maximum.
const MEMORY: (u64, u64) = (256 << 20, 8 << 30);
/// Connections in addition to those of jobs: admin queues, and one that is slow to close.
const MORE_CONNECTIONS: u64 = 64;

/// Settings of the daemon that depend on its machines.
#[derive(Debug, Clone)]
pub(super) struct DaemonSetup {
    pub(super) listen: ListenAddress,
    /// CPUs of the reactors, in the form of the daemon's config.
    pub(super) cpus: String,
    pub(super) reactors: u32,
    /// Files, block devices or PCI addresses of real drives; if empty, null devices replace them.
    pub(super) drives: Vec<String>,
}

/// The config, and the subsystem for hosts.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct DaemonConfig {
    pub(super) text: String,
    pub(super) nqn: String,
    /// Namespace IDs by position in the plan.
    pub(super) nsids: Vec<u32>,
}

/// Returns the daemon's config for this point.
pub(super) fn served(setup: &PointSetup, daemon_setup: &DaemonSetup) -> Result<DaemonConfig> {
    let mut config = match &setup.config {
        Some(file) => {
            let text = std::fs::read_to_string(file)
                .with_context(|| format!("target.config: cannot read {}", file.display()))?;
            text.parse::<Table>()
                .with_context(|| format!("target.config: {} is no TOML", file.display()))?
        }
        None => devices(setup, daemon_setup)?,
    };
    config.insert("reactors".into(), daemon_setup.cpus.clone().into());
    config.entry("log").or_insert_with(|| "warn".into());
    config.insert(
        "listener".into(),
        Value::Array(vec![Value::Table(listener(&daemon_setup.listen))]),
    );
    config.insert("pacing".into(), Value::Table(pacing(&setup.pacing)?));
    let mut limits = limits(setup, daemon_setup);
    if let Some(Value::Table(own)) = config.remove("limits") {
        lay_over(&mut limits, &own);
    }
    config.insert("limits".into(), Value::Table(limits));
    lay_over(&mut config, &setup.set);
    let (nqn, nsids) = namespaces(&config)?;
    let wanted = setup.devices.namespaces() as usize;
    ensure!(
        nsids.len() == wanted,
        "target.devices: the plan has {wanted} devices, and {nqn} has {} namespaces",
        nsids.len()
    );
    Ok(DaemonConfig { text: toml::to_string(&config)?, nqn, nsids })
}

/// Builds devices, subsystem and namespaces of a plan that names no config.
fn devices(setup: &PointSetup, daemon_setup: &DaemonSetup) -> Result<Table> {
    let devices = setup.devices;
    let slow = |at: u32| devices.delay.filter(|(_, slow)| at < *slow).map_or(0, |(delay, _)| delay);
    let mut list = Vec::new();
    let mut names = Vec::new();
    if let (DeviceKind::Part(parts), false) = (devices.kind, daemon_setup.drives.is_empty()) {
        bail!(
            "target.devices: {parts} parts of each of --drives: how large they are only a config of yours \
             can say (type = \"split\"); name it as target.config"
        );
    }
    if devices.kind == DeviceKind::Drive && !daemon_setup.drives.is_empty() {
        let have = daemon_setup.drives.len();
        ensure!(
            have >= devices.count as usize,
            "the plan has {} drives, and --drives names {have}; vary target.devices.count, or name more",
            devices.count
        );
        for (at, drive) in daemon_setup.drives.iter().take(devices.count as usize).enumerate() {
            list.push(real_drive(&format!("drive{at}"), drive));
        }
    }
    for at in 0..devices.namespaces() {
        let name = format!("device{at}");
        let number = at % devices.count;
        let (mut below, mut latency) = (format!("base{at}"), slow(at));
        match devices.kind {
            DeviceKind::Null => list.push(null(&below)),
            DeviceKind::Drive if !daemon_setup.drives.is_empty() => {
                below = format!("drive{number}");
            }
            DeviceKind::Drive | DeviceKind::Part(_) => {
                list.push(null(&below));
                latency += STAND_IN_LATENCY;
            }
        }
        if latency > 0 {
            list.push(table([
                ("name", name.clone().into()),
                ("type", "delay".into()),
                ("base", below.into()),
                ("read-latency", format!("{}us", latency.div_ceil(1000)).into()),
            ]));
            names.push(name);
        } else {
            names.push(below);
        }
    }
    let mut spaces = Vec::new();
    for (at, name) in (0..).zip(names) {
        let nsid = i64::from(at + 1);
        let weight = weight(setup, at)?;
        spaces.push(table([
            ("nsid", nsid.into()),
            ("device", name.into()),
            ("weight", i64::from(weight).into()),
        ]));
    }
    let subsystem = table([
        ("nqn", NQN.into()),
        ("allow-any-host", true.into()),
        ("namespace", Value::Array(spaces.into_iter().map(Value::Table).collect())),
    ]);
    Ok(table([
        ("device", Value::Array(list.into_iter().map(Value::Table).collect())),
        ("subsystem", Value::Array(vec![Value::Table(subsystem)])),
    ]))
}

/// Returns the weight of a namespace, which is that of the jobs that use it.
fn weight(setup: &PointSetup, device: u32) -> Result<u16> {
    let mut jobs = setup.jobs.iter().filter(|job| job.devices.contains(&device));
    let weight = jobs.next().map_or(1, |job| job.weight);
    if let Some(other) = jobs.find(|job| job.weight != weight) {
        bail!(
            "job.weight: device {device} is used with weights {weight} and {} (job {}); outside the \
             simulator a weight belongs to a device",
            other.weight,
            other.name
        );
    }
    Ok(weight)
}

fn null(name: &str) -> Table {
    table([
        ("name", name.into()),
        ("type", "null".into()),
        ("size", SIZE.into()),
        ("block-size", BLOCK_SIZE.into()),
    ])
}

/// A file, a block device, or the PCI address of a drive.
fn real_drive(name: &str, drive: &str) -> Table {
    let pci = !drive.starts_with('/');
    let (kind, key) = if pci { ("nvme", "pci") } else { ("file", "path") };
    table([("name", name.into()), ("type", kind.into()), (key, drive.into())])
}

fn listener(listen: &ListenAddress) -> Table {
    table([
        ("type", listen.fabric.name().into()),
        ("address", listen.address.to_string().into()),
        ("port", i64::from(listen.port).into()),
    ])
}

/// Returns limits that leave the bytes in flight to the policy.
fn limits(setup: &PointSetup, daemon_setup: &DaemonSetup) -> Table {
    let block = setup.jobs.iter().flat_map(|job| &job.blocks).map(|(size, _)| *size).max();
    let block = u64::from(block.unwrap_or(4096));
    let jobs = setup.jobs.iter().map(|job| {
        let hosts = job.hosts_of(setup.hosts.len()) as u64;
        (hosts, u64::from(job.threads), u64::from(job.queue_depth))
    });
    let (mut offered, mut connections, mut depth) = (0, MORE_CONNECTIONS, 1);
    for (hosts, threads, queue_depth) in jobs {
        offered += hosts * threads * queue_depth;
        connections += 2 * hosts * threads;
        depth = depth.max(queue_depth);
    }
    let static_pool = setup.pacing.buffers(u32::try_from(block).unwrap_or(u32::MAX)).unwrap_or(0);
    let buffers = offered.max(static_pool);
    let least = MEMORY.0.max(u64::from(daemon_setup.reactors) * (8 << 20));
    let memory = (2 * buffers * block).clamp(least, MEMORY.1.max(least));
    let max_transfer = block.next_power_of_two().clamp(8 << 10, 2 << 20);
    let depth = (depth + 1).next_power_of_two().clamp(128, 4096);
    let queues = setup.jobs.iter().map(|job| u64::from(job.threads)).max().unwrap_or(1).max(32);
    let number = |value: u64| Value::Integer(i64::try_from(value).unwrap_or(i64::MAX));
    table([
        ("connections", number(connections.min(65_535))),
        ("io-queues", number(queues.min(1024))),
        ("queue-depth", number(depth)),
        ("max-transfer", number(max_transfer)),
        ("buffer-memory", number(memory)),
    ])
}

fn pacing(pacing: &PacingSetup) -> Result<Table> {
    let mut table = table([("policy", pacing.name().into())]);
    let mut set = |key: PolicyKey, value: Value| {
        table.insert(key.name().to_owned(), value);
    };
    let number = |value: u64| Value::Integer(i64::try_from(value).unwrap_or(i64::MAX));
    let nanos = |value: u64| Value::String(format!("{value}ns"));
    match *pacing {
        PacingSetup::EndlessCache => bail!(
            "target.pacing.policy: endless-cache is a machine that only the simulator has; \
             exclude the entry with only-where = [\"sim\"]"
        ),
        PacingSetup::None | PacingSetup::Adaptive => {}
        PacingSetup::BufferCredit { budget } => set(PolicyKey::Budget, number(budget)),
        PacingSetup::TokenBucket { pace, burst, budget } => {
            match pace {
                // Exact, in bytes per second.
                FillRate::Rate(rate) => {
                    set(PolicyKey::Rate, format!("{}.{:03}kB/s", rate / 1000, rate % 1000).into());
                }
                FillRate::Period(period) => set(PolicyKey::Period, nanos(period)),
            }
            burst.into_iter().for_each(|burst| set(PolicyKey::Burst, number(burst)));
            budget.into_iter().for_each(|budget| set(PolicyKey::Budget, number(budget)));
        }
        PacingSetup::Prototype { pool, pacer } => {
            if let Some(pool) = pool {
                set(PolicyKey::Buffers, number(pool.buffers.into()));
                pool.cache
                    .into_iter()
                    .for_each(|cache| set(PolicyKey::Cache, number(cache.into())));
            }
            if let Some(pacer) = pacer {
                set(PolicyKey::Period, nanos(pacer.period));
                set(PolicyKey::Credit, number(pacer.credit.into()));
                set(PolicyKey::BypassBelow, number(pacer.bypass_below.into()));
                let limit = pacer.drive_limit.map(|limit| number(limit.into()));
                limit.into_iter().for_each(|limit| set(PolicyKey::DriveLimit, limit));
                if let Some(tuner) = pacer.tuner {
                    set(PolicyKey::Tuner, tuner_name(tuner).into());
                    match tuner {
                        PeriodTuner::BytesInFlight { threshold } => {
                            set(PolicyKey::TunerThreshold, number(threshold));
                        }
                        PeriodTuner::Bandwidth { interval, step } => {
                            set(PolicyKey::TunerInterval, nanos(interval));
                            set(PolicyKey::TunerStep, nanos(step));
                        }
                    }
                }
            }
        }
    }
    Ok(table)
}

fn tuner_name(tuner: PeriodTuner) -> &'static str {
    let wanted = match tuner {
        PeriodTuner::BytesInFlight { .. } => TunerName::BytesInFlight,
        PeriodTuner::Bandwidth { .. } => TunerName::Bandwidth,
    };
    let named = TunerName::NAMES.iter().find(|(_, tuner)| *tuner == wanted);
    named.map_or("", |(name, _)| name)
}

/// Returns the first subsystem's name and namespaces.
fn namespaces(config: &Table) -> Result<(String, Vec<u32>)> {
    let subsystem = config.get("subsystem").and_then(Value::as_array).and_then(|all| all.first());
    let subsystem = subsystem.and_then(Value::as_table);
    let subsystem = subsystem.context("target.config: there is no [[subsystem]] to connect to")?;
    let nqn = subsystem.get("nqn").and_then(Value::as_str);
    let nqn = nqn.context("target.config: the first [[subsystem]] has no nqn")?.to_owned();
    let spaces = subsystem.get("namespace").and_then(Value::as_array);
    let nsid = |space: &Value| space.get("nsid")?.as_integer()?.try_into().ok();
    let mut nsids: Vec<u32> = spaces.into_iter().flatten().filter_map(nsid).collect();
    nsids.sort_unstable();
    Ok((nqn, nsids))
}

/// Merges the values of `over` into `table`, tables recursively.
fn lay_over(table: &mut Table, over: &Table) {
    for (key, value) in over {
        match (table.get_mut(key), value) {
            (Some(Value::Table(below)), Value::Table(over)) => lay_over(below, over),
            _ => {
                table.insert(key.clone(), value.clone());
            }
        }
    }
}

fn table<const N: usize>(entries: [(&str, Value); N]) -> Table {
    entries.into_iter().map(|(key, value)| (key.to_owned(), value)).collect()
}

#[cfg(test)]
mod tests {
    use super::super::super::super::plan::SweepPlan;
    use super::*;

    fn setup(target: &str) -> PointSetup {
        let text = format!(
            "name = \"p\"\n[target]\n{target}\n[[host]]\ninitiator = \"nvmeof-perf\"\ncount = 2\n\
             [[job]]\nqueue-depth = 256\n"
        );
        SweepPlan::parse("p.toml", &text).unwrap().points.remove(0).setup
    }

    fn daemon_setup(drives: &[&str]) -> DaemonSetup {
        DaemonSetup {
            listen: "tcp://127.0.0.1".parse().unwrap(),
            cpus: "0,2".to_owned(),
            reactors: 2,
            drives: drives.iter().map(|drive| (*drive).to_owned()).collect(),
        }
    }

    fn made(target: &str, drives: &[&str]) -> Table {
        served(&setup(target), &daemon_setup(drives)).unwrap().text.parse().unwrap()
    }

    fn refusal(target: &str, drives: &[&str]) -> String {
        format!("{:#}", served(&setup(target), &daemon_setup(drives)).unwrap_err())
    }

    #[test]
    fn drives_are_stood_for_or_named_and_slow_ones_stand_on_them() {
        let devices = "devices = { kind = \"drive\", count = 2, slow = 1, delay = \"1ms\" }";
        let table = made(devices, &[]);
        let list = table["device"].as_array().unwrap();
        let latency = |name: &str| {
            let found = list.iter().find(|device| device["name"].as_str() == Some(name)).unwrap();
            found["read-latency"].as_str().map(str::to_owned)
        };
        assert_eq!(latency("device0").as_deref(), Some("1087us"));
        assert_eq!(latency("device1").as_deref(), Some("87us"));
        let table = made(devices, &["/dev/a", "0000:01:00.0"]);
        let list = table["device"].as_array().unwrap();
        let kinds: Vec<_> = list.iter().map(|device| device["type"].as_str().unwrap()).collect();
        assert_eq!(kinds, ["file", "nvme", "delay"]);
        let spaces = table["subsystem"][0]["namespace"].as_array().unwrap();
        let served: Vec<_> = spaces.iter().map(|space| space["device"].as_str().unwrap()).collect();
        assert_eq!(served, ["device0", "drive1"]);
    }

    #[test]
    fn what_the_plan_sets_is_laid_over_the_rest() {
        let table = made("set = { limits = { in-capsule = \"0\" }, busy-poll = true }", &[]);
        assert_eq!(table["limits"]["in-capsule"].as_str(), Some("0"));
        assert!(table["limits"]["buffer-memory"].as_integer().is_some(), "the rest stays");
        assert_eq!(table["busy-poll"].as_bool(), Some(true));
        assert_eq!(table["reactors"].as_str(), Some("0,2"));
    }

    #[test]
    fn policies_become_the_daemons_keys() {
        let of = |pacing: &str| made(&format!("pacing = {{ {pacing} }}"), &[])["pacing"].clone();
        assert_eq!(of("policy = \"adaptive\"")["policy"].as_str(), Some("adaptive"));
        let bucket = of("policy = \"token-bucket\", rate = \"1MiB\", burst = \"256KiB\"");
        assert_eq!(bucket["rate"].as_str(), Some("1048.576kB/s"));
        let pool = of("policy = \"prototype\", buffers = 96, cache = 24");
        assert_eq!(
            (pool["buffers"].as_integer(), pool["cache"].as_integer()),
            (Some(96), Some(24))
        );
    }

    #[test]
    fn what_no_daemon_can_do_is_refused() {
        let text = refusal("pacing = { policy = \"endless-cache\" }", &[]);
        assert!(text.contains("only-where"), "{text}");
        let text = refusal("devices = { kind = \"drive\", count = 2 }", &["/dev/a"]);
        assert!(text.contains("--drives names 1"), "{text}");
        let text = refusal("devices = { kind = \"part\", count = 1, parts = 3 }", &["/dev/a"]);
        assert!(text.contains("target.config"), "{text}");
        let text = refusal("config = \"no/such.toml\"", &[]);
        assert!(text.contains("no/such.toml"), "{text}");
    }
}
