//! `cargo xtask ci`: runs the CI steps on this machine, before pushing.

use std::process::{Command, ExitCode};

use anyhow::{Context, Result};
use nvmeof_workspace::checkout::{Workspace, run_checked};

use crate::setup;

#[derive(Debug, clap::Args)]
#[command(after_help = "Example: cargo xtask ci\n\
    What is not committed is not tested: CI would not see it either.")]
pub(crate) struct CiArgs {}

/// Clones HEAD into the target folder and runs `.ci/run` in the clone with CI=true.
pub(crate) fn run(_args: &CiArgs) -> Result<ExitCode> {
    let workspace = Workspace::find()?;
    setup::ensure(&[setup::BUILD, setup::TEST])?;
    let clone = workspace.target().join("ci");
    if clone.exists() {
        std::fs::remove_dir_all(&clone)
            .with_context(|| format!("cannot empty {}", clone.display()))?;
    }
    let mut git = Command::new("git");
    git.args(["clone", "--quiet", "--no-hardlinks"]).arg(workspace.root()).arg(&clone);
    run_checked(&mut git)?;
    let mut ci = Command::new(clone.join(".ci/run"));
    // The clone builds in its own target folder, as a clean machine would.
    ci.current_dir(&clone).env("CI", "true").env_remove("CARGO_TARGET_DIR");
    ci.env_remove("CARGO_MANIFEST_DIR");
    run_checked(&mut ci)?;
    Ok(ExitCode::SUCCESS)
}
