//! How a handler reaches what runs: it sends a job to control's loop, which does one after the other.
//! So no two changes overlap, and nothing but that loop touches the reactors.

use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use nvmeof_api::document::Document;
use nvmeof_api::{ApiError, Change, ErrorKind};
use tokio::sync::{mpsc, oneshot};

use super::extract::Tagged;
use super::refusal::Refusal;
use crate::control::{Running, Wish};

/// Jobs that may wait; callers beyond wait to hand theirs over.
const BACKLOG: usize = 64;
/// How long a caller waits for its job to be done: devices that are gone may take a while to be let go.
const PATIENCE: Duration = Duration::from_secs(60);

/// Something to be done with what runs.
pub(crate) type Job =
    Box<dyn for<'a> FnOnce(&'a mut Running) -> Pin<Box<dyn Future<Output = ()> + 'a>> + Send>;

/// Sends jobs.
#[derive(Debug, Clone)]
pub(crate) struct Handle {
    jobs: mpsc::Sender<Job>,
}

/// Both ends.
pub(crate) fn handle() -> (Handle, mpsc::Receiver<Job>) {
    let (jobs, receiver) = mpsc::channel(BACKLOG);
    (Handle { jobs }, receiver)
}

impl Handle {
    /// Has a job done, and gives what came of it. A job that was begun is finished, whoever still waits.
    pub(super) async fn call<R, F>(&self, job: F) -> Result<R, Refusal>
    where
        R: Send + 'static,
        F: AsyncFnOnce(&mut Running) -> R + Send + 'static,
    {
        let (reply, answer) = oneshot::channel();
        let job: Job = Box::new(move |running| {
            Box::pin(async move {
                // A caller that has gone needs no answer.
                let _ = reply.send(job(running).await);
            })
        });
        let done = async {
            self.jobs.send(job).await.map_err(|_| stopping())?;
            answer.await.map_err(|_| stopping())
        };
        match tokio::time::timeout(PATIENCE, done).await {
            Ok(done) => done,
            Err(_) => Err(Refusal(
                ApiError::new(ErrorKind::Unavailable, "the daemon is busy with an earlier change")
                    .hint("look at the state before you try again: this call may still be done"),
            )),
        }
    }
}

impl Handle {
    /// Looks at what runs.
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

    /// Changes what runs by an edit of its document, as [`Running::change`] does.
    pub(super) async fn change<F>(&self, wish: Wish, edit: F) -> Result<Tagged<Change>, Refusal>
    where
        F: FnOnce(&Running, &mut Document) -> Result<(), ApiError> + Send + 'static,
    {
        let changed = self
            .call(async move |running| {
                let change = running.change(&wish, edit).await?;
                Ok(Tagged::new(running, change))
            })
            .await?;
        changed.map_err(Refusal)
    }
}

fn stopping() -> Refusal {
    Refusal(ApiError::new(ErrorKind::Unavailable, "the daemon is stopping"))
}
