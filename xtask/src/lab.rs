//! `cargo xtask sweep`, `plots` and `bench`: commands of the laboratory, `nvmeof-lab`.
//!
//! The laboratory links the simulator and the reports. xtask builds it only for these commands and
//! for the test stages that use it.

use std::env;
use std::ffi::{OsStr, OsString};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, ExitCode};

use anyhow::{Context, Result};
use nvmeof_workspace::checkout::{Workspace, run_checked};

/// Build of the laboratory, by cargo's `dev` profile.
///
/// That profile optimizes the simulator and the pacing code fully, checks debug assertions, and
/// shares its build with the tests.
pub(crate) const BUILD: [&str; 4] = ["build", "--locked", "-p", PROGRAM];
const PROGRAM: &str = "nvmeof-lab";
/// Commands of the laboratory that a user types.
const COMMANDS: [&str; 3] = ["sweep", "plots", "bench"];

#[derive(Debug, clap::Args)]
pub(crate) struct LabArgs {
    /// Arguments of the command
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, hide = true)]
    rest: Vec<OsString>,
}

/// Builds the laboratory and becomes it: its output, its exit code and the effect of signals are
/// those of this command.
pub(crate) fn become_lab(command: &str, args: &LabArgs) -> Result<ExitCode> {
    replace_process([OsStr::new(command)].into_iter().chain(args.rest.iter().map(AsRef::as_ref)))
}

/// Shows the help of a command of the laboratory if the command line asks for it with `help`.
pub(crate) fn show_help() -> Option<Result<ExitCode>> {
    let words: Vec<_> = env::args_os().skip(1).collect();
    let [help, command, ..] = &words[..] else { return None };
    let is_asked = help == "help" && COMMANDS.iter().any(|name| command == name);
    is_asked.then(|| replace_process(words.iter().map(AsRef::as_ref)))
}

/// Builds the laboratory; returns the path of its program.
pub(crate) fn build(workspace: &Workspace) -> Result<PathBuf> {
    run_checked(&mut workspace.cargo(BUILD))?;
    Ok(program(workspace))
}

/// Returns the path of the laboratory's program, built or not.
pub(crate) fn program(workspace: &Workspace) -> PathBuf {
    workspace.dev_binary(PROGRAM)
}

fn replace_process<'a>(args: impl IntoIterator<Item = &'a OsStr>) -> Result<ExitCode> {
    let program = build(&Workspace::find()?)?;
    let error = Command::new(&program).args(args).exec();
    Err(error).with_context(|| format!("cannot start {}", program.display()))
}

#[cfg(test)]
mod tests {
    use clap::{CommandFactory, Parser};

    use crate::{Cli, Command};

    #[test]
    fn arguments_are_handed_over_unchanged() {
        let words = ["cargo xtask", "bench", "pacing", "--help", "-x", "--", "--depths", "32"];
        let cli = Cli::try_parse_from(words).expect("any arguments are accepted");
        let Command::Bench(args) = cli.command else { panic!("another command: {cli:?}") };
        assert_eq!(args.rest, words[2..]);
        assert!(Cli::try_parse_from(["cargo xtask", "sweep"]).is_ok());
    }

    #[test]
    fn each_command_of_the_laboratory_is_listed() {
        let help = Cli::command().render_help().to_string();
        assert!(
            super::COMMANDS.iter().all(|name| help.contains(&format!("\n  {name} "))),
            "{help}"
        );
    }
}
