//! Results of a sweep: one table, the plots that follow from the varied keys, and a page of both.
//!
//! ```text
//! varied keys -> one of them along x, the others name the series   (layout)
//! ```

mod layout;
mod tables;

use std::collections::BTreeSet;

use crate::html::HtmlPage;
use crate::json;
use crate::plot::{Axis, Plot, Series, SeriesShape};
use crate::point::{Point, RunOrigin};

use layout::SweepLayout;
pub use tables::{brief_table, table};

/// Points in one plot over time; more would hide each other.
const TIMES_A_PLOT: usize = 8;
/// Plots over time; the JSON has the rest.
const TIME_PLOTS: usize = 6;

/// One line that describes these results, with "simulated" if they are.
#[must_use]
pub fn heading(points: &[Point]) -> String {
    let plans = distinct(points, |point| point.plan.clone());
    format!("{}: {}", plans.join(", "), provenance(points))
}

/// The brief table under its heading, as Markdown that is readable in a terminal.
#[must_use]
pub fn markdown(points: &[Point]) -> String {
    let table = brief_table(points).markdown();
    let hits: String = hits(points).iter().map(|hits| format!("\n{hits}\n")).collect();
    format!("{}\n\n{table}{hits}", heading(points))
}

/// A plot per figure of these points; several plots if one would have too many series.
#[must_use]
pub fn plots(points: &[Point]) -> Vec<Plot> {
    let layout = SweepLayout::of(points);
    let note = provenance(points);
    let spread = layout.plots(points);
    let known = |figure: &&Figure| points.iter().any(|point| (figure.of)(point).is_some());
    let mut plots = Vec::new();
    for figure in FIGURES.iter().filter(known) {
        for (name, layout, placed) in &spread {
            let title = match name.is_empty() {
                true => figure.title.to_owned(),
                false => format!("{}, {name}", figure.title),
            };
            let y = Axis::new(figure.name, figure.unit).from_zero();
            let series = layout.series(placed, figure.of);
            plots.push(Plot { title, note: note.clone(), x: layout.axis(), y, series });
        }
    }
    plots
}

/// Bandwidth of each point over time, a few points per plot; the first ones if there are many.
#[must_use]
pub fn plots_over_time(points: &[Point]) -> Vec<Plot> {
    let timed: Vec<_> = points.iter().filter(|point| point.series.len() > 1).collect();
    let series = |point: &&Point| Series {
        name: point.label(),
        points: point.series.iter().map(|sample| (sample.t, sample.gbps)).collect(),
        shape: SeriesShape::Line,
    };
    timed
        .chunks(TIMES_A_PLOT)
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

/// The whole result as a page that opens from disk.
///
/// # Errors
/// No point causes one; the type of serde allows for it.
pub fn page(points: &[Point], about: &str) -> serde_json::Result<String> {
    let plans = distinct(points, |point| point.plan.clone()).join(", ");
    let places = distinct(points, |point| point.place.to_string()).join(", ");
    let mut page = HtmlPage::new(&plans, &places);
    if !about.is_empty() {
        page.paragraph(about);
    }
    page.paragraph(&format!("{} points, {}.", points.len(), provenance(points)));
    for machines in distinct(points, |point| point.machines.clone().unwrap_or_default()) {
        if !machines.is_empty() {
            page.paragraph(&format!("Machines: {machines}."));
        }
    }
    hits(points).iter().for_each(|hits| page.paragraph(hits));
    let broken: Vec<_> = points.iter().filter(|point| !point.problems.is_empty()).collect();
    if !broken.is_empty() {
        page.heading("Runs that went wrong");
        for point in broken {
            page.paragraph(&format!("{}: {}", point.label(), point.problems.join("; ")));
        }
    }
    page.heading("Figures");
    page.plots(&plots(points));
    let over_time = plots_over_time(points);
    if !over_time.is_empty() {
        page.heading("Over time");
        let shown: usize = over_time.iter().map(|plot| plot.series.len()).sum();
        if shown < points.len() {
            page.paragraph(&format!("The first {shown} points; the data of the page has all."));
        }
        page.plots(&over_time);
    }
    page.heading("Table");
    page.table(&table(points));
    for (title, parts) in tables::PARTS {
        let table = tables::parts(points, *parts);
        if !table.is_empty() {
            page.folded_table(title, &table);
        }
    }
    let mut lines = String::from("[");
    for point in points {
        let comma = if lines.len() > 1 { "," } else { "" };
        lines.push_str(comma);
        lines.push_str(json::line(point)?.trim_end());
    }
    lines.push(']');
    page.data("results", &lines);
    Ok(page.document())
}

/// A plotted figure.
struct Figure {
    title: &'static str,
    name: &'static str,
    unit: &'static str,
    of: fn(&Point) -> Option<f64>,
}

const FIGURES: &[Figure] = &[
    Figure {
        title: "Bandwidth",
        name: "bandwidth",
        unit: "Gb/s",
        of: |point| Some(point.total.gbps),
    },
    Figure {
        title: "Mean latency",
        name: "latency",
        unit: "us",
        of: |point| Some(point.total.latency_us.mean),
    },
    Figure {
        title: "99th percentile of latency",
        name: "latency",
        unit: "us",
        of: |point| Some(point.total.latency_us.p99),
    },
    Figure {
        title: "LLC hits",
        name: "hits in the last-level cache",
        unit: "%",
        of: |point| point.hit_pct,
    },
    Figure {
        title: "Buffers in flight",
        name: "commands with a buffer, mean",
        unit: "",
        of: |point| point.buffers_mean,
    },
    Figure {
        title: "Steadiness",
        name: "bandwidth, standard deviation",
        unit: "Gb/s",
        of: |point| point.stddev_gbps,
    },
    Figure {
        title: "Fairness",
        name: "Jain's index over flows",
        unit: "",
        of: |point| point.fairness,
    },
];

/// Returns "simulated on platform A", or "measured locally on HOST".
fn provenance(points: &[Point]) -> String {
    let all = distinct(points, |point| match point.place {
        RunOrigin::Simulated => format!("simulated on platform {}", point.platform),
        RunOrigin::Local => format!("measured locally on {}", point.platform),
        RunOrigin::Remote => format!("measured remotely on {}", point.platform),
    });
    all.join(" and ")
}

/// Sources of the cache hits, or the reasons for their absence.
fn hits(points: &[Point]) -> Vec<String> {
    let all = distinct(points, |point| point.hit_from.clone().unwrap_or_default());
    let told = all.into_iter().filter(|from| !from.is_empty());
    told.map(|from| format!("LLC hits: {from}.")).collect()
}

/// Each value once, in the order of the points.
fn distinct(points: &[Point], of: impl Fn(&Point) -> String) -> Vec<String> {
    let mut seen = BTreeSet::new();
    points.iter().map(of).filter(|value| seen.insert(value.clone())).collect()
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
        assert!(markdown(&points).starts_with("test-03: simulated on platform A\n\n| "));
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
