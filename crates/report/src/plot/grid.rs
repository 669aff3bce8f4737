//! A grid of values over two parameters.

use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use super::draw::{DrawResult, HEAD, PlotArea, WIDTH, head, style};
use super::ticks::AxisScale;
use super::{Axis, ink, number};
use crate::values::whole;

/// Height of a row of cells.
const CELL: u32 = 38;
/// Width of the row names, left of the cells.
const LEFT: u32 = 150;
const RIGHT: u32 = 24;
/// Height of the column names and their title, below the cells.
const BELOW: u32 = 58;

/// Width and height of a surface, with its title.
pub(super) const SURFACE_SIZE: (u32, u32) = (WIDTH, HEAD + 400);
/// Position of the nearest corner of a surface.
const CORNER: (f64, f64) = (360.0, 408.0);
/// Extent from there along the columns, and along the rows.
const ALONG_COLUMNS: (f64, f64) = (290.0, -82.0);
const ALONG_ROWS: (f64, f64) = (-250.0, -104.0);
/// Height of the largest value.
const PEAK: f64 = 170.0;

/// A grid of values over two parameters with names; values are in rows.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Grid {
    /// Title above it.
    pub title: String,
    /// Note below the title, smaller: the meaning and unit of the figures.
    pub note: String,
    /// Title of the columns.
    pub x: String,
    /// Names of the columns.
    pub columns: Vec<String>,
    /// Title of the rows.
    pub y: String,
    /// Names of the rows.
    pub rows: Vec<String>,
    /// Values by row and column; `None` without a measurement.
    pub values: Vec<Vec<Option<f64>>>,
}

impl Grid {
    fn value(&self, row: usize, column: usize) -> Option<f64> {
        let value = self.values.get(row)?.get(column).copied().flatten();
        value.filter(|value| value.is_finite())
    }

    fn most(&self) -> f64 {
        self.values
            .iter()
            .flatten()
            .flatten()
            .copied()
            .filter(|v| v.is_finite())
            .fold(0.0, f64::max)
    }
}

/// Width and height of the cells with title and names, in pixels.
pub(super) fn cells_size(grid: &Grid) -> (u32, u32) {
    let rows = u32::try_from(grid.rows.len()).unwrap_or(u32::MAX);
    (WIDTH, (HEAD + BELOW).saturating_add(rows.saturating_mul(CELL)))
}

/// Draws cells with numbers.
///
/// The shade follows the logarithm, because figures of block sizes differ by powers.
pub(super) fn cells<B: DrawingBackend>(grid: &Grid, area: &PlotArea<B>) -> DrawResult
where
    B::ErrorType: 'static,
{
    head(&grid.title, &grid.note, area)?;
    let columns = u32::try_from(grid.columns.len()).unwrap_or(u32::MAX).max(1);
    let wide = ((WIDTH - LEFT - RIGHT) / columns).max(1).cast_signed();
    let high = CELL.cast_signed();
    let (left, top) = (LEFT.cast_signed(), HEAD.cast_signed());
    let middle = |h, v| Pos::new(h, v);
    let values = || grid.values.iter().flatten().flatten().copied().filter(|v| *v > 0.0);
    let ends = values().fold((f64::INFINITY, 0.0_f64), |(low, high), v| (low.min(v), high.max(v)));
    let mut y = top;
    for (row, name) in grid.rows.iter().enumerate() {
        let text = style(12.0, &ink::SOFT).pos(middle(HPos::Right, VPos::Center));
        area.draw_text(name, &text, (left - 8, y + high / 2))?;
        let mut x = left;
        for column in 0..grid.columns.len() {
            let value = grid.value(row, column);
            let shade = ink::heat(value.map_or(0.0, |value| shade(value, ends)));
            let corners = [(x + 1, y + 1), (x + wide - 1, y + high - 1)];
            area.draw(&Rectangle::new(corners, shade.filled()))?;
            let text = value.map_or_else(|| "-".into(), number);
            let look = style(12.0, &ink::INK).pos(middle(HPos::Center, VPos::Center));
            area.draw_text(&text, &look, (x + wide / 2, y + high / 2))?;
            x += wide;
        }
        y += high;
    }
    let mut x = left;
    let text = style(12.0, &ink::SOFT).pos(middle(HPos::Center, VPos::Top));
    for name in &grid.columns {
        area.draw_text(name, &text, (x + wide / 2, y + 8))?;
        x += wide;
    }
    let text = style(13.0, &ink::INK).pos(middle(HPos::Center, VPos::Top));
    area.draw_text(&grid.x, &text, ((left + x) / 2, y + 30))?;
    let text = style(13.0, &ink::INK).pos(middle(HPos::Left, VPos::Top));
    area.draw_text(&grid.y, &text, (14, y + 8))?;
    area.present()?;
    Ok(())
}

