//! How far apart the two CPUs are now: on a virtual machine they are moved, and what both pass to one another is half
//! as fast for seconds where they do not share a cache. The kernel does not see it.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow};
use rustix::thread::{CpuSet, sched_setaffinity};

/// A look is so many slices of so many round trips of one cache line; the fastest slice counts, as others may have been
/// interrupted.
const SLICES: u32 = 8;
const TRIPS: u32 = 50;
/// From one look to the next: they take about a part in a thousand of both CPUs.
const PAUSE: Duration = Duration::from_millis(50);
/// One of the two may come late to a look, or not at all.
const LATE: Duration = Duration::from_millis(5);
/// How long is looked at first, to find out what the machine can do.
const FIRST: Duration = Duration::from_secs(2);
/// How long a point waits for them to come together, at most.
const PATIENCE: Duration = Duration::from_secs(10);
/// The CPUs are apart if a round trip takes so many times the least; and they were, in a run, if they were so in more
/// than this part of the looks.
const APART: f64 = 1.5;
const FEW: f64 = 0.1;

/// Sends a cache line to and fro now and then.
#[derive(Debug)]
pub(super) struct Yardstick {
    cpus: [usize; 2],
    /// The least time that a slice took.
    least: Duration,
}

impl Yardstick {
    /// Finds out what these CPUs can do.
    pub(super) fn new(cpus: [usize; 2]) -> Result<Self> {
        let mut yardstick = Self { cpus, least: Duration::MAX };
        yardstick.watch(Duration::ZERO, || thread::sleep(FIRST))?;
        Ok(yardstick)
    }

    /// Waits until they are not apart, for a while.
    pub(super) fn wait(&mut self) -> Result<()> {
        let begun = Instant::now();
        while self.watch(Duration::ZERO, || thread::sleep(4 * PAUSE))?.1
            && begun.elapsed() < PATIENCE
        {}
        Ok(())
    }

    /// The least time of a round trip so far.
    pub(super) fn trip(&self) -> Duration {
        self.least / TRIPS
    }

    /// Does something that takes a while; yields what came of it, and whether the CPUs were apart after the first `ramp`
    /// of it.
    pub(super) fn watch<T>(
        &mut self,
        ramp: Duration,
        measure: impl FnOnce() -> T,
    ) -> Result<(T, bool)> {
        let [near, far] = self.cpus;
        let ball = Ball { at: AtomicU32::new(0), is_over: AtomicBool::new(false) };
        let begun = Instant::now() + ramp;
        let (measured, looks) = thread::scope(|scope| {
            let there = scope.spawn(|| ball.watch(far, 1, begun));
            let here = scope.spawn(|| ball.watch(near, 0, begun));
            let measured = measure();
            ball.is_over.store(true, Ordering::Relaxed);
            join(there)?;
            join(here).map(|looks| (measured, looks))
        })?;
        Ok((measured, self.were_apart(&looks)))
    }

    fn were_apart(&mut self, looks: &[Duration]) -> bool {
        self.least = looks.iter().copied().fold(self.least, Duration::min);
        let bound = APART * self.least.as_secs_f64();
        let apart = looks.iter().filter(|look| look.as_secs_f64() > bound).count();
        apart as f64 > FEW * looks.len() as f64
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

    #[test]
    fn cpus_are_apart_if_they_are_so_more_than_now_and_then() {
        let mut yardstick = Yardstick { cpus: [0, 1], least: Duration::from_micros(4) };
        let looks = |apart: usize| {
            let mut looks = vec![Duration::from_micros(5); 20];
            looks[..apart].fill(Duration::from_micros(15));
            looks
        };
        assert!(!yardstick.were_apart(&looks(0)) && !yardstick.were_apart(&looks(2)));
        assert!(yardstick.were_apart(&looks(3)));
        assert!(!yardstick.were_apart(&[]), "nothing was seen");
        // They can be nearer than was known.
        assert!(!yardstick.were_apart(&[Duration::from_micros(2)]));
        assert!(yardstick.were_apart(&looks(0)));
    }

    #[test]
    fn the_ball_goes_to_and_fro() {
        let ball = Ball { at: AtomicU32::new(7), is_over: AtomicBool::new(false) };
        for turn in 0..20 {
            let (here, there) = thread::scope(|scope| {
                let there = scope.spawn(|| ball.play(turn, 1));
                (ball.play(turn, 0), there.join().expect("no panic"))
            });
            // Where there is one CPU, or it is busy, one of them waits in vain, and ends.
            assert!(here.is_none() || there.is_none() || here > Some(Duration::ZERO));
        }
        assert_eq!(ball.play(21, 0), None, "nobody is there");
    }

    #[test]
    fn what_is_measured_comes_back() {
        let mut yardstick = Yardstick { cpus: [0, 0], least: Duration::MAX };
        let watched = yardstick.watch(Duration::ZERO, || 7).expect("there is a CPU");
        assert_eq!(watched.0, 7);
    }

    #[test]
    fn a_cpu_that_is_not_there_is_told() {
        let error = Yardstick::new([0, 1 << 9]).expect_err("there is none");
        assert!(error.to_string().contains("CPU 512"), "{error}");
    }
}
