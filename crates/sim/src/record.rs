//! Measurement: values at the hosts and the target, in the window after the warm-up.

use crate::numbers::{gbps, id};
use crate::run_result::{FlowMetrics, Quantiles, RunMetrics, RunResult, Sample};
use crate::scenario::{Nanos, Scenario};

/// Histogram of times, in buckets at most 1.6 % wide.
#[derive(Debug, Clone, Default)]
pub(crate) struct Histogram {
    counts: Vec<u32>,
    sum: f64,
    number: u64,
    max: Nanos,
}

const FINE: u32 = 6;

impl Histogram {
    fn bucket(value: Nanos) -> usize {
        let octave = (64 - value.leading_zeros()).saturating_sub(FINE + 1);
        let within = usize::try_from(value >> octave).unwrap_or(0);
        (octave as usize) * (1 << FINE) + within
    }

    /// Returns the center of a bucket.
    fn value(bucket: usize) -> Nanos {
        let octave = (bucket >> FINE).saturating_sub(1);
        let within = bucket - octave * (1 << FINE);
        ((within as u64) << octave) + ((1_u64 << octave) >> 1)
    }

    pub(crate) fn add(&mut self, value: Nanos) {
        let at = Self::bucket(value);
        if at >= self.counts.len() {
            self.counts.resize(at + 1, 0);
        }
        self.counts[at] += 1;
        self.sum += value as f64;
        self.number += 1;
        self.max = self.max.max(value);
    }

    pub(crate) fn merge(&mut self, other: &Self) {
        if other.counts.len() > self.counts.len() {
            self.counts.resize(other.counts.len(), 0);
        }
        for (mine, theirs) in self.counts.iter_mut().zip(&other.counts) {
            *mine += theirs;
        }
        self.sum += other.sum;
        self.number += other.number;
        self.max = self.max.max(other.max);
    }

    fn at(&self, share: f64) -> Nanos {
        let rank = share * self.number as f64;
        let mut below = 0_u64;
        for (bucket, count) in self.counts.iter().enumerate() {
            below += u64::from(*count);
            if below as f64 >= rank && below > 0 {
                return Self::value(bucket).min(self.max);
            }
        }
        self.max
    }

    pub(crate) fn quantiles(&self) -> Quantiles {
        if self.number == 0 {
            return Quantiles::default();
        }
        Quantiles {
            mean: self.sum / self.number as f64,
            p50: self.at(0.5),
            p99: self.at(0.99),
            p99_9: self.at(0.999),
            max: self.max,
        }
    }
}

/// Counters of one flow and size.
#[derive(Debug, Clone, Default)]
struct FlowSizeCounters {
    commands: u64,
    bytes: u64,
    latency: Histogram,
    at_target: Histogram,
}

impl FlowSizeCounters {
    fn merge(&mut self, other: &Self) {
        self.commands += other.commands;
        self.bytes += other.bytes;
        self.latency.merge(&other.latency);
        self.at_target.merge(&other.at_target);
    }

    fn metrics(&self, time: Nanos) -> RunMetrics {
        RunMetrics {
            commands: self.commands,
            gbps: gbps(self.bytes, time),
            latency: self.latency.quantiles(),
            at_target: self.at_target.quantiles(),
        }
    }
}

/// Everything measured during a run.
#[derive(Debug)]
pub(crate) struct Recorder {
    from: Nanos,
    until: Nanos,
    hosts: usize,
    devices: usize,
    sizes: usize,
    /// By job, host, device and size.
    counters: Vec<FlowSizeCounters>,
    hit_bytes: f64,
    read_bytes: f64,
    wire_bytes: u64,
    /// Commands with a buffer, their bytes, and the integrals of both over the window.
    held: u64,
    held_bytes: u64,
    held_since: Nanos,
    held_area: f64,
    bytes_area: f64,
    held_max: u64,
    sample: SampleSoFar,
    series: Vec<Sample>,
    /// Bandwidth in the measured samples, by host.
    by_host: Vec<f64>,
}

#[derive(Debug, Default)]
struct SampleSoFar {
    from: Nanos,
    hit_bytes: f64,
    read_bytes: f64,
    by_host: Vec<u64>,
}

