//! Measurement intervals of a run: input lines change what is counted, and how much is outstanding.
//!
//! The load continues across intervals. Effects of a connection, its memory and the machine are
//! then the same for everything that the run compares.
//!
//! ```text
//! lines --conduct--> IntervalControl --has_next--> every job ends its interval and begins the next
//!                                                        '--IntervalSample--> conduct --> JSON
//! ```

use std::io::{self, BufRead, Write};
use std::str::FromStr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use nvmeof_initiator::{Clock, Nanos};
use serde::Serialize;

use crate::job::cpu_time;
use crate::report::{IoRates, seconds};
use crate::stats::DirectionCounters;
use crate::stream::Stream;

/// Interval between two checks for the end of the load while results are awaited.
const LOOK: Duration = Duration::from_millis(50);
/// Name of an interval that is not counted.
const NOTHING: &str = "-";

/// Source of lines and destination of results.
#[derive(Clone)]
pub(crate) struct IntervalConsole(
    pub(crate) Arc<dyn Fn() -> (IntervalLines, IntervalResults) + Send + Sync>,
);

pub(crate) type IntervalLines = Box<dyn BufRead + Send>;
pub(crate) type IntervalResults = Box<dyn Write + Send>;

impl std::fmt::Debug for IntervalConsole {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Console")
    }
}

/// An input line: `NAME` or `-`, followed by any number of `NSID=DEPTH`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct IntervalCommand {
    /// Name of the counted interval; `None`: not counted.
    name: Option<String>,
    /// I/Os outstanding per job, for each namespace where that changes.
    depths: Vec<(u32, u32)>,
}

impl FromStr for IntervalCommand {
    type Err = String;

    fn from_str(line: &str) -> Result<Self, String> {
        let mut words = line.split_whitespace();
        let name = words.next().filter(|word| !word.contains('='));
        let name = name.ok_or("an interval begins with its name, or with - for nothing")?;
        let depths = words.map(|word| {
            let samples = word.split_once('=');
            samples
                .and_then(|(nsid, depth)| Some((nsid.parse().ok()?, depth.parse().ok()?)))
                .ok_or_else(|| format!("`{word}` is not NSID=DEPTH"))
        });
        let name = (name != NOTHING).then(|| name.to_owned());
        Ok(Self { name, depths: depths.collect::<Result<_, _>>()? })
    }
}

/// State shared with the jobs.
#[derive(Debug)]
struct IntervalControl {
    /// Number of the current command.
    number: AtomicU64,
    command: Mutex<IntervalCommand>,
    /// The last interval has ended.
    is_over: AtomicBool,
    /// The load has ended, for any reason.
    is_closed: AtomicBool,
    problem: Mutex<Option<String>>,
    samples: Sender<IntervalSample>,
}

/// Counts of one job in an interval.
#[derive(Debug)]
struct IntervalSample {
    number: u64,
    elapsed: Nanos,
    cpu: Nanos,
    streams: Vec<StreamSample>,
}

#[derive(Debug)]
struct StreamSample {
    /// Index of the flow.
    flow: usize,
    /// Reads, writes and trims.
    counters: [DirectionCounters; 3],
    errors: u64,
    /// I/Os in flight at its end.
    in_flight: usize,
}

impl IntervalControl {
    fn new() -> (Arc<Self>, Receiver<IntervalSample>) {
        let (samples, receiver) = channel();
        let control = Self {
            number: AtomicU64::new(0),
            command: Mutex::default(),
            is_over: AtomicBool::new(false),
            is_closed: AtomicBool::new(false),
            problem: Mutex::default(),
            samples,
        };
        (Arc::new(control), receiver)
    }

