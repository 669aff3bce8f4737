//! `cargo xtask deb`: the Debian package of the daemon, its control program and the load generator.
//!
//! | file | content |
//! |---|---|
//! | `tree` | path of every file in the package |
//! | `fields` | control fields: dependencies, sizes, the change log |
//! | `check` | requirements of a package on its machine; lintian; arm64 |
//!
//! dpkg's own tools pack the files, so that the package has the standard form. The build is the
//! release build of the pinned toolchain. It requires only the linker and the C library of Debian
//! 12 and 13.

mod check;
mod fields;
mod tree;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context, Result, bail};
use nvmeof_console::{say, show};
use nvmeof_workspace::checkout::{Workspace, output_of, run_checked};

use crate::{checks, setup};

/// Programs of the package, by the name of their build.
pub(crate) const PROGRAMS: &[&str] = &["nvmeof-tgt", "nvmeofctl", "nvmeof-perf"];
const BUILD: &[&str] = &[
    "build",
    "--release",
    "--locked",
    "-p",
    "nvmeof-tgt",
    "-p",
    "nvmeof-ctl",
    "-p",
    "nvmeof-perf",
];

#[derive(Debug, clap::Args)]
#[command(
    after_help = "Example: cargo xtask deb\n         apt install ./target/deb/nvmeof-tgt_*.deb"
)]
pub(crate) struct DebArgs {
    /// Number of the packaging of this version
    #[arg(long, default_value = "1", value_parser = clap::value_parser!(u16).range(1..))]
    revision: u16,
    /// Use the release binaries there are, without building
    #[arg(long)]
    no_build: bool,
    /// Only check that everything in the package compiles for arm64
    #[arg(long)]
    check_arm64: bool,
}

/// Builds the package and checks it, or checks arm64.
pub(crate) fn run(args: &DebArgs) -> Result<ExitCode> {
    let workspace = Workspace::find()?;
    if args.check_arm64 {
        check::arm64(&workspace)?;
        return Ok(ExitCode::SUCCESS);
    }
    setup::ensure(&[setup::BUILD, setup::DEB])?;
    if !args.no_build {
        run_checked(&mut workspace.cargo(BUILD.iter().copied()))?;
    }
    let package = build(&workspace, args.revision)?;
    check::package(&package)?;
    say!("{}", package.display());
    Ok(ExitCode::SUCCESS)
}

/// Runs the stage of `cargo xtask test`: builds the package and runs every check.
///
/// The stage omits arm64: `--check-arm64` rebuilds everything.
pub(crate) fn test(workspace: &Workspace) -> Result<()> {
    show(checks::commands_in_docs(workspace)?);
    let package = build(workspace, 1)?;
    check::package(&package)
}

/// Packs the existing release binaries as this revision; returns the package's path.
pub(crate) fn build(workspace: &Workspace, revision: u16) -> Result<PathBuf> {
    let folder = workspace.target().join("deb");
    let root = folder.join("root");
    if root.exists() {
        fs::remove_dir_all(&root).with_context(|| format!("cannot empty {}", root.display()))?;
    }
    fs::create_dir_all(&root)?;
    let version = format!("{}-{revision}", env!("CARGO_PKG_VERSION"));
    let architecture = architecture()?;
    let epoch = epoch(workspace)?;
    tree::lay_out(workspace, &root, &version, epoch)?;
    fields::write(workspace, &root, &version, &architecture)?;
    let package = folder.join(format!("nvmeof-tgt_{version}_{architecture}.deb"));
    let mut pack = Command::new("dpkg-deb");
    // The same input gives the same package: owners, times and order do not depend on this machine.
    pack.args(["--root-owner-group", "-Zxz", "--build"]).arg(&root).arg(&package);
    pack.env("SOURCE_DATE_EPOCH", epoch.to_string()).stdout(std::process::Stdio::null());
    run_checked(&mut pack)?;
    Ok(package)
}

/// Debian's name of this machine's architecture.
fn architecture() -> Result<String> {
    let output = output_of(Command::new("dpkg").arg("--print-architecture"))?;
    Ok(String::from_utf8(output)?.trim().to_owned())
}

/// Returns the time of the last change, in seconds since 1970: the package's time, whenever it is
/// built.
fn epoch(workspace: &Workspace) -> Result<u64> {
    let mut git = Command::new("git");
    git.args(["log", "-1", "--format=%ct"]).current_dir(workspace.root());
    let output = String::from_utf8(output_of(&mut git)?)?;
    match output.trim().parse() {
        Ok(seconds) => Ok(seconds),
        Err(_) => bail!("git does not say when the last change was made: {output}"),
    }
}

/// Packs a file as Debian packs documentation.
fn gzip(file: &Path) -> Result<()> {
    // -n: the file contains no name and no time.
    run_checked(Command::new("gzip").args(["-9", "-n", "-f"]).arg(file))
}

/// Returns the tree from which a package was packed.
fn tree_of(package: &Path) -> Result<PathBuf> {
    Ok(package.parent().context("a package lies in a folder")?.join("root"))
}
