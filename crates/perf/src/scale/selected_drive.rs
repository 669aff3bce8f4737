//! Selection of drives, their numbers and their PCIe locations.

use anyhow::{Context, Result};
use clap::ValueEnum;
use nvmeof_core::pci::{PciFunction, System, VFIO_DRIVER, order};

use super::ranges::NumberRanges;
use crate::plan::{UsageError, usage_error};
use crate::target::DeviceSpec;

/// Numbering of drives.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum DriveNumbering {
    /// The kernel's names (nvme0, nvme1, ...); drives without one follow by address.
    System,
    /// The names of slots, and without slots the addresses of ports.
    Slot,
    /// Root complexes, and within each the address.
    RootComplex,
}

/// A drive to read.
#[derive(Debug, Clone)]
pub(super) struct SelectedDrive {
    /// Name of the drive.
    pub(super) name: String,
    pub(super) spec: DeviceSpec,
    /// Its PCI function, if it is a drive.
    pub(super) function: Option<PciFunction>,
}

impl DriveNumbering {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::System => "system",
            Self::Slot => "slot",
            Self::RootComplex => "root complex",
        }
    }

    /// Sorts drives by their numbers.
    pub(super) fn sort(self, functions: &mut [PciFunction]) {
        let controller = |function: &PciFunction| {
            let name = function.controller.as_ref().map(|known| known.name.clone());
            number(name.as_deref().and_then(|name| name.strip_prefix("nvme")))
        };
        match self {
            Self::System => functions.sort_by_key(|f| (controller(f), f.address)),
            Self::Slot => functions.sort_by_key(|f| {
                (number(f.slot.as_deref()), f.slot.clone(), f.place.port(), f.address)
            }),
            Self::RootComplex => functions.sort_by_key(|f| (f.place.root_complex, f.address)),
        }
    }
}

/// Sort key: numbers before other text.
fn number(text: Option<&str>) -> (bool, u64) {
    match text.and_then(|text| text.parse().ok()) {
        Some(number) => (false, number),
        None => (true, 0),
    }
}

impl SelectedDrive {
    /// Its adapter; empty if unknown.
    pub(super) fn adapter(&self) -> String {
        let place = self.function.as_ref().map(|function| &function.place);
        place.map_or_else(String::new, |place| place.adapter().to_string())
    }

    /// Its root complex; empty if unknown.
    pub(super) fn root_complex(&self) -> String {
        let place = self.function.as_ref().map(|function| &function.place);
        place.map_or_else(String::new, |place| place.root_complex.to_string())
    }
}

/// Returns the machine's drives with these numbers.
pub(super) fn of_machine(
    system: &System,
    ranges: &NumberRanges,
    by: DriveNumbering,
) -> Result<Vec<SelectedDrive>> {
    let mut functions = system.nvme_functions().context("looking for NVMe drives")?;
    usage_error!(
        functions.is_empty(),
        "there are no NVMe drives here: name what to read with --device, or use --where sim"
    );
    by.sort(&mut functions);
    let numbers = ranges.numbers(functions.len()).map_err(|why| {
        UsageError(format!("--drives: {why} (`nvmeof-tgt drives list` shows them)"))
    })?;
    let selected = numbers.into_iter().filter_map(|number| functions.get(number));
    selected.map(|function| of_function(function.clone())).collect()
}

/// Selects the driver of a drive: VFIO if the drive is bound to it, otherwise the kernel's block
/// device.
fn of_function(function: PciFunction) -> Result<SelectedDrive> {
    let address = function.address;
    if function.driver.as_deref() == Some(VFIO_DRIVER) {
        let spec = DeviceSpec::Pci { address, nsid: None };
        return Ok(SelectedDrive { name: spec.to_string(), spec, function: Some(function) });
    }
    let spaces = function.controller.iter().flat_map(|known| &known.namespaces);
    let first = spaces.into_iter().next().map(|space| format!("/dev/{}", space.name));
    let Some(path) = first else {
        let what = format!(
            "the drive at {address} has no block device (driver: {}): run `nvmeof-tgt drives bind \
             {address}`, or omit the drive",
            function.driver.as_deref().unwrap_or("none")
        );
        return Err(UsageError(what).into());
    };
    let spec = DeviceSpec::File(path.into());
    Ok(SelectedDrive { name: spec.to_string(), spec, function: Some(function) })
}

/// Devices of the command line, with their PCIe locations if the system reports them.
pub(super) fn of_specs(system: &System, specs: &[DeviceSpec]) -> Vec<SelectedDrive> {
    let functions = system.nvme_functions().unwrap_or_default();
    let selected = specs.iter().map(|spec| {
        let function = match spec {
            DeviceSpec::Pci { address, .. } => functions.iter().find(|f| f.address == *address),
            DeviceSpec::File(path) => of_node(system, &functions, &path.display().to_string()),
            DeviceSpec::Null { .. } | DeviceSpec::Ram { .. } => None,
        };
        SelectedDrive { name: spec.to_string(), spec: spec.clone(), function: function.cloned() }
    });
    selected.collect()
}

/// The drive of a block device, found by the path of the device node.
pub(crate) fn of_node<'f>(
    system: &System,
    functions: &'f [PciFunction],
    path: &str,
) -> Option<&'f PciFunction> {
    let node = system.node_name(path)?;
    functions.iter().find(|function| {
        let mut spaces = function.controller.iter().flat_map(|known| &known.namespaces);
        spaces.any(|space| space.name == node)
    })
}

/// Indices of the drives in round-robin order over root complexes; other devices come last.
pub(super) fn round_robin(selected: &[SelectedDrive]) -> Vec<usize> {
    let functions: Vec<PciFunction> =
        selected.iter().filter_map(|drive| drive.function.clone()).collect();
    let mut left: Vec<usize> = (0..selected.len()).collect();
    let mut places = Vec::new();
    for function in order(&functions) {
        let is_it = |at: &usize| {
            selected[*at].function.as_ref().is_some_and(|known| known.address == function.address)
        };
        if let Some(at) = left.iter().position(is_it) {
            places.push(left.remove(at));
        }
    }
    places.extend(left);
    places
}
