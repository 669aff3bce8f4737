//! `nvmeof-perf engines`: the same random reads through every available I/O method.
//!
//! ```text
//! --device --drives--> properties --planned_rows--> one LBA format x layout x engine x concurrency
//!                                                       |
//!                table, plot, page <--rows-- measure ---'   each reopens and closes the drives
//! ```
//!
//! `comparison_run` measures the rows; with `--rebind`, drives change drivers in between
//! (`rebind`), and with `--build-md` an array is assembled for the rows that read one (`md`).
//!
//! The command never writes data. An engine that cannot read a drive becomes a row with the reason.

mod comparison_run;
mod drives;
mod format;
mod md;
mod measure;
mod planned_rows;
mod rebind;
#[cfg(test)]
mod tests;

use std::process::ExitCode;
use std::time::Duration;

use anyhow::Result;
use nvmeof_console::{complain, say, show};
use nvmeof_engines::Engine;
use nvmeof_report::engines::{
    EngineComparison, REFERENCE_SOURCE, ReadLayout, RowOutcome, about_md, about_polling, page,
    plots, reference, reference_plots, reference_table, table,
};

use nvmeof_report::{Plot, show_size};

use self::comparison_run::measure_all;
use self::measure::RowMeasurer;
use crate::args::{nonzero_size, nonzero_time};
use crate::plan::usage_error;
use crate::results::{ResultFiles, ResultForms, ResultsWriter};
use crate::run::{asked_to_stop, stop_on_signals};
use crate::target::DeviceSpec;
use crate::units::{self, CpuList};

const EXAMPLE: &str = "\
Examples:
  nvmeof-perf engines --device /dev/nvme1n1 --device /dev/nvme2n1 --device pci:0000:61:00.0 --html engines.html
  nvmeof-perf engines --device /dev/nvme1n1 --device /dev/nvme2n1 --rebind --html engines.html
  nvmeof-perf engines --device /dev/nvme1n1 --device /dev/nvme2n1 --build-md --html engines.html
  nvmeof-perf engines --device ./file --engine psync,io-uring --concurrency 16,64 --time 2s
  nvmeof-perf engines --reference --svg reference.svg

The kernel's engines read files and block devices, vfio reads drives that are bound to vfio-pci (pci:ADDRESS): to see
all of them beside each other on the same drives give --rebind, or name drives of both kinds. Nothing is written to a drive, unless --lba-size and
--destroy-data ask for a format.

Exit code: 0 success, 1 nothing could be measured, it was interrupted, or results could not be written, 2 wrong usage.";

/// `nvmeof-perf engines`.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLE)]
pub(crate) struct EnginesArgs {
    /// Drive to read: a file, a block device, or a drive under the VFIO driver (pci:0000:61:00.0);
    /// may be given several times.
    #[arg(long, value_name = "PATH|pci:ADDRESS", required_unless_present = "reference")]
    device: Vec<DeviceSpec>,
    /// Engines, by name [default: all].
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    engine: Vec<Engine>,
    /// Reads outstanding, over all drives together; a synchronous engine uses as many threads.
    #[arg(
        long, value_name = "LIST", value_delimiter = ',', default_value = "512,1024,2048",
        value_parser = clap::value_parser!(u16).range(1..=32768)
    )]
    concurrency: Vec<u16>,
    /// Layout of the reads: single (one drive after the other), individual (all drives
    /// concurrently, each separately), stripe (all as one, by this program), md-raid0 (all as one,
    /// by the kernel) [default: individual,stripe, and md-raid0 if the drives are the members of
    /// an array or --build-md is given].
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = layout)]
    layout: Vec<ReadLayout>,
    /// Assemble an MD RAID-0 of the drives for the rows md-raid0, unless the machine has one, and
    /// stop it afterwards. It is read-only, without superblocks: nothing is written to the drives.
    #[arg(long)]
    build_md: bool,
    /// Bytes of the stripe's chunks, and of those of --build-md.
    #[arg(long, value_name = "SIZE", default_value = "8k", value_parser = nonzero_size)]
    chunk: u64,
    /// Bytes of a read.
    #[arg(long, value_name = "SIZE", default_value = "4k", value_parser = nonzero_size)]
    bs: u64,
    /// Threads of the engines that are not synchronous [default: as many as CPUs].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    jobs: Option<u16>,
    /// Time to measure each row.
    #[arg(long, value_name = "TIME", default_value = "5s", value_parser = nonzero_time)]
    time: Duration,
    /// End a row after this many reads, unless the time expires first.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    ios: Option<u64>,
    /// Time to run before measuring.
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = units::duration)]
    ramp: Duration,
    /// LBA formats to measure, in bytes of a block (512,4096) [default: the current formats]. A
    /// drive under the VFIO driver is formatted for it, if --destroy-data names it, and formatted
    /// back at the end.
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    lba_size: Vec<u32>,
    /// Serial number of a drive that may be formatted: all data on it is lost. May be given several
    /// times.
    #[arg(long, value_name = "SERIAL", requires = "lba_size")]
    destroy_data: Vec<String>,
    /// Rebind drives between the kernel driver and vfio-pci, so that every engine reads each of
    /// them, and restore their drivers at the end. A drive in use keeps its driver.
    #[arg(long)]
    rebind: bool,
    /// CPUs to pin the threads to, in turn (0-3,8).
    #[arg(long, value_name = "LIST", value_parser = units::cpus)]
    cpus: Option<CpuList>,
    /// Seed of addresses.
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Measure nothing: show the comparison of synchronous engines on 16 drives (sync_engines.csv).
    #[arg(long, conflicts_with = "device")]
    reference: bool,
    #[command(flatten)]
    files: ResultFiles,
}

