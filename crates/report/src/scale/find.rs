//! Finds saturated root complexes.
//!
//! An added drive should add the bandwidth that one drive reads alone. If it adds less than 1/2 of
//! that, the root complex of the new drive is saturated. Simulated results name the saturated parts
//! themselves; these are reported instead.
//!
//! A drive is slow compared with its peers: the other drives of its root complex, or all if it has
//! less than two there. Drives that are slow together because of an adapter or a root complex are
//! not named. Drives with a queue each are compared by their rates. Drives that are
//! read in turn all have the rate of the slowest, so they are compared by their median latencies:
//! the reads of the queue gather at the slowest drive.

use super::{DriveScaling, ScaleRun, ScaleStep};
use crate::values::distinct;

/// An added drive that adds less than this part of a drive's rate alone has hit a saturated part.
const LITTLE: f64 = 0.5;
/// An added drive that removes more than this part of a drive's rate alone makes a dip.
const DIP: f64 = 0.1;

/// A drive with less than this part of the median rate of its peers is slow.
const SLOW_RATE: f64 = 0.8;
/// A drive with more than this many times the median latency of its peers is slow.
const SLOW_LATENCY: f64 = 1.5;

/// The findings of all runs, as text.
#[must_use]
pub fn findings(scaling: &DriveScaling) -> Vec<String> {
    let striped = scaling.load.striped;
    let of = |run: &ScaleRun| {
        let (mut said, full) = of_run(run);
        said.extend(slow(run, striped, &full));
        said
    };
    scaling.runs.iter().flat_map(of).collect()
}

/// One line per order: the best number of drives, and what was full first.
#[must_use]
pub fn summary(scaling: &DriveScaling) -> Vec<String> {
    let mark = scaling.mark();
    let lines = scaling.runs.iter().filter_map(|run| {
        let whole = |step: &ScaleStep| !step.partial && step.gib_per_s > 0.0;
        let steps = run.steps.iter().enumerate().filter(|(_, step)| whole(step));
        // Of equal steps, the one with the fewest drives.
        let best = steps.rev().max_by(|one, other| one.1.gib_per_s.total_cmp(&other.1.gib_per_s));
        let (best, step) = best?;
        let first = first_full(run).map_or_else(
            || "nothing is full".to_owned(),
            |(what, drives)| format!("{what} is full from the {} drive", ordinal(drives)),
        );
        Some(format!(
            "{mark}{}: best with {}, {:.1} GiB/s ({:.1} GB/s); {first}",
            run.order,
            count(best + 1),
            step.gib_per_s,
            gigabytes(step.gib_per_s)
        ))
    });
    lines.collect()
}

/// GB/s of GiB/s.
pub(super) fn gigabytes(gib: f64) -> f64 {
    gib * 1.073_741_824
}

fn ordinal(number: usize) -> String {
    let ending = match (number % 10, number % 100) {
        (_, 11..=13) => "th",
        (1, _) => "st",
        (2, _) => "nd",
        (3, _) => "rd",
        _ => "th",
    };
    format!("{number}{ending}")
}

/// The first saturated part, and the number of drives that saturates it.
fn first_full(run: &ScaleRun) -> Option<(String, usize)> {
    let alone = run.alone()?;
    run.steps.windows(2).enumerate().find_map(|(at, pair)| {
        let (before, step) = (&pair[0], &pair[1]);
        if step.partial || step.problem.is_some() || before.problem.is_some() {
            return None;
        }
        let known = step.full.first().cloned();
        Some((known.or_else(|| inferred(run, alone, at + 1))?, at + 2))
    })
}

/// The part that step `at` saturates, if its results do not name it.
fn inferred(run: &ScaleRun, alone: f64, at: usize) -> Option<String> {
    let (before, step) = (run.steps.get(at.checked_sub(1)?)?, run.steps.get(at)?);
    let added = step.gib_per_s - before.gib_per_s;
    if added >= LITTLE * alone || step.root_complex.is_empty() || !step.full.is_empty() {
        return None;
    }
    Some(match is_adapter_alone(run, alone, at) {
        true => format!("adapter {}", step.adapter),
        false => format!("root complex {}", step.root_complex),
    })
}

/// Returns true if the drives of the new drive's adapter are slow, and all others of its root
/// complex are not.
fn is_adapter_alone(run: &ScaleRun, alone: f64, at: usize) -> bool {
    let step = &run.steps[at];
    let shares = step.shares.iter().zip(&run.steps);
    let on_root = shares.filter(|(_, of)| of.root_complex == step.root_complex);
    let (own, others): (Vec<_>, Vec<_>) = on_root.partition(|(_, of)| of.adapter == step.adapter);
    let is_fast = |share: f64| share > (1.0 - DIP) * alone;
    !step.adapter.is_empty()
        && !others.is_empty()
        && others.iter().all(|(share, _)| is_fast(**share))
        && own.iter().all(|(share, _)| !is_fast(**share))
}

/// Names a part that drives share.
type PartOf = fn(&ScaleStep) -> &str;
/// The parts that drives share, the larger one first.
const SHARED: [(&str, PartOf); 2] =
    [("root complex", |step| &step.root_complex), ("adapter", |step| &step.adapter)];

/// A drive that is slower than its peers.
struct SlowDrive {
    /// Index of its step.
    at: usize,
    /// Its rate or its median latency, and the median of its peers.
    own: f64,
    usual: f64,
    peers: usize,
}

