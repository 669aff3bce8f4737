//! `/v1/listeners`: addresses that hosts connect to.

use std::time::Instant;

use axum::extract::State;
use nvmeof_api::document::Listener;
use nvmeof_api::view::{ListenerView, ListenerWait};
use nvmeof_api::{ApiError, Change, ErrorKind};
use nvmeof_nvmf::PortId;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::error_response::ErrorResponse;
use super::extract::{
    Body, ChangeParams, DryRun, ForceParams, Forced, IfMatch, NoQuery, Segments, WithEtag,
};
use super::handle::Handle;
use super::subsystems::unless_connected;
use crate::control::{ControlState, RetryState};

pub(super) fn router() -> OpenApiRouter<Handle> {
    OpenApiRouter::new().routes(routes!(list, add)).routes(routes!(get, remove))
}

/// Returns every listener of the config, with its port ID.
pub(super) fn all(running: &ControlState) -> Vec<(Option<PortId>, ListenerView)> {
    let mut there: Vec<_> = running.server().listeners().collect();
    let controllers = running.server().controllers();
    // Both lists have the same listeners in the same order.
    let configured = running.document().listener.iter().zip(&running.server().config().listeners);
    let now = Instant::now();
    let view = |(config, wanted): (&Listener, &crate::config::Listener)| {
        let at = there.iter().position(|(_, other, ..)| *other == wanted);
        let found = at.map(|at| there.remove(at));
        let (port, id, waiting) = match found {
            Some((port, _, address, waiting)) => {
                (Some(port), format!("{}:{address}", wanted.fabric.name()), waiting)
            }
            None => (None, config.id(), None),
        };
        let through = controllers.iter().filter(|one| Some(one.port) == port).count();
        let view = ListenerView {
            id,
            config: config.clone(),
            listening: port.is_some() && waiting.is_none(),
            waiting: waiting.map(|waiting| to_view(waiting, now)),
            controllers: through,
        };
        (port, view)
    };
    configured.map(view).collect()
}

/// Returns the API's names of the listeners, with their port IDs.
pub(super) fn names(running: &ControlState) -> Vec<(PortId, String)> {
    all(running).into_iter().filter_map(|(port, view)| Some((port?, view.id))).collect()
}

fn to_view(waiting: &RetryState, now: Instant) -> ListenerWait {
    ListenerWait {
        error: waiting.error.clone(),
        seconds: waiting.lasts(now).as_secs(),
        tries: waiting.tries,
        next_try_ms: u64::try_from(waiting.pause(now).as_millis()).unwrap_or(u64::MAX),
    }
}

fn no_listener(id: &str) -> ApiError {
    let error = ApiError::new(ErrorKind::NotFound, format!("there is no listener {id}"));
    error.hint("they are called TYPE:ADDRESS:PORT, as tcp:192.0.2.1:4420 or tcp:[::1]:4420")
}

/// The listeners.
#[utoipa::path(
    get,
    path = "/v1/listeners",
    operation_id = "listeners_list",
    responses((status = OK, body = Vec<ListenerView>), (status = "default", body = ApiError)),
)]
async fn list(
    State(handle): State<Handle>,
    _: NoQuery,
) -> Result<WithEtag<Vec<ListenerView>>, ErrorResponse> {
    handle.look(|running| Ok(all(running).into_iter().map(|(_, view)| view).collect())).await
}

/// Adds a listener; one that fails to bind is rejected.
#[utoipa::path(
    post,
    path = "/v1/listeners",
    operation_id = "listener_add",
    params(DryRun, IfMatch),
    request_body = Listener,
    responses((status = OK, body = Change), (status = "default", body = ApiError)),
)]
async fn add(
    State(handle): State<Handle>,
    ChangeParams(options): ChangeParams,
    Body(listener): Body<Listener>,
) -> Result<WithEtag<Change>, ErrorResponse> {
    handle.change(options, move |_, document| document.add_listener(listener)).await
}

/// A listener.
#[utoipa::path(
    get,
    path = "/v1/listeners/{id}",
    operation_id = "listener_get",
    params(("id" = String, Path, description = "Its type, address and port: `tcp:192.0.2.1:4420`.")),
    responses((status = OK, body = ListenerView), (status = "default", body = ApiError)),
)]
async fn get(
    State(handle): State<Handle>,
    Segments(id): Segments<String>,
    _: NoQuery,
) -> Result<WithEtag<ListenerView>, ErrorResponse> {
    handle
        .look(move |running| {
            let found = all(running).into_iter().find(|(_, view)| view.id == id);
            found.map(|(_, view)| view).ok_or_else(|| no_listener(&id))
        })
        .await
}

/// Removes a listener; with `force`, it disconnects hosts that use it.
#[utoipa::path(
    delete,
    path = "/v1/listeners/{id}",
    operation_id = "listener_remove",
    params(
        ("id" = String, Path, description = "Its type, address and port: `tcp:192.0.2.1:4420`."),
        Forced,
        IfMatch,
    ),
    responses((status = OK, body = Change), (status = "default", body = ApiError)),
)]
async fn remove(
    State(handle): State<Handle>,
    Segments(id): Segments<String>,
    ForceParams { options, force }: ForceParams,
) -> Result<WithEtag<Change>, ErrorResponse> {
    handle
        .change(options, move |running, document| {
            let all = all(running);
            let at = all.iter().position(|(_, view)| view.id == id);
            let at = at.ok_or_else(|| no_listener(&id))?;
            let (port, view) = &all[at];
            if all.iter().filter(|(_, other)| other.config == view.config).count() > 1 {
                let what = format!("the config has another listener just like {id}");
                let hint = "give them ports of their own, with PUT /v1/config";
                return Err(ApiError::new(ErrorKind::Conflict, what).hint(hint));
            }
            document.listener.remove(at);
            let controllers = running.server().controllers().into_iter();
            let through = controllers.filter(|one| Some(one.port) == *port);
            let hosts = through.map(|one| one.hostnqn.to_string()).collect();
            unless_connected(&format!("listener {id}"), hosts, force)
        })
        .await
}
