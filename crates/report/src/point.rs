//! One result: the configuration of a run, and its measurements.

use std::fmt;

use serde::{Deserialize, Serialize};

/// One run of one point of a plan. Bandwidth is goodput in Gb/s (10^9 bits), latencies are in us.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Point {
    /// The plan's name.
    pub plan: String,
    /// The test it belongs to.
    pub test: String,
    /// The varied keys, in the order of the plan, with the values of this point.
    pub varied: Vec<VariedKey>,
    /// Number of the repetition, from 1.
    pub repetition: u32,
    /// Place of the run.
    #[serde(rename = "where")]
    pub place: RunOrigin,
    /// The machine: the name of a platform or of a host.
    pub platform: String,
    /// The pacing policy's name.
    pub policy: String,
    /// Roles of the machines and substitutes, if the platform's name is not enough.
    #[serde(default)]
    pub machines: Option<String>,
    /// Fingerprint of everything that the figures depend on; runs with equal fingerprints are the
    /// same run.
    pub fingerprint: String,
    /// Seed of all random choices.
    pub seed: u64,
    /// Time measured, in seconds.
    pub measured_s: f64,
    /// The load and the target, in terms of the CSV columns.
    pub setting: PointConfig,
    /// Everything that the run was, in words, in the order of a report.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<Condition>,
    /// Rows that someone measured under the same conditions on the machine that this run simulates.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub measured: Vec<MeasuredRow>,
    /// All hosts together.
    pub total: Figures,
    /// Figures by host; [`Point::jobs`] has those by job, [`Point::sizes`] by block size.
    pub hosts: Vec<PointPart>,
    /// See [`Point::hosts`].
    pub jobs: Vec<PointPart>,
    /// See [`Point::hosts`].
    pub sizes: Vec<PointPart>,
    /// One per host, job and device.
    pub flows: Vec<Flow>,
    /// Jain's index over the bandwidths of the flows, each divided by its weight: 1 is fair.
    pub fairness: Option<f64>,
    /// Bits on the link in Gb/s.
    pub wire_gbps: Option<f64>,
    /// Standard deviation of the bandwidth in Gb/s over 100 ms samples and hosts.
    pub stddev_gbps: Option<f64>,
    /// Share of the NIC's reads that hit the last-level cache, in percent.
    ///
    /// If [`Point::hit_from`] names another counter, the share is of its events.
    pub hit_pct: Option<f64>,
    /// Source of the hit counts, or the reason for their absence; `None` if they are simulated.
    #[serde(default)]
    pub hit_from: Option<String>,
    /// Mean number of commands that hold a buffer.
    pub buffers_mean: Option<f64>,
    /// Maximum number of commands that hold a buffer.
    pub buffers_max: Option<u64>,
    /// Mean data in flight at the target, in MiB.
    pub in_flight_mib: Option<f64>,
    /// The pacer's budget in bytes, mean over the samples.
    pub budget_bytes: Option<f64>,
    /// The pacer's period per I/O in us, mean over the samples.
    pub period_us: Option<f64>,
    /// Mean time from one I/O to the next that a core started, in us; only if a rate paces them.
    #[serde(default)]
    pub period_seen_us: Option<f64>,
    /// Queues that had commands and never ran one, if known.
    #[serde(default)]
    pub starved_queues: Option<u32>,
    /// Mean CPUs used by the target.
    #[serde(default)]
    pub target_cpus: Option<f64>,
    /// Mean CPUs used by the load generators, over all hosts.
    #[serde(default)]
    pub host_cpus: Option<f64>,
    /// Errors on the target's network.
    #[serde(default)]
    pub network: Option<NetworkCounters>,
    /// Time series, with a sample every 100 ms unless the plan requests finer ones.
    pub series: Vec<Sample>,
    /// Problems in the run, which make its figures unreliable.
    pub problems: Vec<String>,
}

/// A part of the conditions of a run: `block size`, `128KiB`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Condition {
    /// Name of the part.
    pub name: String,
    /// Its value, in words.
    pub value: String,
}

impl Condition {
    /// A part and its value.
    #[must_use]
    pub fn new(name: &str, value: impl Into<String>) -> Self {
        Self { name: name.to_owned(), value: value.into() }
    }
}

/// A row of a published measurement.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct MeasuredRow {
    /// Name of the measurement: `Mellanox SPDK io_pacing`.
    pub source: String,
    /// Goodput in Gb/s.
    pub gbps: f64,
    /// Mean latency in us, if it was measured.
    pub latency_us: Option<f64>,
    /// Standard deviation of the bandwidth in Gb/s over samples and hosts, if it was measured.
    pub stddev_gbps: Option<f64>,
    /// Cache hits in percent, if they were counted.
    pub hit_pct: Option<f64>,
    /// Mean number of buffers in flight, if it was measured.
    pub buffers: Option<f64>,
}

