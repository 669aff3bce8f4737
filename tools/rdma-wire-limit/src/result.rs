//! Counting, and the output.

use std::cell::RefCell;
use std::fmt::{self, Display};
use std::time::{Duration, Instant};

use anyhow::Result;
use hdrhistogram::Histogram;
use serde::Serialize;

use crate::args::{Op, Wait};

/// Fills a block with its pattern.
pub(crate) fn pattern(index: usize, block: &mut [u8]) {
    for (at, byte) in block.iter_mut().enumerate() {
        *byte = index.wrapping_mul(31).wrapping_add(at.wrapping_mul(7)).to_le_bytes()[0];
    }
}

/// Requests that complete within an interval.
#[derive(Debug)]
pub(crate) struct Counter {
    from: Instant,
    until: Instant,
    /// Latencies in nanoseconds.
    latencies: RefCell<Histogram<u64>>,
}

impl Counter {
    /// Counts from `from`, for `time`.
    pub(crate) fn new(from: Instant, time: Duration) -> Result<Self> {
        let latencies = RefCell::new(Histogram::new(3)?);
        Ok(Self { from, until: from + time, latencies })
    }

    /// Records a completed request; returns whether to send another.
    pub(crate) fn completed(&self, began: Instant, ended: Instant) -> bool {
        if (self.from..self.until).contains(&ended) {
            let taken = ended.saturating_duration_since(began).as_nanos();
            // The histogram grows and accepts any value.
            let _ = self.latencies.borrow_mut().record(u64::try_from(taken).unwrap_or(u64::MAX));
        }
        ended < self.until
    }

    /// Returns the counted requests.
    pub(crate) fn count(&self) -> u64 {
        self.latencies.borrow().len()
    }

    /// Returns the figures.
    pub(crate) fn latency(&self) -> Latency {
        let latencies = self.latencies.borrow();
        let us = |nanoseconds: u64| nanoseconds as f64 / 1e3;
        Latency {
            min: us(latencies.min()),
            mean: latencies.mean() / 1e3,
            p50: us(latencies.value_at_quantile(0.5)),
            p99: us(latencies.value_at_quantile(0.99)),
            max: us(latencies.max()),
        }
    }
}

/// Latencies from posting a request to its completion, in microseconds.
#[derive(Debug, Serialize)]
pub(crate) struct Latency {
    min: f64,
    mean: f64,
    p50: f64,
    p99: f64,
    max: f64,
}

/// Parameters and results of a run.
#[derive(Debug, Serialize)]
pub(crate) struct Outcome {
    pub(crate) op: Op,
    pub(crate) block_bytes: u32,
    pub(crate) queue_depth: u32,
    pub(crate) mtu_bytes: u32,
    pub(crate) reads_outstanding: u8,
    pub(crate) wait: Wait,
    pub(crate) device: String,
    pub(crate) seconds: f64,
    pub(crate) requests: u64,
    pub(crate) bandwidth_gbps: f64,
    pub(crate) iops: f64,
    pub(crate) latency_us: Latency,
}

impl Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Latency { min, mean, p50, p99, max } = self.latency_us;
        let op = match self.op {
            Op::Read => "READ",
            Op::Write => "WRITE",
        };
        writeln!(
            f,
            "RDMA {op}, {} bytes, {} outstanding, packets of {}, {:.1} s",
            self.block_bytes, self.queue_depth, self.mtu_bytes, self.seconds
        )?;
        writeln!(f, "  {:.3} Gb/s, {:.0} requests/s", self.bandwidth_gbps, self.iops)?;
        write!(
            f,
            "  latency us: min {min:.1}, mean {mean:.1}, p50 {p50:.1}, p99 {p99:.1}, max {max:.1}"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_completes_in_time_is_counted() {
        let from = Instant::now() + Duration::from_secs(1);
        let counter = Counter::new(from, Duration::from_secs(2)).expect("a counter");
        let ms = Duration::from_millis;
        // Requests of the ramp that end within the interval count, so there is no gap.
        assert!(counter.completed(from - ms(5), from + ms(5)));
        assert!(counter.completed(from - ms(5), from - ms(1)));
        assert!(counter.completed(from, from + ms(20)));
        assert!(!counter.completed(from, from + ms(2000)));
        assert_eq!(counter.count(), 2);
        let latency = counter.latency();
        assert!((latency.min - 10_000.0).abs() < 20.0, "{latency:?}");
        assert!((latency.max - 20_000.0).abs() < 40.0, "{latency:?}");
    }

    #[test]
    fn blocks_differ() {
        let (mut a, mut b) = ([0; 300], [0; 300]);
        pattern(0, &mut a);
        pattern(1, &mut b);
        assert_ne!(a, b);
        assert_ne!(a[..150], a[150..]);
    }
}
