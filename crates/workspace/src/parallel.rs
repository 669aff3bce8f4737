//! Concurrent execution: several items concurrently, and some only alone.

use std::sync::Mutex;
use std::thread;

/// Runs `run` for each item, `jobs` of them concurrently, in their order.
///
/// At the end it runs the items that have to be `alone`, one after the other. Returns the results
/// in the order of the items.
pub fn run_parallel<I: Sync, T: Send>(
    items: &[I],
    jobs: usize,
    alone: impl Fn(&I) -> bool,
    run: impl Fn(&I) -> T + Sync,
) -> Vec<T> {
    let (last, together): (Vec<_>, Vec<_>) =
        items.iter().enumerate().partition(|(_, item)| alone(item));
    let queue = Mutex::new(together.into_iter());
    let take = || queue.lock().ok().and_then(|mut queue| queue.next());
    let work = || {
        let mut results = Vec::new();
        while let Some((index, item)) = take() {
            results.push((index, run(item)));
        }
        results
    };
    let mut results = thread::scope(|scope| {
        let workers: Vec<_> = (0..jobs.max(1)).map(|_| scope.spawn(work)).collect();
        let end = |worker: thread::ScopedJoinHandle<'_, _>| match worker.join() {
            Ok(results) => results,
            Err(panic) => std::panic::resume_unwind(panic),
        };
        workers.into_iter().flat_map(end).collect::<Vec<_>>()
    });
    results.extend(last.into_iter().map(|(index, item)| (index, run(item))));
    results.sort_by_key(|(index, _)| *index);
    results.into_iter().map(|(_, result)| result).collect()
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[test]
    fn each_runs_once_and_the_results_are_in_order() {
        for jobs in [0, 1, 3, 20] {
            let results = run_parallel(&[3, 1, 4, 1, 5, 9], jobs, |n| *n == 4, |n| n * 10);
            assert_eq!(results, [30, 10, 40, 10, 50, 90], "{jobs} at once");
        }
        assert!(run_parallel(&[], 2, |_: &u8| true, |n| *n).is_empty());
    }

    #[test]
    fn as_many_as_allowed_run_at_once() {
        // Neither returns before both have begun.
        let both = Barrier::new(2);
        run_parallel(&[(), ()], 2, |()| false, |()| both.wait());
    }

    #[test]
    fn what_is_to_be_alone_is() {
        let (running, most) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let run = |n: &u8| {
            let before = running.fetch_add(1, Ordering::SeqCst);
            most.fetch_max(before + 1, Ordering::SeqCst);
            assert!(*n != 0 || before == 0, "{before} ran beside one that is to be alone");
            thread::yield_now();
            running.fetch_sub(1, Ordering::SeqCst);
        };
        run_parallel(&[1, 0, 2, 0, 3], 2, |n| *n == 0, run);
        assert!(most.load(Ordering::SeqCst) <= 2);
    }
}
