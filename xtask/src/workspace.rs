//! The checkout, its build products, and calls of cargo.

use std::env;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

use crate::this_program;

/// The checkout in which this command runs, and the paths derived from it.
#[derive(Debug, Clone)]
pub(crate) struct Workspace {
    root: PathBuf,
    target: PathBuf,
}

impl Workspace {
    /// Finds the workspace.
    ///
    /// cargo passes this package's folder to xtask, and the root is its parent. Without cargo, the
    /// current folder and its parents are searched.
    pub(crate) fn find() -> Result<Self> {
        let root = match env::var_os("CARGO_MANIFEST_DIR") {
            Some(package) => Path::new(&package)
                .parent()
                .map(Path::to_path_buf)
                .context("xtask has no parent")?,
            None => env::current_dir()?
                .ancestors()
                .find(|dir| dir.join("xtask/Cargo.toml").is_file())
                .map(Path::to_path_buf)
                .context("not inside the nvmeof-tgt checkout: run `cargo xtask` from within it")?,
        };
        let target = match env::var_os("CARGO_TARGET_DIR") {
            Some(dir) => std::path::absolute(dir)?,
            None => root.join("target"),
        };
        Ok(Self { root, target })
    }

    /// Returns the folder of the workspace's `Cargo.toml`.
    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    /// Returns cargo's target folder.
    pub(crate) fn target(&self) -> &Path {
        &self.target
    }

    /// Returns the path of a release binary of this workspace, built or not.
    pub(crate) fn release_binary(&self, name: &str) -> PathBuf {
        self.target.join("release").join(name)
    }

    /// Returns a cargo command in the workspace root, with the cargo that started xtask.
    pub(crate) fn cargo<'a>(&self, args: impl IntoIterator<Item = &'a str>) -> Command {
        let mut command = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
        command.current_dir(&self.root).args(args);
        // cargo sets these for this package when it runs xtask; a cargo below xtask must not
        // inherit them.
        for name in ["CARGO_MANIFEST_DIR", "CARGO_MANIFEST_PATH", "CARGO_PKG_NAME"] {
            command.env_remove(name);
        }
        command
    }
}

/// Runs a command to its end with xtask's standard streams.
///
/// # Errors
/// The command was unsuccessful; the error shows the command line.
pub(crate) fn run_checked(command: &mut Command) -> Result<()> {
    let shown = show(command);
    let status = command.status().with_context(|| format!("cannot start `{shown}`"))?;
    if !status.success() {
        bail!("`{shown}` failed ({status})");
    }
    Ok(())
}

/// Runs a command to its end and returns its standard output.
///
/// # Errors
/// The command was unsuccessful; the error contains its standard error.
pub(crate) fn output_of(command: &mut Command) -> Result<Vec<u8>> {
    let shown = show(command);
    let output =
        command.stdin(Stdio::null()).output().with_context(|| format!("cannot start `{shown}`"))?;
    if !output.status.success() {
        let stderr = String::from_utf8_lossy(&output.stderr);
        bail!("`{shown}` failed ({}): {}", output.status, stderr.trim());
    }
    Ok(output.stdout)
}

/// Formats a command as a user would type it.
pub(crate) fn show(command: &Command) -> String {
    let program = Path::new(command.get_program());
    let mut text = if this_program::is(program) {
        this_program::NAME.to_owned()
    } else {
        program.file_name().unwrap_or(program.as_os_str()).to_string_lossy().into_owned()
    };
    for arg in command.get_args() {
        text.push(' ');
        text.push_str(&arg.to_string_lossy());
    }
    text
}
