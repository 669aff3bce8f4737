//! Controllers and queues of hosts.

use std::net::SocketAddr;

use nvmeof_api::view::ConnectionView;
use serde_json::{Map, Value, json};

use super::framework::reactor_name;
use super::is_discovery;
use super::listeners::{address_of, shown};
use crate::{Activity, Params, RpcError, State};

/// Reads the name of the subsystem.
fn nqn(params: &mut Params, state: &State) -> Result<String, RpcError> {
    let nqn = params.subsystem()?;
    if !is_discovery(&state.document, &nqn) && state.document.subsystem(&nqn).is_none() {
        return Err(RpcError::no_subsystem(&nqn));
    }
    Ok(nqn)
}

/// Returns the queues of a subsystem; those of discovery by any of its names.
fn queues<'a>(
    (activity, state): (&'a Activity, &'a State),
    nqn: &'a str,
) -> impl Iterator<Item = (&'a ConnectionView, u16, u16)> {
    let is_wanted =
        move |at: &str| at == nqn || [at, nqn].iter().all(|one| is_discovery(&state.document, one));
    let all = activity.connections.iter();
    let at = all.filter(move |one| one.subsystem.as_deref().is_some_and(is_wanted));
    at.filter_map(|one| Some((one, one.cntlid?, one.qid?)))
}

pub(super) fn controllers(
    params: &mut Params,
    state: &State,
    activity: &Activity,
) -> Result<Value, RpcError> {
    let nqn = nqn(params, state)?;
    let kind = if is_discovery(&state.document, &nqn) { "discovery" } else { "io" };
    let admin = queues((activity, state), &nqn).filter(|(.., qid)| *qid == 0);
    let controller = |(queue, cntlid, _): (&ConnectionView, u16, u16)| {
        let own = queues((activity, state), &nqn).filter(|(_, id, qid)| *id == cntlid && *qid != 0);
        json!({
            "cntlid": cntlid,
            "cntrltype": kind,
            "hostnqn": queue.host,
            "num_io_qpairs": own.count(),
        })
    };
    Ok(admin.map(controller).collect())
}

pub(super) fn queue_pairs(
    params: &mut Params,
    state: &State,
    activity: &Activity,
) -> Result<Value, RpcError> {
    let nqn = nqn(params, state)?;
    Ok(queues((activity, state), &nqn)
        .map(|(one, cntlid, qid)| queue(one, (cntlid, qid), state))
        .collect())
}

fn queue(view: &ConnectionView, (cntlid, qid): (u16, u16), state: &State) -> Value {
    let mut keys = Map::new();
    keys.insert("cntlid".into(), cntlid.into());
    keys.insert("qid".into(), qid.into());
    keys.insert("state".into(), "enabled".into());
    keys.insert("thread".into(), reactor_name(view.reactor).into());
    keys.insert("hostnqn".into(), view.host.clone().into());
    let listener = state.listeners.iter().find(|one| Some(&one.id) == view.listener.as_ref());
    if let Some(listener) = listener {
        keys.insert("listen_address".into(), address_of(listener));
        if let Ok(peer) = view.peer.parse::<SocketAddr>() {
            let peer = shown(&listener.config.kind, peer.ip(), peer.port());
            keys.insert("peer_address".into(), peer);
        }
    }
    keys.into()
}
