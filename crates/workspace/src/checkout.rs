//! The checkout, its build products, and calls of cargo.

use std::env;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

use crate::running_program;

/// The checkout in which this command runs, and the paths derived from it.
#[derive(Debug, Clone)]
pub struct Workspace {
    root: PathBuf,
    target: PathBuf,
}

impl Workspace {
    /// Finds the workspace.
    ///
    /// The search begins at the package that cargo runs. Without cargo, it begins at the current
    /// folder.
    ///
    /// # Errors
    /// The start is not inside a checkout.
    pub fn find() -> Result<Self> {
        let start = match env::var_os("CARGO_MANIFEST_DIR") {
            Some(package) => PathBuf::from(package),
            None => env::current_dir()?,
        };
        let root = start
            .ancestors()
            .find(|dir| dir.join("xtask/Cargo.toml").is_file())
            .map(Path::to_path_buf)
            .context("not inside the nvmeof-tgt checkout: run `cargo xtask` from within it")?;
        let target = match env::var_os("CARGO_TARGET_DIR") {
            Some(dir) => std::path::absolute(dir)?,
            None => root.join("target"),
        };
        Ok(Self { root, target })
    }

    /// Returns the folder of the workspace's `Cargo.toml`.
    #[must_use]
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Returns cargo's target folder.
    #[must_use]
    pub fn target(&self) -> &Path {
        &self.target
    }

    /// Returns the path of a release binary of this workspace, built or not.
    #[must_use]
    pub fn release_binary(&self, name: &str) -> PathBuf {
        self.target.join("release").join(name)
    }

    /// Returns the path of a binary of cargo's `dev` profile, built or not.
    #[must_use]
    pub fn dev_binary(&self, name: &str) -> PathBuf {
        self.target.join("debug").join(name)
    }

    /// Returns a cargo command in the workspace root, with the cargo that started this program.
    pub fn cargo<'a>(&self, args: impl IntoIterator<Item = &'a str>) -> Command {
        let mut command = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
        command.current_dir(&self.root).args(args);
        // cargo sets these for the package that it runs; a cargo below this program must not
        // inherit them.
        for name in ["CARGO_MANIFEST_DIR", "CARGO_MANIFEST_PATH", "CARGO_PKG_NAME"] {
            command.env_remove(name);
        }
        command
    }
}

/// Runs a command to its end with the standard streams of this program.
///
/// # Errors
/// The command was unsuccessful; the error shows the command line.
pub fn run_checked(command: &mut Command) -> Result<()> {
    let shown = show(command);
    let status = command.status().with_context(|| format!("cannot start `{shown}`"))?;
    if !status.success() {
        bail!("`{shown}` failed ({status})");
    }
    Ok(())
}

/// Lines of standard error in an error: a program that fails may print one for each I/O.
const STDERR_LINES: usize = 20;

/// Runs a command to its end and returns its standard output.
///
/// # Errors
/// The command was unsuccessful; the error contains the end of its standard error.
pub fn output_of(command: &mut Command) -> Result<Vec<u8>> {
    let shown = show(command);
    let output =
        command.stdin(Stdio::null()).output().with_context(|| format!("cannot start `{shown}`"))?;
    if !output.status.success() {
        let stderr = String::from_utf8_lossy(&output.stderr);
        let lines: Vec<_> = stderr.trim().lines().collect();
        let last = lines[lines.len().saturating_sub(STDERR_LINES)..].join("\n");
        bail!("`{shown}` failed ({}): {last}", output.status);
    }
    Ok(output.stdout)
}

/// Formats a command as a user would type it.
#[must_use]
pub fn show(command: &Command) -> String {
    let program = Path::new(command.get_program());
    let mut text = if running_program::is(program) {
        running_program::NAME.to_owned()
    } else {
        program.file_name().unwrap_or(program.as_os_str()).to_string_lossy().into_owned()
    };
    for arg in command.get_args() {
        text.push(' ');
        text.push_str(&arg.to_string_lossy());
    }
    text
}
