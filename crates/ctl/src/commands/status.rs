//! `nvmeofctl status`.

use nvmeof_api::Status;

use crate::ApiClient;
use crate::output::{list, pairs, print, print_json};

/// Prints the status.
pub(crate) fn run(client: &ApiClient, json: bool) -> anyhow::Result<()> {
    let status: Status = client.get("/v1/status")?;
    if json {
        return print_json(&status);
    }
    let waiting = status.waiting_listeners.iter();
    let waiting: Vec<String> = waiting.map(|one| format!("{} ({})", one.url, one.error)).collect();
    let saved = if status.saved { "yes" } else { "no: `nvmeofctl save` keeps what runs" };
    print(&pairs(&[
        ("version", status.version),
        ("pid", status.pid.to_string()),
        ("up", format!("{} s", status.uptime_seconds)),
        ("config file", status.config_file),
        ("saved", saved.into()),
        ("revision", status.revision),
        ("listeners", list(&status.listeners)),
        ("not listening yet", list(&waiting)),
        ("policy", status.policy),
        ("reactors", status.reactors.to_string()),
        ("devices", status.devices.to_string()),
        ("missing devices", list(&status.missing_devices)),
        ("subsystems", status.subsystems.to_string()),
        ("namespaces", status.namespaces.to_string()),
        ("controllers", status.controllers.to_string()),
        ("connections", status.connections.to_string()),
        ("in flight", status.in_flight.to_string()),
        ("at next start", list(&status.pending_restart)),
    ]))
}
