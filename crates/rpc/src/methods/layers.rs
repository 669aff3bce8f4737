//! Devices on other devices.

use nvmeof_api::document::device::{DelayKeys, FaultKeys, SplitKeys, StripeKeys};
use nvmeof_api::document::{Device, DeviceConfig, Document, Size};
use uuid::Uuid;

use super::storage::add;
use super::{EditResult, bdevs};
use crate::{BdevProperty, Params, RpcError, State};

/// Maximum parts of one device.
const SPLITS_MAX: u64 = 1024;

/// Adds a device that delays commands. Every command takes the average latency.
pub(super) fn create_delay(
    params: &mut Params,
    state: &State,
    document: &mut Document,
) -> Result<EditResult, RpcError> {
    let name = params.need("name")?;
    let base: String = params.need("base_bdev_name")?;
    let read: u64 = params.need("avg_read_latency")?;
    let write: u64 = params.need("avg_write_latency")?;
    for key in ["p99_read_latency", "p99_write_latency"] {
        params.need::<u64>(key)?;
    }
    let keys = DelayKeys {
        base: Some(state.bdev(&base)?.config.name.clone()),
        read_latency: Some(format!("{read}us")),
        write_latency: Some(format!("{write}us")),
        ..DelayKeys::default()
    };
    add(params, document, Device { name, kind: DeviceConfig::Delay(keys) })
}

/// Adds a device that injects faults; it injects none until the config has some.
pub(super) fn create_fault(
    params: &mut Params,
    state: &State,
    document: &mut Document,
) -> Result<EditResult, RpcError> {
    let base: String = params.need("base_name")?;
    let base = state.bdev(&base)?.config.name.clone();
    let name = format!("EE_{base}");
    let keys = FaultKeys { base: Some(base), ..FaultKeys::default() };
    let done = add(params, document, Device { name, kind: DeviceConfig::Fault(keys) })?;
    Ok(EditResult { result: true.into(), ..done })
}

/// Adds a stripe.
pub(super) fn create_stripe(
    params: &mut Params,
    state: &State,
    document: &mut Document,
) -> Result<EditResult, RpcError> {
    let name = params.need("name")?;
    let level: String = params.need("raid_level")?;
    let kib: u64 = params.get("strip_size_kb")?.unwrap_or(0);
    let bases: Vec<String> = params.need("base_bdevs")?;
    if !["raid0", "0"].iter().any(|known| level.eq_ignore_ascii_case(known)) {
        let what = format!("raid_level: \"{level}\" is not supported, only \"raid0\"");
        return Err(RpcError::params(what));
    }
    params.refuse("superblock", "a stripe has no data besides that of hosts")?;
    params.ignore(&["delta_bitmap"]);
    let chunk = kib.checked_mul(1024).filter(|chunk| *chunk > 0);
    let chunk =
        chunk.ok_or_else(|| RpcError::params("strip_size_kb: set the KiB of a strip, like 128"))?;
    let members = bases.iter().map(|base| Ok(state.bdev(base)?.config.name.clone()));
    let keys = StripeKeys {
        members: Some(members.collect::<Result<_, RpcError>>()?),
        chunk: Some(Size::Bytes(chunk)),
    };
    let done = add(params, document, Device { name, kind: DeviceConfig::Stripe(keys) })?;
    Ok(EditResult { result: true.into(), ..done })
}

/// Adds splits of equal size, `NAMEp0` and up; the result is their names.
pub(super) fn create_splits(
    params: &mut Params,
    state: &State,
    document: &mut Document,
) -> Result<EditResult, RpcError> {
    let base: String = params.need("base_bdev")?;
    let count: u64 = params.need("split_count")?;
    let mebibytes: u64 = params.get("split_size_mb")?.unwrap_or(0);
    let bdev = state.bdev(&base)?;
    let base = bdev.config.name.as_str();
    if splits(document, base).next().is_some() {
        return Err(RpcError::params(format!(
            "\"{base}\" has splits already; delete them first (bdev_split_delete)"
        )));
    }
    if !(1..=SPLITS_MAX).contains(&count) {
        let what = format!("split_count: {count} is not supported; allowed: 1 to {SPLITS_MAX}");
        return Err(RpcError::params(what));
    }
    let block = u64::from(bdev.block_size.max(1));
    let part = match mebibytes {
        0 => bdev.size / count / block * block,
        _ => mebibytes.saturating_mul(1 << 20),
    };
    // SPDK makes as many parts as there is room for.
    let count = bdev.size.checked_div(part).unwrap_or(0).min(count);
    if count == 0 {
        let what = format!("\"{base}\" has {} bytes, less than one part", bdev.size);
        return Err(RpcError::params(what));
    }
    let mut done = EditResult::new(Vec::<String>::new());
    let mut names = Vec::new();
    for index in 0..count {
        let name = format!("{base}p{index}");
        if document.device(&name).is_some() {
            return Err(RpcError::exists(&name));
        }
        let keys = SplitKeys {
            base: Some(base.to_owned()),
            offset: Some(Size::Bytes(index * part)),
            size: Some(Size::Bytes(part)),
        };
        document.add_device(Device { name: name.clone(), kind: DeviceConfig::Split(keys) })?;
        names.push(name.clone());
        let property = BdevProperty { uuid: Some(Uuid::new_v4()), limit: None };
        done.properties.insert(name, property);
    }
    done.result = names.into();
    Ok(done)
}

/// Returns the names of the splits of a device that have the names of SPDK's splits.
fn splits<'d>(document: &'d Document, base: &'d str) -> impl Iterator<Item = &'d str> {
    let is_split = move |one: &&Device| {
        let number = one.name.strip_prefix(base).and_then(|rest| rest.strip_prefix('p'));
        matches!(&one.kind, DeviceConfig::Split(keys) if keys.base.as_deref() == Some(base))
            && number.is_some_and(|number| number.parse::<u32>().is_ok())
    };
    document.device.iter().filter(is_split).map(|one| one.name.as_str())
}

pub(super) fn delete_splits(
    params: &mut Params,
    state: &State,
    document: &mut Document,
) -> Result<EditResult, RpcError> {
    let base: String = params.need("base_bdev")?;
    let base = state.bdev(&base)?.config.name.as_str();
    let names: Vec<String> = splits(document, base).map(str::to_owned).collect();
    if names.is_empty() {
        return Err(RpcError::params(format!("\"{base}\" has no splits")));
    }
    bdevs::remove(document, names);
    Ok(EditResult::ok())
}
