//! `nvmeofctl subsystem`.

use clap::Subcommand;
use hyper::Method;
use nvmeof_api::document::Subsystem;
use nvmeof_api::view::SubsystemView;
use nvmeof_report::{Column, Table};

use super::change::{ChangeArgs, ForceArgs, path};
use super::words;
use crate::ApiClient;
use crate::output::{list, pairs, print, print_json};

/// NVM subsystems.
#[derive(Debug, Subcommand)]
pub(crate) enum SubsystemCommand {
    /// List them
    List,
    /// Show one
    Show {
        /// Its name
        nqn: String,
    },
    /// Add one, for listed hosts only unless every host may connect
    #[command(after_help = "Examples:\n  \
        nvmeofctl subsystem add nqn.2026-11.org.example:a --host nqn.2014-08.org.nvmexpress:uuid:...\n  \
        nvmeofctl subsystem add nqn.2026-11.org.example:b --any-host model=fast")]
    Add {
        /// Its name: nqn.YYYY-MM.REVERSED-DOMAIN:NAME
        nqn: String,
        /// Every host may connect
        #[arg(long, conflicts_with = "host")]
        any_host: bool,
        /// A host that may connect, by NQN; repeatable
        #[arg(long, value_name = "NQN")]
        host: Vec<String>,
        /// Other keys, as in the config
        #[arg(value_name = "KEY=VALUE")]
        keys: Vec<String>,
        #[command(flatten)]
        args: ChangeArgs,
    },
    /// Change keys of one; `KEY=` restores the default
    Set {
        /// Its name
        nqn: String,
        /// Keys, as in the config
        #[arg(value_name = "KEY=VALUE", required = true)]
        keys: Vec<String>,
        #[command(flatten)]
        args: ChangeArgs,
    },
    /// Remove one with its namespaces; their devices stay
    Remove {
        /// Its name
        nqn: String,
        #[command(flatten)]
        args: ForceArgs,
    },
}

/// Runs a subcommand.
pub(crate) fn run(
    client: &ApiClient,
    json: bool,
    command: &SubsystemCommand,
) -> anyhow::Result<()> {
    match command {
        SubsystemCommand::List => {
            let all: Vec<SubsystemView> = client.get("/v1/subsystems")?;
            if json { print_json(&all) } else { print(&table(&all).text()) }
        }
        SubsystemCommand::Show { nqn } => {
            let one: SubsystemView = client.get(&path(&["subsystems", nqn]))?;
            if json { print_json(&one) } else { print(&shown(&one)) }
        }
        SubsystemCommand::Add { nqn, any_host, host, keys, args } => {
            let base = Subsystem {
                nqn: nqn.clone(),
                allow_any_host: any_host.then_some(true),
                hosts: (!any_host).then(|| host.clone()),
                ..Subsystem::default()
            };
            let subsystem = words::<Subsystem>(keys)?.apply(&base)?;
            args.send(client, json, Method::POST, "/v1/subsystems", Some(&subsystem))
        }
        SubsystemCommand::Set { nqn, keys, args } => {
            let patch = words::<Subsystem>(keys)?;
            args.send(client, json, Method::PATCH, &path(&["subsystems", nqn]), Some(&patch))
        }
        SubsystemCommand::Remove { nqn, args } => {
            args.send(client, json, Method::DELETE, &path(&["subsystems", nqn]))
        }
    }
}

/// Summarizes the hosts that may connect.
fn access(one: &Subsystem) -> String {
    match &one.hosts {
        Some(hosts) => format!("{} listed", hosts.len()),
        None => "any".into(),
    }
}

fn table(all: &[SubsystemView]) -> Table {
    let mut table = Table::new(vec![
        Column::words("subsystem"),
        Column::words("serial"),
        Column::words("hosts"),
        Column::numbers("namespaces", ""),
        Column::numbers("controllers", ""),
    ]);
    for one in all {
        table.push(vec![
            one.config.nqn.clone(),
            one.serial.clone(),
            access(&one.config),
            one.config.namespace.len().to_string(),
            one.controllers.len().to_string(),
        ]);
    }
    table
}

fn shown(one: &SubsystemView) -> String {
    let namespace = |namespace: &nvmeof_api::document::Namespace| {
        format!("{}: {}", namespace.nsid, namespace.device)
    };
    let namespaces: Vec<String> = one.config.namespace.iter().map(namespace).collect();
    let controllers = one.controllers.iter().map(|one| format!("{}: {}", one.cntlid, one.host));
    pairs(&[
        ("subsystem", one.config.nqn.clone()),
        ("serial", one.serial.clone()),
        ("model", one.model.clone()),
        ("hosts", one.config.hosts.as_deref().map_or_else(|| "any".into(), list)),
        ("namespaces", list(&namespaces)),
        ("controllers", list(&controllers.collect::<Vec<_>>())),
    ])
}
