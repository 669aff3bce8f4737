//! `nvmeofctl connection`: the queues of hosts.

use clap::Subcommand;
use hyper::Method;
use nvmeof_api::view::ConnectionView;
use nvmeof_report::{Column, Table};

use super::change::path;
use crate::ApiClient;
use crate::output::{print, print_json};

/// Connections: the queues of hosts.
#[derive(Debug, Subcommand)]
pub(crate) enum ConnectionCommand {
    /// List them
    List,
    /// Drop connections; an admin queue (qid 0) also drops its controller's I/O queues
    #[command(after_help = "The host may reconnect immediately: `nvmeofctl host remove` prevents \
        that.\n\n\
        Examples:\n  nvmeofctl connection drop 7\n  \
        nvmeofctl connection drop --host nqn.2014-08.org.nvmexpress:uuid:...")]
    Drop {
        /// Its ID in the list
        #[arg(required_unless_present = "host")]
        id: Vec<u64>,
        /// All connections of this host
        #[arg(long, value_name = "NQN", conflicts_with = "id")]
        host: Option<String>,
    },
}

/// Runs a subcommand.
pub(crate) fn run(
    client: &ApiClient,
    json: bool,
    command: &ConnectionCommand,
) -> anyhow::Result<()> {
    let all = || client.get::<Vec<ConnectionView>>("/v1/connections");
    let one = |id: &u64| path(&["connections", &id.to_string()]);
    let shown = match command {
        ConnectionCommand::List => all()?,
        ConnectionCommand::Drop { id, host: None } => {
            let drop = |id| client.call(Method::DELETE, &one(id), None::<&()>, None);
            id.iter().map(drop).collect::<anyhow::Result<_>>()?
        }
        ConnectionCommand::Drop { host: Some(host), .. } => {
            let mut dropped = all()?;
            dropped.retain(|one| one.host.as_ref() == Some(host));
            anyhow::ensure!(!dropped.is_empty(), "{host} has no connection");
            // Admin queues first, because their I/O queues are dropped with them.
            dropped.sort_by_key(|one| one.qid);
            for each in dropped.iter().filter(|one| one.qid == Some(0)) {
                let _: ConnectionView =
                    client.call(Method::DELETE, &one(&each.id), None::<&()>, None)?;
            }
            dropped
        }
    };
    if json { print_json(&shown) } else { print(&table(shown).text()) }
}

fn table(all: Vec<ConnectionView>) -> Table {
    let mut table = Table::new(vec![
        Column::numbers("id", ""),
        Column::words("host"),
        Column::words("subsystem"),
        Column::numbers("cntlid", ""),
        Column::numbers("qid", ""),
        Column::words("peer"),
        Column::words("listener"),
        Column::numbers("reactor", ""),
        Column::numbers("in flight", ""),
        Column::numbers("waiting", ""),
    ]);
    let number = |value: Option<u16>| value.map_or_else(|| "-".into(), |value| value.to_string());
    let word = |value: Option<String>| value.unwrap_or_else(|| "-".into());
    for one in all {
        table.push(vec![
            one.id.to_string(),
            word(one.host),
            word(one.subsystem),
            number(one.cntlid),
            number(one.qid),
            one.peer,
            word(one.listener),
            one.reactor.to_string(),
            one.in_flight.to_string(),
            one.waiting.to_string(),
        ]);
    }
    table
}
