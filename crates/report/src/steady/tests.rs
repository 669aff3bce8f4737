use super::*;
use crate::plot::{Picture, SeriesShape};

const MIXES: [u8; 7] = [100, 95, 65, 50, 35, 5, 0];
const SIZES: [u64; 8] = [1 << 20, 128 << 10, 64 << 10, 32 << 10, 16 << 10, 8192, 4096, 512];

/// A measurement of a made-up drive at `percent` of its maximum rate.
///
/// The maximum is 100 MB/s and 100 000 commands a second.
fn measurement(random: bool, read_percent: u8, bs: u64, percent: u64) -> Measurement {
    let ios = (100_000_000 / bs).min(100_000) * percent / 100;
    let mean = 1e6 / ios as f64;
    Measurement {
        workload: Workload { random, read_percent, bs, jobs: 1, iodepth: 1 },
        seconds: 1.0,
        ios,
        bytes: ios * bs,
        times: ResponseTimes {
            min: mean / 2.0,
            mean,
            p50: mean,
            p99: mean * 2.0,
            p99_9: mean * 3.0,
            max: mean * 10.0,
        },
        histogram: vec![(mean / 2.0, ios / 4), (mean, ios / 2), (mean * 2.0, ios / 4)],
    }
}

fn window(run: &TestRun) -> SteadyWindow {
    let values = run.variables();
    let values = values[values.len() - 5..].to_vec();
    let mean = values.iter().sum::<f64>() / 5.0;
    SteadyWindow {
        first: run.rounds.len() - 4,
        fit_first: values[0],
        fit_last: values[4],
        values,
        mean,
        range: 0.082,
        slope: 0.075,
        range_allowed: 0.2,
        slope_allowed: 0.1,
    }
}

/// The steps that make this round.
fn planned(test: TestKind, round: &TestRound) -> PlannedSteps {
    let (jobs, iodepth) = if test == TestKind::Latency { (1, 1) } else { (4, 32) };
    let of = |measurement: &Measurement| Workload { jobs, iodepth, ..measurement.workload };
    let mut points: Vec<_> = round.measurements.iter().map(of).collect();
    if test == TestKind::Throughput {
        points.sort_by_key(|point| std::cmp::Reverse((point.bs, point.read_percent)));
    }
    PlannedSteps { points, seconds: 60.0, saturation: (4.0, 86_400.0) }
}

/// A whole drive test of all four tests.
pub(crate) fn drive_test() -> DriveTest {
    let rounds = |random: bool, mixes: &[u8], sizes: &[u64]| -> Vec<TestRound> {
        let round = |number: u64| {
            let all = mixes.iter().flat_map(|mix| sizes.iter().map(move |bs| (*mix, *bs)));
            let percent = 100 - 4 * number.min(3) + number % 2;
            TestRound {
                measurements: all.map(|(mix, bs)| measurement(random, mix, bs, percent)).collect(),
            }
        };
        (0..7).map(round).collect()
    };
    let prepared =
        |how: &str| Preparation { done: true, how: how.into(), seconds: 2.5, bytes: 1 << 30 };
    let of = |test, rounds: Vec<TestRound>| {
        let mut run = TestRun {
            test,
            planned: planned(test, &rounds[0]),
            purge: Some(prepared("Format NVM")),
            precondition: (test != TestKind::Saturation).then(|| prepared("2 x capacity")),
            rounds,
            result: SteadyStateResult::Over { why: "4 x capacity written".into() },
        };
        if test != TestKind::Saturation {
            run.result = SteadyStateResult::Steady(window(&run));
        }
        run
    };
    DriveTest {
        setup: DriveTestSetup {
            device: "/dev/nvme9n1".into(),
            path: "our own driver".into(),
            model: "MADE UP 3000".into(),
            serial: "S<1>".into(),
            firmware: "1.0".into(),
            capacity: 1 << 30,
            block_size: 512,
            host: "host-a".into(),
            kernel: "Linux 6.1".into(),
            kernel_command_line: "root=/dev/vda quiet".into(),
            distribution: "Example Linux 12".into(),
            board: "Example, X1".into(),
            bios: "Example, 1.2, 01/02/2026".into(),
            microcode: "0x2b0".into(),
            note: "slot 4".into(),
            processor: "a processor".into(),
            processors: 2,
            version: "nvmeof-perf 0.1.0".into(),
            command_line: "nvmeof-perf steady --device /dev/nvme9n1 --destroy-data /dev/nvme9n1"
                .into(),
            started: "2026-11-22 06:00:00 UTC".into(),
            jobs: 4,
            iodepth: 32,
            seconds: 60.0,
            precondition: 2.0,
            rounds: 25,
            quick: false,
            departures: Vec::new(),
        },
        tests: vec![
            of(TestKind::Iops, rounds(true, &MIXES, &SIZES)),
            of(TestKind::Throughput, rounds(false, &[100, 0], &SIZES)),
            of(TestKind::Latency, rounds(true, &[100, 65, 0], &[8192, 4096, 512])),
            of(TestKind::Saturation, rounds(true, &[0], &[4096])),
        ],
        partial: String::new(),
        resumed: 0,
    }
}

