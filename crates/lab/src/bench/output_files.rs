//! Files with the results of a benchmark, as the user names them.

use std::path::PathBuf;

use anyhow::Result;
use serde_json::Value;

use crate::output;

#[derive(Debug, clap::Args)]
pub(super) struct OutputFiles {
    /// Write the tables to this file as Markdown
    #[arg(long, value_name = "FILE")]
    markdown: Option<PathBuf>,
    /// Write the tables, and plots if there are some, to this file as a page
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Write every round to this file as JSON
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

impl OutputFiles {
    /// Checks that the files can be written, before anything is measured.
    pub(super) fn check(&self) -> Result<()> {
        let files = self.markdown.iter().chain(&self.html).chain(&self.json);
        files.map(PathBuf::as_path).try_for_each(output::check_writable)
    }

    /// Writes the files that the user names.
    pub(super) fn write(
        &self,
        markdown: impl FnOnce() -> String,
        page: impl FnOnce() -> Result<String>,
        json: impl FnOnce() -> Value,
    ) -> Result<()> {
        if let Some(path) = &self.markdown {
            output::write(path, &markdown())?;
        }
        if let Some(path) = &self.html {
            output::write(path, &page()?)?;
        }
        if let Some(path) = &self.json {
            output::write(path, &(serde_json::to_string_pretty(&json())? + "\n"))?;
        }
        Ok(())
    }
}
