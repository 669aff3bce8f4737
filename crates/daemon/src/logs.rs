//! The log, and the rate limits that keep hosts from filling it.
//!
//! Each [`LogCategory`] of event that hosts can cause has a maximum number of lines per second. The
//! next line of the kind carries the number of dropped lines in `suppressed`. If no line follows,
//! [`report_suppressed`] writes the number in a separate line.
//!
//! A dedicated thread writes the log, so that no other thread waits for it (see `queue`).

mod queue;
mod stderr;

use std::backtrace::{Backtrace, BacktraceStatus};
use std::io::IsTerminal as _;
use std::panic::PanicHookInfo;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::Context as _;
use tracing_subscriber::EnvFilter;

use crate::clock;
use crate::config::{LogFormat, LogLevel};
use queue::{LogQueue, log_queue};
use stderr::Stderr;

/// Maximum lines per second of one kind.
const LINES: u64 = 5;
/// One second in nanoseconds.
const SECOND: u64 = 1_000_000_000;

/// Kinds of events that hosts can cause at any rate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LogCategory {
    /// A connection was rejected.
    ConnectionRefused,
    /// A connection violated the protocol or its time limits.
    ConnectionEnded,
    /// A controller was created or removed.
    Controller,
    /// A Connect command was rejected.
    ConnectRefused,
    /// Any other command was rejected.
    CommandRefused,
    /// A device failed a command.
    DeviceError,
    /// The discovery service could not be announced.
    Announcement,
}

impl LogCategory {
    const ALL: [Self; 7] = [
        Self::ConnectionRefused,
        Self::ConnectionEnded,
        Self::Controller,
        Self::ConnectRefused,
        Self::CommandRefused,
        Self::DeviceError,
        Self::Announcement,
    ];

    const fn name(self) -> &'static str {
        match self {
            Self::ConnectionRefused => "connections refused",
            Self::ConnectionEnded => "connections ended for their host's fault",
            Self::Controller => "controllers connected or disconnected",
            Self::ConnectRefused => "Connect commands refused",
            Self::Announcement => "announcements failed",
            Self::CommandRefused => "commands refused",
            Self::DeviceError => "commands failed by a device",
        }
    }
}

static LIMITS: [LogRateLimiter; LogCategory::ALL.len()] =
    [const { LogRateLimiter::new() }; LogCategory::ALL.len()];

/// Counts a line of this kind.
///
/// Returns `None` if the line must be dropped, otherwise the number of lines dropped before it.
pub(crate) fn pass(kind: LogCategory) -> Option<Suppressed> {
    LIMITS[kind as usize].pass(clock::now())
}

/// Logs the lines that are not reported yet: those that the queue dropped, and those of each kind
/// without a later line.
pub(crate) fn report_suppressed() {
    if let Some(queue) = QUEUE.get() {
        queue.nudge();
    }
    for (limit, kind) in LIMITS.iter().zip(LogCategory::ALL) {
        if let Some(suppressed) = limit.left_out(clock::now()) {
            tracing::warn!(suppressed, "log lines suppressed by the rate limit: {}", kind.name());
        }
    }
}

/// Logs a rate-limited line of a kind that hosts can cause: `limited!(kind, warn, fields, text)`.
macro_rules! limited {
    ($kind:expr, $level:ident, $($line:tt)+) => {
        if tracing::enabled!($crate::logs::level::$level)
            && let Some(suppressed) = $crate::logs::pass($kind)
        {
            tracing::$level!(suppressed, $($line)+);
        }
    };
}
pub(crate) use limited;

/// Levels under the names of the `tracing` macros.
#[expect(non_upper_case_globals, reason = "they are called as the macros are")]
pub(crate) mod level {
    use tracing::Level;

    pub(crate) const debug: Level = Level::DEBUG;
    pub(crate) const info: Level = Level::INFO;
    pub(crate) const warn: Level = Level::WARN;
}

/// Number of dropped lines; `None` logs no field.
type Suppressed = Option<u64>;

/// Rate limit of one kind, for the current second.
///
/// Concurrent threads may let one line too many through, but they never lose a line from the count.
#[derive(Debug)]
struct LogRateLimiter {
    /// Start of the second; 0 before the first.
    since: AtomicU64,
    /// Lines offered in this second.
    lines: AtomicU64,
    /// Dropped lines that are not reported yet.
    left_out: AtomicU64,
}

impl LogRateLimiter {
    const fn new() -> Self {
        Self { since: AtomicU64::new(0), lines: AtomicU64::new(0), left_out: AtomicU64::new(0) }
    }

    fn pass(&self, now: u64) -> Option<Suppressed> {
        let since = self.since.load(Ordering::Relaxed);
        if (since == 0 || now.saturating_sub(since) >= SECOND)
            && self
                .since
                .compare_exchange(since, now.max(1), Ordering::Relaxed, Ordering::Relaxed)
                .is_ok()
        {
            self.lines.store(0, Ordering::Relaxed);
        }
        if self.lines.fetch_add(1, Ordering::Relaxed) >= LINES {
            self.left_out.fetch_add(1, Ordering::Relaxed);
            return None;
        }
        let left_out = self.left_out.swap(0, Ordering::Relaxed);
        Some((left_out > 0).then_some(left_out))
    }

