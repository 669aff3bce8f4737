//! Devices that have to be closed before they can be opened again.
//!
//! A file is locked, and a drive's function can be opened only once.

use std::sync::Arc;

use tokio::sync::watch;

/// Number of devices that are closing. Clones share the count.
#[derive(Debug, Clone)]
pub(super) struct ClosingDevices(Arc<watch::Sender<usize>>);

/// Counts a device as closing until it is dropped.
#[derive(Debug)]
pub(super) struct ClosingGuard(Arc<watch::Sender<usize>>);

impl ClosingDevices {
    pub(super) fn new() -> Self {
        Self(Arc::new(watch::Sender::new(0)))
    }

    /// Counts a device as closing from now on.
    pub(super) fn begin(&self) -> ClosingGuard {
        self.0.send_modify(|count| *count += 1);
        ClosingGuard(Arc::clone(&self.0))
    }

    /// Waits until no device is closing.
    pub(super) async fn over(self) {
        // This task owns the sender, so the channel stays open.
        let _ = self.0.subscribe().wait_for(|count| *count == 0).await;
    }
}

impl Drop for ClosingGuard {
    fn drop(&mut self) {
        self.0.send_modify(|count| *count -= 1);
    }
}
