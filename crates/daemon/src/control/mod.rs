//! The control plane, which runs on tokio, outside the reactors' threads.
//!
//! It starts the daemon, handles signals and new connections, applies changed configs, and stops
//! cleanly.
//!
//! | module | contents |
//! |---|---|
//! | `running` | the running state and its config file; requests of signals and the API |
//! | `server` | the running daemon: pool, target, reactors, devices, listeners |
//! | `apply` | conversion of a config to the target's desired state, at start and on reload |
//! | `identity` | identities of namespaces, by which hosts recognize them |
//! | `file` | the config file, read and written |
//! | `devices` | opening and closing block devices on every reactor |
//! | `quiesce` | commands that have to end before a removal is reported |
//! | `observe` | read-only access to the running state: metrics, and tracing of commands |
//! | `stats` | statistics of the reactors: to a file, and to the log on SIGUSR1 |
//! | `change_queue` | queue of changes: one at a time, while threads open the devices it needs |
//! | `config_rejected` | rejected configs, for the log and the API |
//! | `workers` | the threads for calls that block, all started in advance |
//! | `notify` | notifications to systemd: ready, reloading, stopping, keep-alive |
//! | `accept`, `place` | listeners, and the reactor that serves a connection |

mod accept;
mod apply;
mod change_queue;
mod config_rejected;
mod devices;
mod file;
mod identity;
mod notify;
mod observe;
mod place;
mod quiesce;
mod running;
mod server;
mod stats;
mod workers;

use std::io::Write as _;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context as _;
use nvmeof_console::{complain, say};
use nvmeof_core::pci::System;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::task::JoinHandle;

use crate::api;
use crate::config::Config;
use crate::config_file::loaded::Loaded;
use crate::drives::balance::of_stripes;
use crate::limits::Limits;
use crate::logs;
use change_queue::ChangeQueue;
use stats::{RecordOptions, Recorder};

pub(crate) use change_queue::{ChangeRequest, ControlRequest, Reply};
pub(crate) use identity::Identities;
pub(crate) use observe::TraceId;
pub(crate) use quiesce::{LONGEST_REMOVAL, StillBusy};
pub(crate) use running::{ChangeOptions, ControlState, Job};
pub(crate) use server::RetryState;
pub(crate) use stats::metrics::CONTENT_TYPE as METRICS_TYPE;

/// Exit status for an invalid config or command line.
const EXIT_USAGE: u8 = 2;
/// Interval between checks of the distribution of I/O queues over the reactors.
const REBALANCE: Duration = Duration::from_secs(1);
/// Interval between reports of suppressed log lines.
const TELL_LEFT_OUT: Duration = Duration::from_secs(2);
/// Interval between checks for drives that reported changed namespaces.
const LOOK: Duration = Duration::from_secs(1);

/// Longest wait for the log to be written at the end: its reader may have stopped.
const LAST_LINES: Duration = Duration::from_secs(1);

/// Runs the daemon until a signal stops it; with `check`, only checks the config.
///
/// `stats` is a file for statistics, and the interval between samples.
#[must_use]
pub fn run(path: &Path, check: bool, stats: Option<(&Path, &str)>) -> ExitCode {
    let stats = match stats.map(|(file, interval)| RecordOptions::new(file, interval)).transpose() {
        Ok(stats) => stats,
        Err(what) => {
            complain!("nvmeof-tgt: --stats-interval: {what}");
            return ExitCode::from(EXIT_USAGE);
        }
    };
    let loaded = match Loaded::read(path) {
        Ok(loaded) => loaded,
        Err(error) => {
            complain!("{error}");
            return ExitCode::from(EXIT_USAGE);
        }
    };
    if let Some(Err(error)) = loaded.config.api.as_ref().map(|config| api::check(config, !check)) {
        complain!("{}: {error:#}", path.display());
        return ExitCode::from(EXIT_USAGE);
    }
    if check {
        return tell_costs(path, &loaded.config);
    }
    if let Err(error) = logs::start(loaded.config.log, loaded.config.log_format) {
        complain!("nvmeof-tgt: {error:#}");
        return ExitCode::FAILURE;
    }
    let code = match stats.as_ref().map(Recorder::start).transpose() {
        Ok(recorder) => {
            let recording = stats.zip(recorder);
            serve_until_told(path, loaded, recording.map(|(wanted, one)| (wanted.interval, one)))
        }
        Err(error) => {
            logs::write(&format!("nvmeof-tgt: {error:#}\n"));
            ExitCode::from(EXIT_USAGE)
        }
    };
    logs::flush(LAST_LINES);
    code
}

