//! All devices, which SPDK calls bdevs: views, deletion, limits.

use std::time::Duration;

use nvmeof_api::document::{DeviceConfig, Document, Limit};
use nvmeof_api::units::parse_rate;
use nvmeof_api::view::DeviceView;
use serde_json::{Value, json};

use super::EditResult;
use crate::{BdevProperty, Params, RpcError, State};

pub(super) fn list(params: &mut Params, state: &State) -> Result<Value, RpcError> {
    let name: Option<String> = params.get("name")?;
    let timeout: Option<u64> = params.get("timeout")?;
    let Some(name) = name else {
        return Ok(state.devices.iter().map(|one| view(one, state)).collect());
    };
    match state.bdev(&name) {
        Ok(bdev) => Ok(json!([view(bdev, state)])),
        Err(error) => {
            params.finish()?;
            Err(RpcError { retry: timeout.map(Duration::from_millis), ..error })
        }
    }
}

fn view(bdev: &DeviceView, state: &State) -> Value {
    let name = bdev.config.name.as_str();
    let uuid = state.uuid(name).to_string();
    let writable = !bdev.read_only;
    json!({
        "name": name,
        "aliases": [uuid],
        "product_name": product(&bdev.config.kind),
        "block_size": bdev.block_size,
        "num_blocks": bdev.size.checked_div(bdev.block_size.into()).unwrap_or(0),
        "uuid": uuid,
        "assigned_rate_limits": rates(state.limit(name).as_ref()),
        "claimed": !bdev.used_by.is_empty(),
        "zoned": false,
        "supported_io_types": {
            "read": true,
            "write": writable,
            "unmap": writable,
            "flush": true,
            "reset": false,
            "nvme_admin": false,
            "nvme_io": false,
            "write_zeroes": writable,
            "abort": true,
        },
        "driver_specific": driver(bdev),
    })
}

/// Returns the name by which SPDK's tools recognize the type of a device.
fn product(kind: &DeviceConfig) -> &'static str {
    match kind {
        DeviceConfig::Null(_) => "Null disk",
        DeviceConfig::Ram(_) => "Malloc disk",
        DeviceConfig::File(_) => "AIO disk",
        DeviceConfig::Nvme(_) => "NVMe disk",
        DeviceConfig::Split(_) => "Split Disk",
        DeviceConfig::Stripe(_) => "Raid Volume",
        DeviceConfig::Delay(_) => "delay",
        DeviceConfig::Fault(_) => "Error Injection Disk",
    }
}

fn driver(bdev: &DeviceView) -> Value {
    match &bdev.config.kind {
        DeviceConfig::Null(_) | DeviceConfig::Ram(_) => json!({}),
        DeviceConfig::File(keys) => {
            json!({ "aio": { "filename": keys.path, "readonly": bdev.read_only } })
        }
        DeviceConfig::Nvme(keys) => json!({
            "nvme": [{
                "pci_address": keys.pci,
                "trid": { "trtype": "PCIe", "traddr": keys.pci },
                "ns_data": { "id": keys.nsid.unwrap_or(1) },
            }],
        }),
        DeviceConfig::Split(keys) => json!({ "split": { "base_bdev": keys.base } }),
        DeviceConfig::Stripe(keys) => json!({
            "raid": { "raid_level": "raid0", "base_bdevs_list": keys.members },
        }),
        DeviceConfig::Delay(keys) => json!({
            "delay": { "name": bdev.config.name, "base_bdev_name": keys.base },
        }),
        DeviceConfig::Fault(keys) => json!({ "error": { "base_bdev": keys.base } }),
    }
}

/// Shows the limits of a namespace; 0 is no limit.
pub(super) fn rates(limit: Option<&Limit>) -> Value {
    let bandwidth = limit.and_then(|limit| limit.bandwidth.as_deref());
    let bytes = bandwidth.and_then(|text| parse_rate(text).ok()).unwrap_or(0);
    json!({
        "rw_ios_per_sec": limit.and_then(|limit| limit.iops).unwrap_or(0),
        "rw_mbytes_per_sec": bytes.div_ceil(1 << 20),
        "r_mbytes_per_sec": 0,
        "w_mbytes_per_sec": 0,
    })
}

