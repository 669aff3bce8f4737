//! One load on an open target: threads with their own queues, and their measurements.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Result;
use nvmeof_console::complain;
use nvmeof_core::block::BlockDevice;
use nvmeof_core::dma::{ChunkPool, CorePool};
use nvmeof_initiator::{Clock, IoQueue, Nanos};

use crate::buffers::BufferCache;
use crate::intervals::{FlowName, IntervalConsole, IntervalDriver};
use crate::job::{Job, JobControl, JobProgress, JobQueue, JobResult, JobTiming, StartBarrier, pin};
use crate::plan::{self, Flow};
use crate::progress::{LoadGoal, Progress};
use crate::queue::{FabricQueue, IoMemory, LocalQueue, QueueFailed};
use crate::rate_limit::{JobRates, ThinkTime};
use crate::stats::{DirectionCounters, TimeSeries, VerifyCounters};
use crate::stream::{Stream, StreamId};
use crate::target::Target;
use crate::units::{CpuList, IoMix, RateLimit, TrimUse};
use crate::workload::distribution::Distribution;
use crate::workload::sizes::BlockSplit;

/// Interval between two checks of keep alives and progress.
const TICK: Duration = Duration::from_millis(50);
/// Interval between two calls of a watcher.
const WATCH: Duration = Duration::from_secs(1);

/// A load: the common specification of all threads.
///
/// [`LoadSpec::new`] makes a plain one. Change individual fields afterwards, because more fields
/// will be added.
#[derive(Debug, Clone)]
pub(crate) struct LoadSpec {
    /// Indices of the spaces to load; all if `None`.
    pub(crate) spaces: Option<Vec<usize>>,
    /// Kinds of I/Os, and their order.
    pub(crate) mix: IoMix,
    /// Bytes of an I/O.
    pub(crate) bs: u32,
    /// I/Os of several sizes instead of `bs`.
    pub(crate) split: Option<BlockSplit>,
    /// Distribution of random I/Os.
    pub(crate) distribution: Distribution,
    /// I/Os outstanding per thread, and per space unless they are shared.
    pub(crate) qd: u32,
    /// The spaces share the I/Os of a thread.
    pub(crate) shared: bool,
    /// Each thread loads one of the spaces, assigned round-robin, instead of all of them.
    pub(crate) dealt: bool,
    /// Idle threads sleep until a completion wakes them, if the device signals completions.
    pub(crate) sleeps: bool,
    pub(crate) jobs: u16,
    /// Time to run before measuring.
    pub(crate) ramp: Duration,
    /// Standard error tells when the ramp begins.
    pub(crate) announces: bool,
    /// Time to measure.
    pub(crate) time: Duration,
    /// The load ends after this many I/Os, unless the time expires first.
    pub(crate) ios: Option<u64>,
    /// The load ends when all threads together have loaded the used part of every space this many
    /// times.
    pub(crate) loops: Option<u32>,
    /// The load ends after this many bytes, over all spaces and threads together.
    pub(crate) io_size: Option<u64>,
    /// Maximum rates in total; all of them apply.
    pub(crate) rates: Vec<RateLimit>,
    /// The same for reads alone, and for writes alone.
    pub(crate) read_rates: Vec<RateLimit>,
    pub(crate) write_rates: Vec<RateLimit>,
    /// Pauses of each thread.
    pub(crate) think: Option<ThinkTime>,
    /// Every write has its own contents.
    pub(crate) refill: bool,
    /// First byte of each space to use.
    pub(crate) offset: u64,
    /// Bytes of each space to use; `None`: all from `offset` on.
    pub(crate) size: Option<u64>,
    /// Seed of addresses and data.
    pub(crate) seed: u64,
    /// Marks the blocks of this run, if they are verified: see [`run_mark`].
    pub(crate) verify: Option<u64>,
    /// CPUs for the threads, round-robin.
    pub(crate) cpus: Option<CpuList>,
    /// Bytes that an interrupted run had done, by thread and space; empty for a new run.
    pub(crate) done: Vec<Vec<u64>>,
    /// Receives the progress about every second.
    pub(crate) watcher: Option<LoadWatcher>,
    /// Selects the counted intervals; without it, everything after the ramp counts.
    pub(crate) intervals: Option<IntervalConsole>,
}

