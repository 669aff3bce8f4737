//! Transports. TCP and RDMA are always there; `[limits]` of the config has their limits.

use serde_json::{Map, Value, json};

use super::listeners::fabric;
use crate::params::TARGET;
use crate::{Params, RpcError, State};

/// Parameters of SPDK's internals, and limits that the config sets.
const NO_EFFECT: &[&str] = &[
    "max_queue_depth",
    "max_io_qpairs_per_ctrlr",
    "max_qpairs_per_ctrlr",
    "in_capsule_data_size",
    "max_io_size",
    "io_unit_size",
    "max_aq_depth",
    "num_shared_buffers",
    "buf_cache_size",
    "iobuf_small_cache_size",
    "iobuf_large_cache_size",
    "zcopy",
    "num_cqe",
    "max_srq_depth",
    "no_srq",
    "c2h_success",
    "sock_priority",
    "acceptor_backlog",
    "abort_timeout_sec",
    "no_wr_batching",
    "control_msg_num",
    "disable_mappable_bar0",
    "disable_adaptive_irq",
    "disable_shadow_doorbells",
    "acceptor_poll_rate",
    "ack_timeout",
    "data_wr_pool_size",
    "disable_command_passthru",
    "kas",
    "min_kato",
];

pub(super) fn targets(_: &mut Params, _: &State) -> Result<Value, RpcError> {
    Ok(json!([TARGET]))
}

/// Accepts settings of the target that change nothing for hosts.
pub(super) fn set_target(params: &mut Params, _: &State) -> Result<Value, RpcError> {
    let one: Option<String> = params.get("discovery_filter")?;
    let several: Option<Vec<String>> = params.get("discovery_filters")?;
    let mut filters = one.into_iter().chain(several.into_iter().flatten());
    if let Some(filter) = filters.find(|filter| filter != "match_any") {
        let what = format!(
            "discovery_filter: \"{filter}\" is not supported, only \"match_any\"; leave it out"
        );
        return Err(RpcError::params(what));
    }
    let passed: Option<Map<String, Value>> = params.get("admin_cmd_passthru")?;
    if let Some((command, _)) = passed.into_iter().flatten().find(|(_, is_on)| *is_on != false) {
        let what = format!(
            "admin_cmd_passthru.{command} is not supported: no command is passed to a drive \
             unseen; leave it out"
        );
        return Err(RpcError::params(what));
    }
    params.ignore_all();
    Ok(true.into())
}

/// Accepts retry delays of 0: no command of a host is delayed.
pub(super) fn set_retry_delays(params: &mut Params, _: &State) -> Result<Value, RpcError> {
    for key in ["crdt1", "crdt2", "crdt3"] {
        params.refuse(key, "hosts choose their retry delays")?;
    }
    Ok(true.into())
}

pub(super) fn create(params: &mut Params, _: &State) -> Result<Value, RpcError> {
    params.target()?;
    let kind: String = params.need("trtype")?;
    if fabric(&kind).is_none() {
        let what = format!("trtype: there is no transport \"{kind}\", only TCP and RDMA");
        return Err(RpcError::params(what));
    }
    params.ignore(NO_EFFECT);
    params.refuse("dif_insert_or_strip", "blocks have no metadata")?;
    params.refuse("masked_oncs", "every host sees all commands")?;
    params.refuse("masked_fuses", "every host sees all commands")?;
    Ok(true.into())
}

pub(super) fn list(params: &mut Params, state: &State) -> Result<Value, RpcError> {
    params.target()?;
    let wanted: Option<String> = params.get("trtype")?;
    let all = ["TCP", "RDMA"].into_iter();
    let named = |kind: &&str| wanted.as_deref().is_none_or(|name| name.eq_ignore_ascii_case(kind));
    let found: Vec<Value> = all.filter(named).map(|kind| transport(kind, state)).collect();
    match (found.is_empty(), wanted) {
        (true, Some(name)) => {
            Err(RpcError::no_device(format!("there is no transport \"{name}\", only TCP and RDMA")))
        }
        _ => Ok(found.into()),
    }
}

/// Shows a transport.
pub(super) fn transport(kind: &str, state: &State) -> Value {
    let limits = state.limits;
    json!({
        "trtype": kind,
        "max_queue_depth": limits.queue_depth,
        "max_io_qpairs_per_ctrlr": limits.io_queues,
        "in_capsule_data_size": limits.in_capsule,
        "max_io_size": limits.max_transfer,
        "dif_insert_or_strip": false,
        "min_kato": limits.keep_alive_min_ms,
    })
}
