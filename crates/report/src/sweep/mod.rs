//! Results of a sweep: one table, the plots that follow from the varied keys, and a page of both.
//!
//! ```text
//! varied keys -> one of them along x, the others name the series   (layout)
//! published rows -> lines next to those of their points, errors, a verdict   (published)
//! ```

mod layout;
mod published;
mod tables;

use crate::html::HtmlPage;
use crate::json;
use crate::plot::{Axis, COLORS, Plot, Series, SeriesShape};
use crate::point::{Condition, MeasuredRow, Point, RunOrigin};
use crate::table::Table;
use crate::values::distinct;

use layout::SweepLayout;
pub use published::{ComparedRow, Verdict, compared, comparison_table};
pub use tables::{brief_table, table, target_table};

/// Lines that one plot can have; beyond, there are several plots.
pub const MOST_LINES: usize = 8;
/// Plots over time; the JSON has the rest.
const TIME_PLOTS: usize = 6;
/// Distinct values of a part of the block that are all named.
const MOST_VALUES: usize = 12;

/// Results of one plan.
#[derive(Debug, Clone, Copy)]
pub struct PlanResults<'a> {
    /// The points, in the order of the plan.
    pub points: &'a [Point],
    /// Purpose of the plan.
    pub about: &'a str,
}

/// One line that describes these results, with "simulated" if they are.
#[must_use]
pub fn heading(points: &[Point]) -> String {
    format!("{}: {}", plan_names(points).join(", "), provenance(points))
}

fn plan_names(points: &[Point]) -> Vec<&str> {
    distinct(points.iter().map(|point| point.plan.as_str()))
}

/// The conditions of these results: each part once, with all its values.
#[must_use]
pub fn block(points: &[Point]) -> Vec<Condition> {
    let mut block: Vec<(&str, Vec<&str>)> = Vec::new();
    for Condition { name, value } in points.iter().flat_map(|point| &point.conditions) {
        match block.iter_mut().find(|(known, _)| known == name) {
            Some((_, values)) if values.contains(&value.as_str()) => {}
            Some((_, values)) => values.push(value),
            None => block.push((name, vec![value])),
        }
    }
    let part = |(name, mut values): (&str, Vec<&str>)| {
        let number = |value: &str| value.parse::<f64>().unwrap_or(f64::NAN);
        let is_number = values.iter().all(|value| !number(value).is_nan());
        if is_number {
            values.sort_by(|one, other| number(one).total_cmp(&number(other)));
        }
        let separator = if is_number { ", " } else { "; " };
        let text = match values.len() {
            0..=MOST_VALUES => values.join(separator),
            many if is_number => format!("{} to {}, {many} in all", values[0], values[many - 1]),
            many => format!("{many} different, as {} and {}", values[0], values[many - 1]),
        };
        Condition::new(name, text)
    };
    block.into_iter().map(part).collect()
}

/// The block as lines.
#[must_use]
pub fn block_lines(points: &[Point]) -> String {
    block(points).iter().map(|part| format!("* {}: {}\n", part.name, part.value)).collect()
}

/// Heading, block, the brief tables and the verdict, as Markdown that is readable in a terminal.
#[must_use]
pub fn markdown(points: &[Point]) -> String {
    let mut text = format!(
        "{}\n\n{}\n{}",
        heading(points),
        block_lines(points),
        brief_table(points).markdown()
    );
    let hosts = tables::parts(points, |point| &point.hosts);
    if !hosts.is_empty() {
        text += &format!("\nBy host\n\n{}", hosts.markdown());
    }
    if let Some((verdict, table)) = beside_published(points) {
        text +=
            &format!("\nMeasured and simulated: {}\n\n{}", verdict.sentence(), table.markdown());
    }
    text.extend(hits(points).iter().map(|hits| format!("\n{hits}\n")));
    text
}

/// The verdict on each plan, as Markdown; empty for a single plan.
#[must_use]
pub fn markdown_contents(plans: &[PlanResults<'_>]) -> String {
    if plans.len() < 2 {
        return String::new();
    }
    let line = |plan: &PlanResults<'_>| {
        format!("* {}: {}\n", plan_names(plan.points).join(", "), about(plan))
    };
    format!("Contents\n\n{}\n", plans.iter().map(line).collect::<String>())
}

