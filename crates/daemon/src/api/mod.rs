//! The HTTP API: JSON over a UNIX socket, and over TCP if configured.
//!
//! ```text
//! client --HTTP--> server (sockets, bounds) --> router --> a resource's handler
//!                                                            |  ControlHandle: query, or change
//!                                                            v
//!                     answer <------------------- control loop: ControlState, one change each
//! ```
//!
//! | file | contents |
//! |---|---|
//! | `server` | sockets: opened, guarded, bounded |
//! | `handle` | access of a handler to the running state |
//! | `token` | access over TCP |
//! | `extract` | parts of a request |
//! | `views` | views of all items, for other front ends |
//! | `error_response` | error responses, bounds |
//! | `openapi` | the OpenAPI document |
//! | other files | one file per resource |
//!
//! To add a resource, add its types to `crates/api`, a file here with handlers and
//! `pub(super) fn router()`, and a line to [`router`]. The OpenAPI document follows from the
//! handlers.

mod config;
mod connections;
mod devices;
mod error_response;
mod extract;
mod handle;
mod hosts;
mod listeners;
mod metrics;
mod namespaces;
mod openapi;
mod pacing;
mod page;
mod server;
mod stats;
mod status;
mod subsystems;
#[cfg(test)]
mod tests;
mod token;
mod trace;
mod views;

use handle::Handle;
pub(crate) use server::{ApiListener, check};
pub(crate) use views::{
    all_connections, all_devices, all_listeners, all_namespaces, all_subsystems,
};

use axum::Router;
use serde_json::Value;
use utoipa_axum::router::OpenApiRouter;

use crate::control::ControlHandle;

/// Returns all calls and the document that describes them.
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

/// Returns the calls as a service on the control plane, and their description.
pub(crate) fn service(control: ControlHandle) -> (Router, Value) {
    let (router, document) = router().split_for_parts();
    let document = openapi::to_json(&document);
    let router = openapi::serve(router, &document);
    (error_response::guard(router).with_state(Handle(control)), document)
}
