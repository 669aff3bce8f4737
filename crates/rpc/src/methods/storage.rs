//! Devices with their own data: memory, files, drives.

use nvmeof_api::document::device::{FileKeys, MemoryKeys, NvmeKeys};
use nvmeof_api::document::{Device, DeviceConfig, Document, Size};
use uuid::Uuid;

use super::{EditResult, bdevs};
use crate::{BdevProperty, Params, RpcError, State};

/// Parameters of SPDK's settings as a host of a drive.
const DRIVE_NO_EFFECT: &[&str] = &[
    "adrfam",
    "trsvcid",
    "priority",
    "subnqn",
    "hostnqn",
    "hostaddr",
    "hostsvcid",
    "hdgst",
    "ddgst",
    "fabrics_connect_timeout_us",
    "multipath",
    "num_io_queues",
    "ctrlr_loss_timeout_sec",
    "reconnect_delay_sec",
    "fast_io_fail_timeout_sec",
    "max_bdevs",
    "allow_unrecognized_csi",
    "multipath_opts",
    "disable_sq_flow_control",
];

/// Parameters of a geometry that hosts read.
const GEOMETRY: &[&str] = &[
    "optimal_io_boundary",
    "optimal_write_size",
    "preferred_write_granularity",
    "preferred_write_alignment",
    "preferred_unmap_granularity",
    "preferred_unmap_alignment",
];

pub(super) fn create_memory(
    params: &mut Params,
    _: &State,
    document: &mut Document,
) -> Result<EditResult, RpcError> {
    let name = params.get("name")?;
    let name = name.unwrap_or_else(|| {
        let free = |name: &String| document.device(name).is_none();
        (0_u64..).map(|number| format!("Malloc{number}")).find(free).unwrap_or_default()
    });
    memory(params, document, name, DeviceConfig::Ram)
}

pub(super) fn create_null(
    params: &mut Params,
    _: &State,
    document: &mut Document,
) -> Result<EditResult, RpcError> {
    let name = params.need("name")?;
    memory(params, document, name, DeviceConfig::Null)
}

fn memory(
    params: &mut Params,
    document: &mut Document,
    name: String,
    kind: fn(MemoryKeys) -> DeviceConfig,
) -> Result<EditResult, RpcError> {
    let block_size: u32 = params.need("block_size")?;
    let blocks: u64 = params.need("num_blocks")?;
    let size = blocks.checked_mul(block_size.into()).ok_or_else(|| {
        RpcError::params(format!("num_blocks: {blocks} blocks exceed 64 bits; use fewer"))
    })?;
    for key in ["md_size", "dif_type"] {
        params.refuse(key, "blocks have no metadata")?;
    }
    params.ignore(&["md_interleave", "dif_is_head_of_md", "dif_pi_format", "numa_id"]);
    // Saved configs of SPDK have the block size here.
    if params.get("physical_block_size")?.is_some_and(|size: u32| ![0, block_size].contains(&size))
    {
        let what = format!(
            "physical_block_size: only {block_size}, the block_size, is supported; leave it out"
        );
        return Err(RpcError::params(what));
    }
    for key in GEOMETRY {
        params.refuse(key, "hosts read the geometry of memory, which has no preference")?;
    }
    let keys = MemoryKeys {
        size: Some(Size::Bytes(size)),
        block_size: Some(Size::Bytes(block_size.into())),
    };
    add(params, document, Device { name, kind: kind(keys) })
}

/// Adds a device, with the UUID of the call or a new one; the result is its name.
pub(super) fn add(
    params: &mut Params,
    document: &mut Document,
    device: Device,
) -> Result<EditResult, RpcError> {
    let uuid: Option<Uuid> = params.get("uuid")?;
    if document.device(&device.name).is_some() {
        return Err(RpcError::exists(&device.name));
    }
    let uuid = uuid.filter(|uuid| !uuid.is_nil()).unwrap_or_else(Uuid::new_v4);
    let name = device.name.clone();
    document.add_device(device)?;
    let property = BdevProperty { uuid: Some(uuid), limit: None };
    Ok(EditResult { result: name.as_str().into(), properties: [(name, property)].into() })
}

pub(super) fn create_file(
    params: &mut Params,
    _: &State,
    document: &mut Document,
) -> Result<EditResult, RpcError> {
    let name = params.need("name")?;
    let path: String = params.need("filename")?;
    let block_size: Option<u64> = params.get("block_size")?;
    let read_only = params.flag("readonly")?;
    params.ignore(&["fallocate", "nowait"]);
    let keys = FileKeys {
        path: Some(path),
        block_size: block_size.filter(|size| *size != 0).map(Size::Bytes),
        read_only: read_only.then_some(true),
        ..FileKeys::default()
    };
    add(params, document, Device { name, kind: DeviceConfig::File(keys) })
}

pub(super) fn attach_drive(
    params: &mut Params,
    _: &State,
    document: &mut Document,
) -> Result<EditResult, RpcError> {
    let name: String = params.need("name")?;
    let kind: String = params.need("trtype")?;
    let pci: String = params.need("traddr")?;
    if !kind.eq_ignore_ascii_case("pcie") {
        return Err(RpcError::params(format!(
            "trtype: \"{kind}\" is not supported; only drives of this machine (PCIe) are attached"
        )));
    }
    for key in ["prchk_reftag", "prchk_guard"] {
        params.refuse(key, "blocks have no metadata")?;
    }
    for key in ["psk", "dhchap_key", "dhchap_ctrlr_key"] {
        params.refuse(key, "a drive does not authenticate")?;
    }
    params.ignore(DRIVE_NO_EFFECT);
    let name = format!("{name}n1");
    if document.device(&name).is_some() {
        return Err(RpcError::exists(&name));
    }
    let keys = NvmeKeys { pci: Some(pci), nsid: Some(1), ..NvmeKeys::default() };
    // The UUID follows from the identity of the drive.
    document.add_device(Device { name: name.clone(), kind: DeviceConfig::Nvme(keys) })?;
    Ok(EditResult::new(vec![name]))
}

pub(super) fn detach_drive(
    params: &mut Params,
    _: &State,
    document: &mut Document,
) -> Result<EditResult, RpcError> {
    let controller: String = params.need("name")?;
    params.ignore(&["trtype", "traddr", "adrfam", "trsvcid", "subnqn", "hostaddr", "hostsvcid"]);
    let prefix = format!("{controller}n");
    let is_namespace = |one: &&Device| {
        let nsid = one.name.strip_prefix(&prefix);
        matches!(one.kind, DeviceConfig::Nvme(_))
            && nsid.is_some_and(|nsid| nsid.parse::<u32>().is_ok())
    };
    let names: Vec<String> =
        document.device.iter().filter(is_namespace).map(|one| one.name.clone()).collect();
    if names.is_empty() {
        return Err(RpcError::no_device(format!("no drive is attached as \"{controller}\"")));
    }
    bdevs::remove(document, names);
    Ok(EditResult::ok())
}
