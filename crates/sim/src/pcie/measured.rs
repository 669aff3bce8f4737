//! Measured rows of a machine with 30 drives, compared with the model.

use super::machine::PcieMachine;
use super::shared_link::PcieReadMode;

/// Sequential reads of the first 1 to 30 drives: `drives,read_gib_s`. Measured with all_ssd_read,
/// on another machine than the figures of this project.
pub const MEASURED: &str = include_str!("../../data/drive_scaling.csv");

/// Capacity of an adapter, in GiB/s, that explains two figures: six drives on two adapters read
/// 34.6, and eight drives on the two adapters of a root complex, by an older script, 35.0.
///
/// The rows and the figures of the newer script contradict it: eight drives read 39.7.
const OLDER_ADAPTER: f64 = 17.4;

/// A measured row.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct MeasuredRow {
    /// Number of drives.
    pub drives: usize,
    /// Joint read rate, in GiB/s.
    pub gib_per_s: f64,
}

/// Measured figure and the value of the model.
#[derive(Debug, Clone, PartialEq)]
pub struct Check {
    /// Drives that were read.
    pub what: String,
    /// Measured, in GiB/s.
    pub measured: f64,
    /// Simulated, in GiB/s.
    pub simulated: f64,
}

impl Check {
    /// Returns the deviation of the model, as a fraction of the measured value.
    #[must_use]
    pub fn off(&self) -> f64 {
        self.simulated / self.measured - 1.0
    }
}

/// Parses the rows of [`MEASURED`], or of a text like it.
///
/// # Errors
/// The invalid line.
pub fn rows(text: &str) -> Result<Vec<MeasuredRow>, String> {
    let lines = (1..).zip(text.lines()).skip(1);
    lines
        .map(|(number, line)| {
            let row = line.split_once(',').and_then(|(drives, rate)| {
                let (drives, gib_per_s) = (drives.parse().ok()?, rate.parse().ok()?);
                Some(MeasuredRow { drives, gib_per_s })
            });
            row.ok_or_else(|| format!("line {number} is not `drives,read_gib_s`: {line}"))
        })
        .collect()
}

/// Compares every row, read as a stripe of the first drives in system order.
#[must_use]
pub fn compare(machine: &PcieMachine, rows: &[MeasuredRow]) -> Vec<Check> {
    let check = |row: &MeasuredRow| {
        let drives: Vec<usize> = (0..row.drives).collect();
        Check {
            what: format!("{} in system order", row.drives),
            measured: row.gib_per_s,
            simulated: machine.read(&drives, PcieReadMode::Striped).total,
        }
    };
    rows.iter().map(check).collect()
}

/// Compares the other figures of that machine (docs/drives.md). `round_robin` are the drives'
/// numbers in round-robin order over root complexes and their adapters.
#[must_use]
pub fn checks(machine: &PcieMachine, round_robin: &[usize]) -> Vec<Check> {
    let mut roots: Vec<Vec<usize>> = Vec::new();
    let mut names: Vec<&str> = Vec::new();
    for drive in 0..machine.drives.len() {
        let Some(name) = machine.root_complex(drive) else { continue };
        match names.iter().position(|known| *known == name) {
            Some(at) => roots[at].push(drive),
            None => {
                names.push(name);
                roots.push(vec![drive]);
            }
        }
    }
    // The fullest first.
    roots.sort_by_key(|drives| std::cmp::Reverse(drives.len()));
    let of_each = |count: usize, each: usize| -> Vec<usize> {
        roots.iter().take(count).flat_map(|drives| drives.iter().take(each)).copied().collect()
    };
    // Three drives on each adapter of the fullest root complex.
    let mut on_adapters: Vec<usize> = Vec::new();
    for &drive in roots.first().into_iter().flatten() {
        let adapter = machine.adapter(drive);
        if on_adapters.iter().filter(|known| machine.adapter(**known) == adapter).count() < 3 {
            on_adapters.push(drive);
        }
    }
    let on = |machine: &PcieMachine, what: &str, drives: &[usize], measured| Check {
        what: what.to_owned(),
        measured,
        simulated: machine.read(drives, PcieReadMode::Striped).total,
    };
    let check = |what: &str, drives: &[usize], measured| on(machine, what, drives, measured);
    let limited = machine.with_adapters(OLDER_ADAPTER);
    let first = |count: usize| &round_robin[..count.min(round_robin.len())];
    vec![
        check("8 on one root complex", &of_each(1, 8), 39.7),
        on(&limited, "8 on one root complex, by an older script", &of_each(1, 8), 35.0),
        check("8 over two root complexes", &of_each(2, 4), 53.2),
        check("8 round-robin over adapters", first(8), 53.5),
        check("16, four a root complex", &of_each(4, 4), 106.0),
        on(&limited, "6 on two adapters", &on_adapters, 34.6),
    ]
}
