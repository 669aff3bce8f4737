//! The running state as methods read it.

use nvmeof_nvmf::limits::MAX_NAMESPACES;
use nvmeof_rpc::{Activity, BdevCounters, BdevProperties, State, TransportLimits};

use crate::api::{all_connections, all_devices, all_listeners, all_namespaces, all_subsystems};
use crate::control::{ControlState, DeviceTotals};

/// Returns the state, with the properties of bdevs that calls have set.
pub(super) fn state(running: &ControlState, properties: BdevProperties) -> State {
    let config = running.server().config();
    let limits = config.limits;
    State {
        version: env!("CARGO_PKG_VERSION").into(),
        pid: std::process::id(),
        cpus: config.reactors.clone(),
        limits: TransportLimits {
            queue_depth: limits.queue_depth,
            io_queues: limits.io_queues,
            in_capsule: limits.in_capsule,
            max_transfer: limits.max_transfer,
            keep_alive_min_ms: limits.keep_alive_min.as_millis().try_into().unwrap_or(u64::MAX),
            namespaces: MAX_NAMESPACES,
        },
        document: running.document().clone(),
        devices: all_devices(running),
        subsystems: all_subsystems(running),
        namespaces: all_namespaces(running),
        listeners: all_listeners(running),
        properties,
    }
}

/// Returns the activity of hosts.
pub(super) async fn activity(running: &ControlState) -> Activity {
    let counters = running.device_counters().await;
    let bdev = |totals: DeviceTotals| BdevCounters {
        reads: totals.reads,
        writes: totals.writes,
        read_bytes: totals.read_bytes,
        write_bytes: totals.write_bytes,
    };
    Activity {
        connections: all_connections(running).await,
        at_ns: counters.at_ns,
        completed: counters.completed,
        bdevs: counters.devices.into_iter().map(|(name, totals)| (name, bdev(totals))).collect(),
    }
}
