//! Packages of this machine's distribution, or of another Debian suite.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use nvmeof_console::say;
use nvmeof_workspace::checkout::{output_of, run_checked};

use crate::setup;

/// An apt to look up and download packages with; it installs none.
#[derive(Debug)]
pub(crate) struct Apt {
    /// Folder of a suite's own lists; none for this machine's apt.
    root: Option<PathBuf>,
}

impl Apt {
    /// Returns this machine's apt.
    pub(crate) fn machine() -> Self {
        Self { root: None }
    }

    /// Returns an apt for a suite of Debian, created if the cache does not have it.
    ///
    /// mmdebstrap has the addresses of the suite's archives, the security archive included, and
    /// writes a root in which apt can run.
    pub(crate) fn suite(cache: &Path, suite: &str) -> Result<Self> {
        let root = cache.join(format!("apt-{suite}"));
        if !root.is_dir() {
            say!("reading Debian {suite}'s package lists (kept in {})", root.display());
            let work = cache.join(format!("apt-{suite}.{}", std::process::id()));
            let mut make = Command::new("mmdebstrap");
            // This mode works for users other than root, too.
            make.args(["--quiet", "--mode=chrootless", "--variant=custom", "--simulate", suite]);
            make.arg(&work);
            run_checked(&mut make)
                .with_context(|| format!("cannot find the archives of Debian {suite}"))?;
            Self { root: Some(work.clone()) }.update()?;
            fs::rename(&work, &root)?;
        }
        Ok(Self { root: Some(root) })
    }

    /// Refreshes the package lists.
    pub(crate) fn update(&self) -> Result<()> {
        match self.root {
            Some(_) => run_checked(self.command("apt-get").args(["-q", "update"])),
            None => setup::apt_update(),
        }
    }

    /// Returns the packages on which a package depends.
    pub(crate) fn dependencies(&self, package: &str) -> Result<Vec<String>> {
        let output = output_of(self.command("apt-cache").args(["depends", package]))?;
        Ok(parse_dependencies(&String::from_utf8_lossy(&output)))
    }

    /// Returns whether the lists have a package.
    pub(crate) fn has(&self, package: &str) -> bool {
        output_of(self.command("apt-cache").args(["show", package])).is_ok()
    }

    /// Downloads a package into a folder.
    pub(crate) fn download(&self, folder: &Path, package: &str) -> Result<()> {
        let mut get = self.command("apt-get");
        get.args(["-q", "download", package]).current_dir(folder);
        if get.status().is_ok_and(|status| status.success()) {
            return Ok(());
        }
        // Lists older than the archive name a version that no longer exists.
        self.update()?;
        run_checked(&mut get)
    }

    fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        // As root, apt would drop to a user without write permission here, and warn about it.
        command.args(["-o", "APT::Sandbox::User=root"]);
        if let Some(root) = &self.root {
            let status = root.join("var/lib/dpkg/status");
            command.arg("-o").arg(format!("Dir={}", root.display()));
            command.arg("-o").arg(format!("Dir::State::status={}", status.display()));
            // The keys stay this machine's.
            command.args(["-o", "Dir::Etc::TrustedParts=/etc/apt/trusted.gpg.d"]);
        }
        command
    }
}

fn parse_dependencies(depends: &str) -> Vec<String> {
    depends
        .lines()
        .filter_map(|line| line.trim().strip_prefix("Depends: "))
        .map(str::to_owned)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_dependencies_are_returned() {
        let text = "linux-image-amd64\n  Depends: linux-base\n  Depends: linux-image-6.1.0-1-amd64\n  \
                    Recommends: firmware\n";
        assert_eq!(parse_dependencies(text), ["linux-base", "linux-image-6.1.0-1-amd64"]);
    }
}
