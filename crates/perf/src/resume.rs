//! Runs that go on where they were interrupted: a file that says how far each job is.
//!
//! ```text
//! (no file) --run--> kept every few seconds --the run is complete--> removed
//!                       '--interrupted, or killed: stays --run with the same arguments--> goes on
//! ```
//!
//! What was under way when a run ended is done again, so that no block of a sequential run is left out.

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use nvmeof_console::complain;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::load::{LoadSpec, Measured, Watcher};
use crate::plan::misfit;
use crate::report::Parameters;

const SCHEMA_VERSION: u32 = 1;
/// Time between two writings of the file.
const EVERY: Duration = Duration::from_secs(5);
/// Arguments that a run may be resumed with others of: they change how fast or how long, and not what.
const FREE: [&str; 7] =
    ["time_s", "ramp_s", "cpus", "percentiles", "rate_iops", "thinktime_us", "thinktime_blocks"];

/// What the file holds.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct State {
    schema_version: u32,
    /// What the run was asked.
    parameters: Value,
    /// Bytes done, by job and namespace.
    done: Vec<Vec<u64>>,
}

/// A run that can be resumed.
#[derive(Debug)]
pub(crate) struct Resume {
    keeper: Arc<Keeper>,
    done: Vec<Vec<u64>>,
}

/// Who writes the file.
#[derive(Debug)]
struct Keeper {
    path: PathBuf,
    parameters: Value,
    last: Mutex<Last>,
}

#[derive(Debug)]
struct Last {
    at: Instant,
    /// Writing has failed, and that has been said.
    has_failed: bool,
}

impl Resume {
    /// Reads the file, if it is there, and sees that it can be written.
    ///
    /// # Errors
    /// It is of another run, or no such file, or cannot be read or written.
    pub(crate) fn open(path: &Path, parameters: &Parameters, spec: &LoadSpec) -> Result<Self> {
        let parameters = fixed(parameters)?;
        let done = match fs::read(path) {
            Ok(bytes) => read(path, &bytes, &parameters)?,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Vec::new(),
            Err(error) => {
                return Err(error)
                    .with_context(|| format!("cannot read --resume {}", path.display()));
            }
        };
        misfit!(
            !done.is_empty() && done.len() != usize::from(spec.jobs),
            "--resume {} is of {} jobs, and this run has {}; use the arguments of the run that it is of",
            path.display(),
            done.len(),
            spec.jobs
        );
        let last = Mutex::new(Last { at: Instant::now(), has_failed: false });
        let keeper = Arc::new(Keeper { path: path.to_owned(), parameters, last });
        // Now, and not after hours.
        keeper.write(&done)?;
        Ok(Self { keeper, done })
    }

    /// Has `spec` go on from where the run was, and the file kept.
    pub(crate) fn begin(&self, spec: &mut LoadSpec) {
        spec.done.clone_from(&self.done);
        let keeper = Arc::clone(&self.keeper);
        spec.watcher = Some(Watcher(Arc::new(move |done| keeper.keep(&done))));
    }

    /// Bytes done before this run.
    pub(crate) fn resumed_bytes(&self) -> u64 {
        self.done.iter().flatten().sum()
    }

    /// Writes the file a last time, or removes it if all is done.
    ///
    /// # Errors
    /// That could not be done.
    pub(crate) fn end(&self, measured: &Measured) -> Result<()> {
        let is_complete = !measured.interrupted && measured.is_done && measured.errors() == 0;
        let path = &self.keeper.path;
        if is_complete {
            return fs::remove_file(path).with_context(|| {
                format!("the run is complete, but cannot remove {}", path.display())
            });
        }
        self.keeper.write(&measured.done)?;
        complain!("the run is not complete; the same command goes on from {}", path.display());
        Ok(())
    }
}

impl Keeper {
    /// Writes the file if that is due. If it cannot be written that is said once, and the run goes on.
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
                "warning: {error:#}; the run goes on, but can be resumed from further back only"
            );
        }
    }

    /// Writes the file anew, so that there is always a whole one.
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

/// What the file says is done, if it is of the same run.
fn read(path: &Path, bytes: &[u8], parameters: &Value) -> Result<Vec<Vec<u64>>> {
    let shown = path.display();
    let state: State = serde_json::from_slice(bytes).with_context(|| {
        format!("--resume {shown} is not what a run has left there; name another file")
    })?;
    misfit!(
        state.schema_version != SCHEMA_VERSION,
        "--resume {shown} is of version {}, and this program knows {SCHEMA_VERSION}; remove it to begin anew",
        state.schema_version
    );
    let differs = |key: &&String| state.parameters.get(*key) != parameters.get(*key);
    let mut keys = parameters.as_object().into_iter().flat_map(serde_json::Map::keys);
    if let Some(key) = keys.find(differs) {
        misfit!(
            true,
            "--resume {shown} is of a run with other arguments ({key}: {}, and now {}); use the same ones, or \
             remove it to begin anew",
            state.parameters[key],
            parameters[key]
        );
    }
    Ok(state.done)
}

/// The parameters that have to stay the same.
fn fixed(parameters: &Parameters) -> Result<Value> {
    let mut value = serde_json::to_value(parameters)?;
    if let Some(map) = value.as_object_mut() {
        map.retain(|key, _| !FREE.contains(&key.as_str()));
        // Random where nobody has named it.
        map.remove("hostnqn");
    }
    Ok(value)
}
