//! Checks the members of stripes against their PCIe topology.

use std::collections::BTreeSet;
use std::path::Path;

use nvmeof_core::pci::users::Usage;
use nvmeof_core::pci::{Address, Capacities, PciFunction, System, Warning, uneven, warnings};

use crate::config::{Device, DeviceKind};

/// Returns warnings about the stripes among `devices`, as advice only.
///
/// It warns about members that are unevenly distributed. It also warns about root complexes and
/// ports that carry less than their members deliver; `capacities` overrides the assumed capacity.
/// Without data from the system, there are no warnings.
pub(crate) fn of_stripes(
    system: &System,
    devices: &[Device],
    capacities: &Capacities,
) -> Vec<String> {
    let stripes = devices.iter().filter(|d| matches!(d.kind, DeviceKind::Stripe { .. }));
    let stripes: Vec<&Device> = stripes.collect();
    if stripes.is_empty() {
        return Vec::new();
    }
    let (Ok(machine), Ok(usage)) = (system.nvme_functions(), Usage::read(system)) else {
        return Vec::new();
    };
    let all: BTreeSet<Address> =
        stripes.iter().flat_map(|stripe| drives(system, stripe, devices, &machine)).collect();
    // Members are in use, if only by this process.
    let could_be =
        |function: &&PciFunction| all.contains(&function.address) || usage.of(function).is_empty();
    let candidates: Vec<PciFunction> = machine.iter().filter(could_be).cloned().collect();
    let mut lines = Vec::new();
    for stripe in stripes {
        let wanted = drives(system, stripe, devices, &machine);
        let members: Vec<PciFunction> =
            machine.iter().filter(|f| wanted.contains(&f.address)).cloned().collect();
        let loads = warnings(system, &members, capacities);
        let loads = loads.into_iter().filter(|warning| !matches!(warning, Warning::Link { .. }));
        let all = uneven(&members, &candidates).into_iter().chain(loads);
        lines.extend(all.map(|warning| format!("stripe {:?}: {warning}", stripe.name)));
    }
    lines
}

/// Finds the drives that a device is layered on.
fn drives(
    system: &System,
    device: &Device,
    devices: &[Device],
    machine: &[PciFunction],
) -> BTreeSet<Address> {
    let mut found = BTreeSet::new();
    let mut waiting = vec![device];
    let mut seen = BTreeSet::new();
    while let Some(device) = waiting.pop() {
        if !seen.insert(device.name.as_str()) {
            continue;
        }
        match &device.kind {
            DeviceKind::Nvme(drive) => found.extend(drive.pci.parse::<Address>()),
            DeviceKind::File(file) => found.extend(holder(system, &file.path, machine)),
            _ => {}
        }
        let bases = device.kind.bases();
        waiting.extend(devices.iter().filter(|other| bases.contains(&other.name)));
    }
    found
}

/// Finds the drive behind a block device of the kernel, like `/dev/nvme0n1`.
fn holder(system: &System, path: &Path, machine: &[PciFunction]) -> Option<Address> {
    let name = system.node_name(path.to_str()?)?;
    let has = |function: &&PciFunction| {
        let namespaces = function.controller.iter().flat_map(|c| &c.namespaces);
        namespaces.into_iter().any(|namespace| namespace.name == name)
    };
    machine.iter().find(has).map(|function| function.address)
}
