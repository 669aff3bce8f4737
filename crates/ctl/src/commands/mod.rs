//! Commands, one file each: arguments, calls and output.

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
use nvmeof_api::document::Tagged;
use serde::Serialize;
use serde::de::DeserializeOwned;
use utoipa::ToSchema;

use crate::top::TopArgs;
use crate::trace::TraceArgs;
use crate::{ApiClient, CtlArgs};
use change::{ChangeArgs, ForceArgs};

/// Commands of the program.
#[derive(Debug, Subcommand)]
#[expect(private_interfaces, reason = "only the program itself looks into the commands")]
pub enum Command {
    /// Show a summary of the running state
    Status,
    /// Show the counters since the daemon's start
    Stats,
    Top(TopArgs),
    Trace(TraceArgs),
    /// Show or replace the whole state
    #[command(subcommand)]
    Config(config::ConfigCommand),
    /// Write the running state to the daemon's config file, to keep it after a restart
    Save(ForceArgs),
    /// Apply the daemon's config file to the running state, as SIGHUP does
    Reload(ChangeArgs),
    /// Show and change subsystems
    #[command(subcommand)]
    Subsystem(subsystem::SubsystemCommand),
    /// Show and change namespaces: devices as hosts see them
    #[command(subcommand)]
    Namespace(namespace::NamespaceCommand),
    /// Show and change the hosts that may connect
    #[command(subcommand)]
    Host(host::HostCommand),
    /// Show and change listeners: addresses that hosts connect to
    #[command(subcommand)]
    Listener(listener::ListenerCommand),
    /// Show and change block devices
    #[command(subcommand)]
    Device(device::DeviceCommand),
    /// Show and change the pacing policy
    #[command(subcommand)]
    Pacing(pacing::PacingCommand),
    /// Show and drop connections: the queues of hosts
    #[command(subcommand)]
    Connection(connection::ConnectionCommand),
    /// Write a shell's completion to standard output
    Completion {
        /// The shell
        shell: Shell,
    },
    /// Write man pages into a folder
    Man {
        /// Target folder; created if it does not exist
        folder: PathBuf,
    },
    /// Convert a config of Linux nvmet or SPDK
    Import(import::ImportArgs),
}

/// Runs a command. The exit status covers results that are neither success nor error.
pub(crate) fn run(args: &CtlArgs) -> anyhow::Result<ExitCode> {
    let client = || ApiClient::new(&args.api, args.token_file.as_deref());
    let json = args.json;
    match &args.command {
        Command::Status => status::run(&client()?, json)?,
        Command::Stats => stats::run(&client()?, json)?,
        Command::Config(command) => config::run(&client()?, json, command)?,
        Command::Save(args) => config::save(&client()?, json, args)?,
        Command::Reload(args) => config::reload(&client()?, json, args)?,
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

/// Lists the names of the variants of a table, for help texts.
fn names<T: Tagged>() -> String {
    let names: Vec<&str> = T::variants().iter().map(|variant| variant.name).collect();
    names.join(", ")
}

/// Parses the keys of an item from the command line.
fn words<T>(words: &[String]) -> anyhow::Result<Patch<T>>
where
    T: Serialize + DeserializeOwned + ToSchema,
{
    Patch::from_words(words.iter().map(String::as_str)).map_err(anyhow::Error::msg)
}