/// Runs the whole command.
pub(crate) fn run(args: &EnginesArgs) -> Result<ExitCode> {
    let mut writer = args.files.open()?;
    if args.reference {
        return show_reference(args, &mut writer);
    }
    check(args)?;
    let mut measurer = RowMeasurer::new(args, stop_on_signals()?, asked_to_stop()?);
    let engines = measure_all(args, &mut measurer, &mut writer)?;
    if !args.files.is_json_on_stdout() {
        show(table(&engines).markdown());
        say!("\nFor comparison: `nvmeof-perf engines --reference` shows sync_engines.csv.");
    }
    let written = writer.finish(&forms(&engines));
    let is_measured =
        |row: &nvmeof_report::engines::EngineRow| matches!(row.outcome, RowOutcome::Measured(_));
    let any = engines.rows.iter().any(is_measured);
    if engines.partial {
        complain!("error: interrupted: what was measured until then is marked partial");
    } else if !any {
        complain!("error: no engine could read: the notes of the table say why");
    }
    written?;
    Ok(if any && !engines.partial { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn show_reference(args: &EnginesArgs, writer: &mut ResultsWriter) -> Result<ExitCode> {
    let rows = reference();
    if !args.files.is_json_on_stdout() {
        say!("{REFERENCE_SOURCE}:\n");
        show(reference_table(&rows).markdown());
        about_md(&rows).iter().chain(&about_polling(&rows)).for_each(|text| say!("\n{text}"));
    }
    let result: Vec<_> = rows
        .iter()
        .map(|row| {
            serde_json::json!({
                "where": REFERENCE_SOURCE,
                "lba_bytes": row.lba_bytes,
                "layout": row.layout,
                "concurrency": row.concurrency,
                "engine": row.engine,
                "kiops": row.kiops,
            })
        })
        .collect();
    let svg = pictures(&reference_plots(&rows));
    let html = page(None, &rows).document();
    writer.finish(&ResultForms { result: &result, html, svg })?;
    Ok(ExitCode::SUCCESS)
}

/// Rejects arguments that are invalid for any drive.
fn check(args: &EnginesArgs) -> Result<()> {
    for device in &args.device {
        usage_error!(
            matches!(device, DeviceSpec::Null { .. } | DeviceSpec::Ram { .. }),
            "--device {device} is no drive: engines are compared on files, block devices and drives (pci:ADDRESS)"
        );
        let times = args.device.iter().filter(|other| *other == device).count();
        usage_error!(
            times > 1,
            "--device {device} is given {times} times: the device would compete with itself"
        );
    }
    usage_error!(
        args.bs > nvmeof_core::dma::CHUNK as u64,
        "--bs {} is more than a read of one buffer: use {} or less",
        show_size(args.bs),
        show_size(nvmeof_core::dma::CHUNK as u64)
    );
    Ok(())
}

fn forms(engines: &EngineComparison) -> ResultForms<'_, EngineComparison> {
    let html = page(Some(engines), &reference()).document();
    ResultForms { result: engines, html, svg: pictures(&plots(engines)) }
}

/// Plots as files, named by LBA format and layout.
fn pictures(plots: &[(String, Plot)]) -> Vec<(String, String)> {
    plots.iter().map(|(name, plot)| (name.clone(), plot.standalone_svg())).collect()
}

fn layout(text: &str) -> Result<ReadLayout, String> {
    ReadLayout::ALL.into_iter().find(|layout| layout.name() == text).ok_or_else(|| {
        let names = ReadLayout::ALL.map(ReadLayout::name).join(", ");
        format!("`{text}` is no layout: there are {names}")
    })
}
