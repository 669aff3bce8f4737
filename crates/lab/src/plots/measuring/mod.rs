//! Pictures and pages of the fourteen tests of the Mellanox SPDK io_pacing prototype.
//!
//! The rows measured with io_pacing are compared with the simulation under the same conditions.
//! Real runs of this project have a separate page.
//!
//! ```text
//! io_pacing's rows, plans --simulator--> simulated.csv, sweep --where local --csv --> local.csv
//!                                 '-> pictures of a test and platform (docs/measuring)
//!                                 '-> a page for each platform, contents with verdicts   (pages)
//! ```

mod columns;
mod pages;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use nvmeof_console::complain;
use nvmeof_report::plot::{COLORS, SeriesShape};
use nvmeof_report::{Axis, Plot, Series, csv};
use nvmeof_workspace::checkout::Workspace;

use super::distinct;
use crate::rows::{self, ResultRow};
use crate::{output, sweep};

/// Folder below the root, for pictures and the data behind them.
pub(super) const FOLDER: &str = "docs/measuring";
const SIMULATED: &str = "simulated.csv";
/// File written by `cargo xtask sweep --where local --csv`.
const LOCAL: &str = "local.csv";

/// Content of a test's picture.
struct TestPicture {
    test: &'static str,
    about: &'static str,
    x: RowColumn,
    /// Columns that distinguish lines.
    by: &'static [RowColumn],
    y: YValue,
    /// Sentence on the load, below the heading of the test.
    ///
    /// It names no result: the pages show several machines, and their verdicts are computed.
    detail: &'static str,
}

/// Sort key that distinguishes lines: numbers, words.
type LineKey = (Vec<Option<u64>>, String);
/// Points of a line by the source of the rows.
type LineSources = BTreeMap<&'static str, Vec<(f64, f64)>>;

/// Maximum number of lines in a picture: a test with more has several pictures.
const MOST_LINES: usize = nvmeof_report::sweep::MOST_LINES;

#[derive(Clone, Copy)]
enum YValue {
    Bandwidth,
    Latency,
}

use columns::RowColumn;
use columns::RowColumn::{
    Buffers, Cache, Cores, Depth, Devices, FastDepth, Initiator, Period, Run, Slow,
};

const fn picture(
    test: &'static str,
    about: &'static str,
    x: RowColumn,
    by: &'static [RowColumn],
    detail: &'static str,
) -> TestPicture {
    TestPicture { test, about, x, by, y: YValue::Bandwidth, detail }
}

