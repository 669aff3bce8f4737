//! The points of a plan, some concurrently.

use std::io::IsTerminal;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use indicatif::{ProgressBar, ProgressStyle};
use nvmeof_report::{Point, VariedKey};

use super::backend::{PointRun, SweepBackend};
use super::plan::{PlannedPoint, SweepPlan};
use super::results::ResultsFile;

/// Number of messages shown before the rest is only counted.
const SHOWN: usize = 10;

/// Rejects a plan with a point that cannot run on this backend, before the first one runs.
pub(super) fn check(plan: &SweepPlan, backend: &dyn SweepBackend) -> Result<()> {
    let mut complaints: Vec<String> = Vec::new();
    for point in &plan.points {
        if let Err(error) = backend.check(point) {
            let complaint = format!("{}: {error:#}", label(&plan.name, &point.varied, 1));
            complaints.push(complaint);
        }
    }
    if complaints.is_empty() {
        return Ok(());
    }
    let more = complaints.len().saturating_sub(SHOWN);
    complaints.truncate(SHOWN);
    if more > 0 {
        complaints.push(format!("and {more} more"));
    }
    bail!("{}", complaints.join("\n"))
}

/// Adapts the plan's points to this backend and removes points that cannot run or would repeat an
/// earlier one.
///
/// Returns the removed points with their reasons.
///
/// # Errors
/// No point is left.
pub(super) fn leave_out(plan: &mut SweepPlan, backend: &dyn SweepBackend) -> Result<Vec<String>> {
    let mut left_out = Vec::new();
    let name = plan.name.clone();
    let mut kept: Vec<(PlannedPoint, String)> = Vec::new();
    for point in &plan.points {
        let label = label(&name, &point.varied, 1);
        let adapted = backend.adapted(point);
        if let Err(error) = backend.check(&adapted) {
            left_out.push(format!("{label}: {error:#}"));
        } else if let Some((_, same)) = kept.iter().find(|(own, _)| own.setup == adapted.setup) {
            left_out.push(format!("{label}: with what this backend has, the same as {same}"));
        } else {
            kept.push((adapted, label));
        }
    }
    plan.points = kept.into_iter().map(|(point, _)| point).collect();
    if plan.points.is_empty() {
        bail!("no point can run here\n{}", left_out.join("\n"));
    }
    Ok(left_out)
}

/// Every run of a sweep, in order.
#[derive(Debug)]
pub(super) struct SweepRuns<'a> {
    runs: Vec<PointRun<'a>>,
    platform: String,
}

impl<'a> SweepRuns<'a> {
    /// Lists each point of the plan with all its repetitions.
    pub(super) fn of(plan: &'a SweepPlan, platform: &str, seed: u64) -> Self {
        let runs = plan.points.iter().flat_map(|point| {
            (1..=point.setup.repeat).map(move |repetition| {
                let seed = seed_of(seed, repetition);
                PointRun { plan, point, repetition, seed }
            })
        });
        Self { runs: runs.collect(), platform: platform.to_owned() }
    }

    /// Runs the points that `results` does not have yet. Returns all results in order, and the
    /// failures; one of the results file ends the run.
    pub(super) fn all(
        &self,
        backend: &dyn SweepBackend,
        results: &mut ResultsFile,
    ) -> (Vec<Point>, Vec<String>) {
        let earlier: Vec<Option<Point>> =
            self.runs.iter().map(|run| self.earlier(backend, run, results)).collect();
        let wanted: Vec<usize> = (0..self.runs.len()).filter(|at| earlier[*at].is_none()).collect();
        let bar = progress(wanted.len());
        let shared = Mutex::new(WorkerResults { points: earlier, failures: Vec::new(), results });
        let (next, stopped) = (AtomicUsize::new(0), AtomicBool::new(false));
        let worker = || {
            while let Some(at) = wanted.get(next.fetch_add(1, Ordering::Relaxed)) {
                if stopped.load(Ordering::Relaxed) || backend.is_interrupted() {
                    break;
                }
                bar.set_message(self.under_way(*at));
                let outcome = attempt(backend, &self.runs[*at]);
                let mut shared = shared.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
                if !shared.take(*at, &self.runs[*at], outcome) {
                    stopped.store(true, Ordering::Relaxed);
                }
                bar.inc(1);
            }
        };
        thread::scope(|scope| {
            for _ in 0..backend.parallel_points().min(wanted.len()) {
                scope.spawn(worker);
            }
        });
        bar.finish_and_clear();
        let shared = shared.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
        (shared.points.into_iter().flatten().collect(), shared.failures)
    }

