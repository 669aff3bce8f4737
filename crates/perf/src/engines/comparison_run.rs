//! The run of a comparison: every format, driver and row, with the results saved after each row.

use std::io::IsTerminal as _;

use anyhow::Result;
use nvmeof_console::complain;
use nvmeof_core::pci::System;
use nvmeof_engines::Engine;
use nvmeof_report::engines::{EngineComparison, EngineRow, ReadLayout, RowOutcome, VERSION};

use super::drives::{self, DescribedDrive};
use super::format::DriveFormats;
use super::md::MdArray;
use super::measure::RowMeasurer;
use super::planned_rows::{self, PlannedRow};
use super::rebind::{DriveRebinder, DriverKind};
use super::{EnginesArgs, forms};
use crate::plan::usage_error;
use crate::results::ResultsWriter;
use crate::target::DeviceSpec;

/// Measures every row on every drive.
///
/// Afterwards, drives that were rebound or formatted return to their earlier state. An error line
/// names each drive that does not.
///
/// # Errors
/// [`UsageError`](crate::plan::UsageError): the drives do not fit the arguments.
pub(super) fn measure_all(
    args: &EnginesArgs,
    measurer: &mut RowMeasurer<'_>,
    writer: &mut ResultsWriter,
) -> Result<EngineComparison> {
    let mut drives =
        drives::describe(&args.device, measurer.rebinder.system(), &measurer.open_function);
    if args.rebind {
        measurer.rebinder.allow(to_rebind(&drives)?);
    }
    let has_array = find_array(measurer.rebinder.system(), &mut drives);
    let layouts = planned_rows::layouts(args, has_array);
    let engines = EngineComparison {
        version: VERSION,
        machine: crate::machine::this(),
        command: crate::machine::command(),
        drives: drives.iter().map(DescribedDrive::report).collect(),
        block_bytes: u32::try_from(args.bs).unwrap_or(u32::MAX),
        seconds: args.time.as_secs_f64(),
        partial: false,
        rows: Vec::new(),
    };
    let formats = DriveFormats::new(&args.lba_size, &args.destroy_data);
    let mut comparison =
        ComparisonRun { args, layouts, measurer, writer, drives, formats, engines };
    comparison.run();
    comparison.restore_drives();
    Ok(comparison.engines)
}

/// Returns true if the drives are the members of an MD RAID-0 that may be read. They are then
/// opened although the array has them open.
fn find_array(system: &System, drives: &mut [DescribedDrive]) -> bool {
    let names: Option<Vec<String>> =
        drives.iter().map(|drive| system.node_name(&drive.name)).collect();
    let found = names.is_some_and(|names| matches!(MdArray::find(system, &names), Ok(Some(_))));
    drives.iter_mut().for_each(|drive| drive.in_array = found);
    found
}

/// The drives that `--rebind` rebinds.
fn to_rebind(drives: &[DescribedDrive]) -> Result<Vec<nvmeof_core::pci::Address>> {
    let all: Vec<_> = drives.iter().filter_map(|drive| drive.function).collect();
    usage_error!(
        all.is_empty(),
        "--rebind: no --device is an NVMe drive of this machine, or a namespace of one"
    );
    let is_twice = |at: usize| all[..at].contains(&all[at]);
    if let Some(at) = (0..all.len()).find(|at| is_twice(*at)) {
        usage_error!(true, "--rebind: the drive at {} is named by two --device", all[at]);
    }
    Ok(all)
}

/// A comparison in progress.
#[derive(Debug)]
struct ComparisonRun<'c, 'b> {
    args: &'c EnginesArgs,
    layouts: Vec<ReadLayout>,
    measurer: &'c mut RowMeasurer<'b>,
    writer: &'c mut ResultsWriter,
    drives: Vec<DescribedDrive>,
    formats: DriveFormats<'c>,
    engines: EngineComparison,
}

impl ComparisonRun<'_, '_> {
    fn run(&mut self) {
        let all = planned_rows::engines(self.args);
        for wanted in self.formats.wanted() {
            if !self.args.rebind {
                self.format(wanted);
                self.measure(all, wanted);
                continue;
            }
            // The VFIO driver goes first, because it formats.
            let (ours, kernels): (Vec<Engine>, Vec<Engine>) =
                all.iter().partition(|engine| **engine == Engine::Vfio);
            for (kind, engines) in [(DriverKind::Vfio, ours), (DriverKind::Kernel, kernels)] {
                let formats = kind == DriverKind::Vfio && wanted.is_some();
                if self.measurer.is_asked_to_stop() || engines.is_empty() && !formats {
                    continue;
                }
                self.rebind(kind);
                if formats {
                    self.format(wanted);
                }
                self.measure(&engines, wanted);
                sort(self.args, &self.layouts, &mut self.engines.rows);
            }
        }
        self.engines.partial = self.measurer.is_asked_to_stop();
    }

