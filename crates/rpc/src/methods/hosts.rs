//! Hosts that may connect to a subsystem.

use nvmeof_api::document::{DiscoverySection, Document};

use super::{EditResult, is_discovery, subsystems};
use crate::{Params, RpcError, State};

pub(super) fn add(
    params: &mut Params,
    _: &State,
    document: &mut Document,
) -> Result<EditResult, RpcError> {
    let nqn = params.subsystem()?;
    let host: String = params.need("host")?;
    for key in ["psk", "dhchap_key", "dhchap_ctrlr_key"] {
        params.refuse(key, "hosts do not authenticate")?;
    }
    let subsystem = subsystems::find(document, &nqn)?;
    if subsystem.allow_any_host == Some(true) {
        return Err(RpcError::params(format!(
            "every host may connect to {nqn}; set allow_any_host to false first \
             (nvmf_subsystem_allow_any_host)"
        )));
    }
    if !document.allow_host(&nqn, &host)? {
        return Err(RpcError::failed(format!("{host} is among the hosts of {nqn} already")));
    }
    Ok(EditResult::ok())
}

pub(super) fn remove(
    params: &mut Params,
    _: &State,
    document: &mut Document,
) -> Result<EditResult, RpcError> {
    let nqn = params.subsystem()?;
    let host: String = params.need("host")?;
    params.ignore(&["timeout_ms"]);
    let hosts = &mut subsystems::find(document, &nqn)?.hosts;
    let hosts = hosts.as_mut().filter(|hosts| hosts.contains(&host));
    let hosts =
        hosts.ok_or_else(|| RpcError::failed(format!("{host} is not among the hosts of {nqn}")))?;
    hosts.retain(|known| *known != host);
    Ok(EditResult::ok())
}

pub(super) fn allow_any(
    params: &mut Params,
    _: &State,
    document: &mut Document,
) -> Result<EditResult, RpcError> {
    let nqn = params.subsystem()?;
    let any: bool = params.need("allow_any_host")?;
    if is_discovery(document, &nqn) {
        restrict_discovery(document, !any);
        return Ok(EditResult::ok());
    }
    let subsystem = subsystems::find(document, &nqn)?;
    if any && subsystem.hosts.as_ref().is_some_and(|hosts| !hosts.is_empty()) {
        return Err(RpcError::params(format!(
            "{nqn} lists hosts, which a subsystem for every host does not keep; remove them first \
             (nvmf_subsystem_remove_host)"
        )));
    }
    if any {
        (subsystem.allow_any_host, subsystem.hosts) = (Some(true), None);
    } else {
        subsystem.allow_any_host = None;
        subsystem.hosts.get_or_insert_default();
    }
    Ok(EditResult::ok())
}

/// Admits to discovery the hosts of subsystems only, or every host.
fn restrict_discovery(document: &mut Document, is_restricted: bool) {
    let section = document.discovery.get_or_insert_default();
    section.restricted = is_restricted.then_some(true);
    if *section == DiscoverySection::default() {
        document.discovery = None;
    }
}
