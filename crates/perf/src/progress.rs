//! A line that shows how a run is doing, on a terminal only.

use std::io::IsTerminal;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};

use crate::job::Shared;
use crate::table::thousands;

/// Time between two looks at the counters.
const EVERY: Duration = Duration::from_millis(500);

#[derive(Debug)]
pub(crate) struct Progress {
    bar: ProgressBar,
    started: Instant,
    length: Duration,
    last: Instant,
    ios: u64,
    bytes: u64,
}

impl Progress {
    /// For a run of this length; shows nothing if standard error is no terminal.
    pub(crate) fn new(length: Duration) -> Self {
        let bar = if std::io::stderr().is_terminal() {
            ProgressBar::new(u64::try_from(length.as_millis()).unwrap_or(u64::MAX))
        } else {
            ProgressBar::hidden()
        };
        if let Ok(style) = ProgressStyle::with_template("{wide_bar:.cyan/blue} {msg}") {
            bar.set_style(style);
        }
        let now = Instant::now();
        Self { bar, started: now, length, last: now, ios: 0, bytes: 0 }
    }

    /// Shows what has happened since the last time, if that is long enough ago.
    #[expect(clippy::cast_precision_loss, reason = "rates to be shown")]
    pub(crate) fn update(&mut self, shared: &Shared) {
        let since = self.last.elapsed();
        if self.bar.is_hidden() || since < EVERY {
            return;
        }
        let counters = shared.counters.iter();
        let ios: u64 = counters.clone().map(|counter| counter.ios.load(Ordering::Relaxed)).sum();
        let bytes: u64 = counters.map(|counter| counter.bytes.load(Ordering::Relaxed)).sum();
        let per_second = |count: u64| count as f64 / since.as_secs_f64();
        let iops = (ios - self.ios) * 1000 / u64::try_from(since.as_millis()).unwrap_or(1).max(1);
        let gbps = per_second(bytes - self.bytes) * 8.0 / 1e9;
        let elapsed = self.started.elapsed();
        let phase = if elapsed > self.length { "finishing" } else { "running" };
        self.bar.set_position(u64::try_from(elapsed.min(self.length).as_millis()).unwrap_or(0));
        self.bar.set_message(format!(
            "{phase} {:.0}/{:.0} s  {} IOPS  {gbps:.2} Gb/s",
            elapsed.as_secs_f64(),
            self.length.as_secs_f64(),
            thousands(iops)
        ));
        (self.last, self.ios, self.bytes) = (Instant::now(), ios, bytes);
    }

    pub(crate) fn finish(&self) {
        self.bar.finish_and_clear();
    }
}
