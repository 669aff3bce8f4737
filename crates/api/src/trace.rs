//! Commands that are traced from capsule to completion.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Maximum duration of a trace in seconds.
pub const TRACE_SECONDS_MAX: u32 = 60;

/// Filter and duration of a trace.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct TraceRequest {
    /// Duration in seconds: 1 to 60.
    #[schema(minimum = 1, maximum = 60)]
    pub seconds: u32,
    /// Minimum time of a command in microseconds, from its capsule to its end; 0 by default.
    #[serde(default)]
    pub slower_than_us: u64,
    /// Only commands of this host, by NQN.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<String>,
    /// Only commands of this subsystem, by NQN.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub subsystem: Option<String>,
    /// Only commands of this namespace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nsid: Option<u32>,
    /// Only commands of this kind.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub op: Option<TraceOp>,
}

/// Command kinds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum TraceOp {
    /// Flush.
    Flush,
    /// Write.
    Write,
    /// Read.
    Read,
    /// Compare.
    Compare,
    /// Write Zeroes.
    WriteZeroes,
    /// Dataset Management (deallocate).
    Deallocate,
    /// Verify.
    Verify,
}

/// One line of the response.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum TraceLine {
    /// A command that has ended.
    Command(Box<TracedCommand>),
    /// The last line.
    End {
        /// Reported commands.
        commands: u64,
        /// Slow commands that were dropped for lack of room.
        dropped: u64,
    },
}

/// A traced command.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TracedCommand {
    /// Time of its capsule: microseconds since 1970.
    pub unix_us: u64,
    /// Time from the capsule to the end, in nanoseconds.
    pub duration_ns: u64,
    /// The reactor that served it.
    pub reactor: usize,
    /// Its subsystem; empty if its connection is closed.
    pub subsystem: String,
    /// Its host; empty if its connection is closed.
    pub host: String,
    /// Its queue; absent if its connection is closed.
    pub qid: Option<u16>,
    /// Its command identifier on that queue.
    pub cid: u16,
    /// Its namespace.
    pub nsid: u32,
    /// Its backing device.
    pub device: String,
    /// Command kind.
    pub op: TraceOp,
    /// First byte on the device.
    pub offset: u64,
    /// Bytes transferred between host and target.
    pub bytes: u32,
    /// Its result; absent if its connection closed before a response.
    pub status: Option<String>,
    /// States that it passed.
    pub states: Vec<TracedState>,
    /// The first states are missing: too many events occurred to store them all.
    pub truncated: bool,
}

/// A state of a command.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TracedState {
    /// `capsule`, `waiting` (for admission), `buffer-wait`, `h2c-transfer`, `device`,
    /// `sending`, `done`.
    pub state: String,
    /// Time of entry: nanoseconds since the capsule arrived.
    pub at_ns: u64,
}
