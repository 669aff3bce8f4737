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
    /// Bytes of the file that are kept, until [`Self::begin`] has removed the rest.
    kept: Option<u64>,
    /// A result could not be written, so that the last line can be incomplete.
    has_failed: bool,
}

impl ResultsFile {
    /// Opens the file and locks it; its content stays until [`Self::begin`].
    ///
    /// With `resume`, existing results are kept.
    pub(super) fn open(path: &Path, resume: bool) -> Result<Self> {
        let shown = path.display();
        let file = File::options()
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
        Ok(Self {
            file: Some((file, path.to_owned())),
            earlier,
            kept: Some(end),
            has_failed: false,
        })
    }

    /// Removes what is not kept: without `resume` everything, with it a truncated last line. A
    /// second call changes nothing.
    pub(super) fn begin(&mut self) -> Result<()> {
        if let Some((file, path)) = &mut self.file
            && let Some(kept) = self.kept.take()
        {
            let begun = file.set_len(kept).and_then(|()| file.seek(SeekFrom::Start(kept)));
            begun.with_context(|| format!("cannot write {}", path.display()))?;
        }
        Ok(())
    }

    /// Writes results into a file that is open already.
    #[cfg(test)]
    pub(super) fn over(file: File, path: &Path) -> Self {
        Self { file: Some((file, path.to_owned())), ..Self::default() }
    }

    /// Returns the result of this same run, if an earlier sweep has it.
    pub(super) fn earlier(&self, same: impl Fn(&Point) -> bool) -> Option<&Point> {
        self.earlier.iter().find(|point| same(point))
    }

    /// Appends a result.
    pub(super) fn keep(&mut self, point: &Point) -> Result<()> {
        let Some((file, path)) = &mut self.file else { return Ok(()) };
        let written = json::write(file, point);
        self.has_failed |= written.is_err();
        written.with_context(|| format!("cannot write {}", path.display()))
    }

    /// Returns whether a result could not be written.
    pub(super) fn has_failed(&self) -> bool {
        self.has_failed
    }
}