/// The text of a PDF.
fn pdf_text(drive_test: &DriveTest) -> String {
    crate::pdf::tests::texts(&pdf(drive_test)).concat().join("\n")
}

#[test]
fn both_forms_have_every_section_and_what_was_set_up() {
    let drive_test = drive_test();
    let (html, pdf) = (html(&drive_test), pdf_text(&drive_test));
    for text in SECTIONS.iter().chain(&["IOPS: Convergence", "Throughput: Summary"]) {
        assert!(html.contains(&format!("{text}</h")), "{text} in the page");
        assert!(pdf.contains(text), "{text} on paper");
    }
    for text in [
        "MADE UP 3000",
        "1.0",
        "host-a",
        "Linux 6.1",
        "2026-11-22",
        "Format NVM",
        "steady",
        "99/1",
        "root=/dev/vda quiet",
        "Example Linux 12",
        "Example, X1",
        "01/02/2026",
        "0x2b0",
        "slot 4",
    ] {
        let there = text != "99/1";
        assert_eq!(html.contains(text), there, "{text} in the page");
        assert_eq!(pdf.contains(text), there, "{text} on paper");
    }
    assert!(html.contains("S&lt;1&gt;") && !html.contains("S<1>"));
    assert!(!html.contains("QUICK MODE") && !html.contains("PARTIAL"));
}

#[test]
fn plots_have_a_line_for_each_size_and_a_point_for_each_round() {
    let drive_test = drive_test();
    let plot = |picture: &Picture| match picture {
        Picture::Plot(plot) => plot.clone(),
        other => panic!("{other:?}"),
    };
    let run = &drive_test.tests[0];
    let convergence = plot(&plots::convergence(run)[0]);
    assert_eq!(convergence.series.len(), 8);
    assert!(convergence.series.iter().all(|series| series.points.len() == 7));
    let measurement = plot(&plots::measurement(run)[0]);
    assert_eq!(measurement.series.len(), 7);
    assert!(measurement.series.iter().all(|series| series.points.len() == 8));
    let SteadyStateResult::Steady(window) = &run.result else { panic!() };
    let verification = plot(&plots::verification(run.test, window, true));
    let shapes: Vec<_> = verification.series.iter().map(|series| series.shape).collect();
    assert_eq!(
        shapes,
        [SeriesShape::MarkedLine, SeriesShape::Line, SeriesShape::Line, SeriesShape::Area]
    );
    assert_eq!(verification.series[0].points.len(), 5);
    assert!(verification.note.contains("range 8.2 %") && verification.note.contains("slope 7.5 %"));
    let svg = Picture::Plot(verification).svg();
    assert_eq!(svg.matches("class=\"area s3 ").count(), 1, "{svg}");
    let latency = plot(&plots::convergence(&drive_test.tests[2])[0]);
    assert_eq!(latency.series.len(), 3, "one plot per mix, at most 8 lines in each");
    assert_eq!(plots::convergence(&drive_test.tests[2]).len(), 3);
    assert_eq!(plots::convergence(&drive_test.tests[1]).len(), 2, "writes and reads");
    let curves = plots::saturation(&drive_test.tests[3], 1 << 30);
    assert!(curves.iter().map(plot).all(|curve| curve.series.iter().all(|s| s.points.len() == 7)));
}

