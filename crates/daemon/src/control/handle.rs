//! Handle of the layers above to the running daemon.
//!
//! A caller sends a request to the [loop](super::event_loop) of the control plane. The loop makes
//! one change after another and answers queries between the steps of a change. Two changes
//! therefore never overlap, and only that loop accesses the reactors.

use std::time::Duration;

use nvmeof_api::document::Document;
use nvmeof_api::{ApiError, Change, ErrorKind, Saved};
use tokio::sync::{mpsc, oneshot};

use super::change_queue::{ChangeRequest, ControlRequest, Reply};
use super::quiesce::LONGEST_REMOVAL;
use super::running::{ChangeOptions, ControlState, Job, OnApplied};

/// Maximum requests that are not taken yet; further callers wait to send.
const BACKLOG: usize = 64;
/// Timeout of a request; a drive that does not initialize can take longer.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(60);
const _: () = assert!(
    LONGEST_REMOVAL.as_secs() < REQUEST_TIMEOUT.as_secs(),
    "a removal says what it waits for"
);

/// Sending end of the control plane's requests.
#[derive(Debug, Clone)]
pub(crate) struct ControlHandle {
    requests: mpsc::Sender<ControlRequest>,
}

/// Receiving end: requests that wait for the loop.
#[derive(Debug)]
pub(crate) struct RequestQueue(mpsc::Receiver<ControlRequest>);

/// Creates both ends.
pub(crate) fn request_channel() -> (ControlHandle, RequestQueue) {
    let (requests, queue) = mpsc::channel(BACKLOG);
    (ControlHandle { requests }, RequestQueue(queue))
}

impl RequestQueue {
    /// Returns the next request; `None` when no sender is left.
    pub(super) async fn recv(&mut self) -> Option<ControlRequest> {
        self.0.recv().await
    }
}

impl ControlHandle {
    /// Runs a job immediately, even during a change, and returns its result.
    ///
    /// # Errors
    /// The daemon is stopping, or a step of a change takes too long.
    pub(crate) async fn call<R, F>(&self, job: F) -> Result<R, ApiError>
    where
        R: Send + 'static,
        F: AsyncFnOnce(&mut ControlState) -> R + Send + 'static,
    {
        let (reply, answer) = oneshot::channel();
        let job: Job = Box::new(move |running| {
            Box::pin(async move {
                // A caller that has disconnected needs no answer.
                let _ = reply.send(job(running).await);
            })
        });
        self.request(ControlRequest::Look(job), answer).await
    }

    /// Changes the running state by an edit of its document: the whole edit, or nothing.
    ///
    /// # Errors
    /// As [`Self::call`], or the change is rejected.
    pub(crate) async fn change<F>(
        &self,
        options: ChangeOptions,
        edit: F,
    ) -> Result<Change, ApiError>
    where
        F: FnOnce(&ControlState, &mut Document) -> Result<(), ApiError> + Send + 'static,
    {
        let (edit, on_applied) = (Box::new(edit), OnApplied::default());
        self.order(|reply| ChangeRequest::Edit { options, edit, on_applied, reply }).await
    }

    /// Changes the running state by an edit, and runs `on_applied` before the next change begins.
    ///
    /// It runs even if the caller has disconnected, and not if the change is rejected.
    ///
    /// # Errors
    /// As [`Self::change`].
    pub(crate) async fn change_then<F>(
        &self,
        edit: F,
        on_applied: impl FnOnce() + Send + 'static,
    ) -> Result<Change, ApiError>
    where
        F: FnOnce(&ControlState, &mut Document) -> Result<(), ApiError> + Send + 'static,
    {
        let (options, edit) = (ChangeOptions::default(), Box::new(edit));
        let on_applied = OnApplied::new(on_applied);
        self.order(|reply| ChangeRequest::Edit { options, edit, on_applied, reply }).await
    }

    /// Applies the config file to the running state.
    ///
    /// # Errors
    /// As [`Self::change`].
    pub(crate) async fn reload(&self, options: ChangeOptions) -> Result<Change, ApiError> {
        self.order(|reply| ChangeRequest::Reload { options, reply }).await
    }

    /// Writes the running state to the config file after any change in progress.
    ///
    /// # Errors
    /// As [`Self::change`].
    pub(crate) async fn save(
        &self,
        options: ChangeOptions,
        force: bool,
    ) -> Result<Saved, ApiError> {
        let (reply, answer) = oneshot::channel();
        let save = ChangeRequest::Save { options, force, reply };
        self.request(ControlRequest::Change(save), answer).await?
    }

    async fn order(&self, order: impl FnOnce(Reply) -> ChangeRequest) -> Result<Change, ApiError> {
        let (reply, answer) = oneshot::channel();
        self.request(ControlRequest::Change(order(reply)), answer).await?
    }

    async fn request<R>(
        &self,
        request: ControlRequest,
        answer: oneshot::Receiver<R>,
    ) -> Result<R, ApiError> {
        let done = async {
            self.requests.send(request).await.map_err(|_| stopping())?;
            answer.await.map_err(|_| stopping())
        };
        match tokio::time::timeout(REQUEST_TIMEOUT, done).await {
            Ok(done) => done,
            Err(_) => Err(ApiError::new(
                ErrorKind::Unavailable,
                "the change waits for a drive or a file, or for an earlier change",
            )
            .hint("look at the state before you try again: this call may still be done")),
        }
    }
}

fn stopping() -> ApiError {
    ApiError::new(ErrorKind::Unavailable, "the daemon is stopping")
}
