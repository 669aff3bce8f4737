//! Simulated machine with a seed and virtual time that runs the same pacing code as the daemon.
//!
//! ```text
//! Platform (physical quantities) + Scenario (load, pacing, disturbances) -> run -> Outcome
//! ```
//!
//! Each mechanism has its file: `hosts` (depths, queues and their limits), `cores` (turns), `cache`
//! (data that DMA keeps in it), `drives`, `nic` (ports, and the cost of a miss). `machine` puts
//! them in sequence. [`checkers`] verify invariants from outside. [`pcie`] is a separate model of
//! the throughput that drives share. Only `pacing` makes pacers.
//!
//! Every figure of this crate is simulated.

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
pub mod numbers;
mod pacing;
pub mod pcie;
mod platform;
mod record;
pub mod run_result;
pub mod scenario;
pub mod setups;

pub use platform::{Platform, PlatformError};
pub use run_result::RunResult;
pub use scenario::Scenario;

use thiserror::Error;

/// A scenario that cannot be run.
#[derive(Debug, Error)]
pub enum RunError {
    /// The scenario is invalid; the message says what and where.
    #[error("scenario: {0}")]
    Scenario(String),
    /// A number of the platform is invalid.
    #[error(transparent)]
    Platform(#[from] PlatformError),
    /// The pacing parameters cannot work.
    #[error("pacing: {0}")]
    Pacing(#[from] nvmeof_pacing::ConfigError),
}

/// Runs a scenario on a platform. The same arguments yield the same outcome, except for
/// [`RunResult::real_seconds`].
///
/// # Errors
/// [`RunError`] names the invalid part of the scenario, the platform or the pacing parameters.
pub fn run(platform: &Platform, scenario: &Scenario) -> Result<RunResult, RunError> {
    platform.check()?;
    scenario.check().map_err(RunError::Scenario)?;
    let largest = machine::largest(scenario);
    let target_pacing =
        pacing::TargetPacing::new(platform, &scenario.pacing, scenario.cores as usize, largest)?;
    let checkers = machine::checker_set(platform, scenario);
    Ok(machine::SimMachine::new(platform, scenario, checkers, target_pacing).run())
}
