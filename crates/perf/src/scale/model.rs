//! `--where sim`: a model of the machine with thirty drives.

use nvmeof_core::pci::{Address, Links, PciFunction, PciLocation};
use nvmeof_report::scale::{DriveScaling, ScaleRun, ScaleStep};
use nvmeof_report::{RunOrigin, engines::MachineInfo};
use nvmeof_sim::pcie::{self, LinkLoad, MEASURED, PcieMachine, rows};

use anyhow::{Context, Result};

use super::selected_drive::SelectedDrive;
use super::{DriveNumbering, NumberRanges, ReadMode, ScaleArgs, empty, orders, with_findings};
use crate::plan::{UsageError, usage_error};
use crate::target::DeviceSpec;

/// The modeled machine.
const MACHINE: &str = include_str!("../../../../configs/pcie/pcie-30.toml");
const MACHINE_NAME: &str = "configs/pcie/pcie-30.toml";
/// Class code of NVMe drives.
const NVME: u32 = 0x01_08_02;

/// Runs the whole command in the model.
pub(super) fn run(args: &ScaleArgs) -> Result<DriveScaling> {
    usage_error!(
        !args.device.is_empty(),
        "--device is for --where local: the model has its own drives (--drives)"
    );
    let (name, machine) = machine(args)?;
    let functions = functions(&machine)?;
    let is_whole = args.drives.is_none() && args.by == DriveNumbering::System;
    let host = MachineInfo { host: name, ..MachineInfo::default() };
    let selected = selected(args, &functions)?;
    let mut scaling = empty(args, RunOrigin::Simulated, host, &selected);
    for (order, places) in orders(args, &selected) {
        let numbers: Vec<usize> =
            places.iter().map(|&at| number(&functions, &selected[at])).collect();
        let steps = (1..=places.len()).map(|count| {
            let new = &selected[places[count - 1]];
            step(&machine, new, &numbers[..count], args.reading)
        });
        scaling.runs.push(ScaleRun { order, steps: steps.collect() });
    }
    // The reference measurements cover these drives in this order, read in this way.
    if args.machine.is_none() && is_whole && args.reading == ReadMode::Striped {
        let rows = rows(MEASURED).map_err(anyhow::Error::msg)?;
        scaling.reference = rows.iter().map(|row| (row.drives, row.gib_per_s)).collect();
    }
    Ok(with_findings(scaling))
}

/// The machine and its name.
pub(super) fn machine(args: &ScaleArgs) -> Result<(String, PcieMachine)> {
    match &args.machine {
        Some(path) => Ok((path.display().to_string(), PcieMachine::load(path)?)),
        None => Ok((MACHINE_NAME.to_owned(), PcieMachine::parse(MACHINE_NAME, MACHINE)?)),
    }
}

/// The machine's drives in system order, as PCI functions.
pub(super) fn functions(machine: &PcieMachine) -> Result<Vec<PciFunction>> {
    let function = |path: &String| -> Result<PciFunction> {
        let place = PciLocation::from_path(path.as_ref()).with_context(|| {
            format!(
                "{path:?} is no path of a PCI function, as pci0000:60/0000:60:01.1/0000:61:00.0"
            )
        })?;
        Ok(PciFunction {
            address: place.function,
            class: NVME,
            ids: (0, 0),
            place,
            slot: None,
            numa_node: None,
            iommu_group: None,
            links: Links::default(),
            driver: None,
            driver_override: None,
            controller: None,
        })
    };
    machine.drives.iter().map(function).collect()
}

/// The requested drives. In system order, their numbers are those of the file.
fn selected(args: &ScaleArgs, functions: &[PciFunction]) -> Result<Vec<SelectedDrive>> {
    let mut sorted = functions.to_vec();
    if args.by != DriveNumbering::System {
        args.by.sort(&mut sorted);
    }
    let numbers = args.drives.as_ref().unwrap_or(&NumberRanges::All).numbers(sorted.len());
    let numbers = numbers.map_err(|why| UsageError(format!("--drives: {why}")))?;
    let selected = numbers.into_iter().filter_map(|at| sorted.get(at)).map(|function| {
        let address: Address = function.address;
        let spec = DeviceSpec::Pci { address, nsid: None };
        SelectedDrive { name: address.to_string(), spec, function: Some(function.clone()) }
    });
    Ok(selected.collect())
}

/// A drive's number in the file.
fn number(functions: &[PciFunction], drive: &SelectedDrive) -> usize {
    let address = drive.function.as_ref().map(|function| function.address);
    functions.iter().position(|known| Some(known.address) == address).unwrap_or(usize::MAX)
}

fn step(
    machine: &PcieMachine,
    new: &SelectedDrive,
    numbers: &[usize],
    reading: ReadMode,
) -> ScaleStep {
    let reading = match reading {
        ReadMode::Striped => pcie::PcieReadMode::Striped,
        ReadMode::Independent => pcie::PcieReadMode::Independent,
    };
    let read = machine.read(numbers, reading);
    let full = read.loads.iter().filter(|load| load.is_full());
    ScaleStep {
        drive: new.name.clone(),
        root_complex: new.root_complex(),
        adapter: new.adapter(),
        latencies: Vec::new(),
        cpus: None,
        gib_per_s: read.total,
        shares: read.shares.clone(),
        full: full.map(what).collect(),
        problem: None,
        partial: false,
    }
}

/// Names the shared parts.
fn what(load: &LinkLoad) -> String {
    match &load.of[..] {
        [one] if load.is_adapter => format!("adapter {one}"),
        [one] => format!("root complex {one}"),
        several => format!("what root complexes {} share", several.join(" and ")),
    }
}
