//! `nvmeof-perf steady` against the daemon: all four tests in quick mode, their report in both
//! forms, and a test that is interrupted.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::Instant;

use nvmeof_tests::config::{NQN, listener, ram, subsystem};
use nvmeof_tests::{Daemon, GUARD, build};
use rustix::process::{Pid, Signal, kill_process};

/// Rounds of each test: the minimum for a verdict, with no more allowed, so that the content of the
/// report is fixed.
const ROUNDS: usize = 5;
/// Points of a round, and all headings of the report.
const POINTS: [usize; 3] = [7 * 8, 5 * 2, 3 * 3];
const SECTIONS: [&str; 24] = [
    "Set-up",
    "Steady state",
    "Preparation",
    "IOPS: Convergence",
    "IOPS: Steady state verification",
    "IOPS: Measurement",
    "IOPS: Mix and block size",
    "IOPS: Summary",
    "IOPS: Response times",
    "Throughput: Convergence",
    "Throughput: Steady state verification",
    "Throughput: Measurement",
    "Throughput: Summary",
    "Throughput: Response times",
    "Latency: Convergence",
    "Latency: Steady state verification",
    "Latency: Measurement",
    "Latency: Mix and block size",
    "Latency: Summary",
    "Latency: Response times",
    "Write saturation",
    "Write saturation curves",
    "Write saturation: Summary",
    "Write saturation: Response times",
];

fn config() -> String {
    let device = ram("ram0", "32MiB", 512);
    [listener("127.0.0.1"), device, subsystem(NQN, &[(1, "ram0")])].concat()
}

fn steady(daemon: &Daemon, out: &Path, args: &str) -> Command {
    let mut command = Command::new(build::load_generator());
    command.arg("steady").arg("--connect").arg(daemon.endpoint(NQN).to_string());
    command.args(["--quick", "--time", "20ms", "--rounds", "5", "--jobs", "1", "--iodepth", "4"]);
    command.arg("--out").arg(out).args(args.split_whitespace());
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn resume(daemon: &Daemon, results: &Path) -> Output {
    let endpoint = daemon.endpoint(NQN).to_string();
    let mut command = Command::new(build::load_generator());
    command.arg("steady").arg("--connect").arg(&endpoint).arg("--destroy-data").arg(&endpoint);
    command.arg("--resume").arg(results).output().expect("nvmeof-perf runs")
}

fn said(output: &Output) -> String {
    [&output.stdout, &output.stderr].map(|text| String::from_utf8_lossy(text).into_owned()).concat()
}

/// Returns the text of a PDF, as a reader would select it.
fn pdf_text(pdf: &Path) -> String {
    let output = Command::new("pdftotext").arg("-layout").arg(pdf).arg("-").output();
    let output = output.expect("pdftotext (Debian: apt-get install poppler-utils)");
    assert!(output.status.success(), "{}", said(&output));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn page(results: &Path) -> String {
    std::fs::read_to_string(results.with_extension("html")).expect("the page")
}

/// Returns the plots of a page whose description has this start.
fn plots<'a>(page: &'a str, title: &str) -> Vec<&'a str> {
    let begins = format!("aria-label=\"{title}");
    let all = page.split("<svg ").skip(1).filter(|svg| svg.contains(&begins));
    all.map(|svg| svg.split("</svg>").next().unwrap_or(svg)).collect()
}

fn marks(plot: &str, series: usize) -> usize {
    plot.matches(&format!("class=\"mark s{series} ")).count()
}

/// Counts the lines of the results that are readings.
fn readings(results: &Path) -> usize {
    let text = std::fs::read_to_string(results).unwrap_or_default();
    text.lines().filter(|line| line.starts_with("{\"measured\"")).count()
}

