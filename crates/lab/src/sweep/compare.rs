//! `cargo xtask sweep --compare A B`.

use std::path::Path;
use std::process::ExitCode;

use anyhow::{Result, bail, ensure};
use nvmeof_console::show;
use nvmeof_report::compare::{Comparison, Significance, compare};
use nvmeof_report::{HtmlPage, Point, sweep};

use super::SweepArgs;
use crate::{output, points};

pub(super) fn run(args: &SweepArgs) -> Result<ExitCode> {
    let [before, after] = &args.compare[..] else { bail!("--compare takes two files") };
    let (first, second) = (read(before)?, read(after)?);
    let comparison = compare(&first, &second);
    ensure!(
        !comparison.differences.is_empty(),
        "{} and {} have no point in common: they are of other plans, or varied other keys",
        before.display(),
        after.display()
    );
    let table = comparison.table([&name(before), &name(after)]);
    let heading = format!("{} against {}", sweep::heading(&second), sweep::heading(&first));
    let summary = summary(&comparison);
    let both: Vec<Point> = first.iter().chain(&second).cloned().collect();
    let block = sweep::block_lines(&both);
    show(format_args!("{heading}\n\n{block}\n{}\n{summary}\n", table.markdown()));
    if let Some(file) = &args.html {
        let mut page = HtmlPage::new("Comparison", "");
        page.block(&sweep::block(&both));
        page.paragraph(&heading);
        page.paragraph(&summary);
        page.table(&table);
        output::write(file, &page.document())?;
    }
    Ok(ExitCode::SUCCESS)
}

fn read(file: &Path) -> Result<Vec<Point>> {
    let points = points::read(file)?;
    ensure!(!points.is_empty(), "{}: there are no results in it", file.display());
    Ok(points)
}

/// Returns the name of a column.
fn name(file: &Path) -> String {
    file.with_extension("").display().to_string()
}

fn summary(comparison: &Comparison) -> String {
    let mut text = format!(
        "{} better, {} worse, {} without a difference (95 %), {} with one run only.",
        comparison.count(Significance::Better),
        comparison.count(Significance::Worse),
        comparison.count(Significance::Same),
        comparison.count(Significance::Unknown),
    );
    if comparison.count(Significance::Unknown) > 0 {
        text += " Repeat points with load.repeat to tell a difference from chance.";
    }
    for (which, points) in [("first", &comparison.only_before), ("second", &comparison.only_after)]
    {
        if !points.is_empty() {
            text += &format!(" Only the {which} has: {}.", points.join("; "));
        }
    }
    text
}
