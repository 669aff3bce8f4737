//! Commands of the operator's pages that need a daemon alone, run unchanged.
//!
//! These are the blocks marked `sh daemon`, in their order, in one shell per page. Their output
//! must contain the content of `text` blocks, and config blocks must be valid.

use std::fs::{File, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Command;

use nvmeof_tests::config::{api, listener, small};
use nvmeof_tests::{Daemon, build};

/// The pages; a check of the repository reads this line, too.
const PAGES: &[&str] = &["control.md", "observe.md", "tenants.md"];

/// A block of a page: its line, its info string, and its text.
#[derive(Debug)]
struct Block {
    line: usize,
    info: String,
    text: String,
}

fn blocks(page: &str) -> Vec<Block> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs").join(page);
    let text = std::fs::read_to_string(&path).expect(page);
    let mut all = Vec::new();
    let mut open: Option<Block> = None;
    for (index, line) in text.lines().enumerate() {
        match (line.strip_prefix("```"), &mut open) {
            (Some(_), Some(_)) => all.extend(open.take()),
            (Some(info), None) => {
                let info = info.trim().to_owned();
                open = Some(Block { line: index + 1, info, text: String::new() });
            }
            (None, Some(block)) => block.text.extend([line, "\n"]),
            (None, None) => {}
        }
    }
    assert!(open.is_none(), "{page}: a block without an end");
    all
}

/// Returns all blocks of one kind, in their order.
fn holding<'b>(blocks: &'b [Block], info: &str) -> Vec<&'b Block> {
    blocks.iter().filter(|block| block.info == info).collect()
}

#[test]
fn commands_of_the_pages_do_what_the_pages_say() {
    for page in PAGES {
        let blocks = blocks(page);
        // A page with a config of a whole target is tested on that target.
        let shown: String =
            holding(&blocks, "toml").iter().map(|block| block.text.as_str()).collect();
        let config = match shown.contains("[[subsystem]]") {
            true => listener("127.0.0.1") + &shown,
            false => small(),
        };
        let daemon = Daemon::start(&(config + &api()));
        let folder = daemon.folder();
        let disks = ["sdb", "sdc"].map(|name| folder.join(name));
        for disk in &disks {
            File::create(disk).and_then(|disk| disk.set_len(1 << 30)).expect("a disk");
        }
        let commands = holding(&blocks, "sh daemon");
        assert!(!commands.is_empty(), "{page}");
        let mut script = String::from("set -euo pipefail\nexec 2>&1\n");
        for Block { line, text, .. } in commands {
            script.push_str(&format!("echo '== docs/{page}:{line}'\n{text}"));
        }
        for (name, disk) in ["/dev/sdb", "/dev/sdc"].into_iter().zip(&disks) {
            script = script.replace(name, &disk.display().to_string());
        }
        let script = script.replace("/run/nvmeof-tgt/api.sock", "api.sock");
        let programs = build::control().parent().expect("its folder").display().to_string();
        let path = std::env::var("PATH").unwrap_or_default();
        let mut shell = Command::new("bash");
        shell.arg("-c").arg(&script).current_dir(folder);
        shell.env("PATH", format!("{programs}:{path}")).env("NVMEOFCTL_API", "unix:api.sock");
        let output = shell.output().expect("a shell");
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success(), "{page}: {}\n{said}", output.status);
        for line in holding(&blocks, "text").iter().flat_map(|block| block.text.lines()) {
            assert!(said.contains(line), "{page}: nothing says\n{line}\nin\n{said}");
        }
    }
}

#[test]
fn configs_of_the_pages_are_taken() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("target.toml");
    let token = folder.path().join("token");
    std::fs::write(&token, "0123456789abcdef\n").expect("a token");
    std::fs::set_permissions(&token, Permissions::from_mode(0o600)).expect("its mode");
    for page in PAGES {
        for Block { line, text, .. } in holding(&blocks(page), "toml") {
            let around =
                if text.contains("[[subsystem]]") { listener("127.0.0.1") } else { small() };
            let text = text.replace("/etc/nvmeof-tgt/token", &token.display().to_string());
            std::fs::write(&file, around + &text).expect("a config");
            let mut check = Command::new(build::target_daemon());
            let output = check.arg("--config").arg(&file).arg("--check").output().expect("it runs");
            let error = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success(), "docs/{page}:{line}: {error}");
        }
    }
}