    /// Takes the number of dropped lines once their second has ended.
    fn left_out(&self, now: u64) -> Option<u64> {
        let over = now.saturating_sub(self.since.load(Ordering::Relaxed)) >= SECOND;
        if !over || self.left_out.load(Ordering::Relaxed) == 0 {
            return None;
        }
        Some(self.left_out.swap(0, Ordering::Relaxed)).filter(|left_out| *left_out > 0)
    }
}

/// Queue that all lines to standard error pass through.
static QUEUE: OnceLock<LogQueue> = OnceLock::new();

/// Maximum time a panic waits until the log is written.
const PANIC_FLUSH: Duration = Duration::from_secs(1);

/// Starts the thread that logs to standard error; `RUST_LOG` overrides the config.
///
/// # Errors
/// The thread cannot be started.
pub(crate) fn start(level: LogLevel, format: LogFormat) -> anyhow::Result<()> {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new(level.name()));
    let notice = match format {
        LogFormat::Text => stderr::notice_text,
        LogFormat::Json => stderr::notice_json,
    };
    let (queue, drain) = log_queue();
    let mut out = Stderr::open().context("cannot reopen standard error for the log")?;
    std::thread::Builder::new()
        .name("log".into())
        .spawn(move || drain.write_all(&mut out, notice))
        .context("cannot start the thread that writes the log: raise the limit of threads (TasksMax=, ulimit -u)")?;
    let log = tracing_subscriber::fmt().with_env_filter(filter).log_internal_errors(false);
    let log = log.with_writer(queue.clone());
    if QUEUE.set(queue).is_err() {
        anyhow::bail!("the log is started already");
    }
    match format {
        LogFormat::Text => log.with_ansi(std::io::stderr().is_terminal()).init(),
        LogFormat::Json => log.json().flatten_event(true).init(),
    }
    std::panic::set_hook(Box::new(tell_panic));
    Ok(())
}

/// Writes whole lines to the log unchanged; before [`start`], to standard error.
pub(crate) fn write(text: &str) {
    match QUEUE.get() {
        Some(queue) => queue.push_lines(text),
        None => nvmeof_console::complain!("{}", text.trim_end_matches('\n')),
    }
}

/// Waits until the log is written, at most for `limit`, because the reader may have stopped.
pub(crate) fn flush(limit: Duration) {
    if let Some(queue) = QUEUE.get() {
        // A failed flush cannot be reported anywhere.
        queue.flush(limit);
    }
}

/// Lines dropped since the start because standard error did not accept them.
pub(crate) fn dropped() -> u64 {
    QUEUE.get().map_or(0, LogQueue::dropped)
}

/// Logs a panic, as the standard library's hook would print it.
///
/// The text keeps its place among the lines of the log, and the wait for it is bounded.
fn tell_panic(info: &PanicHookInfo<'_>) {
    let thread = std::thread::current();
    let mut text = format!("thread '{}' {info}\n", thread.name().unwrap_or("?"));
    let backtrace = Backtrace::capture();
    if backtrace.status() == BacktraceStatus::Captured {
        text.push_str(&format!("{backtrace}\n"));
    }
    write(&text);
    flush(PANIC_FLUSH);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn so_many_a_second_and_the_rest_is_counted() {
        let limit = LogRateLimiter::new();
        let at = |now| limit.pass(now);
        for _ in 0..LINES {
            assert_eq!(at(1), Some(None));
        }
        assert_eq!((at(2), at(SECOND)), (None, None));
        assert_eq!(limit.left_out(SECOND), None, "its second is not over");
        assert_eq!(at(SECOND + 1), Some(Some(2)), "the next line tells");
        assert_eq!(at(SECOND + 2), Some(None));
        for _ in 0..LINES {
            at(SECOND + 3);
        }
        assert_eq!(limit.left_out(2 * SECOND + 1), Some(2));
        assert_eq!(limit.left_out(2 * SECOND + 2), None, "it is told once");
    }

    #[test]
    fn threads_at_once_lose_no_line_from_the_count() {
        let limit = &LogRateLimiter::new();
        let (threads, each) = (4, 1000);
        let told: u64 = std::thread::scope(|scope| {
            let pass =
                move |now: u64| limit.pass(now + 1).map_or(0, |left_out| 1 + left_out.unwrap_or(0));
            let run = move || (0..each).map(pass).sum::<u64>();
            let threads: Vec<_> = (0..threads).map(|_| scope.spawn(run)).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).sum()
        });
        assert_eq!(told + limit.left_out(10 * SECOND).unwrap_or(0), threads * each);
    }
}