#[test]
fn latencies_have_a_matrix_and_a_surface_of_means_and_of_maxima() {
    let pictures = plots::surface(&drive_test().tests[2]);
    let titles: Vec<&str> = pictures.iter().map(Picture::title).collect();
    let [mean, maximum] = ["Mean", "Maximum"]
        .map(|what| format!("{what} response time in us, by mix and block size"));
    assert_eq!(titles, [&*mean, &mean, &maximum, &maximum]);
    let Picture::Cells(grid) = &pictures[2] else { panic!() };
    // 10 times the mean, of the slowest of the window: 88 % of 24414 commands of 4 KiB.
    let longest = grid.values.iter().flatten().flatten().copied().fold(0.0, f64::max);
    let slowest = 10.0 * 1e6 / ((100_000_000 / 8192) * 88 / 100) as f64;
    assert!((longest / slowest - 1.0).abs() < 0.01, "{longest} {slowest}");
}

#[test]
fn contents_list_every_heading_with_its_number() {
    let drive_test = drive_test();
    let html = html(&drive_test);
    for (number, text) in
        [("1", "Set-up"), ("4", "IOPS"), ("4.2", "IOPS: Convergence"), ("8", "Glossary")]
    {
        assert!(html.contains(&format!("<a href=\"#s{number}\">{number} {text}</a>")), "{number}");
        assert!(html.contains(&format!(" id=\"s{number}\">{number} {text}</h")), "{number}");
    }
    let links = html.matches("<a href=\"#s").count();
    assert_eq!(links, html.matches(" id=\"s").count(), "each heading is listed");
    assert_eq!(html.matches("<figcaption>Figure ").count(), html.matches("<svg").count());
    let pages = crate::pdf::tests::texts(&pdf(&drive_test));
    let texts = |page: &[String]| page.iter().any(|text| text == "4.2 IOPS: Convergence");
    let at: Vec<usize> = (0..pages.len()).filter(|page| texts(&pages[*page])).collect();
    let [list, place] = at[..] else { panic!("listed, and a heading: {at:?}") };
    let of_list = &pages[list];
    let line = of_list.iter().position(|text| text == "4.2 IOPS: Convergence").unwrap();
    assert_eq!(of_list[line + 1], (place + 1).to_string(), "its page");
}

/// Each test's steps are those of its plan: sizes, order, lengths, and the end.
#[test]
fn the_steps_are_those_that_are_planned() {
    let mut drive_test = drive_test();
    let steps = |drive_test: &DriveTest, test: usize| {
        words::steps(&drive_test.tests[test], &drive_test.setup)
    };
    let throughput = steps(&drive_test, 1);
    let (sizes, mixes) =
        (throughput.find("commands of 1 MiB, 128 KiB").unwrap(), throughput.find("reads, then"));
    assert!(Some(sizes) < mixes, "sizes are the outer loop: {throughput}");
    assert!(throughput.contains("60 s of sequential commands, 4 jobs with 32"), "{throughput}");
    assert!(steps(&drive_test, 0).contains("8 KiB, 4 KiB, 512 B\n"));
    drive_test.tests[0].planned.points.retain(|point| point.bs > 512);
    let iops = steps(&drive_test, 0);
    assert!(iops.contains("for commands of 1 MiB") && iops.contains("8 KiB, 4 KiB\n"), "{iops}");
    assert!(iops.find("reads/writes of") < iops.find("for commands of"), "{iops}");
    assert!(steps(&drive_test, 2).contains("60 s of random commands, one at a time"));
    drive_test.tests[3].planned.saturation.1 = 0.8;
    drive_test.tests[3].planned.seconds = 0.02;
    let saturation = steps(&drive_test, 3);
    assert!(saturation.contains("4 x the capacity is written or 0.8 s have passed"));
    assert!(saturation.contains("0.02 s of random writes of 4 KiB, 4 jobs"), "{saturation}");
}

#[test]
fn the_steps_and_the_terms_of_a_test_are_in_both_forms() {
    let drive_test = drive_test();
    let (html, pdf) = (html(&drive_test), pdf_text(&drive_test));
    for text in [
        "for reads/writes of 100/0, 95/5, 65/35, 50/50, 35/65, 5/95, 0/100",
        "for each round, 25 at most",
        "until 4 x the capacity is written or 24 hours have passed",
        "preconditioning",
    ] {
        assert!(html.contains(text) && pdf.contains(text), "{text}");
    }
}

/// Every page names it: the title is on each page of the PDF.
#[test]
fn a_drive_that_was_not_purged_is_marked_on_every_page() {
    let mut drive_test = drive_test();
    assert!(!html(&drive_test).contains("not purged)"));
    drive_test.tests[0].purge =
        Some(Preparation { how: "frozen".into(), ..Preparation::default() });
    assert!(html(&drive_test).contains("(measured, not purged)</title>"));
    let pages = crate::pdf::tests::texts(&pdf(&drive_test));
    for page in &pages {
        assert!(page.iter().any(|text| text.ends_with("(measured, not purged)")), "{page:?}");
    }
}

