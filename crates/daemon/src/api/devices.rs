//! `/v1/devices`: the block devices.

use axum::extract::State;
use nvmeof_api::document::Device;
use nvmeof_api::document::edit::no_device;
use nvmeof_api::view::DeviceView;
use nvmeof_api::{ApiError, Change, DevicePatch};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::error_response::ErrorResponse;
use super::extract::{Body, ChangeParams, DryRun, IfMatch, NoQuery, Segments, WithEtag};
use super::handle::Handle;
use crate::control::ControlState;

pub(super) fn router() -> OpenApiRouter<Handle> {
    OpenApiRouter::new().routes(routes!(list, add)).routes(routes!(get, patch, remove))
}

pub(super) fn view(running: &ControlState, device: &Device) -> DeviceView {
    let (info, gone) = running.server().device(&device.name).unzip();
    let info = info.as_ref();
    DeviceView {
        config: device.clone(),
        size: info.map_or(0, |info| info.size),
        block_size: info.map_or(0, |info| info.block_size),
        read_only: info.is_some_and(|info| info.read_only),
        gone: gone.unwrap_or(true),
        used_by: running.document().users_of(&device.name),
    }
}

/// The devices.
#[utoipa::path(
    get,
    path = "/v1/devices",
    operation_id = "devices_list",
    responses((status = OK, body = Vec<DeviceView>), (status = "default", body = ApiError)),
)]
async fn list(
    State(handle): State<Handle>,
    _: NoQuery,
) -> Result<WithEtag<Vec<DeviceView>>, ErrorResponse> {
    handle
        .call(async |running| {
            let all = running.document().device.iter().map(|one| view(running, one)).collect();
            WithEtag::new(running, all)
        })
        .await
}

/// Adds a device.
#[utoipa::path(
    post,
    path = "/v1/devices",
    operation_id = "device_add",
    params(DryRun, IfMatch),
    request_body = Device,
    responses((status = OK, body = Change), (status = "default", body = ApiError)),
)]
async fn add(
    State(handle): State<Handle>,
    ChangeParams(options): ChangeParams,
    Body(device): Body<Device>,
) -> Result<WithEtag<Change>, ErrorResponse> {
    handle.change(options, move |_, document| document.add_device(device)).await
}

/// A device.
#[utoipa::path(
    get,
    path = "/v1/devices/{name}",
    operation_id = "device_get",
    params(("name" = String, Path, description = "Its name.")),
    responses((status = OK, body = DeviceView), (status = "default", body = ApiError)),
)]
async fn get(
    State(handle): State<Handle>,
    Segments(name): Segments<String>,
    _: NoQuery,
) -> Result<WithEtag<DeviceView>, ErrorResponse> {
    handle
        .look(move |running| {
            let device = running.document().device(&name).ok_or_else(|| no_device(&name))?;
            Ok(view(running, device))
        })
        .await
}

/// Changes a device: the size of a file or of memory, without loss of data.
#[utoipa::path(
    patch,
    path = "/v1/devices/{name}",
    operation_id = "device_change",
    params(("name" = String, Path, description = "Its name."), DryRun, IfMatch),
    request_body = DevicePatch,
    responses((status = OK, body = Change), (status = "default", body = ApiError)),
)]
async fn patch(
    State(handle): State<Handle>,
    Segments(name): Segments<String>,
    ChangeParams(options): ChangeParams,
    Body(patch): Body<DevicePatch>,
) -> Result<WithEtag<Change>, ErrorResponse> {
    handle.change(options, move |_, document| document.patch_device(&name, &patch)).await
}

/// Removes an unused device.
#[utoipa::path(
    delete,
    path = "/v1/devices/{name}",
    operation_id = "device_remove",
    params(("name" = String, Path, description = "Its name."), DryRun, IfMatch),
    responses((status = OK, body = Change), (status = "default", body = ApiError)),
)]
async fn remove(
    State(handle): State<Handle>,
    Segments(name): Segments<String>,
    ChangeParams(options): ChangeParams,
) -> Result<WithEtag<Change>, ErrorResponse> {
    handle.change(options, move |_, document| document.remove_device(&name)).await
}
