//! Tests of the PCI view on simulated machines.

#![expect(clippy::unwrap_used, reason = "a test: what cannot be is a panic")]

mod binding;
mod machine;
mod usage;

use nvmeof_core::pci::System;
use nvmeof_sysfs_fixture::Machine;
use tempfile::TempDir;

/// Returns the machine with four root complexes, and the folder that must outlive it.
fn measured() -> (TempDir, Machine, System) {
    let folder = tempfile::tempdir_in(nvmeof_sysfs_fixture::folder()).unwrap();
    let machine = Machine::measured(folder.path()).unwrap();
    let system = machine.system();
    (folder, machine, system)
}
