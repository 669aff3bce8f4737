//! Statistics of a running load.

use hdrhistogram::Histogram;
use nvmeof_initiator::Nanos;

/// Length of a bucket of the series.
pub(crate) const BUCKET: Nanos = 100_000_000;
/// Resolution of latencies in nanoseconds; above it, they have three digits.
const RESOLUTION: u64 = 8;
/// Longest latency recorded; quantiles count longer ones as this value.
const LONGEST: u64 = 100_000_000_000;
const DIGITS: u8 = 3;

/// Latencies of I/Os, in nanoseconds.
#[derive(Debug, Clone)]
pub(crate) struct LatencyHistogram {
    histogram: Histogram<u32>,
    sum: u128,
    min: u64,
    max: u64,
}

impl LatencyHistogram {
    pub(crate) fn new() -> Self {
        #[expect(clippy::expect_used, reason = "the bounds are constants")]
        let histogram = Histogram::new_with_bounds(RESOLUTION, LONGEST, DIGITS)
            .expect("valid histogram bounds");
        Self { histogram, sum: 0, min: u64::MAX, max: 0 }
    }

    #[inline]
    pub(crate) fn record(&mut self, nanos: Nanos) {
        self.histogram.saturating_record(nanos);
        self.sum += u128::from(nanos);
        self.min = self.min.min(nanos);
        self.max = self.max.max(nanos);
    }

    pub(crate) fn add(&mut self, other: &Self) {
        // Both have the same bounds, so no value is out of range.
        let _ = self.histogram.add(&other.histogram);
        self.sum += other.sum;
        self.min = self.min.min(other.min);
        self.max = self.max.max(other.max);
    }

    pub(crate) fn count(&self) -> u64 {
        self.histogram.len()
    }

    pub(crate) fn min(&self) -> Option<u64> {
        (self.count() > 0).then_some(self.min)
    }

    pub(crate) fn max(&self) -> Option<u64> {
        (self.count() > 0).then_some(self.max)
    }

    /// Mean in nanoseconds.
    pub(crate) fn mean(&self) -> Option<f64> {
        #[expect(clippy::cast_precision_loss, reason = "a mean")]
        let mean = || self.sum as f64 / self.count() as f64;
        (self.count() > 0).then(mean)
    }

    /// Standard deviation in nanoseconds, of latencies with three digits.
    pub(crate) fn deviation(&self) -> Option<f64> {
        let mean = self.mean()?;
        #[expect(clippy::cast_precision_loss, reason = "a deviation")]
        let squares = self.counts().map(|(nanos, ios)| (nanos as f64 - mean).powi(2) * ios as f64);
        #[expect(clippy::cast_precision_loss, reason = "a mean")]
        let variance = squares.sum::<f64>() / self.count() as f64;
        Some(variance.sqrt())
    }

    /// Every recorded latency in nanoseconds, with three digits, and its count; in order.
    pub(crate) fn counts(&self) -> impl Iterator<Item = (u64, u64)> {
        let recorded = self.histogram.iter_recorded();
        recorded.map(|value| (value.value_iterated_to(), u64::from(value.count_at_value())))
    }

    /// Latency that a share of `quantile` (0 to 1) of the I/Os does not exceed.
    pub(crate) fn quantile(&self, quantile: f64) -> Option<u64> {
        let value = self.histogram.value_at_quantile(quantile);
        (self.count() > 0).then(|| value.clamp(self.min, self.max))
    }
}

/// Statistics of one direction of one flow.
#[derive(Debug, Clone)]
pub(crate) struct DirectionCounters {
    pub(crate) latency: LatencyHistogram,
    pub(crate) bytes: u64,
}

impl DirectionCounters {
    pub(crate) fn new() -> Self {
        Self { latency: LatencyHistogram::new(), bytes: 0 }
    }

    #[inline]
    pub(crate) fn record(&mut self, nanos: Nanos, bytes: u64) {
        self.latency.record(nanos);
        self.bytes += bytes;
    }

    pub(crate) fn add(&mut self, other: &Self) {
        self.latency.add(&other.latency);
        self.bytes += other.bytes;
    }

