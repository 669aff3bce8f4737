//! Texts of a report: the loop of each test, and the glossary.

use super::model::{DriveTestSetup, TestKind};
use super::tables::mix;
use crate::plot::number;
use crate::table::{Column, Table};
use crate::units::show_size;

const MIB: u64 = 1 << 20;

/// The steps of a test, as loops.
pub(super) fn steps(test: TestKind, setup: &DriveTestSetup) -> String {
    let point = |load: &str| format!("{} s of {load}", number(setup.seconds));
    let (jobs, iodepth) = match test {
        TestKind::Latency => (1, 1),
        _ => (setup.jobs, setup.iodepth),
    };
    let load = format!("{jobs} jobs with {iodepth} commands outstanding each");
    let fill = format!("write {} x the capacity sequentially", number(setup.precondition));
    let rounds = setup.rounds;
    let until = format!("    end when {} of five rounds in a row is steady", test.variable());
    let sizes = |all: &[u64]| {
        let all: Vec<String> = all.iter().map(|size| show_size(*size)).collect();
        all.join(", ")
    };
    let mixes = |all: &[u8]| all.iter().map(|percent| mix(*percent)).collect::<Vec<_>>().join(", ");
    match test {
        TestKind::Iops => format!(
            "purge\n{fill}\nfor each round, {rounds} at most\n    for reads/writes of {}\n        for commands of \
             {}\n            {}\n{until}",
            mixes(&[100, 95, 65, 50, 35, 5, 0]),
            sizes(&[MIB, 128 << 10, 64 << 10, 32 << 10, 16 << 10, 8 << 10, 4096, 512]),
            point(&format!("random commands, {load}")),
        ),
        TestKind::Throughput => format!(
            "purge\n{fill}\nfor each round, {rounds} at most\n    for reads, then writes\n        for commands of \
             {}\n            {}\n{until}",
            sizes(&[MIB, 64 << 10, 8 << 10, 4096, 512]),
            point(&format!("sequential commands, {load}")),
        ),
        TestKind::Latency => format!(
            "purge\n{fill}\nfor each round, {rounds} at most\n    for reads/writes of {}\n        for commands of \
             {}\n            {}\n{until}",
            mixes(&[100, 65, 0]),
            sizes(&[8 << 10, 4096, 512]),
            point("random commands, one at a time"),
        ),
        TestKind::Saturation => format!(
            "purge\nuntil 4 x the capacity is written or 24 hours have passed\n    {}",
            point(&format!("4 KiB random writes, {load}")),
        ),
    }
}

/// Terms of the report.
const TERMS: [(&str, &str); 12] = [
    ("best fit", "straight line through the values of the window with the least squared distances"),
    ("histogram", "number of commands by response time"),
    ("IOPS", "commands completed per second"),
    ("job", "thread that keeps its own number of commands outstanding"),
    ("mix", "share of reads and writes, in percent: 65/35 are 65 % reads"),
    ("p99, p99.9", "response time that 99 % or 99.9 % of the commands do not exceed"),
    ("preconditioning", "writes before the rounds, so that the drive has no unused blocks left"),
    ("purge", "returns the drive to a state in which no block is in use"),
    ("range", "largest minus smallest value of the window, relative to their mean"),
    ("response time", "time from the submission of a command to its completion"),
    ("round", "one pass over all points of a test"),
    ("window", "the five rounds that are checked for a steady state"),
];

/// The glossary.
pub(super) fn glossary() -> Table {
    let mut table = Table::new(vec![Column::words("term"), Column::words("meaning")]);
    for (term, meaning) in TERMS {
        table.push(vec![term.into(), meaning.into()]);
    }
    table
}
