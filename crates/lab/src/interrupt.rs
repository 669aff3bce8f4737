//! Ctrl-C and SIGTERM: running work is cancelled cleanly, and started processes are stopped.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag;

static INTERRUPTED: OnceLock<Arc<AtomicBool>> = OnceLock::new();

/// Exit status of an interrupted command, as a shell reports it after Ctrl-C.
pub(crate) const STATUS: u8 = 130;

/// Delay until a signal is noticed.
const SLICE: Duration = Duration::from_millis(100);

/// Installs the handlers: the first signal is only noted, a second one ends the program.
pub(crate) fn handle_signals() -> Result<()> {
    let noted = INTERRUPTED.get_or_init(Arc::default);
    for signal in [SIGINT, SIGTERM] {
        flag::register_conditional_shutdown(signal, STATUS.into(), Arc::clone(noted))
            .and_then(|_| flag::register(signal, Arc::clone(noted)))
            .context("cannot handle signals")?;
    }
    Ok(())
}

/// Sleeps for `time`, or until a signal.
pub(crate) fn sleep(time: Duration) {
    let begun = Instant::now();
    while !is_noted() {
        match time.checked_sub(begun.elapsed()) {
            Some(left) if !left.is_zero() => thread::sleep(left.min(SLICE)),
            _ => break,
        }
    }
}

/// Returns whether there was a signal.
pub(crate) fn is_noted() -> bool {
    INTERRUPTED.get().is_some_and(|noted| noted.load(Ordering::Relaxed))
}
