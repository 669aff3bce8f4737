//! The HTTP API: JSON over a UNIX socket, and over TCP where the config says so.
//!
//! ```text
//!   caller --HTTP--> door (sockets, bounds) --> router --> a resource's handler
//!                                                              |  Handle: looks, or asks for a change
//!                                                              v
//!                       answer <------------------- control's loop: Running, one change after the other
//! ```
//!
//! | file | what |
//! |---|---|
//! | `door` | sockets: made, guarded, bounded |
//! | `handle` | how a handler reaches what runs |
//! | `token` | who may call over TCP |
//! | `extract` | what a request brings |
//! | `refusal` | errors as answers, bounds |
//! | `openapi` | the document that describes it all |
//! | the others | one file a resource |
//!
//! To add a resource: its types in `crates/api`, a file here with handlers and `pub(super) fn router()`,
//! a line in [`router`]; the OpenAPI document follows from the handlers.

mod config;
mod connections;
mod devices;
mod door;
mod extract;
mod handle;
mod hosts;
mod listeners;
mod metrics;
mod namespaces;
mod openapi;
mod pacing;
mod page;
mod refusal;
mod stats;
mod status;
mod subsystems;
#[cfg(test)]
mod tests;
mod token;
mod trace;

pub(crate) use door::{Door, check};
pub(crate) use handle::{Handle, handle};

use axum::Router;
use serde_json::Value;
use utoipa_axum::router::OpenApiRouter;

/// Every call there is, and the document that describes them.
fn router() -> OpenApiRouter<Handle> {
    OpenApiRouter::with_openapi(openapi::head())
        .merge(status::router())
        .merge(stats::router())
        .merge(config::router())
        .merge(subsystems::router())
        .merge(namespaces::router())
        .merge(hosts::router())
        .merge(listeners::router())
        .merge(devices::router())
        .merge(pacing::router())
        .merge(connections::router())
        .merge(trace::router())
        .merge(metrics::router())
        .merge(page::router())
}

/// The calls as a service, and their description.
pub(crate) fn service(handle: Handle) -> (Router, Value) {
    let (router, document) = router().split_for_parts();
    let document = openapi::told(&document);
    let router = openapi::serve(router, &document);
    (refusal::guard(router).with_state(handle), document)
}