    /// Returns the progress text of a run.
    fn under_way(&self, at: usize) -> String {
        let run = &self.runs[at];
        let label = label(&run.plan.name, &run.point.varied, run.repetition);
        format!("{} of {}: {label}", at + 1, self.runs.len())
    }

    fn earlier(
        &self,
        backend: &dyn SweepBackend,
        run: &PointRun<'_>,
        results: &ResultsFile,
    ) -> Option<Point> {
        let fingerprint = backend.fingerprint(&run.point.setup, run.seed);
        let found = results.earlier(|point| {
            point.plan == run.plan.name
                && point.varied == run.point.varied
                && point.repetition == run.repetition
                && point.platform == self.platform
                && point.fingerprint == fingerprint
        });
        found.cloned()
    }
}

/// Results of the workers.
struct WorkerResults<'a> {
    points: Vec<Option<Point>>,
    failures: Vec<String>,
    results: &'a mut ResultsFile,
}

impl WorkerResults<'_> {
    /// Keeps the outcome of a run. Returns `false` if the sweep has to stop.
    fn take(&mut self, at: usize, run: &PointRun<'_>, outcome: Result<Point>) -> bool {
        match outcome {
            Ok(point) => {
                let kept =
                    if self.results.has_failed() { Ok(()) } else { self.results.keep(&point) };
                self.points[at] = Some(point);
                if let Err(error) = kept {
                    self.failures.push(format!("{error:#}"));
                }
                return !self.results.has_failed();
            }
            Err(error) => {
                let label = label(&run.plan.name, &run.point.varied, run.repetition);
                self.failures.push(format!("{label}: {error:#}"));
            }
        }
        true
    }
}

/// Runs a point; a panic in it does not end the sweep.
fn attempt(backend: &dyn SweepBackend, run: &PointRun<'_>) -> Result<Point> {
    catch_unwind(AssertUnwindSafe(|| backend.run(run))).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        let text =
            text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("no reason given");
        Err(anyhow!("{text}")).context("the run panicked")
    })
}

/// Returns the name of plan and point in messages.
fn label(plan: &str, varied: &[VariedKey], repetition: u32) -> String {
    let values = varied.iter().map(|varied| format!("{} = {}", varied.key, varied.value));
    let mut parts: Vec<_> = std::iter::once(plan.to_owned()).chain(values).collect();
    if repetition > 1 {
        parts.push(format!("run {repetition}"));
    }
    parts.join(", ")
}

/// Returns the seed, the same for every point, so that points differ only by the varied values.
fn seed_of(seed: u64, repetition: u32) -> u64 {
    seed.wrapping_add(u64::from(repetition - 1).wrapping_mul(0x9e37_79b9_7f4a_7c15))
}

/// Progress of the sweep, and below it the running point: the one begun last, if there are several.
const FORM: &str = "{bar:40} {pos} of {len} points, {elapsed} gone, {eta} to go\n{wide_msg}";
/// Interval of updates of the clock.
const TICK: Duration = Duration::from_millis(250);

/// Returns a bar on a terminal, and a hidden one otherwise.
fn progress(points: usize) -> ProgressBar {
    if !std::io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let bar = ProgressBar::new(points.try_into().unwrap_or(u64::MAX));
    bar.set_style(
        ProgressStyle::with_template(FORM).unwrap_or_else(|_| ProgressStyle::default_bar()),
    );
    bar.enable_steady_tick(TICK);
    bar
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLAN: &str = r#"
name = "two"
[load]
repeat = 2
[[host]]
initiator = "nvmeof-perf"
[[job]]
[vary]
job.queue-depth = [16, 64]
"#;

    #[test]
    fn progress_names_plan_and_point() {
        let plan = SweepPlan::parse("two.toml", PLAN).unwrap();
        let runs = SweepRuns::of(&plan, "A", 1);
        assert_eq!(runs.under_way(0), "1 of 4: two, job.queue-depth = 16");
        assert_eq!(runs.under_way(3), "4 of 4: two, job.queue-depth = 64, run 2");
        ProgressStyle::with_template(FORM).expect("a form that is understood");
    }
}
