//! Programs of the system that a command needs, and the installation of missing ones.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use anyhow::{Context, Result, bail};
use nvmeof_console::{complain, say};

use crate::checkout::run_checked;

/// A program (or file, by its whole path) that a command needs, its Debian package, and the reason
/// to print.
#[derive(Debug, Clone, Copy)]
pub struct Prerequisite {
    program: &'static str,
    package: &'static str,
    reason: &'static str,
}

impl Prerequisite {
    /// Describes a program of a package; the reason completes "it is needed because it ...".
    #[must_use]
    pub const fn new(program: &'static str, package: &'static str, reason: &'static str) -> Self {
        Self { program, package, reason }
    }

    /// Returns whether the package and the reason are named.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        !self.package.is_empty() && !self.reason.is_empty()
    }

    fn is_installed(&self) -> bool {
        match find_program(self.program) {
            // Another package has a busybox too, which needs shared libraries that the initramfs
            // lacks.
            Some(path) if self.package == "busybox-static" => is_static(&path),
            found => found.is_some(),
        }
    }
}

/// Requirements of building the daemon and the load generator.
pub const BUILD: &[Prerequisite] = &[
    Prerequisite::new("cc", "build-essential", "rustc links with it"),
    Prerequisite::new("ld", "binutils", "rustc links with it"),
];

/// Ensures that every program of `groups` exists, and installs the packages of missing ones.
///
/// It prints the package and the reason, and uses sudo if necessary.
///
/// # Errors
/// A package cannot be installed, or does not contain its program.
pub fn ensure(groups: &[&[Prerequisite]]) -> Result<()> {
    let missing: Vec<Prerequisite> =
        groups.iter().copied().flatten().filter(|needed| !needed.is_installed()).copied().collect();
    if missing.is_empty() {
        return Ok(());
    }
    say!("these are missing and will be installed:");
    for needed in &missing {
        say!("  {:<18} {} ({})", needed.package, needed.reason, needed.program);
    }
    let mut packages: Vec<&str> = missing.iter().map(|needed| needed.package).collect();
    packages.sort_unstable();
    packages.dedup();
    if find_program("apt-get").is_none() {
        bail!(
            "this machine has no apt-get: install the programs above with your own package manager \
             (Debian calls the packages: {}), then run the command again",
            packages.join(" ")
        );
    }
    apt_update()?;
    let mut install = as_root("apt-get")?;
    install.env("DEBIAN_FRONTEND", "noninteractive");
    install.args(["install", "-y", "-q", "--no-install-recommends"]).args(&packages);
    run_checked(&mut install).context("installing packages")?;
    match missing.iter().find(|needed| !needed.is_installed()) {
        Some(needed) => {
            bail!("{} was installed, but `{}` is not there", needed.package, needed.program)
        }
        None => Ok(()),
    }
}

/// Refreshes apt's package lists, once per process.
///
/// # Errors
/// No way to run a program as root.
pub fn apt_update() -> Result<()> {
    static DONE: OnceLock<()> = OnceLock::new();
    if DONE.get().is_some() {
        return Ok(());
    }
    // A broken third-party list must not stop the command if Debian's own lists are fine. If a
    // package is really missing, the following install fails.
    if let Err(error) = run_checked(as_root("apt-get")?.args(["update", "-q"])) {
        complain!("warning: {error:#}; using the existing package lists");
    }
    let _ = DONE.set(());
    Ok(())
}

/// Returns a program's path, searched in PATH and in the administrator's folders, which an ordinary
/// user's PATH omits.
#[must_use]
pub fn find_program(name: &str) -> Option<PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    let extra = ["/usr/local/sbin", "/usr/sbin", "/sbin"].map(PathBuf::from);
    env::split_paths(&path).chain(extra).map(|dir| dir.join(name)).find(|file| file.is_file())
}

/// Returns a command that runs as root: directly if this process is root, otherwise by sudo.
fn as_root(name: &str) -> Result<Command> {
    if rustix::process::geteuid().is_root() {
        return Ok(Command::new(name));
    }
    if find_program("sudo").is_none() {
        bail!("installing packages takes root: run this as root, or install sudo");
    }
    let mut command = Command::new("sudo");
    // sudo drops the environment; apt must still ask no questions.
    command.args(["env", "DEBIAN_FRONTEND=noninteractive", name]);
    Ok(command)
}

/// Returns whether a program starts without a dynamic loader.
fn is_static(path: &Path) -> bool {
    let loader = b"/ld-linux";
    std::fs::read(path).is_ok_and(|bytes| !bytes.windows(loader.len()).any(|w| w == loader))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_found_or_not() {
        assert!(find_program("sh").is_some());
        assert!(find_program("a-program-nobody-has").is_none());
        assert!(find_program("/etc/passwd").is_some(), "a whole path is a file");
        assert!(find_program("/etc/a-file-nobody-has").is_none());
    }

    #[test]
    fn the_shell_is_not_static() {
        let shell = find_program("bash").or_else(|| find_program("sh")).expect("a shell");
        assert!(!is_static(&shell));
    }
}