/// Verdict on the published rows of these points, and the table of both.
fn beside_published(points: &[Point]) -> Option<(Verdict, Table)> {
    let keys = tables::keys(points);
    let rows = compared(points, |point| tables::values(point, &keys));
    let verdict = Verdict::of(&rows)?;
    Some((verdict, comparison_table(tables::key_columns(points, &keys), &rows)))
}

/// Returns purpose, place and verdict of a plan in a paragraph.
fn about(plan: &PlanResults<'_>) -> String {
    let rates = plan.points.iter().map(|point| point.total.gbps);
    let (low, high) =
        rates.fold((f64::INFINITY, 0.0_f64), |(low, high), rate| (low.min(rate), high.max(rate)));
    let verdict = match beside_published(plan.points) {
        Some((verdict, _)) => verdict.sentence(),
        None if plan.points.is_empty() => "no points.".to_owned(),
        None => format!("{}, {low:.1} to {high:.1} Gb/s.", provenance(plan.points)),
    };
    format!("{} Verdict: {verdict}", plan.about).trim().to_owned()
}

/// A plot per figure of these points; several plots if one would have too many lines.
#[must_use]
pub fn plots(points: &[Point]) -> Vec<Plot> {
    let layout = SweepLayout::of(points);
    let note = provenance(points);
    // Each line can have a published one.
    let is_beside = points.iter().any(|point| !point.measured.is_empty());
    let spread = layout.plots(points, if is_beside { MOST_LINES / 2 } else { MOST_LINES });
    let known = |figure: &&Figure| points.iter().any(|point| (figure.of)(point).is_some());
    let mut plots = Vec::new();
    for figure in FIGURES.iter().filter(known) {
        for (name, layout, placed) in &spread {
            let title = match name.is_empty() {
                true => figure.title.to_owned(),
                false => format!("{}, {name}", figure.title),
            };
            let y = Axis::new(figure.name, figure.unit).from_zero();
            let own = layout.series(placed, figure.of);
            let published = figure.published.map(|of| layout.published(placed, of));
            let sources: Vec<_> = placed.iter().flat_map(|(_, point)| &point.measured).collect();
            let source = sources.first().map_or("", |row| row.source.as_str());
            let is_simulated = placed.iter().any(|(_, point)| point.place == RunOrigin::Simulated);
            let series = pairs(own, published.unwrap_or_default(), is_simulated, source);
            plots.push(Plot { title, note: note.clone(), x: layout.axis(), y, series });
        }
    }
    plots
}

/// Returns the lines of a plot, each after the published line under the same conditions: the same
/// color, in dashes if it is simulated.
fn pairs(
    own: Vec<Series>,
    mut published: Vec<Series>,
    is_simulated: bool,
    source: &str,
) -> Vec<Series> {
    if published.is_empty() {
        let named = |series: Series| Series { name: origin(is_simulated, &series.name), ..series };
        return own.into_iter().map(named).collect();
    }
    let mut lines = Vec::new();
    for (ink, series) in own.into_iter().enumerate() {
        let beside = published.iter().position(|one| one.name == series.name);
        let dashes = if is_simulated { COLORS } else { 0 };
        if let Some(at) = beside {
            let measured = published.swap_remove(at);
            let name = with_prefix(&format!("{MEASURED_WITH} {source}"), &measured.name);
            lines.push(Series { name, shape: SeriesShape::Inked(ink), ..measured });
        }
        let name = origin(is_simulated, &series.name);
        lines.push(Series { name, shape: SeriesShape::Inked(ink + dashes), ..series });
    }
    lines
}

/// First words of the names of published lines.
pub const MEASURED_WITH: &str = "measured with";

/// Returns the name of a line of results, with "simulated" if they are.
fn origin(is_simulated: bool, name: &str) -> String {
    if is_simulated { with_prefix("simulated", name) } else { name.to_owned() }
}

fn with_prefix(prefix: &str, name: &str) -> String {
    if name.is_empty() { prefix.to_owned() } else { format!("{prefix}: {name}") }
}

/// Bandwidth of each point over time, a few points per plot; the first ones if there are many.
#[must_use]
pub fn plots_over_time(points: &[Point]) -> Vec<Plot> {
    let timed: Vec<_> = points.iter().filter(|point| point.series.len() > 1).collect();
    let series = |point: &&Point| Series {
        name: origin(point.place == RunOrigin::Simulated, &point.label()),
        points: point.series.iter().map(|sample| (sample.t, sample.gbps)).collect(),
        shape: SeriesShape::Line,
    };
    timed
        .chunks(MOST_LINES)
        .take(TIME_PLOTS)
        .map(|chunk| Plot {
            title: "Bandwidth over time".into(),
            note: provenance(points),
            x: Axis::new("time", "s"),
            y: Axis::new("bandwidth", "Gb/s").from_zero(),
            series: chunk.iter().map(series).collect(),
        })
        .collect()
}

