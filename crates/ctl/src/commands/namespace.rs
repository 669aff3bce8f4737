//! `nvmeofctl namespace`.

use clap::Subcommand;
use hyper::Method;
use nvmeof_api::document::Namespace;
use nvmeof_api::view::{NamespaceView, SubsystemView};
use nvmeof_report::{Column, Table};

use super::change::{ChangeArgs, path};
use super::words;
use crate::ApiClient;
use crate::output::{bytes, print, print_json};

/// Namespaces: devices as hosts see them.
#[derive(Debug, Subcommand)]
pub(crate) enum NamespaceCommand {
    /// List the namespaces of a subsystem, or of all
    List {
        /// The subsystem
        nqn: Option<String>,
    },
    /// Add one; hosts see it immediately
    #[command(
        after_help = "Examples:\n  nvmeofctl namespace add nqn.2026-11.org.example:a ram1\n  \
        nvmeofctl namespace add nqn.2026-11.org.example:a disk1 --nsid 7 weight=10"
    )]
    Add {
        /// The subsystem
        nqn: String,
        /// The backing device
        device: String,
        /// Its NSID; by default the lowest free one
        #[arg(long)]
        nsid: Option<u32>,
        /// Other keys, as in the config
        #[arg(value_name = "KEY=VALUE")]
        keys: Vec<String>,
        #[command(flatten)]
        args: ChangeArgs,
    },
    /// Change keys of one; `KEY=` restores the default
    #[command(
        after_help = "Example:\n  nvmeofctl namespace set nqn.2026-11.org.example:a 1 weight=10"
    )]
    Set {
        /// The subsystem
        nqn: String,
        /// Its NSID
        nsid: u32,
        /// Keys, as in the config
        #[arg(value_name = "KEY=VALUE", required = true)]
        keys: Vec<String>,
        #[command(flatten)]
        args: ChangeArgs,
    },
    /// Remove one from the hosts' view; its device stays
    Remove {
        /// The subsystem
        nqn: String,
        /// Its NSID
        nsid: u32,
        #[command(flatten)]
        args: ChangeArgs,
    },
}

/// Runs a subcommand.
pub(crate) fn run(
    client: &ApiClient,
    json: bool,
    command: &NamespaceCommand,
) -> anyhow::Result<()> {
    match command {
        NamespaceCommand::List { nqn } => {
            let all = list(client, nqn.as_deref())?;
            if json { print_json(&all) } else { print(&table(&all).text()) }
        }
        NamespaceCommand::Add { nqn, device, nsid, keys, args } => {
            let all = path(&["subsystems", nqn, "namespaces"]);
            let nsid = match nsid {
                Some(nsid) => *nsid,
                None => free(&client.get::<Vec<NamespaceView>>(&all)?),
            };
            let base = Namespace { nsid, device: device.clone(), ..Namespace::default() };
            let namespace = words::<Namespace>(keys)?.apply(&base)?;
            args.send(client, json, Method::POST, &all, Some(&namespace))
        }
        NamespaceCommand::Set { nqn, nsid, keys, args } => {
            let patch = words::<Namespace>(keys)?;
            let one = path(&["subsystems", nqn, "namespaces", &nsid.to_string()]);
            args.send(client, json, Method::PATCH, &one, Some(&patch))
        }
        NamespaceCommand::Remove { nqn, nsid, args } => {
            let one = path(&["subsystems", nqn, "namespaces", &nsid.to_string()]);
            args.send(client, json, Method::DELETE, &one, None::<&()>)
        }
    }
}

fn list(client: &ApiClient, nqn: Option<&str>) -> anyhow::Result<Vec<NamespaceView>> {
    let of =
        |nqn: &str| client.get::<Vec<NamespaceView>>(&path(&["subsystems", nqn, "namespaces"]));
    let Some(nqn) = nqn else {
        let mut all = Vec::new();
        for subsystem in client.get::<Vec<SubsystemView>>("/v1/subsystems")? {
            all.extend(of(&subsystem.config.nqn)?);
        }
        return Ok(all);
    };
    of(nqn)
}

/// Returns the lowest free NSID.
fn free(all: &[NamespaceView]) -> u32 {
    let is_taken = |nsid: &u32| all.iter().any(|one| one.config.nsid == *nsid);
    (1..).find(|nsid| !is_taken(nsid)).unwrap_or(1)
}

fn table(all: &[NamespaceView]) -> Table {
    let mut table = Table::new(vec![
        Column::words("subsystem"),
        Column::numbers("nsid", ""),
        Column::words("device"),
        Column::numbers("size", ""),
        Column::numbers("block", "B"),
        Column::numbers("weight", ""),
        Column::words("uuid"),
    ]);
    for one in all {
        table.push(vec![
            one.subsystem.clone(),
            one.config.nsid.to_string(),
            one.config.device.clone(),
            bytes(one.size),
            one.block_size.to_string(),
            one.config.weight.unwrap_or(1).to_string(),
            one.uuid.clone(),
        ]);
    }
    table
}
