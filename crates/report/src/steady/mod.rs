//! Reports of drive tests after SNIA's Solid State Storage Performance Test Specification (PTS).
//!
//! ```text
//! Study --chapters--> any Sheet
//!   |- Setup                     drive, host and parameters
//!   '- TestRun, one a test       purge, preconditioning, rounds of readings, verdict
//! ```
//!
//! | file | content |
//! |---|---|
//! | `model` | the measurements; serde writes them to the results file |
//! | `chapters` | the report from top to bottom, once for all kinds of sheets |
//! | `plots` | its pictures |
//! | `tables` | its tables |

mod chapters;
mod model;
mod plots;
mod tables;
#[cfg(test)]
mod tests;

pub use chapters::{SECTIONS, write};
pub use model::{
    Preparation, Reading, Round, Setup, Study, Test, TestRun, Times, Verdict, Window, Workload,
};
pub use tables::verdicts;

use crate::html::Page;
use crate::pdf::Pdf;

/// The report as a page that opens from disk.
#[must_use]
pub fn html(study: &Study) -> String {
    let mut page = Page::new(&study.title(), study.mark());
    write(study, &mut page);
    page.document()
}

/// The report as a PDF.
#[must_use]
pub fn pdf(study: &Study) -> Vec<u8> {
    let mut pdf = Pdf::new(&study.title(), study.mark());
    write(study, &mut pdf);
    pdf.document()
}
