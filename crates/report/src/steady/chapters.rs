//! The report from top to bottom.

use super::model::{DriveTest, Measurement, SteadyStateResult, SteadyWindow, TestKind, TestRun};
use super::numbered::NumberedSink;
use super::{plots, tables, words};
use crate::report_sink::ReportSink;

/// Headings of a report of all four tests, in order; those of one test follow its name.
pub const SECTIONS: [&str; 12] = [
    "Set-up",
    "Steady state",
    "Preparation",
    "Convergence",
    "Steady state verification",
    "Measurement",
    "Mix and block size",
    "Summary",
    "Response times",
    "Write saturation curves",
    "Steps",
    "Glossary",
];

const QUICK: &str = "QUICK MODE: points are shorter, less is written before rounds begin, and write saturation ends \
    sooner than the specification asks for. This shows that a drive can be tested; its figures are no result of that \
    specification and are not to be compared with any.";

/// Writes the whole report.
pub fn write(drive_test: &DriveTest, sink: &mut dyn ReportSink) {
    let mut headings = NumberedSink::silent();
    body(drive_test, &mut headings);
    let mut sink = NumberedSink::new(sink);
    summary_of(drive_test, &mut sink);
    sink.contents(&headings.entries);
    body(drive_test, &mut sink);
}

/// The beginning: the method, and everything that restricts the result.
fn summary_of(drive_test: &DriveTest, sink: &mut NumberedSink<'_>) {
    sink.paragraph(
        "After the Solid State Storage Performance Test Specification of SNIA: purge, workload-independent \
         preconditioning, then rounds of all points until five of them in a row are steady.",
        false,
    );
    if drive_test.setup.quick {
        sink.paragraph(QUICK, true);
    }
    for departure in &drive_test.setup.departures {
        sink.paragraph(&format!("Departs from the specification: {departure}"), true);
    }
    if !drive_test.partial.is_empty() {
        let what = format!("PARTIAL: {}. What was measured before is below.", drive_test.partial);
        sink.paragraph(&what, true);
    }
    if drive_test.resumed > 0 {
        let times = if drive_test.resumed == 1 { "once" } else { "several times" };
        let what = format!(
            "The test was interrupted and resumed {times} ({}): the drive was idle in between.",
            drive_test.resumed
        );
        sink.paragraph(&what, true);
    }
    for run in &drive_test.tests {
        if let Some(purge) = run.purge.as_ref().filter(|purge| !purge.done) {
            let what = format!("{}: NOT purged: {}", run.test.title(), purge.how);
            sink.paragraph(&what, true);
        }
    }
}

/// The numbered chapters.
fn body(drive_test: &DriveTest, sink: &mut NumberedSink<'_>) {
    sink.heading(1, SECTIONS[0]);
    sink.table(&tables::setup(&drive_test.setup));
    sink.heading(1, SECTIONS[1]);
    let rule = format!(
        "Steady are five rounds in a row whose largest and smallest value differ by at most 20 % of their mean, and \
         whose best-fit line rises or falls by at most 10 % of it; it is sought for {} rounds at most.",
        drive_test.setup.rounds
    );
    sink.paragraph(&rule, false);
    sink.table(&tables::result_table(drive_test));
    for run in &drive_test.tests {
        if let Some(words) = complaint(run) {
            sink.paragraph(&words, true);
        }
    }
    sink.heading(1, SECTIONS[2]);
    sink.table(&tables::preparations(drive_test));
    for run in &drive_test.tests {
        chapter(drive_test, run, sink);
    }
    sink.heading(1, SECTIONS[11]);
    sink.table(&words::glossary());
}

fn complaint(run: &TestRun) -> Option<String> {
    let title = run.test.title();
    match &run.result {
        SteadyStateResult::Steady(_) | SteadyStateResult::Over { .. } => None,
        SteadyStateResult::Unsteady { window, most } => Some(format!(
            "{title}: no steady state was reached in {most} rounds. Figures below are means of its last rounds all \
             the same. {}",
            plots::window_in_words(run.test, window)
        )),
        SteadyStateResult::Cut => Some(format!(
            "{title}: partial, cut short after {} whole rounds: no verdict.",
            run.variables().len()
        )),
    }
}

/// Writes the chapter of one test.
fn chapter(drive_test: &DriveTest, run: &TestRun, sink: &mut NumberedSink<'_>) {
    let title = run.test.title();
    sink.heading(1, title);
    if let Some(purge) = run.purge.as_ref().filter(|purge| !purge.done) {
        sink.paragraph(&format!("NOT purged: {}", purge.how), true);
    }
    let section = |sink: &mut NumberedSink<'_>, index: usize| {
        sink.heading(2, &format!("{title}: {}", SECTIONS[index]));
    };
    section(sink, 10);
    sink.preformatted(&words::steps(run, &drive_test.setup));
    if run.rounds.iter().all(|round| round.measurements.is_empty()) {
        sink.paragraph("Nothing was measured.", true);
        return;
    }
    if run.test == TestKind::Saturation {
        section(sink, 9);
        let pictures = plots::saturation(run, drive_test.setup.capacity);
        sink.pictures(
            &pictures,
            "A fresh drive is fast until its unused blocks are used up; the level after the fall \
             is what it sustains.",
        );
        section(sink, 7);
        sink.table(&tables::saturation(&run.rounds, drive_test.setup.capacity));
    } else {
        section(sink, 3);
        sink.pictures(
            &plots::convergence(run),
            "Lines that become level show that the drive approaches a steady state.",
        );
        section(sink, 4);
        verification(run, sink);
        section(sink, 5);
        sink.pictures(&plots::measurement(run), "Each point is a mean over the window.");
        let surface = plots::surface(run);
        if !surface.is_empty() {
            section(sink, 6);
            sink.pictures(
                &surface,
                "The same values as cells and as a surface: larger ones are in a stronger color, and higher.",
            );
        }
        section(sink, 7);
        summary(run, sink);
    }
    section(sink, 8);
    sink.pictures(
        &plots::response_times(run),
        "Narrow means even; a second hill to the right is work that the drive does in between.",
    );
}

fn verification(run: &TestRun, sink: &mut NumberedSink<'_>) {
    let mut shown = |window: &SteadyWindow, steady: bool| {
        sink.paragraph(&plots::window_in_words(run.test, window), false);
        sink.pictures(
            &[plots::verification(run.test, window, steady)],
            "Steady: all points are in the band, and the best fit is nearly level.",
        );
        sink.table(&tables::window(run.test, window));
    };
    match &run.result {
        SteadyStateResult::Steady(window) => shown(window, true),
        SteadyStateResult::Unsteady { window, .. } => shown(window, false),
        SteadyStateResult::Over { .. } | SteadyStateResult::Cut => {
            sink.paragraph(
                "There is no window: the test was cut short before one was judged.",
                true,
            );
        }
    }
}

fn summary(run: &TestRun, sink: &mut NumberedSink<'_>) {
    let rounds = tables::measured(run);
    let words =
        format!("Means of the last {} rounds; columns are reads/writes in percent.", rounds.len());
    match run.test {
        TestKind::Iops => {
            sink.paragraph(&words, false);
            sink.table(&tables::by_mix(rounds, Measurement::iops, "IOPS"));
        }
        TestKind::Throughput => sink.table(&tables::throughput(rounds)),
        TestKind::Latency => {
            sink.paragraph(&words, false);
            sink.table(&tables::by_mix(rounds, |measurement| measurement.times.mean, "us"));
            sink.table(&tables::latencies(rounds));
        }
        TestKind::Saturation => {}
    }
}
