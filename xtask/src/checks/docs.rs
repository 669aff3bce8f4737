//! Commands in the operator's pages, which are the pages that docs/README.md links.
//!
//! Every block of commands is run by a script of the guest or by a test on a daemon alone.
//! Otherwise it must be listed as hardware-dependent.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};

/// Words after `sh` of blocks that no test runs: they need a network card.
const HARDWARE: &[&str] = &["nic"];

/// Word of blocks that need a daemon alone, and the test that names the pages whose blocks it runs.
const DAEMON: &str = "daemon";
const DAEMON_TEST: &str = "tests/tests/system/docs.rs";

/// A block of a page.
#[derive(Debug, PartialEq, Eq)]
struct CommandBlock<'a> {
    /// Line of its opening fence.
    line: usize,
    /// Info string of the fence: `sh`, `sh rdma`, `toml`, or nothing.
    info: &'a str,
}

/// Finds blocks of commands that no test runs, and fences without an info string.
pub(super) fn findings(root: &Path, files: &[String]) -> Result<Vec<String>> {
    let run = calls(root, files)?;
    let mut findings = Vec::new();
    for (page, text) in pages(root, files)? {
        let blocks = blocks(&text);
        if !blocks.iter().any(|block| word(block).is_some()) {
            continue;
        }
        for block in &blocks {
            let at = format!("docs/{page}:{}", block.line);
            match word(block) {
                Some(word) if HARDWARE.contains(&word) => {}
                Some(word) if run.contains(&(page.clone(), word.to_owned())) => {}
                Some(_) => findings.push(format!(
                    "{at}: no script of xtask/vm and no test runs this block ({})",
                    block.info
                )),
                None if block.info.is_empty() => {
                    findings.push(format!("{at}: a block without a language"));
                }
                None => {}
            }
        }
    }
    Ok(findings)
}

/// Lists the blocks that no test runs, one per line, and counts those that are run.
pub(crate) fn report(root: &Path, files: &[String]) -> Result<String> {
    let (mut run, mut on_daemon, mut text) = (0, 0, String::new());
    for (page, content) in pages(root, files)? {
        for block in blocks(&content) {
            match word(&block) {
                Some(word) if HARDWARE.contains(&word) => {
                    text.push_str(&format!(
                        "  docs/{page}:{} needs hardware ({word})\n",
                        block.line
                    ));
                }
                Some(DAEMON) => on_daemon += 1,
                Some(_) => run += 1,
                None => {}
            }
        }
    }
    Ok(format!(
        "{run} blocks of commands in docs/ are run in the guest, {on_daemon} on a daemon alone, {} are not:\n{text}",
        text.lines().count()
    ))
}

/// The index of the operator's pages.
const INDEX: &str = "docs/README.md";

/// Returns the pages of docs/ that the index links, with their texts.
fn pages(root: &Path, files: &[String]) -> Result<Vec<(String, String)>> {
    let index = fs::read_to_string(root.join(INDEX)).unwrap_or_default();
    let names = files.iter().filter_map(|file| file.strip_prefix("docs/"));
    let names = names.filter(|name| index.contains(&format!("]({name})")));
    let read = |name: &str| {
        let path = root.join("docs").join(name);
        fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))
    };
    names
        .filter(|name| root.join("docs").join(name).is_file())
        .map(|name| Ok((name.to_owned(), read(name)?)))
        .collect()
}

