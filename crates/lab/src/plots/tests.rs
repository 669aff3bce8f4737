//! The pages agree with the committed files, show every plot, and have no broken links.

use std::path::{Path, PathBuf};

use nvmeof_report::{Flow, Point, RunOrigin, VariedKey, json, sweep as sweep_report};

use super::blocks::{CLOSING, OPENING, fill};
use super::data::{PlotData, TRIED};
use super::*;
use crate::bench::pacing::activity::PacerActivity;
use crate::daemon_stats::StatsSample;
use crate::sweep;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn page(name: &str) -> String {
    fs::read_to_string(root().join(name)).unwrap()
}

fn committed() -> PlotData {
    PlotData::load(&root()).unwrap()
}

/// Returns invented points in the form of real runs.
fn made_up() -> Vec<Point> {
    let base = &committed().simulated[0];
    let mut points = Vec::new();
    for (device, policy, depth, gbps) in [
        ("one in memory", "none", 32, 10.0),
        ("one in memory", "adaptive", 32, 11.0),
        ("one in memory", "adaptive", 64, 12.0),
        ("one in memory", "adaptive", 64, 13.0),
        ("one in memory", "adaptive", 64, 19.0),
        ("behind 1 ms", "none", 32, 5.0),
        ("one of each", "none", 32, 7.0),
    ] {
        let varied = |key: &str, value: &str| VariedKey { key: key.into(), value: value.into() };
        let mut point = base.clone();
        point.place = RunOrigin::Local;
        point.platform = "a test's machine, 2 CPUs".into();
        point.varied = vec![varied("device", device), varied("policy", policy)];
        point.setting.offered = depth;
        point.total.gbps = gbps;
        let flow = Flow { host: 0, job: 0, device: 0, weight: 1, gbps, mean_us: 1.0, p99_us: 2.0 };
        point.flows = vec![flow; if device == "one of each" { 2 } else { 1 }];
        points.push(point);
    }
    points
}

fn is_marked(title: &str) -> bool {
    title.contains("simulated on ") || title.contains("measured on ")
}

#[test]
fn the_committed_plots_are_drawn_from_the_committed_data() {
    let folder = root().join(FOLDER);
    let figures = figures::all(&committed());
    let drawn: BTreeSet<_> = figures.iter().map(|figure| figure.file.clone()).collect();
    assert_eq!(drawn.len(), figures.len(), "two plots in one file");
    assert_eq!(drawn, svg_files(&folder).unwrap(), "run `cargo xtask plots --draw-only`");
    for figure in figures {
        let text = fs::read_to_string(folder.join(&figure.file)).unwrap();
        let same = text == figure.plot.standalone_svg();
        assert!(same, "{}: run `cargo xtask plots --draw-only`", figure.file);
    }
}

#[test]
fn every_plot_has_data_and_says_where_it_is_from() {
    for figure in figures::all(&committed()) {
        let (file, plot) = (&figure.file, &figure.plot);
        assert!(is_marked(&plot.title), "{file}: {}", plot.title);
        let simulated = plot.title.contains("simulated on ");
        assert_eq!(plot.note.contains("simulated"), simulated, "{file}: {}", plot.note);
        assert!(!plot.series.is_empty(), "{file}: no lines");
        assert!(plot.series.len() <= sweep_report::MOST_LINES, "{file}: too many lines");
        for series in &plot.series {
            assert!(series.points.len() > 1, "{file}: {} is no line", series.name);
            assert_eq!(
                series.name.starts_with("simulated: "),
                simulated,
                "{file}: {}",
                series.name
            );
        }
    }
}

#[test]
fn the_tables_on_the_pages_are_made_from_the_committed_data() {
    for name in PAGES {
        let text = page(name);
        let filled = fill(&text, &committed()).unwrap();
        assert!(filled == text, "{name}: run `cargo xtask plots --draw-only`");
    }
}

#[test]
fn every_plot_is_on_the_page() {
    let text = page(PAGES[0]);
    for figure in figures::all(&committed()) {
        let shown = format!("]({})", format_args!("pacing/{}", figure.file));
        assert!(text.contains(&shown), "{} is not on {}", figure.file, PAGES[0]);
    }
}

