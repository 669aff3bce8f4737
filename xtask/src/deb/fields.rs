//! Control fields and metadata of the package.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};
use nvmeof_workspace::checkout::{Workspace, output_of};

use super::PROGRAMS;

const CONTROL: &str = include_str!("../../../packaging/debian/control.in");
/// Maintainer scripts of the package, as small as possible.
const SCRIPTS: &[&str] = &["postinst", "prerm", "postrm"];

/// Writes the control folder of a tree that is laid out.
pub(super) fn write(
    workspace: &Workspace,
    root: &Path,
    version: &str,
    architecture: &str,
) -> Result<()> {
    let size = kibibytes(root)?;
    let depends = depends(root)?;
    let folder = root.join("DEBIAN");
    fs::create_dir_all(&folder)?;
    let control = CONTROL
        .replace("@VERSION@", version)
        .replace("@ARCHITECTURE@", architecture)
        .replace("@SIZE@", &size.to_string())
        .replace("@DEPENDS@", &depends);
    fs::write(folder.join("control"), control)?;
    fs::write(folder.join("conffiles"), "/etc/nvmeof-tgt/target.toml\n")?;
    for script in SCRIPTS {
        let to = folder.join(script);
        fs::copy(workspace.root().join("packaging/debian").join(script), &to)
            .with_context(|| format!("cannot copy {script}"))?;
        fs::set_permissions(&to, fs::Permissions::from_mode(0o755))?;
    }
    let sums = sums(root)?;
    fs::write(folder.join("md5sums"), sums)?;
    Ok(())
}

/// Returns the packages of the libraries, which dpkg derives from the symbols that the programs
/// use.
fn depends(root: &Path) -> Result<String> {
    let folder = root.join("..");
    // The tool requires a source package's control file, but reads only its first name.
    fs::create_dir_all(folder.join("debian"))?;
    fs::write(
        folder.join("debian/control"),
        "Source: nvmeof-tgt\n\nPackage: nvmeof-tgt\nArchitecture: any\n",
    )?;
    let mut find = Command::new("dpkg-shlibdeps");
    find.args(["-O", "--warnings=1"]).current_dir(&folder);
    find.args(PROGRAMS.iter().map(|program| format!("root/usr/bin/{program}")));
    let output = String::from_utf8(output_of(&mut find)?)?;
    let found = output.lines().find_map(|line| line.strip_prefix("shlibs:Depends="));
    Ok(found.context("dpkg-shlibdeps finds no libraries")?.to_owned())
}

/// KiB of all files, each rounded up, as dpkg counts them.
fn kibibytes(folder: &Path) -> Result<u64> {
    let mut sum = 0;
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        sum += match entry.file_type()?.is_dir() {
            true => 1 + kibibytes(&entry.path())?,
            false => entry.metadata()?.len().div_ceil(1024),
        };
    }
    Ok(sum)
}

/// Returns the checksums that `dpkg --verify` compares with the installed files.
fn sums(root: &Path) -> Result<String> {
    let mut sum = Command::new("find");
    sum.args([
        ".", "-path", "./DEBIAN", "-prune", "-o", "-path", "./etc", "-prune", "-o", "-type", "f",
    ]);
    sum.args(["-exec", "md5sum", "{}", "+"]).current_dir(root);
    let output = String::from_utf8(output_of(&mut sum)?)?;
    let lines: BTreeSet<String> = output.lines().map(|line| line.replace("  ./", "  ")).collect();
    Ok(lines.into_iter().map(|line| line + "\n").collect())
}

/// Returns Debian's change log, which describes the packaging. `changelog` describes the program.
pub(super) fn changelog(version: &str, epoch: u64) -> Result<String> {
    let mut date = Command::new("date");
    date.args(["--utc", "--rfc-email", "--date", &format!("@{epoch}")]);
    let date = String::from_utf8(output_of(&mut date)?)?;
    Ok(format!(
        "nvmeof-tgt ({version}) unstable; urgency=medium\n\n  * Built by cargo xtask deb; \
         changelog.gz lists the changes.\n\n -- nvmeof-tgt maintainers \
         <maintainers@nvmeof-tgt.example>  {date}"
    ))
}

/// Returns the licenses of the libraries that the programs link.
pub(super) fn licences(workspace: &Workspace) -> Result<String> {
    let mut tree = workspace.cargo(["tree", "--locked", "--edges", "normal", "--prefix", "none"]);
    tree.args([
        "--format",
        "{p}: {l}",
        "-p",
        "nvmeof-tgt",
        "-p",
        "nvmeof-ctl",
        "-p",
        "nvmeof-perf",
    ]);
    let output = String::from_utf8(output_of(&mut tree)?)?;
    let lines: BTreeSet<&str> = output
        .lines()
        .map(|line| line.trim_end_matches(" (*)"))
        // The workspace's crates have the package's own license, and their lines name this
        // checkout.
        .filter(|line| !line.is_empty() && !line.starts_with("nvmeof-"))
        .collect();
    let clean = lines.into_iter().map(|line| line.replace(" (proc-macro)", "") + "\n");
    Ok(clean.collect())
}
