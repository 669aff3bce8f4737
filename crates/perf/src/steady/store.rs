//! The results file: JSON lines.
//!
//! Each line is appended and synced to the disk immediately, so results survive any end of the
//! process.
//!
//! ```text
//! head (plan, set-up)   purged   filled   measured measured ...   resumed   measured ...
//! ```

use std::fs::{File, OpenOptions};
use std::io::{self, Read as _, Seek as _, SeekFrom, Write as _};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use nvmeof_report::steady::{DriveTestSetup, Measurement, Preparation};
use serde::{Deserialize, Serialize};

use super::drive_under_test::DriveTestError;
use super::plan::DriveTestPlan;
use super::procedure::{Procedure, StepOutcome};

/// Version of the file; changes when a line changes its meaning.
const VERSION: u32 = 1;
/// Larger files are not results of this program.
const MOST: u64 = 1 << 30;

/// The first line.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct StoreHeader {
    version: u32,
    pub(crate) plan: DriveTestPlan,
    pub(crate) setup: DriveTestSetup,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Line {
    Purged(Preparation),
    Filled(Preparation),
    Measured(Measurement),
    /// Resumed after an interruption.
    Resumed(String),
}

/// A results file open for appending.
#[derive(Debug)]
pub(crate) struct ResultStore {
    path: PathBuf,
    file: File,
    /// Bytes of complete lines.
    end: u64,
}

/// Contents of a results file.
#[derive(Debug)]
pub(crate) struct StoredResults {
    pub(crate) head: StoreHeader,
    /// The procedure after the stored steps.
    pub(crate) procedure: Procedure,
    /// Number of times it was resumed.
    pub(crate) resumed: usize,
}

impl ResultStore {
    /// Creates a new file, which must not exist.
    ///
    /// # Errors
    /// It exists, or cannot be written.
    pub(crate) fn create(
        path: &Path,
        plan: &DriveTestPlan,
        setup: &DriveTestSetup,
    ) -> Result<Self> {
        let file = OpenOptions::new().create_new(true).append(true).open(path);
        let file = match file {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => bail!(
                "{} has results already: resume the test (--resume {0}), or choose another name \
                 (--out NAME)",
                path.display()
            ),
            other => other.with_context(|| format!("cannot make {}", path.display()))?,
        };
        let mut store = Self { path: path.to_owned(), file, end: 0 };
        store.lock()?;
        let head = StoreHeader { version: VERSION, plan: plan.clone(), setup: setup.clone() };
        if let Err(error) = store.append(&head) {
            // An empty file contains nothing to lose.
            let _ = std::fs::remove_file(path);
            return Err(error.into());
        }
        Ok(store)
    }

    /// Opens the file of an earlier run, and replays it.
    ///
    /// # Errors
    /// It cannot be read, or is invalid.
    pub(crate) fn resume(path: &Path) -> Result<(Self, StoredResults)> {
        let file = OpenOptions::new()
            .read(true)
            .append(true)
            .open(path)
            .with_context(|| format!("cannot open {}", path.display()))?;
        let (stored, end) = Self::replay(path, &file)?;
        let store = Self { path: path.to_owned(), file, end };
        store.lock()?;
        Ok((store, stored))
    }

    /// Reads the contents of a file so far; a run may be writing to it.
    ///
    /// # Errors
    /// As [`ResultStore::resume`].
    pub(crate) fn read(path: &Path) -> Result<StoredResults> {
        let file = File::open(path).with_context(|| format!("cannot open {}", path.display()))?;
        Ok(Self::replay(path, &file)?.0)
    }

