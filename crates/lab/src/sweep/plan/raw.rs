//! A point's plan as written: every supported key, with the position of each value.
//!
//! The values are checked later, where an error can name the line.

use serde::Deserialize;
use toml::Spanned;

/// A value and its position; `None` if the key is absent.
pub(super) type Key<T> = Option<Spanned<T>>;

#[derive(Debug, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub(super) struct RawPlan {
    pub(super) name: Key<String>,
    pub(super) test: Key<String>,
    pub(super) about: Key<String>,
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
    /// Checked by the place, which has the platform's numbers.
    #[serde(default)]
    pub(super) platform: std::collections::BTreeMap<Spanned<String>, Spanned<Number>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub(super) struct RawTarget {
    pub(super) cores: Key<i64>,
    #[serde(default)]
    pub(super) devices: RawDevices,
    #[serde(default)]
    pub(super) pacing: RawPacing,
    pub(super) config: Key<String>,
    /// Checked by the daemon.
    pub(super) set: Option<toml::Table>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub(super) struct RawDevices {
    pub(super) kind: Key<String>,
    pub(super) count: Key<i64>,
    pub(super) parts: Key<i64>,
    pub(super) slow: Key<i64>,
    pub(super) delay: Key<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub(super) struct RawPacing {
    pub(super) policy: Key<String>,
    pub(super) budget: Key<Size>,
    pub(super) burst: Key<Size>,
    pub(super) rate: Key<Size>,
    pub(super) period: Key<String>,
    pub(super) buffers: Key<i64>,
    pub(super) cache: Key<i64>,
    pub(super) credit: Key<Size>,
    pub(super) bypass_below: Key<Size>,
    pub(super) drive_limit: Key<i64>,
    pub(super) tuner: Key<String>,
    pub(super) tuner_threshold: Key<Size>,
    pub(super) tuner_interval: Key<String>,
    pub(super) tuner_step: Key<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub(super) struct RawLoad {
    pub(super) block_size: Key<Size>,
    pub(super) blocks: Key<Vec<Spanned<RawBlock>>>,
    pub(super) reads: Key<Number>,
    pub(super) time: Key<String>,
    pub(super) ramp: Key<String>,
    pub(super) sample: Key<String>,
    pub(super) repeat: Key<i64>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub(super) struct RawBlock {
    pub(super) size: Key<Size>,
    pub(super) share: Key<Number>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub(super) struct RawJob {
    pub(super) name: Key<String>,
    pub(super) devices: Key<RawSelection>,
    pub(super) queue_depth: Key<i64>,
    pub(super) threads: Key<i64>,
    pub(super) weight: Key<i64>,
    pub(super) hosts: Key<Vec<Spanned<i64>>>,
    pub(super) block_size: Key<Size>,
    pub(super) blocks: Key<Vec<Spanned<RawBlock>>>,
    pub(super) reads: Key<Number>,
    pub(super) from: Key<String>,
    pub(super) until: Key<String>,
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
    pub(super) initiator: Key<String>,
    pub(super) ssh: Key<String>,
    pub(super) count: Key<i64>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub(super) struct RawDisturbance {
    pub(super) at: Key<String>,
    pub(super) lasts: Key<String>,
    pub(super) what: Key<String>,
    pub(super) rate: Key<Number>,
}

/// A size: text with a unit, or a number of bytes.
#[derive(Debug, Deserialize)]
#[serde(untagged, expecting = "a size, as \"128KiB\" or a number of bytes")]
pub(super) enum Size {
    Bytes(u64),
    Text(String),
}

/// A number with or without a decimal point.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(untagged, expecting = "a number")]
pub(super) enum Number {
    Whole(i32),
    Real(f64),
}

impl Number {
    pub(super) fn value(self) -> f64 {
        match self {
            Self::Whole(value) => value.into(),
            Self::Real(value) => value,
        }
    }
}
