//! The threads of the control plane: one for its loop, and *workers* for calls that block.
//!
//! All workers start before the daemon serves anything, so a change or a stop needs no new thread.
//! If the process reaches a thread limit later (TasksMax=, the pids limit of a container,
//! RLIMIT_NPROC), changes and stops still work.

use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

use anyhow::Context as _;
use tokio::runtime::{Builder, Runtime};

/// Workers that start in advance.
///
/// The daemon makes one change at a time; the remaining workers wait for calls that hang.
const WORKERS: usize = 8;
/// Maximum number of workers.
///
/// Workers beyond [`WORKERS`] start only while all others wait. If a start fails, the call waits
/// for a free worker.
const WORKERS_MAX: usize = 64;
/// Time that idle workers stay: practically forever, but small enough to be added to a time.
const KEEP_ALIVE: Duration = Duration::from_secs(100 * 365 * 24 * 3600);
/// Longest time until all workers have started.
const START: Duration = Duration::from_secs(10);
/// Remedy for a thread limit that is too low.
const RAISE: &str = "raise the limit of threads (TasksMax= of the unit, the pids limit of the container, ulimit -u)";

/// Creates the runtime of the control plane, with its workers.
///
/// # Errors
/// A thread cannot be started; the error names the remedy.
pub(crate) fn runtime() -> anyhow::Result<Runtime> {
    let runtime = Builder::new_current_thread()
        .enable_all()
        .max_blocking_threads(WORKERS_MAX)
        .thread_keep_alive(KEEP_ALIVE)
        .thread_name("worker")
        .build()
        .context("cannot start the control plane")?;
    start_workers(&runtime)?;
    Ok(runtime)
}

/// Makes [`WORKERS`] workers exist at the same time.
fn start_workers(runtime: &Runtime) -> anyhow::Result<()> {
    // The runtime panics if it has no worker at all.
    let one = std::thread::Builder::new().spawn(|| ());
    one.map(drop).with_context(|| format!("cannot start a thread: {RAISE}"))?;
    let (arrive, arrived) = sync_channel(WORKERS);
    let all_there = Arc::new((Mutex::new(false), Condvar::new()));
    for _ in 0..WORKERS {
        let (arrive, all_there) = (arrive.clone(), Arc::clone(&all_there));
        runtime.spawn_blocking(move || {
            // The channel has room for all.
            let _ = arrive.try_send(());
            let (released, changed) = &*all_there;
            let released = released.lock().unwrap_or_else(PoisonError::into_inner);
            // While this worker waits here, the next task needs another thread.
            drop(changed.wait_while(released, |released| !*released));
        });
    }
    let mut started = 0;
    let outcome: Result<(), RecvTimeoutError> = (0..WORKERS).try_for_each(|_| {
        arrived.recv_timeout(START)?;
        started += 1;
        Ok(())
    });
    let (released, changed) = &*all_there;
    *released.lock().unwrap_or_else(PoisonError::into_inner) = true;
    changed.notify_all();
    outcome.ok().with_context(|| {
        format!("cannot start the {WORKERS} threads of the control plane, only {started}: {RAISE}")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the number of worker threads.
    ///
    /// They have a name that threads of other tests do not have.
    fn workers() -> usize {
        let threads = std::fs::read_dir("/proc/self/task").unwrap().flatten();
        let names = threads.flat_map(|one| std::fs::read_to_string(one.path().join("comm")));
        names.filter(|name| name.trim() == "worker").count()
    }

    #[test]
    fn workers_are_there_before_they_are_needed_and_stay() {
        let runtime = runtime().unwrap();
        assert_eq!(workers(), WORKERS);
        for _ in 0..3 * WORKERS {
            runtime.block_on(runtime.spawn_blocking(|| ())).unwrap();
        }
        assert!(workers() >= WORKERS);
    }
}
