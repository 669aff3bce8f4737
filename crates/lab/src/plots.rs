//! `cargo xtask plots`: the plots and tables of docs/pacing.md and of two pages of docs/design.
//!
//! ```text
//! plans --simulator--> simulated.jsonl \
//! bench pacing --json, --svg --> measured.jsonl, activity.json > figures (SVG) and blocks (tables)
//! suite --simulator--> suite.jsonl     |
//! measured rows --simulator--> calibration.txt /
//! ```
//!
//! All plots and tables are derived from files that are committed with them. A test can therefore
//! check that the pages agree with the measurements.
//!
//! | file | content |
//! |---|---|
//! | `gather` | runs plans and the suite, and reads real runs |
//! | `data` | the committed files, read back |
//! | `figures` | from points to plots |
//! | `measured` | the same for any real runs |
//! | `measuring` | pictures and pages of the tests of the Mellanox SPDK io_pacing prototype |
//! | `blocks` | from points to the tables of the pages |

mod blocks;
mod data;
mod figures;
mod gather;
mod measured;
mod measuring;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result};
use nvmeof_console::say;
use nvmeof_workspace::checkout::Workspace;

use crate::output;
use data::PlotData;

/// Folders of the figures and their data, below the root, and the pages that have blocks.
const FOLDER: &str = "docs/pacing";
const PAGES: [&str; 4] =
    ["docs/pacing.md", "docs/design/adaptive.md", "docs/design/simulator.md", "docs/measuring.md"];

#[derive(Debug, clap::Args)]
#[command(
    after_help = "Simulates what the pages show, runs the acceptance suite of adaptive, and writes everything below \
    docs/pacing\nand docs/measuring, and the tables inside docs/pacing.md and two pages of docs/design anew.\n\n\
    Example: cargo xtask bench pacing --json pacing.jsonl && cargo xtask plots --real pacing.jsonl"
)]
pub(crate) struct PlotsArgs {
    /// Take real runs from this file of `cargo xtask bench pacing --json`, in place of those
    /// committed
    #[arg(long, value_name = "FILE")]
    real: Option<PathBuf>,
    /// Take what the pacer did over time from this file, which `cargo xtask bench pacing --svg DIR`
    /// leaves in DIR
    #[arg(long, value_name = "FILE")]
    activity: Option<PathBuf>,
    /// Take rows of io_pacing's tests from this file of `cargo xtask sweep --where local --csv`
    #[arg(long, value_name = "FILE")]
    local: Option<PathBuf>,
    /// Simulate nothing: draw the committed data, and the files of --real and --activity
    #[arg(long)]
    draw_only: bool,
    /// Keep the committed results of the acceptance suite
    #[arg(long, conflicts_with = "draw_only")]
    no_suite: bool,
}

pub(crate) fn run(args: &PlotsArgs) -> Result<ExitCode> {
    let workspace = Workspace::find()?;
    let folder = workspace.root().join(FOLDER);
    fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
    // Fail now, not after minutes of simulation.
    let real = args.real.as_deref().map(gather::real).transpose()?;
    if let Some(points) = &real {
        data::write_points(&folder.join(data::MEASURED), points)?;
    }
    if let Some(file) = &args.activity {
        let text =
            fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))?;
        data::activity(&text).with_context(|| file.display().to_string())?;
        output::write(&folder.join(data::ACTIVITY), &text)?;
    }
    if let Some(file) = &args.local {
        measuring::take_in(&workspace, file)?;
    }
    if !args.draw_only {
        measuring::simulate(&workspace)?;
        data::write_points(&folder.join(data::SIMULATED), &gather::simulated(&workspace)?)?;
        output::write(&folder.join(data::CALIBRATION), &gather::calibration(&workspace)?)?;
        if !args.no_suite {
            data::write_cases(&folder.join(data::SUITE), &gather::suite(&workspace)?)?;
        }
    }
    let data = PlotData::load(workspace.root())?;
    let drawn = draw(&folder, &data)?;
    for page in PAGES {
        let path = workspace.root().join(page);
        let text =
            fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
        let filled = blocks::fill(&text, &data).with_context(|| page.to_owned())?;
        if filled != text {
            output::write(&path, &filled)?;
        }
    }
    say!("{drawn} plots in {FOLDER}, tables in {}", PAGES.join(", "));
    say!("{} pictures in {}", measuring::draw(&workspace)?, measuring::FOLDER);
    Ok(ExitCode::SUCCESS)
}

/// Writes every plot, and removes obsolete ones.
fn draw(folder: &Path, data: &PlotData) -> Result<usize> {
    let figures = figures::all(data);
    let names: BTreeSet<_> = figures.iter().map(|figure| figure.file.clone()).collect();
    for old in svg_files(folder)?.difference(&names) {
        fs::remove_file(folder.join(old)).with_context(|| format!("cannot remove {old}"))?;
    }
    for figure in &figures {
        let path = folder.join(&figure.file);
        output::write(&path, &figure.plot.standalone_svg())?;
    }
    Ok(figures.len())
}

/// Returns each value once, in order.
fn distinct<T: PartialEq>(values: impl Iterator<Item = T>) -> Vec<T> {
    values.fold(Vec::new(), |mut all, value| {
        if !all.contains(&value) {
            all.push(value);
        }
        all
    })
}

/// Returns the names of the plots in a folder.
fn svg_files(folder: &Path) -> Result<BTreeSet<String>> {
    let entries =
        fs::read_dir(folder).with_context(|| format!("cannot read {}", folder.display()))?;
    let names = entries.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()));
    let names: Result<Vec<String>> = names.collect();
    Ok(names?.into_iter().filter(|name| name.ends_with(".svg")).collect())
}
