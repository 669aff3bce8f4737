//! A seeded, virtual-time machine that runs the same pacing code as the daemon.
//!
//! ```text
//! Platform (physical quantities) + Scenario (load, pacing, disturbances) -> run -> Outcome
//! ```
//!
//! Every figure that comes out of here is simulated.

#![forbid(unsafe_code)]

pub mod outcome;
pub mod scenario;

pub use outcome::Outcome;
pub use scenario::Scenario;
