//! The document that describes the API. Paths and types come from the handlers; here is what stands
//! around them.

use axum::Router;
use axum::http::header::CONTENT_TYPE;
use axum::routing::get;
use utoipa::openapi::{Info, OpenApi, OpenApiBuilder};

/// Where the document is.
pub(super) const PATH: &str = "/openapi.json";

/// The document without paths.
pub(super) fn head() -> OpenApi {
    let mut info = Info::new("nvmeof-tgt", env!("CARGO_PKG_VERSION"));
    info.description = Some(
        "Control a running nvmeof-tgt. Keys of the config are called as in target.toml, everything \
         else is in snake_case. Unknown fields are refused. A change is made as a whole or not at all."
            .into(),
    );
    OpenApiBuilder::new().info(info).build()
}

/// Serves the document.
pub(super) fn serve<S: Clone + Send + Sync + 'static>(
    router: Router<S>,
    document: &OpenApi,
) -> Router<S> {
    // Nothing in it can fail to be JSON.
    let text = document.to_json().unwrap_or_default();
    router.route(PATH, get(async move || ([(CONTENT_TYPE, "application/json")], text)))
}
