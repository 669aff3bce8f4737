//! The loop of the control plane: signals, timers, finished changes and requests.

use std::io::Write as _;
use std::path::Path;
use std::time::Duration;

use anyhow::Context as _;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::task::JoinHandle;
use tokio::time::{Interval, MissedTickBehavior};

use super::change_queue::ChangeQueue;
use super::devices::from_vfio;
use super::handle::RequestQueue;
use super::notify;
use super::pacing_log::PacingLog;
use super::running::ControlState;
use super::server::SHUTDOWN;
use super::stats::Recorder;
use crate::clock;
use crate::config_file::loaded::Loaded;
use crate::logs;

/// Interval between checks of the distribution of I/O queues over the reactors.
const REBALANCE: Duration = Duration::from_secs(1);
/// Interval between reports of suppressed log lines and of the policy's state.
const REPORT_SUPPRESSED: Duration = Duration::from_secs(2);
/// Interval between checks for drives that reported changed namespaces.
const LOOK: Duration = Duration::from_secs(1);

/// Signals that the daemon handles.
pub(crate) struct Signals {
    end: End,
    hangup: Signal,
    count: Signal,
}

/// Signals that stop the daemon.
struct End {
    terminate: Signal,
    interrupt: Signal,
}

/// The started control plane, before its loop runs.
pub(crate) struct ControlLoop {
    signals: Signals,
    running: ControlState,
}

impl Signals {
    /// Handles the signals from now on.
    ///
    /// # Errors
    /// The kernel refuses a handler.
    pub(crate) fn new() -> anyhow::Result<Self> {
        let on = |kind| signal(kind).context("cannot listen to signals");
        Ok(Self {
            end: End {
                terminate: on(SignalKind::terminate())?,
                interrupt: on(SignalKind::interrupt())?,
            },
            hangup: on(SignalKind::hangup())?,
            count: on(SignalKind::user_defined1())?,
        })
    }
}

impl End {
    /// Waits for one of the signals.
    async fn told(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}

impl ControlLoop {
    /// Starts everything but the loop; `None` if a signal stopped the daemon before hosts were
    /// served.
    ///
    /// # Errors
    /// The config cannot run on this machine.
    pub(crate) async fn start(
        path: &Path,
        loaded: Loaded,
        mut signals: Signals,
    ) -> anyhow::Result<Option<Self>> {
        notify::start().context("cannot start the thread that talks to the service manager")?;
        let running = tokio::select! {
            running = ControlState::start(path, loaded, from_vfio) => running?,
            // While no host is served, there is nothing to stop cleanly.
            () = signals.end.told() => return Ok(None),
        };
        Ok(Some(Self { signals, running }))
    }

    /// Handles signals and `requests` until a signal stops the daemon, then stops everything.
    pub(crate) async fn run(
        self,
        mut requests: RequestQueue,
        recording: Option<(Duration, Recorder)>,
    ) {
        let Self { mut signals, mut running } = self;
        let mut sample = every(recording.as_ref().map_or(REBALANCE, |(interval, _)| *interval));
        running.record_to(recording.map(|(_, recorder)| recorder)).await;
        announce(running.ready_line());
        notify::ready(&running.ready_line());
        notify::watch(running.server().senders());
        let (mut rebalance, mut look) = (every(REBALANCE), every(LOOK));
        let mut report_suppressed = every(REPORT_SUPPRESSED);
        let mut pacing_log = PacingLog::default();
        let mut changes = ChangeQueue::default();
        let mut looking = None;
        loop {
            let server = running.server_mut();
            let (records, spans_reactors) = (server.records(), server.spans_reactors());
            let may_look = looking.is_none() && !changes.is_refreshing_drives();
            let listeners_due = server.listeners_due();
            tokio::select! {
                () = signals.end.told() => break,
                _ = signals.hangup.recv() => changes.hang_up(&mut running),
                done = changes.done() => tokio::select! {
                    // A finished stage has to be taken before any other event.
                    biased;
                    () = changes.go_on(done, &mut running) => {}
                    () = signals.end.told() => break,
                },
                changed = result(&mut looking) => changes.refresh_drives(changed, &mut running),
                _ = look.tick(), if may_look => looking = running.server().look_at_drives(),
                () = listeners_due => running.retry_listeners().await,
                _ = signals.count.recv() => running.server_mut().log_counts().await,
                _ = sample.tick(), if records => running.server_mut().record().await,
                _ = rebalance.tick(), if spans_reactors => running.server_mut().rebalance(),
                _ = report_suppressed.tick() => {
                    logs::report_suppressed();
                    running.end_overdue_trace();
                    pacing_log.update(running.server().policy_status().adaptive, clock::now());
                }
                Some(request) = requests.recv() => tokio::select! {
                    () = changes.answer(request, &mut running) => {}
                    // A reactor may not answer.
                    () = signals.end.told() => break,
                },
            }
        }
        let drain = running.server().config().drain_timeout;
        notify::stopping(drain);
        // Callers receive the error that the daemon is stopping.
        drop(requests);
        tokio::join!(changes.end(drain.max(SHUTDOWN)), running.stop());
    }
}

/// Returns a timer whose ticks are at least `period` apart.
fn every(period: Duration) -> Interval {
    let mut interval = tokio::time::interval(period);
    interval.set_missed_tick_behavior(MissedTickBehavior::Delay);
    interval
}

/// Returns the result of a thread when it completes; never returns if there is no thread.
async fn result<T: Default>(thread: &mut Option<JoinHandle<T>>) -> T {
    let Some(running) = thread else { return std::future::pending().await };
    let result = running.await.unwrap_or_default();
    *thread = None;
    result
}

/// Writes the line on standard output that tells scripts that the daemon serves.
///
/// A thread writes it, because a reader that has stopped blocks the write. If the reader has gone,
/// the line is lost.
fn announce(mut line: String) {
    line.push('\n');
    tokio::task::spawn_blocking(move || {
        let mut out = std::io::stdout().lock();
        if let Err(error) = out.write_all(line.as_bytes()).and_then(|()| out.flush()) {
            tracing::warn!(%error, "cannot write \"ready\" to standard output; hosts are served");
        }
    });
}
