//! The run of a comparison: every format, driver and point, with the results saved after each row.

use std::io::IsTerminal as _;

use anyhow::Result;
use nvmeof_console::complain;
use nvmeof_engines::Engine;
use nvmeof_report::engines::{Engines, Layout, Outcome, Row, VERSION};

use super::drives::{self, Described};
use super::format::Formats;
use super::hands::{Hands, Side};
use super::measure::Bench;
use super::points::{self, Point};
use super::{Args, forms};
use crate::plan::misfit;
use crate::results::Keeper;
use crate::target::DeviceSpec;

/// Measures every point on every drive.
///
/// Afterwards, drives that were rebound or formatted return to their earlier state. An error line
/// names each drive that does not.
///
/// # Errors
/// [`Misfit`](crate::plan::Misfit): the drives do not fit the arguments.
pub(super) fn measure_all(
    args: &Args,
    bench: &mut Bench<'_>,
    keeper: &mut Keeper,
) -> Result<Engines> {
    let drives = drives::describe(&args.device, bench.hands.system(), &bench.open_function);
    if args.hand_over {
        bench.hands.allow(to_hand_over(&drives)?);
    }
    let engines = Engines {
        version: VERSION,
        machine: crate::machine::this(),
        command: crate::machine::command(),
        drives: drives.iter().map(Described::report).collect(),
        block_bytes: u32::try_from(args.bs).unwrap_or(u32::MAX),
        seconds: args.time.as_secs_f64(),
        partial: false,
        rows: Vec::new(),
    };
    let formats = Formats::new(&args.lba_size, &args.destroy_data);
    let mut course = Course { args, bench, keeper, drives, formats, engines };
    course.run();
    course.put_back();
    Ok(course.engines)
}

/// The drives that `--hand-over` rebinds.
fn to_hand_over(drives: &[Described]) -> Result<Vec<nvmeof_core::pci::Address>> {
    let all: Vec<_> = drives.iter().filter_map(|drive| drive.function).collect();
    misfit!(
        all.is_empty(),
        "--hand-over: no --device is an NVMe drive of this machine, or a namespace of one"
    );
    let is_twice = |at: usize| all[..at].contains(&all[at]);
    if let Some(at) = (0..all.len()).find(|at| is_twice(*at)) {
        misfit!(true, "--hand-over: the drive at {} is named by two --device", all[at]);
    }
    Ok(all)
}

/// A comparison in progress.
#[derive(Debug)]
struct Course<'c, 'b> {
    args: &'c Args,
    bench: &'c mut Bench<'b>,
    keeper: &'c mut Keeper,
    drives: Vec<Described>,
    formats: Formats<'c>,
    engines: Engines,
}

impl Course<'_, '_> {
    fn run(&mut self) {
        let all = points::engines(self.args);
        for wanted in self.formats.wanted() {
            if !self.args.hand_over {
                self.format(wanted);
                self.measure(all, wanted);
                continue;
            }
            // The VFIO driver goes first, because it formats.
            let (ours, kernels): (Vec<Engine>, Vec<Engine>) =
                all.iter().partition(|engine| **engine == Engine::Vfio);
            for (side, engines) in [(Side::Ours, ours), (Side::Kernel, kernels)] {
                let formats = side == Side::Ours && wanted.is_some();
                if self.bench.is_asked_to_stop() || engines.is_empty() && !formats {
                    continue;
                }
                self.hand_over(side);
                if formats {
                    self.format(wanted);
                }
                self.measure(&engines, wanted);
                sort(self.args, &mut self.engines.rows);
            }
        }
        self.engines.partial = self.bench.is_asked_to_stop();
    }

    /// Binds the drives to the driver of a side. A drive that keeps its driver becomes a row with
    /// the reason.
    fn hand_over(&mut self, side: Side) {
        for drive in &mut self.drives {
            let Err(why) = hand(&mut self.bench.hands, drive, side) else {
                drive.look(&self.bench.open_function);
                continue;
            };
            let engine = if side == Side::Ours { Engine::Vfio.name() } else { "all others" };
            let row = Row {
                lba_bytes: drive.lba_bytes,
                layout: Layout::Single,
                drives: vec![drive.name.clone()],
                engine: engine.to_owned(),
                concurrency: 0,
                outcome: Outcome::Unable(why),
                note: None,
            };
            // The same row for another format adds no information.
            if !self.engines.rows.contains(&row) {
                self.engines.rows.push(row);
            }
        }
    }

    fn format(&mut self, wanted: Option<u32>) {
        let refused = self.formats.change(&mut self.drives, wanted, &self.bench.open_function);
        self.engines.rows.extend(refused);
    }

    fn measure(&mut self, engines: &[Engine], wanted: Option<u32>) {
        let points = points::points(self.args, engines, &self.drives, wanted);
        let points = points.into_iter().filter(|point| {
            // A drive that was not rebound already has its row.
            !self.args.hand_over || point.is_of_one_side()
        });
        let points: Vec<Point> = points.collect();
        // Engines that cannot read some drives are not tried again at each concurrency.
        let mut known = Vec::new();
        for (number, point) in points.iter().enumerate() {
            if self.bench.is_asked_to_stop() {
                break;
            }
            if known.contains(&point.without_concurrency()) {
                continue;
            }
            tell(number + 1, points.len(), &point.to_string());
            let row = self.bench.measure(point);
            if row.concurrency == 0 {
                known.push(point.without_concurrency());
            }
            self.engines.partial = self.bench.is_asked_to_stop();
            self.engines.rows.push(row);
            self.keeper.keep(&forms(&self.engines));
        }
    }

    /// Restores the formats, then the drivers that the drives had.
    fn put_back(&mut self) {
        if self.formats.has_changed() && self.args.hand_over {
            for drive in &mut self.drives {
                // The reason for a failure shows up when the format cannot be restored.
                let _ = hand(&mut self.bench.hands, drive, Side::Ours);
            }
        }
        for problem in self.formats.restore(&mut self.drives, &self.bench.open_function) {
            complain!("error: {problem}");
        }
        for problem in self.bench.hands.give_back() {
            complain!("error: {problem}");
        }
    }
}

/// Binds a drive to the driver of a side, and stores the name under which that driver opens it.
fn hand(hands: &mut Hands, drive: &mut Described, side: Side) -> Result<(), String> {
    let Some(address) = drive.function else {
        return match side {
            Side::Ours => Err(format!("{} is no NVMe drive: nothing to hand over", drive.name)),
            Side::Kernel => Ok(()),
        };
    };
    hands.hand(address, side)?;
    drive.spec = match (side, &drive.spec) {
        (Side::Ours, DeviceSpec::Pci { .. }) => return Ok(()),
        (Side::Ours, _) => DeviceSpec::Pci { address, nsid: None },
        (Side::Kernel, _) => DeviceSpec::File(hands.block_device(address)?),
    };
    Ok(())
}

/// Sorts rows by the layouts and engines in the order of the command line.
fn sort(args: &Args, rows: &mut [Row]) {
    let layout = |row: &Row| args.layout.iter().position(|layout| *layout == row.layout);
    let engine =
        |row: &Row| points::engines(args).iter().position(|engine| engine.name() == row.engine);
    let format = |row: &Row| args.lba_size.iter().position(|bytes| *bytes == row.lba_bytes);
    rows.sort_by_key(|row| (format(row), row.lba_bytes, layout(row), engine(row)));
}

/// Prints a line of progress, on a terminal only.
fn tell(number: usize, count: usize, what: &str) {
    if std::io::stderr().is_terminal() {
        complain!("[{number}/{count}] {what}");
    }
}
