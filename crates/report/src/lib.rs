//! Tables, plots, HTML, CSV and JSON of results, for all programs.
//!
//! ```text
//! Point (one run) --json--> JSON lines, one a point, versioned
//!                 --csv---> one row a point
//!                 --compare-> differences of two sets, with intervals
//!                 --sweep-> Table (terminal, Markdown, HTML), Plot (SVG), a page for a browser
//! engines::Engines, scale::Scaling --> JSON, Table, Plot, Page: drive figures of `nvmeof-perf`
//! steady::Study (a drive test) --steady-> any Sheet: a page for a browser (Page), paper (Pdf)
//! ```
//!
//! Measuring programs fill [`Point`]s; all outputs follow from them. Simulated figures carry the
//! word "simulated" in every format.

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
