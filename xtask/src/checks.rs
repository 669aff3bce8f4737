//! Checks of the repository itself.
//!
//! They verify that the build includes every file and that no path names one machine. `unsafe`
//! stays in its modules, every dependency is documented, and every command in docs/ is run. Prose
//! uses the field's words.

mod dependencies;
mod docs;
mod prose;
mod source;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use nvmeof_workspace::checkout::{Workspace, output_of};

/// Files that are allowed `unsafe`: memory shared with devices, rings shared with the kernel, raw
/// system calls. All other code is safe.
const UNSAFE_FENCE: &[&str] = &[
    "crates/allocations/",
    "crates/core/examples/vfio_probe.rs",
    "crates/core/src/dma/",
    "crates/core/src/block/file/ring.rs",
    "crates/core/src/block/ram/memory.rs",
    "crates/core/src/nvme_driver/buffers.rs",
    "crates/core/src/nvme_driver/pooled.rs",
    "crates/core/src/nvme_driver/memory.rs",
    "crates/core/src/nvme_driver/function.rs",
    "crates/core/src/vfio/bar.rs",
    "crates/core/src/vfio/container.rs",
    "crates/core/src/vfio/sys.rs",
    "crates/initiator/src/rdma/post.rs",
    "crates/testing/fake-drive/src/memory.rs",
    "crates/transport/benches/socket_engine.rs",
    "crates/transport/src/rdma/post.rs",
    "crates/transport/src/rdma/tests/instant.rs",
    "crates/transport/src/rdma/tests/memory.rs",
    "crates/transport/src/tcp/sys.rs",
    "crates/verbs/examples/ping/checks.rs",
    "crates/verbs/src/provider.rs",
    "crates/verbs/src/ffi/",
    "crates/verbs/src/system/",
    "crates/testing/loopback-verbs/src/memory.rs",
    "crates/testing/loopback-verbs/src/provider.rs",
    "crates/testing/verbs-conformance/src/rig.rs",
];

/// Lines of a source file.
const LINES: usize = 800;

/// Members whose manifest must reach every file.
const COMPLETE_MEMBERS: &[&str] = &["benches", "tests"];
/// Exception: the files that `cargo xtask bench instructions` reads and writes.
const READ_BY_XTASK: &str = "benches/baseline";

/// Runs every check and returns one line per finding.
pub(crate) fn run(workspace: &Workspace) -> Result<Vec<String>> {
    let files = tracked_files(workspace.root())?;
    let mut findings = Vec::new();
    for file in &files {
        // Skip links and files that are being removed.
        let Ok(text) = fs::read_to_string(workspace.root().join(file)) else { continue };
        findings.extend(machine_paths(file, &text, workspace.root()));
        if file.ends_with(".rs") {
            findings.extend(stray_unsafe(file, &text));
            findings.extend(ignored_tests(file, &text));
            findings.extend(too_long(file, &text));
        }
    }
    findings.extend(dependencies::findings(workspace.root(), &files)?);
    findings.extend(docs::findings(workspace.root(), &files)?);
    findings.extend(prose::findings(workspace.root(), &files)?);
    let roots = target_roots(workspace)?;
    for member in COMPLETE_MEMBERS {
        let reached = reach(workspace.root(), member, &roots)?;
        findings.extend(files.iter().filter(|file| is_below(file, member)).filter_map(|file| {
            let gone = !workspace.root().join(file).is_file();
            let ours = is_below(file, READ_BY_XTASK);
            (!gone && !ours && !reached.contains(Path::new(file)))
                .then(|| format!("{file}: no target of {member}/Cargo.toml reaches this file"))
        }));
    }
    Ok(findings)
}

/// Lists the commands of the operator's pages that a test runs, and those that none runs.
pub(crate) fn commands_in_docs(workspace: &Workspace) -> Result<String> {
    docs::report(workspace.root(), &tracked_files(workspace.root())?)
}

/// Returns every file that git tracks or would add, so that a new file is checked before it is
/// committed.
fn tracked_files(root: &Path) -> Result<Vec<String>> {
    let mut git = Command::new("git");
    git.args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"]).current_dir(root);
    let output = String::from_utf8(output_of(&mut git)?)?;
    Ok(output.split('\0').filter(|name| !name.is_empty()).map(str::to_owned).collect())
}

fn is_below(file: &str, folder: &str) -> bool {
    file.strip_prefix(folder).is_some_and(|rest| rest.starts_with('/'))
}

/// Finds lines that name a path of one machine: a home folder, or this checkout.
fn machine_paths(file: &str, text: &str, root: &Path) -> Vec<String> {
    // In pieces, or the check would find this file.
    let mut patterns: Vec<String> =
        ["home", "root", "Users", "work"].iter().map(|folder| format!("/{folder}/")).collect();
    // A checkout directly below `/` is skipped: its path is like ordinary ones.
    if root.components().count() > 2 {
        patterns.push(root.display().to_string());
    }
    let mut findings = Vec::new();
    for (number, line) in text.lines().enumerate() {
        if let Some(pattern) = patterns.iter().find(|pattern| starts_path(line, pattern)) {
            findings.push(format!("{file}:{}: names a machine's own path ({pattern})", number + 1));
        }
    }
    findings
}

/// Returns whether a line has `pattern` at the start of a path, not inside one or in an address.
fn starts_path(line: &str, pattern: &str) -> bool {
    line.match_indices(pattern).any(|(at, _)| {
        let before = line[..at].chars().next_back();
        !before.is_some_and(|c| c.is_alphanumeric() || "._-/~})*".contains(c))
    })
}