/// Prints the result of `--check`.
fn tell_costs(path: &Path, config: &Config) -> ExitCode {
    for warning in &config.warnings {
        complain!("warning: {warning}");
    }
    for warning in of_stripes(&System::this(), &config.devices, &config.root_complexes) {
        complain!("warning: {warning}");
    }
    say!("{}: ok", path.display());
    say!("{}", Limits::of(config));
    ExitCode::SUCCESS
}

fn serve_until_told(
    path: &Path,
    loaded: Loaded,
    recording: Option<(Duration, Recorder)>,
) -> ExitCode {
    warn_of(&loaded.config);
    let served = workers::runtime().and_then(|runtime| {
        let served = runtime.block_on(serve(path, loaded, recording));
        // A thread that still waits for a drive is abandoned.
        runtime.shutdown_background();
        served
    });
    let Err(error) = served else { return ExitCode::SUCCESS };
    logs::write(&format!("nvmeof-tgt: {error:#}\n"));
    ExitCode::FAILURE
}

/// Logs warnings about settings that are allowed but probably unintended.
fn warn_of(config: &Config) {
    for warning in &config.warnings {
        tracing::warn!("{warning}");
    }
    for warning in of_stripes(&System::this(), &config.devices, &config.root_complexes) {
        tracing::warn!("{warning}");
    }
}

/// Signals that the daemon handles.
struct Signals {
    end: End,
    hangup: Signal,
    count: Signal,
}

/// Signals that stop the daemon.
struct End {
    terminate: Signal,
    interrupt: Signal,
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

impl Signals {
    fn new() -> anyhow::Result<Self> {
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

async fn serve(
    path: &Path,
    loaded: Loaded,
    recording: Option<(Duration, Recorder)>,
) -> anyhow::Result<()> {
    // The daemon announces nothing before this line, so a signal right after `ready` is not lost.
    let mut signals = Signals::new()?;
    notify::start().context("cannot start the thread that talks to the service manager")?;
    let listener = loaded.config.api.as_ref().map(api::ApiListener::open).transpose()?;
    let mut running = tokio::select! {
        running = ControlState::start(path, loaded, devices::from_vfio) => running?,
        // While no host is served, there is nothing to stop cleanly.
        () = signals.end.told() => return Ok(()),
    };
    let (handle, mut jobs) = api::handle();
    let _served = listener.map(|listener| listener.serve(handle));
    let mut sample =
        tokio::time::interval(recording.as_ref().map_or(REBALANCE, |(every, _)| *every));
    sample.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    running.record_to(recording.map(|(_, recorder)| recorder)).await;
    announce(running.ready_line());
    notify::ready(&running.ready_line());
    notify::watch(running.server().senders());
    let mut rebalance = tokio::time::interval(REBALANCE);
    rebalance.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut tell = tokio::time::interval(TELL_LEFT_OUT);
    tell.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut look = tokio::time::interval(LOOK);
    look.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut changes = ChangeQueue::default();
    let mut looking = None;
    loop {
        let server = running.server_mut();
        let (records, spans_reactors) = (server.records(), server.spans_reactors());
        let may_look = looking.is_none() && !changes.is_following();
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
            changed = answer(&mut looking) => changes.follow(changed, &mut running),
            _ = look.tick(), if may_look => looking = running.server().look_at_drives(),
            () = listeners_due => running.retry_listeners().await,
            _ = signals.count.recv() => running.server_mut().log_counts().await,
            _ = sample.tick(), if records => running.server_mut().record().await,
            _ = rebalance.tick(), if spans_reactors => running.server_mut().rebalance(),
            _ = tell.tick() => {
                logs::report_suppressed();
                running.end_overdue_following();
            }
            Some(ask) = jobs.recv() => tokio::select! {
                () = changes.answer(ask, &mut running) => {}
                // A reactor may not answer.
                () = signals.end.told() => break,
            },
        }
    }
    let drain = running.server().config().drain_timeout;
    notify::stopping(drain);
    // Callers receive the error that the daemon is stopping.
    drop(jobs);
    tokio::join!(changes.end(drain.max(server::SHUTDOWN)), running.stop());
    Ok(())
}

/// Returns the result of a thread when it completes; never returns if there is no thread.
async fn answer<T: Default>(thread: &mut Option<JoinHandle<T>>) -> T {
    let Some(asked) = thread else { return std::future::pending().await };
    let answer = asked.await.unwrap_or_default();
    *thread = None;
    answer
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