/// Darkness of a value between the minimum and the maximum, 0 to 1.
fn shade(value: f64, (low, high): (f64, f64)) -> f64 {
    if value <= 0.0 {
        return 0.0;
    }
    let span = (high / low).ln();
    if span > 0.0 { (value / low).ln() / span } else { 1.0 }
}

/// Draws a surface seen from above its nearest corner; the farthest parts are drawn first.
pub(super) fn surface<B: DrawingBackend>(grid: &Grid, area: &PlotArea<B>) -> DrawResult
where
    B::ErrorType: 'static,
{
    head(&grid.title, &grid.note, area)?;
    let (rows, columns) = (grid.rows.len(), grid.columns.len());
    let most = grid.most();
    let view = View { steps: (columns.max(2) - 1, rows.max(2) - 1), most };
    for (row, column) in far_to_near(rows, columns) {
        let corners = [(row, column), (row, column + 1), (row + 1, column + 1), (row + 1, column)];
        let values: Option<Vec<f64>> = corners.iter().map(|at| grid.value(at.0, at.1)).collect();
        let Some(values) = values else { continue };
        let places = corners.iter().zip(&values).map(|(at, value)| view.place(at.1, at.0, *value));
        let mut places: Vec<_> = places.collect();
        let share = values.iter().sum::<f64>() / 4.0 / if most > 0.0 { most } else { 1.0 };
        area.draw(&Polygon::new(places.clone(), ink::GROUND.filled()))?;
        area.draw(&Polygon::new(places.clone(), ink::heat(share.sqrt()).filled()))?;
        places.push(places[0]);
        area.draw(&PathElement::new(places, ink::SOFT))?;
    }
    let edge = |area: &PlotArea<B>, from: (i32, i32), to: (i32, i32)| {
        area.draw(&PathElement::new([from, to], ink::SOFT))
    };
    let (last_row, last_column) = (view.steps.1, view.steps.0);
    edge(area, view.place(0, 0, 0.0), view.place(last_column, 0, 0.0))?;
    edge(area, view.place(0, 0, 0.0), view.place(0, last_row, 0.0))?;
    for (column, name) in grid.columns.iter().enumerate() {
        let (x, y) = view.place(column, 0, 0.0);
        edge(area, (x, y), view.place(column, 0, grid.value(0, column).unwrap_or(0.0)))?;
        area.draw_text(name, &style(11.0, &ink::SOFT), (x + 6, y + 6))?;
    }
    for (row, name) in grid.rows.iter().enumerate() {
        let (x, y) = view.place(0, row, 0.0);
        edge(area, (x, y), view.place(0, row, grid.value(row, 0).unwrap_or(0.0)))?;
        let text = style(11.0, &ink::SOFT).pos(Pos::new(HPos::Right, VPos::Top));
        area.draw_text(name, &text, (x - 6, y + 6))?;
    }
    height_scale(&view, area)?;
    let text = style(13.0, &ink::INK).pos(Pos::new(HPos::Center, VPos::Top));
    area.draw_text(&grid.x, &text, (590, 412))?;
    area.draw_text(&grid.y, &text, (130, 412))?;
    area.present()?;
    Ok(())
}

/// Draws the scale of heights above the leftmost corner of a surface.
fn height_scale<B: DrawingBackend>(view: &View, area: &PlotArea<B>) -> DrawResult
where
    B::ErrorType: 'static,
{
    if view.most <= 0.0 {
        return Ok(());
    }
    let (low, last_row) = (0, view.steps.1);
    let at = |value: f64| view.place(low, last_row, value);
    let axis = Axis::new("", "").from_zero();
    let scale = AxisScale::over(&axis, [view.most].into_iter());
    area.draw(&PathElement::new([at(0.0), at(view.most)], ink::SOFT))?;
    for value in scale.labels.iter().filter(|value| **value <= view.most) {
        let (x, y) = at(*value);
        area.draw(&PathElement::new([(x - 5, y), (x, y)], ink::SOFT))?;
        let text = style(11.0, &ink::SOFT).pos(Pos::new(HPos::Right, VPos::Center));
        area.draw_text(&number(*value), &text, (x - 8, y))?;
    }
    Ok(())
}

