//! Versions, the list of methods, reactors, and settings without effect here.

use serde_json::{Value, json};

use super::METHODS;
use crate::{Params, RpcError, State};

/// Ends SPDK's start-up state, in which this daemon never is.
pub(super) const START: &str = "framework_start_init";

/// Accepts a setting of SPDK's internals.
pub(super) fn no_effect(params: &mut Params, _: &State) -> Result<Value, RpcError> {
    params.ignore_all();
    Ok(true.into())
}

pub(super) fn methods(params: &mut Params, _: &State) -> Result<Value, RpcError> {
    let is_current = params.flag("current")?;
    params.ignore(&["include_aliases"]);
    let names = METHODS.iter().map(|method| method.name);
    Ok(names.filter(|name| !is_current || *name != START).collect())
}

pub(super) fn version(_: &mut Params, state: &State) -> Result<Value, RpcError> {
    let mut parts = state.version.split(['.', '-']);
    let mut part = || parts.next().and_then(|part| part.parse::<u32>().ok()).unwrap_or(0);
    Ok(json!({
        "version": format!("nvmeof-tgt v{}", state.version),
        "fields": { "major": part(), "minor": part(), "patch": part(), "suffix": "" },
    }))
}

pub(super) fn subsystems(_: &mut Params, _: &State) -> Result<Value, RpcError> {
    Ok(json!([
        { "subsystem": "bdev", "depends_on": [] },
        { "subsystem": "nvmf", "depends_on": ["bdev"] },
    ]))
}

pub(super) fn reactors(_: &mut Params, state: &State) -> Result<Value, RpcError> {
    let reactor = |(index, cpu): (usize, &usize)| {
        let thread = json!({ "name": reactor_name(index), "id": index + 1 });
        json!({ "lcore": cpu, "in_interrupt": false, "lw_threads": [thread] })
    };
    let reactors: Value = state.cpus.iter().enumerate().map(reactor).collect();
    Ok(json!({ "tick_rate": TICK_RATE, "pid": state.pid, "reactors": reactors }))
}

pub(super) fn scheduler(_: &mut Params, _: &State) -> Result<Value, RpcError> {
    Ok(json!({ "scheduler_name": "static" }))
}

/// Ticks per second of all times in results: they are nanoseconds.
pub(super) const TICK_RATE: u64 = 1_000_000_000;

/// Returns the name of a reactor's thread.
pub(super) fn reactor_name(index: usize) -> String {
    format!("reactor-{index}")
}