/// Counters on the target's side of the network.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct NetworkCounters {
    /// Packets dropped, in both directions.
    pub dropped: u64,
    /// TCP segments retransmitted by the target's machine.
    pub retransmitted: u64,
    /// RDMA requests that found no receive, if the device counts them.
    pub rnr: Option<u64>,
}

/// One varied key and its value.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct VariedKey {
    /// Dotted key, as in the plan.
    pub key: String,
    /// Value, as in the plan.
    pub value: String,
}

impl VariedKey {
    /// The value, with its key if the value alone is ambiguous.
    #[must_use]
    pub fn label(&self) -> String {
        match self.value.parse::<f64>() {
            Ok(_) => format!("{} {}", short_key(&self.key), self.value),
            Err(_) => self.value.clone(),
        }
    }
}

/// Place of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RunOrigin {
    /// In the simulator.
    Simulated,
    /// On one machine.
    Local,
    /// On several machines.
    Remote,
}

impl RunOrigin {
    /// Name in every output.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Simulated => "simulated",
            Self::Local => "local",
            Self::Remote => "remote",
        }
    }
}

impl fmt::Display for RunOrigin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// The configuration of a run, in terms of the CSV columns. `None`: not set, or not applicable.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct PointConfig {
    /// Number and kind of the devices: `nvme16`, `null1`, `split3+delay`.
    pub devices: String,
    /// The program on the hosts, with its jobs if it runs more than one: `fio+kernel 8 jobs`.
    pub initiator: String,
    /// Hosts.
    pub hosts: u32,
    /// Jobs that a host runs concurrently.
    pub jobs: u32,
    /// Target cores.
    pub cores: Option<u32>,
    /// Period per I/O of a rate, in ns, for the whole target.
    pub period_ns: Option<u64>,
    /// Buffers that each core caches.
    pub buf_cache: Option<u32>,
    /// Depth of the third job, if it differs from that of the first.
    pub job3_qd: Option<u32>,
    /// Buffers of a static pool.
    pub num_buffers: Option<u64>,
    /// Devices with an added delay.
    pub num_delay: Option<u32>,
    /// Depth of the first job, per host (and per job, if there are several).
    pub qd: u32,
    /// Total commands that all hosts try to keep outstanding.
    pub offered: u64,
}

/// Figures over a set of commands.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct Figures {
    /// Thousands of commands a second.
    pub kiops: f64,
    /// Goodput in Gb/s.
    pub gbps: f64,
    /// Latency seen by the host, in us.
    pub latency_us: Latency,
    /// Time from arrival at the target until the data has left it, in us, if known.
    #[serde(default)]
    pub at_target_us: Option<Latency>,
}

/// A latency distribution.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct Latency {
    /// Mean.
    pub mean: f64,
    /// Median.
    pub p50: f64,
    /// 99th percentile.
    pub p99: f64,
    /// 99.9th percentile.
    pub p99_9: f64,
    /// Largest.
    pub max: f64,
}

/// One host, job or block size.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PointPart {
    /// Name of the part.
    pub name: String,
    /// Its figures.
    pub figures: Figures,
}

/// One flow: one job of one host on one device.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Flow {
    /// Host, from 0.
    pub host: u32,
    /// Job, from 0.
    pub job: u32,
    /// Device, from 0.
    pub device: u32,
    /// Its weight.
    pub weight: u16,
    /// Goodput in Gb/s.
    pub gbps: f64,
    /// Mean latency in us.
    pub mean_us: f64,
    /// 99th percentile in us.
    pub p99_us: f64,
}

/// One sample of the time series.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct Sample {
    /// End of the sample in seconds from the start of the run.
    pub t: f64,
    /// Goodput in Gb/s.
    pub gbps: f64,
    /// Cache hits in percent.
    pub hit_pct: Option<f64>,
    /// Commands that hold a buffer at the end of the sample.
    pub buffers: Option<u64>,
    /// Commands that wait for admission at the end of the sample.
    pub waiting: Option<u64>,
    /// The pacer's budget in bytes at the end of the sample.
    pub budget_bytes: Option<u64>,
    /// The pacer's period per I/O in us at the end of the sample.
    pub period_us: Option<f64>,
}

impl Point {
    /// The label of this point within its plan: the varied values, and the repetition if it is not
    /// the first.
    #[must_use]
    pub fn label(&self) -> String {
        let mut parts: Vec<_> = self.varied.iter().map(VariedKey::label).collect();
        if self.repetition > 1 {
            parts.push(format!("run {}", self.repetition));
        }
        if parts.is_empty() { self.plan.clone() } else { parts.join(", ") }
    }

