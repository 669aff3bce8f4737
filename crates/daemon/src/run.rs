//! The program: checks the command line's config, or serves until a signal stops the daemon.
//!
//! This module is above all others. It connects the [control plane](crate::control) with the
//! [API](crate::api) and with [RPC](crate::rpc), which none of them does.

use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use nvmeof_console::{complain, say};

use crate::api::{self, ApiListener};
use crate::config::Config;
use crate::config_file::loaded::Loaded;
use crate::control::{
    ControlLoop, RecordOptions, Recorder, Signals, config_warnings, log_config_warnings,
    request_channel, runtime,
};
use crate::limits::Limits;
use crate::logs;
use crate::rpc::RpcListener;

/// Exit status for an invalid config or command line.
const EXIT_USAGE: u8 = 2;
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
        return print_costs(path, &loaded.config);
    }
    if let Err(error) = logs::start(loaded.config.log, loaded.config.log_format) {
        complain!("nvmeof-tgt: {error:#}");
        return ExitCode::FAILURE;
    }
    let code = match stats.as_ref().map(Recorder::start).transpose() {
        Ok(recorder) => {
            let recording = stats.zip(recorder);
            serve_until_signal(path, loaded, recording.map(|(wanted, one)| (wanted.interval, one)))
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
fn print_costs(path: &Path, config: &Config) -> ExitCode {
    for warning in config_warnings(config) {
        complain!("warning: {warning}");
    }
    say!("{}: ok", path.display());
    say!("{}", Limits::of(config));
    ExitCode::SUCCESS
}

fn serve_until_signal(
    path: &Path,
    loaded: Loaded,
    recording: Option<(Duration, Recorder)>,
) -> ExitCode {
    log_config_warnings(&loaded.config);
    let served = runtime().and_then(|runtime| {
        let served = runtime.block_on(serve(path, loaded, recording));
        // A thread that still waits for a drive is abandoned.
        runtime.shutdown_background();
        served
    });
    let Err(error) = served else { return ExitCode::SUCCESS };
    logs::write(&format!("nvmeof-tgt: {error:#}\n"));
    ExitCode::FAILURE
}

async fn serve(
    path: &Path,
    loaded: Loaded,
    recording: Option<(Duration, Recorder)>,
) -> anyhow::Result<()> {
    // The daemon announces nothing before this line, so a signal right after `ready` is not lost.
    let signals = Signals::new()?;
    let listener = loaded.config.api.as_ref().map(ApiListener::open).transpose()?;
    let rpc = loaded.config.rpc.as_ref().and_then(RpcListener::open);
    let Some(control) = ControlLoop::start(path, loaded, signals).await? else { return Ok(()) };
    let (handle, requests) = request_channel();
    let _served = listener.map(|listener| listener.serve(handle.clone()));
    let _rpc = rpc.map(|listener| listener.serve(handle));
    control.run(requests, recording).await;
    Ok(())
}