impl Recorder {
    pub(crate) fn new(scenario: &Scenario, sizes: usize) -> Self {
        let (hosts, devices) = (scenario.hosts as usize, scenario.devices.len());
        let all = scenario.jobs.len() * hosts * devices * sizes;
        Self {
            from: scenario.warm_up,
            until: scenario.warm_up + scenario.time,
            hosts,
            devices,
            sizes,
            counters: vec![FlowSizeCounters::default(); all],
            hit_bytes: 0.0,
            read_bytes: 0.0,
            wire_bytes: 0,
            held: 0,
            held_bytes: 0,
            held_since: 0,
            held_area: 0.0,
            bytes_area: 0.0,
            held_max: 0,
            sample: SampleSoFar { by_host: vec![0; hosts], ..SampleSoFar::default() },
            series: Vec::new(),
            by_host: Vec::new(),
        }
    }

    fn inside(&self, now: Nanos) -> bool {
        now >= self.from && now < self.until
    }

    /// Records a response at a host. `place` is job, host, device and size.
    pub(crate) fn completed(&mut self, place: [u32; 4], bytes: u32, latency: Nanos, now: Nanos) {
        self.sample.by_host[place[1] as usize] += u64::from(bytes);
        if self.inside(now) {
            let counters = self.counters_of(place);
            counters.commands += 1;
            counters.bytes += u64::from(bytes);
            counters.latency.add(latency);
        }
    }

    /// Records that the target has finished the data of a command.
    pub(crate) fn served(&mut self, place: [u32; 4], time: Nanos, now: Nanos) {
        if self.inside(now) {
            self.counters_of(place).at_target.add(time);
        }
    }

    /// Records that the NIC or a drive read a buffer, a fraction `hit` of it from the cache.
    pub(crate) fn fetched(&mut self, bytes: u32, hit: f64, now: Nanos) {
        let bytes = f64::from(bytes);
        self.sample.hit_bytes += bytes * hit;
        self.sample.read_bytes += bytes;
        if self.inside(now) {
            self.hit_bytes += bytes * hit;
            self.read_bytes += bytes;
        }
    }

    /// Records bytes on the link.
    pub(crate) fn sent(&mut self, bytes: u32, now: Nanos) {
        if self.inside(now) {
            self.wire_bytes += u64::from(bytes);
        }
    }

    /// Records that a command took its buffer.
    pub(crate) fn takes(&mut self, bytes: u32, now: Nanos) {
        self.flow_of_time(now);
        self.held += 1;
        self.held_bytes += u64::from(bytes);
        if self.inside(now) {
            self.held_max = self.held_max.max(self.held);
        }
    }

    /// Records that a command released its buffer.
    pub(crate) fn gives(&mut self, bytes: u32, now: Nanos) {
        self.flow_of_time(now);
        self.held -= 1;
        self.held_bytes -= u64::from(bytes);
    }

    /// Returns the bytes and the number of the commands with a buffer.
    pub(crate) fn in_flight(&self) -> (u64, u64) {
        (self.held_bytes, self.held)
    }

    fn flow_of_time(&mut self, now: Nanos) {
        let (from, until) = (self.held_since.max(self.from), now.min(self.until));
        if until > from {
            let time = (until - from) as f64;
            self.held_area += self.held as f64 * time;
            self.bytes_area += self.held_bytes as f64 * time;
        }
        self.held_since = now;
    }

    /// Ends a sample of the series.
    pub(crate) fn sample(&mut self, waiting: u64, stand: (Option<u64>, Option<Nanos>), now: Nanos) {
        let time = now - self.sample.from;
        let measured = self.sample.from >= self.from && now <= self.until;
        if measured {
            self.by_host.extend(self.sample.by_host.iter().map(|bytes| gbps(*bytes, time)));
        }
        let bytes = self.sample.by_host.iter().sum();
        self.series.push(Sample {
            at: now,
            gbps: gbps(bytes, time),
            hit_pct: percent(self.sample.hit_bytes, self.sample.read_bytes),
            buffers: self.held,
            waiting,
            budget: stand.0,
            period: stand.1,
        });
        self.sample.from = now;
        self.sample.hit_bytes = 0.0;
        self.sample.read_bytes = 0.0;
        self.sample.by_host.fill(0);
    }

