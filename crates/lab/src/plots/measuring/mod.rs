//! A picture for each of the fourteen tests of the Mellanox SPDK io_pacing prototype.
//!
//! Each picture shows the rows measured with io_pacing, the simulation and, if one exists, the real
//! run, each marked with its source.
//!
//! ```text
//! io_pacing's rows, plans --simulator--> simulated.csv, sweep --where local --csv --> local.csv
//!                                 '-> a picture a test and platform (docs/measuring)
//! ```

mod rows;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use nvmeof_console::complain;
use nvmeof_report::plot::SeriesShape;
use nvmeof_report::{Axis, Plot, Series, csv};
use nvmeof_workspace::checkout::Workspace;

use crate::sweep;
use rows::ResultRow;

/// Folder below the root, for pictures and the data behind them.
pub(super) const FOLDER: &str = "docs/measuring";
const SIMULATED: &str = "simulated.csv";
/// File written by `cargo xtask sweep --where local --csv`.
const LOCAL: &str = "local.csv";
const PROTOTYPE: &str = "crates/sim/data/pacing_prototype.csv";

/// Content of a test's picture.
struct TestPicture {
    test: &'static str,
    about: &'static str,
    x: RowColumn,
    /// Columns that distinguish lines.
    by: &'static [RowColumn],
    y: YValue,
    /// Filter of the rows, for tests that would have too many lines.
    keep: fn(&ResultRow) -> bool,
}

/// Sort key that distinguishes lines: source, numbers, words.
type LineKey<'a> = (&'a str, Vec<Option<u64>>, String);

/// Column of a row, for the x axis or to distinguish lines.
#[derive(Clone, Copy, PartialEq)]
enum RowColumn {
    Depth,
    Devices,
    Initiator,
    Cores,
    Cache,
    Buffers,
    Slow,
    Run,
    Period,
    FastDepth,
}

#[derive(Clone, Copy)]
enum YValue {
    Bandwidth,
    Latency,
}

use RowColumn::{Buffers, Cache, Cores, Depth, Devices, FastDepth, Initiator, Period, Run, Slow};

const fn picture(
    test: &'static str,
    about: &'static str,
    x: RowColumn,
    by: &'static [RowColumn],
    keep: fn(&ResultRow) -> bool,
) -> TestPicture {
    TestPicture { test, about, x, by, y: YValue::Bandwidth, keep }
}

const PICTURES: &[TestPicture] = &[
    picture("1", "no pacing, one null device", Depth, &[], |_| true),
    picture("2", "no pacing, 16 null devices", Depth, &[Initiator], |_| true),
    picture("3", "no pacing, 16 drives", Depth, &[Initiator], |_| true),
    picture("4", "96 buffers, 16 null devices", Depth, &[Initiator], |_| true),
    picture("5", "96 buffers, 16 drives", Depth, &[Initiator], |_| true),
    picture("6", "96 buffers, 16 drives, the same run ten times", Run, &[Depth], |_| true),
    picture("7", "96 buffers, fewer and fewer cores", Cores, &[Depth], |row| {
        [32, 256, 2048].contains(&row.qd)
    }),
    picture("8", "96 buffers, 16 cores that keep fewer of them each", Cache, &[Depth], |row| {
        [32, 256, 2048].contains(&row.qd)
    }),
    picture("9", "fewer and fewer buffers, 16 cores", Buffers, &[], |_| true),
    picture("10", "fewer and fewer buffers, 4 cores", Buffers, &[Depth], |_| true),
    picture("11", "slow devices among fast ones", Slow, &[Buffers, Depth], |_| true),
    picture(
        "12",
        "a few commands to 16 slow devices, many to fast ones",
        Depth,
        &[FastDepth, Buffers, Period],
        |row| {
            row.num_delay == Some(16)
                && row.period_ns.is_none_or(|period| [5600, 6000].contains(&period))
        },
    ),
    TestPicture {
        test: "13",
        about: "latency of one command at a time",
        x: Devices,
        by: &[],
        y: YValue::Latency,
        keep: |row| row.lat_us.is_some(),
    },
    picture("14", "a fixed rate", Depth, &[Period], |row| row.cores.is_none_or(|cores| cores == 4)),
];

/// Platforms of the simulator.
const PLATFORMS: [&str; 2] = ["A", "B"];

/// Simulates every point of the fourteen plans.
pub(super) fn simulate(workspace: &Workspace) -> Result<()> {
    let mut all = Vec::new();
    for picture in PICTURES {
        let plan = format!("test-{:0>2}", picture.test);
        for platform in PLATFORMS {
            complain!("{plan} on platform {platform}");
            all.extend(sweep::simulate(workspace, &plan, platform, |_| true)?);
        }
    }
    write(&workspace.root().join(FOLDER).join(SIMULATED), &csv::document(&all))
}