/// Waits until a running test has stored this number of readings.
fn wait_for_readings(child: &mut Child, results: &Path, wanted: usize) {
    let began = Instant::now();
    while readings(results) < wanted {
        assert!(child.try_wait().expect("a child").is_none(), "it ended before");
        assert!(began.elapsed() < GUARD, "{} readings", readings(results));
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
}

fn assert_whole(results: &Path) {
    let (page, pdf) = (page(results), pdf_text(&results.with_extension("pdf")));
    for section in SECTIONS {
        assert!(page.contains(&format!(" {section}</h")), "{section} in the page");
        assert!(pdf.contains(section), "{section} on paper");
    }
    for text in ["QUICK MODE", "NOT purged", "NVMe/TCP", "nvmeof-perf steady --connect", "32 MiB"] {
        assert!(page.contains(text), "{text} in the page");
        assert!(pdf.contains(text), "{text} on paper");
    }
    let [iops] = plots(&page, "Convergence: IOPS.")[..] else { panic!("one plot") };
    for series in 0..8 {
        assert_eq!(marks(iops, series), ROUNDS, "series {series}: a point for each round");
    }
    assert_eq!(
        (marks(iops, 8), iops.matches("class=\"key ").count()),
        (0, 8),
        "a series for each size"
    );
    let throughput = plots(&page, "Convergence: throughput");
    assert_eq!(throughput.len(), 2, "reads and writes");
    let series: usize = throughput.iter().map(|plot| plot.matches("class=\"key ").count()).sum();
    assert_eq!(series, POINTS[1]);
    let latency = plots(&page, "Convergence: mean response time");
    let series: usize = latency.iter().map(|plot| plot.matches("class=\"key ").count()).sum();
    assert_eq!(series, POINTS[2]);
    let [measured] = plots(&page, "Measurement: IOPS")[..] else { panic!("one plot") };
    assert_eq!(measured.matches("class=\"mark ").count(), POINTS[0], "each mix at each size");
    assert_eq!(plots(&page, "Steady state window").len(), 3);
    assert_eq!(page.matches("class=\"area s3 ").count(), 3, "each with its band");
    assert_eq!(plots(&page, "Response time histogram").len(), 4);
    assert_eq!(plots(&page, "Write saturation").len(), 3);
    let cells = plots(&page, "IOPS, by mix and block size");
    assert_eq!(cells.len(), 2, "as cells and as a surface");
    assert_eq!(cells[0].matches("class=\"heat c0\"").count(), POINTS[0]);
    assert_eq!(cells[1].matches("class=\"heat c0\"").count(), 6 * 7);
    let rounds: usize = POINTS.iter().map(|points| points * ROUNDS).sum();
    assert!(readings(results) > rounds, "{} readings, saturation among them", readings(results));
}

#[test]
fn all_four_tests_make_a_report_with_every_section() {
    let daemon = Daemon::start(&config());
    let out = daemon.folder().join("drive");
    let results = out.with_extension("jsonl");
    let output = steady(&daemon, &out, "").output().expect("nvmeof-perf runs");
    assert_eq!(output.status.code(), Some(0), "{}", said(&output));
    assert_whole(&results);
    assert!(!page(&results).contains("PARTIAL"));
    // Existing data and results are not overwritten.
    let other = daemon.folder().join("other");
    let output = steady(&daemon, &other, "").output().expect("nvmeof-perf runs");
    assert_eq!(output.status.code(), Some(2), "{}", said(&output));
    assert!(said(&output).contains("is not empty") && said(&output).contains("--destroy-data"));
    assert!(!other.with_extension("jsonl").exists());
    let destroy = format!("--destroy-data {}", daemon.endpoint(NQN));
    let output = steady(&daemon, &out, &destroy).output().expect("nvmeof-perf runs");
    assert_eq!(output.status.code(), Some(1), "{}", said(&output));
    assert!(said(&output).contains("has results already"), "{}", said(&output));
    // No work is left: the reports are written again.
    std::fs::remove_file(out.with_extension("pdf")).expect("the report");
    let output = resume(&daemon, &results);
    assert_eq!(output.status.code(), Some(0), "{}", said(&output));
    assert_whole(&results);
}

#[test]
fn an_interrupted_test_is_partial_and_goes_on() {
    let daemon = Daemon::start(&config());
    let out = daemon.folder().join("drive");
    let results: PathBuf = out.with_extension("jsonl");
    let mut child = steady(&daemon, &out, "").spawn().expect("nvmeof-perf runs");
    wait_for_readings(&mut child, &results, POINTS[0] + 3);
    let pid = Pid::from_child(&child);
    kill_process(pid, Signal::INT).expect("a signal");
    let output = child.wait_with_output().expect("its end");
    assert_eq!(output.status.code(), Some(1), "{}", said(&output));
    assert!(said(&output).contains("error: interrupted"), "{}", said(&output));
    let before = readings(&results);
    for text in ["PARTIAL: interrupted", "cut short after 1 whole rounds", "IOPS: Convergence"] {
        assert!(page(&results).contains(text), "{text}");
    }
    assert!(pdf_text(&results.with_extension("pdf")).contains("PARTIAL"));
    let output = resume(&daemon, &results);
    assert_eq!(output.status.code(), Some(0), "{}", said(&output));
    assert!(readings(&results) > before);
    assert!(page(&results).contains("resumed once") && !page(&results).contains("PARTIAL"));
    assert_whole(&results);
}

#[test]
fn a_target_that_dies_leaves_a_partial_report() {
    let mut daemon = Daemon::start(&config());
    let out = daemon.folder().join("drive");
    let results = out.with_extension("jsonl");
    let mut child = steady(&daemon, &out, "--tests latency").spawn().expect("nvmeof-perf runs");
    wait_for_readings(&mut child, &results, 4);
    daemon.signal(Signal::KILL);
    let output = child.wait_with_output().expect("its end");
    daemon.wait();
    assert_eq!(output.status.code(), Some(1), "{}", said(&output));
    let page = page(&results);
    assert!(page.contains("PARTIAL: the device failed"), "{}", said(&output));
    assert!(page.contains("Latency: Convergence") || page.contains("Nothing was measured"));
}
