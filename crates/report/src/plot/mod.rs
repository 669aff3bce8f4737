//! Line plots as SVG, readable on light and on dark.
//!
//! | file | content |
//! |---|---|
//! | `draw` | from the data to shapes, with plotters |
//! | `grid` | values over two parameters: as cells with numbers, as a surface |
//! | `picture` | any of them, onto anything that plotters draws on |
//! | `ink` | from plotters' fixed colors to ones that follow the reader's scheme |
//! | `ticks` | positions of axis labels, and number formats |
//!
//! Every point is a marker with the class of its series (`mark s0`, `mark s1`, ...). Every line is
//! one polyline (`line s0`). The elements of a page can therefore be counted.

mod draw;
mod grid;
pub(crate) mod ink;
mod picture;
mod ticks;

pub use grid::Grid;
pub use ink::STYLE;
pub use picture::Picture;
pub(crate) use ticks::number;

/// A plot.
#[derive(Debug, Clone, PartialEq)]
pub struct Plot {
    /// Title above it.
    pub title: String,
    /// Note below the title, smaller: machine, policy, and "simulated" if it is.
    pub note: String,
    /// The horizontal axis.
    pub x: Axis,
    /// The vertical axis.
    pub y: Axis,
    /// Series in the order of the legend. A single one has no legend, unless it has a name.
    pub series: Vec<Series>,
}

/// An axis.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Axis {
    /// Title of the axis.
    pub title: String,
    /// Unit of the axis; empty if it has none.
    pub unit: String,
    /// Logarithmic: every step doubles. Points at zero or below cannot be shown and are omitted.
    pub log2: bool,
    /// Logarithmic with decimal labels: 1, 2, 5, 10 and so on, more of them over a short range.
    /// Otherwise as `log2`.
    pub log10: bool,
    /// The axis starts at zero even if no value is near it.
    pub from_zero: bool,
    /// Names of the values 0, 1, 2, ... instead of numbers; empty for numbers.
    ///
    /// On the horizontal axis, a long name continues below after one of its hyphens or spaces.
    pub names: Vec<String>,
    /// The axis reaches this value even if no value is near it: for plots to compare.
    pub up_to: Option<f64>,
}

impl Axis {
    /// An axis of numbers.
    #[must_use]
    pub fn new(title: &str, unit: &str) -> Self {
        Self { title: title.into(), unit: unit.into(), ..Self::default() }
    }

    /// The axis with steps that double.
    #[must_use]
    pub fn log2(self) -> Self {
        Self { log2: true, ..self }
    }

    /// The logarithmic axis with decimal labels.
    #[must_use]
    pub fn log10(self) -> Self {
        Self { log10: true, ..self }
    }

    /// The axis starting at zero.
    #[must_use]
    pub fn from_zero(self) -> Self {
        Self { from_zero: true, ..self }
    }

    /// The axis reaching a value at least.
    #[must_use]
    pub fn up_to(self, value: f64) -> Self {
        Self { up_to: Some(value), ..self }
    }

    fn label(&self) -> String {
        if self.unit.is_empty() {
            self.title.clone()
        } else {
            format!("{} ({})", self.title, self.unit)
        }
    }
}

/// One line of a plot.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Series {
    /// Name in the legend.
    pub name: String,
    /// Points as measured, in any order; several at one x are several runs.
    ///
    /// Points that are not finite are omitted.
    pub points: Vec<(f64, f64)>,
    /// Shape of the series.
    pub shape: SeriesShape,
}

/// Number of colors: a series whose ink is greater by it has the same color in dashes.
pub const COLORS: usize = ink::COLORS;

/// Shape of a series.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum SeriesShape {
    /// A marker per point, and a line through the mean at each x.
    #[default]
    MarkedLine,
    /// A line alone: for time series.
    Line,
    /// Markers alone: for rows that do not belong to one curve.
    Marks,
    /// A marker per point and a line through the mean at each x, in the color and dashes of this
    /// ink; other shapes have those of their position in the legend.
    Inked(usize),
    /// The area enclosed by the points in order, behind the lines of earlier series: for a band.
    Area,
    /// A bar per point, from zero; bars of several series at one x are side by side.
    Bars,
}

impl SeriesShape {
    fn ink(self, position: usize) -> usize {
        match self {
            Self::Inked(ink) => ink,
            _ => position,
        }
    }

    fn has_line(self) -> bool {
        self != Self::Marks
    }
}

impl Series {
    /// A series shown as a line with markers.
    #[must_use]
    pub fn new(name: &str, points: Vec<(f64, f64)>) -> Self {
        Self { name: name.into(), points, shape: SeriesShape::MarkedLine }
    }
}