/// Replaces the committed rows by those of a real run.
pub(super) fn take_in(workspace: &Workspace, file: &Path) -> Result<()> {
    let found = rows::read(file)?;
    anyhow::ensure!(!found.is_empty(), "{}: no rows", file.display());
    let stranger = found.iter().find(|row| row.provenance() != "measured here");
    if let Some(row) = stranger {
        anyhow::bail!("{}: a row of test {} is {}", file.display(), row.test, row.provenance());
    }
    let text = fs::read_to_string(file)?;
    write(&workspace.root().join(FOLDER).join(LOCAL), &text)
}

/// Draws every picture again and removes obsolete ones; returns their number.
pub(super) fn draw(workspace: &Workspace) -> Result<usize> {
    let folder = workspace.root().join(FOLDER);
    let pictures = pictures(workspace.root())?;
    for old in super::svg_files(&folder)? {
        if !pictures.contains_key(&old) {
            fs::remove_file(folder.join(&old)).with_context(|| format!("cannot remove {old}"))?;
        }
    }
    for (name, plot) in &pictures {
        write(&folder.join(name), &plot.standalone_svg())?;
    }
    Ok(pictures.len())
}

fn write(file: &Path, text: &str) -> Result<()> {
    if let Some(folder) = file.parent() {
        fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
    }
    fs::write(file, text).with_context(|| format!("cannot write {}", file.display()))
}

/// Returns the pictures by file name.
///
/// There is one for each test and platform of io_pacing, and one for each test that ran here.
fn pictures(root: &Path) -> Result<BTreeMap<String, Plot>> {
    let mut rows = rows::read(&root.join(PROTOTYPE))?;
    rows.extend(rows::read(&root.join(FOLDER).join(SIMULATED))?);
    let here = rows::read(&root.join(FOLDER).join(LOCAL))?;
    let mut found = BTreeMap::new();
    for picture in PICTURES {
        let of = |row: &&ResultRow| row.test == picture.test && (picture.keep)(row);
        for platform in PLATFORMS {
            let own: Vec<&ResultRow> =
                rows.iter().filter(of).filter(|row| row.platform == platform).collect();
            if !own.is_empty() {
                let name = format!("test-{:0>2}-{}.svg", picture.test, platform.to_lowercase());
                found.insert(name, picture.plot(&own, &format!("platform {platform}")));
            }
        }
        let own: Vec<&ResultRow> = here.iter().filter(of).collect();
        if let Some(first) = own.first() {
            let name = format!("test-{:0>2}-here.svg", picture.test);
            found.insert(name, picture.plot(&own, &first.platform.clone()));
        }
    }
    Ok(found)
}

impl TestPicture {
    fn plot(&self, rows: &[&ResultRow], platform: &str) -> Plot {
        let names =
            if self.x == Devices { distinct(rows, |row| row.devices.clone()) } else { Vec::new() };
        let mut lines: BTreeMap<LineKey<'_>, Vec<(f64, f64)>> = BTreeMap::new();
        for row in rows {
            let y = match self.y {
                YValue::Bandwidth => row.bw_gbps,
                YValue::Latency => row.lat_us,
            };
            let x = match self.x {
                Devices => names.iter().position(|name| *name == row.devices).map(|at| at as u64),
                column => column.value(row),
            };
            let (Some(x), Some(y)) = (x.and_then(|x| u32::try_from(x).ok()), y) else { continue };
            let order = self.by.iter().map(|column| column.value(row)).collect();
            let words: Vec<_> = self.by.iter().filter_map(|column| column.words(row)).collect();
            let key = (row.provenance(), order, words.join(", "));
            lines.entry(key).or_default().push((f64::from(x), y));
        }
        let provenances: BTreeSet<&str> =
            lines.keys().map(|(provenance, ..)| *provenance).collect();
        let series = lines.into_iter().map(|((provenance, _, words), points)| Series {
            name: if words.is_empty() {
                provenance.to_owned()
            } else {
                format!("{provenance}: {words}")
            },
            points,
            // Runs and devices have no natural order to connect.
            shape: if matches!(self.x, Run | Devices) {
                SeriesShape::Marks
            } else {
                SeriesShape::MarkedLine
            },
        });
        let provenances: Vec<_> = provenances.into_iter().collect();
        let (what, unit) = match self.y {
            YValue::Bandwidth => ("bandwidth", "Gb/s"),
            YValue::Latency => ("mean latency", "us"),
        };
        Plot {
            title: format!("Test {}: {}", self.test, self.about),
            note: format!("{} on {platform}; 128 KiB random reads", provenances.join(" and ")),
            x: Axis { names, ..self.x.axis() },
            y: Axis::new(what, unit).from_zero(),
            series: series.collect(),
        }
    }
}

