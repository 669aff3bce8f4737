//! Handle of the API to the running daemon, with responses as HTTP carries them.

use nvmeof_api::document::Document;
use nvmeof_api::{ApiError, Change, ErrorKind, Saved};

use super::error_response::ErrorResponse;
use super::extract::WithEtag;
use crate::control::{ChangeOptions, ControlHandle, ControlState};

/// Access of a handler to the control plane.
#[derive(Debug, Clone)]
pub(crate) struct Handle(pub(super) ControlHandle);

impl Handle {
    /// Runs a job immediately, even during a change, and returns its result.
    pub(super) async fn call<R, F>(&self, job: F) -> Result<R, ErrorResponse>
    where
        R: Send + 'static,
        F: AsyncFnOnce(&mut ControlState) -> R + Send + 'static,
    {
        self.0.call(job).await.map_err(ErrorResponse)
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
        options: ChangeOptions,
        edit: F,
    ) -> Result<WithEtag<Change>, ErrorResponse>
    where
        F: FnOnce(&ControlState, &mut Document) -> Result<(), ApiError> + Send + 'static,
    {
        tagged(self.0.change(options, edit).await)
    }

    /// Applies the config file to the running state.
    pub(super) async fn reload(
        &self,
        options: ChangeOptions,
    ) -> Result<WithEtag<Change>, ErrorResponse> {
        tagged(self.0.reload(options).await)
    }

    /// Writes the running state to the config file after any change in progress.
    pub(super) async fn save(
        &self,
        options: ChangeOptions,
        force: bool,
    ) -> Result<WithEtag<Saved>, ErrorResponse> {
        let saved = self.0.save(options, force).await.map_err(refused)?;
        Ok(WithEtag::of(saved.revision.clone(), saved))
    }
}

fn tagged(change: Result<Change, ApiError>) -> Result<WithEtag<Change>, ErrorResponse> {
    let change = change.map_err(refused)?;
    Ok(WithEtag::of(change.revision.clone(), change))
}

/// Converts a rejected change; a failed precondition names the header that sets it.
fn refused(error: ApiError) -> ErrorResponse {
    ErrorResponse(match error.error {
        ErrorKind::PreconditionFailed => error.at("if-match"),
        _ => error,
    })
}
