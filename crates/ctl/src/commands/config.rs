//! `nvmeofctl config`, `save` and `reload`: the whole state, and the daemon's config file.

use std::path::PathBuf;

use anyhow::Context as _;
use clap::Subcommand;
use hyper::Method;
use nvmeof_api::Saved;
use nvmeof_api::document::Document;

use super::change::{Ask, Insist};
use crate::Client;
use crate::output::{print, print_json};

/// Subcommands for the whole state.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Write the running state as a config (TOML) to standard output
    Show,
    /// Apply a config to the running state: all of it, or nothing
    Apply {
        /// The config (TOML)
        file: PathBuf,
        #[command(flatten)]
        ask: Ask,
    },
}

/// Runs a subcommand.
pub(crate) fn run(client: &Client, json: bool, command: &Command) -> anyhow::Result<()> {
    match command {
        Command::Show => {
            let document: Document = client.get("/v1/config")?;
            if json { print_json(&document) } else { print(&document.to_toml()?) }
        }
        Command::Apply { file, ask } => {
            let text = std::fs::read_to_string(file)
                .with_context(|| format!("{}: cannot be read", file.display()))?;
            let document = Document::from_toml(&text)
                .with_context(|| format!("{}: is no config", file.display()))?;
            ask.send(client, json, Method::PUT, "/v1/config", Some(&document))
        }
    }
}

/// Writes the running state to the daemon's config file.
pub(crate) fn save(client: &Client, json: bool, insist: &Insist) -> anyhow::Result<()> {
    let path = format!("/v1/save?force={}&dry_run={}", insist.force, insist.ask.dry_run);
    let revision = insist.ask.revision.as_deref();
    let saved: Saved = client.call(Method::POST, &path, None::<&()>, revision)?;
    if json {
        return print_json(&saved);
    }
    let would = if insist.ask.dry_run { "would be " } else { "" };
    let before = saved.previous.map_or_else(String::new, |file| format!("; before: {file}"));
    print(&format!("{would}saved to {}{before}\n", saved.file))
}

/// Applies the daemon's config file to the running state.
pub(crate) fn reload(client: &Client, json: bool, ask: &Ask) -> anyhow::Result<()> {
    ask.send(client, json, Method::POST, "/v1/reload", None::<&()>)
}
