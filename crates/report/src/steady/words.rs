//! Texts of a report: the loop of each test, and the glossary.

use super::model::{DriveTestSetup, TestKind, TestRun, Workload};
use super::tables::mix;
use crate::plot::number;
use crate::table::{Column, Table};
use crate::units::show_size;
use crate::values::distinct;

/// The steps of a test, as loops.
pub(super) fn steps(run: &TestRun, setup: &DriveTestSetup) -> String {
    let planned = &run.planned;
    let Some(first) = planned.points.first() else { return "purge".to_owned() };
    if run.test == TestKind::Saturation {
        let (capacities, seconds) = planned.saturation;
        return format!(
            "purge\nuntil {} x the capacity is written or {} have passed\n    {}",
            number(capacities),
            duration(seconds),
            point(first, planned.seconds, &format!("writes of {}", show_size(first.bs)))
        );
    }
    let point = point(first, planned.seconds, "commands");
    let sizes = distinct(planned.points.iter().map(|point| point.bs));
    let mixes = distinct(planned.points.iter().map(|point| point.read_percent));
    let size_names: Vec<_> = sizes.iter().map(|size| show_size(*size)).collect();
    let of_sizes = format!("commands of {}", size_names.join(", "));
    let of_mixes = match &mixes[..] {
        [100, 0] => "reads, then writes".to_owned(),
        all => {
            let all: Vec<_> = all.iter().map(|percent| mix(*percent)).collect();
            format!("reads/writes of {}", all.join(", "))
        }
    };
    // The outer loop is that whose value the second point still has.
    let sizes_outside = planned.points.get(1).is_some_and(|second| second.bs == first.bs);
    let [outer, inner] = match sizes_outside && mixes.len() > 1 {
        true => [of_sizes, of_mixes],
        false => [of_mixes, of_sizes],
    };
    format!(
        "purge\nwrite {} x the capacity sequentially\nfor each round, {} at most\n    for {outer}\n        for {inner}\n            \
         {point}\n    end when five rounds in a row are steady: {}",
        number(setup.precondition),
        setup.rounds,
        run.test.variable()
    )
}

/// One point of a loop; `what` are its commands.
fn point(workload: &Workload, seconds: f64, what: &str) -> String {
    let load = match (workload.jobs, workload.iodepth) {
        (1, 1) => "one at a time".to_owned(),
        (jobs, depth) => {
            let jobs = if jobs == 1 { "1 job".to_owned() } else { format!("{jobs} jobs") };
            let commands = if depth == 1 { "command" } else { "commands" };
            format!("{jobs} with {depth} {commands} outstanding each")
        }
    };
    let order = if workload.random { "random" } else { "sequential" };
    format!("{} s of {order} {what}, {load}", number(seconds))
}

/// A duration in whole hours, otherwise in seconds.
fn duration(seconds: f64) -> String {
    let hours = seconds / 3600.0;
    if hours >= 2.0 && hours.fract() == 0.0 {
        format!("{hours} hours")
    } else {
        format!("{} s", number(seconds))
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
