//! Views of all items, for other front ends of the control plane.

use nvmeof_api::view::{ConnectionView, DeviceView, ListenerView, NamespaceView, SubsystemView};

use super::{connections, devices, listeners, namespaces, subsystems};
use crate::control::ControlState;

/// Returns the devices, in the order of the config.
pub(crate) fn all_devices(running: &ControlState) -> Vec<DeviceView> {
    running.document().device.iter().map(|one| devices::view(running, one)).collect()
}

/// Returns the subsystems, in the order of the config.
pub(crate) fn all_subsystems(running: &ControlState) -> Vec<SubsystemView> {
    running.document().subsystem.iter().map(|one| subsystems::view(running, one)).collect()
}

/// Returns the namespaces of all subsystems, in the order of the config.
pub(crate) fn all_namespaces(running: &ControlState) -> Vec<NamespaceView> {
    let identities = running.server().identities();
    let of = |nqn: &str, one| namespaces::view(running, &identities, nqn, one);
    let subsystems = running.document().subsystem.iter();
    subsystems.flat_map(|it| it.namespace.iter().map(|one| of(&it.nqn, one))).collect()
}

/// Returns the listeners, in the order of the config.
pub(crate) fn all_listeners(running: &ControlState) -> Vec<ListenerView> {
    listeners::all(running).into_iter().map(|(_, view)| view).collect()
}

/// Returns the connections of all hosts.
pub(crate) async fn all_connections(running: &ControlState) -> Vec<ConnectionView> {
    connections::all(running).await
}
