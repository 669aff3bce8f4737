//! `/`: the status page, for browsers.

use axum::http::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, REFERRER_POLICY, X_CONTENT_TYPE_OPTIONS,
};
use axum::response::{IntoResponse, Response};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::extract::NoQuery;
use super::handle::Handle;

/// Path of the page.
pub(super) const PATH: &str = "/";
/// The page, which loads no other resource.
const PAGE: &str = include_str!("page.html");
/// Content security policy: the page runs inline scripts and connects only to its origin.
const POLICY: &str = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; \
     img-src data:; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

pub(super) fn router() -> OpenApiRouter<Handle> {
    OpenApiRouter::new().routes(routes!(get))
}

/// The status page: plots of what the pacer does, fed by `/v1/stats`.
#[utoipa::path(
    get,
    path = "/",
    operation_id = "page",
    responses((status = OK, body = String, content_type = "text/html")),
)]
async fn get(_: NoQuery) -> Response {
    let headers = [
        (CONTENT_TYPE, "text/html; charset=utf-8"),
        (CONTENT_SECURITY_POLICY, POLICY),
        (CACHE_CONTROL, "no-cache"),
        (REFERRER_POLICY, "no-referrer"),
        (X_CONTENT_TYPE_OPTIONS, "nosniff"),
    ];
    (headers, PAGE).into_response()
}
