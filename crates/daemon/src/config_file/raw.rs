//! A config as written: every key, with the position of each value.
//!
//! Validation of the values follows later, so that an error can name the line.

use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, Error, Visitor};
use toml::Spanned;

/// A value and its position; `None` if the key is absent.
pub(super) type Key<T> = Option<Spanned<T>>;

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
    #[serde(default)]
    pub(super) limits: RawLimits,
    #[serde(default)]
    pub(super) pacing: RawPacing,
    #[serde(default)]
    pub(super) host_defaults: RawHostDefaults,
    #[serde(default)]
    pub(super) host: Vec<Spanned<RawHost>>,
    #[serde(default)]
    pub(super) listener: Vec<Spanned<RawListener>>,
    #[serde(default)]
    pub(super) device: Vec<Spanned<RawDevice>>,
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

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub(super) struct RawLimits {
    pub(super) connections: Key<i64>,
    pub(super) io_queues: Key<i64>,
    pub(super) queue_depth: Key<i64>,
    pub(super) max_transfer: Key<RawSize>,
    pub(super) in_capsule: Key<RawSize>,
    pub(super) buffer_memory: Key<RawSize>,
    pub(super) keep_alive_min: Key<String>,
    pub(super) connect_timeout: Key<String>,
    pub(super) pdu_timeout: Key<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub(super) struct RawPacing {
    pub(super) policy: Key<String>,
    pub(super) budget: Key<RawSize>,
    pub(super) rate: Key<String>,
    pub(super) period: Key<String>,
    pub(super) burst: Key<RawSize>,
    pub(super) buffers: Key<i64>,
    pub(super) cache: Key<i64>,
    pub(super) credit: Key<RawSize>,
    pub(super) bypass_below: Key<RawSize>,
    pub(super) drive_limit: Key<i64>,
    pub(super) tuner: Key<String>,
    pub(super) tuner_threshold: Key<RawSize>,
    pub(super) tuner_interval: Key<String>,
    pub(super) tuner_step: Key<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub(super) struct RawHostDefaults {
    pub(super) limit: Key<RawLimit>,
    pub(super) weight: Key<i64>,
    pub(super) max_connections: Key<i64>,
    pub(super) max_queues: Key<i64>,
    pub(super) max_in_flight: Key<RawSize>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub(super) struct RawHost {
    pub(super) nqn: Key<String>,
    pub(super) limit: Key<RawLimit>,
    pub(super) weight: Key<i64>,
    pub(super) max_connections: Key<i64>,
    pub(super) max_queues: Key<i64>,
    pub(super) max_in_flight: Key<RawSize>,
}

/// Rate limits of a host or a namespace.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub(super) struct RawLimit {
    pub(super) iops: Key<i64>,
    pub(super) bandwidth: Key<String>,
    pub(super) burst: Key<String>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub(super) struct RawListener {
    #[serde(rename = "type")]
    pub(super) kind: Key<String>,
    pub(super) address: Key<String>,
    pub(super) port: Key<i64>,
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
pub(super) struct RawDevice {
    pub(super) name: Key<String>,
    #[serde(rename = "type")]
    pub(super) kind: Key<String>,
    pub(super) size: Key<RawSize>,
    pub(super) block_size: Key<RawSize>,
    pub(super) path: Key<String>,
    pub(super) create: Key<bool>,
    pub(super) read_only: Key<bool>,
    pub(super) direct: Key<String>,
    pub(super) base: Key<String>,
    pub(super) read_latency: Key<String>,
    pub(super) write_latency: Key<String>,
    pub(super) read_jitter: Key<String>,
    pub(super) write_jitter: Key<String>,
    pub(super) offset: Key<RawSize>,
    pub(super) members: Key<Vec<Spanned<String>>>,
    pub(super) chunk: Key<RawSize>,
    pub(super) seed: Key<i64>,
    pub(super) errors: Key<i64>,
    pub(super) corruptions: Key<i64>,
    pub(super) rejects: Key<i64>,
    pub(super) stalls: Key<i64>,
    pub(super) stall: Key<String>,
    pub(super) reorder: Key<bool>,
    pub(super) bad: Key<Vec<Spanned<String>>>,
    pub(super) gone: Key<bool>,
    pub(super) pci: Key<String>,
    pub(super) nsid: Key<i64>,
    pub(super) queue_depth: Key<i64>,
    pub(super) io_timeout: Key<String>,
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

/// A size: text with a unit, or a number of bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum RawSize {
    Bytes(u64),
    Text(String),
}

impl<'de> Deserialize<'de> for RawSize {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct SizeVisitor;
        impl Visitor<'_> for SizeVisitor {
            type Value = RawSize;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a size, as \"512MiB\" or a number of bytes")
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<RawSize, E> {
                Ok(RawSize::Text(text.into()))
            }

            fn visit_i64<E: Error>(self, bytes: i64) -> Result<RawSize, E> {
                let bytes = u64::try_from(bytes);
                bytes.map(RawSize::Bytes).map_err(|_| E::custom("a size is not negative"))
            }

            fn visit_u64<E: Error>(self, bytes: u64) -> Result<RawSize, E> {
                Ok(RawSize::Bytes(bytes))
            }
        }
        deserializer.deserialize_any(SizeVisitor)
    }
}