/// First corners of the parts of a surface, far ones first: rows and columns recede from the
/// viewer.
fn far_to_near(rows: usize, columns: usize) -> Vec<(usize, usize)> {
    let (rows, columns) = (rows.saturating_sub(1), columns.saturating_sub(1));
    let all = (0..rows).flat_map(|row| (0..columns).map(move |column| (row, column)));
    let mut all: Vec<_> = all.collect();
    all.sort_by_key(|(row, column)| std::cmp::Reverse(row + column));
    all
}

/// Projection of a column, a row and a value to a position in the picture.
#[derive(Debug, Clone, Copy)]
struct View {
    steps: (usize, usize),
    most: f64,
}

impl View {
    fn place(&self, column: usize, row: usize, value: f64) -> (i32, i32) {
        let share = |step: usize, of: usize| {
            let [step, of] = [step, of].map(whole);
            step / of
        };
        let (a, b) = (share(column, self.steps.0), share(row, self.steps.1));
        let up = if self.most > 0.0 { value / self.most * PEAK } else { 0.0 };
        let x = CORNER.0 + a * ALONG_COLUMNS.0 + b * ALONG_ROWS.0;
        let y = CORNER.1 + a * ALONG_COLUMNS.1 + b * ALONG_ROWS.1 - up;
        (pixel(x), pixel(y))
    }
}

#[expect(
    clippy::cast_possible_truncation,
    reason = "a place in a picture of less than 1000 pixels"
)]
fn pixel(at: f64) -> i32 {
    at.round() as i32
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plot::Picture;

    fn grid() -> Grid {
        Grid {
            title: "Mix and size".into(),
            note: "IOPS".into(),
            x: "block size".into(),
            columns: vec!["512".into(), "4k".into(), "1m".into()],
            y: "reads / writes".into(),
            rows: vec!["100/0".into(), "0/100".into()],
            values: vec![
                vec![Some(400_000.0), Some(300_000.0), Some(2_000.0)],
                vec![Some(100_000.0), None, Some(1_000.0)],
            ],
        }
    }

    #[test]
    fn every_value_is_a_cell_with_its_number() {
        let svg = Picture::Cells(grid()).svg();
        assert_eq!(svg.matches("class=\"heat c0\"").count(), 6);
        for text in ["400000", "300000", "2000", "100000", "1000", "-", "100/0", "1m", "block size"]
        {
            assert!(svg.contains(&format!(">\n{text}\n<")), "{text}: {svg}");
        }
        assert!(!svg.contains("#07"), "a stand-in colour is left: {svg}");
    }

    #[test]
    fn a_surface_has_a_part_between_four_values() {
        let mut whole = grid();
        assert_eq!(Picture::Surface(whole.clone()).svg().matches("class=\"heat c0\"").count(), 0);
        whole.values[1][1] = Some(50_000.0);
        let svg = Picture::Surface(whole).svg();
        assert_eq!(svg.matches("class=\"heat c0\"").count(), 2);
        for height in ["0", "100000", "200000", "300000", "400000"] {
            assert!(svg.contains(&format!(">\n{height}\n<")), "{height}: {svg}");
        }
        assert!(!svg.contains("#07"), "a stand-in colour is left: {svg}");
    }

    #[test]
    fn nothing_makes_a_picture_too() {
        for picture in [Picture::Cells(Grid::default()), Picture::Surface(Grid::default())] {
            assert!(picture.svg().starts_with("<svg "));
        }
    }

    #[test]
    fn shades_go_from_the_least_to_the_largest() {
        assert!((shade(1.0, (1.0, 100.0))).abs() < 1e-9);
        assert!((shade(10.0, (1.0, 100.0)) - 0.5).abs() < 1e-9);
        assert!((shade(100.0, (1.0, 100.0)) - 1.0).abs() < 1e-9);
        assert!((shade(7.0, (7.0, 7.0)) - 1.0).abs() < 1e-9);
    }
}
