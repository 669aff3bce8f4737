//! The running config in SPDK's form: the calls that create it.

use std::collections::BTreeSet;

use nvmeof_api::document::device::DEFAULT_CHUNK;
use nvmeof_api::document::{DISCOVERY_NQN, Device, DeviceConfig, Document, Size};
use nvmeof_api::units::{parse_latency, parse_size};
use nvmeof_api::view::NamespaceView;
use serde_json::{Value, json};

use super::listeners::{address_of, serves};
use super::subsystems::namespace;
use super::transports::transport;
use super::{bdevs, referrals};
use crate::{Params, RpcError, State};

/// Returns the calls of one part.
pub(super) fn part(params: &mut Params, state: &State) -> Result<Value, RpcError> {
    let name: String = params.need("name")?;
    params.ignore(&["with_batches"]);
    match name.as_str() {
        "bdev" => Ok(bdev_calls(state).into()),
        "nvmf" => Ok(target_calls(state).into()),
        _ => Err(RpcError::params(format!("name: there is no \"{name}\", only bdev and nvmf"))),
    }
}

/// Returns all calls.
pub(super) fn all(_: &mut Params, state: &State) -> Result<Value, RpcError> {
    Ok(json!({
        "subsystems": [
            { "subsystem": "bdev", "config": bdev_calls(state) },
            { "subsystem": "nvmf", "config": target_calls(state) },
        ],
    }))
}

fn call(method: &str, params: &Value) -> Value {
    json!({ "method": method, "params": params })
}

/// Returns the calls that create the devices, each after its bases, and their limits.
fn bdev_calls(state: &State) -> Vec<Value> {
    let SavedDevices { names, mut calls } = SavedDevices::of(state);
    for device in &state.document.device {
        if !names.contains(device.name.as_str()) {
            tracing::warn!(
                device = device.name,
                "SPDK has no call that creates this device; the saved config lacks it"
            );
        } else if let Some(limit) = state.limit(&device.name) {
            let mut params = bdevs::rates(Some(&limit));
            params["name"] = device.name.as_str().into();
            calls.push(call("bdev_set_qos_limit", &params));
        }
    }
    calls
}

/// Devices that calls create, each after its bases, and these calls.
struct SavedDevices<'s> {
    names: BTreeSet<&'s str>,
    calls: Vec<Value>,
}

impl<'s> SavedDevices<'s> {
    fn of(state: &'s State) -> Self {
        let mut saved = Self { names: BTreeSet::new(), calls: Vec::new() };
        let mut left: Vec<&Device> = state.document.device.iter().collect();
        loop {
            let (ready, rest): (Vec<_>, Vec<_>) = left
                .into_iter()
                .partition(|one| one.kind.bases().iter().all(|base| saved.names.contains(*base)));
            // The others are on a device that no call creates.
            if ready.is_empty() {
                return saved;
            }
            for device in ready {
                let call = created(device, state);
                if call.is_some() || is_later_split(device, &state.document) {
                    saved.names.insert(&device.name);
                }
                saved.calls.extend(call);
            }
            left = rest;
        }
    }
}

/// Returns the call that creates a device; `None` if SPDK has none, or another device's call
/// creates it.
fn created(device: &Device, state: &State) -> Option<Value> {
    let name = device.name.as_str();
    let uuid = state.uuid(name).to_string();
    Some(match &device.kind {
        DeviceConfig::Ram(_) | DeviceConfig::Null(_) => {
            let method = match &device.kind {
                DeviceConfig::Ram(_) => "bdev_malloc_create",
                _ => "bdev_null_create",
            };
            let view = state.bdev(name).ok()?;
            let blocks = view.size.checked_div(view.block_size.into())?;
            let params = json!({
                "name": name, "num_blocks": blocks, "block_size": view.block_size, "uuid": uuid,
            });
            call(method, &params)
        }
        DeviceConfig::File(keys) => {
            let view = state.bdev(name).ok()?;
            let params = json!({
                "name": name, "filename": keys.path, "block_size": view.block_size,
                "readonly": keys.read_only.unwrap_or(false), "uuid": uuid,
            });
            call("bdev_aio_create", &params)
        }
        DeviceConfig::Nvme(keys) => {
            let controller = name.strip_suffix("n1").filter(|_| keys.nsid.unwrap_or(1) == 1)?;
            let params = json!({ "name": controller, "trtype": "PCIe", "traddr": keys.pci });
            call("bdev_nvme_attach_controller", &params)
        }
        DeviceConfig::Split(keys) => splits(name, keys.base.as_deref()?, &state.document)?,
        DeviceConfig::Stripe(keys) => {
            let chunk = keys.chunk.as_ref().map_or(Some(DEFAULT_CHUNK), bytes)?;
            let params = json!({
                "name": name, "raid_level": "raid0", "strip_size_kb": chunk / 1024,
                "base_bdevs": keys.members, "uuid": uuid,
            });
            (chunk % 1024 == 0).then(|| call("bdev_raid_create", &params))?
        }
        DeviceConfig::Delay(keys) => {
            let micros = |text: &Option<String>| {
                let latency = text.as_deref().map(parse_latency)?.ok()?;
                u64::try_from(latency.as_micros()).ok()
            };
            let read = micros(&keys.read_latency).unwrap_or(0);
            let write = micros(&keys.write_latency).unwrap_or(0);
            let params = json!({
                "name": name, "base_bdev_name": keys.base, "uuid": uuid,
                "avg_read_latency": read, "p99_read_latency": read,
                "avg_write_latency": write, "p99_write_latency": write,
            });
            call("bdev_delay_create", &params)
        }
        DeviceConfig::Fault(keys) => {
            let base = keys.base.as_deref().filter(|base| name == format!("EE_{base}"))?;
            call("bdev_error_create", &json!({ "base_name": base, "uuid": uuid }))
        }
    })
}

