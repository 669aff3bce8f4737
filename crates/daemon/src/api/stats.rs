//! `/v1/stats`: counters.

use axum::Json;
use axum::extract::State;
use nvmeof_api::{ApiError, Stats};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::error_response::ErrorResponse;
use super::extract::NoQuery;
use super::handle::Handle;

pub(super) fn router() -> OpenApiRouter<Handle> {
    OpenApiRouter::new().routes(routes!(get))
}

/// Counters since the start, one set per reactor and one for all.
#[utoipa::path(
    get,
    path = "/v1/stats",
    operation_id = "stats",
    responses((status = OK, body = Stats), (status = "default", body = ApiError)),
)]
async fn get(State(handle): State<Handle>, _: NoQuery) -> Result<Json<Stats>, ErrorResponse> {
    Ok(Json(handle.call(async |running| running.stats().await).await?))
}
