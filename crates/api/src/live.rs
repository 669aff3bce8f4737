//! Figures for live displays: sums since the daemon's start, and current values.
//!
//! The difference of two samples gives rates.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Figures for live displays.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
pub struct LiveStats {
    /// Time of the daemon's clock in nanoseconds; only differences are meaningful.
    pub at_ns: u64,
    /// Pacer figures, for all reactors together.
    pub pacer: PacerSnapshot,
    /// I/O commands by kind: `read`, `write` and `other`.
    pub work: Vec<OpStats>,
    /// Wire delay: from a read's data being complete in memory to its having been sent.
    pub wire_delay: LatencyHistogram,
    /// Failed commands of any kind.
    pub errors: u64,
    /// One entry per reactor, in order.
    pub reactors: Vec<ReactorSnapshot>,
    /// Flows of hosts to namespaces, the busiest first: those with the most in flight and waiting.
    pub flows: Vec<FlowSnapshot>,
    /// Number of omitted flows.
    pub flows_omitted: u64,
    /// Tenants with limits, first those whose commands wait most.
    #[serde(default)]
    pub tenants: Vec<TenantSnapshot>,
    /// Number of omitted tenants.
    #[serde(default)]
    pub tenants_omitted: u64,
}

/// State of the pacer.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
pub struct PacerSnapshot {
    /// The policy in force.
    pub policy: String,
    /// Budget: maximum bytes in flight, if limited.
    pub budget_bytes: Option<u64>,
    /// Nanoseconds between commands, if the policy sets a period.
    pub period_ns: Option<u64>,
    /// State of the adaptive policy and its reason, in words.
    #[serde(default)]
    pub state: Option<String>,
    /// Commands in flight.
    pub in_flight: u64,
    /// Bytes of the buffers of commands in flight.
    pub in_flight_bytes: u64,
    /// Commands waiting for admission.
    pub waiting: u64,
    /// Commands started.
    pub started: u64,
    /// Number of deferrals of waiting commands.
    pub deferred: u64,
}

/// Commands of one kind.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
pub struct OpStats {
    /// `read`, `write` or `other`.
    pub op: String,
    /// Commands answered.
    pub ops: u64,
    /// Bytes transferred between hosts and target.
    pub bytes: u64,
    /// LatencyHistogram from the capsule until the response was sent.
    pub times: LatencyHistogram,
}

/// Histogram of times.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
pub struct LatencyHistogram {
    /// Number of times.
    pub count: u64,
    /// Sum of the times in nanoseconds.
    pub sum_ns: u64,
    /// Buckets, shortest first; empty ones are omitted.
    pub buckets: Vec<Bucket>,
}

/// Bucket of a histogram.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
pub struct Bucket {
    /// Exclusive upper bound in nanoseconds. The lower bound is at least 8/9 of it; the first
    /// bucket begins at 0.
    pub end_ns: u64,
    /// Number of times in the bucket.
    pub count: u64,
}

/// Figures of a reactor.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
pub struct ReactorSnapshot {
    /// Turns of the reactor.
    pub turns: u64,
    /// Turns with work.
    pub busy_turns: u64,
    /// Commands started.
    pub started: u64,
    /// Bytes of commands in flight.
    pub in_flight_bytes: u64,
    /// Commands waiting for admission.
    pub waiting: u64,
}

/// Figures of one host and one namespace, over all connections.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
pub struct FlowSnapshot {
    /// The subsystem. With an empty host, the entry covers the hosts beyond the maximum.
    pub subsystem: String,
    /// The namespace; absent if it was removed.
    pub nsid: Option<u32>,
    /// The host.
    pub host: String,
    /// The backing device of the namespace.
    pub device: String,
    /// Commands with data in flight.
    pub in_flight: u64,
    /// Bytes of their buffers.
    pub in_flight_bytes: u64,
    /// Commands waiting for admission.
    pub waiting: u64,
    /// Reads answered.
    pub reads: u64,
    /// Writes answered.
    pub writes: u64,
    /// Other commands answered.
    pub others: u64,
    /// Bytes of the reads.
    pub read_bytes: u64,
    /// Bytes of the writes.
    pub write_bytes: u64,
    /// Commands that failed.
    pub errors: u64,
}