    /// Returns true after the last interval.
    fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Acquire)
    }

    /// Records that no job sends anything more.
    fn close(&self) {
        self.is_closed.store(true, Ordering::Release);
    }

    fn begin(&self, command: IntervalCommand) -> u64 {
        let mut current = lock(&self.command);
        *current = command;
        // Under the lock: a job that reads the number finds its command, or a later one.
        self.number.fetch_add(1, Ordering::AcqRel) + 1
    }

    fn end(&self, problem: Option<String>) {
        *lock(&self.problem) = problem;
        self.is_over.store(true, Ordering::Release);
        self.begin(IntervalCommand::default());
    }

    fn current(&self) -> (u64, IntervalCommand) {
        let command = lock(&self.command);
        (self.number.load(Ordering::Acquire), command.clone())
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A job's end of the intervals.
#[derive(Debug)]
pub(crate) struct JobIntervals {
    control: Arc<IntervalControl>,
    number: u64,
    is_counting: bool,
    /// Start of this interval, and the CPU time of the job at that time.
    since: Nanos,
    cpu_since: Nanos,
    /// Time counted in ended intervals, and CPU time used in them.
    counted: Nanos,
    cpu: Nanos,
    /// Counts in them, by stream.
    totals: Vec<[DirectionCounters; 3]>,
    /// Failed I/Os of each stream before this interval.
    errors_before: Vec<u64>,
}

impl JobIntervals {
    /// Counts nothing until the first command.
    fn new(control: Arc<IntervalControl>, streams: usize) -> Self {
        let totals = (0..streams).map(|_| nothing()).collect();
        Self {
            control,
            number: 0,
            is_counting: false,
            since: 0,
            cpu_since: 0,
            counted: 0,
            cpu: 0,
            totals,
            errors_before: vec![0; streams],
        }
    }

    /// Returns true if the next interval has begun.
    #[inline]
    pub(crate) fn has_next(&self) -> bool {
        self.control.number.load(Ordering::Acquire) != self.number
    }

    /// Returns true if completions are counted.
    #[inline]
    pub(crate) fn is_counting(&self) -> bool {
        self.is_counting
    }

    /// Origin of the time series, as if counted intervals were contiguous.
    #[inline]
    pub(crate) fn origin(&self) -> Nanos {
        self.since.saturating_sub(self.counted)
    }

    pub(crate) fn is_over(&self) -> bool {
        self.control.is_over()
    }

    /// Ends the interval and begins the latest one.
    pub(crate) fn begin_next(&mut self, streams: &mut [Stream], clock: &Clock) {
        // Read before this job reports the end: after that, yet another command can follow, and
        // none may be skipped.
        let (number, command) = self.control.current();
        self.end(streams, clock.now());
        for (nsid, depth) in command.depths {
            streams
                .iter_mut()
                .filter(|stream| stream.nsid() == nsid)
                .for_each(|stream| stream.limit(depth));
        }
        (self.number, self.is_counting) = (number, command.name.is_some());
        self.errors_before = streams.iter().map(|stream| stream.errors).collect();
        // Adding up took a moment, which belongs to neither interval.
        (self.since, self.cpu_since) = (clock.now(), cpu_time());
    }

    /// Ends the interval and sends its counts, or only the fact that it has ended.
    fn end(&mut self, streams: &mut [Stream], now: Nanos) {
        let mut sample =
            IntervalSample { number: self.number, elapsed: 0, cpu: 0, streams: Vec::new() };
        if std::mem::take(&mut self.is_counting) {
            sample.elapsed = now.saturating_sub(self.since);
            sample.cpu = cpu_time().saturating_sub(self.cpu_since);
            self.counted += sample.elapsed;
            self.cpu += sample.cpu;
            let before = self.errors_before.iter();
            for ((stream, totals), before) in streams.iter_mut().zip(&mut self.totals).zip(before) {
                let counters = stream.take_counters();
                totals.iter_mut().zip(&counters).for_each(|(total, counted)| total.add(counted));
                let (errors, in_flight) = (stream.errors - before, stream.in_flight());
                sample.streams.push(StreamSample {
                    flow: stream.flow,
                    counters,
                    errors,
                    in_flight,
                });
            }
        }
        // There is no receiver if the lines have ended with an error.
        let _ = self.control.samples.send(sample);
    }

    /// Ends the last interval and gives streams the counts of all; returns their time and CPU time.
    pub(crate) fn leave(&mut self, streams: &mut [Stream], now: Nanos) -> (Nanos, Nanos) {
        self.end(streams, now);
        for (stream, totals) in streams.iter_mut().zip(&mut self.totals) {
            stream.put_counters(std::mem::replace(totals, nothing()));
        }
        (self.counted, self.cpu)
    }
}

fn nothing() -> [DirectionCounters; 3] {
    [DirectionCounters::new(), DirectionCounters::new(), DirectionCounters::new()]
}

/// Name of a flow in results.
#[derive(Debug, Clone)]
pub(crate) struct FlowName {
    pub(crate) connect: String,
    pub(crate) nsid: u32,
}

/// Report of an interval.
#[derive(Debug, Serialize)]
struct IntervalReport<'a> {
    #[serde(rename = "turn")]
    name: &'a str,
    elapsed_s: f64,
    /// CPU seconds of the job threads in it.
    cpu_seconds: f64,
    /// Failed I/Os in it, and I/Os outstanding at its end.
    errors: u64,
    in_flight: usize,
    #[serde(flatten)]
    total: IoRates,
    flows: Vec<FlowReport<'a>>,
}

#[derive(Debug, Serialize)]
struct FlowReport<'a> {
    connect: &'a str,
    nsid: u32,
    #[serde(flatten)]
    total: IoRates,
}

/// Driver of the intervals of a load.
#[derive(Debug)]
pub(crate) struct IntervalDriver {
    control: Arc<IntervalControl>,
    thread: JoinHandle<()>,
}

impl IntervalDriver {
    /// Starts to read lines, for `jobs` threads with these flows and a maximum of I/Os outstanding.
    pub(crate) fn start(
        console: &IntervalConsole,
        flows: Vec<FlowName>,
        depth: u32,
        jobs: usize,
    ) -> io::Result<Self> {
        let ((control, samples), console) = (IntervalControl::new(), Arc::clone(&console.0));
        let for_thread = Arc::clone(&control);
        let thread = thread::Builder::new().spawn(move || {
            conduct(console(), (&for_thread, &samples), (&flows, depth), jobs);
        })?;
        Ok(Self { control, thread })
    }

