//! How far apart the two CPUs are now: on a virtual machine they are moved, and what both pass to one another is half
//! as fast for seconds where they do not share a cache. The kernel does not see it.

use std::hint;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow};
use rustix::thread::{CpuSet, sched_setaffinity};

/// A look is so many slices of so many round trips of one cache line; the fastest slice counts, as others may have been
/// interrupted.
const SLICES: u32 = 8;
const TRIPS: u32 = 50;
/// From one look to the next: 28 us of each CPU where a round trip takes 70 ns.
const PAUSE: Duration = Duration::from_millis(50);
/// One of the two may come late to a look, or not at all; the other waits for it so long at most.
const LATE: Duration = Duration::from_millis(1);
/// How long is looked at first, to find out what the machine can do.
const FIRST: Duration = Duration::from_secs(2);
/// How long a point waits for them to come together, at most.
const PATIENCE: Duration = Duration::from_secs(10);
/// They are apart if a round trip takes so many times what it takes at best, in the middle of many looks.
const APART: f64 = 1.5;

/// Sends a cache line to and fro now and then.
#[derive(Debug)]
pub(super) struct Yardstick {
    cpus: [usize; 2],
    /// The least that was the middle of what was seen at a time: what a look takes at best.
    best: Duration,
}

impl Yardstick {
    /// Finds out what these CPUs can do.
    pub(super) fn new(cpus: [usize; 2]) -> Result<Self> {
        let mut yardstick = Self { cpus, best: Duration::MAX };
        yardstick.watch(|| thread::sleep(FIRST))?;
        Ok(yardstick)
    }

    /// Waits until they are not apart, for a while.
    pub(super) fn wait(&mut self) -> Result<()> {
        let begun = Instant::now();
        while self.watch(|| thread::sleep(4 * PAUSE))?.1 && begun.elapsed() < PATIENCE {}
        Ok(())
    }

    /// What a round trip takes at best, if it was seen.
    pub(super) fn trip(&self) -> Option<Duration> {
        (self.best < Duration::MAX).then(|| self.best / TRIPS)
    }

    /// Does something that takes a while; yields what came of it, and whether the CPUs were apart meanwhile.
    pub(super) fn watch<T>(&mut self, measure: impl FnOnce() -> T) -> Result<(T, bool)> {
        let [near, far] = self.cpus;
        let ball = Ball { at: AtomicU32::new(0), is_over: AtomicBool::new(false) };
        let begun = Instant::now();
        let (measured, looks) = thread::scope(|scope| {
            let there = scope.spawn(|| ball.watch(far, 1, begun));
            let here = scope.spawn(|| ball.watch(near, 0, begun));
            let end = End(&ball.is_over);
            let measured = measure();
            drop(end);
            join(there)?;
            join(here).map(|looks| (measured, looks))
        })?;
        Ok((measured, self.were_apart(&looks)))
    }

    fn were_apart(&mut self, looks: &[Duration]) -> bool {
        let mut took = looks.to_vec();
        took.sort_unstable();
        let Some(&middle) = took.get(took.len() / 2) else { return false };
        self.best = self.best.min(middle);
        middle.as_secs_f64() > APART * self.best.as_secs_f64()
    }
}

/// Ends the looks even if what is measured panics.
struct End<'a>(&'a AtomicBool);

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

fn join<T>(thread: thread::ScopedJoinHandle<'_, Result<T>>) -> Result<T> {
    thread.join().map_err(|_| anyhow!("looking at the machine's speed panicked"))?
}

/// What goes to and fro.
#[derive(Debug)]
#[repr(align(128))]
struct Ball {
    /// Even: it is with the first of the two.
    at: AtomicU32,
    is_over: AtomicBool,
}

impl Ball {
    /// Plays from `begun` on, every [`PAUSE`], until it is over; yields the times of the fastest slices.
    fn watch(&self, cpu: usize, side: u32, begun: Instant) -> Result<Vec<Duration>> {
        let mut set = CpuSet::new();
        set.set(cpu);
        sched_setaffinity(None, &set).with_context(|| format!("cannot run on CPU {cpu}"))?;
        let mut looks = Vec::new();
        for turn in 0.. {
            thread::sleep((begun + turn * PAUSE).saturating_duration_since(Instant::now()));
            if self.is_over.load(Ordering::Relaxed) {
                break;
            }
            looks.extend(self.play(turn, side));
        }
        Ok(looks)
    }

