//! `nvmeof-perf discover`.

use anyhow::{Context, Result};
use nvmeof_console::show;
use nvmeof_initiator::DiscoveryLog;
use serde_json::json;

use crate::args::DiscoverArgs;
use crate::host;
use crate::run::write_json;
use crate::table::TextTable;

/// Prints the entries of the discovery service at the address.
pub(crate) fn discover(args: &DiscoverArgs) -> Result<()> {
    let options = host::options(&args.host, [&args.connect])?;
    let log = nvmeof_initiator::discover(&args.connect, &options)
        .with_context(|| format!("discovery at {}", args.connect))?;
    if args.json.as_deref() != Some("-".as_ref()) {
        show(table(&log));
    }
    if let Some(path) = &args.json {
        let entries: Vec<_> = log
            .entries
            .iter()
            .map(|entry| {
                json!({
                    "transport": entry.transport,
                    "family": entry.family,
                    "kind": entry.kind,
                    "address": entry.address,
                    "service": entry.service,
                    "subnqn": entry.subnqn,
                    "port": entry.port,
                    "cntlid": entry.cntlid,
                    "admin_entries": entry.admin_entries,
                    "security": entry.security,
                    "connect": entry.endpoint(),
                })
            })
            .collect();
        let value = json!({
            "schema_version": 1,
            "discovery": args.connect.to_string(),
            "generation": log.generation,
            "entries": entries,
        });
        write_json(path, &value)?;
    }
    Ok(())
}

fn table(log: &DiscoveryLog) -> String {
    let mut table = TextTable::new(&["<TRANSPORT", "<ADDRESS", "PORT", "<KIND", "<SUBSYSTEM"]);
    for entry in &log.entries {
        table.row(vec![
            entry.transport.clone(),
            entry.address.clone(),
            entry.service.clone(),
            entry.kind.clone(),
            entry.subnqn.clone(),
        ]);
    }
    format!("{table}{} entries, generation {}\n", log.entries.len(), log.generation)
}
