//! One thread of a run: its streams, its queues, and the loop that keeps both busy.
//!
//! ```text
//! Load --time expired, or --ios done, or no more intervals, or stop--> Drain
//! Drain --all I/Os completed--> [ReadBack --everything read-->] Done
//! ```

use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

use nvmeof_initiator::{Clock, IoQueue, Nanos, nanos};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::thread::{CpuSet, sched_setaffinity};
use rustix::time::{ClockId, clock_gettime};

use crate::buffers::BufferCache;
use crate::intervals::JobIntervals;
use crate::queue::{DeviceQueue, FabricQueue, Io, IoDone, IoMemory, IoOp, LocalQueue, QueueFailed};
use crate::rate_limit::{AllowedKinds, JobRates, RateDecision, RateLimiter, ThinkTime};
use crate::stats::TimeSeries;
use crate::stream::{Stream, token_lane};

/// Loop iterations without a completion between two readings of the clock.
const IDLE_TURNS: u32 = 16;
/// Maximum sleep of a thread before it checks for the end of the run.
const NAP: Duration = Duration::from_millis(20);
/// Time by which the kernel may end a sleep late.
const SLACK: Duration = Duration::from_micros(60);
/// Interval between two progress reports.
const TELL: Nanos = 500_000_000;
/// Problems reported in full.
const MAX_MESSAGES: usize = 5;
/// Failed I/Os after which a job gives up.
const MAX_ERRORS: u64 = 1000;

/// A queue and the device it belongs to.
#[derive(Debug)]
pub(crate) enum JobQueue {
    Fabric { device: usize, queue: FabricQueue },
    Local { device: usize, queue: LocalQueue },
}

impl JobQueue {
    pub(crate) fn device(&self) -> usize {
        match self {
            Self::Fabric { device, .. } | Self::Local { device, .. } => *device,
        }
    }

    /// The kind of memory of its I/Os.
    pub(crate) fn memory(&self) -> IoMemory {
        match self {
            Self::Fabric { .. } => IoMemory::Fabric,
            Self::Local { .. } => IoMemory::Local,
        }
    }

    /// A descriptor that is readable when a poll may find completions.
    ///
    /// `None` if the queue has none.
    fn tells(&self) -> Option<BorrowedFd<'_>> {
        match self {
            Self::Fabric { .. } => None,
            Self::Local { queue, .. } => queue.tells(),
        }
    }

    /// The connection, for reuse; the queue of a local device is closed.
    fn into_connection(self) -> Option<(usize, IoQueue)> {
        match self {
            Self::Fabric { device, queue } => Some((device, queue.into_inner())),
            Self::Local { .. } => None,
        }
    }
}

impl DeviceQueue for JobQueue {
    #[inline]
    fn room(&self) -> usize {
        match self {
            Self::Fabric { queue, .. } => queue.room(),
            Self::Local { queue, .. } => queue.room(),
        }
    }

    #[inline]
    fn submit(&mut self, io: Io, now: Nanos) -> Result<(), Io> {
        match self {
            Self::Fabric { queue, .. } => queue.submit(io, now),
            Self::Local { queue, .. } => queue.submit(io, now),
        }
    }

    #[inline]
    fn poll(&mut self, now: Nanos, done: &mut Vec<IoDone>) -> Result<(), QueueFailed> {
        match self {
            Self::Fabric { queue, .. } => queue.poll(now, done),
            Self::Local { queue, .. } => queue.poll(now, done),
        }
    }

    #[inline]
    fn flush(&mut self) -> Result<(), QueueFailed> {
        match self {
            Self::Fabric { queue, .. } => queue.flush(),
            Self::Local { queue, .. } => queue.flush(),
        }
    }
}

/// State that jobs and the main thread share during a run.
#[derive(Debug, Default)]
pub(crate) struct JobControl {
    /// End early; set at the caller's request, and by a job whose error ends the load.
    pub(crate) stop: AtomicBool,
    /// One per job.
    pub(crate) counters: Vec<JobProgress>,
}

impl JobControl {
    /// Bytes completed by job and stream, with an age of about a second.
    pub(crate) fn positions(&self) -> Vec<Vec<u64>> {
        let of = |counter: &JobProgress| {
            counter.positions.iter().map(|done| done.load(Ordering::Relaxed)).collect()
        };
        self.counters.iter().map(of).collect()
    }
}

