//! Handle of the API to the running daemon.
//!
//! A handler sends a request to the loop of `control`. The loop makes one change after another and
//! answers queries between the steps of a change. Two changes therefore never overlap, and only
//! that loop accesses the reactors.

use std::time::Duration;

use nvmeof_api::document::Document;
use nvmeof_api::{ApiError, Change, ErrorKind, Saved};
use tokio::sync::{mpsc, oneshot};

use super::error_response::ErrorResponse;
use super::extract::WithEtag;
use crate::control::{
    ChangeOptions, ChangeRequest, ControlRequest, ControlState, Job, LONGEST_REMOVAL, Reply,
};

/// Maximum requests that are not taken yet; further callers wait to send.
const BACKLOG: usize = 64;
/// Timeout of a call; a drive that does not initialize can take longer.
const PATIENCE: Duration = Duration::from_secs(60);
const _: () =
    assert!(LONGEST_REMOVAL.as_secs() < PATIENCE.as_secs(), "a removal says what it waits for");

/// Sending end.
#[derive(Debug, Clone)]
pub(crate) struct Handle {
    asks: mpsc::Sender<ControlRequest>,
}

/// Creates both ends.
pub(crate) fn handle() -> (Handle, mpsc::Receiver<ControlRequest>) {
    let (asks, receiver) = mpsc::channel(BACKLOG);
    (Handle { asks }, receiver)
}

impl Handle {
    /// Runs a job immediately, even during a change, and returns its result.
    pub(super) async fn call<R, F>(&self, job: F) -> Result<R, ErrorResponse>
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
        self.ask(ControlRequest::Look(job), answer).await
    }

    /// Queries the running state.
    pub(super) async fn look<R, F>(&self, look: F) -> Result<WithEtag<R>, ErrorResponse>
    where
        R: Send + 'static,
        F: FnOnce(&ControlState) -> Result<R, ApiError> + Send + 'static,
    {
        let seen = self
            .call(async move |running| {
                let seen = look(running)?;
                Ok(WithEtag::new(running, seen))
            })
            .await?;
        seen.map_err(ErrorResponse)
    }

    /// Changes the running state by an edit of its document: the whole edit, or nothing.
    pub(super) async fn change<F>(
        &self,
        wish: ChangeOptions,
        edit: F,
    ) -> Result<WithEtag<Change>, ErrorResponse>
    where
        F: FnOnce(&ControlState, &mut Document) -> Result<(), ApiError> + Send + 'static,
    {
        self.order(|reply| ChangeRequest::Edit { wish, edit: Box::new(edit), reply }).await
    }

    /// Applies the config file to the running state.
    pub(super) async fn reload(
        &self,
        wish: ChangeOptions,
    ) -> Result<WithEtag<Change>, ErrorResponse> {
        self.order(|reply| ChangeRequest::Reload { wish, reply }).await
    }

    /// Writes the running state to the config file after any change in progress.
    pub(super) async fn save(
        &self,
        wish: ChangeOptions,
        force: bool,
    ) -> Result<WithEtag<Saved>, ErrorResponse> {
        let (reply, answer) = oneshot::channel();
        let ask = ControlRequest::Change(ChangeRequest::Save { wish, force, reply });
        let saved = self.ask(ask, answer).await?.map_err(ErrorResponse)?;
        Ok(WithEtag::of(saved.revision.clone(), saved))
    }

    async fn order(
        &self,
        order: impl FnOnce(Reply) -> ChangeRequest,
    ) -> Result<WithEtag<Change>, ErrorResponse> {
        let (reply, answer) = oneshot::channel();
        let change =
            self.ask(ControlRequest::Change(order(reply)), answer).await?.map_err(ErrorResponse)?;
        Ok(WithEtag::of(change.revision.clone(), change))
    }

    async fn ask<R>(
        &self,
        ask: ControlRequest,
        answer: oneshot::Receiver<R>,
    ) -> Result<R, ErrorResponse> {
        let done = async {
            self.asks.send(ask).await.map_err(|_| stopping())?;
            answer.await.map_err(|_| stopping())
        };
        match tokio::time::timeout(PATIENCE, done).await {
            Ok(done) => done,
            Err(_) => Err(ErrorResponse(
                ApiError::new(
                    ErrorKind::Unavailable,
                    "this takes long: it, or a change before it, waits for a drive or a file",
                )
                .hint("look at the state before you try again: this call may still be done"),
            )),
        }
    }
}

fn stopping() -> ErrorResponse {
    ErrorResponse(ApiError::new(ErrorKind::Unavailable, "the daemon is stopping"))
}
