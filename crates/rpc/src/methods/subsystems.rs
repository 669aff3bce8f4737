//! Subsystems.

use nvmeof_api::document::{DISCOVERY_NQN, Document, Subsystem};
use nvmeof_api::view::{NamespaceView, SubsystemView};
use serde_json::{Map, Value, json};
use uuid::Uuid;

use super::listeners::{address_of, serves};
use super::{EditResult, is_discovery, listeners};
use crate::{Params, RpcError, State};

/// Controller IDs that SPDK takes for the whole range.
const CNTLIDS: std::ops::RangeInclusive<u16> = 1..=0xffef;

pub(super) fn create(
    params: &mut Params,
    state: &State,
    document: &mut Document,
) -> Result<EditResult, RpcError> {
    let nqn = params.subsystem()?;
    let allow_any_host = params.flag("allow_any_host")?;
    let serial = params.get("serial_number")?;
    let model = params.get("model_number")?;
    let cntlid = |id: Option<u16>, whole: &u16| id.filter(|id| id != whole);
    let cntlid_min = cntlid(params.get("min_cntlid")?, CNTLIDS.start());
    let cntlid_max = cntlid(params.get("max_cntlid")?, CNTLIDS.end());
    params.ignore(&["max_namespaces"]);
    for key in ["dmrsl", "wzsl"] {
        params.refuse(key, "hosts read the limits of the devices")?;
    }
    params.refuse("ana_reporting", "the target reports no asymmetric namespace access")?;
    params.refuse("passthrough", "no command is passed to a drive unseen")?;
    params.refuse("enable_nssr", "hosts cannot reset a subsystem")?;
    params.refuse("admin_label", "the discovery log has no extended entries")?;
    if state.document.subsystem(&nqn).is_some() {
        let what = format!("Unable to create subsystem {nqn}: there is one of this name already");
        return Err(RpcError::failed(what));
    }
    document.add_subsystem(Subsystem {
        nqn,
        allow_any_host: allow_any_host.then_some(true),
        hosts: (!allow_any_host).then(Vec::new),
        serial,
        model,
        cntlid_min,
        cntlid_max,
        namespace: Vec::new(),
    })?;
    Ok(EditResult::ok())
}

pub(super) fn delete(
    params: &mut Params,
    _: &State,
    document: &mut Document,
) -> Result<EditResult, RpcError> {
    let nqn = params.subsystem()?;
    find(document, &nqn)?;
    listeners::forget(document, &nqn);
    document.remove_subsystem(&nqn)?;
    Ok(EditResult::ok())
}

/// Returns a subsystem for editing.
pub(super) fn find<'d>(
    document: &'d mut Document,
    nqn: &str,
) -> Result<&'d mut Subsystem, RpcError> {
    let found = document.subsystem.iter_mut().find(|one| one.nqn == nqn);
    found.ok_or_else(|| RpcError::no_subsystem(nqn))
}

pub(super) fn list(params: &mut Params, state: &State) -> Result<Value, RpcError> {
    params.target()?;
    let wanted: Option<String> = params.get("nqn")?;
    let named = |nqn: &str| wanted.as_deref().is_none_or(|wanted| wanted == nqn);
    let mut all = Vec::new();
    if wanted.as_deref().is_none_or(|wanted| is_discovery(&state.document, wanted)) {
        all.push(discovery(state));
    }
    let subsystems = state.subsystems.iter().filter(|one| named(&one.config.nqn));
    all.extend(subsystems.map(|one| subsystem(one, state)));
    match (all.is_empty(), wanted) {
        (true, Some(nqn)) => Err(RpcError::no_subsystem(&nqn)),
        _ => Ok(all.into()),
    }
}

fn discovery(state: &State) -> Value {
    let addresses: Value = state.listeners.iter().map(address_of).collect();
    let section = state.document.discovery.as_ref();
    let is_restricted = section.and_then(|section| section.restricted).unwrap_or(false);
    json!({
        "nqn": DISCOVERY_NQN,
        "subtype": "Discovery",
        "listen_addresses": addresses,
        "allow_any_host": !is_restricted,
        "hosts": [],
    })
}

fn subsystem(view: &SubsystemView, state: &State) -> Value {
    let config = &view.config;
    let at = state.listeners.iter().filter(|one| serves(&one.config, &config.nqn));
    let hosts: Value = config.hosts.iter().flatten().map(|nqn| json!({ "nqn": nqn })).collect();
    let namespaces: Value = state.namespaces_of(&config.nqn).map(namespace).collect();
    json!({
        "nqn": config.nqn,
        "subtype": "NVMe",
        "listen_addresses": at.map(address_of).collect::<Value>(),
        "allow_any_host": config.allow_any_host.unwrap_or(false),
        "hosts": hosts,
        "serial_number": view.serial,
        "model_number": view.model,
        "max_namespaces": state.limits.namespaces,
        "min_cntlid": config.cntlid_min.unwrap_or(*CNTLIDS.start()),
        "max_cntlid": config.cntlid_max.unwrap_or(*CNTLIDS.end()),
        "namespaces": namespaces,
    })
}

/// Shows a namespace with the identifiers that hosts see.
pub(super) fn namespace(view: &NamespaceView) -> Value {
    let mut keys = Map::new();
    keys.insert("nsid".into(), view.config.nsid.into());
    keys.insert("bdev_name".into(), view.config.device.as_str().into());
    keys.insert("name".into(), view.config.device.as_str().into());
    for (key, digits) in [("nguid", &view.nguid), ("eui64", &view.eui64)] {
        if !digits.is_empty() {
            keys.insert(key.into(), digits.to_ascii_uppercase().into());
        }
    }
    if let Ok(uuid) = view.uuid.parse::<Uuid>() {
        keys.insert("uuid".into(), uuid.to_string().into());
    }
    keys.into()
}
