//! `nvmeof-perf scale`: bandwidth over a growing number of drives.
//!
//! ```text
//! --drives, --device --selected_drive--> drives and their locations --orders--> 1, 2, ... N drives
//!                                                                           |
//!                         table, plot, page, saturated parts <--steps-- read, or model
//! ```

mod local;
mod model;
mod ranges;
mod selected_drive;
#[cfg(test)]
mod tests;
mod tree;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Result;
use clap::ValueEnum;
use nvmeof_console::{complain, say};
use nvmeof_report::scale::{
    DriveScaling, ScaleLoad, VERSION, drive_table, findings, page, plot, summary, table,
};
use nvmeof_report::{RunOrigin, engines::MachineInfo};

use self::ranges::NumberRanges;
pub(crate) use self::selected_drive::of_node;
use self::selected_drive::{DriveNumbering, SelectedDrive};
use crate::args::{nonzero_size, nonzero_time};
use crate::results::{ResultFiles, ResultForms, ResultsWriter};
use crate::target::DeviceSpec;
use crate::units::{self, CpuList};

const EXAMPLE: &str = "\
Examples:
  nvmeof-perf scale --drives 0-15,19-22 --html scaling.html
  nvmeof-perf scale --drives all --by root-complex --order in-order
  nvmeof-perf scale --device /dev/nvme0n1 --device pci:0000:61:00.0 --time 2s
  nvmeof-perf scale --where sim --html scaling.html

Drives are only read. One that is in use is not opened, and ends the run with a message.

Exit code: 0 success, 1 it failed, was interrupted, or results could not be written, 2 wrong usage.";

/// `nvmeof-perf scale`.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLE)]
pub(crate) struct ScaleArgs {
    /// Place of the measurement: this machine, or the model of one with thirty drives.
    #[arg(long = "where", value_name = "WHERE", default_value = "local")]
    mode: ScaleMode,
    /// The machine's NVMe drives, by their numbers from 0 (0-15,19-22), or all [default with
    /// --where sim: all].
    #[arg(long, value_name = "RANGES", conflicts_with = "device")]
    drives: Option<NumberRanges>,
    /// Numbering of the drives, which `in order` follows.
    #[arg(long, value_name = "BY", default_value = "system")]
    by: DriveNumbering,
    /// Device to read, in place of --drives: a file, a block device, a drive under the VFIO driver
    /// (pci:0000:61:00.0), null or ram:SIZE; may be given several times.
    #[arg(long, value_name = "PATH|pci:ADDRESS|null|ram:SIZE")]
    device: Vec<DeviceSpec>,
    /// Orders in which drives are added.
    #[arg(
        long,
        value_name = "LIST",
        value_delimiter = ',',
        default_value = "in-order,round-robin"
    )]
    order: Vec<DriveOrder>,
    /// Way to read the drives: from one queue in turn, as fio and stripes do, or from a separate
    /// queue each.
    #[arg(long, value_name = "HOW", default_value = "striped")]
    reading: ReadMode,
    /// Bytes of a read.
    #[arg(long, value_name = "SIZE", default_value = "4m", value_parser = nonzero_size)]
    bs: u64,
    /// Threads.
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..=1024))]
    jobs: u16,
    /// Reads outstanding of each thread: over all drives, or with --reading independent of each
    /// drive.
    #[arg(long, value_name = "N", default_value_t = 32, value_parser = clap::value_parser!(u32).range(1..=65536))]
    depth: u32,
    /// Time to measure each step.
    #[arg(long, value_name = "TIME", default_value = "5s", value_parser = nonzero_time)]
    time: Duration,
    /// End a step after this many reads, unless the time expires first.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    ios: Option<u64>,
    /// Time to run before measuring.
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = units::duration)]
    ramp: Duration,
    /// CPUs to pin the threads to, in turn (0-3,8).
    #[arg(long, value_name = "LIST", value_parser = units::cpus)]
    cpus: Option<CpuList>,
    /// With --where sim: the machine, a file like configs/pcie/pcie-30.toml [default: that one].
    #[arg(long, value_name = "FILE")]
    machine: Option<PathBuf>,
    #[command(flatten)]
    files: ResultFiles,
}

/// Mode of the measurement.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum ScaleMode {
    /// On this machine.
    Local,
    /// In a model.
    Sim,
}

