//! `/v1/subsystems/{nqn}/hosts`: hosts that may connect to a subsystem.

use axum::extract::State;
use nvmeof_api::document::edit::no_subsystem;
use nvmeof_api::view::HostView;
use nvmeof_api::{ApiError, Change};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::error_response::ErrorResponse;
use super::extract::{
    ChangeParams, DryRun, ForceParams, Forced, IfMatch, NoQuery, Segments, WithEtag,
};
use super::handle::Handle;
use super::subsystems::{controllers, unless_connected};

pub(super) fn router() -> OpenApiRouter<Handle> {
    OpenApiRouter::new().routes(routes!(list)).routes(routes!(put, remove))
}

/// The listed hosts; none if every host may connect.
#[utoipa::path(
    get,
    path = "/v1/subsystems/{nqn}/hosts",
    operation_id = "hosts_list",
    params(("nqn" = String, Path, description = "The subsystem.")),
    responses((status = OK, body = Vec<HostView>), (status = "default", body = ApiError)),
)]
async fn list(
    State(handle): State<Handle>,
    Segments(nqn): Segments<String>,
    _: NoQuery,
) -> Result<WithEtag<Vec<HostView>>, ErrorResponse> {
    handle
        .look(move |running| {
            let subsystem = running.document().subsystem(&nqn).ok_or_else(|| no_subsystem(&nqn))?;
            let connected = controllers(running, &nqn);
            let view = |host: &String| HostView {
                nqn: host.clone(),
                controllers: connected
                    .iter()
                    .filter(|one| one.host == *host)
                    .map(|one| one.cntlid)
                    .collect(),
            };
            Ok(subsystem.hosts.iter().flatten().map(view).collect())
        })
        .await
}

/// Allows a host to connect.
#[utoipa::path(
    put,
    path = "/v1/subsystems/{nqn}/hosts/{host}",
    operation_id = "host_add",
    params(
        ("nqn" = String, Path, description = "The subsystem."),
        ("host" = String, Path, description = "The host's NQN."),
        DryRun,
        IfMatch,
    ),
    responses((status = OK, body = Change), (status = "default", body = ApiError)),
)]
async fn put(
    State(handle): State<Handle>,
    Segments((nqn, host)): Segments<(String, String)>,
    ChangeParams(options): ChangeParams,
) -> Result<WithEtag<Change>, ErrorResponse> {
    handle.change(options, move |_, document| document.allow_host(&nqn, &host).map(drop)).await
}

/// Removes a host from the list; with `force`, it disconnects the host if it is connected.
#[utoipa::path(
    delete,
    path = "/v1/subsystems/{nqn}/hosts/{host}",
    operation_id = "host_remove",
    params(
        ("nqn" = String, Path, description = "The subsystem."),
        ("host" = String, Path, description = "The host's NQN."),
        Forced,
        IfMatch,
    ),
    responses((status = OK, body = Change), (status = "default", body = ApiError)),
)]
async fn remove(
    State(handle): State<Handle>,
    Segments((nqn, host)): Segments<(String, String)>,
    ForceParams { options, force }: ForceParams,
) -> Result<WithEtag<Change>, ErrorResponse> {
    handle
        .change(options, move |running, document| {
            document.forbid_host(&nqn, &host)?;
            let mut connected = controllers(running, &nqn);
            connected.retain(|one| one.host == host);
            let hosts = connected.into_iter().map(|one| one.host).collect();
            unless_connected(&format!("{host}'s access to {nqn}"), hosts, force)
        })
        .await
}