    /// Returns the contents of a file, and the bytes of its complete lines.
    fn replay(path: &Path, file: &File) -> Result<(StoredResults, u64)> {
        let shown = path.display();
        let mut text = String::new();
        file.take(MOST)
            .read_to_string(&mut text)
            .with_context(|| format!("cannot read {shown}"))?;
        // An interruption cut off a line without an end.
        let end = text.rfind('\n').map_or(0, |at| at + 1);
        let mut lines = text[..end].lines().enumerate();
        let Some((_, first)) = lines.next() else { bail!("{shown} is empty: nothing to resume") };
        let head: StoreHeader = serde_json::from_str(first)
            .with_context(|| format!("{shown}: line 1 is not the beginning of a drive test"))?;
        if head.version != VERSION {
            bail!(
                "{shown} has format version {}; this program resumes version {VERSION}",
                head.version
            );
        }
        let mut procedure = Procedure::new(head.plan.clone());
        let mut resumed = 0;
        for (index, line) in lines {
            let number = index + 1;
            let line: Line = serde_json::from_str(line)
                .with_context(|| format!("{shown}: line {number} is not a result"))?;
            let outcome = match line {
                Line::Purged(done) => StepOutcome::Purged(done),
                Line::Filled(done) => StepOutcome::Filled(done),
                Line::Measured(measurement) => StepOutcome::Measured(measurement),
                Line::Resumed(_) => {
                    resumed += 1;
                    continue;
                }
            };
            procedure
                .take(outcome)
                .with_context(|| format!("{shown}: line {number} is out of turn"))?;
        }
        let end = u64::try_from(end).unwrap_or(u64::MAX);
        Ok((StoredResults { head, procedure, resumed }, end))
    }

    /// Appends a line that the test was resumed.
    ///
    /// # Errors
    /// The file cannot be written.
    pub(crate) fn note_resumed(&mut self, when: &str) -> Result<(), DriveTestError> {
        self.append(&Line::Resumed(when.to_owned()))
    }

    /// Appends the outcome of a step.
    ///
    /// # Errors
    /// The file cannot be written; it keeps the complete lines from before.
    pub(crate) fn keep(&mut self, outcome: &StepOutcome) -> Result<(), DriveTestError> {
        self.append(&match outcome.clone() {
            StepOutcome::Purged(done) => Line::Purged(done),
            StepOutcome::Filled(done) => Line::Filled(done),
            StepOutcome::Measured(measurement) => Line::Measured(measurement),
        })
    }

    /// Two runs would write into each other's lines.
    fn lock(&self) -> Result<()> {
        match self.file.try_lock() {
            Ok(()) => Ok(()),
            Err(std::fs::TryLockError::WouldBlock) => {
                bail!("another run writes to {}", self.path.display())
            }
            Err(std::fs::TryLockError::Error(error)) => {
                Err(error).with_context(|| format!("cannot lock {}", self.path.display()))
            }
        }
    }

    fn append(&mut self, line: &impl Serialize) -> Result<(), DriveTestError> {
        let mut text = serde_json::to_string(line).map_err(|error| self.full(&error.into()))?;
        text.push('\n');
        match self.write(text.as_bytes()) {
            Ok(()) => {
                self.end += u64::try_from(text.len()).unwrap_or(u64::MAX);
                Ok(())
            }
            Err(error) => {
                // An incomplete line is useless; a resumed run drops it anyway.
                let _ = self.file.set_len(self.end);
                Err(self.full(&error))
            }
        }
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        // The incomplete line of an interrupted run is removed first.
        if self.file.seek(SeekFrom::End(0))? != self.end {
            self.file.set_len(self.end)?;
        }
        self.file.write_all(bytes)?;
        self.file.sync_data()
    }