    fn counters_of(&mut self, [job, host, device, size]: [u32; 4]) -> &mut FlowSizeCounters {
        let at = (job as usize * self.hosts + host as usize) * self.devices + device as usize;
        &mut self.counters[at * self.sizes + size as usize]
    }

    /// Returns all results. `wire_bits` is bits on the link per bit of data.
    pub(crate) fn run_result(mut self, sizes: &[u32], wire_bits: f64, now: Nanos) -> RunResult {
        self.flow_of_time(now);
        let time = self.until - self.from;
        let per_flow = self.sizes.max(1);
        let jobs = self.counters.len() / (per_flow * self.hosts * self.devices).max(1);
        let mut total = FlowSizeCounters::default();
        let mut by_job = vec![FlowSizeCounters::default(); jobs];
        let mut by_host = vec![FlowSizeCounters::default(); self.hosts];
        let mut by_size = vec![FlowSizeCounters::default(); self.sizes];
        let mut flows = Vec::new();
        for (at, counters_by_size) in self.counters.chunks(per_flow).enumerate() {
            let device = at % self.devices;
            let host = at / self.devices % self.hosts;
            let job = at / self.devices / self.hosts;
            let mut flow = FlowSizeCounters::default();
            for (size, counters) in counters_by_size.iter().enumerate() {
                flow.merge(counters);
                by_size[size].merge(counters);
            }
            if flow.commands == 0 {
                continue;
            }
            by_job[job].merge(&flow);
            by_host[host].merge(&flow);
            total.merge(&flow);
            let metrics = flow.metrics(time);
            flows.push(FlowMetrics { host: id(host), job: id(job), device: id(device), metrics });
        }
        let all =
            |counters: &[FlowSizeCounters]| counters.iter().map(|t| t.metrics(time)).collect();
        RunResult {
            total: total.metrics(time),
            hosts: all(&by_host),
            jobs: all(&by_job),
            flows,
            sizes: sizes.iter().zip(&by_size).map(|(s, t)| (*s, t.metrics(time))).collect(),
            wire_gbps: gbps(self.wire_bytes, time) * wire_bits,
            stddev_gbps: deviation(&self.by_host),
            hit_pct: percent(self.hit_bytes, self.read_bytes),
            buffers_mean: self.held_area / time as f64,
            buffers_max: self.held_max,
            bytes_in_flight_mean: self.bytes_area / time as f64,
            series: self.series,
            ..RunResult::default()
        }
    }
}

fn percent(part: f64, whole: f64) -> f64 {
    if whole > 0.0 { 100.0 * part / whole } else { 0.0 }
}

fn deviation(values: &[f64]) -> f64 {
    let number = values.len() as f64;
    if values.len() < 2 {
        return 0.0;
    }
    let mean = values.iter().sum::<f64>() / number;
    (values.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / number).sqrt()
}

#[cfg(test)]
mod tests {
    use super::{Histogram, deviation};

    #[test]
    fn quantiles_are_within_a_bucket() {
        let mut all = Histogram::default();
        (1..=100_000_u64).for_each(|value| all.add(value));
        let q = all.quantiles();
        assert!((q.mean - 50_000.5).abs() < 1e-6, "{q:?}");
        for (got, want) in [(q.p50, 50_000.0), (q.p99, 99_000.0), (q.p99_9, 99_900.0)] {
            assert!((got as f64 / want - 1.0).abs() < 0.017, "{got} for {want}");
        }
        assert_eq!(q.max, 100_000);
        for value in [0, 1, 63, 64, 127, 128, 129, 1 << 20, (1 << 40) + 12_345] {
            let median = Histogram::value(Histogram::bucket(value));
            assert!(median.abs_diff(value) * 64 <= value, "{value} went to {median}");
        }
    }

    #[test]
    fn deviation_is_of_all_samples() {
        assert!(deviation(&[4.0]).abs() < 1e-9);
        assert!((deviation(&[2.0, 4.0]) - 1.0).abs() < 1e-9);
    }
}