    pub(crate) fn ios(&self) -> u64 {
        self.latency.count()
    }
}

/// Results of verification, in blocks.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct VerifyCounters {
    pub(crate) good: u64,
    pub(crate) unwritten: u64,
    pub(crate) errors: u64,
}

impl VerifyCounters {
    pub(crate) fn add(&mut self, other: Self) {
        self.good += other.good;
        self.unwritten += other.unwritten;
        self.errors += other.errors;
    }
}

/// I/Os and bytes over time.
#[derive(Debug, Clone, Default)]
pub(crate) struct TimeSeries {
    buckets: Vec<(u64, u64)>,
}

impl TimeSeries {
    /// A series with room for `length`.
    pub(crate) fn new(length: Nanos) -> Self {
        let buckets = usize::try_from(length.div_ceil(BUCKET)).unwrap_or(0);
        Self { buckets: Vec::with_capacity(buckets.min(1 << 20) + 1) }
    }

    /// Records `ios` with `bytes`, completed `at` nanoseconds after the start.
    #[inline]
    pub(crate) fn record(&mut self, at: Nanos, ios: u64, bytes: u64) {
        let index = usize::try_from(at / BUCKET).unwrap_or(0);
        if index >= self.buckets.len() {
            self.buckets.resize(index + 1, (0, 0));
        }
        let bucket = &mut self.buckets[index];
        bucket.0 += ios;
        bucket.1 += bytes;
    }

    pub(crate) fn add(&mut self, other: &Self) {
        if other.buckets.len() > self.buckets.len() {
            self.buckets.resize(other.buckets.len(), (0, 0));
        }
        for (to, from) in self.buckets.iter_mut().zip(&other.buckets) {
            to.0 += from.0;
            to.1 += from.1;
        }
    }

    /// Start in nanoseconds, I/Os and bytes of each bucket that ended by `length`.
    pub(crate) fn buckets(&self, length: Nanos) -> impl Iterator<Item = (Nanos, u64, u64)> {
        let whole = usize::try_from(length / BUCKET).unwrap_or(usize::MAX);
        let padding = whole.saturating_sub(self.buckets.len());
        let buckets = self.buckets.iter().copied().chain(std::iter::repeat_n((0, 0), padding));
        (0..).zip(buckets).take(whole).map(|(at, (ios, bytes))| (at * BUCKET, ios, bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn latencies() {
        let mut latency = LatencyHistogram::new();
        assert_eq!((latency.min(), latency.quantile(0.5), latency.max()), (None, None, None));
        for micros in 1..=1000 {
            latency.record(micros * 1000);
        }
        assert_eq!((latency.min(), latency.max()), (Some(1000), Some(1_000_000)));
        assert!((latency.mean().unwrap() - 500_500.0).abs() < 1e-6);
        let median = latency.quantile(0.5).unwrap();
        assert!((499_000..=501_500).contains(&median), "{median}");
        let mut both = LatencyHistogram::new();
        both.record(5);
        both.add(&latency);
        assert_eq!((both.count(), both.min()), (1001, Some(5)));
    }

    #[test]
    fn an_endless_latency_is_counted() {
        let mut latency = LatencyHistogram::new();
        latency.record(u64::MAX);
        assert_eq!((latency.count(), latency.max()), (1, Some(u64::MAX)));
    }

    #[test]
    fn a_series_has_every_whole_bucket_and_no_other() {
        let mut series = TimeSeries::new(3 * BUCKET);
        series.record(0, 1, 10);
        series.record(BUCKET - 1, 1, 10);
        series.record(2 * BUCKET, 5, 50);
        let mut other = TimeSeries::new(0);
        other.record(BUCKET, 7, 70);
        series.add(&other);
        let all: Vec<_> = series.buckets(4 * BUCKET + 1).collect();
        assert_eq!(all, [(0, 2, 20), (BUCKET, 7, 70), (2 * BUCKET, 5, 50), (3 * BUCKET, 0, 0)]);
        assert_eq!(series.buckets(2 * BUCKET).count(), 2);
    }
}