impl Plot {
    /// An `<svg>` for a page whose styles include [`STYLE`].
    #[must_use]
    pub fn svg(&self) -> String {
        picture::svg(draw::size(self), &self.title, &self.note, |area| draw::shapes(self, area))
    }

    /// A standalone SVG file, for references from Markdown.
    ///
    /// It contains its styles and its background. Without support for styles, its fixed colors are
    /// those of the light scheme.
    #[must_use]
    pub fn standalone_svg(&self) -> String {
        ink::alone(&self.svg())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plot() -> Plot {
        Plot {
            title: "Bandwidth".into(),
            note: "simulated, platform A".into(),
            x: Axis::new("queue depth per host", "").log2(),
            y: Axis::new("bandwidth", "Gb/s").from_zero(),
            series: vec![
                Series::new("none", vec![(32.0, 184.8), (64.0, 171.0), (2048.0, 142.4)]),
                Series::new("96 buffers", vec![(32.0, 184.8), (64.0, 184.6), (64.0, 184.2)]),
            ],
        }
    }

    fn count(svg: &str, what: &str) -> usize {
        svg.matches(what).count()
    }

    /// Number of corners of the line of a series.
    fn corners(svg: &str, series: usize) -> usize {
        let line = svg.split(&format!("class=\"line s{series} ")).nth(1).unwrap();
        line.split("points=\"")
            .nth(1)
            .unwrap()
            .split('"')
            .next()
            .unwrap()
            .split_whitespace()
            .count()
    }

    #[test]
    fn every_point_is_a_marker_of_its_series() {
        let svg = plot().svg();
        assert_eq!(count(&svg, "class=\"mark s0 "), 3);
        assert_eq!(count(&svg, "class=\"mark s1 "), 3);
        assert_eq!(
            (corners(&svg, 0), corners(&svg, 1)),
            (3, 2),
            "two runs at one x are one corner"
        );
    }

    #[test]
    fn many_series_stay_apart() {
        let series = |n: u32| Series::new(&format!("n{n}"), vec![(1.0, n.into()), (2.0, n.into())]);
        let svg = Plot { series: (0..20).map(series).collect(), ..plot() }.svg();
        for n in 0..20 {
            assert_eq!(count(&svg, &format!("class=\"mark s{n} ")), 2, "series {n}");
            assert!(svg.contains(&format!("n{n}\n")), "series {n} has no legend");
        }
        let dashed = svg.lines().filter(|line| line.contains("stroke-dasharray")).count();
        assert_eq!(dashed, 2 * 12, "each in the plot and in the legend");
    }

    #[test]
    fn shapes() {
        let mut plot = plot();
        plot.series[0].shape = SeriesShape::Line;
        plot.series[1].shape = SeriesShape::Marks;
        let svg = plot.svg();
        assert_eq!((count(&svg, "mark s0 "), count(&svg, "mark s1 ")), (0, 3));
        assert_eq!((count(&svg, "line s0 "), count(&svg, "line s1 ")), (1, 0));
        // The legend shows a line for a line, and a marker for markers.
        let keys = ["class=\"key s0 ", "class=\"key s1 ", "class=\"area-key s1 "];
        assert_eq!(keys.map(|key| count(&svg, key)), [1, 0, 1]);
    }

    /// Left edge and width of the bars of a series.
    fn bars(svg: &str, series: usize) -> Vec<(f64, f64)> {
        let number = |line: &str, name: &str| -> f64 {
            let rest = line.split(&format!(" {name}=\"")).nth(1).unwrap();
            rest.split('"').next().unwrap().parse().unwrap()
        };
        let mark = format!("class=\"mark s{series} ");
        let lines = svg.lines().filter(|line| line.starts_with("<rect") && line.contains(&mark));
        lines.map(|line| (number(line, "x"), number(line, "width"))).collect()
    }

    #[test]
    fn bars_of_one_place_are_side_by_side() {
        let mut plot = plot();
        plot.x = Axis { names: vec!["read".into(), "write".into()], ..Axis::new("mix", "") };
        let series = |name: &str, values: [f64; 2]| Series {
            name: name.into(),
            points: vec![(0.0, values[0]), (1.0, values[1])],
            shape: SeriesShape::Bars,
        };
        plot.series = vec![series("one", [5.0, 7.0]), series("two", [5.0, 7.0])];
        let svg = plot.svg();
        let (one, two) = (bars(&svg, 0), bars(&svg, 1));
        assert_eq!((one.len(), two.len()), (2, 2), "{svg}");
        for at in 0..2 {
            assert!(one[at].0 + one[at].1 <= two[at].0, "{one:?} {two:?}");
        }
        assert!(two[0].0 + two[0].1 < one[1].0, "groups are apart: {one:?} {two:?}");
    }

    #[test]
    fn a_long_name_takes_two_lines_and_an_axis_reaches_what_it_is_told() {
        let mut plot = plot();
        plot.x = Axis { names: vec!["io-uring-polled".into()], ..Axis::new("engine", "") };
        plot.y = plot.y.up_to(400.0);
        plot.series = vec![Series::new("s", vec![(0.0, 100.0)])];
        let svg = plot.svg();
        for text in [">\nio-uring-\n<", ">\npolled\n<", ">\n400\n<"] {
            assert!(svg.contains(text), "{text}: {svg}");
        }
    }

    #[test]
    fn two_series_can_share_a_color() {
        let mut plot = plot();
        plot.series[0].shape = SeriesShape::Inked(3);
        plot.series[1].shape = SeriesShape::Inked(3 + COLORS);
        let svg = plot.svg();
        assert_eq!((count(&svg, "line s3 c3"), count(&svg, "line s11 c3")), (1, 1));
        assert_eq!((count(&svg, "key s3 c3"), count(&svg, "key s11 c3")), (1, 1));
        let dashed = svg.lines().filter(|line| line.contains("stroke-dasharray"));
        assert!(dashed.clone().count() == 2 && dashed.clone().all(|line| line.contains(" s11 ")));
    }

    #[test]
    fn what_cannot_be_shown_is_left_out() {
        let mut plot = plot();
        plot.series[0].points.extend([(0.0, 1.0), (64.0, f64::NAN), (f64::INFINITY, 2.0)]);
        assert_eq!(count(&plot.svg(), "mark s0 "), 3);
        plot.series.clear();
        assert!(plot.svg().contains("no data"));
        plot.series = vec![Series::new("flat", vec![(5.0, 0.0)])];
        assert_eq!(count(&plot.svg(), "mark s0 "), 1);
    }

    #[test]
    fn titles_units_and_names_are_there_and_escaped() {
        let mut plot = plot();
        plot.title = "a < b & c".into();
        plot.series[0].name = "<none>".into();
        let svg = plot.svg();
        for text in ["a &lt; b &amp; c", "&lt;none&gt;", "bandwidth (Gb/s)", "queue depth per host"]
        {
            assert!(svg.contains(text), "{text}: {svg}");
        }
        assert!(svg.contains("simulated, platform A"));
        assert!(!svg.contains("<none>"));
    }

    /// Position of the vertical axis: behind its labels, of any length.
    #[test]
    fn long_labels_have_more_room() {
        let axis = |high: f64| {
            let series = vec![Series::new("s", vec![(1.0, 0.0), (2.0, high)])];
            let svg = Plot { series, ..plot() }.svg();
            let rule = svg.lines().find(|line| line.contains("class=\"rule\"")).unwrap().to_owned();
            rule.split("points=\"")
                .nth(1)
                .unwrap()
                .split(',')
                .next()
                .unwrap()
                .parse::<u32>()
                .unwrap()
        };
        assert_eq!(axis(100.0), axis(500_000.0));
        assert!(axis(9_000_000.0) > axis(500_000.0));
    }

    #[test]
    fn log2_labels_are_powers_of_two() {
        let svg = plot().svg();
        for label in ["32", "64", "128", "256", "512", "1024", "2048"] {
            assert!(svg.contains(&format!(">\n{label}\n<")), "{label}: {svg}");
        }
    }

    #[test]
    fn an_axis_of_names_shows_them() {
        let mut plot = plot();
        plot.x = Axis { names: vec!["read".into(), "write".into()], ..Axis::new("mix", "") };
        plot.series = vec![Series::new("s", vec![(0.0, 1.0), (1.0, 2.0)])];
        let svg = plot.svg();
        assert!(svg.contains("read") && svg.contains("write"), "{svg}");
    }

    #[test]
    fn no_colour_is_fixed_for_a_reader_who_has_styles() {
        let svg = plot().svg();
        for line in svg.lines().filter(|line| line.contains("=\"#")) {
            assert!(line.contains("class=\""), "{line}");
        }
        assert!(!svg.contains("#07"), "a stand-in colour is left: {svg}");
    }

    #[test]
    fn a_file_of_its_own_brings_its_styles_and_asks_for_nothing() {
        let svg = plot().standalone_svg();
        assert!(svg.starts_with("<svg "));
        assert!(svg.trim_end().ends_with("</svg>"));
        assert_eq!(count(&svg, "prefers-color-scheme"), 1);
        assert!(svg.contains("class=\"ground\""));
        let urls = svg.replace("http://www.w3.org/2000/svg", "");
        assert!(!urls.contains("http") && !urls.contains("url(") && !urls.contains("@import"));
    }
}