/// Takes the bytes done by thread and space during a load.
///
/// Called about every second, on the caller's thread.
#[derive(Clone)]
pub(crate) struct LoadWatcher(pub(crate) Arc<dyn Fn(Vec<Vec<u64>>) + Send + Sync>);

impl std::fmt::Debug for LoadWatcher {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Watcher")
    }
}

impl LoadSpec {
    /// One thread with one I/O outstanding on every space, on all of it, for ten seconds.
    pub(crate) fn new(mix: IoMix, bs: u32) -> Self {
        Self {
            spaces: None,
            mix,
            bs,
            split: None,
            distribution: Distribution::default(),
            qd: 1,
            shared: false,
            dealt: false,
            sleeps: false,
            jobs: 1,
            ramp: Duration::ZERO,
            announces: false,
            time: Duration::from_secs(10),
            ios: None,
            loops: None,
            io_size: None,
            rates: Vec::new(),
            read_rates: Vec::new(),
            write_rates: Vec::new(),
            think: None,
            refill: false,
            offset: 0,
            size: None,
            seed: 1,
            verify: None,
            cpus: None,
            done: Vec::new(),
            watcher: None,
            intervals: None,
        }
    }

    /// Sizes of its I/Os.
    pub(crate) fn sizes(&self) -> BlockSplit {
        self.split.clone().unwrap_or_else(|| BlockSplit::one(self.bs))
    }
}

/// Result of a load.
#[derive(Debug)]
pub(crate) struct LoadResult {
    /// One per loaded space.
    pub(crate) flows: Vec<FlowTotals>,
    /// I/Os and bytes by time.
    pub(crate) series: TimeSeries,
    /// Nanoseconds measured.
    pub(crate) measured: Nanos,
    /// CPU time of the threads in that time, in nanoseconds.
    pub(crate) cpu: Nanos,
    /// Lost connections and devices, and threads that could not do their work.
    pub(crate) lost: u64,
    /// Ended early.
    pub(crate) interrupted: bool,
    /// Everything written was read back and verified.
    pub(crate) read_back: bool,
    /// Bytes done by thread and space, from which a load that ended early can be resumed.
    pub(crate) done: Vec<Vec<u64>>,
    /// All work is done, if the load has an end other than its time.
    pub(crate) is_done: bool,
    /// First problems, as text.
    pub(crate) messages: Vec<String>,
}

/// Totals of one space, over all threads.
#[derive(Debug)]
pub(crate) struct FlowTotals {
    /// Index of the space.
    pub(crate) space: usize,
    pub(crate) read: DirectionCounters,
    pub(crate) write: DirectionCounters,
    pub(crate) trim: DirectionCounters,
    pub(crate) errors: u64,
    pub(crate) verified: VerifyCounters,
}

impl LoadResult {
    /// All reads.
    pub(crate) fn read(&self) -> DirectionCounters {
        self.sum(|flow| &flow.read)
    }

    /// All writes.
    pub(crate) fn write(&self) -> DirectionCounters {
        self.sum(|flow| &flow.write)
    }

    /// All trims.
    pub(crate) fn trim(&self) -> DirectionCounters {
        self.sum(|flow| &flow.trim)
    }

    /// Failed I/Os, connections and devices.
    pub(crate) fn errors(&self) -> u64 {
        self.lost + self.flows.iter().map(|flow| flow.errors).sum::<u64>()
    }

    /// Seconds measured.
    #[expect(clippy::cast_precision_loss, reason = "seconds with a fraction")]
    pub(crate) fn seconds(&self) -> f64 {
        self.measured as f64 / 1e9
    }

    fn sum(&self, of: fn(&FlowTotals) -> &DirectionCounters) -> DirectionCounters {
        let mut all = DirectionCounters::new();
        self.flows.iter().for_each(|flow| all.add(of(flow)));
        all
    }
}

/// A mark for the blocks that a run verifies.
///
/// It contains the time, to differ from earlier runs, and the process, to differ from a concurrent
/// run.
pub(crate) fn run_mark() -> u64 {
    let time = std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default();
    let time = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
    nvmeof_random::mix(time ^ u64::from(std::process::id()))
}

