//! Pages of the fourteen tests, one for each platform and one for real runs, and their contents.

use std::collections::{BTreeMap, BTreeSet};

use nvmeof_report::sweep::{ComparedRow, Verdict, comparison_table};
use nvmeof_report::{Column, Plot, Table};

use super::{PICTURES, PLATFORMS, TestPicture, TestRows};
use crate::averages::mean;
use crate::rows::{IO_PACING, ResultRow};

/// Page of the real runs.
const HERE: &str = "here.md";

/// Returns every page by its name.
pub(super) fn all(rows: &TestRows, pictures: &BTreeMap<String, Plot>) -> Vec<(String, String)> {
    let mut pages: Vec<_> = PLATFORMS
        .iter()
        .map(|platform| (file(platform), platform_page(rows, pictures, platform)))
        .collect();
    if !rows.here.is_empty() {
        pages.push((HERE.to_owned(), here(rows, pictures)));
    }
    pages
}

fn file(platform: &str) -> String {
    format!("platform-{}.md", platform.to_lowercase())
}

/// Returns a table of all tests with a verdict on each platform.
pub(super) fn contents(rows: &TestRows) -> String {
    let mut columns = vec![Column::numbers("test", ""), Column::words("setting")];
    for platform in PLATFORMS {
        for Column { name, unit, align } in Verdict::columns() {
            columns.push(Column { name: format!("{platform}, {name}"), unit, align });
        }
    }
    let mut table = Table::new(columns);
    for picture in PICTURES {
        let mut cells = vec![picture.test.to_owned(), picture.about.to_owned()];
        for platform in PLATFORMS {
            let link = format!("measuring/{}#test-{}", file(platform), picture.test);
            match verdict(rows, picture, platform) {
                Some(verdict) => {
                    let mut own = verdict.cells();
                    own[0] = format!("[{}]({link})", own[0]);
                    cells.extend(own);
                }
                None => {
                    cells.push(format!("[no published row]({link})"));
                    cells.extend(vec![String::new(); Verdict::columns().len() - 1]);
                }
            }
        }
        table.push(cells);
    }
    table.markdown()
}

fn platform_page(rows: &TestRows, pictures: &BTreeMap<String, Plot>, platform: &str) -> String {
    let mut text = format!(
        "# The fourteen tests on platform {platform}\n\n{}",
        wrapped(&format!(
            "Rows measured with {IO_PACING}, and the simulation of the same. Every measured row \
             counts in a verdict, and the error is that of the simulated value. \
             `cargo xtask plots` writes this page."
        ))
    );
    for picture in PICTURES {
        let verdict = verdict(rows, picture, platform);
        let about = verdict
            .map_or("simulated only".to_owned(), |verdict| format!("simulated {}", verdict.word()));
        let test = picture.test;
        text += &format!("* [Test {test}](#test-{test}), {}: {about}\n", picture.about);
    }
    for picture in PICTURES {
        text += &section(picture);
        if let Some(verdict) = verdict(rows, picture, platform) {
            text += &wrapped(&format!("Verdict: {}", verdict.sentence()));
        } else {
            text += "No row of this test is published, so the simulation stands alone.\n\n";
        }
        text +=
            &shown(picture, pictures, &platform.to_lowercase(), &format!("platform {platform}"));
        let compared = compared(rows, picture, platform);
        if !compared.is_empty() {
            let lead = picture.columns().map(super::RowColumn::column).collect();
            text += &format!("\n{}", comparison_table(lead, &compared).markdown());
        }
    }
    text
}

fn here(rows: &TestRows, pictures: &BTreeMap<String, Plot>) -> String {
    let machines: BTreeSet<_> = rows.here.iter().map(|row| row.platform.as_str()).collect();
    let machines: Vec<_> = machines.into_iter().collect();
    let about = wrapped(&format!(
        "Measured on {}, with the daemon and `nvmeof-perf` on a CPU each over the loopback \
             interface: compare these figures with one another only. `cargo xtask plots` writes \
             this page.",
        machines.join(" and ")
    ));
    // Every section begins with the empty line.
    let mut text = format!("# The tests measured here\n\n{}\n", about.trim_end());
    for picture in PICTURES.iter().filter(|one| rows.here.iter().any(|row| row.test == one.test)) {
        text += &section(picture);
        text += &shown(picture, pictures, "here", "measured here");
    }
    text
}

fn section(picture: &TestPicture) -> String {
    let about = wrapped(&format!("{}. {}", capital(picture.about), picture.detail));
    format!("\n## Test {}\n\n{about}", picture.test)
}

/// Breaks a paragraph into lines of the width of every document.
fn wrapped(text: &str) -> String {
    const WIDTH: usize = 100;
    let mut lines: Vec<String> = Vec::new();
    for word in text.split_whitespace() {
        match lines.last_mut() {
            Some(line) if line.chars().count() + 1 + word.chars().count() <= WIDTH => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines.join("\n") + "\n\n"
}

fn capital(text: &str) -> String {
    let mut letters = text.chars();
    letters.next().map_or_else(String::new, |first| first.to_uppercase().chain(letters).collect())
}

/// Returns the pictures of a test with this suffix.
fn shown(
    picture: &TestPicture,
    pictures: &BTreeMap<String, Plot>,
    suffix: &str,
    machine: &str,
) -> String {
    let start = format!("test-{:0>2}-{suffix}", picture.test);
    let own = pictures.keys().filter(|name| {
        name.strip_prefix(&start).is_some_and(|rest| rest.starts_with('.') || rest.starts_with('-'))
    });
    own.map(|name| format!("![Test {}, {machine}]({name})\n", picture.test)).collect()
}

fn verdict(rows: &TestRows, picture: &TestPicture, platform: &str) -> Option<Verdict> {
    Verdict::of(&compared(rows, picture, platform))
}

/// Returns the conditions of a test on a platform with the results of both.
fn compared(rows: &TestRows, picture: &TestPicture, platform: &str) -> Vec<ComparedRow> {
    let (published, simulated) = rows.of(picture.test, platform);
    let mut groups: Vec<Vec<&ResultRow>> = Vec::new();
    for row in simulated {
        match groups.iter_mut().find(|group| group[0].setting() == row.setting()) {
            Some(group) => group.push(row),
            None => groups.push(vec![row]),
        }
    }
    let compare = |group: &Vec<&ResultRow>| {
        let first = group[0];
        let same = published.iter().filter(|row| row.has_conditions(&first.setting()));
        let measured: Vec<_> = same.filter_map(|row| row.measured()).collect();
        let mean = |of: fn(&ResultRow) -> Option<f64>| mean(group.iter().filter_map(|row| of(row)));
        (!measured.is_empty()).then(|| ComparedRow {
            lead: picture.columns().map(|column| column.cell(first)).collect(),
            measured,
            gbps: mean(|row| row.bw_gbps).unwrap_or_default(),
            latency_us: mean(|row| row.lat_us).unwrap_or_default(),
            hit_pct: mean(|row| row.l3_hit_pct),
        })
    };
    groups.iter().filter_map(compare).collect()
}
