//! I/O queues of a host: one limit for all subsystems and transports here.

use crate::config_builder::ConfigBuilder;
use crate::note::Notes;

/// Maximum of `limits.io-queues`.
const QUEUES_MAX: u64 = 1024;
/// Default of `limits.connections`. Each queue of each host is one.
const CONNECTIONS: u64 = 256;
/// Default of `limits.io-queues`.
const QUEUES: u64 = 32;

/// Maximum I/O queues of a host, from one place of the other config.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct QueueLimit {
    pub(crate) path: String,
    pub(crate) queues: u64,
}

/// Sets the limit of the config to the largest of `limits`.
pub(crate) fn limit(builder: &mut ConfigBuilder, limits: &[QueueLimit], notes: &mut Notes) {
    let Some(largest) = limits.iter().max_by_key(|limit| limit.queues) else { return };
    let queues = largest.queues.clamp(1, QUEUES_MAX);
    builder.limits.io_queues = Some(queues);
    for one in limits.iter().filter(|one| one.queues != queues) {
        let what = format!(
            "io-queues is one limit for all hosts: {queues} queues instead of {}",
            one.queues
        );
        notes.converted(&one.path, what);
    }
    if queues > QUEUES {
        let what = format!(
            "limits.connections is {CONNECTIONS}, which {} hosts with {queues} queues use up: \
             raise it for more hosts",
            CONNECTIONS / (queues + 1)
        );
        notes.converted(&largest.path, what);
    }
}
