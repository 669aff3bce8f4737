//! Referrals to other discovery services.

use nvmeof_api::document::{DISCOVERY_NQN, DISCOVERY_PORT, Document, Referral};
use serde_json::{Value, json};

use super::EditResult;
use super::listeners::{Address, shown};
use crate::{Params, RpcError, State};

pub(super) fn add(
    params: &mut Params,
    _: &State,
    document: &mut Document,
) -> Result<EditResult, RpcError> {
    params.refuse("secure_channel", "hosts are referred to services without encryption")?;
    let referral = read(params)?;
    if !document.referral.iter().any(|known| key(known) == key(&referral)) {
        document.referral.push(referral);
    }
    Ok(EditResult::ok())
}

pub(super) fn remove(
    params: &mut Params,
    _: &State,
    document: &mut Document,
) -> Result<EditResult, RpcError> {
    let referral = read(params)?;
    let count = document.referral.len();
    document.referral.retain(|known| key(known) != key(&referral));
    if document.referral.len() == count {
        return Err(RpcError::failed("Unable to remove a referral: there is none at this address"));
    }
    Ok(EditResult::ok())
}

fn read(params: &mut Params) -> Result<Referral, RpcError> {
    params.target()?;
    let address = Address::read(params, "address")?;
    let nqn: Option<String> = params.get("subnqn")?;
    Ok(Referral {
        kind: address.kind.into(),
        address: address.ip.to_string(),
        port: Some(address.port),
        nqn: nqn.filter(|nqn| !nqn.is_empty() && nqn != DISCOVERY_NQN),
    })
}

/// Returns the values that identify a referral, with defaults.
fn key(referral: &Referral) -> (&str, &str, u16, &str) {
    let nqn = referral.nqn.as_deref().unwrap_or(DISCOVERY_NQN);
    (&referral.kind, &referral.address, referral.port.unwrap_or(DISCOVERY_PORT), nqn)
}

pub(super) fn list(params: &mut Params, state: &State) -> Result<Value, RpcError> {
    params.target()?;
    Ok(state.document.referral.iter().filter_map(view).collect())
}

/// Shows a referral.
pub(super) fn view(referral: &Referral) -> Option<Value> {
    let (kind, address, port, nqn) = key(referral);
    let address = shown(kind, address.parse().ok()?, port);
    Some(json!({ "address": address, "secure_channel": false, "subnqn": nqn }))
}
