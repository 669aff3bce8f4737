//! The NVMe-over-Fabrics target daemon `nvmeof-tgt`.
//!
//! [`run`](run()) is the whole program. `config_file` reads the desired state, `config` and
//! `limits` hold it, `reactor` moves commands, and `control` starts, changes and stops the
//! reactors. `api` serves HTTP on top of `control`, and `rpc` serves SPDK's JSON-RPC. `logs` keeps
//! hosts from filling the log. [`drives`] implements the other subcommand.

mod api;
mod clock;
pub mod config;
pub mod config_file;
mod control;
pub mod drives;
pub mod limits;
mod logs;
mod reactor;
mod regular;
mod rpc;
mod run;
mod tenants;
mod unix_socket;

pub use run::run;

/// Access for the benchmarks of this workspace; not a public interface.
#[cfg(feature = "bench")]
#[doc(hidden)]
pub mod bench_support {
    pub use crate::reactor::bench::OneReactor;
}
