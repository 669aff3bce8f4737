//! Tables, plots, HTML, CSV and JSON of results, for all programs.
//!
//! ```text
//! Point (one run) --json--> JSON lines, one a point, versioned
//!                 --csv---> one row a point
//!                 --compare-> differences of two sets, with intervals
//!                 --sweep-> Table (terminal, Markdown, HTML), Plot (SVG), a page for a browser
//! engines::EngineComparison, scale::DriveScaling (nvmeof-perf) --> JSON, Table, Plot, HtmlPage
//! steady::DriveTest --steady-> any ReportSink: HtmlPage for a browser, Pdf for paper
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
mod report_sink;
pub mod scale;
pub mod steady;
pub mod sweep;
mod table;
mod units;
mod values;

pub use html::HtmlPage;
pub use pdf::Pdf;
pub use plot::{Axis, Picture, Plot, Series};
pub use point::{
    Condition, Figures, Flow, Latency, MeasuredRow, NetworkCounters, Point, PointConfig, PointPart,
    RunOrigin, Sample, VariedKey, jain,
};
pub use report_sink::ReportSink;
pub use table::{Alignment, Column, Table};
pub use units::show_size;
