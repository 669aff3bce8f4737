//! Draws pictures of any kind onto any backend of plotters.

use plotters::prelude::*;

use super::draw::{self, DrawResult, PlotArea};
use super::grid::{self, Grid};
use super::{Plot, ink};

/// A picture of a report.
#[derive(Debug, Clone, PartialEq)]
pub enum Picture {
    /// Lines and markers over two axes.
    Plot(Plot),
    /// Cells with numbers, in a stronger color for larger values.
    Cells(Grid),
    /// The same values as a surface seen from above one corner.
    Surface(Grid),
}

impl Picture {
    /// An `<svg>` for a page whose styles include [`STYLE`](super::STYLE).
    #[must_use]
    pub fn svg(&self) -> String {
        let (title, note) = match self {
            Self::Plot(plot) => (&plot.title, &plot.note),
            Self::Cells(grid) | Self::Surface(grid) => (&grid.title, &grid.note),
        };
        svg(self.size(), title, note, |area| self.draw(area))
    }

    /// Its title.
    #[must_use]
    pub fn title(&self) -> &str {
        match self {
            Self::Plot(plot) => &plot.title,
            Self::Cells(grid) | Self::Surface(grid) => &grid.title,
        }
    }

    /// Width and height in pixels.
    pub(crate) fn size(&self) -> (u32, u32) {
        match self {
            Self::Plot(plot) => draw::size(plot),
            Self::Cells(grid) => grid::cells_size(grid),
            Self::Surface(_) => grid::SURFACE_SIZE,
        }
    }

    /// Draws it in placeholder colors (`ink`).
    pub(crate) fn draw<B: DrawingBackend>(&self, area: &PlotArea<B>) -> DrawResult
    where
        B::ErrorType: 'static,
    {
        match self {
            Self::Plot(plot) => draw::shapes(plot, area),
            Self::Cells(grid) => grid::cells(grid, area),
            Self::Surface(grid) => grid::surface(grid, area),
        }
    }
}

/// Returns the output of `draw` as SVG that follows the reader's scheme.
pub(super) fn svg(
    size: (u32, u32),
    title: &str,
    note: &str,
    draw: impl FnOnce(&PlotArea<SVGBackend<'_>>) -> DrawResult,
) -> String {
    let mut svg = String::new();
    {
        let area = SVGBackend::with_string(&mut svg, size).into_drawing_area();
        let outcome = draw(&area);
        // A string accepts everything that is drawn into it.
        debug_assert!(outcome.is_ok(), "{outcome:?}");
    }
    ink::follow_scheme(&svg, &format!("{title}. {note}"))
}
