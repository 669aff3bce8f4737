//! What the daemon and those who control it say to each other: the bodies of its HTTP API as types,
//! with their schemas. No I/O.
//!
//! | file | what |
//! |---|---|
//! | `change` | what a change did |
//! | `document` | a config as a value, and what tells two apart |
//! | `status` | what runs, in short |
//! | `stats` | what was counted |
//! | `view` | the state's items, as they are and as they run |
//! | `patch` | a part of an item |
//! | `live` | where things stand, for whoever draws it |
//! | `trace` | commands that are followed from capsule to completion |
//! | `error` | why a call did not do what it was asked for |
//!
//! Keys of the config are called as in `target.toml` (kebab-case), everything else is in snake_case.
//! Unknown fields are refused where the daemon reads, and kept out of the way where a client does: a
//! newer daemon may say more.

mod change;
pub mod document;
mod error;
mod live;
mod patch;
mod stats;
mod status;
mod trace;
pub mod view;

pub use change::{Change, Saved};
pub use error::{ApiError, ErrorKind};
pub use live::{Bucket, FlowNow, Live, PacerNow, ReactorNow, TenantNow, Times, Work};
pub use patch::{DevicePatch, NamespacePatch, Patch, SubsystemPatch};
pub use stats::Stats;
pub use status::{Status, WaitingListener};
pub use trace::{TRACE_SECONDS_MAX, TraceLine, TraceOp, TraceRequest, TracedCommand, TracedState};

/// Where the API's calls begin; another number is another contract.
pub const VERSION: &str = "v1";
/// The socket where nothing else is said, in the config and on the command line.
pub const DEFAULT_SOCKET: &str = "/run/nvmeof-tgt/api.sock";