fn stray_unsafe(file: &str, text: &str) -> Vec<String> {
    if UNSAFE_FENCE.iter().any(|fence| file.starts_with(fence)) {
        return Vec::new();
    }
    let code = source::without_comments_and_strings(text);
    let lines = code.lines().enumerate().filter(|(_, line)| source::has_word(line, "unsafe"));
    lines
        .map(|(number, _)| format!("{file}:{}: unsafe code outside of the fence", number + 1))
        .collect()
}

/// Files that are too long to hold one concept.
fn too_long(file: &str, text: &str) -> Option<String> {
    let lines = text.lines().count();
    (lines > LINES)
        .then(|| format!("{file}: {lines} lines, more than {LINES}: split the file by meaning"))
}

fn ignored_tests(file: &str, text: &str) -> Vec<String> {
    let code = source::without_comments_and_strings(text);
    let lines =
        code.lines().enumerate().filter(|(_, line)| line.trim_start().starts_with("#[ignore"));
    lines.map(|(number, _)| format!("{file}:{}: an ignored test", number + 1)).collect()
}

/// Returns the root source file of every cargo target, named in a manifest or found by its path.
fn target_roots(workspace: &Workspace) -> Result<Vec<PathBuf>> {
    let mut metadata = workspace.cargo(["metadata", "--no-deps", "--format-version", "1"]);
    let text = String::from_utf8(output_of(&mut metadata)?)?;
    let key = "\"src_path\":\"";
    let roots = text.split(key).skip(1).filter_map(|rest| rest.split('"').next());
    roots
        .map(|path| {
            let path = Path::new(path);
            let inside = path.strip_prefix(workspace.root()).with_context(|| {
                format!("cargo names a target outside of the checkout: {}", path.display())
            })?;
            Ok(inside.to_path_buf())
        })
        .collect()
}

/// Returns the files of a member that its manifest, its targets, their modules or their includes
/// reach.
fn reach(root: &Path, member: &str, roots: &[PathBuf]) -> Result<BTreeSet<PathBuf>> {
    let mut reached = BTreeSet::from([Path::new(member).join("Cargo.toml")]);
    let mut waiting: Vec<(PathBuf, bool)> = roots
        .iter()
        .filter(|path| path.starts_with(member))
        .map(|path| (path.clone(), true))
        .collect();
    while let Some((file, is_root)) = waiting.pop() {
        if !reached.insert(file.clone()) || file.extension().is_none_or(|ext| ext != "rs") {
            continue;
        }
        let text = fs::read_to_string(root.join(&file))
            .with_context(|| format!("cannot read {}", file.display()))?;
        for next in source::references(&file, is_root, &text) {
            if root.join(&next).is_file() {
                waiting.push((next, false));
            }
        }
    }
    Ok(reached)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_home_folder_is_found_and_an_address_is_not() {
        let root = Path::new("/srv/checkouts/one");
        let own = format!("see {}{}", "/ho", "me/someone/notes");
        assert_eq!(machine_paths("a", &own, root).len(), 1);
        assert_eq!(machine_paths("a", "in /srv/checkouts/one/target", root).len(), 1);
        let address = format!("https://example.org{}{}", "/ho", "me/x");
        assert!(machine_paths("a", &address, root).is_empty());
        assert!(machine_paths("a", "let rate = work / root;", root).is_empty());
    }

    #[test]
    fn unsafe_code_is_found_outside_of_the_fence_only() {
        let code = "fn f() { unsafe { g() } }\n";
        assert_eq!(stray_unsafe("crates/wire/src/lib.rs", code).len(), 1);
        assert!(stray_unsafe("crates/core/src/dma/chunk.rs", code).is_empty());
        let harmless = "#![forbid(unsafe_code)] // no unsafe here\nconst T: &str = \"unsafe\";\n";
        assert!(stray_unsafe("crates/wire/src/lib.rs", harmless).is_empty());
    }

    #[test]
    fn an_ignored_test_is_found() {
        assert_eq!(ignored_tests("a.rs", "#[test]\n#[ignore]\nfn a() {}\n").len(), 1);
        assert_eq!(ignored_tests("a.rs", "    #[ignore = \"slow\"]\n").len(), 1);
    }

    #[test]
    fn a_file_no_module_names_is_not_reached() {
        let folder = tempfile::tempdir().expect("a folder");
        let write = |name: &str, text: &str| {
            let path = folder.path().join(name);
            fs::create_dir_all(path.parent().expect("a parent")).expect("folders");
            fs::write(path, text).expect("a file");
        };
        write("tests/it/main.rs", "mod a;\n#[path = \"odd/place.rs\"]\nmod b;\n");
        write("tests/it/a.rs", "mod deep;\nconst D: &str = include_str!(\"data.txt\");\n");
        write("tests/it/a/deep.rs", "");
        write("tests/it/odd/place.rs", "");
        write("tests/it/data.txt", "");
        write("tests/it/forgotten.rs", "");
        let roots = [PathBuf::from("tests/it/main.rs"), PathBuf::from("benches/x.rs")];
        let reached = reach(folder.path(), "tests", &roots).expect("files");
        for name in ["it/main.rs", "it/a.rs", "it/a/deep.rs", "it/odd/place.rs", "it/data.txt"] {
            assert!(reached.contains(&Path::new("tests").join(name)), "{name}: {reached:?}");
        }
        assert!(!reached.contains(Path::new("tests/it/forgotten.rs")));
    }
}