/// The results of one plan as a page that opens from disk.
///
/// # Errors
/// No point causes one; the type of serde allows for it.
pub fn page(points: &[Point], about: &str) -> serde_json::Result<String> {
    overview(&[PlanResults { points, about }])
}

/// The results of several plans as a page, with a table of contents and a verdict on each plan.
///
/// # Errors
/// See [`page`].
pub fn overview(plans: &[PlanResults<'_>]) -> serde_json::Result<String> {
    let all: Vec<Point> = plans.iter().flat_map(|plan| plan.points).cloned().collect();
    let names = plan_names(&all);
    let title = match names.len() {
        0..=3 => names.join(", "),
        many => format!("{many} plans"),
    };
    let origins = distinct(all.iter().map(|point| point.place.to_string()));
    let mut page = HtmlPage::new(&title, &origins.join(", "));
    page.block(&block(&all));
    if let [plan] = plans {
        section(&mut page, plan);
    } else {
        let id = |at: usize| format!("plan-{}", at + 1);
        let named = |plan: &PlanResults<'_>| plan_names(plan.points).join(", ");
        page.heading("Contents");
        let contents = plans.iter().enumerate();
        let contents = contents.map(|(at, plan)| (id(at), named(plan), about(plan)));
        page.contents(&contents.collect::<Vec<_>>());
        for (at, plan) in plans.iter().enumerate() {
            page.section(&id(at), &named(plan));
            page.block(&block(plan.points));
            section(&mut page, plan);
        }
    }
    let mut lines = String::from("[");
    for point in &all {
        let comma = if lines.len() > 1 { "," } else { "" };
        lines.push_str(comma);
        lines.push_str(json::line(point)?.trim_end());
    }
    lines.push(']');
    page.data("results", &lines);
    Ok(page.document())
}

/// Adds everything about a plan but the block.
fn section(page: &mut HtmlPage, plan: &PlanResults<'_>) {
    let points = plan.points;
    if !plan.about.is_empty() {
        page.paragraph(plan.about);
    }
    page.paragraph(&format!("{} points, {}.", points.len(), provenance(points)));
    for machines in distinct(points.iter().filter_map(|point| point.machines.as_deref())) {
        if !machines.is_empty() {
            page.paragraph(&format!("Machines: {machines}."));
        }
    }
    hits(points).iter().for_each(|hits| page.paragraph(hits));
    let broken: Vec<_> = points.iter().filter(|point| !point.problems.is_empty()).collect();
    if !broken.is_empty() {
        page.subheading("Runs that went wrong");
        for point in broken {
            page.paragraph(&format!("{}: {}", point.label(), point.problems.join("; ")));
        }
    }
    let beside = beside_published(points);
    if let Some((verdict, _)) = &beside {
        page.paragraph(&format!("Verdict: {}", verdict.sentence()));
    }
    page.subheading("Figures");
    page.plots(&plots(points));
    if let Some((_, table)) = &beside {
        page.subheading("Measured and simulated");
        page.table(table);
    }
    let over_time = plots_over_time(points);
    if !over_time.is_empty() {
        page.subheading("Over time");
        let shown: usize = over_time.iter().map(|plot| plot.series.len()).sum();
        if shown < points.len() {
            page.paragraph(&format!("The first {shown} points; the data of the page has all."));
        }
        page.plots(&over_time);
    }
    page.subheading(RESULTS);
    page.table(&table(points));
    page.subheading("Target");
    page.table(&target_table(points));
    for (title, parts) in tables::PARTS {
        let table = tables::parts(points, *parts);
        if !table.is_empty() {
            page.folded_table(title, &table);
        }
    }
}

/// Heading of the table of results.
pub const RESULTS: &str = "Results";

/// A plotted figure.
struct Figure {
    title: &'static str,
    name: &'static str,
    unit: &'static str,
    of: fn(&Point) -> Option<f64>,
    /// The same of a published row.
    published: Option<fn(&MeasuredRow) -> Option<f64>>,
}

const FIGURES: &[Figure] = &[
    Figure {
        title: "Bandwidth",
        name: "bandwidth",
        unit: "Gb/s",
        of: |point| Some(point.total.gbps),
        published: Some(|row| Some(row.gbps)),
    },
    Figure {
        title: "Mean latency",
        name: "latency",
        unit: "us",
        of: |point| Some(point.total.latency_us.mean),
        published: Some(|row| row.latency_us),
    },
    Figure {
        title: "99th percentile of latency",
        name: "latency",
        unit: "us",
        of: |point| Some(point.total.latency_us.p99),
        published: None,
    },
    Figure {
        title: "LLC hits",
        name: "hits in the last-level cache",
        unit: "%",
        of: |point| point.hit_pct,
        published: Some(|row| row.hit_pct),
    },
    Figure {
        title: "Buffers in flight",
        name: "commands with a buffer, mean",
        unit: "",
        of: |point| point.buffers_mean,
        published: Some(|row| row.buffers),
    },
    Figure {
        title: "Steadiness",
        name: "bandwidth, standard deviation",
        unit: "Gb/s",
        of: |point| point.stddev_gbps,
        published: Some(|row| row.stddev_gbps),
    },
    Figure {
        title: "Fairness",
        name: "Jain's index over flows",
        unit: "",
        of: |point| point.fairness,
        published: None,
    },
];

/// Returns "simulated on platform A", or "measured locally on HOST".
fn provenance(points: &[Point]) -> String {
    let all = distinct(points.iter().map(|point| match point.place {
        RunOrigin::Simulated => format!("simulated on platform {}", point.platform),
        RunOrigin::Local => format!("measured locally on {}", point.platform),
        RunOrigin::Remote => format!("measured remotely on {}", point.platform),
    }));
    all.join(" and ")
}

/// Sources of the cache hits, or the reasons for their absence.
fn hits(points: &[Point]) -> Vec<String> {
    let all = distinct(points.iter().filter_map(|point| point.hit_from.as_deref()));
    let told = all.into_iter().filter(|from| !from.is_empty());
    told.map(|from| format!("LLC hits: {from}.")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::point::tests::point;

    fn points() -> Vec<Point> {
        ["none", "adaptive"]
            .iter()
            .flat_map(|policy| [32, 64, 2048].map(|depth| point(depth, policy)))
            .collect()
    }

    #[test]
    fn every_output_says_simulated() {
        let points = points();
        assert_eq!(heading(&points), "test-03: simulated on platform A");
        let text = markdown(&points);
        let block = "test-03: simulated on platform A\n\n* load: random reads\n* queue depth: 32, ";
        assert!(text.starts_with(block), "{text}");
        assert!(text.contains("\nBy host\n\n| where     | policy"), "{text}");
        assert!(text.contains("| simulated | none     |          32 | host 2 |"), "{text}");
        assert!(plots(&points).iter().all(|plot| plot.svg().contains("simulated")));
        assert!(plots_over_time(&points).iter().all(|plot| plot.svg().contains("simulated")));
        assert!(page(&points, "").unwrap().contains("<span class=\"mark-where\">simulated</span>"));
    }

    #[test]
    fn the_plots_show_every_point_once() {
        let points = points();
        let plots = plots(&points);
        assert_eq!(plots.len(), FIGURES.len());
        for plot in &plots {
            assert_eq!(plot.series.len(), 2, "{}", plot.title);
            let shown: usize = plot.series.iter().map(|series| series.points.len()).sum();
            assert_eq!(shown, points.len(), "{}", plot.title);
            assert_eq!(plot.svg().matches("class=\"mark ").count(), points.len(), "{}", plot.title);
        }
        let over_time = plots_over_time(&points);
        assert_eq!(over_time.len(), 1);
        assert_eq!(over_time[0].series.len(), points.len());
        assert!(over_time[0].series.iter().all(|series| series.points.len() == 2));
    }

    #[test]
    fn simulated_and_published_lines_are_told_apart_and_never_too_many() {
        let mut points = points();
        let row = published::tests::row(170.0, None);
        for policy in ["a", "b", "c", "d", "e"] {
            points.extend([32, 64].map(|depth| point(depth, policy)));
        }
        points[0].measured = vec![row];
        for plot in plots(&points) {
            assert!(plot.series.len() <= MOST_LINES, "{}: {}", plot.title, plot.series.len());
            for series in &plot.series {
                let is_known = ["simulated: ", "measured with Mellanox SPDK io_pacing: "];
                assert!(
                    is_known.iter().any(|start| series.name.starts_with(start)),
                    "{}",
                    series.name
                );
            }
        }
        let bandwidth = &plots(&points)[0];
        let names: Vec<_> = bandwidth.series.iter().map(|series| series.name.as_str()).collect();
        let first = ["measured with Mellanox SPDK io_pacing: none", "simulated: none"];
        assert_eq!(names[..2], first);
        let inks: Vec<_> = bandwidth.series.iter().map(|series| series.shape).take(3).collect();
        let wanted = [0, COLORS, COLORS + 1].map(SeriesShape::Inked);
        assert_eq!(inks, wanted, "the simulated line in dashes of the same color");
        assert!(plots_over_time(&points).iter().all(|plot| plot.series.len() <= MOST_LINES));
    }

    #[test]
    fn the_block_names_every_value_once_and_counts_many() {
        let points: Vec<Point> = (0..20).rev().map(|at| point(1 << (at % 14), "none")).collect();
        let parts: Vec<_> = block(&points).into_iter().map(|part| part.value).collect();
        assert_eq!(parts, ["random reads", "1 to 8192, 14 in all"]);
        assert_eq!(block_lines(&points[..2]), "* load: random reads\n* queue depth: 16, 32\n");
    }

    #[test]
    fn several_plans_have_contents_with_a_verdict_each() {
        let mut first = points();
        first.iter_mut().for_each(|point| {
            point.measured = vec![published::tests::row(184.8, Some(99.0))];
        });
        let second: Vec<_> =
            points().into_iter().map(|point| Point { plan: "mine".into(), ..point }).collect();
        let plans = [
            PlanResults { points: &first, about: "The first." },
            PlanResults { points: &second, about: "" },
        ];
        let html = overview(&plans).unwrap();
        assert!(html.contains("<a href=\"#plan-1\">test-03</a>"), "{html}");
        assert!(html.contains("<h2 id=\"plan-2\">mine</h2>"));
        assert!(html.contains("The first. Verdict: simulated agrees: 184.8 Gb/s simulated"));
        assert!(html.contains("Verdict: simulated on platform A, 184.8 to 184.8 Gb/s."));
        assert_eq!(html.matches("<dl class=\"block\">").count(), 3);
        let text = markdown_contents(&plans);
        assert!(text.contains("* test-03: The first. Verdict: simulated agrees"), "{text}");
        assert_eq!(markdown_contents(&plans[..1]), "");
        assert!(markdown(&first).contains("Measured and simulated: simulated agrees"));
    }

    #[test]
    fn a_figure_that_nobody_has_is_not_plotted() {
        let mut points = points();
        for point in &mut points {
            point.hit_pct = None;
        }
        assert!(plots(&points).iter().all(|plot| plot.title != "LLC hits"));
        points[1].hit_pct = Some(50.0);
        let plots = plots(&points);
        let hits = plots.iter().find(|plot| plot.title == "LLC hits").unwrap();
        assert_eq!(hits.svg().matches("class=\"mark ").count(), 1);
    }

    #[test]
    fn the_page_asks_for_nothing_from_outside() {
        let html = page(&points(), "about").unwrap();
        let inside = html.replace("http://www.w3.org/2000/svg", "");
        for outside in ["http:", "https:", "//", "url(", "@import", " src=", "<link rel=\"style"] {
            assert!(!inside.contains(outside), "{outside}");
        }
        assert!(html.contains("prefers-color-scheme:dark"));
    }

    #[test]
    fn the_page_carries_its_data() {
        let points = points();
        let html = page(&points, "").unwrap();
        let data = html.split("id=\"results\">").nth(1).unwrap().split("</script>").next().unwrap();
        let data: serde_json::Value = serde_json::from_str(data).unwrap();
        assert_eq!(data.as_array().unwrap().len(), points.len());
        let marks = html.matches("class=\"mark ").count();
        assert_eq!(marks, points.len() * FIGURES.len());
    }

    #[test]
    fn what_went_wrong_stands_on_the_page() {
        let mut points = points();
        points[2].problems.push("a permit was lost".into());
        let html = page(&points, "").unwrap();
        assert!(html.contains("none, queue-depth 2048: a permit was lost"));
    }

    #[test]
    fn nothing_makes_a_page_too() {
        assert!(page(&[], "").unwrap().contains("0 points"));
        assert!(plots_over_time(&[]).is_empty());
    }
}
