//! What tests of the whole need: the daemon as users start it, a host that checks what it reads, and a
//! host that can break every rule.
//!
//! | module | what |
//! |---|---|
//! | [`Api`] | calls of the daemon's API |
//! | [`build`] | the binaries, built once |
//! | [`config`] | pieces of a config file |
//! | [`Daemon`] | a running `nvmeof-tgt`; ends with the value |
//! | [`Host`], [`Worker`] | verified I/O through the initiator |
//! | [`events`] | asynchronous events, as a host asks for them |
//! | [`Raw`] | PDUs as they are, good and bad |

mod api;
pub mod build;
pub mod config;
mod daemon;
pub mod events;
mod host;
mod raw;

pub use api::Api;
pub use daemon::{Counts, Daemon};
pub use host::{Host, Worker, fill, options};
pub use raw::{Pdu, Raw};

use std::time::Duration;

/// How long anything may take before a test gives up: a guard against hanging, never a measurement.
pub const GUARD: Duration = Duration::from_secs(60);
