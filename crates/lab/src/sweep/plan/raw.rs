//! A point's plan as written: every supported key, with the position of each value.
//!
//! The values are checked later, where an error can name the line.

use serde::Deserialize;
use toml::Spanned;

/// A value and its position; `None` if the key is absent.
pub(super) type RawKey<T> = Option<Spanned<T>>;

#[derive(Debug, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub(super) struct RawPlan {
    pub(super) name: RawKey<String>,
    pub(super) test: RawKey<String>,
    pub(super) about: RawKey<String>,
    #[serde(default)]
    pub(super) target: RawTarget,
    #[serde(default)]
    pub(super) load: RawLoad,
    #[serde(default)]
    pub(super) job: Vec<Spanned<RawJob>>,
    #[serde(default)]
    pub(super) host: Vec<Spanned<RawHost>>,
    #[serde(default)]
    pub(super) disturb: Vec<Spanned<RawDisturbance>>,
    /// Checked by the backend, which has the platform's numbers.
    #[serde(default)]
    pub(super) platform: std::collections::BTreeMap<Spanned<String>, Spanned<RawNumber>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub(super) struct RawTarget {
    pub(super) cores: RawKey<i64>,
    #[serde(default)]
    pub(super) devices: RawDevices,
    #[serde(default)]
    pub(super) pacing: RawPacing,
    pub(super) config: RawKey<String>,
    /// Checked by the daemon.
    pub(super) set: Option<toml::Table>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub(super) struct RawDevices {
    pub(super) kind: RawKey<String>,
    pub(super) count: RawKey<i64>,
    pub(super) parts: RawKey<i64>,
    pub(super) slow: RawKey<i64>,
    pub(super) delay: RawKey<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub(super) struct RawPacing {
    pub(super) policy: RawKey<String>,
    pub(super) budget: RawKey<RawSize>,
    pub(super) burst: RawKey<RawSize>,
    pub(super) rate: RawKey<RawSize>,
    pub(super) period: RawKey<String>,
    pub(super) buffers: RawKey<i64>,
    pub(super) cache: RawKey<i64>,
    pub(super) credit: RawKey<RawSize>,
    pub(super) bypass_below: RawKey<RawSize>,
    pub(super) drive_limit: RawKey<i64>,
    pub(super) tuner: RawKey<String>,
    pub(super) tuner_threshold: RawKey<RawSize>,
    pub(super) tuner_interval: RawKey<String>,
    pub(super) tuner_step: RawKey<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub(super) struct RawLoad {
    pub(super) block_size: RawKey<RawSize>,
    pub(super) blocks: RawKey<Vec<Spanned<RawBlock>>>,
    pub(super) reads: RawKey<RawNumber>,
    pub(super) time: RawKey<String>,
    pub(super) ramp: RawKey<String>,
    pub(super) sample: RawKey<String>,
    pub(super) repeat: RawKey<i64>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub(super) struct RawBlock {
    pub(super) size: RawKey<RawSize>,
    pub(super) share: RawKey<RawNumber>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub(super) struct RawJob {
    pub(super) name: RawKey<String>,
    pub(super) devices: RawKey<RawSelection>,
    pub(super) queue_depth: RawKey<i64>,
    pub(super) threads: RawKey<i64>,
    pub(super) shared_depth: RawKey<bool>,
    pub(super) weight: RawKey<i64>,
    pub(super) hosts: RawKey<Vec<Spanned<i64>>>,
    pub(super) block_size: RawKey<RawSize>,
    pub(super) blocks: RawKey<Vec<Spanned<RawBlock>>>,
    pub(super) reads: RawKey<RawNumber>,
    pub(super) from: RawKey<String>,
    pub(super) until: RawKey<String>,
}

/// Devices by a word, or by their positions.
#[derive(Debug, Deserialize)]
#[serde(untagged, expecting = "\"all\", \"part-N\", or a list of positions")]
pub(super) enum RawSelection {
    Word(String),
    Positions(Vec<i64>),
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub(super) struct RawHost {
    pub(super) initiator: RawKey<String>,
    pub(super) ssh: RawKey<String>,
    pub(super) count: RawKey<i64>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub(super) struct RawDisturbance {
    pub(super) at: RawKey<String>,
    pub(super) lasts: RawKey<String>,
    pub(super) what: RawKey<String>,
    pub(super) rate: RawKey<RawNumber>,
}

/// A size: text with a unit, or a number of bytes.
#[derive(Debug, Deserialize)]
#[serde(untagged, expecting = "a size, as \"128KiB\" or a number of bytes")]
pub(super) enum RawSize {
    Bytes(u64),
    Text(String),
}

/// A number with or without a decimal point.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(untagged, expecting = "a number")]
pub(super) enum RawNumber {
    Whole(i32),
    RealMachines(f64),
}

impl RawNumber {
    pub(super) fn value(self) -> f64 {
        match self {
            Self::Whole(value) => value.into(),
            Self::RealMachines(value) => value,
        }
    }
}
