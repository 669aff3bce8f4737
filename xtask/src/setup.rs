//! What each command needs from the system, why, and how a missing piece is installed.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use anyhow::{Context, Result, bail};
use nvmeof_console::{complain, say};

use crate::workspace::{Workspace, run_checked};

/// One program (or file, by its whole path) a command needs, the Debian package it comes in, and the reason said aloud.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Need {
    program: &'static str,
    package: &'static str,
    why: &'static str,
}

const fn need(program: &'static str, package: &'static str, why: &'static str) -> Need {
    Need { program, package, why }
}

/// What building the daemon and the load generator takes.
pub(crate) const BUILD: &[Need] = &[
    need("cc", "build-essential", "rustc links with it"),
    need("ld", "binutils", "rustc links with it"),
];

/// What the tests take beside the build.
pub(crate) const TEST: &[Need] = &[
    need("git", "git", "the repository checks list tracked files"),
    need(
        "/usr/include/infiniband/verbs.h",
        "libibverbs-dev",
        "RDMA's bindings are compared with it",
    ),
    need("pdftotext", "poppler-utils", "text of reports in PDF is looked at"),
    need("/usr/include/rdma/rdma_cma.h", "librdmacm-dev", "RDMA's bindings are compared with it"),
];

/// What the fuzz targets take beside the build.
pub(crate) const FUZZ: &[Need] = &[need("c++", "build-essential", "libFuzzer is C++")];

/// What counting instructions takes.
pub(crate) const INSTRUCTIONS: &[Need] =
    &[need("valgrind", "valgrind", "Callgrind counts the instructions of an I/O")];

/// What counting the lines that fuzzing reaches takes.
pub(crate) const COVERAGE: &[Need] = &[
    need("llvm-profdata-19", "llvm-19", "adds up line counts"),
    need("llvm-cov-19", "llvm-19", "prints line counts"),
];

/// What the QEMU machine takes.
pub(crate) const VM: &[Need] = &[
    need("qemu-system-x86_64", "qemu-system-x86", "the virtual machine"),
    need("busybox", "busybox-static", "the machine's first user space"),
    need("cpio", "cpio", "packs the machine's initramfs"),
    need("depmod", "kmod", "finds and loads the guest kernel's modules"),
    need("xz", "xz-utils", "unpacks the guest kernel"),
    need("zstd", "zstd", "unpacks the guest kernel"),
    need("fio", "fio", "writes and verifies data in the guest"),
    need("nvme", "nvme-cli", "the NVMe host's command line in the guest"),
    need("ip", "iproute2", "sets up the guest's network"),
    need("mkfs.ext4", "e2fsprogs", "makes a filesystem on our namespace in the guest"),
    need("blkdiscard", "util-linux", "discards blocks in the guest"),
    need("timeout", "coreutils", "bounds every part of a guest script"),
];

/// What RDMA in the QEMU machine takes beside it.
pub(crate) const VM_RDMA: &[Need] = &[
    need("rdma", "iproute2", "makes the guest's soft-RoCE device"),
    need("/etc/libibverbs.d/rxe.driver", "ibverbs-providers", "the verbs of soft-RoCE"),
    need("ibv_devinfo", "ibverbs-utils", "shows the guest's RDMA device"),
    need("rping", "rdmacm-utils", "a stranger at our RDMA listener; brings librdmacm"),
    need("/etc/rdma/modules/infiniband.conf", "rdma-core", "the user's side of RDMA"),
];

/// What a sweep over ssh takes, and its test.
pub(crate) const SSH: &[Need] = &[
    need("ssh", "openssh-client", "reaches the hosts of a sweep"),
    need("/usr/sbin/sshd", "openssh-server", "is reached, in namespaces of the test"),
    need("ip", "iproute2", "makes those namespaces"),
];

/// What looking at reports takes.
pub(crate) const BROWSER: &[Need] =
    &[need("chromium", "chromium", "opens reports as a reader does")];

/// What fuzzing the API takes.
pub(crate) const PYTHON: &[Need] =
    &[need("/usr/bin/python3", "python3-venv", "runs schemathesis, from a folder of its own")];

/// schemathesis, which fuzzes the API: this version, as another may look for other things.
const SCHEMATHESIS: &str = "schemathesis==4.32.5";

/// What packing and checking the Debian package takes.
pub(crate) const DEB: &[Need] = &[
    need("dpkg-deb", "dpkg", "packs the package"),
    need("dpkg-shlibdeps", "dpkg-dev", "finds which libraries' packages the programs need"),
    need("objdump", "binutils", "lists the symbols that the programs need of libraries"),
    need("help2man", "help2man", "makes manual pages of what the programs say of themselves"),
    need("lintian", "lintian", "checks the package against Debian's policy"),
    need("git", "git", "says when the last change was made"),
];

/// What a guest with a Debian of its own takes beside the machine.
pub(crate) const VM_ROOT: &[Need] = &[
    need("mmdebstrap", "mmdebstrap", "makes the Debian that the package is installed on"),
    need("mkfs.ext4", "e2fsprogs", "makes its disk"),
];

