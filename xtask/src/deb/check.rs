//! Checks of a package before its installation.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use nvmeof_console::say;
use nvmeof_workspace::checkout::{Workspace, output_of, run_checked};

use super::{PROGRAMS, tree_of};

/// glibc version of Debian 12, the oldest release that the package supports.
const GLIBC: (u32, u32) = (2, 36);
/// Target triple of the cross-check.
const ARM64: &str = "aarch64-unknown-linux-gnu";
/// Folders in which a package is allowed to have files.
const ROOTS: &[&str] = &["./usr/", "./etc/nvmeof-tgt/"];

/// Fails if the package requires a newer C library than Debian 12's, has files outside [`ROOTS`],
/// or has a lintian finding without an explanation.
pub(super) fn package(package: &Path) -> Result<()> {
    let floor = symbol_floor(&tree_of(package)?)?;
    say!("symbols: glibc {}.{} at least; Debian 12 has 2.36, Debian 13 has 2.41", floor.0, floor.1);
    ensure!(
        floor <= GLIBC,
        "the programs need glibc {}.{}: built here they do not start on Debian 12; build on it",
        floor.0,
        floor.1
    );
    let output = output_of(Command::new("dpkg-deb").arg("--contents").arg(package))?;
    for line in String::from_utf8(output)?.lines() {
        let name = line.split_whitespace().nth(5).unwrap_or_default();
        ensure!(line.contains(" root/root "), "a file is not root's: {line}");
        let inside = ROOTS.iter().any(|root| name.starts_with(root) || root.starts_with(name));
        ensure!(inside, "the package has {name}");
    }
    let mut lintian = Command::new("lintian");
    lintian.args(["--fail-on", "error,warning,info", "--display-info", "--allow-root"]);
    run_checked(lintian.arg(package)).context("lintian has something to say")
}

/// The newest version of glibc's symbols that any program uses.
fn symbol_floor(root: &Path) -> Result<(u32, u32)> {
    let mut floor = (0, 0);
    for program in PROGRAMS {
        let path = root.join("usr/bin").join(program);
        let output = String::from_utf8(output_of(Command::new("objdump").arg("-T").arg(&path))?)?;
        let newest = newest_symbol(&output);
        ensure!(
            newest > (0, 0),
            "{program} uses no symbol of glibc: objdump says something else now"
        );
        floor = floor.max(newest);
    }
    Ok(floor)
}

fn newest_symbol(table: &str) -> (u32, u32) {
    let versions = table.split("GLIBC_").skip(1).filter_map(|rest| {
        let end = rest.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(rest.len());
        let mut parts = rest[..end].split('.').map(str::parse::<u32>);
        Some((parts.next()?.ok()?, parts.next()?.ok()?))
    });
    versions.max().unwrap_or_default()
}

/// Type-checks everything in the package for arm64.
pub(super) fn arm64(workspace: &Workspace) -> Result<()> {
    let installed = output_of(Command::new("rustup").args(["target", "list", "--installed"]));
    let there = installed
        .is_ok_and(|list| String::from_utf8_lossy(&list).lines().any(|line| line == ARM64));
    if !there {
        say!("rustup target add {ARM64} (the standard library, to check against)");
        if run_checked(Command::new("rustup").args(["target", "add", ARM64])).is_err() {
            bail!("arm64 cannot be checked: rustup cannot get the standard library of {ARM64}");
        }
    }
    let mut check = workspace.cargo(["check", "--locked", "--target", ARM64]);
    check.args(["-p", "nvmeof-tgt", "-p", "nvmeof-ctl", "-p", "nvmeof-perf"]);
    run_checked(&mut check)?;
    say!("arm64: everything in the package compiles (checked, not linked, not run)");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_symbol_is_found() {
        let table = "0000 DF *UND* 0000 (GLIBC_2.2.5) read\n0000 DF *UND* 0000 (GLIBC_2.34) dlsym\n\
                     0000 DF *UND* 0000 (GLIBC_2.9) pipe2\n0000 w DF *UND* 0000 (GCC_3.0) _Unwind\n";
        assert_eq!(newest_symbol(table), (2, 34));
        assert_eq!(newest_symbol("no table"), (0, 0));
    }
}