/// Returns pages and words that the guest's scripts run with `run_page PAGE [WORD]`, and those of
/// the test on a daemon alone.
fn calls(root: &Path, files: &[String]) -> Result<Vec<(String, String)>> {
    let mut calls = Vec::new();
    for file in files.iter().filter(|file| file.starts_with("xtask/vm/") && file.ends_with(".sh")) {
        let Ok(text) = fs::read_to_string(root.join(file)) else { continue };
        for line in text.lines() {
            let mut words = line.split_whitespace();
            if words.next() == Some("run_page") {
                let page = words.next().unwrap_or_default().to_owned();
                // The next word can also be a pipe.
                let word = words.next().filter(|word| word.starts_with(char::is_alphabetic));
                calls.push((page, word.unwrap_or_default().to_owned()));
            }
        }
    }
    let test = fs::read_to_string(root.join(DAEMON_TEST)).unwrap_or_default();
    let named = test.lines().find(|line| line.starts_with("const PAGES")).unwrap_or_default();
    let named = named.split('"').filter(|name| name.ends_with(".md"));
    calls.extend(named.map(|page| (page.to_owned(), DAEMON.to_owned())));
    Ok(calls)
}

/// Returns the word of a block of commands; empty for a plain `sh`.
fn word<'a>(block: &CommandBlock<'a>) -> Option<&'a str> {
    let rest = block.info.strip_prefix("sh")?;
    (rest.is_empty() || rest.starts_with(' ')).then(|| rest.trim())
}

fn blocks(text: &str) -> Vec<CommandBlock<'_>> {
    let mut blocks = Vec::new();
    let mut inside = false;
    for (number, line) in text.lines().enumerate() {
        let Some(info) = line.strip_prefix("```") else { continue };
        if !inside {
            blocks.push(CommandBlock { line: number + 1, info: info.trim() });
        }
        inside = !inside;
    }
    blocks
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: &str = "a\n```sh\nls\n```\n```sh nic\nip\n```\n```toml\n```\n```sh later\nx\n```\n";

    #[test]
    fn blocks_and_their_words() {
        let found = blocks(PAGE);
        let words: Vec<_> = found.iter().map(|block| (block.line, word(block))).collect();
        assert_eq!(words, [(2, Some("")), (5, Some("nic")), (8, None), (10, Some("later"))]);
        assert_eq!(word(&CommandBlock { line: 1, info: "shell" }), None);
    }

    #[test]
    fn a_block_that_nobody_runs_is_found() {
        let folder = tempfile::tempdir().expect("a folder");
        let put = |name: &str, text: &str| {
            let path = folder.path().join(name);
            fs::create_dir_all(path.parent().expect("a folder")).expect("folders");
            fs::write(path, text).expect("a file");
            name.to_owned()
        };
        let page = put("docs/a.md", PAGE);
        let bare = put("docs/b.md", "```sh\nls\n```\n```\nwhat\n```\n");
        let none = put("docs/c.md", "```\nno commands here\n```\n");
        // A page that the index does not name is not the operator's.
        put("docs/README.md", "[a](a.md) [b](b.md) [c](c.md) [e](e.md) [f](f.md)");
        let other = put("docs/d.md", PAGE);
        let alone = put("docs/e.md", "```sh daemon\nls\n```\n");
        let not_named = put("docs/f.md", "```sh daemon\nls\n```\n");
        let test = put(DAEMON_TEST, "const PAGES: &[&str] = &[\"e.md\"];\n");
        let script =
            put("xtask/vm/x.sh", "part_a() {\n    run_page a.md\n    run_page b.md | tee log\n}\n");
        let files = [page, bare, none, other, alone, not_named, test, script];
        let found = findings(folder.path(), &files).expect("read");
        assert_eq!(found.len(), 3, "{found:?}");
        assert!(found[0].starts_with("docs/a.md:10: no script"), "{found:?}");
        assert!(found[1].starts_with("docs/b.md:4: a block without a language"), "{found:?}");
        assert!(found[2].starts_with("docs/f.md:1: no script"), "{found:?}");
        let text = report(folder.path(), &files).expect("read");
        assert!(
            text.starts_with(
                "3 blocks of commands in docs/ are run in the guest, 2 on a daemon alone, 1 are not:\n"
            ),
            "{text}"
        );
        assert!(text.contains("docs/a.md:5 needs hardware (nic)"), "{text}");
    }
}