/// Order in which drives are added.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum DriveOrder {
    /// By number, or in the given order.
    InOrder,
    /// Round-robin over root complexes, and within each over its slots (adapters).
    RoundRobin,
}

/// Way to read the drives.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum ReadMode {
    /// From one queue, in turn: the slowest drive sets the pace.
    Striped,
    /// From a separate queue each.
    Independent,
}

impl DriveOrder {
    fn name(self, by: DriveNumbering) -> String {
        match self {
            Self::InOrder => format!("in {} order", by.name()),
            Self::RoundRobin => "round-robin".to_owned(),
        }
    }
}

/// Runs the whole command.
pub(crate) fn run(args: &ScaleArgs) -> Result<ExitCode> {
    let mut writer = args.files.open()?;
    let scaling = match args.mode {
        ScaleMode::Sim => model::run(args)?,
        ScaleMode::Local => local::run(args, &mut writer)?,
    };
    if !args.files.is_json_on_stdout() {
        show(&scaling);
    }
    writer.finish(&forms(&scaling))?;
    let problem = scaling.runs.iter().flat_map(|run| &run.steps).any(|step| step.problem.is_some());
    if scaling.partial {
        complain!("error: ended before all was measured: what there is is kept, marked partial");
    }
    Ok(if scaling.partial || problem { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

fn show(scaling: &DriveScaling) {
    summary(scaling).iter().for_each(|line| say!("{line}\n"));
    for run in &scaling.runs {
        say!("Drives {} ({}):\n", run.order, scaling.place.name());
        say!("{}", table(scaling, run).markdown());
        if let Some(drives) = drive_table(run) {
            say!("Each drive, in the last step:\n\n{}", drives.markdown());
        }
    }
    scaling.findings.iter().for_each(|text| say!("{text}"));
    if !scaling.tree.is_empty() {
        say!("\nBridges above the drives:\n");
        scaling.tree.iter().for_each(|line| say!("{line}"));
    }
}

fn forms(scaling: &DriveScaling) -> ResultForms<'_, DriveScaling> {
    let svg = vec![("drives".to_owned(), plot(scaling).standalone_svg())];
    ResultForms { result: scaling, html: page(scaling).document(), svg }
}

/// A result without runs.
fn empty(
    args: &ScaleArgs,
    place: RunOrigin,
    machine: MachineInfo,
    selected: &[SelectedDrive],
) -> DriveScaling {
    let seconds = if place == RunOrigin::Simulated { 0.0 } else { args.time.as_secs_f64() };
    let load = ScaleLoad {
        block_bytes: args.bs,
        jobs: args.jobs.into(),
        depth: args.depth,
        striped: args.reading == ReadMode::Striped,
        seconds,
    };
    DriveScaling {
        version: VERSION,
        place,
        machine,
        command: crate::machine::command(),
        load,
        partial: false,
        runs: Vec::new(),
        reference: Vec::new(),
        tree: tree_of(selected),
        findings: Vec::new(),
    }
}

/// The bridges above the drives whose location is known.
fn tree_of(selected: &[SelectedDrive]) -> Vec<String> {
    let places = selected
        .iter()
        .filter_map(|drive| Some((&drive.function.as_ref()?.place, drive.name.as_str())));
    tree::tree(&places.collect::<Vec<_>>())
}

/// The requested orders, each as indices in `selected`.
fn orders(args: &ScaleArgs, selected: &[SelectedDrive]) -> Vec<(String, Vec<usize>)> {
    let mut orders: Vec<(String, Vec<usize>)> = Vec::new();
    for order in &args.order {
        let places = match order {
            DriveOrder::InOrder => (0..selected.len()).collect(),
            DriveOrder::RoundRobin => selected_drive::round_robin(selected),
        };
        let name = if *order == DriveOrder::InOrder && !args.device.is_empty() {
            "as given".to_owned()
        } else {
            order.name(args.by)
        };
        if !orders.iter().any(|(known, _)| *known == name) {
            orders.push((name, places));
        }
    }
    orders
}

/// Adds the findings to a result.
fn with_findings(mut scaling: DriveScaling) -> DriveScaling {
    scaling.findings = findings(&scaling);
    scaling
}