fn bytes(size: &Size) -> Option<u64> {
    match size {
        Size::Bytes(bytes) => Some(*bytes),
        Size::Text(text) => parse_size(text).ok(),
    }
}

/// Returns the call that creates all splits of a device, if `name` is the first of them.
fn splits(name: &str, base: &str, document: &Document) -> Option<Value> {
    let size = split_at(name, base, 0, document)?;
    let count =
        (1..).take_while(|n| split_at(&format!("{base}p{n}"), base, *n, document) == Some(size));
    let count = count.count() + 1;
    let whole = size % (1 << 20) == 0;
    let params = json!({ "base_bdev": base, "split_count": count, "split_size_mb": size >> 20 });
    whole.then(|| call("bdev_split_create", &params))
}

/// Returns the size of a split that has the place of SPDK's split number `index`.
fn split_at(name: &str, base: &str, index: u64, document: &Document) -> Option<u64> {
    let DeviceConfig::Split(keys) = &document.device(name)?.kind else { return None };
    let size = bytes(keys.size.as_ref()?)?;
    let offset = keys.offset.as_ref().map_or(Some(0), bytes)?;
    let fits = keys.base.as_deref() == Some(base)
        && name == format!("{base}p{index}")
        && index.checked_mul(size) == Some(offset);
    fits.then_some(size)
}

/// Returns true if the call of a device's first split creates this one, too.
fn is_later_split(device: &Device, document: &Document) -> bool {
    let DeviceConfig::Split(keys) = &device.kind else { return false };
    let Some(base) = keys.base.as_deref() else { return false };
    let number = device.name.strip_prefix(base).and_then(|rest| rest.strip_prefix('p'));
    let Some(number) = number.and_then(|number| number.parse::<u64>().ok()) else { return false };
    let Some(size) = split_at(&format!("{base}p0"), base, 0, document) else { return false };
    size % (1 << 20) == 0
        && (0..=number).all(|n| split_at(&format!("{base}p{n}"), base, n, document) == Some(size))
}

/// Returns the calls that create the target: transports, subsystems, and referrals.
fn target_calls(state: &State) -> Vec<Value> {
    let mut calls = Vec::new();
    for (kind, name) in [("tcp", "TCP"), ("rdma", "RDMA")] {
        if state.listeners.iter().any(|one| one.config.kind == kind) {
            calls.push(call("nvmf_create_transport", &transport(name, state)));
        }
    }
    let devices = SavedDevices::of(state).names;
    for view in &state.subsystems {
        let config = &view.config;
        let nqn = config.nqn.as_str();
        let any = config.allow_any_host.unwrap_or(false);
        let mut params = json!({
            "nqn": nqn, "allow_any_host": any, "serial_number": view.serial,
            "model_number": view.model,
        });
        for (key, id) in [("min_cntlid", config.cntlid_min), ("max_cntlid", config.cntlid_max)] {
            if let Some(id) = id {
                params[key] = id.into();
            }
        }
        calls.push(call("nvmf_create_subsystem", &params));
        for host in config.hosts.iter().flatten() {
            calls.push(call("nvmf_subsystem_add_host", &json!({ "nqn": nqn, "host": host })));
        }
        let is_saved = |one: &&NamespaceView| devices.contains(one.config.device.as_str());
        for one in state.namespaces_of(nqn).filter(is_saved) {
            let mut keys = namespace(one);
            if let Some(keys) = keys.as_object_mut() {
                keys.remove("name");
            }
            let params = json!({ "nqn": nqn, "namespace": keys });
            calls.push(call("nvmf_subsystem_add_ns", &params));
        }
        for listener in state.listeners.iter().filter(|one| serves(&one.config, nqn)) {
            let params = json!({ "nqn": nqn, "listen_address": address_of(listener) });
            calls.push(call("nvmf_subsystem_add_listener", &params));
        }
    }
    calls.extend(discovery_calls(state));
    let referrals = state.document.referral.iter().filter_map(referrals::view);
    calls.extend(referrals.map(|one| call("nvmf_discovery_add_referral", &one)));
    calls
}

/// Returns the calls for the discovery subsystem: its hosts, and the listeners that serve no other.
fn discovery_calls(state: &State) -> Vec<Value> {
    let mut calls = Vec::new();
    let section = state.document.discovery.as_ref();
    if section.is_some_and(|section| section.restricted == Some(true)) {
        let params = json!({ "nqn": DISCOVERY_NQN, "allow_any_host": false });
        calls.push(call("nvmf_subsystem_allow_any_host", &params));
    }
    for listener in &state.listeners {
        if !state.subsystems.iter().any(|one| serves(&listener.config, &one.config.nqn)) {
            let params = json!({ "nqn": DISCOVERY_NQN, "listen_address": address_of(listener) });
            calls.push(call("nvmf_subsystem_add_listener", &params));
        }
    }
    calls
}