    fn full(&self, error: &io::Error) -> DriveTestError {
        let path = self.path.display();
        DriveTestError::Results(format!(
            "cannot write {path}: {error}; earlier results are kept: free space there"
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::super::fake::{FakeDrive, plan, setup};
    use super::super::{drive_under_test::DriveUnderTest as _, procedure::NextStep};
    use super::*;

    fn path(name: &str) -> PathBuf {
        let folder = std::env::temp_dir().join(format!("steady-store-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let path = folder.join(name);
        let _ = std::fs::remove_file(&path);
        path
    }

    /// A file with a purge, a fill and two points.
    fn begun(name: &str) -> (PathBuf, ResultStore, Procedure) {
        let path = path(name);
        let mut store = ResultStore::create(&path, &plan(), &setup()).unwrap();
        let mut procedure = Procedure::new(plan());
        let mut drive = FakeDrive::steady_after(3);
        for _ in 0..4 {
            let outcome = match procedure.next() {
                NextStep::Purge(_) => StepOutcome::Purged(drive.purge().unwrap()),
                NextStep::Fill(..) => StepOutcome::Filled(Preparation::default()),
                NextStep::Measure(_, point) => {
                    StepOutcome::Measured(drive.measure(&point).unwrap())
                }
                NextStep::Over => panic!("over"),
            };
            store.keep(&outcome).unwrap();
            procedure.take(outcome).unwrap();
        }
        (path, store, procedure)
    }

    #[test]
    fn what_was_kept_is_gone_on_with() {
        let (path, store, procedure) = begun("whole.jsonl");
        drop(store);
        let (mut store, stored) = ResultStore::resume(&path).unwrap();
        assert_eq!(stored.procedure.next(), procedure.next());
        assert_eq!((stored.head.plan, stored.head.setup, stored.resumed), (plan(), setup(), 0));
        store.note_resumed("now").unwrap();
        drop(store);
        assert_eq!(ResultStore::resume(&path).unwrap().1.resumed, 1);
    }

    #[test]
    fn what_is_there_is_read_while_a_run_writes_to_it() {
        let (path, store, procedure) = begun("reading.jsonl");
        let stored = ResultStore::read(&path).unwrap();
        assert_eq!(stored.procedure.next(), procedure.next());
        drop(store);
    }

    #[test]
    fn half_a_line_is_dropped() {
        let (path, store, procedure) = begun("half.jsonl");
        drop(store);
        let whole = std::fs::read(&path).unwrap();
        std::fs::write(&path, [&whole[..], b"{\"measured\":{\"workl"].concat()).unwrap();
        let (mut store, stored) = ResultStore::resume(&path).unwrap();
        assert_eq!(stored.procedure.next(), procedure.next());
        store.note_resumed("now").unwrap();
        let text = std::fs::read_to_string(&path).unwrap();
        assert!(
            text.lines().all(|line| serde_json::from_str::<serde_json::Value>(line).is_ok()),
            "{text}"
        );
        assert_eq!(text.lines().count(), 1 + 4 + 1);
    }

    #[test]
    fn what_is_not_ours_is_refused() {
        let (path, store, _) = begun("other.jsonl");
        assert!(
            ResultStore::create(&path, &plan(), &setup())
                .unwrap_err()
                .to_string()
                .contains("--resume")
        );
        assert!(ResultStore::resume(&path).unwrap_err().to_string().contains("another run"));
        drop(store);
        let whole = std::fs::read_to_string(&path).unwrap();
        let lines: Vec<&str> = whole.lines().collect();
        for (text, says) in [
            (String::new(), "empty"),
            ("{}\n".to_owned(), "line 1"),
            (whole.replacen("\"version\":1", "\"version\":7", 1), "version 7"),
            (format!("{}\n{}\n", lines[0], lines[2]), "line 2 is out of turn"),
            (format!("{}\n{{\"what\":1}}\n", lines[0]), "line 2 is not a result"),
        ] {
            std::fs::write(&path, text).unwrap();
            let error = format!("{:#}", ResultStore::resume(&path).unwrap_err());
            assert!(error.contains(says), "{says}: {error}");
        }
    }

    #[test]
    fn a_full_disk_is_said_and_takes_nothing() {
        let Ok(file) = OpenOptions::new().append(true).open("/dev/full") else { return };
        let mut store = ResultStore { path: "/dev/full".into(), file, end: 0 };
        let Err(DriveTestError::Results(words)) = store.note_resumed("now") else {
            panic!("it was taken")
        };
        assert!(words.contains("/dev/full") && words.contains("free space"), "{words}");
    }
}
