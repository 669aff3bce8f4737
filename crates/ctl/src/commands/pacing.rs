//! `nvmeofctl pacing`: the pacing policy.

use clap::Subcommand;
use hyper::Method;
use nvmeof_api::document::{PacingConfig, Tagged};
use nvmeof_api::view::PacingView;

use super::change::ChangeArgs;
use super::{names, words};
use crate::ApiClient;
use crate::output::{bytes, pairs, print, print_json};

/// Pacing policy.
#[derive(Debug, Subcommand)]
pub(crate) enum PacingCommand {
    /// Show the policy in force, and its state
    Show,
    /// Change the policy
    #[command(after_help = "Examples:\n  nvmeofctl pacing set adaptive\n  \
        nvmeofctl pacing set buffer-credit budget=64MiB\n  \
        nvmeofctl pacing set token-bucket rate=180Gb/s\n\n\
        Omitted keys have their defaults. configs/target.toml documents every key.")]
    Set {
        #[arg(help = format!("One of {}", names::<PacingConfig>()))]
        policy: String,
        /// Its keys, as in the config
        #[arg(value_name = "KEY=VALUE")]
        keys: Vec<String>,
        #[command(flatten)]
        args: ChangeArgs,
    },
}

/// Runs a subcommand.
pub(crate) fn run(client: &ApiClient, json: bool, command: &PacingCommand) -> anyhow::Result<()> {
    match command {
        PacingCommand::Show => {
            let pacing: PacingView = client.get("/v1/pacing")?;
            if json {
                return print_json(&pacing);
            }
            let none = || "-".to_owned();
            print(&pairs(&[
                ("policy", pacing.policy),
                ("budget", pacing.budget_bytes.map_or_else(none, bytes)),
                ("period", pacing.period_ns.map_or_else(none, |nanos| format!("{nanos} ns"))),
                ("in flight", format!("{} ({})", pacing.in_flight, bytes(pacing.bytes_in_flight))),
                ("waiting", pacing.waiting.to_string()),
                ("config", serde_json::to_string(&pacing.config)?),
            ]))
        }
        PacingCommand::Set { policy, keys, args } => {
            let fixed = [(PacingConfig::TAG, policy.as_str())];
            let pacing = words::<PacingConfig>(keys)?.create(fixed)?;
            args.send(client, json, Method::PUT, "/v1/pacing", Some(&pacing))
        }
    }
}
