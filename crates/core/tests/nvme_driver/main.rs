//! Tests of the NVMe driver with the fake drive, in virtual time and mostly on one thread.

#![expect(clippy::unwrap_used, reason = "a test: what cannot be is a panic")]

mod bring_up;
mod cancel;
mod errors;
mod io;
mod maintenance;
mod races;
mod rig;
mod scenario;
mod sleep;
mod threads;
mod timeouts;
