//! Where things stand, for whoever draws it: sums since the daemon's start, so that a rate is what lies between two
//! answers, and what holds right now.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Where things stand.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
pub struct Live {
    /// The time on the daemon's clock, in nanoseconds; only differences mean anything.
    pub at_ns: u64,
    /// The pacer, of all reactors together.
    pub pacer: PacerNow,
    /// I/O commands by what they do: `read`, `write` and `other`.
    pub work: Vec<Work>,
    /// From a read's data being complete in memory to its having left for the network.
    pub wire_delay: Times,
    /// Commands that failed, of every kind.
    pub errors: u64,
    /// One a reactor, in order.
    pub reactors: Vec<ReactorNow>,
    /// What hosts do with namespaces, the busiest first: those with most in flight and waiting.
    pub flows: Vec<FlowNow>,
    /// Flows beyond those.
    pub flows_left_out: u64,
    /// Hosts and namespaces that have limits, those first whose commands wait most.
    #[serde(default)]
    pub tenants: Vec<TenantNow>,
    /// Tenants beyond those.
    #[serde(default)]
    pub tenants_left_out: u64,
}

/// Where the pacer stands.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
pub struct PacerNow {
    /// The policy in force.
    pub policy: String,
    /// Bytes that may be in flight, if they are bounded.
    pub budget_bytes: Option<u64>,
    /// Time from one command to the next, if there is one.
    pub period_ns: Option<u64>,
    /// Why the budget last moved, if it moves by itself.
    pub last_move: Option<String>,
    /// Commands in flight now.
    pub in_flight: u64,
    /// Bytes of their buffers.
    pub in_flight_bytes: u64,
    /// Commands that wait for admission now.
    pub waiting: u64,
    /// Commands that have started.
    pub started: u64,
    /// Times that a command waited and might not start.
    pub held_back: u64,
}

/// Commands of one kind.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
pub struct Work {
    /// `read`, `write` or `other`.
    pub op: String,
    /// Those that were answered.
    pub ops: u64,
    /// Bytes that moved between hosts and target.
    pub bytes: u64,
    /// From the capsule until the answer has left.
    pub times: Times,
}

/// Times by their length.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
pub struct Times {
    /// How many.
    pub count: u64,
    /// All together, in nanoseconds.
    pub sum_ns: u64,
    /// How many lie where, shortest first; what is empty is left out.
    pub buckets: Vec<Bucket>,
}

/// Times of about the same length.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
pub struct Bucket {
    /// They are shorter than this, in nanoseconds, and at least 8/9 of it; the first bucket begins at 0.
    pub end_ns: u64,
    /// How many.
    pub count: u64,
}

/// Where a reactor stands.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
pub struct ReactorNow {
    /// Turns of its loop.
    pub turns: u64,
    /// Those that found something to do.
    pub busy_turns: u64,
    /// Commands that have started.
    pub started: u64,
    /// Bytes of commands in flight now.
    pub in_flight_bytes: u64,
    /// Commands that wait for admission now.
    pub waiting: u64,
}

/// What one host does with one namespace, over all its connections.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
pub struct FlowNow {
    /// The subsystem; with the host empty where there are too many hosts to tell them apart.
    pub subsystem: String,
    /// The namespace; nothing if it is gone.
    pub nsid: Option<u32>,
    /// The host.
    pub host: String,
    /// The device behind the namespace.
    pub device: String,
    /// Commands with data in flight now.
    pub in_flight: u64,
    /// Bytes of their buffers.
    pub in_flight_bytes: u64,
    /// Commands that wait for admission now.
    pub waiting: u64,
    /// Reads that were answered.
    pub reads: u64,
    /// Writes that were answered.
    pub writes: u64,
    /// Other commands that were answered.
    pub others: u64,
    /// Bytes of the reads.
    pub read_bytes: u64,
    /// Bytes of the writes.
    pub write_bytes: u64,
    /// Commands that failed.
    pub errors: u64,
}

/// What a host, or a namespace with whoever uses it, has of what it may have. What it may have is left out where it is
/// not limited.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
pub struct TenantNow {
    /// The host; empty for a namespace.
    pub host: String,
    /// The namespace's subsystem; empty for a host, which is one in all.
    pub subsystem: String,
    /// The namespace; nothing for a host.
    pub nsid: Option<u32>,
    /// I/Os a second that it may start.
    pub max_iops: Option<u64>,
    /// Bytes a second that it may move.
    pub max_bandwidth_bytes: Option<u64>,
    /// Bytes that it may have in flight.
    pub max_in_flight_bytes: Option<u64>,
    /// Connections that it may have.
    pub max_connections: Option<u32>,
    /// I/O queues that it may have.
    pub max_queues: Option<u32>,
    /// I/O commands that were answered.
    pub ops: u64,
    /// Bytes that they moved.
    pub bytes: u64,
    /// Bytes that count against `max_in_flight_bytes` now; nothing where that is not limited.
    pub taken_bytes: Option<u64>,
    /// Connections of a host now.
    pub connections: u32,
    /// Its I/O queues now.
    pub io_queues: u32,
    /// Connects refused because it had as many as it may, since it last had none.
    pub refused: u64,
    /// Commands that wait now, for a limit or for the pacer.
    pub waiting: u64,
    /// Times that a command had to wait for a rate.
    pub held_by_rate: u64,
    /// Time that commands waited for a rate: that of each reactor on which any did, added up.
    pub rate_wait_ns: u64,
    /// Times that a command had to wait for bytes in flight.
    pub held_by_in_flight: u64,
    /// As `rate_wait_ns`, for bytes in flight.
    pub in_flight_wait_ns: u64,
}

impl TenantNow {
    /// Whether it has any limit.
    #[must_use]
    pub fn is_limited(&self) -> bool {
        self.max_iops.is_some()
            || self.max_bandwidth_bytes.is_some()
            || self.max_in_flight_bytes.is_some()
            || self.max_connections.is_some()
            || self.max_queues.is_some()
    }

    /// Times that a command had to wait for any limit.
    #[must_use]
    pub fn held_back(&self) -> u64 {
        self.held_by_rate.saturating_add(self.held_by_in_flight)
    }
}

impl Times {
    /// What came since `before`, an earlier state of the same.
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

    /// The time that so many of a thousand do not exceed, in nanoseconds; nothing where there are none.
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

    /// Their mean in nanoseconds; nothing where there are none.
    #[must_use]
    pub fn mean(&self) -> Option<u64> {
        self.sum_ns.checked_div(self.count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn times(buckets: &[(u64, u64)]) -> Times {
        let buckets: Vec<_> =
            buckets.iter().map(|&(end_ns, count)| Bucket { end_ns, count }).collect();
        let count = buckets.iter().map(|bucket| bucket.count).sum();
        let sum_ns = buckets.iter().map(|bucket| bucket.count * bucket.end_ns).sum();
        Times { count, sum_ns, buckets }
    }

    #[test]
    fn what_lies_between_two_answers() {
        let (before, now) = (times(&[(10, 5), (20, 1)]), times(&[(10, 5), (20, 4), (90, 1)]));
        let since = now.since(&before);
        assert_eq!(since, times(&[(20, 3), (90, 1)]));
        assert_eq!((since.quantile(500), since.quantile(990)), (Some(20), Some(90)));
        assert_eq!((since.mean(), since.quantile(0)), (Some(37), Some(20)));
        assert_eq!((Times::default().quantile(500), Times::default().mean()), (None, None));
    }
}