/// A thread's route to a device, opened on that thread.
#[derive(Debug)]
pub(crate) enum JobSource {
    Fabric { device: usize, queue: IoQueue },
    Local { index: usize, device: Arc<dyn BlockDevice>, pool: Arc<ChunkPool> },
}

impl JobSource {
    fn device(&self) -> usize {
        match self {
            Self::Fabric { device, .. } => *device,
            Self::Local { index, .. } => *index,
        }
    }

    fn into_connection(self) -> Option<(usize, IoQueue)> {
        match self {
            Self::Fabric { device, queue } => Some((device, queue)),
            Self::Local { .. } => None,
        }
    }

    /// Opens it for the calling thread, with memory of `pool`; creates the pool if necessary.
    pub(crate) fn open(self, pool: &mut Option<CorePool>) -> Result<JobQueue, QueueFailed> {
        match self {
            Self::Fabric { device, queue } => {
                Ok(JobQueue::Fabric { device, queue: FabricQueue::new(queue) })
            }
            Self::Local { index, device, pool: shared } => {
                let pool = pool.get_or_insert_with(|| CorePool::new(&shared));
                let queue = LocalQueue::open(&*device, pool)?;
                Ok(JobQueue::Local { device: index, queue })
            }
        }
    }
}

/// Runs a load: see [`Target::run`].
pub(crate) fn run(
    target: &mut Target,
    spec: &LoadSpec,
    stop: &Arc<AtomicBool>,
) -> Result<LoadResult> {
    let flows = plan::flows(target.spaces(), spec)?;
    let streams = |device| flows.iter().filter(|flow| flow.device == device).count();
    let wanted = |device| match streams(device) {
        0 => 0,
        streams => (if spec.shared { 1 } else { streams }) * spec.qd as usize,
    };
    let mut sources = target.sources(spec.jobs, wanted)?;
    if spec.dealt && !flows.is_empty() {
        for (index, sources) in sources.iter_mut().enumerate() {
            let device = flows[index % flows.len()].device;
            let (kept, others) = sources.drain(..).partition(|source| source.device() == device);
            *sources = kept;
            target.give_back(others.into_iter().filter_map(JobSource::into_connection).collect());
        }
    }
    let results = execute(target, spec, &flows, sources, stop);
    Ok(add_up(target, spec, &flows, results))
}

/// The line that announces a load, for programs that count during it.
const BEGINS: &str = "load begins";

/// Runs the jobs to their end, and keeps connections alive while they run.
fn execute(
    target: &mut Target,
    spec: &LoadSpec,
    flows: &[Flow],
    sources: Vec<Vec<JobSource>>,
    stop: &Arc<AtomicBool>,
) -> Vec<JobResult> {
    let jobs = sources.len();
    let counters = (0..jobs).map(|job| JobProgress::new(flows.len(), spec.done.get(job))).collect();
    let control =
        Arc::new(JobControl { stop: AtomicBool::new(stop.load(Ordering::Relaxed)), counters });
    let start = Arc::new(StartBarrier::default());
    let mut lost = Vec::new();
    let mut started = 0;
    let clock = target.clock();
    let driver = driver(target, spec, flows, jobs).unwrap_or_else(|problem| {
        lost.push(problem);
        control.stop.store(true, Ordering::Relaxed);
        None
    });
    let (sender, receiver) = channel();
    for (index, sources) in sources.into_iter().enumerate() {
        let (control, start, sender) = (Arc::clone(&control), Arc::clone(&start), sender.clone());
        let (flows, spec) = (flows.to_vec(), spec.clone());
        let intervals = driver.as_ref().map(|driver| driver.job_intervals(flows.len()));
        let spawned = thread::Builder::new().spawn(move || {
            let mut job = job(index, &flows, &spec, sources, clock, control, start);
            job.intervals = intervals;
            // The receiver exists until every job has sent.
            let _ = sender.send(job.run());
        });
        match spawned {
            Ok(_) => started += 1,
            Err(error) => {
                lost.push(format!(
                    "only {started} of {jobs} threads could be started ({error}): use fewer, or raise the limits of \
                     processes (ulimit -u) and memory"
                ));
                break;
            }
        }
    }
    drop(sender);
    if started < jobs {
        control.stop.store(true, Ordering::Relaxed);
    }
    start.open(started);
    if spec.announces {
        complain!("{BEGINS}");
    }
    let mut progress = Progress::new(goal(spec, flows));
    let mut watched = Instant::now();
    let mut results = Vec::new();
    loop {
        match receiver.recv_timeout(TICK) {
            Ok(result) => results.push(result),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => break,
        }
        progress.update(&control);
        if stop.load(Ordering::Relaxed) {
            control.stop.store(true, Ordering::Relaxed);
        }
        if let Some(watcher) = spec.watcher.as_ref().filter(|_| watched.elapsed() >= WATCH) {
            watched = Instant::now();
            (watcher.0)(control.positions());
        }
        let newly = target.keep_alive();
        if !newly.is_empty() {
            lost.extend(newly);
            control.stop.store(true, Ordering::Relaxed);
        }
    }
    progress.finish();
    lost.extend(driver.and_then(IntervalDriver::finish));
    with_lost(results, lost, spec.time)
}

