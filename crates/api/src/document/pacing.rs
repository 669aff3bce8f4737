//! `[pacing]`: the pacing policy, with its keys.

use std::borrow::Cow;

use serde::{Deserialize, Deserializer, Serialize};
use utoipa::openapi::{RefOr, Schema};
use utoipa::{PartialSchema, ToSchema};

use super::Size;
use super::tagged::{self, tagged};

tagged! {
    /// `[pacing]`: a pacing policy, with its keys.
    PacingConfig by "policy", default Some("adaptive"), common &[];
    /// A budget that the policy finds at run time.
    "adaptive" => Adaptive(NoKeys),
    /// No bound.
    "none" => Unpaced(NoKeys),
    /// A fixed budget.
    "buffer-credit" => BufferCredit(BufferCreditKeys),
    /// A fixed rate.
    "token-bucket" => TokenBucket(TokenBucketKeys),
    /// The Mellanox SPDK io_pacing prototype.
    "prototype" => Prototype(PrototypeKeys),
}

impl Default for PacingConfig {
    fn default() -> Self {
        Self::Adaptive(NoKeys {})
    }
}

/// A policy without keys.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NoKeys {}

/// Keys of policy "buffer-credit".
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct BufferCreditKeys {
    /// Maximum bytes in flight on all reactors together.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub budget: Option<Size>,
}

/// Keys of policy "token-bucket".
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct TokenBucketKeys {
    /// Rate at which bytes start: `"180Gb/s"`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rate: Option<String>,
    /// Period between commands: `"5700ns"`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub period: Option<String>,
    /// Burst after an idle time: bytes, or commands with a period.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub burst: Option<Size>,
    /// Maximum bytes in flight on all reactors together.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub budget: Option<Size>,
}

/// Keys of policy "prototype", the Mellanox SPDK io_pacing prototype.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct PrototypeKeys {
    /// io_pacing: buffers in the pool.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<u32>)]
    pub buffers: Option<i64>,
    /// io_pacing: buffers that each reactor caches.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<u32>)]
    pub cache: Option<i64>,
    /// Period between commands: `"5700ns"`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub period: Option<String>,
    /// io_pacing: bytes of a grant.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub credit: Option<Size>,
    /// io_pacing: commands below this number of bytes bypass pacing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bypass_below: Option<Size>,
    /// io_pacing: maximum commands in flight on one device of one reactor.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<u32>)]
    pub drive_limit: Option<i64>,
    /// io_pacing: tuner that changes the period.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tuner: Option<String>,
    /// io_pacing: bytes above which the tuner acts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tuner_threshold: Option<Size>,
    /// io_pacing: interval of the tuner.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tuner_interval: Option<String>,
    /// io_pacing: step by which the tuner changes the period.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tuner_step: Option<String>,
}

impl<'de> Deserialize<'de> for PacingConfig {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        tagged::deserialize(deserializer).map(|(_, policy)| policy)
    }
}

impl PartialSchema for PacingConfig {
    fn schema() -> RefOr<Schema> {
        let names: Vec<String> = tagged::names::<Self>();
        let tag = format!("One of {}; the first by default.", names.join(", "));
        tagged::schema::<Self>("`[pacing]`: the pacing policy. Its keys depend on it.", &[], &tag)
    }
}

impl ToSchema for PacingConfig {
    fn name() -> Cow<'static, str> {
        Cow::Borrowed("PacingConfig")
    }

    fn schemas(schemas: &mut Vec<(String, RefOr<Schema>)>) {
        tagged::schemas::<Self>(schemas);
    }
}
