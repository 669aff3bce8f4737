//! `nvmeofctl listener`: addresses that hosts connect to.

use std::net::SocketAddr;

use clap::Subcommand;
use hyper::Method;
use nvmeof_api::document::Listener;
use nvmeof_api::view::ListenerView;
use nvmeof_report::{Column, Table};

use super::change::{ChangeArgs, ForceArgs, path};
use super::words;
use crate::ApiClient;
use crate::output::{print, print_json};

/// Listeners: addresses that hosts connect to.
#[derive(Debug, Subcommand)]
pub(crate) enum ListenerCommand {
    /// List them
    List,
    /// Add one
    #[command(after_help = "Examples:\n  nvmeofctl listener add tcp 192.0.2.1:4420\n  \
        nvmeofctl listener add rdma 192.0.2.10:4420 traffic-class=106")]
    Add {
        /// tcp or rdma
        #[arg(value_name = "TYPE")]
        kind: String,
        /// Address and port: 192.0.2.1:4420, `[::1]:4420`; port 0 lets the system choose
        address: SocketAddr,
        /// Other keys, as in the config
        #[arg(value_name = "KEY=VALUE")]
        keys: Vec<String>,
        #[command(flatten)]
        args: ChangeArgs,
    },
    /// Remove one
    Remove {
        /// Its ID in the list, like tcp:192.0.2.1:4420
        id: String,
        #[command(flatten)]
        args: ForceArgs,
    },
}

/// Runs a subcommand.
pub(crate) fn run(client: &ApiClient, json: bool, command: &ListenerCommand) -> anyhow::Result<()> {
    match command {
        ListenerCommand::List => {
            let all: Vec<ListenerView> = client.get("/v1/listeners")?;
            if json { print_json(&all) } else { print(&table(all).text()) }
        }
        ListenerCommand::Add { kind, address, keys, args } => {
            let base = Listener {
                kind: kind.clone(),
                address: address.ip().to_string(),
                port: Some(address.port()),
                ..Listener::default()
            };
            let listener = words::<Listener>(keys)?.apply(&base)?;
            args.send(client, json, Method::POST, "/v1/listeners", Some(&listener))
        }
        ListenerCommand::Remove { id, args } => {
            args.send(client, json, Method::DELETE, &path(&["listeners", id]))
        }
    }
}

fn table(all: Vec<ListenerView>) -> Table {
    let mut table = Table::new(vec![
        Column::words("listener"),
        Column::words("state"),
        Column::numbers("controllers", ""),
        Column::numbers("waits", "s"),
        Column::numbers("next try", "ms"),
        Column::words("because"),
    ]);
    for one in all {
        let state = if one.listening { "listening" } else { "waiting" };
        let mut row = vec![one.id, state.into(), one.controllers.to_string()];
        row.extend(match one.waiting {
            Some(wait) => [wait.seconds.to_string(), wait.next_try_ms.to_string(), wait.error],
            None => ["-".into(), "-".into(), "-".into()],
        });
        table.push(row);
    }
    table
}