/// Progress of a job so far, over all phases; on separate cache lines.
#[derive(Debug)]
#[repr(align(128))]
pub(crate) struct JobProgress {
    pub(crate) ios: AtomicU64,
    pub(crate) bytes: AtomicU64,
    /// Per stream: see [`Stream::position`].
    positions: Vec<AtomicU64>,
}

impl JobProgress {
    /// A counter for a job with this number of streams, and the bytes that they did earlier.
    pub(crate) fn new(streams: usize, done: Option<&Vec<u64>>) -> Self {
        let of = |stream| done.and_then(|done| done.get(stream)).copied().unwrap_or(0);
        let positions = (0..streams).map(|stream| AtomicU64::new(of(stream))).collect();
        Self { ios: AtomicU64::new(0), bytes: AtomicU64::new(0), positions }
    }
}

/// Duration and rates of a job.
#[derive(Debug, Clone)]
pub(crate) struct JobTiming {
    pub(crate) ramp: Duration,
    pub(crate) time: Duration,
    /// Rates of this job.
    pub(crate) rates: JobRates,
    pub(crate) think: Option<ThinkTime>,
    /// Bytes of the largest I/O.
    pub(crate) bs: u32,
    /// I/Os after which this job ends.
    pub(crate) ios: u64,
    /// Read back the written data after the load.
    pub(crate) read_back: bool,
}

/// Results of a job.
#[derive(Debug)]
pub(crate) struct JobResult {
    /// Index of the job.
    pub(crate) index: usize,
    pub(crate) streams: Vec<Stream>,
    pub(crate) series: TimeSeries,
    /// Length of the measured time.
    pub(crate) measured: Nanos,
    /// CPU time used in it.
    pub(crate) cpu: Nanos,
    /// First problems, as text.
    pub(crate) messages: Vec<String>,
    /// Lost connections and devices, and failed operations of the thread.
    pub(crate) lost: u64,
    /// Reusable connections, and their devices.
    pub(crate) queues: Vec<(usize, IoQueue)>,
    /// Ended early.
    pub(crate) interrupted: bool,
    /// Read-back ran to completion.
    pub(crate) read_back: bool,
}

impl JobResult {
    /// The result of a job that has not started.
    pub(crate) fn none(index: usize, messages: Vec<String>, time: Duration) -> Self {
        Self {
            index,
            streams: Vec::new(),
            series: TimeSeries::new(nanos(time)),
            measured: 0,
            cpu: 0,
            messages,
            lost: 0,
            queues: Vec::new(),
            interrupted: false,
            read_back: false,
        }
    }
}

#[derive(Debug)]
pub(crate) struct Job {
    pub(crate) index: usize,
    pub(crate) streams: Vec<Stream>,
    pub(crate) buffers: BufferCache,
    /// Maximum I/Os in flight over all streams, if they share them.
    pub(crate) in_flight_at_most: Option<u32>,
    pub(crate) queues: Vec<JobQueue>,
    pub(crate) timing: JobTiming,
    /// One clock for all loads of a target; its queues take times from it.
    pub(crate) clock: Clock,
    /// Problems that keep the job from working.
    pub(crate) problems: Vec<String>,
    pub(crate) control: Arc<JobControl>,
    /// Sleeps when it has nothing to do.
    pub(crate) sleeps: bool,
    /// Selects the counted intervals, unless the time does.
    pub(crate) intervals: Option<JobIntervals>,
    pub(crate) start: Arc<StartBarrier>,
}

