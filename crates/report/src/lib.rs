//! One place for tables, plots, HTML, CSV and JSON results.
//!
//! ```text
//! Point (one run) --json--> JSON lines, one a point, versioned
//!                 --csv---> one row a point
//!                 --compare-> differences of two sets, with intervals
//!                 --sweep-> Table (terminal, Markdown, HTML), Plot (SVG), a page that opens from disk
//! engines::Engines, scale::Scaling --> JSON, Table, Plot, Page: what `nvmeof-perf` measures of drives
//! steady::Study (a drive test) --steady-> any Sheet: a page that opens from disk (Page), paper (Pdf)
//! ```
//!
//! Whoever measures fills [`Point`]s; everything else follows from them. Figures that come from the
//! simulator carry the word "simulated" in every form.

#![forbid(unsafe_code)]

pub mod compare;
pub mod csv;
pub mod engines;
pub mod html;
pub mod json;
pub mod pdf;
pub mod plot;
mod point;
pub mod scale;
mod sheet;
pub mod steady;
pub mod sweep;
mod table;

pub use html::Page;
pub use pdf::Pdf;
pub use plot::{Axis, Picture, Plot, Series};
pub use point::{
    Figures, Flow, Latency, Network, Part, Point, Sample, Setting, Varied, Where, jain,
};
pub use sheet::Sheet;
pub use table::{Align, Column, Table};