    /// Returns the end of a job.
    pub(crate) fn job_intervals(&self, streams: usize) -> JobIntervals {
        JobIntervals::new(Arc::clone(&self.control), streams)
    }

    /// To be called when all jobs have ended; returns a problem with the lines.
    pub(crate) fn finish(self) -> Option<String> {
        self.control.close();
        // Otherwise the thread waits for a line, and nothing waits for the thread.
        if self.control.is_over() && self.thread.join().is_err() {
            return Some("the thread that reads --intervals panicked".to_owned());
        }
        lock(&self.control.problem).take()
    }
}

/// Starts intervals as the lines request, and writes the counts of `jobs` threads in each.
///
/// Returns when the lines or the load end.
fn conduct(
    (lines, mut results): (IntervalLines, IntervalResults),
    (control, samples): (&IntervalControl, &Receiver<IntervalSample>),
    (flows, depth): (&[FlowName], u32),
    jobs: usize,
) {
    // The command that the next one ends. Every job follows a command before there is another.
    let mut last = (0, None);
    let mut finish = |(command, name): (u64, Option<String>)| {
        let collected = collect((control, samples), command, jobs)?;
        name.map_or(Some(Ok(())), |name| Some(write(&mut results, &name, flows, collected)))
    };
    let mut problem = None;
    for (number, line) in (1..).zip(lines.lines()) {
        let command = line.map_err(|error| error.to_string()).and_then(|line| line.parse());
        let command = command
            .and_then(|command: IntervalCommand| check(&command, flows, depth).map(|()| command));
        let called = match command {
            Ok(command) => {
                let name = command.name.clone();
                (control.begin(command), name)
            }
            Err(error) => {
                problem = Some(format!("--intervals, line {number} of standard input: {error}"));
                break;
            }
        };
        match finish(std::mem::replace(&mut last, called)) {
            Some(Ok(())) => {}
            Some(Err(error)) => {
                problem = Some(error);
                break;
            }
            None => break,
        }
    }
    control.end(problem);
    // The last counted interval ends with the lines.
    if let Some(Err(error)) = finish(last) {
        lock(&control.problem).get_or_insert(error);
    }
}

/// Checks that the load has these namespaces, and that these depths are possible.
fn check(command: &IntervalCommand, flows: &[FlowName], most: u32) -> Result<(), String> {
    for &(nsid, depth) in &command.depths {
        if flows.iter().all(|flow| flow.nsid != nsid) {
            let have: Vec<_> = flows.iter().map(|flow| flow.nsid.to_string()).collect();
            return Err(format!("namespace {nsid} is not loaded; these are: {}", have.join(", ")));
        }
        if depth > most {
            return Err(format!("{nsid}={depth} is deeper than --qd {most}"));
        }
    }
    Ok(())
}

/// Collects the counts of all jobs in an interval; `None` if the load ends before that.
fn collect(
    (control, samples): (&IntervalControl, &Receiver<IntervalSample>),
    number: u64,
    jobs: usize,
) -> Option<Vec<IntervalSample>> {
    let mut collected = Vec::new();
    while collected.len() < jobs {
        // Read first: parts sent before the load ended are then in the channel.
        let is_closed = control.is_closed.load(Ordering::Acquire);
        match samples.recv_timeout(LOOK) {
            Ok(sample) if sample.number == number => collected.push(sample),
            Ok(_) => {}
            Err(RecvTimeoutError::Timeout) if !is_closed => {}
            Err(_) => return None,
        }
    }
    Some(collected)
}

fn write(
    results: &mut IntervalResults,
    name: &str,
    flows: &[FlowName],
    samples: Vec<IntervalSample>,
) -> Result<(), String> {
    let elapsed = samples.iter().map(|sample| sample.elapsed).max().unwrap_or(0);
    let cpu: Nanos = samples.iter().map(|sample| sample.cpu).sum();
    let mut by_flow: Vec<DirectionCounters> =
        flows.iter().map(|_| DirectionCounters::new()).collect();
    let (mut errors, mut in_flight) = (0, 0);
    for stream in samples.into_iter().flat_map(|sample| sample.streams) {
        stream.counters.iter().for_each(|counters| by_flow[stream.flow].add(counters));
        errors += stream.errors;
        in_flight += stream.in_flight;
    }
    let mut total = DirectionCounters::new();
    by_flow.iter().for_each(|counters| total.add(counters));
    let elapsed_s = seconds(elapsed);
    let rates = |counters: &DirectionCounters| IoRates::new(counters, elapsed_s, &[]);
    let flows = flows.iter().zip(&by_flow).map(|(flow, counters)| FlowReport {
        connect: &flow.connect,
        nsid: flow.nsid,
        total: rates(counters),
    });
    let report = IntervalReport {
        name,
        elapsed_s,
        cpu_seconds: seconds(cpu),
        errors,
        in_flight,
        total: rates(&total),
        flows: flows.collect(),
    };
    let line = serde_json::to_string(&report).map_err(|error| error.to_string())?;
    writeln!(results, "{line}")
        .and_then(|()| results.flush())
        .map_err(|error| format!("cannot write the result of interval {name}: {error}"))
}
