//! `/v1/connections`: the queues of hosts.

use axum::extract::State;
use nvmeof_api::view::ConnectionView;
use nvmeof_api::{ApiError, ErrorKind};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::error_response::ErrorResponse;
use super::extract::{NoQuery, Segments, WithEtag};
use super::handle::Handle;
use super::listeners::names;
use crate::control::{ControlState, StillBusy};

pub(super) fn router() -> OpenApiRouter<Handle> {
    OpenApiRouter::new().routes(routes!(list)).routes(routes!(get, drop_one))
}

pub(super) async fn all(running: &ControlState) -> Vec<ConnectionView> {
    let listeners = names(running);
    let mut all: Vec<ConnectionView> = running
        .server()
        .list_connections()
        .await
        .into_iter()
        .map(|(reactor, one)| {
            let listener = listeners.iter().find(|(port, _)| *port == one.port);
            let info = one.info.as_ref();
            ConnectionView {
                id: one.id,
                host: info.map(|info| info.hostnqn.to_string()),
                subsystem: info.map(|info| info.subnqn.to_string()),
                cntlid: info.map(|info| info.cntlid),
                qid: info.map(|info| info.qid),
                depth: info.map(|info| info.depth),
                peer: one.peer,
                listener: listener.map(|(_, name)| name.clone()),
                reactor,
                in_flight: one.in_flight,
                waiting: one.waiting,
            }
        })
        .collect();
    all.sort_by_key(|one| one.id);
    all
}

fn no_connection(id: u64) -> ApiError {
    ApiError::new(ErrorKind::NotFound, format!("there is no connection {id}"))
}

/// The connections of all hosts.
#[utoipa::path(
    get,
    path = "/v1/connections",
    operation_id = "connections_list",
    responses((status = OK, body = Vec<ConnectionView>), (status = "default", body = ApiError)),
)]
async fn list(
    State(handle): State<Handle>,
    _: NoQuery,
) -> Result<WithEtag<Vec<ConnectionView>>, ErrorResponse> {
    handle
        .call(async |running| {
            let all = all(running).await;
            WithEtag::new(running, all)
        })
        .await
}

/// A connection.
#[utoipa::path(
    get,
    path = "/v1/connections/{id}",
    operation_id = "connection_get",
    params(("id" = u64, Path, description = "Its name.")),
    responses((status = OK, body = ConnectionView), (status = "default", body = ApiError)),
)]
async fn get(
    State(handle): State<Handle>,
    Segments(id): Segments<u64>,
    _: NoQuery,
) -> Result<WithEtag<ConnectionView>, ErrorResponse> {
    let found = handle
        .call(async move |running| {
            let found = all(running).await.into_iter().find(|one| one.id == id);
            found.map(|one| WithEtag::new(running, one))
        })
        .await?;
    found.ok_or_else(|| ErrorResponse(no_connection(id)))
}

/// Drops a connection; its commands end without a response.
///
/// Dropping an admin queue also drops the I/O queues of its controller. The host can reconnect
/// immediately; to prevent that, remove it from the hosts of the subsystem.
#[utoipa::path(
    delete,
    path = "/v1/connections/{id}",
    operation_id = "connection_drop",
    params(("id" = u64, Path, description = "Its name.")),
    responses(
        (status = OK, body = ConnectionView, description = "It was this one."),
        (status = "default", body = ApiError),
    ),
)]
async fn drop_one(
    State(handle): State<Handle>,
    Segments(id): Segments<u64>,
    _: NoQuery,
) -> Result<WithEtag<ConnectionView>, ErrorResponse> {
    let (dropped, open) = handle
        .call(async move |running| {
            let open = running.server().removals().clone();
            let Some(found) = all(running).await.into_iter().find(|one| one.id == id) else {
                return (None, open);
            };
            let Some(removal) = running.server().disconnect(id).await else { return (None, open) };
            tracing::info!(id, host = found.host, peer = found.peer, "the API drops a connection");
            (Some((WithEtag::new(running, found), removal)), open)
        })
        .await?;
    let busy =
        |error: StillBusy| ErrorResponse(ApiError::new(ErrorKind::Failed, error.to_string()));
    // Wait for its commands to end, because they may change a device. A second drop finds no
    // connection, but waits as well.
    let Some((dropped, removal)) = dropped else {
        open.commands_ended().await.map_err(busy)?;
        return Err(ErrorResponse(no_connection(id)));
    };
    removal.ended().await.map_err(busy)?;
    Ok(dropped)
}