#[test]
fn tables_hold_what_was_measured() {
    let drive_test = drive_test();
    let iops = tables::by_mix(tables::measured(&drive_test.tests[0]), Measurement::iops, "IOPS");
    let text = iops.markdown();
    assert_eq!(iops.len(), 8);
    // 100 MB/s in commands of 4 KiB are 24414 a second. The window has about 92, 93, 88, 89, 88 and
    // 89 % of them.
    let row = text.lines().find(|line| line.contains("| 4 KiB")).unwrap();
    let last: f64 = row.trim_end_matches(" |").rsplit(' ').next().unwrap().parse().unwrap();
    assert!((21_000.0..22_900.0).contains(&last), "{row}");
    let latencies = tables::latencies(tables::measured(&drive_test.tests[2])).markdown();
    assert_eq!(latencies.lines().count(), 2 + 9);
    let saturation = tables::saturation(&drive_test.tests[3].rounds, 1 << 30).markdown();
    assert_eq!(saturation.lines().count(), 2 + 7);
}

#[test]
fn the_outline_of_a_histogram_begins_and_ends_at_nothing() {
    let drive_test = drive_test();
    let Picture::Plot(plot) = &plots::response_times(&drive_test.tests[0])[0] else { panic!() };
    for series in &plot.series {
        assert!(series.points[0].1.abs() < 1e-9 && series.points.last().unwrap().1.abs() < 1e-9);
        assert!(series.points.is_sorted_by(|a, b| a.0 <= b.0));
        let tops: f64 = series.points.iter().map(|point| point.1).sum();
        // Two points per bar.
        assert!((tops - 200.0).abs() < 1.0, "{tops}");
    }
}

#[test]
fn what_is_missing_is_said_on_top() {
    let mut drive_test = drive_test();
    drive_test.setup.quick = true;
    drive_test.setup.departures = vec!["no 512 B".into()];
    drive_test.partial = "the device is missing".into();
    drive_test.resumed = 2;
    drive_test.tests[0].purge =
        Some(Preparation { how: "Format is not available".into(), ..Preparation::default() });
    let SteadyStateResult::Steady(window) = drive_test.tests[1].result.clone() else { panic!() };
    drive_test.tests[1].result = SteadyStateResult::Unsteady { window, most: 25 };
    drive_test.tests[2].result = SteadyStateResult::Cut;
    drive_test.tests[2].rounds.truncate(2);
    drive_test.tests[2].rounds[1].measurements.truncate(1);
    drive_test.tests[3].rounds.clear();
    drive_test.tests[3].purge = None;
    let (html, pdf) = (html(&drive_test), pdf_text(&drive_test));
    let on_paper = pdf.replace('\n', " ");
    for text in [
        "QUICK MODE",
        "Departs from the specification: no 512 B",
        "sought for 25 rounds",
        "PARTIAL: the device is missing",
        "several times (2)",
        "NOT purged: Format is not available",
        "no steady state was reached in 25 rounds",
        "cut short after 1 whole rounds",
        "Nothing was measured.",
        "quick mode, partial",
    ] {
        assert!(html.contains(text), "{text} in the page");
        assert!(on_paper.contains(text), "{text} on paper: {on_paper}");
    }
}

#[test]
fn a_study_without_anything_is_a_report_too() {
    assert!(html(&DriveTest::default()).contains("Set-up"));
    assert!(pdf_text(&DriveTest::default()).contains("Set-up"));
}

#[test]
fn the_page_asks_for_nothing_from_outside() {
    let html = html(&drive_test()).replace("http://www.w3.org/2000/svg", "");
    for outside in ["http:", "https:", "//", "url(", "@import", " src=", "<link rel=\"style"] {
        assert!(!html.contains(outside), "{outside}");
    }
}

/// For visual checks: `REPORT_SHOTS=FOLDER cargo test -p nvmeof-report --lib a_report_to_look_at`.
#[test]
fn a_report_to_look_at() {
    let Some(folder) = std::env::var_os("REPORT_SHOTS").map(std::path::PathBuf::from) else {
        return;
    };
    std::fs::write(folder.join("steady.html"), html(&drive_test())).unwrap();
    std::fs::write(folder.join("steady.pdf"), pdf(&drive_test())).unwrap();
}
