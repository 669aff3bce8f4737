//! Finds saturated root complexes.
//!
//! An added drive should add the bandwidth that one drive reads alone. If it adds less than 1/2 of
//! that, the root complex of the new drive is saturated. Simulated results name the saturated parts
//! themselves; these are reported instead.

use super::{DriveScaling, ScaleRun, ScaleStep};

/// An added drive that adds less than this part of a drive's rate alone has hit a saturated part.
const LITTLE: f64 = 0.5;
/// An added drive that removes more than this part of a drive's rate alone makes a dip.
const DIP: f64 = 0.1;

/// The findings of all runs, as text.
#[must_use]
pub fn findings(scaling: &DriveScaling) -> Vec<String> {
    scaling.runs.iter().flat_map(of_run).collect()
}

fn of_run(run: &ScaleRun) -> Vec<String> {
    let mut said = Vec::new();
    let Some(alone) = run.alone() else { return said };
    let mut full: Vec<String> = Vec::new();
    for (at, pair) in run.steps.windows(2).enumerate() {
        let (before, step, drives) = (&pair[0], &pair[1], at + 2);
        if step.partial || step.problem.is_some() || before.problem.is_some() {
            continue;
        }
        let added = step.gib_per_s - before.gib_per_s;
        let order = &run.order;
        if step.full.is_empty() {
            let root = &step.root_complex;
            if added < LITTLE * alone && !root.is_empty() && !full.contains(root) {
                full.push(root.clone());
                said.push(format!(
                    "{order}: root complex {root} is full at {drives} drives: the {} on it read {:.1} GiB/s together, and \
                     the last one added {added:.1} of {alone:.1} GiB/s",
                    count(run.on(root, drives)),
                    run.carried(root, at + 1),
                ));
                continue;
            }
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
    said
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

/// The bandwidth through a root complex that is named as `root complex 0000:60`.
fn carries(run: &ScaleRun, what: &str, at: usize) -> String {
    let Some(root) = what.strip_prefix("root complex ") else { return String::new() };
    let drives = count(run.on(root, at + 1));
    format!(": {drives} on it, {:.1} GiB/s", run.carried(root, at))
}

fn count(drives: usize) -> String {
    if drives == 1 { "1 drive".to_owned() } else { format!("{drives} drives") }
}
