//! A progress line of a run, on a terminal only.

use std::io::IsTerminal;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};

use crate::job::JobControl;
use crate::table::thousands;

/// Interval between two readings of the counters.
const EVERY: Duration = Duration::from_millis(500);

#[derive(Debug)]
pub(crate) struct Progress {
    bar: ProgressBar,
    started: Instant,
    goal: LoadGoal,
    last: Instant,
    ios: u64,
    bytes: u64,
}

/// The goal of a load.
#[derive(Debug, Clone, Copy)]
pub(crate) enum LoadGoal {
    /// A duration.
    Time(Duration),
    /// A number of bytes.
    Bytes(u64),
    /// No known goal.
    None,
}

impl Progress {
    /// Shows progress towards a goal; shows nothing if standard error is no terminal.
    pub(crate) fn new(goal: LoadGoal) -> Self {
        let length = match goal {
            LoadGoal::Time(time) => u64::try_from(time.as_millis()).unwrap_or(u64::MAX),
            LoadGoal::Bytes(bytes) => bytes,
            LoadGoal::None => u64::MAX,
        };
        let bar = if std::io::stderr().is_terminal() {
            ProgressBar::new(length)
        } else {
            ProgressBar::hidden()
        };
        if let Ok(style) = ProgressStyle::with_template("{wide_bar:.cyan/blue} {msg}") {
            bar.set_style(style);
        }
        let now = Instant::now();
        Self { bar, started: now, goal, last: now, ios: 0, bytes: 0 }
    }

    /// Shows the progress since the last update, if [`EVERY`] has passed.
    #[expect(clippy::cast_precision_loss, reason = "rates to be shown")]
    pub(crate) fn update(&mut self, control: &JobControl) {
        let since = self.last.elapsed();
        if self.bar.is_hidden() || since < EVERY {
            return;
        }
        let counters = control.counters.iter();
        let ios: u64 = counters.clone().map(|counter| counter.ios.load(Ordering::Relaxed)).sum();
        let bytes: u64 = counters.map(|counter| counter.bytes.load(Ordering::Relaxed)).sum();
        let per_second = |count: u64| count as f64 / since.as_secs_f64();
        let iops = (ios - self.ios) * 1000 / u64::try_from(since.as_millis()).unwrap_or(1).max(1);
        let gbps = per_second(bytes - self.bytes) * 8.0 / 1e9;
        let elapsed = self.started.elapsed();
        let (is_over, position, how_far) = match self.goal {
            LoadGoal::Time(length) => {
                let position = u64::try_from(elapsed.min(length).as_millis()).unwrap_or(0);
                let of = format!("{:.0}/{:.0} s", elapsed.as_secs_f64(), length.as_secs_f64());
                (elapsed > length, position, of)
            }
            LoadGoal::Bytes(all) => {
                let percent = bytes as f64 / all.max(1) as f64 * 100.0;
                let of = format!("{:.0} s, {:.1} %", elapsed.as_secs_f64(), percent.min(100.0));
                (bytes >= all, bytes.min(all), of)
            }
            LoadGoal::None => (false, 0, format!("{:.0} s", elapsed.as_secs_f64())),
        };
        let phase = if is_over { "finishing" } else { "running" };
        self.bar.set_position(position);
        self.bar
            .set_message(format!("{phase} {how_far}  {} IOPS  {gbps:.2} Gb/s", thousands(iops)));
        (self.last, self.ios, self.bytes) = (Instant::now(), ios, bytes);
    }

    pub(crate) fn finish(&self) {
        self.bar.finish_and_clear();
    }
}
