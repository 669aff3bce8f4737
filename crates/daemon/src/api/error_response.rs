//! Error responses in one form for all errors, including those of the HTTP layer.

use axum::extract::Request;
use axum::http::StatusCode;
use axum::http::header::{HOST, HeaderMap, HeaderName, ORIGIN};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use axum::{Json, Router};
use nvmeof_api::{ApiError, ErrorKind};

/// Maximum bytes of a body: a config of about 10 000 namespaces.
pub(super) const BODY_MAX: usize = 4 << 20;

/// An error as a response.
#[derive(Debug)]
pub(super) struct ErrorResponse(pub(super) ApiError);

impl From<ApiError> for ErrorResponse {
    fn from(error: ApiError) -> Self {
        Self(error)
    }
}

impl IntoResponse for ErrorResponse {
    fn into_response(self) -> Response {
        let status = StatusCode::from_u16(self.0.error.status());
        debug_assert!(status.is_ok(), "{:?} has no HTTP status", self.0.error);
        (status.unwrap_or(StatusCode::INTERNAL_SERVER_ERROR), Json(self.0)).into_response()
    }
}

/// Limits the size of requests, and answers those without a handler.
pub(super) fn guard<S: Clone + Send + Sync + 'static>(router: Router<S>) -> Router<S> {
    router
        .fallback(async |request: Request| {
            let what = format!("there is no {}", request.uri().path());
            ErrorResponse(
                ApiError::new(ErrorKind::NotFound, what).hint("GET /openapi.json lists all"),
            )
        })
        .method_not_allowed_fallback(async |request: Request| {
            let what = format!("{} has no {}", request.uri().path(), request.method());
            let hint = "the header `allow` names its methods";
            ErrorResponse(ApiError::new(ErrorKind::MethodNotAllowed, what).hint(hint))
        })
        .layer(axum::extract::DefaultBodyLimit::max(BODY_MAX))
        .layer(axum::middleware::from_fn(same_origin))
}

/// Accepts only clients that name the daemon by its address; used without a token.
///
/// With DNS rebinding, a web page gives its own name our address, and its requests then have the
/// same origin.
pub(super) fn by_address(router: Router) -> Router {
    router.layer(axum::middleware::from_fn(async |request: Request, next: Next| {
        let host = request.headers().get(HOST).map(|host| host.to_str().unwrap_or(""));
        if host.is_none_or(is_address) {
            return next.run(request).await;
        }
        let what = "without a token, use the address of the daemon, not a name";
        let error = ApiError::new(ErrorKind::Forbidden, what).at("host");
        ErrorResponse(error.hint("use the address, or set api.token-file")).into_response()
    }))
}

/// Returns true for names like `127.0.0.1:4480`, `[::1]:4480` and `localhost`.
fn is_address(host: &str) -> bool {
    let port = host.rsplit_once(':').filter(|(_, port)| port.parse::<u16>().is_ok());
    let name = port.map_or(host, |(name, _)| name);
    let bare = name.strip_prefix('[').and_then(|name| name.strip_suffix(']'));
    name.eq_ignore_ascii_case("localhost")
        || name.parse::<std::net::Ipv4Addr>().is_ok()
        || bare.is_some_and(|bare| bare.parse::<std::net::Ipv6Addr>().is_ok())
}

/// Rejects pages of another origin, which must not use daemons that the browser can reach.
async fn same_origin(request: Request, next: Next) -> Response {
    if is_foreign(request.headers()) {
        let error = ApiError::new(ErrorKind::Forbidden, "a page of another origin asks");
        return ErrorResponse(error.at("origin")).into_response();
    }
    next.run(request).await
}

/// Returns true if a browser reports that the requesting page is of another origin.
fn is_foreign(headers: &HeaderMap) -> bool {
    let header = |name: HeaderName| headers.get(name).map(|value| value.to_str().unwrap_or(""));
    let Some(origin) = header(ORIGIN) else { return false };
    let host = origin.split_once("://").map(|(_, host)| host);
    host.is_none() || host != header(HOST)
}
