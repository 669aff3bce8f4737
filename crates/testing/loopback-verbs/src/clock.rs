//! Virtual time that follows the clock.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use crate::fabric::Fabric;

/// A thread that advances a fabric's time with the clock. Dropping this value ends the thread.
#[derive(Debug)]
pub struct RealTime {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl RealTime {
    const STEP: Duration = Duration::from_micros(50);

    pub(crate) fn start(fabric: Fabric) -> io::Result<Self> {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let thread = thread::Builder::new().name("loopback clock".to_owned()).spawn(move || {
            let mut last = Instant::now();
            while !stopped.load(Ordering::Relaxed) {
                thread::sleep(Self::STEP);
                let now = Instant::now();
                let passed = now.duration_since(last).as_nanos();
                fabric.advance(u64::try_from(passed).unwrap_or(u64::MAX));
                last = now;
            }
        })?;
        Ok(Self { stop, thread: Some(thread) })
    }
}

impl Drop for RealTime {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // A panic of the thread has been printed already.
            let _ = thread.join();
        }
    }
}
