//! Support for end-to-end tests: the daemon as users start it, a host that verifies its reads, and
//! a host that can break every rule.
//!
//! | module | content |
//! |---|---|
//! | [`Api`] | calls of the daemon's API |
//! | [`build`] | the binaries, built once |
//! | [`config`] | pieces of a config file |
//! | [`Daemon`] | a running `nvmeof-tgt`; ends with the value |
//! | [`Host`], [`Worker`] | verified I/O through the initiator |
//! | [`events`] | asynchronous events, as a host requests them |
//! | [`Raw`] | raw PDUs, valid and invalid |

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

/// Timeout of every step of a test: a guard against hanging, never a measurement.
pub const GUARD: Duration = Duration::from_secs(60);