/// Starts the thread that drives the intervals, if there are any; or returns the reason for a
/// failure.
fn driver(
    target: &Target,
    spec: &LoadSpec,
    flows: &[Flow],
    jobs: usize,
) -> Result<Option<IntervalDriver>, String> {
    let Some(console) = &spec.intervals else { return Ok(None) };
    let name = |flow: &Flow| FlowName {
        connect: target.spaces()[flow.space].connect.clone(),
        nsid: flow.nsid,
    };
    IntervalDriver::start(console, flows.iter().map(name).collect(), spec.qd, jobs)
        .map(Some)
        .map_err(|error| format!("no thread for --intervals: {error}"))
}

/// Adds problems that no job could report, even if there is no job.
fn with_lost(mut results: Vec<JobResult>, lost: Vec<String>, time: Duration) -> Vec<JobResult> {
    if results.is_empty() && !lost.is_empty() {
        results.push(JobResult::none(0, Vec::new(), time));
    }
    if let Some(first) = results.first_mut() {
        first.lost += lost.len() as u64;
        first.messages.extend(lost);
    }
    results
}

/// Rates of each job. In a load of reads alone, or writes alone, their rates apply to all I/Os.
fn rates(spec: &LoadSpec) -> JobRates {
    let jobs = f64::from(spec.jobs);
    let of = |rates: &[RateLimit]| -> Vec<RateLimit> {
        rates.iter().map(|rate| rate.divided(jobs)).collect()
    };
    let (mut all, reads, writes) = (of(&spec.rates), of(&spec.read_rates), of(&spec.write_rates));
    if (1..100).contains(&spec.mix.read_percent) {
        return JobRates { all, reads, writes };
    }
    all.extend(if spec.mix.read_percent == 0 { writes } else { reads });
    JobRates { all, ..JobRates::default() }
}

/// Bytes of the largest I/O.
fn largest(split: &BlockSplit) -> u32 {
    let all = split.read.all().chain(split.write.all()).chain(split.trim.all());
    all.max().unwrap_or(0)
}

/// The goal of the load: its bytes, if these end it, otherwise its time.
fn goal(spec: &LoadSpec, flows: &[Flow]) -> LoadGoal {
    let done: u64 = spec.done.iter().flatten().sum();
    // A unit that is trimmed and written counts twice.
    let times = if spec.mix.trim == TrimUse::ThenWrite { 2 } else { 1 };
    match flows.iter().map(Flow::total).sum::<Option<u64>>() {
        Some(bytes) if !flows.is_empty() => LoadGoal::Bytes(bytes.saturating_sub(done) * times),
        _ if spec.time == Duration::MAX => LoadGoal::None,
        _ => LoadGoal::Time(spec.ramp.saturating_add(spec.time)),
    }
}

