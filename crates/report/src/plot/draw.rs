//! Draws the shapes of a plot from its data.

use std::collections::BTreeMap;
use std::error::Error;
use std::ops::Range;

use plotters::coord::Shift;
use plotters::coord::ranged1d::{KeyPointHint, NoDefaultFormatting, ValueFormatter};
use plotters::coord::types::RangedCoordf64;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use super::ticks::AxisScale;
use super::{Plot, Series, SeriesShape, ink};
use crate::values::whole;

pub(super) const WIDTH: u32 = 760;
/// Height of the plot with its axes.
const HEIGHT: u32 = 360;
/// Height of the title and the note.
pub(super) const HEAD: u32 = 58;
/// Height of a row of the legend.
const ROW: u32 = 22;
const FONT: &str = "system-ui, sans-serif";
/// Factor by which plotters makes fonts larger than SVG does.
const POINTS: f64 = 1.24;
/// Approximate width of a character of the legend.
const CHARACTER: u32 = 7;
/// Width of the line before a name in the legend.
const KEY: u32 = 30;

pub(super) type PlotArea<B> = DrawingArea<B, Shift>;
pub(super) type DrawResult = Result<(), Box<dyn Error>>;

/// Width and height of a plot in pixels.
pub(super) fn size(plot: &Plot) -> (u32, u32) {
    let rows = legend_rows(&plot.series).len();
    let legend = u32::try_from(rows).unwrap_or(u32::MAX).saturating_mul(ROW);
    (WIDTH, (HEAD + HEIGHT).saturating_add(legend + 12))
}

/// Draws a plot in placeholder colors.
pub(super) fn shapes<B: DrawingBackend>(plot: &Plot, area: &PlotArea<B>) -> DrawResult
where
    B::ErrorType: 'static,
{
    head(&plot.title, &plot.note, area)?;
    let (_, rest) = area.split_vertically(HEAD);
    let (chart, legend) = rest.split_vertically(HEIGHT);
    axes(plot, &chart)?;
    for (row, entries) in legend_rows(&plot.series).iter().enumerate() {
        let y = i32::try_from(row).unwrap_or(0) * ROW.cast_signed() + 14;
        for (series, x) in entries {
            let x = x.cast_signed();
            let (left, right) = (x, x + KEY.cast_signed() - 8);
            let corners = [(left, y - 6), (right, y + 6)];
            let shape = plot.series[*series].shape;
            let of_series = shape.ink(*series);
            if shape == SeriesShape::Area {
                legend.draw(&Rectangle::new(corners, ink::area_key(of_series).filled()))?;
            } else if shape == SeriesShape::Bars {
                legend.draw(&Rectangle::new(corners, ink::bar_key(of_series).filled()))?;
            } else if shape == SeriesShape::Marks {
                let middle = ((left + right) / 2, y);
                legend.draw(&Circle::new(middle, 3, ink::bar_key(of_series).filled()))?;
            } else {
                let line = ink::key(of_series).stroke_width(2);
                legend.draw(&PathElement::new([(left, y), (right, y)], line))?;
            }
            let text = style(13.0, &ink::INK).pos(Pos::new(HPos::Left, VPos::Center));
            legend.draw_text(&plot.series[*series].name, &text, (x + KEY.cast_signed(), y))?;
        }
    }
    area.present()?;
    Ok(())
}

/// The title and the note of a picture.
pub(super) fn head<B: DrawingBackend>(title: &str, note: &str, area: &PlotArea<B>) -> DrawResult
where
    B::ErrorType: 'static,
{
    area.draw_text(title, &style(17.0, &ink::INK), (14, 10))?;
    area.draw_text(note, &style(13.0, &ink::SOFT), (14, 34))?;
    Ok(())
}

