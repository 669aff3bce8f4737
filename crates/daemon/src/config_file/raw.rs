//! A config as written: every key, with the position of each value.
//!
//! Validation of the values follows later, so that an error can name the line. The model of
//! `nvmeof_api::document` reads the tables of devices and of pacing.

use nvmeof_api::document::Size;
use serde::Deserialize;
use toml::{Spanned, Table};

use crate::config::values::Key;

#[derive(Debug, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub(super) struct RawConfig {
    pub(super) format: Key<i64>,
    pub(super) reactors: Key<String>,
    pub(super) busy_poll: Key<bool>,
    pub(super) drain_timeout: Key<String>,
    pub(super) log: Key<String>,
    pub(super) log_format: Key<String>,
    pub(super) api: Key<RawApi>,
    pub(super) rpc: Key<RawRpc>,
    #[serde(default)]
    pub(super) limits: RawLimits,
    pub(super) pacing: Key<Table>,
    #[serde(default)]
    pub(super) host_defaults: RawHostDefaults,
    #[serde(default)]
    pub(super) host: Vec<Spanned<RawHost>>,
    #[serde(default)]
    pub(super) discovery: RawDiscovery,
    #[serde(default)]
    pub(super) listener: Vec<Spanned<RawListener>>,
    #[serde(default)]
    pub(super) device: Vec<Spanned<Table>>,
    #[serde(default)]
    pub(super) root_complex: Vec<Spanned<RawRootComplex>>,
    #[serde(default)]
    pub(super) subsystem: Vec<Spanned<RawSubsystem>>,
    #[serde(default)]
    pub(super) referral: Vec<Spanned<RawReferral>>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub(super) struct RawApi {
    pub(super) socket: Key<String>,
    pub(super) mode: Key<String>,
    pub(super) listen: Key<Vec<Spanned<String>>>,
    pub(super) token_file: Key<String>,
    pub(super) insecure: Key<bool>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub(super) struct RawRpc {
    pub(super) socket: Key<String>,
    pub(super) mode: Key<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub(super) struct RawLimits {
    pub(super) connections: Key<i64>,
    pub(super) io_queues: Key<i64>,
    pub(super) queue_depth: Key<i64>,
    pub(super) max_transfer: Key<Size>,
    pub(super) in_capsule: Key<Size>,
    pub(super) buffer_memory: Key<Size>,
    pub(super) keep_alive_min: Key<String>,
    pub(super) connect_timeout: Key<String>,
    pub(super) pdu_timeout: Key<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub(super) struct RawHostDefaults {
    pub(super) limit: Key<RawLimit>,
    pub(super) weight: Key<i64>,
    pub(super) max_connections: Key<i64>,
    pub(super) max_queues: Key<i64>,
    pub(super) max_in_flight: Key<Size>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub(super) struct RawHost {
    pub(super) nqn: Key<String>,
    pub(super) limit: Key<RawLimit>,
    pub(super) weight: Key<i64>,
    pub(super) max_connections: Key<i64>,
    pub(super) max_queues: Key<i64>,
    pub(super) max_in_flight: Key<Size>,
}

/// Rate limits of a host or a namespace.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub(super) struct RawLimit {
    pub(super) iops: Key<i64>,
    pub(super) bandwidth: Key<String>,
    pub(super) burst: Key<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub(super) struct RawDiscovery {
    pub(super) nqn: Key<String>,
    pub(super) restricted: Key<bool>,
    pub(super) mdns: Key<bool>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub(super) struct RawListener {
    #[serde(rename = "type")]
    pub(super) kind: Key<String>,
    pub(super) address: Key<String>,
    pub(super) port: Key<i64>,
    pub(super) subsystems: Key<Vec<Spanned<String>>>,
    pub(super) fold_responses: Key<String>,
    pub(super) rdma_device: Key<String>,
    pub(super) gid_index: Key<i64>,
    pub(super) traffic_class: Key<i64>,
    pub(super) retry_count: Key<i64>,
    pub(super) rnr_retry_count: Key<i64>,
    pub(super) shared_receives: Key<bool>,
    pub(super) completion_queue_depth: Key<i64>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub(super) struct RawRootComplex {
    pub(super) address: Key<String>,
    pub(super) bandwidth: Key<String>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub(super) struct RawSubsystem {
    pub(super) nqn: Key<String>,
    pub(super) allow_any_host: Key<bool>,
    pub(super) hosts: Key<Vec<Spanned<String>>>,
    pub(super) serial: Key<String>,
    pub(super) model: Key<String>,
    pub(super) cntlid_min: Key<i64>,
    pub(super) cntlid_max: Key<i64>,
    #[serde(default)]
    pub(super) namespace: Vec<Spanned<RawNamespace>>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub(super) struct RawNamespace {
    pub(super) nsid: Key<i64>,
    pub(super) device: Key<String>,
    pub(super) weight: Key<i64>,
    pub(super) limit: Key<RawLimit>,
    pub(super) uuid: Key<String>,
    pub(super) medium: Key<String>,
    pub(super) nguid: Key<String>,
    pub(super) eui64: Key<String>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub(super) struct RawReferral {
    #[serde(rename = "type")]
    pub(super) kind: Key<String>,
    pub(super) address: Key<String>,
    pub(super) port: Key<i64>,
    pub(super) nqn: Key<String>,
}
