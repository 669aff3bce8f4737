//! Tests on simulated machines.

mod binding;
mod machine;
mod usage;

use tempfile::TempDir;

use super::System;
use super::fixture::{self, Machine};

/// Returns the machine with four root complexes, and the folder that must outlive it.
fn measured() -> (TempDir, Machine, System) {
    let folder = tempfile::tempdir_in(fixture::folder()).unwrap();
    let machine = Machine::measured(folder.path()).unwrap();
    let system = machine.system();
    (folder, machine, system)
}
