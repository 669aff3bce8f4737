//! Counters. Values that the daemon does not count are omitted.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::framework::{TICK_RATE, reactor_name};
use crate::{Activity, Params, RpcError, State};

pub(super) fn target(
    params: &mut Params,
    _: &State,
    activity: &Activity,
) -> Result<Value, RpcError> {
    params.target()?;
    let group = |(index, completed): (usize, &u64)| {
        let own = activity.connections.iter().filter(|one| one.reactor == index);
        let (mut admin, mut io, mut unassociated) = (0_u32, 0_u32, 0_u32);
        for queue in own {
            match queue.qid {
                Some(0) => admin += 1,
                Some(_) => io += 1,
                None => unassociated += 1,
            }
        }
        json!({
            "name": reactor_name(index),
            "current_admin_qpairs": admin,
            "current_io_qpairs": io,
            "current_unassociated_qpairs": unassociated,
            "completed_nvme_io": completed,
            "transports": [],
        })
    };
    let groups: Value = activity.completed.iter().enumerate().map(group).collect();
    Ok(json!({ "tick_rate": TICK_RATE, "poll_groups": groups }))
}

pub(super) fn bdevs(
    params: &mut Params,
    state: &State,
    activity: &Activity,
) -> Result<Value, RpcError> {
    let names: Option<Vec<String>> = params.get("names")?;
    // Versions before 24.09 have one name.
    let name: Option<String> = params.get("name")?;
    params.refuse("per_channel", "a device is counted for all reactors together")?;
    if params.get::<String>("reset_mode")?.is_some_and(|mode| mode != "none") {
        let what = "reset_mode: counters run from the start of the daemon; subtract two results";
        return Err(RpcError::params(what));
    }
    let wanted: Option<Vec<String>> = names.or(name.map(|name| vec![name]));
    let all: Vec<&str> = match &wanted {
        Some(names) => {
            let found = names.iter().map(|name| Ok(state.bdev(name)?.config.name.as_str()));
            found.collect::<Result<_, RpcError>>()?
        }
        None => state.devices.iter().map(|one| one.config.name.as_str()).collect(),
    };
    let bdevs: Value = all.into_iter().map(|name| bdev(name, &activity.bdevs)).collect();
    Ok(json!({ "tick_rate": TICK_RATE, "ticks": activity.at_ns, "bdevs": bdevs }))
}

fn bdev(name: &str, counters: &BTreeMap<String, crate::BdevCounters>) -> Value {
    let counters = counters.get(name).copied().unwrap_or_default();
    json!({
        "name": name,
        "bytes_read": counters.read_bytes,
        "num_read_ops": counters.reads,
        "bytes_written": counters.write_bytes,
        "num_write_ops": counters.writes,
    })
}
