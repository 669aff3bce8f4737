//! Measurement intervals of a run: input lines change what is counted, and how much is outstanding.
//!
//! The load continues across intervals. Effects of a connection, its memory and the machine are
//! then the same for everything that the run compares.
//!
//! ```text
//! lines --conduct--> Turns --has_news--> every job ends its interval and begins the next
//!                                             '--Part--> conduct --> JSON
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
use crate::lane::Lane;
use crate::report::{Rates, seconds};
use crate::stats::Tally;

/// Interval between two checks for the end of the load while results are awaited.
const LOOK: Duration = Duration::from_millis(50);
/// Name of an interval that is not counted.
const NOTHING: &str = "-";

/// Source of lines and destination of results.
#[derive(Clone)]
pub(crate) struct Console(pub(crate) Arc<dyn Fn() -> (Lines, Results) + Send + Sync>);

pub(crate) type Lines = Box<dyn BufRead + Send>;
pub(crate) type Results = Box<dyn Write + Send>;

impl std::fmt::Debug for Console {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Console")
    }
}

/// An input line: `NAME` or `-`, followed by any number of `NSID=DEPTH`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Order {
    /// Name of the counted interval; `None`: not counted.
    name: Option<String>,
    /// I/Os outstanding per job, for each namespace where that changes.
    depths: Vec<(u32, u32)>,
}

impl FromStr for Order {
    type Err = String;

    fn from_str(line: &str) -> Result<Self, String> {
        let mut words = line.split_whitespace();
        let name = words.next().filter(|word| !word.contains('='));
        let name = name.ok_or("a turn begins with its name, or with - for nothing")?;
        let depths = words.map(|word| {
            let parts = word.split_once('=');
            parts
                .and_then(|(nsid, depth)| Some((nsid.parse().ok()?, depth.parse().ok()?)))
                .ok_or_else(|| format!("`{word}` is not NSID=DEPTH"))
        });
        let name = (name != NOTHING).then(|| name.to_owned());
        Ok(Self { name, depths: depths.collect::<Result<_, _>>()? })
    }
}

/// State shared with the jobs.
#[derive(Debug)]
struct Turns {
    /// Number of the current order.
    number: AtomicU64,
    order: Mutex<Order>,
    /// The last interval has ended.
    is_over: AtomicBool,
    /// The load has ended, for any reason.
    is_closed: AtomicBool,
    problem: Mutex<Option<String>>,
    parts: Sender<Part>,
}

/// Counts of one job in an interval.
#[derive(Debug)]
struct Part {
    number: u64,
    elapsed: Nanos,
    cpu: Nanos,
    lanes: Vec<LanePart>,
}

#[derive(Debug)]
struct LanePart {
    /// Index of the flow.
    flow: usize,
    /// Reads, writes and trims.
    tallies: [Tally; 3],
    errors: u64,
    /// I/Os in flight at its end.
    in_flight: usize,
}

impl Turns {
    fn new() -> (Arc<Self>, Receiver<Part>) {
        let (parts, receiver) = channel();
        let turns = Self {
            number: AtomicU64::new(0),
            order: Mutex::default(),
            is_over: AtomicBool::new(false),
            is_closed: AtomicBool::new(false),
            problem: Mutex::default(),
            parts,
        };
        (Arc::new(turns), receiver)
    }

