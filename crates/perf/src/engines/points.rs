//! The points to measure: each engine on each group of drives, in each layout, at each concurrency.

use std::collections::BTreeSet;
use std::fmt;

use nvmeof_engines::{Engine, ReadSource};
use nvmeof_report::engines::Layout;

use super::Args;
use super::drives::Described;

/// A row to measure.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Point {
    pub(super) lba_bytes: u32,
    pub(super) layout: Layout,
    pub(super) engine: Engine,
    /// Reads outstanding.
    pub(super) concurrency: u16,
    /// Names, and the sources to open.
    pub(super) drives: Vec<(String, ReadSource)>,
}

impl Point {
    /// Returns true if its engine fits the driver of its drives: the kernel's or VFIO.
    pub(super) fn is_of_one_side(&self) -> bool {
        let is_ours = |source: &ReadSource| matches!(source, ReadSource::Drive { .. });
        self.drives.iter().all(|(_, source)| is_ours(source) == (self.engine == Engine::Vfio))
    }

    /// The point with concurrency 0, equal for points that differ in concurrency alone.
    pub(super) fn without_concurrency(&self) -> Self {
        Self { concurrency: 0, ..self.clone() }
    }
}

impl fmt::Display for Point {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { lba_bytes, layout, engine, concurrency, drives } = self;
        let (layout, count) = (layout.name(), drives.len());
        write!(f, "{engine}, {concurrency} at once, {layout}, {count} drives of {lba_bytes} B")
    }
}

/// The points of `engines` on drives with the `wanted` format.
///
/// Without `wanted`: on the drives of all formats, one format after the other.
pub(super) fn points(
    args: &Args,
    engines: &[Engine],
    drives: &[Described],
    wanted: Option<u32>,
) -> Vec<Point> {
    let formats: BTreeSet<u32> = match wanted {
        Some(wanted) => BTreeSet::from([wanted]),
        None => drives.iter().map(|drive| drive.lba_bytes).collect(),
    };
    let mut points = Vec::new();
    for lba_bytes in formats {
        let group: Vec<&Described> =
            drives.iter().filter(|drive| drive.lba_bytes == lba_bytes).collect();
        if group.is_empty() {
            continue;
        }
        for &layout in &args.layout {
            for &engine in engines {
                for drives in sets(layout, engine, &group) {
                    for &concurrency in &args.concurrency {
                        let drives = drives.clone();
                        points.push(Point { lba_bytes, layout, engine, concurrency, drives });
                    }
                }
            }
        }
    }
    points
}

/// The requested engines.
pub(super) fn engines(args: &Args) -> &[Engine] {
    if args.engine.is_empty() { &Engine::ALL } else { &args.engine }
}

/// The sets of drives that an engine reads in a layout.
///
/// If the engine fits no drive of the group, the set is the whole group, and its row reports that.
fn sets(layout: Layout, engine: Engine, group: &[&Described]) -> Vec<Vec<(String, ReadSource)>> {
    let is_fit = |drive: &&&Described| drive.is_ours() == (engine == Engine::Vfio);
    let fit: Vec<&Described> = group.iter().filter(is_fit).copied().collect();
    let of = if fit.is_empty() { group.to_vec() } else { fit };
    let named = |drive: &&Described| (drive.name.clone(), drive.source());
    match layout {
        Layout::Single => of.iter().map(|drive| vec![named(drive)]).collect(),
        Layout::Individual | Layout::Stripe => vec![of.iter().map(named).collect()],
    }
}
