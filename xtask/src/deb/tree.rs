//! Layout of the package's files.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use nvmeof_workspace::checkout::{Workspace, output_of, run_checked};

use super::{PROGRAMS, fields, gzip};

/// Folder of the package's documents.
const DOC: &str = "usr/share/doc/nvmeof-tgt";
/// Size from which files are compressed, by Debian's policy.
const PACKED_FROM: u64 = 4096;

/// Files copied unchanged: path in the checkout, path in the package.
const FILES: &[(&str, &str)] = &[
    ("packaging/nvmeof-tgt.service", "usr/lib/systemd/system/nvmeof-tgt.service"),
    ("packaging/nvmeof-tgt-drive@.service", "usr/lib/systemd/system/nvmeof-tgt-drive@.service"),
    ("packaging/sysusers.conf", "usr/lib/sysusers.d/nvmeof-tgt.conf"),
    ("packaging/target.toml", "etc/nvmeof-tgt/target.toml"),
    ("packaging/debian/copyright", "usr/share/doc/nvmeof-tgt/copyright"),
    ("packaging/lintian-overrides", "usr/share/lintian/overrides/nvmeof-tgt"),
    ("configs/target.toml", "usr/share/doc/nvmeof-tgt/examples/target.toml"),
    ("configs/drive.toml", "usr/share/doc/nvmeof-tgt/examples/drive.toml"),
];

/// Manual pages generated from a program's own help: name, command line, section.
const MANUALS: &[(&str, &[&str], &str)] =
    &[("nvmeof-tgt", &[], "8"), ("nvmeof-tgt-drives", &["drives"], "8"), ("nvmeof-perf", &[], "1")];

/// Lays the package's files out below `root`.
pub(super) fn lay_out(workspace: &Workspace, root: &Path, version: &str, epoch: u64) -> Result<()> {
    for program in PROGRAMS {
        let from = workspace.release_binary(program);
        ensure!(from.is_file(), "{} is not built: run without --no-build", from.display());
        let to = root.join("usr/bin").join(program);
        copy(&from, &to, 0o755)?;
        let mut strip = Command::new("strip");
        strip.args(["--strip-unneeded", "--remove-section=.comment", "--remove-section=.note"]);
        run_checked(strip.arg(&to))?;
    }
    for (from, to) in FILES {
        copy(&workspace.root().join(from), &root.join(to), 0o644)?;
    }
    documents(workspace, root)?;
    let licences = root.join(DOC).join("dependencies.txt");
    fs::write(&licences, fields::licences(workspace)?)?;
    gzip(&licences)?;
    let changes = root.join(DOC).join("changelog.Debian");
    fs::write(&changes, fields::changelog(version, epoch)?)?;
    gzip(&changes)?;
    let changes = root.join(DOC).join("changelog");
    copy(&workspace.root().join("CHANGELOG.md"), &changes, 0o644)?;
    gzip(&changes)?;
    completions(root)?;
    manuals(root, epoch)
}

/// Copies the operator's pages and the pictures they show.
fn documents(workspace: &Workspace, root: &Path) -> Result<()> {
    let docs = workspace.root().join("docs");
    for entry in fs::read_dir(&docs)? {
        let from = entry?.path();
        if from.extension().is_none_or(|kind| kind != "md") {
            continue;
        }
        let name = from.file_name().context("a page without a name")?;
        let to = root.join(DOC).join(name);
        copy(&from, &to, 0o644)?;
        // The index stays uncompressed and readable.
        if fs::metadata(&to)?.len() >= PACKED_FROM && name != "README.md" {
            gzip(&to)?;
        }
    }
    Ok(())
}

/// Writes the shell completions of `nvmeofctl`, which prints them.
fn completions(root: &Path) -> Result<()> {
    for (shell, to) in [
        ("bash", "usr/share/bash-completion/completions/nvmeofctl"),
        ("zsh", "usr/share/zsh/vendor-completions/_nvmeofctl"),
        ("fish", "usr/share/fish/vendor_completions.d/nvmeofctl.fish"),
    ] {
        let mut say = Command::new(root.join("usr/bin/nvmeofctl"));
        let text = output_of(say.args(["completion", shell]))?;
        let to = root.join(to);
        fs::create_dir_all(to.parent().context("a file has a folder")?)?;
        fs::write(to, text)?;
    }
    Ok(())
}

fn manuals(root: &Path, epoch: u64) -> Result<()> {
    let folder = root.join("../manuals");
    fs::create_dir_all(&folder)?;
    for (name, words, section) in MANUALS {
        let program = root.join("usr/bin").join(words.first().map_or(*name, |_| "nvmeof-tgt"));
        // A page has the name of the program from which it was generated.
        let words_of = folder.join(name);
        let line = format!("#!/bin/sh\nexec {} {} \"$@\"\n", program.display(), words.join(" "));
        write_program(&words_of, &line)?;
        let to = manual(root, name, section)?;
        let mut make = Command::new("help2man");
        make.args(["--no-info", "--section", section]).arg("--output").arg(&to);
        make.args(["--version-string", env!("CARGO_PKG_VERSION"), "--name"]);
        make.arg(about(&words_of)?).arg(&words_of).env("SOURCE_DATE_EPOCH", epoch.to_string());
        run_checked(&mut make)?;
        gzip(&to)?;
    }
    // `nvmeofctl` writes its own pages, one per command.
    let folder = root.join("usr/share/man/man1");
    fs::create_dir_all(&folder)?;
    run_checked(Command::new(root.join("usr/bin/nvmeofctl")).arg("man").arg(&folder))?;
    for entry in fs::read_dir(&folder)? {
        let page = entry?.path();
        if page.extension().is_some_and(|kind| kind != "gz") {
            gzip(&page)?;
        }
    }
    Ok(())
}

/// Returns the first line of a program's help, without its full stop.
fn about(program: &Path) -> Result<String> {
    let help = String::from_utf8(output_of(Command::new(program).arg("--help"))?)?;
    let line = help.lines().next().context("a program says what it is")?;
    Ok(line.trim_end_matches('.').to_owned())
}

fn manual(root: &Path, name: &str, section: &str) -> Result<std::path::PathBuf> {
    let folder = root.join(format!("usr/share/man/man{section}"));
    fs::create_dir_all(&folder)?;
    Ok(folder.join(format!("{name}.{section}")))
}

fn write_program(path: &Path, text: &str) -> Result<()> {
    fs::write(path, text)?;
    fs::set_permissions(path, fs::Permissions::from_mode(0o755))?;
    Ok(())
}

fn copy(from: &Path, to: &Path, mode: u32) -> Result<()> {
    let folder = to.parent().context("a file has a folder")?;
    fs::create_dir_all(folder)?;
    fs::copy(from, to).with_context(|| format!("cannot copy {}", from.display()))?;
    fs::set_permissions(to, fs::Permissions::from_mode(mode))?;
    Ok(())
}
