//! `/v1/config`, `/v1/save` and `/v1/reload`: the whole state, and the config file.

use axum::extract::State;
use nvmeof_api::document::Document;
use nvmeof_api::{ApiError, Change, Saved};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::error_response::ErrorResponse;
use super::extract::{Body, ChangeParams, DryRun, ForceParams, Forced, IfMatch, NoQuery, WithEtag};
use super::handle::Handle;

pub(super) fn router() -> OpenApiRouter<Handle> {
    OpenApiRouter::new().routes(routes!(get, put)).routes(routes!(save)).routes(routes!(reload))
}

/// The running state, as a config.
#[utoipa::path(
    get,
    path = "/v1/config",
    operation_id = "config_get",
    responses((status = OK, body = Document), (status = "default", body = ApiError)),
)]
async fn get(
    State(handle): State<Handle>,
    _: NoQuery,
) -> Result<WithEtag<Document>, ErrorResponse> {
    handle.call(async |running| WithEtag::new(running, running.document().clone())).await
}

/// Applies this config to the running state: all of it, or nothing.
#[utoipa::path(
    put,
    path = "/v1/config",
    operation_id = "config_put",
    params(DryRun, IfMatch),
    request_body = Document,
    responses((status = OK, body = Change), (status = "default", body = ApiError)),
)]
async fn put(
    State(handle): State<Handle>,
    ChangeParams(options): ChangeParams,
    Body(wanted): Body<Document>,
) -> Result<WithEtag<Change>, ErrorResponse> {
    handle
        .change(options, move |_, document| {
            *document = wanted;
            Ok(())
        })
        .await
}

/// Writes the running state to the config file.
///
/// The previous file is kept under its name plus `~`. `force` overwrites a file that was changed
/// since the daemon last read it.
#[utoipa::path(
    post,
    path = "/v1/save",
    operation_id = "save",
    params(Forced, IfMatch),
    responses((status = OK, body = Saved), (status = "default", body = ApiError)),
)]
async fn save(
    State(handle): State<Handle>,
    ForceParams { options, force }: ForceParams,
) -> Result<WithEtag<Saved>, ErrorResponse> {
    handle.save(options, force).await
}

/// Applies the config file to the running state, as SIGHUP does.
#[utoipa::path(
    post,
    path = "/v1/reload",
    operation_id = "reload",
    params(DryRun, IfMatch),
    responses((status = OK, body = Change), (status = "default", body = ApiError)),
)]
async fn reload(
    State(handle): State<Handle>,
    ChangeParams(options): ChangeParams,
) -> Result<WithEtag<Change>, ErrorResponse> {
    handle.reload(options).await
}