fn axes<B: DrawingBackend>(plot: &Plot, area: &PlotArea<B>) -> DrawResult
where
    B::ErrorType: 'static,
{
    let values = || plot.series.iter().flat_map(|series| &series.points);
    let finite = |value: &f64| value.is_finite();
    let x = AxisScale::over(&plot.x, values().map(|point| point.0).filter(finite));
    let y = AxisScale::over(&plot.y, values().map(|point| point.1).filter(finite));
    let mut chart = ChartBuilder::on(area)
        .margin_left(12)
        .margin_right(24)
        .margin_top(6)
        .set_label_area_size(LabelAreaPosition::Left, beside(&y))
        .set_label_area_size(LabelAreaPosition::Bottom, 52)
        .build_cartesian_2d(x.clone(), y.clone())?;
    // Only long names take more than one line.
    let is_named = plot.x.names.iter().any(|name| name.len() > NAME);
    let no_label: &dyn Fn(&f64) -> String = &|_| String::new();
    let x_label: &dyn Fn(&f64) -> String = &|place| x.label(*place);
    chart
        .configure_mesh()
        .x_label_formatter(if is_named { no_label } else { x_label })
        .x_labels(x.labels.len().max(1))
        .y_labels(y.labels.len().max(1))
        .x_desc(plot.x.label())
        .y_desc(plot.y.label())
        .axis_desc_style(style(13.0, &ink::INK))
        .label_style(style(12.0, &ink::SOFT))
        .axis_style(ink::SOFT)
        .bold_line_style(ink::GRID)
        .light_line_style(TRANSPARENT)
        .draw()?;
    if is_named {
        // Pixels of the chart count from the corner of the picture.
        let (columns, rows) = area.get_pixel_range();
        for place in &x.labels {
            let at = chart.backend_coord(&(*place, y.ends.0));
            let corner = (at.0 - columns.start, at.1 - rows.start);
            name_below(&x.label(*place), corner, area)?;
        }
    }
    if !all_series(plot, &mut chart, (&x, &y))? {
        let text = style(14.0, &ink::SOFT).pos(Pos::new(HPos::Center, VPos::Center));
        area.draw_text("no data", &text, (WIDTH.cast_signed() / 2, HEIGHT.cast_signed() / 2))?;
    }
    Ok(())
}

type Chart<'a, B> = ChartContext<'a, B, Cartesian2d<AxisScale, AxisScale>>;

/// Draws the series; returns false if there is no point.
fn all_series<B: DrawingBackend>(
    plot: &Plot,
    chart: &mut Chart<'_, B>,
    (x, y): (&AxisScale, &AxisScale),
) -> Result<bool, Box<dyn Error>>
where
    B::ErrorType: 'static,
{
    let mut empty = true;
    let bars: Vec<usize> = places_of(plot, SeriesShape::Bars);
    // The first series of the legend is drawn on top.
    for (position, series) in plot.series.iter().enumerate().rev() {
        let places: Vec<_> = series
            .points
            .iter()
            .filter_map(|point| Some((x.place(point.0)?, y.place(point.1)?)))
            .collect();
        empty &= places.is_empty();
        let of_series = series.shape.ink(position);
        if series.shape == SeriesShape::Area {
            let area = Polygon::new(places, ink::area(of_series).filled());
            chart.draw_series([area])?;
            continue;
        }
        let colour = ink::series(of_series);
        if let Some(number) = bars.iter().position(|at| *at == position) {
            let (left, right) = slot(number, bars.len());
            let bar = |(x, y): &(f64, f64)| {
                Rectangle::new([(x + left, 0.0), (x + right, *y)], colour.filled())
            };
            chart.draw_series(places.iter().map(bar))?;
            continue;
        }
        if series.shape.has_line() && !places.is_empty() {
            let line = PathElement::new(means(&places), colour.stroke_width(2));
            chart.draw_series([line])?;
        }
        if series.shape != SeriesShape::Line {
            chart.draw_series(places.iter().map(|at| Circle::new(*at, 3, colour.filled())))?;
        }
    }
    Ok(!empty)
}

/// Indices of the series of a shape.
fn places_of(plot: &Plot, shape: SeriesShape) -> Vec<usize> {
    (0..plot.series.len()).filter(|index| plot.series[*index].shape == shape).collect()
}

