//! What is being closed and has to be before it can be opened again: a file is locked, a drive's function had only once.

use std::sync::Arc;

use tokio::sync::watch;

/// How much is being closed. Clones are the same.
#[derive(Debug, Clone)]
pub(super) struct Leaving(Arc<watch::Sender<usize>>);

/// Something is being closed until this is dropped.
#[derive(Debug)]
pub(super) struct Leaver(Arc<watch::Sender<usize>>);

impl Leaving {
    pub(super) fn new() -> Self {
        Self(Arc::new(watch::Sender::new(0)))
    }

    /// Something begins to be closed.
    pub(super) fn begin(&self) -> Leaver {
        self.0.send_modify(|count| *count += 1);
        Leaver(Arc::clone(&self.0))
    }

    /// Waits until nothing is being closed.
    pub(super) async fn over(self) {
        // The sender is ours: it does not end.
        let _ = self.0.subscribe().wait_for(|count| *count == 0).await;
    }
}

impl Drop for Leaver {
    fn drop(&mut self) {
        self.0.send_modify(|count| *count -= 1);
    }
}
