//! Determines the commit of the checkout, again whenever a source file or the checkout changes.

use std::process::Command;

/// Everything that a program is built from, below the root.
const SOURCES: [&str; 3] = ["crates", "Cargo.toml", "Cargo.lock"];

fn main() {
    for source in SOURCES {
        println!("cargo::rerun-if-changed=../../{source}");
    }
    // The checkout's position, and its history, which gets a line with every commit.
    for file in ["HEAD", "logs/HEAD"] {
        if let Some(path) = git(&["rev-parse", "--path-format=absolute", "--git-path", file]) {
            println!("cargo::rerun-if-changed={path}");
        }
    }
    println!("cargo::rustc-env=NVMEOF_COMMIT={}", commit());
}

/// Returns the short name of the commit, with "dirty" if the sources differ from it.
fn commit() -> String {
    let Some(commit) = git(&["rev-parse", "--short=12", "HEAD"]) else {
        return "unknown".to_owned();
    };
    let mut status = vec!["--no-optional-locks", "-C", "../..", "status", "--porcelain", "--"];
    status.extend(SOURCES);
    match git(&status) {
        Some(changes) if changes.is_empty() => commit,
        _ => format!("{commit}, dirty"),
    }
}

/// Returns the output of git; `None` without git or outside of a checkout.
fn git(args: &[&str]) -> Option<String> {
    let output = Command::new("git").args(args).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    output.status.success().then(|| text.trim().to_owned())
}
