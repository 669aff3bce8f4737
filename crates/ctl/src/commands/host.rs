//! `nvmeofctl host`: hosts that may connect.

use clap::Subcommand;
use hyper::Method;
use nvmeof_api::view::HostView;
use nvmeof_report::{Column, Table};

use super::change::{ChangeArgs, ForceArgs, path};
use crate::ApiClient;
use crate::output::{list, print, print_json};

/// Hosts that may connect to a subsystem.
#[derive(Debug, Subcommand)]
pub(crate) enum HostCommand {
    /// List the hosts of a subsystem
    List {
        /// The subsystem
        nqn: String,
    },
    /// Allow a host to connect
    Add {
        /// The subsystem
        nqn: String,
        /// The host, by the NQN in its /etc/nvme/hostnqn
        host: String,
        #[command(flatten)]
        args: ChangeArgs,
    },
    /// Remove a host from the list
    Remove {
        /// The subsystem
        nqn: String,
        /// The host, by NQN
        host: String,
        #[command(flatten)]
        args: ForceArgs,
    },
}

/// Runs a subcommand.
pub(crate) fn run(client: &ApiClient, json: bool, command: &HostCommand) -> anyhow::Result<()> {
    match command {
        HostCommand::List { nqn } => {
            let all: Vec<HostView> = client.get(&path(&["subsystems", nqn, "hosts"]))?;
            if json {
                return print_json(&all);
            }
            let mut table = Table::new(vec![Column::words("host"), Column::words("controllers")]);
            for one in all {
                let ids: Vec<String> = one.controllers.iter().map(u16::to_string).collect();
                table.push(vec![one.nqn, list(&ids)]);
            }
            print(&table.text())
        }
        HostCommand::Add { nqn, host, args } => {
            let one = path(&["subsystems", nqn, "hosts", host]);
            args.send(client, json, Method::PUT, &one, None::<&()>)
        }
        HostCommand::Remove { nqn, host, args } => {
            let one = path(&["subsystems", nqn, "hosts", host]);
            args.send(client, json, Method::DELETE, &one)
        }
    }
}
