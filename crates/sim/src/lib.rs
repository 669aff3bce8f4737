//! A seeded, virtual-time machine that runs the same pacing code as the daemon.
//!
//! ```text
//! Platform (physical quantities) + Scenario (load, pacing, disturbances) -> run -> Outcome
//! ```
//!
//! One file a mechanism: `hosts` (depths, queues and their limits), `cores` (turns), `cache` (what
//! DMA keeps in it), `drives`, `nic` (ports, and what a miss costs them); `machine` puts them in order.
//! [`checkers`] watch from outside. [`pcie`] is a model apart, of what drives read together. `pacing` is the one place that makes pacers.
//!
//! Every figure that comes out of here is simulated.

#![forbid(unsafe_code)]

mod cache;
pub mod calibration;
pub mod checkers;
mod commands;
mod cores;
mod drives;
mod events;
mod hosts;
mod machine;
mod nic;
mod numbers;
pub mod outcome;
mod pacing;
pub mod pcie;
mod platform;
mod record;
mod rng;
pub mod scenario;
pub mod setups;
pub mod suite;

pub use outcome::Outcome;
pub use platform::{Platform, PlatformError};
pub use scenario::Scenario;

use thiserror::Error;

/// A scenario that cannot be run.
#[derive(Debug, Error)]
pub enum RunError {
    /// What is run makes no sense; says what and where.
    #[error("scenario: {0}")]
    Scenario(String),
    /// The platform's numbers make no sense.
    #[error(transparent)]
    Platform(#[from] PlatformError),
    /// The pacing's parameters cannot work.
    #[error("pacing: {0}")]
    Pacing(#[from] nvmeof_pacing::ConfigError),
}

/// Runs a scenario on a platform. The same arguments yield the same outcome, but for
/// [`Outcome::real_seconds`].
///
/// # Errors
/// [`RunError`] says what in the scenario, the platform or the pacing's parameters cannot be.
pub fn run(platform: &Platform, scenario: &Scenario) -> Result<Outcome, RunError> {
    platform.check()?;
    scenario.check().map_err(RunError::Scenario)?;
    let largest = machine::largest(scenario);
    let gates = pacing::Gates::new(&scenario.pacing, scenario.cores as usize, largest)?;
    let checkers = machine::watchers(platform, scenario);
    Ok(machine::Machine::new(platform, scenario, checkers, gates).run())
}
