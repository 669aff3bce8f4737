//! Comparison of a sweep's page, as a browser shows it, with the results of the sweep.
//!
//! The browser stage of `cargo xtask test` opens the page and stores its DOM.

use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result, ensure};
use nvmeof_console::say;
use nvmeof_report::{Point, sweep};

use crate::points;

#[derive(Debug, clap::Args)]
pub(crate) struct PageTestArgs {
    /// Results of the sweep, written by --json
    #[arg(long, value_name = "FILE")]
    json: PathBuf,
    /// DOM of its page in a browser
    #[arg(long, value_name = "FILE")]
    dom: PathBuf,
}

/// Prints the number of plots, series, points and rows; fails if the page does not show all
/// results.
pub(crate) fn run(args: &PageTestArgs) -> Result<ExitCode> {
    let dom = fs::read_to_string(&args.dom)
        .with_context(|| format!("cannot read {}", args.dom.display()))?;
    say!("{}", matches_results(&dom, &points::read(&args.json)?)?);
    Ok(ExitCode::SUCCESS)
}

/// Compares the browser's page with the results.
fn matches_results(dom: &str, points: &[Point]) -> Result<String> {
    let (figures, over_time) = (sweep::plots(points), sweep::plots_over_time(points));
    let drawn: Vec<&str> = dom.split("<svg").skip(1).collect();
    let wanted = figures.len() + over_time.len();
    ensure!(drawn.len() == wanted, "{} plots are shown, {wanted} are to be", drawn.len());
    let (mut series, mut marks) = (0, 0);
    for (plot, svg) in figures.iter().zip(&drawn) {
        let (own_marks, own_keys) = (count(svg, "mark "), count(svg, "key "));
        // Every result appears once, in every plot of a figure that all results have.
        let shown: usize = plot.series.iter().map(|series| series.points.len()).sum();
        ensure!(own_marks == shown, "{}: {own_marks} of {shown} points", plot.title);
        let keys = if plot.series.len() > 1 { plot.series.len() } else { own_keys };
        ensure!(own_keys == keys, "{}: {own_keys} of {keys} series", plot.title);
        series += plot.series.len();
        marks += own_marks;
    }
    let bandwidth = figures.iter().filter(|plot| plot.title.starts_with("Bandwidth"));
    let own = bandwidth.flat_map(|plot| &plot.series);
    let own = own.filter(|series| !series.name.starts_with(sweep::MEASURED_WITH));
    let bandwidth: usize = own.map(|series| series.points.len()).sum();
    ensure!(bandwidth == points.len(), "{bandwidth} of {} results are in a plot", points.len());
    let results = dom.split(&format!(">{}</h3>", sweep::RESULTS)).nth(1).unwrap_or_default();
    let rows = results.split("<tbody>").nth(1).and_then(|rest| rest.split("</tbody>").next());
    let rows = rows.map_or(0, |body| body.matches("<tr>").count());
    ensure!(rows == points.len(), "the table has {rows} rows for {} results", points.len());
    Ok(format!("{} plots, {series} series, {marks} points, {rows} rows", drawn.len()))
}

/// Counts the elements of a class, which is the first class of its element.
fn count(svg: &str, class: &str) -> usize {
    let own = svg.split("</svg>").next().unwrap_or(svg);
    own.matches(&format!("class=\"{class}")).count()
}
