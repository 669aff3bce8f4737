//! Listeners of subsystems.
//!
//! A listener has a list of the subsystems that it serves. It is removed with the last of them. A
//! listener without a list serves all subsystems; calls do not change it.

use std::net::{IpAddr, SocketAddr};

use nvmeof_api::document::{Document, Listener};
use nvmeof_api::view::ListenerView;
use serde_json::{Value, json};

use super::{EditResult, is_discovery, subsystems};
use crate::{Params, RpcError, State};

/// An address in a call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Address {
    /// `tcp` or `rdma`.
    pub(super) kind: &'static str,
    pub(super) ip: IpAddr,
    pub(super) port: u16,
}

impl Address {
    /// Reads the parameter `key`.
    pub(super) fn read(params: &mut Params, key: &str) -> Result<Self, RpcError> {
        let mut raw = params.object(key)?;
        let kind: String = raw.need("trtype")?;
        let address: String = raw.need("traddr")?;
        let family: Option<String> = raw.get("adrfam")?;
        let port: Value = raw.need("trsvcid")?;
        raw.finish()?;
        let wrong = |name: &str, what: String| RpcError::params(format!("{key}.{name}: {what}"));
        let kind = fabric(&kind).ok_or_else(|| {
            wrong("trtype", format!("there is no transport \"{kind}\", only TCP and RDMA"))
        })?;
        let ip: IpAddr = address
            .parse()
            .map_err(|_| wrong("traddr", format!("\"{address}\" is no IPv4 or IPv6 address")))?;
        if let Some(family) = family.filter(|family| !family.eq_ignore_ascii_case(family_of(ip))) {
            return Err(wrong("adrfam", format!("{ip} is {}, not {family}", family_of(ip))));
        }
        let number = port.as_str().and_then(|text| text.parse().ok());
        let number = number.or_else(|| port.as_u64().and_then(|port| port.try_into().ok()));
        let port = number.filter(|port| *port != 0).ok_or_else(|| {
            wrong("trsvcid", format!("{port} is no port; use \"1\" to \"65535\""))
        })?;
        Ok(Self { kind, ip, port })
    }
}

/// Returns the name of a transport in the config.
pub(super) fn fabric(kind: &str) -> Option<&'static str> {
    ["tcp", "rdma"].into_iter().find(|known| known.eq_ignore_ascii_case(kind))
}

fn family_of(ip: IpAddr) -> &'static str {
    if ip.is_ipv4() { "IPv4" } else { "IPv6" }
}

/// Shows an address in SPDK's form.
pub(super) fn shown(kind: &str, ip: IpAddr, port: u16) -> Value {
    json!({
        "trtype": kind.to_ascii_uppercase(),
        "adrfam": family_of(ip),
        "traddr": ip.to_string(),
        "trsvcid": port.to_string(),
    })
}

/// Shows the address of a listener, with the actual port.
pub(super) fn address_of(view: &ListenerView) -> Value {
    let at = view.id.split_once(':').and_then(|(_, at)| at.parse::<SocketAddr>().ok());
    match at {
        Some(at) => shown(&view.config.kind, at.ip(), at.port()),
        None => Value::Null,
    }
}

/// Returns true if hosts reach the subsystem at the listener.
pub(super) fn serves(listener: &Listener, nqn: &str) -> bool {
    listener.subsystems.as_ref().is_none_or(|served| served.iter().any(|one| one == nqn))
}

pub(super) fn add(
    params: &mut Params,
    state: &State,
    document: &mut Document,
) -> Result<EditResult, RpcError> {
    let nqn = params.subsystem()?;
    let address = Address::read(params, "listen_address")?;
    params.refuse("secure_channel", "connections are not encrypted")?;
    params.ignore(&["sock_impl", "numa_id"]);
    match params.get::<String>("ana_state")? {
        Some(other) if other != "optimized" => {
            let what = format!("ana_state: \"{other}\" is not supported, only \"optimized\"");
            return Err(RpcError::params(what));
        }
        _ => {}
    }
    let is_discovery = is_discovery(&state.document, &nqn);
    if !is_discovery {
        subsystems::find(document, &nqn)?;
    }
    let Some(at) = position(state, &address) else {
        document.listener.push(Listener {
            kind: address.kind.into(),
            address: address.ip.to_string(),
            port: Some(address.port),
            subsystems: Some(if is_discovery { Vec::new() } else { vec![nqn] }),
            ..Listener::default()
        });
        return Ok(EditResult::ok());
    };
    let listener = &mut document.listener[at];
    let port = listener.port();
    match &mut listener.subsystems {
        // Hosts reach the subsystem there already.
        None => {}
        Some(_) if is_discovery => {}
        Some(served) if served.contains(&nqn) => {
            return Err(RpcError::params(format!("{nqn} has this listener already")));
        }
        Some(served) => {
            served.push(nqn);
            // The default port of an empty list is another one. A list that calls empty removes its
            // listener.
            listener.port = Some(port);
        }
    }
    Ok(EditResult::ok())
}

/// Returns the position of the listener at this address.
fn position(state: &State, address: &Address) -> Option<usize> {
    let at = shown(address.kind, address.ip, address.port);
    state.listeners.iter().position(|view| address_of(view) == at)
}

pub(super) fn remove(
    params: &mut Params,
    state: &State,
    document: &mut Document,
) -> Result<EditResult, RpcError> {
    let nqn = params.subsystem()?;
    let address = Address::read(params, "listen_address")?;
    let is_discovery = is_discovery(&state.document, &nqn);
    if !is_discovery {
        subsystems::find(document, &nqn)?;
    }
    let none = || RpcError::params(format!("{nqn} has no listener at this address"));
    let at = position(state, &address).ok_or_else(none)?;
    let Some(served) = &mut document.listener[at].subsystems else {
        return Err(RpcError::params(format!(
            "the listener serves all subsystems; give it a list `subsystems` in the config, or \
             remove it there ({})",
            state.listeners[at].id
        )));
    };
    match is_discovery {
        true if !served.is_empty() => {
            let what = "the listener serves subsystems, and every listener serves discovery; \
                        remove their listeners";
            return Err(RpcError::params(what));
        }
        true => {}
        false if !served.contains(&nqn) => return Err(none()),
        false => served.retain(|one| *one != nqn),
    }
    if served.is_empty() {
        document.listener.remove(at);
    }
    Ok(EditResult::ok())
}

/// Removes a subsystem from all listeners, and the listeners that served no other.
pub(super) fn forget(document: &mut Document, nqn: &str) {
    document.listener.retain_mut(|listener| {
        let Some(served) = &mut listener.subsystems else { return true };
        let had = served.len();
        served.retain(|one| one != nqn);
        served.len() == had || !served.is_empty()
    });
}

pub(super) fn list(params: &mut Params, state: &State) -> Result<Value, RpcError> {
    let nqn = params.subsystem()?;
    let is_discovery = is_discovery(&state.document, &nqn);
    if !is_discovery && state.document.subsystem(&nqn).is_none() {
        return Err(RpcError::no_subsystem(&nqn));
    }
    let all = state.listeners.iter().filter(|one| is_discovery || serves(&one.config, &nqn));
    Ok(all.map(|one| json!({ "address": address_of(one) })).collect())
}
