//! The report from top to bottom.

use super::model::{Reading, Study, Test, TestRun, Verdict, Window};
use super::{plots, tables};
use crate::sheet::Sheet;

/// Headings of a report of all four tests, in order; those of one test follow its name.
pub const SECTIONS: [&str; 10] = [
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
];

const QUICK: &str = "QUICK MODE: points are shorter, less is written before rounds begin, and write saturation ends \
    sooner than the specification asks for. This shows that a drive can be tested; its figures are no result of that \
    specification and are not to be compared with any.";

/// Writes the whole report.
pub fn write(study: &Study, sheet: &mut dyn Sheet) {
    sheet.paragraph(
        "After the Solid State Storage Performance Test Specification of SNIA: purge, workload-independent \
         preconditioning, then rounds of all points until five of them in a row are steady.",
        false,
    );
    if study.setup.quick {
        sheet.paragraph(QUICK, true);
    }
    for departure in &study.setup.departures {
        sheet.paragraph(&format!("Departs from the specification: {departure}"), true);
    }
    if !study.partial.is_empty() {
        let what = format!("PARTIAL: {}. What was measured before is below.", study.partial);
        sheet.paragraph(&what, true);
    }
    if study.resumed > 0 {
        let times = if study.resumed == 1 { "once" } else { "several times" };
        let what = format!(
            "The test was interrupted and gone on with {times} ({}): the drive stood idle in between.",
            study.resumed
        );
        sheet.paragraph(&what, true);
    }
    sheet.heading(1, SECTIONS[0]);
    sheet.table(&tables::setup(&study.setup));
    sheet.heading(1, SECTIONS[1]);
    let rule = format!(
        "Steady are five rounds in a row whose largest and smallest value differ by at most 20 % of their mean, and \
         whose best-fit line rises or falls by at most 10 % of it; it is sought for {} rounds at most.",
        study.setup.rounds
    );
    sheet.paragraph(&rule, false);
    sheet.table(&tables::verdicts(study));
    for run in &study.tests {
        if let Some(words) = complaint(run) {
            sheet.paragraph(&words, true);
        }
    }
    sheet.heading(1, SECTIONS[2]);
    for run in &study.tests {
        if let Some(purge) = run.purge.as_ref().filter(|purge| !purge.done) {
            let what = format!("{}: NOT purged: {}", run.test.title(), purge.how);
            sheet.paragraph(&what, true);
        }
    }
    sheet.table(&tables::preparations(study));
    for run in &study.tests {
        chapter(study, run, sheet);
    }
}

fn complaint(run: &TestRun) -> Option<String> {
    let title = run.test.title();
    match &run.verdict {
        Verdict::Steady(_) | Verdict::Over { .. } => None,
        Verdict::Unsteady { window, most } => Some(format!(
            "{title}: no steady state was reached in {most} rounds. Figures below are means of its last rounds all \
             the same. {}",
            plots::window_in_words(run.test, window)
        )),
        Verdict::Cut => Some(format!(
            "{title}: partial, cut short after {} whole rounds: no verdict.",
            run.variables().len()
        )),
    }
}

/// Writes the chapter of one test.
fn chapter(study: &Study, run: &TestRun, sheet: &mut dyn Sheet) {
    let title = run.test.title();
    sheet.heading(1, title);
    if run.rounds.iter().all(|round| round.readings.is_empty()) {
        sheet.paragraph("Nothing was measured.", true);
        return;
    }
    let section = |sheet: &mut dyn Sheet, index: usize| {
        sheet.heading(2, &format!("{title}: {}", SECTIONS[index]));
    };
    if run.test == Test::Saturation {
        sheet.heading(2, SECTIONS[9]);
        sheet.pictures(&plots::saturation(run, study.setup.capacity));
        section(sheet, 7);
        sheet.table(&tables::saturation(&run.rounds, study.setup.capacity));
    } else {
        section(sheet, 3);
        sheet.pictures(&plots::convergence(run));
        section(sheet, 4);
        verification(run, sheet);
        section(sheet, 5);
        sheet.pictures(&plots::measurement(run));
        let surface = plots::surface(run);
        if !surface.is_empty() {
            section(sheet, 6);
            sheet.pictures(&surface);
        }
        section(sheet, 7);
        summary(run, sheet);
    }
    section(sheet, 8);
    sheet.pictures(&plots::response_times(run));
}

fn verification(run: &TestRun, sheet: &mut dyn Sheet) {
    let mut shown = |window: &Window, steady: bool| {
        sheet.paragraph(&plots::window_in_words(run.test, window), false);
        sheet.pictures(&[plots::verification(run.test, window, steady)]);
        sheet.table(&tables::window(run.test, window));
    };
    match &run.verdict {
        Verdict::Steady(window) => shown(window, true),
        Verdict::Unsteady { window, .. } => shown(window, false),
        Verdict::Over { .. } | Verdict::Cut => {
            sheet.paragraph(
                "There is no window: the test was cut short before one was judged.",
                true,
            );
        }
    }
}

fn summary(run: &TestRun, sheet: &mut dyn Sheet) {
    let rounds = tables::measured(run);
    let words =
        format!("Means of the last {} rounds; columns are reads/writes in percent.", rounds.len());
    match run.test {
        Test::Iops => {
            sheet.paragraph(&words, false);
            sheet.table(&tables::by_mix(rounds, Reading::iops, "IOPS"));
        }
        Test::Throughput => sheet.table(&tables::throughput(rounds)),
        Test::Latency => {
            sheet.paragraph(&words, false);
            sheet.table(&tables::by_mix(rounds, |reading| reading.times.mean, "us"));
            sheet.table(&tables::latencies(rounds));
        }
        Test::Saturation => {}
    }
}
