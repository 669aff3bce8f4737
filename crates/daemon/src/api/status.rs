//! `/v1/status`: a summary of the running state.

use axum::Json;
use axum::extract::State;
use nvmeof_api::{ApiError, Status};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::error_response::ErrorResponse;
use super::extract::NoQuery;
use super::handle::Handle;

pub(super) fn router() -> OpenApiRouter<Handle> {
    OpenApiRouter::new().routes(routes!(get))
}

/// A summary of the running state.
#[utoipa::path(
    get,
    path = "/v1/status",
    operation_id = "status",
    responses((status = OK, body = Status), (status = "default", body = ApiError)),
)]
async fn get(State(handle): State<Handle>, _: NoQuery) -> Result<Json<Status>, ErrorResponse> {
    Ok(Json(handle.call(async |running| running.status().await).await?))
}
