//! Resumes interrupted runs, with a file that stores the progress of each job.
//!
//! ```text
//! (no file) --run--> written every few seconds --the run is complete--> removed
//!                       '--interrupted, or killed: stays --run with the same arguments--> resumes
//! ```
//!
//! A resumed run repeats the I/Os that were in flight at the interruption, so a sequential run
//! skips no block.

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use nvmeof_console::complain;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::load::{LoadResult, LoadSpec, LoadWatcher};
use crate::plan::usage_error;
use crate::report::RunParameters;

const SCHEMA_VERSION: u32 = 1;
/// Interval between two writes of the file.
const EVERY: Duration = Duration::from_secs(5);
/// Arguments that may differ in a resumed run: they change speed or duration, not the I/Os.
const FREE: [&str; 7] =
    ["time_s", "ramp_s", "cpus", "percentiles", "rate_iops", "thinktime_us", "thinktime_blocks"];

/// Contents of the file.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct State {
    schema_version: u32,
    /// Parameters of the run.
    parameters: Value,
    /// Bytes done, by job and namespace.
    done: Vec<Vec<u64>>,
}

/// A run that can be resumed.
#[derive(Debug)]
pub(crate) struct ResumableRun {
    writer: Arc<CheckpointWriter>,
    done: Vec<Vec<u64>>,
}

/// Writes the file.
#[derive(Debug)]
struct CheckpointWriter {
    path: PathBuf,
    parameters: Value,
    last: Mutex<LastWrite>,
}

#[derive(Debug)]
struct LastWrite {
    at: Instant,
    /// A write has failed, and the failure was reported.
    has_failed: bool,
}

impl ResumableRun {
    /// Reads the file, if it exists, and checks that it can be written.
    ///
    /// # Errors
    /// The file belongs to another run, is not a file of this kind, or cannot be read or written.
    pub(crate) fn open(path: &Path, parameters: &RunParameters, spec: &LoadSpec) -> Result<Self> {
        let parameters = fixed(parameters)?;
        let done = match fs::read(path) {
            Ok(bytes) => read(path, &bytes, &parameters)?,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Vec::new(),
            Err(error) => {
                return Err(error)
                    .with_context(|| format!("cannot read --resume {}", path.display()));
            }
        };
        usage_error!(
            !done.is_empty() && done.len() != usize::from(spec.jobs),
            "--resume {} is of {} jobs, and this run has {}; use the arguments of the run that it is of",
            path.display(),
            done.len(),
            spec.jobs
        );
        let last = Mutex::new(LastWrite { at: Instant::now(), has_failed: false });
        let writer = Arc::new(CheckpointWriter { path: path.to_owned(), parameters, last });
        // A failure shows up now, not after hours.
        writer.write(&done)?;
        Ok(Self { writer, done })
    }

    /// Makes `spec` resume at the stored progress and update the file.
    pub(crate) fn begin(&self, spec: &mut LoadSpec) {
        spec.done.clone_from(&self.done);
        let writer = Arc::clone(&self.writer);
        spec.watcher = Some(LoadWatcher(Arc::new(move |done| writer.keep(&done))));
    }

    /// Bytes done before this run.
    pub(crate) fn resumed_bytes(&self) -> u64 {
        self.done.iter().flatten().sum()
    }

    /// Writes the file a last time, or removes it if the run is complete.
    ///
    /// # Errors
    /// The file cannot be written or removed.
    pub(crate) fn end(&self, measured: &LoadResult) -> Result<()> {
        let is_complete = !measured.interrupted && measured.is_done && measured.errors() == 0;
        let path = &self.writer.path;
        if is_complete {
            return fs::remove_file(path).with_context(|| {
                format!("the run is complete, but cannot remove {}", path.display())
            });
        }
        self.writer.write(&measured.done)?;
        complain!("the run is not complete; the same command resumes from {}", path.display());
        Ok(())
    }
}

impl CheckpointWriter {
    /// Writes the file if that is due. A failure is reported once, and the run continues.
    fn keep(&self, done: &[Vec<u64>]) {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        if last.at.elapsed() < EVERY {
            return;
        }
        last.at = Instant::now();
        if let Err(error) = self.write(done)
            && !last.has_failed
        {
            last.has_failed = true;
            complain!(
                "warning: {error:#}; the run continues, but can only be resumed from an earlier \
                 point"
            );
        }
    }

    /// Replaces the file, so that a complete one always exists.
    fn write(&self, done: &[Vec<u64>]) -> Result<()> {
        let state = State {
            schema_version: SCHEMA_VERSION,
            parameters: self.parameters.clone(),
            done: done.to_vec(),
        };
        let mut name = self.path.clone().into_os_string();
        name.push(".new");
        let new = PathBuf::from(name);
        let text = serde_json::to_vec_pretty(&state)?;
        let write = || {
            let mut file = fs::File::create(&new)?;
            file.write_all(&text)?;
            file.sync_all()?;
            fs::rename(&new, &self.path)
        };
        write().with_context(|| format!("cannot write --resume {}", self.path.display()))
    }
}

/// Reads the progress from the file, if it belongs to the same run.
fn read(path: &Path, bytes: &[u8], parameters: &Value) -> Result<Vec<Vec<u64>>> {
    let shown = path.display();
    let state: State = serde_json::from_slice(bytes).with_context(|| {
        format!("--resume {shown} is not what a run has left there; name another file")
    })?;
    usage_error!(
        state.schema_version != SCHEMA_VERSION,
        "--resume {shown} has format version {}, this program reads version {SCHEMA_VERSION}; \
         remove the file to start over",
        state.schema_version
    );
    let differs = |key: &&String| state.parameters.get(*key) != parameters.get(*key);
    let mut keys = parameters.as_object().into_iter().flat_map(serde_json::Map::keys);
    if let Some(key) = keys.find(differs) {
        usage_error!(
            true,
            "--resume {shown} is of a run with other arguments ({key}: {}, and now {}); use the same ones, or \
             remove the file to start over",
            state.parameters[key],
            parameters[key]
        );
    }
    Ok(state.done)
}

/// The parameters that have to stay the same.
fn fixed(parameters: &RunParameters) -> Result<Value> {
    let mut value = serde_json::to_value(parameters)?;
    if let Some(map) = value.as_object_mut() {
        map.retain(|key, _| !FREE.contains(&key.as_str()));
        // Random unless it was given.
        map.remove("hostnqn");
    }
    Ok(value)
}