/// Limits a device: its namespace, or the one that it gets later.
pub(super) fn limit(
    params: &mut Params,
    state: &State,
    document: &mut Document,
) -> Result<EditResult, RpcError> {
    let name: String = params.need("name")?;
    let iops: Option<u64> = params.get("rw_ios_per_sec")?;
    let mebibytes: Option<u64> = params.get("rw_mbytes_per_sec")?;
    let why = "a limit counts reads and writes together; use rw_mbytes_per_sec";
    params.refuse("r_mbytes_per_sec", why)?;
    params.refuse("w_mbytes_per_sec", why)?;
    let name = state.bdev(&name)?.config.name.as_str();
    if iops.or(mebibytes).is_none() {
        let what = "there is no limit; set rw_ios_per_sec or rw_mbytes_per_sec, 0 for none";
        return Err(RpcError::params(what));
    }
    let mut limit = state.limit(name).unwrap_or_default();
    if let Some(iops) = iops {
        limit.iops = (iops > 0).then_some(iops);
    }
    if let Some(mebibytes) = mebibytes {
        limit.bandwidth = (mebibytes > 0).then(|| bandwidth(mebibytes)).transpose()?;
    }
    let limit = (limit.iops.is_some() || limit.bandwidth.is_some()).then_some(limit);
    let mut namespaces = document.subsystem.iter_mut().flat_map(|one| &mut one.namespace);
    if let Some(namespace) = namespaces.find(|one| one.device == name) {
        namespace.limit.clone_from(&limit);
    }
    let property = BdevProperty { limit, ..state.property(name) };
    Ok(EditResult { properties: [(name.to_owned(), property)].into(), ..EditResult::ok() })
}

/// Returns a rate in the form of the config.
fn bandwidth(mebibytes: u64) -> Result<String, RpcError> {
    let bytes = mebibytes.checked_mul(1 << 20);
    let bytes = bytes.ok_or_else(|| RpcError::params("rw_mbytes_per_sec: it is too large"))?;
    Ok(format!("{}.{:03}kB/s", bytes / 1000, bytes % 1000))
}

/// Deletes the named device if it is of the kind.
fn delete(
    params: &mut Params,
    state: &State,
    document: &mut Document,
    is_kind: impl Fn(&DeviceConfig) -> bool,
) -> Result<EditResult, RpcError> {
    let name: String = params.need("name")?;
    let bdev = state.bdev(&name)?;
    if !is_kind(&bdev.config.kind) {
        return Err(RpcError::no_device(format!(
            "bdev \"{name}\" is of another type ({}); call the method of that type",
            product(&bdev.config.kind)
        )));
    }
    remove(document, vec![bdev.config.name.clone()]);
    Ok(EditResult::ok())
}

/// Removes devices, with the devices layered on them and the namespaces on any of these.
pub(super) fn remove(document: &mut Document, names: Vec<String>) {
    let mut gone = names;
    loop {
        let above = document.device.iter().find(|one| {
            let bases = one.kind.bases();
            !gone.contains(&one.name) && bases.iter().any(|base| gone.iter().any(|it| it == base))
        });
        match above {
            Some(above) => gone.push(above.name.clone()),
            None => break,
        }
    }
    for subsystem in &mut document.subsystem {
        subsystem.namespace.retain(|one| !gone.contains(&one.device));
    }
    document.device.retain(|one| !gone.contains(&one.name));
}

pub(super) fn delete_memory(
    params: &mut Params,
    state: &State,
    document: &mut Document,
) -> Result<EditResult, RpcError> {
    delete(params, state, document, |kind| matches!(kind, DeviceConfig::Ram(_)))
}

pub(super) fn delete_null(
    params: &mut Params,
    state: &State,
    document: &mut Document,
) -> Result<EditResult, RpcError> {
    delete(params, state, document, |kind| matches!(kind, DeviceConfig::Null(_)))
}

pub(super) fn delete_file(
    params: &mut Params,
    state: &State,
    document: &mut Document,
) -> Result<EditResult, RpcError> {
    delete(params, state, document, |kind| matches!(kind, DeviceConfig::File(_)))
}

pub(super) fn delete_delay(
    params: &mut Params,
    state: &State,
    document: &mut Document,
) -> Result<EditResult, RpcError> {
    delete(params, state, document, |kind| matches!(kind, DeviceConfig::Delay(_)))
}

pub(super) fn delete_fault(
    params: &mut Params,
    state: &State,
    document: &mut Document,
) -> Result<EditResult, RpcError> {
    delete(params, state, document, |kind| matches!(kind, DeviceConfig::Fault(_)))
}

pub(super) fn delete_stripe(
    params: &mut Params,
    state: &State,
    document: &mut Document,
) -> Result<EditResult, RpcError> {
    // A stripe has no superblock.
    params.ignore(&["clear_sb"]);
    delete(params, state, document, |kind| matches!(kind, DeviceConfig::Stripe(_)))
}
