//! Results of a run. Bandwidth is goodput in Gb/s (10^9 bits), latencies are in nanoseconds.

use crate::scenario::Nanos;

/// Everything measured in one run. Simulated.
#[derive(Debug, Clone, Default)]
pub struct RunResult {
    /// All hosts together.
    pub total: RunMetrics,
    /// By host.
    pub hosts: Vec<RunMetrics>,
    /// By job.
    pub jobs: Vec<RunMetrics>,
    /// By flow (host x job x device).
    pub flows: Vec<FlowMetrics>,
    /// By command size in bytes (one entry per size of the scenario).
    pub sizes: Vec<(u32, RunMetrics)>,
    /// Bits on the link in Gb/s, with headers.
    pub wire_gbps: f64,
    /// Standard deviation of the bandwidth in Gb/s over 100 ms samples and hosts.
    pub stddev_gbps: f64,
    /// Percentage of buffer reads that hit the cache.
    pub hit_pct: f64,
    /// Buffers with data in flight at the target, in commands: mean and maximum.
    pub buffers_mean: f64,
    /// See [`RunResult::buffers_mean`].
    pub buffers_max: u64,
    /// Mean bytes in flight at the target.
    pub bytes_in_flight_mean: f64,
    /// 100 ms samples (finer where the scenario asks).
    pub series: Vec<Sample>,
    /// Violations that the checkers found; empty in a correct run.
    pub violations: Vec<String>,
    /// Queues that never ran a command although they had some to run.
    pub starved_queues: u32,
    /// Real seconds the simulation took.
    pub real_seconds: f64,
}

/// Metrics of a set of commands.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct RunMetrics {
    /// Commands completed.
    pub commands: u64,
    /// Goodput in Gb/s.
    pub gbps: f64,
    /// Latency seen by the host, in ns.
    pub latency: Quantiles,
    /// Latency from arrival at the target to the end of the data's sending, in ns.
    pub at_target: Quantiles,
}

/// A latency distribution in ns.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Quantiles {
    /// Mean.
    pub mean: f64,
    /// Median.
    pub p50: Nanos,
    /// 99th percentile.
    pub p99: Nanos,
    /// 99.9th percentile.
    pub p99_9: Nanos,
    /// Largest.
    pub max: Nanos,
}

/// One flow.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct FlowMetrics {
    /// Host number.
    pub host: u32,
    /// Position in the scenario's jobs.
    pub job: u32,
    /// Position in the scenario's devices.
    pub device: u32,
    /// Metrics of its commands.
    pub metrics: RunMetrics,
}

/// One sample of the time series.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Sample {
    /// End of the sample, from the start of the run.
    pub at: Nanos,
    /// Goodput in Gb/s over the sample.
    pub gbps: f64,
    /// Hit rate in percent over the sample.
    pub hit_pct: f64,
    /// Commands with a buffer at its end.
    pub buffers: u64,
    /// Commands waiting for admission at its end.
    pub waiting: u64,
    /// The policy's budget in bytes at its end, if it has one.
    pub budget: Option<u64>,
    /// The policy's period per I/O in ns at its end, if it has one.
    pub period: Option<Nanos>,
}
