//! `/metrics`: metrics for Prometheus.

use axum::extract::State;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use nvmeof_api::ApiError;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::error_response::ErrorResponse;
use super::extract::NoQuery;
use super::handle::Handle;

/// Content type of OpenMetrics text.
const METRICS_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

pub(super) fn router() -> OpenApiRouter<Handle> {
    OpenApiRouter::new().routes(routes!(get))
}

/// Counters as OpenMetrics text.
#[utoipa::path(
    get,
    path = "/metrics",
    operation_id = "metrics",
    responses(
        (status = OK, body = String, content_type = "application/openmetrics-text"),
        (status = "default", body = ApiError),
    ),
)]
async fn get(State(handle): State<Handle>, _: NoQuery) -> Result<Response, ErrorResponse> {
    let scrape = handle.call(async |running| running.scrape().await).await?;
    Ok(([(CONTENT_TYPE, METRICS_TYPE)], scrape.text()).into_response())
}