    /// Binds the drives to a driver. A drive that keeps its driver becomes a row with
    /// the reason.
    fn rebind(&mut self, kind: DriverKind) {
        for drive in &mut self.drives {
            let Err(why) = rebind(&mut self.measurer.rebinder, drive, kind) else {
                drive.look(&self.measurer.open_function);
                continue;
            };
            let engine = if kind == DriverKind::Vfio { Engine::Vfio.name() } else { "all others" };
            let row = EngineRow {
                lba_bytes: drive.lba_bytes,
                layout: ReadLayout::Single,
                drives: vec![drive.name.clone()],
                engine: engine.to_owned(),
                concurrency: 0,
                outcome: RowOutcome::Unable(why),
                note: None,
            };
            // The same row for another format adds no information.
            if !self.engines.rows.contains(&row) {
                self.engines.rows.push(row);
            }
        }
    }

    fn format(&mut self, wanted: Option<u32>) {
        let refused = self.formats.change(&mut self.drives, wanted, &self.measurer.open_function);
        self.engines.rows.extend(refused);
    }

    fn measure(&mut self, engines: &[Engine], wanted: Option<u32>) {
        let planned_rows =
            planned_rows::plan(self.args, &self.layouts, engines, &self.drives, wanted);
        let planned_rows = planned_rows.into_iter().filter(|planned| {
            // A drive that was not rebound already has its row.
            !self.args.rebind || planned.fits_driver()
        });
        let planned_rows: Vec<PlannedRow> = planned_rows.collect();
        // Engines that cannot read some drives are not tried again at each concurrency.
        let mut known = Vec::new();
        for (number, planned) in planned_rows.iter().enumerate() {
            if self.measurer.is_asked_to_stop() {
                break;
            }
            if known.contains(&planned.without_concurrency()) {
                continue;
            }
            tell(number + 1, planned_rows.len(), &planned.to_string());
            let row = self.measurer.measure(planned);
            if row.concurrency == 0 {
                known.push(planned.without_concurrency());
            }
            self.engines.partial = self.measurer.is_asked_to_stop();
            self.engines.rows.push(row);
            self.writer.keep(&forms(&self.engines));
        }
        self.measurer.stop_array();
    }

    /// Restores the formats, then the drivers that the drives had.
    fn restore_drives(&mut self) {
        if self.args.rebind {
            for drive in &mut self.drives {
                if self.formats.has_changed(drive)
                    && let Err(why) = rebind(&mut self.measurer.rebinder, drive, DriverKind::Vfio)
                {
                    complain!("error: the format of {} is not restored: {why}", drive.name);
                }
            }
        }
        for problem in self.formats.restore(&mut self.drives, &self.measurer.open_function) {
            complain!("error: {problem}");
        }
        for problem in self.measurer.rebinder.restore() {
            complain!("error: {problem}");
        }
    }
}

/// Binds a drive to a driver, and stores the name under which that driver opens it.
fn rebind(
    rebinder: &mut DriveRebinder,
    drive: &mut DescribedDrive,
    kind: DriverKind,
) -> Result<(), String> {
    let Some(address) = drive.function else {
        return match kind {
            DriverKind::Vfio => Err(format!("{} is no NVMe drive: nothing to rebind", drive.name)),
            DriverKind::Kernel => Ok(()),
        };
    };
    rebinder.rebind(address, kind)?;
    drive.spec = match (kind, &drive.spec) {
        (DriverKind::Vfio, DeviceSpec::Pci { .. }) => return Ok(()),
        (DriverKind::Vfio, _) => DeviceSpec::Pci { address, nsid: None },
        (DriverKind::Kernel, _) => DeviceSpec::File(rebinder.block_device(address)?),
    };
    Ok(())
}

/// Sorts rows by the layouts and engines in the order of the command line.
fn sort(args: &EnginesArgs, layouts: &[ReadLayout], rows: &mut [EngineRow]) {
    let layout = |row: &EngineRow| layouts.iter().position(|layout| *layout == row.layout);
    let engine = |row: &EngineRow| {
        planned_rows::engines(args).iter().position(|engine| engine.name() == row.engine)
    };
    let format = |row: &EngineRow| args.lba_size.iter().position(|bytes| *bytes == row.lba_bytes);
    rows.sort_by_key(|row| (format(row), row.lba_bytes, layout(row), engine(row)));
}

/// Prints a line of progress, on a terminal only.
fn tell(number: usize, count: usize, what: &str) {
    if std::io::stderr().is_terminal() {
        complain!("[{number}/{count}] {what}");
    }
}
