//! `--where sim`: a model of the machine with thirty drives.

use nvmeof_core::pci::{Address, Links, PciFunction, PciLocation};
use nvmeof_report::scale::{Run, Scaling, Step};
use nvmeof_report::{Where, engines::Machine};
use nvmeof_sim::pcie::{self, MEASURED, PcieMachine, rows};

use anyhow::{Context, Result};

use super::chosen::Chosen;
use super::{Args, Numbering, Ranges, Reading, empty, orders, with_findings};
use crate::plan::{Misfit, misfit};
use crate::target::DeviceSpec;

/// The modeled machine.
const MACHINE: &str = include_str!("../../../../configs/pcie/pcie-30.toml");
const MACHINE_NAME: &str = "configs/pcie/pcie-30.toml";
/// Class code of NVMe drives.
const NVME: u32 = 0x01_08_02;

/// Runs the whole command in the model.
pub(super) fn run(args: &Args) -> Result<Scaling> {
    misfit!(
        !args.device.is_empty(),
        "--device is for --where local: the model has its own drives (--drives)"
    );
    let (name, machine) = machine(args)?;
    let functions = functions(&machine)?;
    let is_whole = args.drives.is_none() && args.by == Numbering::System;
    let host = Machine { host: name, ..Machine::default() };
    let mut scaling = empty(args, Where::Simulated, host);
    let chosen = chosen(args, &functions)?;
    for (order, places) in orders(args, &chosen) {
        let numbers: Vec<usize> =
            places.iter().map(|&at| number(&functions, &chosen[at])).collect();
        let steps = (1..=places.len()).map(|count| {
            let new = &chosen[places[count - 1]];
            step(&machine, new, &numbers[..count], args.reading)
        });
        scaling.runs.push(Run { order, steps: steps.collect() });
    }
    // The reference measurements cover these drives in this order, read in this way.
    if args.machine.is_none() && is_whole && args.reading == Reading::Striped {
        let rows = rows(MEASURED).map_err(anyhow::Error::msg)?;
        scaling.reference = rows.iter().map(|row| (row.drives, row.gib_per_s)).collect();
    }
    Ok(with_findings(scaling))
}

/// The machine and its name.
pub(super) fn machine(args: &Args) -> Result<(String, PcieMachine)> {
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
fn chosen(args: &Args, functions: &[PciFunction]) -> Result<Vec<Chosen>> {
    let mut sorted = functions.to_vec();
    if args.by != Numbering::System {
        args.by.sort(&mut sorted);
    }
    let numbers = args.drives.as_ref().unwrap_or(&Ranges::All).numbers(sorted.len());
    let numbers = numbers.map_err(|why| Misfit(format!("--drives: {why}")))?;
    let chosen = numbers.into_iter().filter_map(|at| sorted.get(at)).map(|function| {
        let address: Address = function.address;
        let spec = DeviceSpec::Pci { address, nsid: None };
        Chosen { name: address.to_string(), spec, function: Some(function.clone()) }
    });
    Ok(chosen.collect())
}

/// A drive's number in the file.
fn number(functions: &[PciFunction], drive: &Chosen) -> usize {
    let address = drive.function.as_ref().map(|function| function.address);
    functions.iter().position(|known| Some(known.address) == address).unwrap_or(usize::MAX)
}

fn step(machine: &PcieMachine, new: &Chosen, numbers: &[usize], reading: Reading) -> Step {
    let reading = match reading {
        Reading::Striped => pcie::Reading::Striped,
        Reading::Independent => pcie::Reading::Independent,
    };
    let read = machine.read(numbers, reading);
    let full = read.loads.iter().filter(|load| load.is_full());
    Step {
        drive: new.name.clone(),
        root_complex: new.root_complex(),
        gib_per_s: read.total,
        shares: read.shares.clone(),
        full: full.map(|load| what(&load.of)).collect(),
        problem: None,
        partial: false,
    }
}

/// Names the shared parts.
fn what(of: &[String]) -> String {
    match of {
        [one] => format!("root complex {one}"),
        several => format!("what root complexes {} share", several.join(" and ")),
    }
}
