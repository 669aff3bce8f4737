//! Handle of the API to the running daemon.
//!
//! A handler sends a request to the loop of `control`. The loop makes one change after another and
//! answers queries between the steps of a change. Two changes therefore never overlap, and only
//! that loop accesses the reactors.

use std::time::Duration;

use nvmeof_api::document::Document;
use nvmeof_api::{ApiError, Change, ErrorKind, Saved};
use tokio::sync::{mpsc, oneshot};

use super::extract::Tagged;
use super::refusal::Refusal;
use crate::control::{Ask, Job, LONGEST_REMOVAL, Order, Reply, Running, Wish};

/// Maximum requests that are not taken yet; further callers wait to send.
const BACKLOG: usize = 64;
/// Timeout of a call; a drive that does not initialize can take longer.
const PATIENCE: Duration = Duration::from_secs(60);
const _: () =
    assert!(LONGEST_REMOVAL.as_secs() < PATIENCE.as_secs(), "a removal says what it waits for");

/// Sending end.
#[derive(Debug, Clone)]
pub(crate) struct Handle {
    asks: mpsc::Sender<Ask>,
}

/// Creates both ends.
pub(crate) fn handle() -> (Handle, mpsc::Receiver<Ask>) {
    let (asks, receiver) = mpsc::channel(BACKLOG);
    (Handle { asks }, receiver)
}

impl Handle {
    /// Runs a job immediately, even during a change, and returns its result.
    pub(super) async fn call<R, F>(&self, job: F) -> Result<R, Refusal>
    where
        R: Send + 'static,
        F: AsyncFnOnce(&mut Running) -> R + Send + 'static,
    {
        let (reply, answer) = oneshot::channel();
        let job: Job = Box::new(move |running| {
            Box::pin(async move {
                // A caller that has disconnected needs no answer.
                let _ = reply.send(job(running).await);
            })
        });
        self.ask(Ask::Look(job), answer).await
    }

    /// Queries the running state.
    pub(super) async fn look<R, F>(&self, look: F) -> Result<Tagged<R>, Refusal>
    where
        R: Send + 'static,
        F: FnOnce(&Running) -> Result<R, ApiError> + Send + 'static,
    {
        let seen = self
            .call(async move |running| {
                let seen = look(running)?;
                Ok(Tagged::new(running, seen))
            })
            .await?;
        seen.map_err(Refusal)
    }

    /// Changes the running state by an edit of its document: the whole edit, or nothing.
    pub(super) async fn change<F>(&self, wish: Wish, edit: F) -> Result<Tagged<Change>, Refusal>
    where
        F: FnOnce(&Running, &mut Document) -> Result<(), ApiError> + Send + 'static,
    {
        self.order(|reply| Order::Edit { wish, edit: Box::new(edit), reply }).await
    }

    /// Applies the config file to the running state.
    pub(super) async fn reload(&self, wish: Wish) -> Result<Tagged<Change>, Refusal> {
        self.order(|reply| Order::Reload { wish, reply }).await
    }

    /// Writes the running state to the config file after any change in progress.
    pub(super) async fn save(&self, wish: Wish, force: bool) -> Result<Tagged<Saved>, Refusal> {
        let (reply, answer) = oneshot::channel();
        let ask = Ask::Change(Order::Save { wish, force, reply });
        let saved = self.ask(ask, answer).await?.map_err(Refusal)?;
        Ok(Tagged::of(saved.revision.clone(), saved))
    }

    async fn order(&self, order: impl FnOnce(Reply) -> Order) -> Result<Tagged<Change>, Refusal> {
        let (reply, answer) = oneshot::channel();
        let change = self.ask(Ask::Change(order(reply)), answer).await?.map_err(Refusal)?;
        Ok(Tagged::of(change.revision.clone(), change))
    }

    async fn ask<R>(&self, ask: Ask, answer: oneshot::Receiver<R>) -> Result<R, Refusal> {
        let done = async {
            self.asks.send(ask).await.map_err(|_| stopping())?;
            answer.await.map_err(|_| stopping())
        };
        match tokio::time::timeout(PATIENCE, done).await {
            Ok(done) => done,
            Err(_) => Err(Refusal(
                ApiError::new(
                    ErrorKind::Unavailable,
                    "this takes long: it, or a change before it, waits for a drive or a file",
                )
                .hint("look at the state before you try again: this call may still be done"),
            )),
        }
    }
}

fn stopping() -> Refusal {
    Refusal(ApiError::new(ErrorKind::Unavailable, "the daemon is stopping"))
}