/// Limits and usage of a host, or of a namespace by all hosts. Absent limits are not set.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
pub struct TenantSnapshot {
    /// The host; empty for a namespace.
    pub host: String,
    /// The subsystem of the namespace; empty for a host, whose limits span all subsystems.
    pub subsystem: String,
    /// The namespace; absent for a host.
    pub nsid: Option<u32>,
    /// Maximum I/Os per second.
    pub max_iops: Option<u64>,
    /// Maximum bytes per second.
    pub max_bandwidth_bytes: Option<u64>,
    /// Maximum bytes in flight.
    pub max_in_flight_bytes: Option<u64>,
    /// Maximum connections.
    pub max_connections: Option<u32>,
    /// Maximum I/O queues.
    pub max_queues: Option<u32>,
    /// I/O commands answered.
    pub ops: u64,
    /// Bytes transferred by them.
    pub bytes: u64,
    /// Bytes that count against `max_in_flight_bytes`; absent without that limit.
    pub limited_in_flight_bytes: Option<u64>,
    /// Current connections of a host.
    pub connections: u32,
    /// Current I/O queues of a host.
    pub io_queues: u32,
    /// Connects rejected because of the maximum, since the host last had no connection.
    pub refused: u64,
    /// Commands that wait for a limit or for the pacer.
    pub waiting: u64,
    /// Number of waits of commands for a rate.
    pub throttled_by_rate: u64,
    /// Time with commands waiting for a rate, summed over the reactors.
    pub throttled_by_rate_ns: u64,
    /// Number of waits of commands for bytes in flight.
    pub throttled_by_in_flight: u64,
    /// As `throttled_by_rate_ns`, for bytes in flight.
    pub throttled_by_in_flight_ns: u64,
}

impl TenantSnapshot {
    /// Returns true if any limit is set.
    #[must_use]
    pub fn is_limited(&self) -> bool {
        self.max_iops.is_some()
            || self.max_bandwidth_bytes.is_some()
            || self.max_in_flight_bytes.is_some()
            || self.max_connections.is_some()
            || self.max_queues.is_some()
    }

    /// Returns the number of waits of commands for any limit.
    #[must_use]
    pub fn throttled(&self) -> u64 {
        self.throttled_by_rate.saturating_add(self.throttled_by_in_flight)
    }
}

impl LatencyHistogram {
    /// Returns the times added since `before`, an earlier state of the same histogram.
    #[must_use]
    pub fn since(&self, before: &Self) -> Self {
        let earlier = |end_ns| {
            let found = before.buckets.iter().find(|bucket| bucket.end_ns == end_ns);
            found.map_or(0, |bucket| bucket.count)
        };
        let left = self.buckets.iter().map(|bucket| Bucket {
            count: bucket.count.saturating_sub(earlier(bucket.end_ns)),
            ..*bucket
        });
        Self {
            count: self.count.saturating_sub(before.count),
            sum_ns: self.sum_ns.saturating_sub(before.sum_ns),
            buckets: left.filter(|bucket| bucket.count > 0).collect(),
        }
    }

    /// Returns the `per_mille` quantile in nanoseconds; `None` without times.
    #[must_use]
    pub fn quantile(&self, per_mille: u64) -> Option<u64> {
        let count: u64 = self.buckets.iter().map(|bucket| bucket.count).sum();
        let rank = (u128::from(count) * u128::from(per_mille)).div_ceil(1000).max(1);
        let mut seen = 0;
        let reached = |bucket: &&Bucket| {
            seen += u128::from(bucket.count);
            seen >= rank
        };
        self.buckets.iter().find(reached).map(|bucket| bucket.end_ns)
    }

    /// Returns the mean in nanoseconds; `None` without times.
    #[must_use]
    pub fn mean(&self) -> Option<u64> {
        self.sum_ns.checked_div(self.count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn times(buckets: &[(u64, u64)]) -> LatencyHistogram {
        let buckets: Vec<_> =
            buckets.iter().map(|&(end_ns, count)| Bucket { end_ns, count }).collect();
        let count = buckets.iter().map(|bucket| bucket.count).sum();
        let sum_ns = buckets.iter().map(|bucket| bucket.count * bucket.end_ns).sum();
        LatencyHistogram { count, sum_ns, buckets }
    }

    #[test]
    fn what_lies_between_two_answers() {
        let (before, now) = (times(&[(10, 5), (20, 1)]), times(&[(10, 5), (20, 4), (90, 1)]));
        let since = now.since(&before);
        assert_eq!(since, times(&[(20, 3), (90, 1)]));
        assert_eq!((since.quantile(500), since.quantile(990)), (Some(20), Some(90)));
        assert_eq!((since.mean(), since.quantile(0)), (Some(37), Some(20)));
        assert_eq!(
            (LatencyHistogram::default().quantile(500), LatencyHistogram::default().mean()),
            (None, None)
        );
    }
}