/// Barrier at which threads wait until all of them are ready.
#[derive(Debug, Default)]
pub(crate) struct StartBarrier {
    state: Mutex<BarrierState>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct BarrierState {
    ready: usize,
    is_open: bool,
}

impl StartBarrier {
    /// Marks this thread as ready, and waits for the others.
    fn wait(&self) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.ready += 1;
        self.changed.notify_all();
        while !state.is_open {
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Releases the threads when `threads` of them are ready.
    pub(crate) fn open(&self, threads: usize) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        while state.ready < threads {
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state.is_open = true;
        self.changed.notify_all();
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Load,
    Drain,
    ReadBack,
    Done,
}

/// A [`Job`] in progress.
#[derive(Debug)]
struct JobLoop {
    job: Job,
    phase: Phase,
    /// Start and end of the measurement.
    window: (Nanos, Nanos),
    rate_limiter: RateLimiter,
    /// Time at which the next I/O may start, if none may start now.
    resume_at: Option<Nanos>,
    /// Time of the last progress report.
    told: Nanos,
    /// A stream has room for an I/O and could not start one.
    is_starved: bool,
    /// Next stream when streams share the I/Os.
    next_stream: usize,
    in_flight: u32,
    cpu_at_start: Option<Nanos>,
    ios: u64,
    bytes: u64,
    result: JobResult,
}

impl Job {
    /// Runs the job to its end.
    pub(crate) fn run(mut self) -> JobResult {
        let messages = std::mem::take(&mut self.problems);
        if !messages.is_empty() {
            self.control.stop.store(true, Ordering::Relaxed);
        }
        let clock = self.clock;
        self.start.wait();
        let start = clock.now();
        let from = start.saturating_add(nanos(self.timing.ramp));
        let to = from.saturating_add(nanos(self.timing.time));
        let lost = messages.len() as u64;
        let result = JobResult { lost, ..JobResult::none(self.index, messages, self.timing.time) };
        let JobTiming { rates, think, bs, .. } = &self.timing;
        let rate_limiter = RateLimiter::new(rates, *think, start, self.streams.len(), *bs);
        let queues = std::mem::take(&mut self.queues);
        let mut running = JobLoop {
            job: self,
            phase: Phase::Load,
            window: (from, to),
            rate_limiter,
            resume_at: None,
            told: start,
            is_starved: true,
            next_stream: 0,
            in_flight: 0,
            cpu_at_start: None,
            ios: 0,
            bytes: 0,
            result,
        };
        running.run(queues, clock);
        running.result.streams = running.job.streams;
        running.result
    }
}

impl JobLoop {
    fn run(&mut self, mut queues: Vec<JobQueue>, clock: Clock) {
        let mut done = Vec::new();
        let mut now = clock.now();
        let mut idle = 0_u32;
        while self.phase != Phase::Done {
            let mut was_idle = true;
            for at in 0..queues.len() {
                let failed = queues[at].poll(now, &mut done).err();
                if !done.is_empty() && failed.is_none() {
                    was_idle = false;
                    now = clock.now();
                    self.take(&mut done, &mut queues[at], now);
                }
                let failed = failed.or_else(|| queues[at].flush().err());
                if let Some(error) = failed {
                    self.lose(&mut queues, at, now, &mut done, &error.to_string());
                    break;
                }
            }
            let before = self.in_flight;
            if self.is_starved || !self.rate_limiter.is_free() {
                now = clock.now();
                self.top_up(&mut queues, now);
                for queue in &mut queues {
                    // The next poll reports a failure.
                    let _ = queue.flush();
                }
            }
            // I/Os issued just now start with the next poll.
            let may_sleep = was_idle && self.job.sleeps && self.in_flight > 0;
            if may_sleep && self.in_flight == before && self.rate_limiter.is_free() {
                sleep(&queues);
                now = clock.now();
            }
            idle = if was_idle { idle + 1 } else { 0 };
            if idle >= IDLE_TURNS {
                idle = 0;
                now = clock.now();
                self.rest(now);
            }
            self.tell(now);
            if self.job.intervals.as_ref().is_some_and(JobIntervals::has_next)
                && self.phase == Phase::Load
            {
                self.next_turn();
            }
            self.advance(now);
        }
        let connections = queues.into_iter().filter_map(JobQueue::into_connection);
        self.result.queues = connections.collect();
    }

    /// Starts the next measurement interval.
    fn next_turn(&mut self) {
        let Job { intervals, streams, clock, .. } = &mut self.job;
        if let Some(intervals) = intervals {
            intervals.begin_next(streams, clock);
            self.is_starved = true;
        }
    }

    /// Sleeps through most of a pause, if no I/O in flight can complete during it.
    fn rest(&self, now: Nanos) {
        let left = self.resume_at.map_or(0, |at| at.min(self.window.1).saturating_sub(now));
        let left = Duration::from_nanos(left).saturating_sub(SLACK);
        if self.in_flight == 0 && self.phase == Phase::Load && left > SLACK {
            std::thread::sleep(left.min(NAP));
        }
    }

    /// Reports progress every [`TELL`].
    #[inline]
    fn tell(&mut self, now: Nanos) {
        if now.saturating_sub(self.told) >= TELL {
            self.told = now;
            let counter = &self.job.control.counters[self.job.index];
            for (told, stream) in counter.positions.iter().zip(&self.job.streams) {
                told.store(stream.position(), Ordering::Relaxed);
            }
        }
    }

    /// Takes the completions of `queue` and issues new I/Os in their place.
    #[inline]
    fn take(&mut self, done: &mut Vec<IoDone>, queue: &mut JobQueue, now: Nanos) {
        let (from, to) = self.window;
        let (from, is_counting) = match &self.job.intervals {
            Some(intervals) => (intervals.origin(), intervals.is_counting()),
            None => (from, now >= from),
        };
        let record = self.phase == Phase::Load && is_counting && now < to;
        let (mut ios, mut bytes) = (0, 0);
        for completed in done.drain(..) {
            let at = token_lane(completed.token);
            self.in_flight -= 1;
            let Job { streams, buffers, .. } = &mut self.job;
            let outcome = streams[at].complete(completed, now, record, buffers);
            if outcome.bytes > 0 {
                ios += 1;
                bytes += outcome.bytes;
            }
            if let Some(problem) = outcome.problem {
                self.report(problem);
            }
            let goes_on = matches!(self.phase, Phase::Load | Phase::ReadBack);
            let alone = self.rate_limiter.is_free() && self.job.in_flight_at_most.is_none();
            if goes_on && !(alone && self.issue(at, queue, now, AllowedKinds::All)) {
                self.is_starved = true;
            }
        }
        if record {
            self.result.series.record(now - from, ios, bytes);
        }
        self.ios += ios;
        self.bytes += bytes;
        let counter = &self.job.control.counters[self.job.index];
        counter.ios.store(self.ios, Ordering::Relaxed);
        counter.bytes.store(self.bytes, Ordering::Relaxed);
    }

    /// Starts one I/O of stream `at` on `queue`, of the `kinds` that may start.
    ///
    /// Returns false if that is impossible now.
    #[inline]
    fn issue(&mut self, at: usize, queue: &mut JobQueue, now: Nanos, kinds: AllowedKinds) -> bool {
        if queue.room() == 0 {
            return false;
        }
        if self.job.in_flight_at_most.is_some_and(|most| self.in_flight >= most) {
            return false;
        }
        let Job { streams, buffers, .. } = &mut self.job;
        let Some(io) = streams[at].next(now, kinds, buffers) else {
            if let Some(problem) = buffers.take_problem() {
                self.give_up(problem);
            }
            return false;
        };
        let bytes = streams[at].bytes(&io);
        let is_read = matches!(io.op, IoOp::Read(_));
        if let Err(io) = queue.submit(io, now) {
            // If the queue has failed, `poll` returns the reason.
            let result = Err("the queue has failed, or is out of memory".to_owned());
            let lost = IoDone { token: io.token, result, buffer: io.op.into_buffer() };
            streams[at].complete(lost, now, false, buffers);
            return false;
        }
        self.in_flight += 1;
        self.rate_limiter.started(bytes, is_read);
        true
    }

    /// Starts every I/O that may start, on any queue.
    fn top_up(&mut self, queues: &mut [JobQueue], now: Nanos) {
        if !matches!(self.phase, Phase::Load | Phase::ReadBack) {
            return;
        }
        self.is_starved = false;
        self.resume_at = None;
        let mut has_moved = true;
        while has_moved {
            if self.job.in_flight_at_most.is_some_and(|most| self.in_flight >= most) {
                // The next completion makes room and sets `is_starved` again.
                self.is_starved = false;
                return;
            }
            has_moved = false;
            for step in 0..self.job.streams.len() {
                // When streams share I/Os, the stream after the last one served comes first.
                let at = (self.next_stream + step) % self.job.streams.len();
                if !self.job.streams[at].has_credit() {
                    continue;
                }
                let kinds = match self.rate_limiter.look(now, self.in_flight) {
                    RateDecision::Now(kinds) => kinds,
                    RateDecision::WhenIdle => return,
                    RateDecision::At(at) => {
                        self.resume_at = Some(at);
                        return;
                    }
                };
                let device = self.job.streams[at].device;
                let mut issued = false;
                for queue in queues.iter_mut().filter(|queue| queue.device() == device) {
                    if self.issue(at, queue, now, kinds) {
                        issued = true;
                        break;
                    }
                }
                if issued {
                    has_moved = true;
                    if self.job.in_flight_at_most.is_some() {
                        self.next_stream = at + 1;
                        break;
                    }
                } else {
                    self.is_starved = true;
                }
            }
        }
    }

    /// Enters the next phase when it is due.
    fn advance(&mut self, now: Nanos) {
        let (from, to) = self.window;
        match self.phase {
            Phase::Load => {
                if self.cpu_at_start.is_none() && now >= from {
                    self.cpu_at_start = Some(cpu_time());
                }
                let stop = self.job.control.stop.load(Ordering::Relaxed);
                let is_done = self.job.streams.iter().all(Stream::is_done);
                let is_called_off = self.job.intervals.as_ref().is_some_and(JobIntervals::is_over);
                let is_over =
                    now >= to || self.ios >= self.job.timing.ios || is_done || is_called_off;
                if !is_over && !stop {
                    return;
                }
                self.result.interrupted = !is_over;
                let Job { intervals, streams, .. } = &mut self.job;
                (self.result.measured, self.result.cpu) = match intervals {
                    Some(intervals) => intervals.leave(streams, now),
                    None => (
                        now.min(to).saturating_sub(from),
                        cpu_time() - self.cpu_at_start.unwrap_or_else(cpu_time),
                    ),
                };
                self.phase = Phase::Drain;
            }
            Phase::Drain => {
                if !self.is_idle() {
                    return;
                }
                let wanted = self.job.timing.read_back && !self.result.interrupted;
                if wanted && self.result.lost == 0 {
                    self.job.streams.iter_mut().for_each(Stream::start_read_back);
                    self.rate_limiter = RateLimiter::new(&JobRates::default(), None, now, 0, 0);
                    self.is_starved = true;
                    self.phase = Phase::ReadBack;
                } else {
                    self.phase = Phase::Done;
                }
            }
            Phase::ReadBack => {
                if self.job.control.stop.load(Ordering::Relaxed) {
                    self.result.interrupted = true;
                    self.phase = Phase::Drain;
                } else if self.is_idle() {
                    // `top_up` ran just now and found nothing more to read.
                    self.result.read_back = true;
                    self.phase = Phase::Done;
                }
            }
            Phase::Done => {}
        }
    }

    /// Ends the run with its results so far, because a connection failed.
    fn lose(
        &mut self,
        queues: &mut Vec<JobQueue>,
        at: usize,
        now: Nanos,
        done: &mut Vec<IoDone>,
        error: &str,
    ) {
        let mut queue = queues.swap_remove(at);
        self.result.lost += 1;
        self.report(error.to_owned());
        self.job.control.stop.store(true, Ordering::Relaxed);
        if matches!(self.phase, Phase::Load | Phase::ReadBack) {
            self.advance(now);
        }
        // After a failed flush, the commands stay for the next poll.
        let _ = queue.poll(now, done);
        self.take(done, &mut queue, now);
    }

    fn is_idle(&self) -> bool {
        self.job.streams.iter().all(Stream::is_idle)
    }

    /// Ends the run because this thread cannot do its work.
    #[cold]
    fn give_up(&mut self, problem: String) {
        self.result.lost += 1;
        self.report(problem);
        self.job.control.stop.store(true, Ordering::Relaxed);
    }

    #[cold]
    fn report(&mut self, problem: String) {
        if self.result.messages.len() < MAX_MESSAGES {
            self.result.messages.push(problem);
        }
        let errors: u64 = self.job.streams.iter().map(|stream| stream.errors).sum();
        if errors >= MAX_ERRORS && !self.job.control.stop.swap(true, Ordering::Relaxed) {
            self.result.messages.push(format!("giving up after {errors} failed I/Os"));
        }
    }
}

/// Sleeps until a poll may find completions, for at most [`NAP`].
///
/// Does not sleep if one of the queues has no descriptor.
#[cold]
fn sleep(queues: &[JobQueue]) {
    let fds =
        queues.iter().map(|queue| Some(PollFd::from_borrowed_fd(queue.tells()?, PollFlags::IN)));
    let Some(mut fds) = fds.collect::<Option<Vec<_>>>() else { return };
    let timeout = Timespec::try_from(NAP).ok();
    // Interrupted or not, the caller polls.
    let _ = rustix::event::poll(&mut fds, timeout.as_ref());
}

/// Pins this thread to `cpu`.
pub(crate) fn pin(cpu: usize) -> Result<(), String> {
    let mut set = CpuSet::new();
    set.set(cpu);
    sched_setaffinity(None, &set)
        .map_err(|error| format!("cannot pin a job to CPU {cpu}: {error}; check --cpus"))
}

/// CPU time of this thread.
pub(crate) fn cpu_time() -> Nanos {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    seconds * 1_000_000_000 + u64::try_from(time.tv_nsec).unwrap_or(0)
}