    /// The value of a varied key.
    #[must_use]
    pub fn value(&self, key: &str) -> Option<&str> {
        self.varied.iter().find(|varied| varied.key == key).map(|varied| varied.value.as_str())
    }
}

/// The short name of a dotted key: its last part, with the job's name if it belongs to one job.
pub(crate) fn short_key(key: &str) -> &str {
    match key.strip_prefix("job.") {
        Some(of_job) => of_job,
        None => key.rsplit('.').next().unwrap_or(key),
    }
}

/// Jain's index of fairness: 1 if all shares are equal, 1/n if one share has everything.
///
/// `None` without shares, or if all shares are zero.
#[must_use]
pub fn jain(shares: &[f64]) -> Option<f64> {
    let sum: f64 = shares.iter().sum();
    let squares: f64 = shares.iter().map(|share| share * share).sum();
    // Counts of flows are far below 2^32.
    let count = f64::from(u32::try_from(shares.len()).ok()?);
    (count > 0.0 && squares > 0.0).then(|| sum * sum / (count * squares))
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    fn setting(queue_depth: u32) -> PointConfig {
        PointConfig {
            devices: "nvme16".into(),
            initiator: "fio+SPDK".into(),
            hosts: 2,
            jobs: 1,
            cores: Some(4),
            qd: queue_depth,
            offered: 2 * u64::from(queue_depth),
            ..PointConfig::default()
        }
    }

    /// A point with figures in every field.
    pub(crate) fn point(queue_depth: u32, policy: &str) -> Point {
        let latency = Latency { mean: 362.5, p50: 350.0, p99: 500.25, p99_9: 700.0, max: 900.0 };
        let figures = Figures {
            kiops: 176.24,
            gbps: 184.8,
            latency_us: latency,
            at_target_us: Some(Latency { mean: 200.0, ..latency }),
        };
        let part = |name: &str| PointPart { name: name.into(), figures };
        let varied = |key: &str, value: String| VariedKey { key: key.into(), value };
        Point {
            plan: "test-03".into(),
            test: "3".into(),
            varied: vec![
                varied("target.pacing.policy", policy.into()),
                varied("job.queue-depth", queue_depth.to_string()),
            ],
            repetition: 1,
            place: RunOrigin::Simulated,
            platform: "A".into(),
            policy: policy.into(),
            machines: None,
            fingerprint: "00".into(),
            seed: 1,
            measured_s: 1.0,
            setting: setting(queue_depth),
            total: figures,
            hosts: vec![part("host 1"), part("host 2")],
            jobs: vec![part("all")],
            conditions: vec![
                Condition::new("load", "random reads"),
                Condition::new("queue depth", queue_depth.to_string()),
            ],
            measured: Vec::new(),
            sizes: vec![part("128KiB")],
            flows: vec![Flow {
                host: 0,
                job: 0,
                device: 0,
                weight: 1,
                gbps: 11.55,
                mean_us: 362.5,
                p99_us: 500.0,
            }],
            fairness: Some(1.0),
            wire_gbps: Some(196.3297),
            stddev_gbps: Some(0.1),
            hit_pct: Some(99.1),
            hit_from: None,
            buffers_mean: Some(59.0),
            buffers_max: Some(80),
            in_flight_mib: Some(7.375),
            budget_bytes: Some(12_582_912.0),
            period_us: None,
            period_seen_us: None,
            starved_queues: Some(0),
            target_cpus: None,
            host_cpus: None,
            network: None,
            series: vec![
                Sample { t: 0.1, gbps: 184.7, hit_pct: Some(99.0), ..Sample::default() },
                Sample { t: 0.2, gbps: 184.9, hit_pct: Some(99.2), ..Sample::default() },
            ],
            problems: Vec::new(),
        }
    }

    #[test]
    fn fairness_of_equals_of_one_and_of_none() {
        assert_eq!(jain(&[3.0, 3.0, 3.0, 3.0]), Some(1.0));
        assert_eq!(jain(&[5.0, 0.0, 0.0, 0.0]), Some(0.25));
        assert_eq!(jain(&[2.0, 1.0]), Some(0.9));
        assert_eq!(jain(&[]), None);
        assert_eq!(jain(&[0.0, 0.0]), None);
    }

    #[test]
    fn a_point_is_called_by_what_varied() {
        let mut point = point(64, "none");
        assert_eq!(point.label(), "none, queue-depth 64");
        assert_eq!(point.value("job.queue-depth"), Some("64"));
        assert_eq!(point.value("target.cores"), None);
        point.repetition = 3;
        assert_eq!(point.label(), "none, queue-depth 64, run 3");
        point.varied[1].key = "job.fast.queue-depth".into();
        assert_eq!(point.label(), "none, fast.queue-depth 64, run 3");
        point.varied.clear();
        point.repetition = 1;
        assert_eq!(point.label(), "test-03");
    }
}
