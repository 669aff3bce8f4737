//! `/v1/subsystems/{nqn}/namespaces`: devices as hosts see them. Hosts are notified of every
//! change.

use axum::extract::State;
use nvmeof_api::document::Namespace;
use nvmeof_api::document::edit::{no_namespace, no_subsystem};
use nvmeof_api::view::NamespaceView;
use nvmeof_api::{ApiError, Change, NamespacePatch};
use nvmeof_wire::Nqn;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::error_response::ErrorResponse;
use super::extract::{Body, ChangeParams, DryRun, IfMatch, NoQuery, Segments, WithEtag};
use super::handle::Handle;
use crate::control::{ControlState, Identities};

pub(super) fn router() -> OpenApiRouter<Handle> {
    OpenApiRouter::new().routes(routes!(list, add)).routes(routes!(get, patch, remove))
}

pub(super) fn view(
    running: &ControlState,
    identities: &Identities,
    nqn: &str,
    namespace: &Namespace,
) -> NamespaceView {
    let key = nqn.parse().ok().map(|nqn: Nqn| (nqn, namespace.nsid));
    let found = key.and_then(|key| identities.get(&key));
    let device = running.server().device(&namespace.device).map(|(info, _)| info);
    NamespaceView {
        subsystem: nqn.to_owned(),
        config: namespace.clone(),
        uuid: found.map_or_else(String::new, |one| hex(&one.uuid)),
        nguid: found.map_or_else(String::new, |one| hex(&one.nguid)),
        eui64: found.map_or_else(String::new, |one| hex(&one.eui64)),
        medium: found.map_or_else(String::new, |one| one.medium.clone()),
        block_size: device.as_ref().map_or(0, |info| info.block_size),
        size: device.as_ref().map_or(0, |info| info.size),
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// A subsystem's namespaces.
#[utoipa::path(
    get,
    path = "/v1/subsystems/{nqn}/namespaces",
    operation_id = "namespaces_list",
    params(("nqn" = String, Path, description = "The subsystem.")),
    responses((status = OK, body = Vec<NamespaceView>), (status = "default", body = ApiError)),
)]
async fn list(
    State(handle): State<Handle>,
    Segments(nqn): Segments<String>,
    _: NoQuery,
) -> Result<WithEtag<Vec<NamespaceView>>, ErrorResponse> {
    handle
        .look(move |running| {
            let subsystem = running.document().subsystem(&nqn).ok_or_else(|| no_subsystem(&nqn))?;
            let identities = running.server().identities();
            Ok(subsystem
                .namespace
                .iter()
                .map(|one| view(running, &identities, &nqn, one))
                .collect())
        })
        .await
}

/// Adds a namespace.
#[utoipa::path(
    post,
    path = "/v1/subsystems/{nqn}/namespaces",
    operation_id = "namespace_add",
    params(("nqn" = String, Path, description = "The subsystem."), DryRun, IfMatch),
    request_body = Namespace,
    responses((status = OK, body = Change), (status = "default", body = ApiError)),
)]
async fn add(
    State(handle): State<Handle>,
    Segments(nqn): Segments<String>,
    ChangeParams(options): ChangeParams,
    Body(namespace): Body<Namespace>,
) -> Result<WithEtag<Change>, ErrorResponse> {
    handle.change(options, move |_, document| document.add_namespace(&nqn, namespace)).await
}

/// A namespace.
#[utoipa::path(
    get,
    path = "/v1/subsystems/{nqn}/namespaces/{nsid}",
    operation_id = "namespace_get",
    params(
        ("nqn" = String, Path, description = "The subsystem."),
        ("nsid" = u32, Path, description = "Its number."),
    ),
    responses((status = OK, body = NamespaceView), (status = "default", body = ApiError)),
)]
async fn get(
    State(handle): State<Handle>,
    Segments((nqn, nsid)): Segments<(String, u32)>,
    _: NoQuery,
) -> Result<WithEtag<NamespaceView>, ErrorResponse> {
    handle
        .look(move |running| {
            let subsystem = running.document().subsystem(&nqn).ok_or_else(|| no_subsystem(&nqn))?;
            let namespace = subsystem.namespace(nsid).ok_or_else(|| no_namespace(&nqn, nsid))?;
            Ok(view(running, &running.server().identities(), &nqn, namespace))
        })
        .await
}

/// Changes a namespace: its weight, its limits, its identifiers or its device.
#[utoipa::path(
    patch,
    path = "/v1/subsystems/{nqn}/namespaces/{nsid}",
    operation_id = "namespace_change",
    params(
        ("nqn" = String, Path, description = "The subsystem."),
        ("nsid" = u32, Path, description = "Its number."),
        DryRun,
        IfMatch,
    ),
    request_body = NamespacePatch,
    responses((status = OK, body = Change), (status = "default", body = ApiError)),
)]
async fn patch(
    State(handle): State<Handle>,
    Segments((nqn, nsid)): Segments<(String, u32)>,
    ChangeParams(options): ChangeParams,
    Body(patch): Body<NamespacePatch>,
) -> Result<WithEtag<Change>, ErrorResponse> {
    handle.change(options, move |_, document| document.patch_namespace(&nqn, nsid, &patch)).await
}

/// Removes a namespace from the hosts' view; its device stays.
#[utoipa::path(
    delete,
    path = "/v1/subsystems/{nqn}/namespaces/{nsid}",
    operation_id = "namespace_remove",
    params(
        ("nqn" = String, Path, description = "The subsystem."),
        ("nsid" = u32, Path, description = "Its number."),
        DryRun,
        IfMatch,
    ),
    responses((status = OK, body = Change), (status = "default", body = ApiError)),
)]
async fn remove(
    State(handle): State<Handle>,
    Segments((nqn, nsid)): Segments<(String, u32)>,
    ChangeParams(options): ChangeParams,
) -> Result<WithEtag<Change>, ErrorResponse> {
    handle.change(options, move |_, document| document.remove_namespace(&nqn, nsid)).await
}
