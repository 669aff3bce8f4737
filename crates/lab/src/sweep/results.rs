//! The file of results. It gets a line when a point completes, so that measurements survive an
//! interruption.

use std::fs::{File, TryLockError};
use std::io::{BufReader, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use nvmeof_report::{Point, json};

/// Results of an earlier run, and the file for new ones.
#[derive(Debug, Default)]
pub(super) struct ResultsFile {
    file: Option<(File, PathBuf)>,
    earlier: Vec<Point>,
}

impl ResultsFile {
    /// Opens the file and locks it.
    ///
    /// Without `resume` the file starts empty. With it, existing results are kept, except for a
    /// truncated last line.
    pub(super) fn open(path: &Path, resume: bool) -> Result<Self> {
        let shown = path.display();
        let mut file = File::options()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(path)
            .with_context(|| format!("cannot open {shown}"))?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => bail!("{shown}: another sweep writes to it"),
            Err(TryLockError::Error(error)) => {
                return Err(error).with_context(|| format!("cannot lock {shown}"));
            }
        }
        let (mut earlier, mut end) = (Vec::new(), 0);
        if resume {
            (earlier, end) =
                json::read(BufReader::new(&file)).with_context(|| shown.to_string())?;
        }
        file.set_len(end).with_context(|| format!("cannot write {shown}"))?;
        file.seek(SeekFrom::Start(end))?;
        Ok(Self { file: Some((file, path.to_owned())), earlier })
    }

    /// Writes results into a file that is open already.
    #[cfg(test)]
    pub(super) fn over(file: File, path: &Path) -> Self {
        Self { file: Some((file, path.to_owned())), earlier: Vec::new() }
    }

    /// Returns the result of this same run, if an earlier sweep has it.
    pub(super) fn earlier(&self, same: impl Fn(&Point) -> bool) -> Option<&Point> {
        self.earlier.iter().find(|point| same(point))
    }

    /// Appends a result.
    pub(super) fn keep(&mut self, point: &Point) -> Result<()> {
        if let Some((file, path)) = &mut self.file {
            json::write(file, point).with_context(|| format!("cannot write {}", path.display()))?;
        }
        Ok(())
    }
}