/// Builds a job on its own thread.
fn job(
    index: usize,
    flows: &[Flow],
    spec: &LoadSpec,
    sources: Vec<JobSource>,
    clock: Clock,
    control: Arc<JobControl>,
    start: Arc<StartBarrier>,
) -> Job {
    let mut problems = Vec::new();
    // Before the thread touches memory, so that the memory is near the CPU.
    let cpu = spec.cpus.as_ref().map(|cpus| cpus.0[index % cpus.0.len()]);
    problems.extend(cpu.and_then(|cpu| pin(cpu).err()));
    let mut pool = None;
    let mut queues = Vec::new();
    for source in sources {
        match source.open(&mut pool) {
            Ok(queue) => queues.push(queue),
            Err(error) => problems.push(error.to_string()),
        }
    }
    let memory_of = |device| {
        let queue = queues.iter().find(|queue| queue.device() == device);
        queue.map_or(IoMemory::Fabric, JobQueue::memory)
    };
    let done = spec.done.get(index);
    let done_of =
        |stream: usize| done.and_then(|streams| streams.get(stream)).copied().unwrap_or(0);
    let mine = |at: &usize| !spec.dealt || index % flows.len() == *at;
    let mine = flows.iter().enumerate().filter(|(at, _)| mine(at));
    let streams = (0..).zip(mine).map(|(stream, (at, flow))| {
        // If spaces are assigned round-robin, every `flows.len()`th thread loads this space.
        let step = if spec.dealt { flows.len() } else { 1 };
        let id = StreamId {
            job: index,
            share_index: index / step,
            share_count: (usize::from(spec.jobs) - at % step).div_ceil(step),
            stream,
            memory: memory_of(flow.device),
            done: done_of(stream as usize),
        };
        Stream::new(at, flow, spec, id)
    });
    let streams = streams.collect();
    let timing = JobTiming {
        ramp: spec.ramp,
        time: spec.time,
        ios: spec.ios.map_or(u64::MAX, |ios| ios.div_ceil(spec.jobs.into())),
        rates: rates(spec),
        think: spec.think,
        bs: largest(&spec.sizes()),
        read_back: spec.verify.is_some() && spec.mix.writes(),
    };
    Job {
        index,
        streams,
        buffers: BufferCache::new(spec, index as u64, pool),
        in_flight_at_most: spec.shared.then_some(spec.qd),
        queues,
        timing,
        clock,
        sleeps: spec.sleeps,
        intervals: None,
        problems,
        control,
        start,
    }
}

fn add_up(
    target: &mut Target,
    spec: &LoadSpec,
    flows: &[Flow],
    results: Vec<JobResult>,
) -> LoadResult {
    let mut totals = LoadResult {
        flows: Vec::new(),
        series: TimeSeries::default(),
        measured: 0,
        cpu: 0,
        lost: 0,
        interrupted: false,
        read_back: !results.is_empty(),
        done: vec![Vec::new(); spec.jobs.into()],
        is_done: !results.is_empty(),
        messages: Vec::new(),
    };
    for flow in flows {
        totals.flows.push(FlowTotals {
            space: flow.space,
            read: DirectionCounters::new(),
            write: DirectionCounters::new(),
            trim: DirectionCounters::new(),
            errors: 0,
            verified: VerifyCounters::default(),
        });
    }
    for result in results {
        totals.series.add(&result.series);
        totals.measured = totals.measured.max(result.measured);
        totals.cpu += result.cpu;
        totals.lost += result.lost;
        totals.interrupted |= result.interrupted;
        totals.read_back &= result.read_back;
        totals.messages.extend(result.messages);
        totals.is_done &= result.streams.iter().all(Stream::is_done);
        totals.done[result.index] = result.streams.iter().map(Stream::position).collect();
        for stream in &result.streams {
            let flow = &mut totals.flows[stream.flow];
            flow.read.add(&stream.read);
            flow.write.add(&stream.write);
            flow.trim.add(&stream.trim);
            flow.errors += stream.errors;
            flow.verified.add(stream.verified);
        }
        target.give_back(result.queues);
    }
    totals
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_kept_every_thread_from_starting_is_told() {
        let time = Duration::from_secs(1);
        let results = with_lost(Vec::new(), vec!["only 0 of 4 threads".into()], time);
        assert_eq!((results.len(), results[0].lost), (1, 1));
        assert_eq!(results[0].messages, ["only 0 of 4 threads"]);
        assert!(with_lost(Vec::new(), Vec::new(), time).is_empty());
    }
}