/// Part of the distance between two positions that the bars of a position share.
const BARS: f64 = 0.8;
/// Part of its slot that a bar fills.
const BAR: f64 = 0.9;

/// Left and right edge of bar `number` of `count`, relative to its position.
fn slot(number: usize, count: usize) -> (f64, f64) {
    let [number, count] = [number, count].map(whole);
    let left = BARS * (number / count - 0.5);
    (left, left + BAR * BARS / count)
}

/// Characters of a name that fit between its neighbors.
const NAME: usize = 11;

/// Writes a name below an axis, in lines.
fn name_below<B: DrawingBackend>(name: &str, (x, y): (i32, i32), area: &PlotArea<B>) -> DrawResult
where
    B::ErrorType: 'static,
{
    let text = style(12.0, &ink::SOFT).pos(Pos::new(HPos::Center, VPos::Top));
    let mut line = String::new();
    let mut lines = Vec::new();
    for word in name.split_inclusive(['-', ' ']) {
        if !line.is_empty() && line.len() + word.trim_end().len() > NAME {
            lines.push(std::mem::take(&mut line));
        }
        line.push_str(word);
    }
    lines.push(line);
    for (row, line) in (0..).zip(&lines) {
        area.draw_text(line.trim_end(), &text, (x, y + 8 + 14 * row))?;
    }
    Ok(())
}

/// Space on the left for the labels of an axis and its title, which must not overlap.
fn beside(y: &AxisScale) -> u32 {
    let longest = y.labels.iter().map(|place| y.label(*place).chars().count()).max().unwrap_or(0);
    let longest = u32::try_from(longest).unwrap_or(0);
    (20 + 8 * longest).clamp(68, WIDTH / 2)
}

impl Ranged for AxisScale {
    type FormatOption = NoDefaultFormatting;
    type ValueType = f64;

    fn map(&self, value: &f64, limit: (i32, i32)) -> i32 {
        RangedCoordf64::from(self.range()).map(value, limit)
    }

    fn key_points<Hint: KeyPointHint>(&self, _: Hint) -> Vec<f64> {
        self.labels.clone()
    }

    fn range(&self) -> Range<f64> {
        self.ends.0..self.ends.1
    }
}

impl ValueFormatter<f64> for AxisScale {
    fn format_ext(&self, place: &f64) -> String {
        self.label(*place)
    }
}

/// Mean of all values at each position, from left to right.
fn means(places: &[(f64, f64)]) -> Vec<(f64, f64)> {
    let mut at: BTreeMap<u64, (f64, Vec<f64>)> = BTreeMap::new();
    for (x, y) in places {
        // Orders floats by their bits, with inverted bits for negative ones.
        let bits = x.to_bits();
        let order = if x.is_sign_negative() { !bits } else { bits | 1 << 63 };
        at.entry(order).or_insert((*x, Vec::new())).1.push(*y);
    }
    let mean = |values: &[f64]| values.iter().sum::<f64>() / whole(values.len());
    at.into_values().map(|(x, values)| (x, mean(&values))).collect()
}

/// Series of each row of the legend, with their distances from the left.
fn legend_rows(series: &[Series]) -> Vec<Vec<(usize, u32)>> {
    let mut rows: Vec<Vec<(usize, u32)>> = Vec::new();
    let mut end = WIDTH;
    for (index, series) in series.iter().enumerate().filter(|(_, series)| !series.name.is_empty()) {
        let length = u32::try_from(series.name.chars().count()).unwrap_or(WIDTH).min(WIDTH);
        let width = KEY + length * CHARACTER + 18;
        if end + width > WIDTH {
            rows.push(Vec::new());
            end = 14;
        }
        if let Some(row) = rows.last_mut() {
            row.push((index, end));
        }
        end += width;
    }
    rows
}

pub(super) fn style(size: f64, colour: &RGBColor) -> TextStyle<'static> {
    (FONT, size * POINTS).into_font().color(colour)
}
