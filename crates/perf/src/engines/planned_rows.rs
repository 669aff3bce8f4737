//! The rows to measure: each engine on each group of drives, in each layout, at each concurrency.

use std::collections::BTreeSet;
use std::fmt;

use nvmeof_engines::{Engine, ReadSource};
use nvmeof_report::engines::ReadLayout;

use super::EnginesArgs;
use super::drives::DescribedDrive;

/// A row to measure.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct PlannedRow {
    pub(super) lba_bytes: u32,
    pub(super) layout: ReadLayout,
    pub(super) engine: Engine,
    /// Reads outstanding.
    pub(super) concurrency: u16,
    /// Names, and the sources to open.
    pub(super) drives: Vec<(String, ReadSource)>,
}

impl PlannedRow {
    /// Returns true if its engine fits the driver of its drives: the kernel's or VFIO.
    pub(super) fn fits_driver(&self) -> bool {
        let is_ours = |source: &ReadSource| matches!(source, ReadSource::Drive { .. });
        self.drives.iter().all(|(_, source)| is_ours(source) == (self.engine == Engine::Vfio))
    }

    /// The row with concurrency 0, equal for rows that differ in concurrency alone.
    pub(super) fn without_concurrency(&self) -> Self {
        Self { concurrency: 0, ..self.clone() }
    }
}

impl fmt::Display for PlannedRow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { lba_bytes, layout, engine, concurrency, drives } = self;
        let (layout, count) = (layout.name(), drives.len());
        write!(f, "{engine}, {concurrency} at once, {layout}, {count} drives of {lba_bytes} B")
    }
}

/// The rows of `engines` on drives with the `wanted` format.
///
/// Without `wanted`: on the drives of all formats, one format after the other.
pub(super) fn plan(
    args: &EnginesArgs,
    layouts: &[ReadLayout],
    engines: &[Engine],
    drives: &[DescribedDrive],
    wanted: Option<u32>,
) -> Vec<PlannedRow> {
    let formats: BTreeSet<u32> = match wanted {
        Some(wanted) => BTreeSet::from([wanted]),
        None => drives.iter().map(|drive| drive.lba_bytes).collect(),
    };
    let mut planned_rows = Vec::new();
    for lba_bytes in formats {
        let group: Vec<&DescribedDrive> =
            drives.iter().filter(|drive| drive.lba_bytes == lba_bytes).collect();
        if group.is_empty() {
            continue;
        }
        for &layout in layouts {
            for &engine in engines {
                for drives in sets(layout, engine, &group) {
                    for &concurrency in &args.concurrency {
                        let drives = drives.clone();
                        planned_rows.push(PlannedRow {
                            lba_bytes,
                            layout,
                            engine,
                            concurrency,
                            drives,
                        });
                    }
                }
            }
        }
    }
    planned_rows
}

/// The requested layouts; by default MD RAID-0 only if there is or will be an array.
pub(super) fn layouts(args: &EnginesArgs, has_array: bool) -> Vec<ReadLayout> {
    if !args.layout.is_empty() {
        return args.layout.clone();
    }
    let array = (has_array || args.build_md).then_some(ReadLayout::MdRaid0);
    [ReadLayout::Individual, ReadLayout::Stripe].into_iter().chain(array).collect()
}

/// The requested engines.
pub(super) fn engines(args: &EnginesArgs) -> &[Engine] {
    if args.engine.is_empty() { &Engine::ALL } else { &args.engine }
}

/// The sets of drives that an engine reads in a layout.
///
/// If the engine fits no drive of the group, the set is the whole group, and its row reports that.
fn sets(
    layout: ReadLayout,
    engine: Engine,
    group: &[&DescribedDrive],
) -> Vec<Vec<(String, ReadSource)>> {
    let is_fit = |drive: &&&DescribedDrive| drive.is_ours() == (engine == Engine::Vfio);
    let fit: Vec<&DescribedDrive> = group.iter().filter(is_fit).copied().collect();
    let of = if fit.is_empty() { group.to_vec() } else { fit };
    let named = |drive: &&DescribedDrive| (drive.name.clone(), drive.source());
    match layout {
        ReadLayout::Single => of.iter().map(|drive| vec![named(drive)]).collect(),
        ReadLayout::Individual | ReadLayout::Stripe | ReadLayout::MdRaid0 => {
            vec![of.iter().map(named).collect()]
        }
    }
}
