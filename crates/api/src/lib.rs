//! Types of the daemon's HTTP API, with their schemas. No I/O.
//!
//! | file | contents |
//! |---|---|
//! | `change` | result of a change |
//! | `document` | a config as a value, and the differences of two |
//! | `status` | summary of the running state |
//! | `stats` | counters |
//! | `view` | items of the state: config and run-time data |
//! | `patch` | a partial item |
//! | `live` | figures for live displays |
//! | `trace` | commands traced from capsule to completion |
//! | `error` | errors of calls |
//! | `suggest` | known names close to an unknown one |
//! | `units` | sizes, durations and rates as text |
//!
//! Keys of the config have the names of `target.toml` (kebab-case); all other fields are in
//! snake_case. The daemon rejects unknown fields. A client ignores them, because a newer daemon may
//! send more.

mod change;
pub mod document;
mod error;
mod live;
mod patch;
mod stats;
mod status;
pub mod suggest;
mod trace;
pub mod units;
pub mod view;

pub use change::{Change, Saved};
pub use error::{ApiError, ErrorKind};
pub use live::{
    Bucket, FlowSnapshot, LatencyHistogram, LiveStats, OpStats, PacerSnapshot, ReactorSnapshot,
    TenantSnapshot,
};
pub use patch::{DevicePatch, NamespacePatch, Patch, SubsystemPatch};
pub use stats::Stats;
pub use status::{Status, WaitingListener};
pub use trace::{TRACE_SECONDS_MAX, TraceLine, TraceOp, TraceRequest, TracedCommand, TracedState};

/// Prefix of the API's paths; another version is an incompatible API.
pub const VERSION: &str = "v1";
/// Default socket, in the config and on the command line.
pub const DEFAULT_SOCKET: &str = "/run/nvmeof-tgt/api.sock";