/// The slow drives of the last whole step, as text.
///
/// If all drives of a root complex or an adapter are slow, what they share limits them, and none
/// is named. A part that is known to be full is not repeated.
fn slow(run: &ScaleRun, striped: bool, full: &[String]) -> Vec<String> {
    let whole = |step: &&ScaleStep| !step.partial && step.problem.is_none();
    let Some(step) = run.steps.iter().rfind(whole) else { return Vec::new() };
    let mut drives = slow_drives(run, step, striped);
    let mut said = Vec::new();
    for (kind, part_of) in SHARED {
        let part_of = |drive: &SlowDrive| part_of(&run.steps[drive.at]);
        for part in distinct(drives.iter().map(|drive| part_of(drive).to_owned())) {
            let slow = drives.iter().filter(|drive| part_of(drive) == part).count();
            if part.is_empty() || slow < 2 || slow < run.on(&part, step.shares.len()) {
                continue;
            }
            drives.retain(|drive| part_of(drive) != part);
            let what = format!("{kind} {part}");
            if !full.contains(&what) {
                said.push(format!(
                    "{}: all {} on {what} are slower than their peers: what they share limits them",
                    run.order,
                    count(slow)
                ));
            }
        }
    }
    said.extend(drives.iter().map(|drive| slow_in_words(run, drive, striped)));
    said
}

fn slow_in_words(run: &ScaleRun, slow: &SlowDrive, striped: bool) -> String {
    let (order, drive) = (&run.order, &run.steps[slow.at].drive);
    let SlowDrive { own, usual, peers, .. } = slow;
    if striped {
        format!(
            "{order}: {drive} is slower than its peers: half of its reads take more than {own:.0} us, those of its \
             {peers} peers {usual:.0} us (median)"
        )
    } else {
        format!(
            "{order}: {drive} is slower than its peers: {own:.2} GiB/s, its {peers} peers {usual:.2} GiB/s (median)"
        )
    }
}

/// The drives that are slower than their peers in a step.
fn slow_drives(run: &ScaleRun, step: &ScaleStep, striped: bool) -> Vec<SlowDrive> {
    let measure = |at: usize| -> Option<f64> {
        let value = if striped { step.latencies.get(at)?.p50 } else { *step.shares.get(at)? };
        (value > 0.0).then_some(value)
    };
    let drives = step.shares.len();
    let slow = |at: usize| {
        let others = |is_peer: &dyn Fn(&ScaleStep) -> bool| -> Vec<f64> {
            let peers = (0..drives).filter(|&other| other != at && is_peer(&run.steps[other]));
            peers.filter_map(measure).collect()
        };
        let near = others(&|other| other.root_complex == run.steps[at].root_complex);
        let peers = if near.len() >= 2 { near } else { others(&|_| true) };
        let (own, usual) = (measure(at)?, median(&peers)?);
        let is_slow = if striped { own > SLOW_LATENCY * usual } else { own < SLOW_RATE * usual };
        let peers = peers.len();
        (peers >= 2 && is_slow).then_some(SlowDrive { at, own, usual, peers })
    };
    (0..drives).filter_map(slow).collect()
}

fn median(values: &[f64]) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted.get(sorted.len() / 2).copied()
}

/// The findings on full parts, and these parts.
fn of_run(run: &ScaleRun) -> (Vec<String>, Vec<String>) {
    let (mut said, mut full) = (Vec::new(), Vec::new());
    let Some(alone) = run.alone() else { return (said, full) };
    for (at, pair) in run.steps.windows(2).enumerate() {
        let (before, step, drives) = (&pair[0], &pair[1], at + 2);
        if step.partial || step.problem.is_some() || before.problem.is_some() {
            continue;
        }
        let added = step.gib_per_s - before.gib_per_s;
        let order = &run.order;
        if let Some(what) = inferred(run, alone, at + 1).filter(|what| !full.contains(what)) {
            let on = what.split_whitespace().last().unwrap_or_default();
            said.push(format!(
                "{order}: {what} is full at {drives} drives: the {} on it read {:.1} GiB/s together, and the last one \
                 added {added:.1} of {alone:.1} GiB/s",
                count(run.on(on, drives)),
                run.carried(on, at + 1),
            ));
            full.push(what);
            continue;
        }
        for what in step.full.iter().filter(|what| !before.full.contains(what)) {
            if !full.contains(what) {
                full.push(what.clone());
                said.push(format!(
                    "{order}: {what} is full at {drives} drives{}",
                    carries(run, what, at + 1)
                ));
            }
        }
        if added < -DIP * alone {
            said.push(dip(run, before, step, drives));
        }
    }
    if full.is_empty() && run.steps.len() > 1 {
        let most = run.steps.iter().map(|step| step.gib_per_s).fold(0.0, f64::max);
        said.push(format!(
            "{}: nothing is full up to {} drives ({most:.1} GiB/s)",
            run.order,
            run.steps.len()
        ));
    }
    (said, full)
}

fn dip(run: &ScaleRun, before: &ScaleStep, step: &ScaleStep, drives: usize) -> String {
    let place = if step.root_complex.is_empty() {
        String::new()
    } else {
        let on = run.on(&step.root_complex, drives);
        format!(" ({} on root complex {})", count(on), step.root_complex)
    };
    format!(
        "{}: with {drives} drives{place} all together read less than with {}: {:.1} after {:.1} GiB/s",
        run.order,
        drives - 1,
        step.gib_per_s,
        before.gib_per_s
    )
}

/// The bandwidth through a part that is named as `root complex 0000:60` or `adapter 0000:60:03`.
fn carries(run: &ScaleRun, what: &str, at: usize) -> String {
    let root = what.strip_prefix("root complex ").or_else(|| what.strip_prefix("adapter "));
    let Some(root) = root else { return String::new() };
    let drives = count(run.on(root, at + 1));
    format!(": {drives} on it, {:.1} GiB/s", run.carried(root, at))
}

fn count(drives: usize) -> String {
    if drives == 1 { "1 drive".to_owned() } else { format!("{drives} drives") }
}
