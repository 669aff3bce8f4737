//! System requirements of each command, their reasons, and the installation of missing ones.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use anyhow::{Context, Result, bail};
use nvmeof_console::{complain, say};

use crate::workspace::{Workspace, run_checked};

/// A program (or file, by its whole path) that a command needs, its Debian package, and the reason
/// to print.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Need {
    program: &'static str,
    package: &'static str,
    why: &'static str,
}

const fn need(program: &'static str, package: &'static str, why: &'static str) -> Need {
    Need { program, package, why }
}

/// Requirements of building the daemon and the load generator.
pub(crate) const BUILD: &[Need] = &[
    need("cc", "build-essential", "rustc links with it"),
    need("ld", "binutils", "rustc links with it"),
];

/// Requirements of the tests, in addition to the build.
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

/// Requirements of the fuzz targets, in addition to the build.
pub(crate) const FUZZ: &[Need] = &[need("c++", "build-essential", "libFuzzer is C++")];

/// Requirements of counting instructions.
pub(crate) const INSTRUCTIONS: &[Need] =
    &[need("valgrind", "valgrind", "Callgrind counts the instructions of an I/O")];

/// Requirements of counting the lines that fuzzing reaches.
pub(crate) const COVERAGE: &[Need] = &[
    need("llvm-profdata-19", "llvm-19", "adds up line counts"),
    need("llvm-cov-19", "llvm-19", "prints line counts"),
];

/// Requirements of the QEMU machine.
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

/// Requirements of RDMA in the QEMU machine, in addition to it.
pub(crate) const VM_RDMA: &[Need] = &[
    need("rdma", "iproute2", "makes the guest's soft-RoCE device"),
    need("/etc/libibverbs.d/rxe.driver", "ibverbs-providers", "the verbs of soft-RoCE"),
    need("ibv_devinfo", "ibverbs-utils", "shows the guest's RDMA device"),
    need("rping", "rdmacm-utils", "a stranger at our RDMA listener; brings librdmacm"),
    need("/etc/rdma/modules/infiniband.conf", "rdma-core", "the user's side of RDMA"),
];

/// Requirements of a sweep over ssh, and of its test.
pub(crate) const SSH: &[Need] = &[
    need("ssh", "openssh-client", "reaches the hosts of a sweep"),
    need("/usr/sbin/sshd", "openssh-server", "is reached, in namespaces of the test"),
    need("ip", "iproute2", "makes those namespaces"),
];

/// Requirements of opening reports.
pub(crate) const BROWSER: &[Need] =
    &[need("chromium", "chromium", "opens reports as a reader does")];

/// Requirements of fuzzing the API.
pub(crate) const PYTHON: &[Need] =
    &[need("/usr/bin/python3", "python3-venv", "runs schemathesis, from a folder of its own")];

/// schemathesis, which fuzzes the API: a fixed version, as another one can have other checks.
const SCHEMATHESIS: &str = "schemathesis==4.32.5";

/// Requirements of packing and checking the Debian package.
pub(crate) const DEB: &[Need] = &[
    need("dpkg-deb", "dpkg", "packs the package"),
    need("dpkg-shlibdeps", "dpkg-dev", "finds which libraries' packages the programs need"),
    need("objdump", "binutils", "lists the symbols that the programs need of libraries"),
    need("help2man", "help2man", "makes manual pages of what the programs say of themselves"),
    need("lintian", "lintian", "checks the package against Debian's policy"),
    need("git", "git", "says when the last change was made"),
];

/// Requirements of a guest with its own Debian, in addition to the machine.
pub(crate) const VM_ROOT: &[Need] = &[
    need("mmdebstrap", "mmdebstrap", "makes the Debian that the package is installed on"),
    need("mkfs.ext4", "e2fsprogs", "makes its disk"),
];

/// Requirements of profiles in the QEMU machine, in addition to these.
pub(crate) const VM_PROFILE: &[Need] = &[
    need("perf", "linux-perf", "samples what the guest runs"),
    need("strace", "strace", "counts the daemon's system calls in the guest"),
];

/// Ensures that every program of `needs` exists, and installs the packages of missing ones.
///
/// It prints the package and the reason, and uses sudo if necessary.
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

/// Returns the path of schemathesis; installs it below the target folder if it is missing.
pub(crate) fn schemathesis(workspace: &Workspace) -> Result<PathBuf> {
    let folder = workspace.target().join("python").join(SCHEMATHESIS);
    let program = folder.join("bin/schemathesis");
    if program.is_file() {
        return Ok(program);
    }
    say!("{SCHEMATHESIS} will be installed in {}", folder.display());
    // Remains of an earlier try.
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

/// Refreshes apt's package lists, once per process.
pub(crate) fn apt_update() -> Result<()> {
    static DONE: OnceLock<()> = OnceLock::new();
    if DONE.get().is_some() {
        return Ok(());
    }
    // A broken third-party list must not stop xtask if Debian's own lists are fine. If a package is
    // really missing, the following install fails.
    if let Err(error) = run_checked(as_root("apt-get")?.args(["update", "-q"])) {
        complain!("warning: {error:#}; going on with the package lists there are");
    }
    let _ = DONE.set(());
    Ok(())
}

/// Returns a program's path, searched in PATH and in the administrator's folders, which an ordinary
/// user's PATH omits.
pub(crate) fn program(name: &str) -> Option<PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    let extra = ["/usr/local/sbin", "/usr/sbin", "/sbin"].map(PathBuf::from);
    env::split_paths(&path).chain(extra).map(|dir| dir.join(name)).find(|file| file.is_file())
}

/// Returns a command that runs as root: directly if xtask runs as root, otherwise by sudo.
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
        // Another package has a busybox too, which needs shared libraries that the initramfs lacks.
        Some(path) if need.package == "busybox-static" => is_static(&path),
        found => found.is_some(),
    }
}

/// Returns whether a program starts without a dynamic loader.
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
