//! The threads of the control plane: one for its loop, and *workers* for calls that block.
//!
//! All workers start before anything is served. A change or a stop therefore needs no new thread: a limit of threads
//! (TasksMax=, the pids limit of a container, RLIMIT_NPROC) that is reached later stops neither.

use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

use anyhow::Context as _;
use tokio::runtime::{Builder, Runtime};

/// Workers that are started beforehand. One change is made at a time; the others wait for what hangs.
const WORKERS: usize = 8;
/// Workers at most. More than [`WORKERS`] are started only while all wait; where that fails, a call waits for one of
/// them.
const WORKERS_MAX: usize = 64;
/// How long workers wait for work: for ever, but in a form that can be added to a time.
const KEEP_ALIVE: Duration = Duration::from_secs(100 * 365 * 24 * 3600);
/// How long all workers may take to start.
const START: Duration = Duration::from_secs(10);
/// What to do about a limit.
const RAISE: &str = "raise the limit of threads (TasksMax= of the unit, the pids limit of the container, ulimit -u)";

/// The runtime of the control plane, with its workers.
///
/// # Errors
/// A thread cannot be started, and what to do.
pub(super) fn runtime() -> anyhow::Result<Runtime> {
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

/// Has so many workers there at the same time.
fn start_workers(runtime: &Runtime) -> anyhow::Result<()> {
    // The runtime panics if it has no worker at all.
    let one = std::thread::Builder::new().spawn(|| ());
    one.map(drop).with_context(|| format!("cannot start a thread: {RAISE}"))?;
    let (arrive, arrived) = sync_channel(WORKERS);
    let all_there = Arc::new((Mutex::new(false), Condvar::new()));
    for _ in 0..WORKERS {
        let (arrive, all_there) = (arrive.clone(), Arc::clone(&all_there));
        runtime.spawn_blocking(move || {
            // There is room for all.
            let _ = arrive.try_send(());
            let (released, changed) = &*all_there;
            let released = released.lock().unwrap_or_else(PoisonError::into_inner);
            // As long as it waits here, the next one needs a thread of its own.
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

    /// Threads of this process with the name of workers, which those of other tests do not have.
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
