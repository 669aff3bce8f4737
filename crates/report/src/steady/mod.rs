//! Reports of drive tests after SNIA's Solid State Storage Performance Test Specification (PTS).
//!
//! ```text
//! DriveTest --chapters--> any ReportSink
//!   |- DriveTestSetup            drive, host and parameters
//!   '- TestRun, one a test       purge, preconditioning, rounds of measurements, result
//! ```
//!
//! | file | content |
//! |---|---|
//! | `model` | the measurements; serde writes them to the results file |
//! | `chapters` | the report from top to bottom, once for all sinks |
//! | `numbered` | numbers of chapters and figures, and the contents |
//! | `words` | the loop of each test, and the glossary |
//! | `plots` | its pictures |
//! | `tables` | its tables |

mod chapters;
mod model;
mod numbered;
mod plots;
mod tables;
#[cfg(test)]
mod tests;
mod words;

pub use chapters::{SECTIONS, write};
pub use model::{
    DriveTest, DriveTestSetup, Measurement, PlannedSteps, Preparation, ResponseTimes,
    SteadyStateResult, SteadyWindow, TestKind, TestRound, TestRun, Workload,
};
pub use tables::result_table;

use crate::html::HtmlPage;
use crate::pdf::Pdf;

/// The report as a page that opens from disk.
#[must_use]
pub fn html(drive_test: &DriveTest) -> String {
    let mut page = HtmlPage::new(&drive_test.title(), &drive_test.mark());
    write(drive_test, &mut page);
    page.document()
}

/// The report as a PDF.
#[must_use]
pub fn pdf(drive_test: &DriveTest) -> Vec<u8> {
    let mut pdf = Pdf::new(&drive_test.title(), &drive_test.mark());
    write(drive_test, &mut pdf);
    pdf.document()
}