impl RowColumn {
    fn value(self, row: &ResultRow) -> Option<u64> {
        match self {
            Depth => Some(row.qd.into()),
            Cores => row.cores.map(u64::from),
            Cache => row.buf_cache.map(u64::from),
            Buffers => row.num_buffers.map(u64::from),
            Slow => row.num_delay.map(u64::from),
            Run => Some(row.run.into()),
            Period => row.period_ns,
            FastDepth => row.job3_qd.map(u64::from),
            Devices | Initiator => None,
        }
    }

    /// Returns the value in the words of the legend.
    fn words(self, row: &ResultRow) -> Option<String> {
        let number = self.value(row);
        match self {
            Devices => Some(row.devices.clone()),
            Initiator if row.jobs > 1 && !row.initiator.ends_with("jobs") => {
                Some(format!("{} {} jobs", row.initiator, row.jobs))
            }
            Initiator => Some(row.initiator.clone()),
            Depth => number.map(|n| format!("depth {n}")),
            Cores => number.map(|n| format!("{n} cores")),
            Cache => number.map(|n| format!("{n} kept")),
            Buffers => number.map(|n| format!("{n} buffers")),
            Slow => number.map(|n| format!("{n} slow")),
            Run => number.map(|n| format!("run {n}")),
            Period => number.map(|n| format!("an I/O every {n} ns")),
            FastDepth => number.map(|n| format!("depth {n} to the fast")),
        }
    }

    fn axis(self) -> Axis {
        match self {
            Depth => Axis::new("queue depth per host and job", "").log2(),
            Devices => Axis::new("devices", ""),
            Initiator => Axis::new("initiator", ""),
            Cores => Axis::new("cores of the target", "").log2(),
            Cache => Axis::new("buffers that a core keeps", ""),
            Buffers => Axis::new("buffers", ""),
            Slow => Axis::new("devices that answer 1 ms later", ""),
            Run => Axis::new("run", ""),
            Period => Axis::new("from one I/O to the next", "ns"),
            FastDepth => Axis::new("queue depth to the fast devices", "").log2(),
        }
    }
}

/// Returns each value once, in the order of the rows.
fn distinct(rows: &[&ResultRow], of: impl Fn(&ResultRow) -> String) -> Vec<String> {
    let mut seen = BTreeSet::new();
    rows.iter().map(|row| of(row)).filter(|value| seen.insert(value.clone())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn root() -> std::path::PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
    }

    #[test]
    fn the_committed_pictures_are_drawn_from_the_committed_rows() {
        let pictures = pictures(&root()).unwrap();
        let there = super::super::svg_files(&root().join(FOLDER)).unwrap();
        let drawn: BTreeSet<_> = pictures.keys().cloned().collect();
        assert_eq!(drawn, there, "run `cargo xtask plots --draw-only`");
        for (name, plot) in pictures {
            let text = fs::read_to_string(root().join(FOLDER).join(&name)).unwrap();
            assert!(text == plot.standalone_svg(), "{name}: run `cargo xtask plots --draw-only`");
        }
    }

    #[test]
    fn every_test_has_a_picture_on_the_page_that_says_what_is_what() {
        let page = fs::read_to_string(root().join("docs/measuring.md")).unwrap();
        let pictures = pictures(&root()).unwrap();
        for number in 1..=14 {
            let name = format!("test-{number:02}-");
            assert!(pictures.keys().any(|file| file.starts_with(&name)), "test {number}");
        }
        for (name, plot) in &pictures {
            assert!(page.contains(&format!("](measuring/{name})")), "{name} is not on the page");
            assert!(!plot.series.is_empty(), "{name} shows nothing");
            for series in &plot.series {
                let sources = ["measured with io_pacing", "simulated", "measured here"];
                let marked = sources.iter().find(|source| series.name.starts_with(**source));
                let marked = marked.unwrap_or_else(|| panic!("{name}: {}", series.name));
                assert!(plot.note.contains(marked), "{name}: {}", plot.note);
                assert!(!series.points.is_empty(), "{name}: {}", series.name);
            }
            assert!(plot.series.len() <= 14, "{name}: {} lines", plot.series.len());
        }
    }
}