    /// Returns true after the last interval.
    fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Acquire)
    }

    /// Records that no job sends anything more.
    fn close(&self) {
        self.is_closed.store(true, Ordering::Release);
    }

    fn begin(&self, order: Order) -> u64 {
        let mut current = lock(&self.order);
        *current = order;
        // Under the lock: a job that reads the number finds its order, or a later one.
        self.number.fetch_add(1, Ordering::AcqRel) + 1
    }

    fn end(&self, problem: Option<String>) {
        *lock(&self.problem) = problem;
        self.is_over.store(true, Ordering::Release);
        self.begin(Order::default());
    }

    fn current(&self) -> (u64, Order) {
        let order = lock(&self.order);
        (self.number.load(Ordering::Acquire), order.clone())
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A job's end of the intervals.
#[derive(Debug)]
pub(crate) struct Seat {
    turns: Arc<Turns>,
    number: u64,
    is_counting: bool,
    /// Start of this interval, and the CPU time of the job at that time.
    since: Nanos,
    cpu_since: Nanos,
    /// Time counted in ended intervals, and CPU time used in them.
    counted: Nanos,
    cpu: Nanos,
    /// Counts in them, by stream.
    totals: Vec<[Tally; 3]>,
    /// Failed I/Os of each stream before this interval.
    errors_before: Vec<u64>,
}

impl Seat {
    /// Counts nothing until the first order.
    fn new(turns: Arc<Turns>, lanes: usize) -> Self {
        let totals = (0..lanes).map(|_| nothing()).collect();
        Self {
            turns,
            number: 0,
            is_counting: false,
            since: 0,
            cpu_since: 0,
            counted: 0,
            cpu: 0,
            totals,
            errors_before: vec![0; lanes],
        }
    }

    /// Returns true if the next interval has begun.
    #[inline]
    pub(crate) fn has_news(&self) -> bool {
        self.turns.number.load(Ordering::Acquire) != self.number
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
        self.turns.is_over()
    }

    /// Ends the interval and begins the latest one.
    pub(crate) fn go_on(&mut self, lanes: &mut [Lane], clock: &Clock) {
        // Read before this job reports the end: after that, yet another order can follow, and none
        // may be skipped.
        let (number, order) = self.turns.current();
        self.end(lanes, clock.now());
        for (nsid, depth) in order.depths {
            lanes.iter_mut().filter(|lane| lane.nsid() == nsid).for_each(|lane| lane.limit(depth));
        }
        (self.number, self.is_counting) = (number, order.name.is_some());
        self.errors_before = lanes.iter().map(|lane| lane.errors).collect();
        // Adding up took a moment, which belongs to neither interval.
        (self.since, self.cpu_since) = (clock.now(), cpu_time());
    }

    /// Ends the interval and sends its counts, or only the fact that it has ended.
    fn end(&mut self, lanes: &mut [Lane], now: Nanos) {
        let mut part = Part { number: self.number, elapsed: 0, cpu: 0, lanes: Vec::new() };
        if std::mem::take(&mut self.is_counting) {
            part.elapsed = now.saturating_sub(self.since);
            part.cpu = cpu_time().saturating_sub(self.cpu_since);
            self.counted += part.elapsed;
            self.cpu += part.cpu;
            let before = self.errors_before.iter();
            for ((lane, totals), before) in lanes.iter_mut().zip(&mut self.totals).zip(before) {
                let tallies = lane.take_tallies();
                totals.iter_mut().zip(&tallies).for_each(|(total, turn)| total.add(turn));
                let (errors, in_flight) = (lane.errors - before, lane.in_flight());
                part.lanes.push(LanePart { flow: lane.flow, tallies, errors, in_flight });
            }
        }
        // There is no receiver if the lines have ended with an error.
        let _ = self.turns.parts.send(part);
    }

    /// Ends the last interval and gives streams the counts of all; returns their time and CPU time.
    pub(crate) fn leave(&mut self, lanes: &mut [Lane], now: Nanos) -> (Nanos, Nanos) {
        self.end(lanes, now);
        for (lane, totals) in lanes.iter_mut().zip(&mut self.totals) {
            lane.put_tallies(std::mem::replace(totals, nothing()));
        }
        (self.counted, self.cpu)
    }
}

fn nothing() -> [Tally; 3] {
    [Tally::new(), Tally::new(), Tally::new()]
}

/// Name of a flow in results.
#[derive(Debug, Clone)]
pub(crate) struct FlowName {
    pub(crate) connect: String,
    pub(crate) nsid: u32,
}

/// Report of an interval.
#[derive(Debug, Serialize)]
struct TurnReport<'a> {
    turn: &'a str,
    elapsed_s: f64,
    /// CPU seconds of the job threads in it.
    cpu_seconds: f64,
    /// Failed I/Os in it, and I/Os outstanding at its end.
    errors: u64,
    in_flight: usize,
    #[serde(flatten)]
    total: Rates,
    flows: Vec<FlowReport<'a>>,
}

#[derive(Debug, Serialize)]
struct FlowReport<'a> {
    connect: &'a str,
    nsid: u32,
    #[serde(flatten)]
    total: Rates,
}

/// Driver of the intervals of a load.
#[derive(Debug)]
pub(crate) struct Conductor {
    turns: Arc<Turns>,
    thread: JoinHandle<()>,
}

