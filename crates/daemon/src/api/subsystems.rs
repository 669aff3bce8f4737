//! `/v1/subsystems`: the NVM subsystems.

use axum::extract::State;
use nvmeof_api::document::Subsystem;
use nvmeof_api::document::edit::no_subsystem;
use nvmeof_api::view::{ControllerView, SubsystemView};
use nvmeof_api::{ApiError, Change, ErrorKind, SubsystemPatch};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::error_response::ErrorResponse;
use super::extract::{
    Body, ChangeParams, DryRun, ForceParams, Forced, IfMatch, NoQuery, Segments, WithEtag,
};
use super::handle::Handle;
use crate::control::ControlState;

pub(super) fn router() -> OpenApiRouter<Handle> {
    OpenApiRouter::new().routes(routes!(list, add)).routes(routes!(get, patch, remove))
}

pub(super) fn view(running: &ControlState, subsystem: &Subsystem) -> SubsystemView {
    let config = running.server().config();
    let found = config.subsystems.iter().find(|one| one.nqn.as_str() == subsystem.nqn);
    SubsystemView {
        config: subsystem.clone(),
        serial: found.map_or_else(String::new, |one| one.serial.clone()),
        model: found.map_or_else(String::new, |one| one.model.clone()),
        controllers: controllers(running, &subsystem.nqn),
    }
}

/// Returns the controllers of hosts in a subsystem.
pub(super) fn controllers(running: &ControlState, nqn: &str) -> Vec<ControllerView> {
    let all = running.server().controllers().into_iter();
    let at = all.filter(|one| one.subnqn.as_str() == nqn);
    at.map(|one| ControllerView { cntlid: one.cntlid, host: one.hostnqn.to_string() }).collect()
}

/// Refuses to remove something that hosts are connected through.
pub(super) fn unless_connected(
    what: &str,
    mut hosts: Vec<String>,
    force: bool,
) -> Result<(), ApiError> {
    hosts.sort();
    hosts.dedup();
    if force || hosts.is_empty() {
        return Ok(());
    }
    let what = format!("{what} is in use by {}", hosts.join(", "));
    let hint = "disconnect the hosts first, or set force: connected hosts lose the namespace";
    Err(ApiError::new(ErrorKind::Conflict, what).hint(hint))
}

/// The subsystems.
#[utoipa::path(
    get,
    path = "/v1/subsystems",
    operation_id = "subsystems_list",
    responses((status = OK, body = Vec<SubsystemView>), (status = "default", body = ApiError)),
)]
async fn list(
    State(handle): State<Handle>,
    _: NoQuery,
) -> Result<WithEtag<Vec<SubsystemView>>, ErrorResponse> {
    let all = |running: &ControlState| {
        running.document().subsystem.iter().map(|one| view(running, one)).collect()
    };
    handle.look(move |running| Ok(all(running))).await
}

/// Adds a subsystem.
#[utoipa::path(
    post,
    path = "/v1/subsystems",
    operation_id = "subsystem_add",
    params(DryRun, IfMatch),
    request_body = Subsystem,
    responses((status = OK, body = Change), (status = "default", body = ApiError)),
)]
async fn add(
    State(handle): State<Handle>,
    ChangeParams(options): ChangeParams,
    Body(subsystem): Body<Subsystem>,
) -> Result<WithEtag<Change>, ErrorResponse> {
    handle.change(options, move |_, document| document.add_subsystem(subsystem)).await
}

/// A subsystem.
#[utoipa::path(
    get,
    path = "/v1/subsystems/{nqn}",
    operation_id = "subsystem_get",
    params(("nqn" = String, Path, description = "Its name.")),
    responses((status = OK, body = SubsystemView), (status = "default", body = ApiError)),
)]
async fn get(
    State(handle): State<Handle>,
    Segments(nqn): Segments<String>,
    _: NoQuery,
) -> Result<WithEtag<SubsystemView>, ErrorResponse> {
    handle
        .look(move |running| {
            let subsystem = running.document().subsystem(&nqn).ok_or_else(|| no_subsystem(&nqn))?;
            Ok(view(running, subsystem))
        })
        .await
}

/// Changes a subsystem.
///
/// A different serial number, model number or range of controller IDs makes it a new subsystem of
/// the same name: its hosts have to reconnect.
#[utoipa::path(
    patch,
    path = "/v1/subsystems/{nqn}",
    operation_id = "subsystem_change",
    params(("nqn" = String, Path, description = "Its name."), DryRun, IfMatch),
    request_body = SubsystemPatch,
    responses((status = OK, body = Change), (status = "default", body = ApiError)),
)]
async fn patch(
    State(handle): State<Handle>,
    Segments(nqn): Segments<String>,
    ChangeParams(options): ChangeParams,
    Body(patch): Body<SubsystemPatch>,
) -> Result<WithEtag<Change>, ErrorResponse> {
    handle.change(options, move |_, document| document.patch_subsystem(&nqn, &patch)).await
}

/// Removes a subsystem with its namespaces; their devices stay.
#[utoipa::path(
    delete,
    path = "/v1/subsystems/{nqn}",
    operation_id = "subsystem_remove",
    params(("nqn" = String, Path, description = "Its name."), Forced, IfMatch),
    responses((status = OK, body = Change), (status = "default", body = ApiError)),
)]
async fn remove(
    State(handle): State<Handle>,
    Segments(nqn): Segments<String>,
    ForceParams { options, force }: ForceParams,
) -> Result<WithEtag<Change>, ErrorResponse> {
    handle
        .change(options, move |running, document| {
            document.remove_subsystem(&nqn)?;
            let hosts = controllers(running, &nqn).into_iter().map(|one| one.host).collect();
            unless_connected(&nqn, hosts, force)
        })
        .await
}
