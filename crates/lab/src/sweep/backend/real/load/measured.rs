//! Measurements of load generators, and their sums.

use std::collections::BTreeMap;

use nvmeof_report::{Figures, Latency};

/// Results of one job on one host, or of several together.
#[derive(Debug, Clone, Default, PartialEq)]
pub(in crate::sweep::backend::real) struct LoadResult {
    pub(in crate::sweep::backend::real) ios: u64,
    pub(in crate::sweep::backend::real) bytes: u64,
    /// Measured time.
    pub(in crate::sweep::backend::real) seconds: f64,
    /// Sum over all I/Os.
    pub(in crate::sweep::backend::real) latency_sum_ns: f64,
    pub(in crate::sweep::backend::real) latency_max_ns: u64,
    /// Latency in nanoseconds, and the number of I/Os with it.
    pub(in crate::sweep::backend::real) histogram: BTreeMap<u64, u64>,
    /// CPU seconds of the load generator.
    pub(in crate::sweep::backend::real) cpu_s: f64,
    /// By namespace, if the program distinguishes namespaces.
    pub(in crate::sweep::backend::real) spaces: Vec<NamespaceResult>,
    /// Gb/s in each interval of 100 ms.
    pub(in crate::sweep::backend::real) series: Vec<f64>,
}

/// Results of one namespace.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(in crate::sweep::backend::real) struct NamespaceResult {
    pub(in crate::sweep::backend::real) nsid: u32,
    pub(in crate::sweep::backend::real) gbps: f64,
    pub(in crate::sweep::backend::real) mean_us: f64,
    pub(in crate::sweep::backend::real) p99_us: f64,
}

impl LoadResult {
    /// Sums results of tasks that ran at the same time.
    pub(in crate::sweep::backend::real) fn together<'a>(
        all: impl IntoIterator<Item = &'a Self>,
    ) -> Self {
        let mut sum = Self::default();
        for one in all {
            sum.ios += one.ios;
            sum.bytes += one.bytes;
            sum.seconds = sum.seconds.max(one.seconds);
            sum.latency_sum_ns += one.latency_sum_ns;
            sum.latency_max_ns = sum.latency_max_ns.max(one.latency_max_ns);
            for (nanos, ios) in &one.histogram {
                *sum.histogram.entry(*nanos).or_default() += ios;
            }
            sum.cpu_s += one.cpu_s;
            sum.series.resize(sum.series.len().max(one.series.len()), 0.0);
            for (sum, gbps) in sum.series.iter_mut().zip(&one.series) {
                *sum += gbps;
            }
        }
        sum
    }

    pub(in crate::sweep::backend::real) fn figures(&self) -> Figures {
        let per_second = |value: f64| if self.seconds > 0.0 { value / self.seconds } else { 0.0 };
        Figures {
            kiops: per_second(real(self.ios)) / 1e3,
            gbps: per_second(real(self.bytes)) * 8.0 / 1e9,
            latency_us: Latency {
                mean: if self.ios > 0 { self.latency_sum_ns / real(self.ios) / 1e3 } else { 0.0 },
                p50: self.quantile(0.5),
                p99: self.quantile(0.99),
                p99_9: self.quantile(0.999),
                max: real(self.latency_max_ns) / 1e3,
            },
            at_target_us: None,
        }
    }

    /// Returns the latency in us that a share of `quantile` does not exceed.
    fn quantile(&self, quantile: f64) -> f64 {
        let all: u64 = self.histogram.values().sum();
        let wanted = real(all) * quantile;
        let mut seen = 0;
        let found = self.histogram.iter().find(|(_, ios)| {
            seen += **ios;
            real(seen) >= wanted
        });
        let found = found.map_or(0, |(nanos, _)| *nanos);
        real(found.min(self.latency_max_ns)) / 1e3
    }
}

/// Converts to a float, exact below 2^53.
#[expect(clippy::cast_precision_loss, reason = "no count here comes near 2^53")]
pub(in crate::sweep::backend::real) fn real(value: u64) -> f64 {
    value as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one(latencies: &[(u64, u64)], seconds: f64, series: &[f64]) -> LoadResult {
        let ios = latencies.iter().map(|(_, ios)| ios).sum();
        LoadResult {
            ios,
            bytes: ios * 4096,
            seconds,
            latency_sum_ns: latencies.iter().map(|(ns, ios)| real(ns * ios)).sum(),
            latency_max_ns: latencies.last().map_or(0, |(ns, _)| *ns),
            histogram: latencies.iter().copied().collect(),
            cpu_s: 0.5,
            spaces: Vec::new(),
            series: series.to_vec(),
        }
    }

    #[test]
    fn percentiles_of_several_are_those_of_all_their_ios() {
        // 98 fast I/Os on one host, 2 slow ones on the other: neither host's p50 or p99 shows it.
        let fast = one(&[(1000, 98)], 1.0, &[1.0, 2.0]);
        let slow = one(&[(9_000, 1), (50_000, 1)], 1.0, &[0.5]);
        let both = LoadResult::together([&fast, &slow]);
        let figures = both.figures();
        assert_eq!((both.ios, both.cpu_s), (100, 1.0));
        assert_eq!(figures.latency_us.p50, 1.0);
        assert_eq!(figures.latency_us.p99, 9.0);
        assert_eq!((figures.latency_us.p99_9, figures.latency_us.max), (50.0, 50.0));
        assert!((figures.latency_us.mean - (98.0 + 9.0 + 50.0) / 100.0).abs() < 1e-9);
        assert_eq!(both.series, [1.5, 2.0]);
        assert!((figures.kiops - 0.1).abs() < 1e-12);
    }

    #[test]
    fn nothing_measured_is_zero() {
        assert_eq!(LoadResult::default().figures(), Figures::default());
    }
}