/// Returns the links of a page, without anchors and web addresses.
fn links(text: &str) -> Vec<&str> {
    let targets = text.split("](").skip(1).filter_map(|rest| rest.split(')').next());
    targets
        .map(|link| link.split('#').next().unwrap_or_default())
        .filter(|link| !link.is_empty() && !link.contains("://"))
        .collect()
}

#[test]
fn the_pages_link_only_what_is_there() {
    for name in PAGES {
        let (text, path) = (page(name), root().join(name));
        let found = links(&text);
        assert!(!found.is_empty(), "{name} links nothing");
        for link in found {
            assert!(path.parent().unwrap().join(link).exists(), "{name}: {link} is not there");
        }
    }
}

/// Returns a page without generated blocks and code.
fn prose(text: &str) -> String {
    let mut prose = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once(OPENING) {
        prose += before;
        rest = after.split_once(CLOSING).unwrap().1;
    }
    prose += rest;
    prose.split("```").step_by(2).collect()
}

/// Returns the results in a text: numbers with the unit of a result.
fn results(text: &str) -> Vec<String> {
    let words: Vec<&str> = text.split_whitespace().collect();
    let unit = |word: &str| ["Gb/s", "%", "us", "IOPS"].iter().any(|unit| word.starts_with(unit));
    let is_number = |word: &str| {
        let bare = word.trim_start_matches(|c: char| !c.is_ascii_digit());
        bare.starts_with(|c: char| c.is_ascii_digit())
    };
    let pairs = words.windows(2).filter(|pair| is_number(pair[0]) && unit(pair[1]));
    let together = words.iter().filter(|word| {
        let digits = word.trim_start_matches(|c: char| c.is_ascii_digit() || c == '.');
        digits.len() < word.len() && unit(digits)
    });
    pairs.map(|pair| pair.join(" ")).chain(together.map(|word| (*word).to_owned())).collect()
}

/// A result in a sentence has no file behind it: it belongs in a table that is generated from one.
#[test]
fn no_result_stands_on_the_pages_outside_of_their_tables() {
    // The page about measuring has units of settings and of intervals in its text.
    for name in &PAGES[..3] {
        let found = results(&prose(&page(name)));
        assert!(found.is_empty(), "{name}: {found:?} without a source");
    }
    assert_eq!(results("it held 184.8 Gb/s, 99 % of it, in 5us."), ["184.8 Gb/s,", "99 %", "5us."]);
    assert!(results("a 2 ms stall of 128 KiB reads, 1/16 of them").is_empty());
    let hidden = format!("a {OPENING}x -->\n9 Gb/s\n{CLOSING} b ```\n8 Gb/s\n``` c");
    assert!(results(&prose(&hidden)).is_empty());
}

/// If this fails, the simulator, a platform or the controller has changed: `cargo xtask plots`
/// updates the page.
#[test]
fn the_committed_data_is_of_this_simulator() {
    let workspace = Workspace::find().unwrap();
    let data = committed();
    for (plan, policy) in [("test-03", "none"), ("adaptive-03", "adaptive")] {
        let wanted = |varied: &[VariedKey]| {
            let taken = |key: &str, value: &str| {
                varied.iter().any(|varied| varied.key.ends_with(key) && varied.value == value)
            };
            let policies = varied.iter().filter(|varied| varied.key.ends_with("policy"));
            taken("initiator", "fio-spdk")
                && taken("queue-depth", "256")
                && policies.map(|varied| varied.value.as_str()).all(|found| found == policy)
        };
        let points = sweep::simulate(&workspace, plan, "A", wanted).unwrap();
        assert_eq!(points.len(), 1);
        let mut of_plan = figures::of(&data, "A", plan, policy);
        let then = of_plan.find(|p| p.setting.qd == 256).unwrap().total.gbps;
        let now = points[0].total.gbps;
        let far = (now / then - 1.0).abs() > 0.02;
        assert!(!far, "{plan}: {now:.1} Gb/s now, {then:.1} committed: run `cargo xtask plots`");
    }
}

