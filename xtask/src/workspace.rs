//! Where the checkout and its build products are, and how cargo is called.

use std::env;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

use crate::this_program;

/// The checkout this command runs in, and the places derived from it.
#[derive(Debug, Clone)]
pub(crate) struct Workspace {
    root: PathBuf,
    target: PathBuf,
}

impl Workspace {
    /// Finds the workspace: cargo names this package's folder when it runs us, and the root is its
    /// parent; without cargo, the current folder and its parents are searched.
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

    /// The folder of the workspace's `Cargo.toml`.
    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    /// Cargo's target folder.
    pub(crate) fn target(&self) -> &Path {
        &self.target
    }

    /// A release binary of this workspace, whether or not it has been built.
    pub(crate) fn release_binary(&self, name: &str) -> PathBuf {
        self.target.join("release").join(name)
    }

    /// A cargo command in the workspace root, with the same cargo that started us.
    pub(crate) fn cargo<'a>(&self, args: impl IntoIterator<Item = &'a str>) -> Command {
        let mut command = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
        command.current_dir(&self.root).args(args);
        // Set for this package when cargo runs us; a cargo below us must not inherit them.
        for name in ["CARGO_MANIFEST_DIR", "CARGO_MANIFEST_PATH", "CARGO_PKG_NAME"] {
            command.env_remove(name);
        }
        command
    }
}

/// Runs a command to its end with our own standard streams; an unsuccessful end is an error that
/// shows the command line.
pub(crate) fn run_checked(command: &mut Command) -> Result<()> {
    let shown = show(command);
    let status = command.status().with_context(|| format!("cannot start `{shown}`"))?;
    if !status.success() {
        bail!("`{shown}` failed ({status})");
    }
    Ok(())
}

/// Runs a command to its end and hands back its standard output; an unsuccessful end is an error
/// that carries what it wrote to standard error.
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

/// A command as a person would type it.
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
