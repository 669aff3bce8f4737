//! `nvmeofctl device`.

use clap::Subcommand;
use hyper::Method;
use nvmeof_api::DevicePatch;
use nvmeof_api::document::{Device, DeviceConfig, Tagged};
use nvmeof_api::view::DeviceView;
use nvmeof_report::{Column, Table};

use super::change::{ChangeArgs, path};
use super::{names, words};
use crate::ApiClient;
use crate::output::{bytes, list, pairs, print, print_json};

/// Block devices.
#[derive(Debug, Subcommand)]
pub(crate) enum DeviceCommand {
    /// List them
    List,
    /// Show one
    Show {
        /// Its name
        name: String,
    },
    /// Add one
    #[command(after_help = "Examples:\n  nvmeofctl device add ram1 ram size=1GiB\n  \
        nvmeofctl device add disk1 file path=/dev/sdb\n  \
        nvmeofctl device add drive1 nvme pci=0000:01:00.0\n\n\
        configs/target.toml documents every key.")]
    Add {
        /// Its name
        name: String,
        #[arg(value_name = "TYPE", help = format!("One of {}", names::<DeviceConfig>()))]
        kind: String,
        /// Its keys, as in the config
        #[arg(value_name = "KEY=VALUE")]
        keys: Vec<String>,
        #[command(flatten)]
        args: ChangeArgs,
    },
    /// Change keys of one; `KEY=` restores the default
    Set {
        /// Its name
        name: String,
        /// Keys, as in the config
        #[arg(value_name = "KEY=VALUE", required = true)]
        keys: Vec<String>,
        #[command(flatten)]
        args: ChangeArgs,
    },
    /// Resize one; hosts see the new size immediately
    #[command(after_help = "The content is kept up to the new size; the rest is lost.\n\n\
            Example:\n  nvmeofctl device resize disk1 2TiB")]
    Resize {
        /// Its name
        name: String,
        /// Bytes, or a number and k, MiB, GiB, TiB
        size: String,
        #[command(flatten)]
        args: ChangeArgs,
    },
    /// Remove an unused one
    Remove {
        /// Its name
        name: String,
        #[command(flatten)]
        args: ChangeArgs,
    },
}

/// Runs a subcommand.
pub(crate) fn run(client: &ApiClient, json: bool, command: &DeviceCommand) -> anyhow::Result<()> {
    match command {
        DeviceCommand::List => {
            let all: Vec<DeviceView> = client.get("/v1/devices")?;
            if json { print_json(&all) } else { print(&table(&all).text()) }
        }
        DeviceCommand::Show { name } => {
            let one: DeviceView = client.get(&path(&["devices", name]))?;
            if json { print_json(&one) } else { print(&shown(&one)?) }
        }
        DeviceCommand::Add { name, kind, keys, args } => {
            let fixed = [("name", name.as_str()), (DeviceConfig::TAG, kind.as_str())];
            let device = words::<Device>(keys)?.create(fixed)?;
            args.send(client, json, Method::POST, "/v1/devices", Some(&device))
        }
        DeviceCommand::Set { name, keys, args } => {
            let patch = words::<Device>(keys)?;
            args.send(client, json, Method::PATCH, &path(&["devices", name]), Some(&patch))
        }
        DeviceCommand::Resize { name, size, args } => {
            let size = format!("size={size}");
            let patch: DevicePatch = words::<Device>(&[size])?;
            args.send(client, json, Method::PATCH, &path(&["devices", name]), Some(&patch))
        }
        DeviceCommand::Remove { name, args } => {
            args.send(client, json, Method::DELETE, &path(&["devices", name]), None::<&()>)
        }
    }
}

fn table(all: &[DeviceView]) -> Table {
    let mut table = Table::new(vec![
        Column::words("device"),
        Column::words("type"),
        Column::numbers("size", ""),
        Column::numbers("block", "B"),
        Column::words("state"),
        Column::words("used by"),
    ]);
    for one in all {
        table.push(vec![
            one.config.name.clone(),
            one.config.kind.name().into(),
            bytes(one.size),
            one.block_size.to_string(),
            state(one).into(),
            list(&one.used_by),
        ]);
    }
    table
}

fn state(one: &DeviceView) -> &'static str {
    match (one.gone, one.read_only) {
        (true, _) => "gone",
        (false, true) => "read-only",
        (false, false) => "ok",
    }
}

fn shown(one: &DeviceView) -> anyhow::Result<String> {
    let mut lines = vec![
        ("device", one.config.name.clone()),
        ("size", format!("{} ({} bytes)", bytes(one.size), one.size)),
        ("block", format!("{} bytes", one.block_size)),
        ("state", state(one).into()),
        ("used by", list(&one.used_by)),
    ];
    lines.push(("config", serde_json::to_string(&one.config)?));
    Ok(pairs(&lines))
}
