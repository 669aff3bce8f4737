//! One file a command: its arguments, its calls, what it prints.

mod change;
mod config;
mod connection;
mod device;
mod host;
mod import;
mod listener;
mod namespace;
mod pacing;
mod shell;
mod stats;
mod status;
mod subsystem;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Subcommand;
use clap_complete::Shell;
use nvmeof_api::Patch;
use serde::Serialize;
use serde::de::DeserializeOwned;
use utoipa::ToSchema;

use crate::top::Top;
use crate::trace::Trace;
use crate::{Args, Client};
use change::{Ask, Insist};

/// What to do.
#[derive(Debug, Subcommand)]
#[expect(private_interfaces, reason = "only the program itself looks into the commands")]
pub enum Command {
    /// Show what runs, in short
    Status,
    /// Show what was counted since the daemon's start
    Stats,
    Top(Top),
    Trace(Trace),
    /// The state as a whole: show it, or replace it
    #[command(subcommand)]
    Config(config::Command),
    /// Write what runs to the daemon's config file, so that it is the same after a restart
    Save(Insist),
    /// Make what runs what the daemon's config file says, as SIGHUP does
    Reload(Ask),
    /// What hosts see
    #[command(subcommand)]
    Subsystem(subsystem::Command),
    /// Devices as hosts see them
    #[command(subcommand)]
    Namespace(namespace::Command),
    /// Who may connect
    #[command(subcommand)]
    Host(host::Command),
    /// Where hosts connect
    #[command(subcommand)]
    Listener(listener::Command),
    /// What is served
    #[command(subcommand)]
    Device(device::Command),
    /// When commands may start
    #[command(subcommand)]
    Pacing(pacing::Command),
    /// The hosts' queues
    #[command(subcommand)]
    Connection(connection::Command),
    /// Write a shell's completion to standard output
    Completion {
        /// The shell
        shell: Shell,
    },
    /// Write man pages into a folder
    Man {
        /// The folder; made if it is not there
        folder: PathBuf,
    },
    /// Write a config of the kernel's target or of SPDK's as one of ours
    Import(import::Import),
}

/// Does it. The exit status is for what is no error but no success.
pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let client = || Client::new(&args.api, args.token_file.as_deref());
    let json = args.json;
    match &args.command {
        Command::Status => status::run(&client()?, json)?,
        Command::Stats => stats::run(&client()?, json)?,
        Command::Config(command) => config::run(&client()?, json, command)?,
        Command::Save(insist) => config::save(&client()?, json, insist)?,
        Command::Reload(ask) => config::reload(&client()?, json, ask)?,
        Command::Subsystem(command) => subsystem::run(&client()?, json, command)?,
        Command::Namespace(command) => namespace::run(&client()?, json, command)?,
        Command::Host(command) => host::run(&client()?, json, command)?,
        Command::Listener(command) => listener::run(&client()?, json, command)?,
        Command::Device(command) => device::run(&client()?, json, command)?,
        Command::Pacing(command) => pacing::run(&client()?, json, command)?,
        Command::Connection(command) => connection::run(&client()?, json, command)?,
        Command::Completion { shell } => shell::completion(*shell)?,
        Command::Man { folder } => shell::man(folder)?,
        Command::Import(import) => import::run(import, json)?,
        Command::Top(top) => crate::top::run(&client()?, json, top)?,
        Command::Trace(trace) => crate::trace::run(&client()?, json, trace)?,
    }
    Ok(ExitCode::SUCCESS)
}

/// Keys of an item as the command line has them.
fn words<T>(words: &[String]) -> anyhow::Result<Patch<T>>
where
    T: Serialize + DeserializeOwned + ToSchema,
{
    Patch::from_words(words.iter().map(String::as_str)).map_err(anyhow::Error::msg)
}
