//! `nvmeofctl config`, `save` and `reload`: the whole state, and the daemon's config file.

use std::path::PathBuf;

use anyhow::Context as _;
use clap::Subcommand;
use hyper::Method;
use nvmeof_api::Saved;
use nvmeof_api::document::Document;

use super::change::{ChangeArgs, ForceArgs};
use crate::ApiClient;
use crate::output::{print, print_json};

/// Subcommands for the whole state.
#[derive(Debug, Subcommand)]
pub(crate) enum ConfigCommand {
    /// Write the running state as a config (TOML) to standard output
    Show,
    /// Apply a config to the running state: all of it, or nothing
    Apply {
        /// The config (TOML)
        file: PathBuf,
        #[command(flatten)]
        args: ChangeArgs,
    },
}

/// Runs a subcommand.
pub(crate) fn run(client: &ApiClient, json: bool, command: &ConfigCommand) -> anyhow::Result<()> {
    match command {
        ConfigCommand::Show => {
            let document: Document = client.get("/v1/config")?;
            if json { print_json(&document) } else { print(&document.to_toml()?) }
        }
        ConfigCommand::Apply { file, args } => {
            let text = std::fs::read_to_string(file)
                .with_context(|| format!("{}: cannot be read", file.display()))?;
            let document = Document::from_toml(&text)
                .with_context(|| format!("{}: is no config", file.display()))?;
            args.send(client, json, Method::PUT, "/v1/config", Some(&document))
        }
    }
}

/// Writes the running state to the daemon's config file.
pub(crate) fn save(client: &ApiClient, json: bool, args: &ForceArgs) -> anyhow::Result<()> {
    let path = format!("/v1/save?force={}&dry_run={}", args.force, args.change.dry_run);
    let revision = args.change.revision.as_deref();
    let saved: Saved = client.call(Method::POST, &path, None::<&()>, revision)?;
    if json {
        return print_json(&saved);
    }
    let would = if args.change.dry_run { "would be " } else { "" };
    let before = saved.previous.map_or_else(String::new, |file| format!("; before: {file}"));
    print(&format!("{would}saved to {}{before}\n", saved.file))
}

/// Applies the daemon's config file to the running state.
pub(crate) fn reload(client: &ApiClient, json: bool, args: &ChangeArgs) -> anyhow::Result<()> {
    args.send(client, json, Method::POST, "/v1/reload", None::<&()>)
}