#[test]
fn real_runs_are_drawn_as_measured() {
    let points = made_up();
    let figures = measured::figures(&points);
    let files: Vec<_> = figures.iter().map(|figure| figure.file.as_str()).collect();
    assert_eq!(files.len(), 6, "two a device: {files:?}");
    assert_eq!(files[0], "measured-1-one-in-memory-bandwidth.svg");
    for figure in &figures {
        let title = &figure.plot.title;
        assert!(title.ends_with("measured on a test's machine"), "{title}");
        assert!(!figure.plot.standalone_svg().contains("simulated"));
    }
    assert_eq!(figures[0].plot.series.len(), 2, "none and adaptive");
    let text = measured::markdown(&points);
    assert!(text.contains("](pacing/measured-2-behind-1-ms-p99.svg)"), "{text}");
    let cell =
        |line: &str, at: usize| line.split('|').nth(at).unwrap_or_default().trim().to_owned();
    let is_it = |line: &&str| cell(line, 1) == "adaptive" && cell(line, 2) == "64";
    let row = text.lines().find(is_it).unwrap();
    assert!(row.contains("13.0") && !row.contains("19.0"), "the middle of three: {row}");
    let (_, of_each) = text.split_once("Measured, one of each, each namespace:").unwrap();
    assert_eq!(cell(of_each.lines().nth(4).unwrap(), 5), "7.00", "{of_each}");
    assert_eq!(text.matches("each namespace:").count(), 1, "only of those with several");
    assert!(measured::markdown(&[]).contains("No measured run is shown yet"));
}

#[test]
fn what_a_pacer_did_is_drawn_as_measured() {
    let moment = |t| StatsSample { t, kpolls: 5.0, period_us: Some(2.0), ..StatsSample::default() };
    let activity = PacerActivity {
        run: "mix at depth 64 with adaptive".to_owned(),
        place: "measured on a test's machine, 2 CPUs".to_owned(),
        moments: vec![moment(0.1), moment(0.2)],
    };
    let text = measured::activity(Some(&activity));
    for figure in measured::over_time(&activity) {
        let title = &figure.plot.title;
        assert!(title.ends_with(", measured on a test's machine"), "{title}");
        assert!(text.contains(&format!("](pacing/{})", figure.file)), "{text}");
    }
    assert_eq!(text.matches("![").count(), 4, "{text}");
    assert!(text.contains("mix at depth 64 with adaptive; measured on"), "{text}");
    assert!(measured::activity(None).contains("No measured run is shown yet"));
}

#[test]
fn only_sound_real_runs_are_taken() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("real.jsonl");
    let write = |points: &[Point]| {
        let lines: Vec<_> = points.iter().map(|point| json::line(point).unwrap()).collect();
        fs::write(&file, lines.concat()).unwrap();
        gather::real(&file)
    };
    let mut points = made_up();
    let taken = write(&points).unwrap();
    assert_eq!(taken.len(), points.len());
    points[1].problems.push("2 errors".into());
    assert!(write(&points).unwrap_err().to_string().contains("2 errors"));
    points[1].problems.clear();
    points[1].place = RunOrigin::Simulated;
    assert!(write(&points).unwrap_err().to_string().contains("simulated"));
    assert!(write(&[]).unwrap_err().to_string().contains("no result"));
    assert!(gather::real(&folder.path().join("none")).is_err());
}

#[test]
fn blocks_are_replaced_and_nothing_else() {
    let data = PlotData { measured: Vec::new(), ..committed() };
    let text = format!("a\n{OPENING}measured -->\nold\n{CLOSING}\nb\n");
    let filled = fill(&text, &data).unwrap();
    assert!(filled.starts_with("a\n") && filled.ends_with(&format!("{CLOSING}\nb\n")));
    assert!(!filled.contains("old") && filled.contains("No measured run"));
    assert_eq!(fill(&filled, &data).unwrap(), filled);
    assert!(fill(&text.replace("measured", "nonsense"), &data).is_err());
    assert!(fill(&text.replace(CLOSING, ""), &data).is_err());
}

#[test]
fn what_was_tried_has_its_file() {
    assert!(!committed().tried.is_empty(), "{TRIED}");
}