const PICTURES: &[TestPicture] = &[
    picture(
        "1",
        "no pacing, one null device",
        Depth,
        &[],
        "The queue pairs of the hosts bound what one device has in flight.",
    ),
    picture(
        "2",
        "no pacing, 16 null devices",
        Depth,
        &[Initiator],
        "Null devices write no data to memory: only the network card uses the cache.",
    ),
    picture(
        "3",
        "no pacing, 16 drives",
        Depth,
        &[Initiator],
        "Drives write to memory, and nothing bounds the data in flight.",
    ),
    picture(
        "4",
        "96 buffers, 16 null devices",
        Depth,
        &[Initiator],
        "The pool bounds the data in flight.",
    ),
    picture(
        "5",
        "96 buffers, 16 drives",
        Depth,
        &[Initiator],
        "The same pool, with drives that write to memory.",
    ),
    picture(
        "6",
        "96 buffers, 16 drives, the same run ten times",
        Run,
        &[Depth],
        "Ten repetitions of one run at four depths.",
    ),
    picture(
        "7",
        "96 buffers, fewer and fewer cores",
        Cores,
        &[Depth],
        "The pool is spread over fewer and fewer cores of the target.",
    ),
    picture(
        "8",
        "96 buffers, 16 cores that keep fewer of them each",
        Cache,
        &[Depth],
        "A core that keeps none takes every buffer from the shared pool.",
    ),
    picture(
        "9",
        "fewer and fewer buffers, 16 cores",
        Buffers,
        &[],
        "Sixteen cores share each pool.",
    ),
    picture(
        "10",
        "fewer and fewer buffers, 4 cores",
        Buffers,
        &[Depth],
        "Four cores share each pool, at several depths.",
    ),
    picture(
        "11",
        "slow devices among fast ones",
        Slow,
        &[Buffers, Depth],
        "One third or two thirds of the namespaces answer 1 ms later.",
    ),
    picture(
        "12",
        "a few commands to slow devices, many to fast ones",
        Depth,
        &[Slow, FastDepth, Period],
        "The job on fast devices keeps more commands outstanding than those on slow ones.",
    ),
    TestPicture {
        test: "13",
        about: "latency of one command at a time",
        x: Devices,
        by: &[],
        y: YValue::Latency,
        detail: "One command is outstanding, so that nothing waits.",
    },
    picture(
        "14",
        "a fixed rate",
        Period,
        &[Cores, Depth],
        "The pacer starts commands at a fixed rate, at several depths and numbers of cores.",
    ),
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

/// Draws every picture and writes every page again, and removes obsolete pictures; returns the
/// number of pictures.
pub(super) fn draw(workspace: &Workspace) -> Result<usize> {
    let folder = workspace.root().join(FOLDER);
    let rows = TestRows::read(workspace.root())?;
    let pictures = pictures(&rows);
    for old in super::svg_files(&folder)? {
        if !pictures.contains_key(&old) {
            fs::remove_file(folder.join(&old)).with_context(|| format!("cannot remove {old}"))?;
        }
    }
    for (name, plot) in &pictures {
        write(&folder.join(name), &plot.standalone_svg())?;
    }
    for (name, page) in pages::all(&rows, &pictures) {
        write(&folder.join(name), &page)?;
    }
    Ok(pictures.len())
}

/// Returns the contents of the fourteen tests, with a verdict on each platform, as a table.
pub(super) fn contents(root: &Path) -> Result<String> {
    Ok(pages::contents(&TestRows::read(root)?))
}

fn write(file: &Path, text: &str) -> Result<()> {
    if let Some(folder) = file.parent() {
        fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
    }
    output::write(file, text)
}

/// All rows: measured with io_pacing, simulated, and measured here.
#[derive(Debug)]
struct TestRows {
    published: Vec<ResultRow>,
    simulated: Vec<ResultRow>,
    here: Vec<ResultRow>,
}

impl TestRows {
    /// Reads the committed rows below the root.
    fn read(root: &Path) -> Result<Self> {
        let mut published = rows::read(&root.join(rows::PUBLISHED))?;
        number_runs(&mut published);
        let simulated = rows::read(&root.join(FOLDER).join(SIMULATED))?;
        let here = rows::read(&root.join(FOLDER).join(LOCAL))?;
        Ok(Self { published, simulated, here })
    }

    /// Returns the measured and the simulated rows of a test and platform. Where rows were
    /// measured, the simulation is of the same conditions only.
    fn of(&self, test: &str, platform: &str) -> (Vec<&ResultRow>, Vec<&ResultRow>) {
        let own = |row: &&ResultRow| row.test == test && row.platform == platform;
        let published: Vec<_> = self.published.iter().filter(own).collect();
        let is_beside = |row: &&ResultRow| {
            published.is_empty()
                || published.iter().any(|other| other.has_conditions(&row.setting()))
        };
        let simulated = self.simulated.iter().filter(own).filter(is_beside).collect();
        (published, simulated)
    }
}

/// Numbers the runs under one condition: the published file does not.
fn number_runs(rows: &mut [ResultRow]) {
    for at in 1..rows.len() {
        let (before, rest) = rows.split_at_mut(at);
        let row = &mut rest[0];
        let is_same = |other: &&ResultRow| {
            (&other.platform, &other.test) == (&row.platform, &row.test)
                && other.setting() == row.setting()
        };
        let run = before.iter().filter(is_same).count() + 1;
        row.run = u32::try_from(run).unwrap_or(u32::MAX);
    }
}

/// Returns the pictures by file name: of each test and platform, and of each test that ran here.
fn pictures(rows: &TestRows) -> BTreeMap<String, Plot> {
    let mut found = BTreeMap::new();
    for picture in PICTURES {
        let mut add = |own: &[&ResultRow], suffix: &str, machine: &str| {
            let plots = picture.plots(own, machine);
            let count = plots.len();
            for (at, plot) in plots.into_iter().enumerate() {
                let part = if count > 1 { format!("-{}", at + 1) } else { String::new() };
                found.insert(format!("test-{:0>2}-{suffix}{part}.svg", picture.test), plot);
            }
        };
        for platform in PLATFORMS {
            let (mut own, simulated) = rows.of(picture.test, platform);
            own.extend(simulated);
            add(&own, &platform.to_lowercase(), &format!("platform {platform}"));
        }
        let here: Vec<_> = rows.here.iter().filter(|row| row.test == picture.test).collect();
        if let Some(first) = here.first() {
            add(&here, "here", &first.platform.clone());
        }
    }
    found
}

impl TestPicture {
    /// Returns the columns that distinguish rows.
    fn columns(&self) -> impl Iterator<Item = RowColumn> + '_ {
        self.by.iter().copied().chain([self.x])
    }

    /// Returns the pictures of these rows, each with a few lines.
    fn plots(&self, rows: &[&ResultRow], machine: &str) -> Vec<Plot> {
        let devices = rows.iter().map(|row| row.devices.clone());
        let names = if self.x == Devices { distinct(devices) } else { Vec::new() };
        let mut lines: BTreeMap<LineKey, LineSources> = BTreeMap::new();
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
            let line = lines.entry((order, words.join(", "))).or_default();
            line.entry(row.provenance()).or_default().push((f64::from(x), y));
        }
        let sources = lines.values().map(BTreeMap::len).max().unwrap_or(1);
        let lines: Vec<_> = lines.into_iter().collect();
        let parts = lines.len().div_ceil(MOST_LINES / sources).max(1);
        let size = lines.len().div_ceil(parts).max(1);
        lines.chunks(size).map(|lines| self.plot(lines, &names, machine)).collect()
    }

    fn plot(&self, lines: &[(LineKey, LineSources)], names: &[String], machine: &str) -> Plot {
        let mut series = Vec::new();
        let mut provenances = BTreeSet::new();
        for (ink, ((_, words), sources)) in lines.iter().enumerate() {
            // The same color for all sources, in dashes for the second one.
            for (source, (provenance, points)) in sources.iter().enumerate() {
                provenances.insert(*provenance);
                let ink = ink + source * COLORS;
                let name = match words.as_str() {
                    "" => (*provenance).to_owned(),
                    words => format!("{provenance}: {words}"),
                };
                // Runs and devices have no natural order to connect.
                let is_marks = matches!(self.x, Run | Devices);
                let shape = if is_marks { SeriesShape::Marks } else { SeriesShape::Inked(ink) };
                series.push(Series { name, points: points.clone(), shape });
            }
        }
        let provenances: Vec<_> = provenances.into_iter().collect();
        let (what, unit) = match self.y {
            YValue::Bandwidth => ("bandwidth", "Gb/s"),
            YValue::Latency => ("mean latency", "us"),
        };
        Plot {
            title: format!("Test {}: {}", self.test, self.about),
            note: format!("{} on {machine}; 128 KiB random reads", provenances.join(" and ")),
            x: Axis { names: names.to_vec(), ..self.x.axis() },
            y: Axis::new(what, unit).from_zero(),
            series,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn root() -> std::path::PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
    }

    fn rows() -> TestRows {
        TestRows::read(&root()).unwrap()
    }

    #[test]
    fn the_committed_pictures_and_pages_are_made_from_the_committed_rows() {
        let rows = rows();
        let pictures = pictures(&rows);
        let there = super::super::svg_files(&root().join(FOLDER)).unwrap();
        let drawn: BTreeSet<_> = pictures.keys().cloned().collect();
        assert_eq!(drawn, there, "run `cargo xtask plots --draw-only`");
        let drawn = pictures.iter().map(|(name, plot)| (name.clone(), plot.standalone_svg()));
        for (name, text) in drawn.chain(pages::all(&rows, &pictures)) {
            let committed = fs::read_to_string(root().join(FOLDER).join(&name)).unwrap();
            assert!(committed == text, "{name}: run `cargo xtask plots --draw-only`");
        }
    }

    #[test]
    fn every_picture_is_on_a_page_and_says_what_is_what() {
        let rows = rows();
        let pictures = pictures(&rows);
        let pages: String =
            pages::all(&rows, &pictures).into_iter().map(|(_, text)| text).collect();
        for number in 1..=14 {
            let name = format!("test-{number:02}-");
            assert!(pictures.keys().any(|file| file.starts_with(&name)), "test {number}");
        }
        for (name, plot) in &pictures {
            assert!(pages.contains(&format!("]({name})")), "{name} is on no page");
            assert!(!plot.series.is_empty(), "{name} shows nothing");
            for series in &plot.series {
                let sources =
                    ["measured with Mellanox SPDK io_pacing", "simulated", "measured here"];
                let marked = sources.iter().find(|source| series.name.starts_with(**source));
                let marked = marked.unwrap_or_else(|| panic!("{name}: {}", series.name));
                assert!(plot.note.contains(marked), "{name}: {}", plot.note);
                assert!(!series.points.is_empty(), "{name}: {}", series.name);
            }
            assert!(plot.series.len() <= MOST_LINES, "{name}: {} lines", plot.series.len());
        }
    }

    #[test]
    fn every_published_row_is_in_a_picture_once() {
        let rows = rows();
        for platform in PLATFORMS {
            for picture in PICTURES {
                let (published, simulated) = rows.of(picture.test, platform);
                let has_y = |row: &&&ResultRow| match picture.y {
                    YValue::Bandwidth => row.bw_gbps.is_some(),
                    YValue::Latency => row.lat_us.is_some(),
                };
                let wanted = published.iter().filter(has_y).count();
                let own: Vec<_> = published.iter().chain(&simulated).copied().collect();
                let plots = picture.plots(&own, platform);
                let measured = plots.iter().flat_map(|plot| &plot.series);
                let measured = measured.filter(|series| series.name.starts_with("measured"));
                let shown: usize = measured.map(|series| series.points.len()).sum();
                assert_eq!(shown, wanted, "test {} on {platform}", picture.test);
            }
        }
    }
}
