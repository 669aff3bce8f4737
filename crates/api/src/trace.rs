//! Commands that are followed from capsule to completion.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Most seconds that one call follows commands.
pub const TRACE_SECONDS_MAX: u32 = 60;

/// Which commands are to be followed, and how long.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct TraceRequest {
    /// How long: 1 to 60.
    #[schema(minimum = 1, maximum = 60)]
    pub seconds: u32,
    /// Microseconds that a command takes at least, from its capsule to its end; 0 if left out.
    #[serde(default)]
    pub slower_than_us: u64,
    /// Only of this host, by its NQN.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<String>,
    /// Only of this subsystem, by its NQN.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub subsystem: Option<String>,
    /// Only of this namespace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nsid: Option<u32>,
    /// Only of this kind.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub op: Option<TraceOp>,
}

/// What a command does.
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
    /// Dataset Management.
    Deallocate,
    /// Verify.
    Verify,
}

/// One line of the answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum TraceLine {
    /// A command that has ended.
    Command(Box<TracedCommand>),
    /// The last line.
    End {
        /// Commands that were told of.
        commands: u64,
        /// Commands that were slow, too, and that there was no room for.
        left_out: u64,
    },
}

/// One command's life.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TracedCommand {
    /// When its capsule came: microseconds since 1970.
    pub unix_us: u64,
    /// From the capsule to the end, in nanoseconds.
    pub took_ns: u64,
    /// The reactor that served it.
    pub reactor: usize,
    /// Its subsystem; empty if its connection is gone.
    pub subsystem: String,
    /// Its host; empty if its connection is gone.
    pub host: String,
    /// Its queue; nothing if its connection is gone.
    pub qid: Option<u16>,
    /// Its identifier on that queue.
    pub cid: u16,
    /// Its namespace.
    pub nsid: u32,
    /// The device behind it.
    pub device: String,
    /// What it does.
    pub op: TraceOp,
    /// First byte on the device.
    pub offset: u64,
    /// Bytes that moved between host and target.
    pub bytes: u32,
    /// How it ended; nothing if nobody was left to answer.
    pub status: Option<String>,
    /// The states it went through.
    pub states: Vec<TracedState>,
    /// The first states are missing: more was going on than can be remembered.
    pub cut: bool,
}

/// A state of a command.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TracedState {
    /// `capsule`, `waiting` (for admission), `buffer`, `pulling` (the host's data), `device`, `sending`, `done`.
    pub state: String,
    /// When it was entered: nanoseconds since the capsule came.
    pub at_ns: u64,
}