/// What profiles in the QEMU machine take beside that.
pub(crate) const VM_PROFILE: &[Need] = &[
    need("perf", "linux-perf", "samples what the guest runs"),
    need("strace", "strace", "counts the daemon's system calls in the guest"),
];

/// Makes sure that every program of `needs` is there, and installs the packages of those that are
/// not: it says what and why, and uses sudo where it has to.
pub(crate) fn ensure(needs: &[&[Need]]) -> Result<()> {
    let missing: Vec<Need> =
        needs.iter().flat_map(|group| group.iter()).filter(|n| !is_there(n)).copied().collect();
    if missing.is_empty() {
        return Ok(());
    }
    say!("these are missing and will be installed:");
    for need in &missing {
        say!("  {:<18} {} ({})", need.package, need.why, need.program);
    }
    let mut packages: Vec<&str> = missing.iter().map(|n| n.package).collect();
    packages.sort_unstable();
    packages.dedup();
    if program("apt-get").is_none() {
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
    match missing.iter().find(|n| !is_there(n)) {
        Some(need) => bail!("{} was installed, but `{}` is not there", need.package, need.program),
        None => Ok(()),
    }
}

/// The path of schemathesis, which is installed below the target folder where it is missing.
pub(crate) fn schemathesis(workspace: &Workspace) -> Result<PathBuf> {
    let folder = workspace.target().join("python").join(SCHEMATHESIS);
    let program = folder.join("bin/schemathesis");
    if program.is_file() {
        return Ok(program);
    }
    say!("{SCHEMATHESIS} will be installed in {}", folder.display());
    // What an earlier try left.
    let _ = std::fs::remove_dir_all(&folder);
    run_checked(Command::new("/usr/bin/python3").args(["-m", "venv"]).arg(&folder))?;
    let mut pip = Command::new(folder.join("bin/pip"));
    pip.args(["install", "--quiet", "--disable-pip-version-check", SCHEMATHESIS]);
    if let Err(error) = run_checked(&mut pip) {
        let _ = std::fs::remove_dir_all(&folder);
        return Err(error.context("installing schemathesis from PyPI"));
    }
    Ok(program)
}

/// Refreshes apt's package lists, once in the life of this process.
pub(crate) fn apt_update() -> Result<()> {
    static DONE: OnceLock<()> = OnceLock::new();
    if DONE.get().is_some() {
        return Ok(());
    }
    // A broken third-party list must not stop us where Debian's own lists are fine: what is really
    // missing shows when the install that follows fails.
    if let Err(error) = run_checked(as_root("apt-get")?.args(["update", "-q"])) {
        complain!("warning: {error:#}; going on with the package lists there are");
    }
    let _ = DONE.set(());
    Ok(())
}

/// A program's path, searched in PATH and in the administrator's folders, which an ordinary
/// user's PATH leaves out.
pub(crate) fn program(name: &str) -> Option<PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    let extra = ["/usr/local/sbin", "/usr/sbin", "/sbin"].map(PathBuf::from);
    env::split_paths(&path).chain(extra).map(|dir| dir.join(name)).find(|file| file.is_file())
}

/// A command run as root: directly where we are root, else by sudo.
fn as_root(name: &str) -> Result<Command> {
    if rustix::process::geteuid().is_root() {
        return Ok(Command::new(name));
    }
    if program("sudo").is_none() {
        bail!("installing packages takes root: run this as root, or install sudo");
    }
    let mut command = Command::new("sudo");
    // sudo drops the environment; apt must still ask no questions.
    command.args(["env", "DEBIAN_FRONTEND=noninteractive", name]);
    Ok(command)
}

fn is_there(need: &Need) -> bool {
    match program(need.program) {
        // Another package has a busybox too, one that needs shared libraries the initramfs lacks.
        Some(path) if need.package == "busybox-static" => is_static(&path),
        found => found.is_some(),
    }
}

/// Whether a program starts without a dynamic loader.
fn is_static(path: &Path) -> bool {
    let loader = b"/ld-linux";
    std::fs::read(path).is_ok_and(|bytes| !bytes.windows(loader.len()).any(|w| w == loader))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_found_or_not() {
        assert!(program("sh").is_some());
        assert!(program("a-program-nobody-has").is_none());
        assert!(program("/etc/passwd").is_some(), "a whole path is a file");
        assert!(program("/etc/a-file-nobody-has").is_none());
    }

    #[test]
    fn every_need_says_why() {
        for need in [BUILD, TEST, FUZZ, COVERAGE, INSTRUCTIONS, VM, VM_RDMA, VM_PROFILE].concat() {
            assert!(!need.why.is_empty() && !need.package.is_empty(), "{need:?}");
        }
    }

    #[test]
    fn the_shell_is_not_static() {
        let shell = program("bash").or_else(|| program("sh")).expect("a shell");
        assert!(!is_static(&shell));
    }
}
