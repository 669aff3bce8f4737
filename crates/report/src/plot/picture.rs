//! Pictures of any kind, onto anything that plotters draws on.

use plotters::prelude::*;

use super::draw::{self, Area, Drawn};
use super::grid::{self, Grid};
use super::{Plot, ink};

/// What a report shows beside text.
#[derive(Debug, Clone, PartialEq)]
pub enum Picture {
    /// Lines and markers over two axes.
    Plot(Plot),
    /// Cells with numbers, darker where there is more.
    Cells(Grid),
    /// The same as a surface seen from above one corner.
    Surface(Grid),
}

impl Picture {
    /// An `<svg>` to stand in a page that has [`STYLE`](super::STYLE) among its styles.
    #[must_use]
    pub fn svg(&self) -> String {
        let (title, note) = match self {
            Self::Plot(plot) => (&plot.title, &plot.note),
            Self::Cells(grid) | Self::Surface(grid) => (&grid.title, &grid.note),
        };
        svg(self.size(), title, note, |area| self.draw(area))
    }

    /// Pixels: wide, high.
    pub(crate) fn size(&self) -> (u32, u32) {
        match self {
            Self::Plot(plot) => draw::size(plot),
            Self::Cells(grid) => grid::cells_size(grid),
            Self::Surface(_) => grid::SURFACE_SIZE,
        }
    }

    /// Draws it in stand-in colours (`ink`).
    pub(crate) fn draw<B: DrawingBackend>(&self, area: &Area<B>) -> Drawn
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

/// What `draw` draws, as SVG that follows the reader's scheme.
pub(super) fn svg(
    size: (u32, u32),
    title: &str,
    note: &str,
    draw: impl FnOnce(&Area<SVGBackend<'_>>) -> Drawn,
) -> String {
    let mut svg = String::new();
    {
        let area = SVGBackend::with_string(&mut svg, size).into_drawing_area();
        let outcome = draw(&area);
        // A string takes everything that is drawn into it.
        debug_assert!(outcome.is_ok(), "{outcome:?}");
    }
    ink::follow_scheme(&svg, &format!("{title}. {note}"))
}
