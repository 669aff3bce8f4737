//! The NVMe-over-Fabrics target daemon `nvmeof-tgt`.
//!
//! [`run`] is the whole program. `config` and `limits` say what is wanted, `reactor` moves commands,
//! `control` starts, changes and stops the reactors; `logs` keeps hosts from filling the log. [`drives`] is what else the program does.

mod api;
mod clock;
pub mod config;
mod control;
pub mod drives;
pub mod limits;
mod logs;
mod reactor;
mod regular;
mod tenants;

pub use control::run;

/// For the benchmarks of this workspace; not an interface.
#[cfg(feature = "bench")]
#[doc(hidden)]
pub mod bench_support {
    pub use crate::reactor::bench::OneReactor;
}