impl Conductor {
    /// Starts to read lines, for `jobs` threads with these flows and a maximum of I/Os outstanding.
    pub(crate) fn start(
        console: &Console,
        flows: Vec<FlowName>,
        depth: u32,
        jobs: usize,
    ) -> io::Result<Self> {
        let ((turns, parts), console) = (Turns::new(), Arc::clone(&console.0));
        let for_thread = Arc::clone(&turns);
        let thread = thread::Builder::new().spawn(move || {
            conduct(console(), (&for_thread, &parts), (&flows, depth), jobs);
        })?;
        Ok(Self { turns, thread })
    }

    /// Returns the end of a job.
    pub(crate) fn seat(&self, lanes: usize) -> Seat {
        Seat::new(Arc::clone(&self.turns), lanes)
    }

    /// To be called when all jobs have ended; returns a problem with the lines.
    pub(crate) fn finish(self) -> Option<String> {
        self.turns.close();
        // Otherwise the thread waits for a line, and nothing waits for the thread.
        if self.turns.is_over() && self.thread.join().is_err() {
            return Some("the thread that reads --turns panicked".to_owned());
        }
        lock(&self.turns.problem).take()
    }
}

/// Starts intervals as the lines request, and writes the counts of `jobs` threads in each.
///
/// Returns when the lines or the load end.
fn conduct(
    (lines, mut results): (Lines, Results),
    (turns, parts): (&Turns, &Receiver<Part>),
    (flows, depth): (&[FlowName], u32),
    jobs: usize,
) {
    // The order that the next one ends. Every job follows an order before there is another.
    let mut last = (0, None);
    let mut finish = |(order, name): (u64, Option<String>)| {
        let collected = collect((turns, parts), order, jobs)?;
        name.map_or(Some(Ok(())), |name| Some(write(&mut results, &name, flows, collected)))
    };
    let mut problem = None;
    for (number, line) in (1..).zip(lines.lines()) {
        let order = line.map_err(|error| error.to_string()).and_then(|line| line.parse());
        let order = order.and_then(|order: Order| check(&order, flows, depth).map(|()| order));
        let called = match order {
            Ok(order) => {
                let name = order.name.clone();
                (turns.begin(order), name)
            }
            Err(error) => {
                problem = Some(format!("--turns, line {number} of standard input: {error}"));
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
    turns.end(problem);
    // The last counted interval ends with the lines.
    if let Some(Err(error)) = finish(last) {
        lock(&turns.problem).get_or_insert(error);
    }
}

/// Checks that the load has these namespaces, and that these depths are possible.
fn check(order: &Order, flows: &[FlowName], most: u32) -> Result<(), String> {
    for &(nsid, depth) in &order.depths {
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
    (turns, parts): (&Turns, &Receiver<Part>),
    number: u64,
    jobs: usize,
) -> Option<Vec<Part>> {
    let mut collected = Vec::new();
    while collected.len() < jobs {
        // Read first: parts sent before the load ended are then in the channel.
        let is_closed = turns.is_closed.load(Ordering::Acquire);
        match parts.recv_timeout(LOOK) {
            Ok(part) if part.number == number => collected.push(part),
            Ok(_) => {}
            Err(RecvTimeoutError::Timeout) if !is_closed => {}
            Err(_) => return None,
        }
    }
    Some(collected)
}

fn write(
    results: &mut Results,
    turn: &str,
    flows: &[FlowName],
    parts: Vec<Part>,
) -> Result<(), String> {
    let elapsed = parts.iter().map(|part| part.elapsed).max().unwrap_or(0);
    let cpu: Nanos = parts.iter().map(|part| part.cpu).sum();
    let mut tallies: Vec<Tally> = flows.iter().map(|_| Tally::new()).collect();
    let (mut errors, mut in_flight) = (0, 0);
    for lane in parts.into_iter().flat_map(|part| part.lanes) {
        lane.tallies.iter().for_each(|tally| tallies[lane.flow].add(tally));
        errors += lane.errors;
        in_flight += lane.in_flight;
    }
    let mut total = Tally::new();
    tallies.iter().for_each(|tally| total.add(tally));
    let elapsed_s = seconds(elapsed);
    let rates = |tally: &Tally| Rates::new(tally, elapsed_s, &[]);
    let flows = flows.iter().zip(&tallies).map(|(flow, tally)| FlowReport {
        connect: &flow.connect,
        nsid: flow.nsid,
        total: rates(tally),
    });
    let report = TurnReport {
        turn,
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
        .map_err(|error| format!("cannot write the result of turn {turn}: {error}"))
}
