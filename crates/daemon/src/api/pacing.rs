//! `/v1/pacing`: the pacing policy.

use axum::extract::State;
use nvmeof_api::document::PacingConfig;
use nvmeof_api::view::PacingView;
use nvmeof_api::{ApiError, Change};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::error_response::ErrorResponse;
use super::extract::{Body, ChangeParams, DryRun, IfMatch, NoQuery, WithEtag};
use super::handle::Handle;

pub(super) fn router() -> OpenApiRouter<Handle> {
    OpenApiRouter::new().routes(routes!(get, put))
}

/// The pacing policy in force, and its state.
#[utoipa::path(
    get,
    path = "/v1/pacing",
    operation_id = "pacing_get",
    responses((status = OK, body = PacingView), (status = "default", body = ApiError)),
)]
async fn get(
    State(handle): State<Handle>,
    _: NoQuery,
) -> Result<WithEtag<PacingView>, ErrorResponse> {
    handle
        .call(async |running| {
            let (snapshot, counts) = running.server().pacing().await;
            let view = PacingView {
                config: running.document().pacing.clone().unwrap_or_default(),
                policy: running.server().policy().into(),
                budget_bytes: snapshot.budget,
                period_ns: snapshot.period,
                bytes_in_flight: counts.bytes_in_flight,
                in_flight: counts.outstanding(),
                waiting: counts.waiting(),
            };
            WithEtag::new(running, view)
        })
        .await
}

/// Changes the pacing policy for commands that start later.
///
/// Keys that are omitted take their defaults.
#[utoipa::path(
    put,
    path = "/v1/pacing",
    operation_id = "pacing_put",
    params(DryRun, IfMatch),
    request_body = PacingConfig,
    responses((status = OK, body = Change), (status = "default", body = ApiError)),
)]
async fn put(
    State(handle): State<Handle>,
    ChangeParams(options): ChangeParams,
    Body(pacing): Body<PacingConfig>,
) -> Result<WithEtag<Change>, ErrorResponse> {
    handle
        .change(options, move |_, document| {
            document.pacing = Some(pacing);
            Ok(())
        })
        .await
}