    /// `None` if the other one did not come, or left.
    fn play(&self, turn: u32, side: u32) -> Option<Duration> {
        let late = Instant::now() + LATE;
        // Never what was left of the turn before.
        let mut next = turn.wrapping_mul(4 * SLICES * TRIPS) + side;
        if side == 0 {
            self.at.store(next, Ordering::Release);
        }
        let mut least = None;
        for _ in 0..SLICES {
            let begun = Instant::now();
            for _ in 0..TRIPS {
                while self.at.load(Ordering::Acquire) != next {
                    if Instant::now() > late {
                        return None;
                    }
                    hint::spin_loop();
                }
                self.at.store(next + 1, Ordering::Release);
                next += 2;
            }
            let took = begun.elapsed();
            least = Some(least.map_or(took, |least: Duration| least.min(took)));
        }
        least
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A CPU that this process may run on.
    fn cpu() -> usize {
        let set = rustix::thread::sched_getaffinity(None).expect("the kernel says it");
        (0..1024).find(|&cpu| set.is_set(cpu)).expect("there is one")
    }

    #[test]
    fn cpus_are_apart_if_they_are_so_most_of_the_time() {
        let mut yardstick = Yardstick { cpus: [0, 1], best: Duration::from_micros(4) };
        let looks = |apart: usize, near: u64| {
            let took = |index| if index < apart { 15 } else { near };
            (0..20).map(|index| Duration::from_micros(took(index))).collect::<Vec<_>>()
        };
        assert!(!yardstick.were_apart(&looks(0, 5)) && !yardstick.were_apart(&looks(9, 5)));
        assert!(yardstick.were_apart(&looks(11, 5)));
        assert!(!yardstick.were_apart(&[]), "nothing was seen");
        // They can be nearer than was known, but not for a moment only.
        let mut lucky = looks(0, 5);
        lucky[0] = Duration::from_micros(1);
        assert!(!yardstick.were_apart(&lucky) && !yardstick.were_apart(&looks(0, 5)));
        assert!(!yardstick.were_apart(&looks(0, 2)));
        assert!(yardstick.were_apart(&looks(0, 5)));
    }

    #[test]
    fn the_ball_goes_to_and_fro() {
        let ball = Ball { at: AtomicU32::new(7), is_over: AtomicBool::new(false) };
        let turn_of_both = |turn: u32| {
            thread::scope(|scope| {
                let there = scope.spawn(|| ball.play(turn, 1));
                (ball.play(turn, 0), there.join().expect("no panic"))
            })
        };
        let came = (0..500).filter(|&turn| turn_of_both(turn).0.is_some()).count();
        // Where there is one CPU, each waits in vain for the other.
        let alone = thread::available_parallelism().is_ok_and(|count| count.get() == 1);
        assert!(alone || came > 0);
        assert_eq!(ball.play(501, 0), None, "nobody is there");
    }

    #[test]
    fn what_is_measured_comes_back() {
        let mut yardstick = Yardstick { cpus: [cpu(); 2], best: Duration::MAX };
        let watched = yardstick.watch(|| 7).expect("there is a CPU");
        assert_eq!(watched.0, 7);
    }

    #[test]
    fn what_panics_does_not_hang() {
        let panics = thread::spawn(|| {
            let mut yardstick = Yardstick { cpus: [cpu(); 2], best: Duration::MAX };
            yardstick.watch(|| panic!("as a test")).map(|(never, _): (u8, _)| never)
        });
        panics.join().expect_err("it panicked");
    }

    #[test]
    fn a_cpu_that_is_not_there_is_told() {
        let error = Yardstick::new([cpu(), 1 << 9]).expect_err("there is none");
        assert!(error.to_string().contains("CPU 512"), "{error}");
    }
}
