//! System requirements of each command, and their reasons.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Result;
use nvmeof_console::say;
use nvmeof_workspace::checkout::{Workspace, run_checked};
use nvmeof_workspace::prerequisites::Prerequisite;
pub(crate) use nvmeof_workspace::prerequisites::{BUILD, apt_update, ensure, find_program};

const fn need(program: &'static str, package: &'static str, reason: &'static str) -> Prerequisite {
    Prerequisite::new(program, package, reason)
}

/// Requirements of the tests, in addition to the build.
pub(crate) const TEST: &[Prerequisite] = &[
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
pub(crate) const FUZZ: &[Prerequisite] = &[need("c++", "build-essential", "libFuzzer is C++")];

/// Requirements of counting the lines that fuzzing reaches.
pub(crate) const COVERAGE: &[Prerequisite] = &[
    need("llvm-profdata-19", "llvm-19", "adds up line counts"),
    need("llvm-cov-19", "llvm-19", "prints line counts"),
];

/// Requirements of the QEMU machine.
pub(crate) const VM: &[Prerequisite] = &[
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
pub(crate) const VM_RDMA: &[Prerequisite] = &[
    need("rdma", "iproute2", "makes the guest's soft-RoCE device"),
    need("/etc/libibverbs.d/rxe.driver", "ibverbs-providers", "the verbs of soft-RoCE"),
    need("ibv_devinfo", "ibverbs-utils", "shows the guest's RDMA device"),
    need("rping", "rdmacm-utils", "a stranger at our RDMA listener; brings librdmacm"),
    need("/etc/rdma/modules/infiniband.conf", "rdma-core", "the user's side of RDMA"),
];

/// Requirements of a sweep over ssh, and of its test.
pub(crate) const SSH: &[Prerequisite] = &[
    need("ssh", "openssh-client", "reaches the hosts of a sweep"),
    need("/usr/sbin/sshd", "openssh-server", "is reached, in namespaces of the test"),
    need("ip", "iproute2", "makes those namespaces"),
];

/// Requirements of opening reports.
pub(crate) const BROWSER: &[Prerequisite] =
    &[need("chromium", "chromium", "opens reports as a reader does")];

/// Requirements of fuzzing the API, of SPDK's command line, and of an RDMA host in the guest.
pub(crate) const PYTHON: &[Prerequisite] = &[need(
    "/usr/bin/python3",
    "python3-venv",
    "runs programs of PyPI from their own folders, and an RDMA host in the guest",
)];

/// schemathesis, which fuzzes the API: a fixed version, as another one can have other checks.
const SCHEMATHESIS: &str = "schemathesis==4.32.5";

/// SPDK's command line, which controls the daemon by JSON-RPC.
const SPDK: &str = "spdk==26.9";

/// An NVMe/RDMA host in Python, for the guest, and the verbs on which it depends.
const NVMEOF: [&str; 2] = ["nvmeof==2026.10.22", "ibverbs==2026.10.22"];

/// Requirements of packing and checking the Debian package.
pub(crate) const DEB: &[Prerequisite] = &[
    need("dpkg-deb", "dpkg", "packs the package"),
    need("dpkg-shlibdeps", "dpkg-dev", "finds which libraries' packages the programs need"),
    need("objdump", "binutils", "lists the symbols that the programs need of libraries"),
    need("help2man", "help2man", "makes manual pages of what the programs say of themselves"),
    need("lintian", "lintian", "checks the package against Debian's policy"),
    need("git", "git", "says when the last change was made"),
];

/// Requirements of a guest with its own Debian or another kernel, in addition to the machine.
pub(crate) const VM_ROOT: &[Prerequisite] = &[
    need("mmdebstrap", "mmdebstrap", "makes that Debian, and finds the archives of the kernel"),
    need("mkfs.ext4", "e2fsprogs", "makes its disk"),
];

/// Requirements of profiles in the QEMU machine, in addition to these.
pub(crate) const VM_PROFILE: &[Prerequisite] = &[
    need("perf", "linux-perf", "samples what the guest runs"),
    need("strace", "strace", "counts the daemon's system calls in the guest"),
];

/// Returns the path of schemathesis; installs it below the target folder if it is missing.
pub(crate) fn schemathesis(workspace: &Workspace) -> Result<PathBuf> {
    python_program(workspace, SCHEMATHESIS, "schemathesis")
}

/// Returns the path of SPDK's command line; installs it below the target folder if it is missing.
pub(crate) fn spdk_rpc(workspace: &Workspace) -> Result<PathBuf> {
    python_program(workspace, SPDK, "spdk-rpc")
}

/// Returns the folder of the wheels of `nvmeof`; downloads them if they are missing.
pub(crate) fn nvmeof_wheels(workspace: &Workspace) -> Result<PathBuf> {
    let folder = workspace.target().join("python").join(NVMEOF[0]);
    let wheels = folder.join("wheels");
    if wheels.is_dir() {
        return Ok(wheels);
    }
    // An interrupted download keeps this name.
    let partial = folder.join("partial");
    let mut words =
        ["download", "--only-binary=:all:", "--no-deps", "--dest"].map(OsStr::new).to_vec();
    words.push(partial.as_os_str());
    words.extend(NVMEOF.map(OsStr::new));
    run_pip(&folder, NVMEOF[0], &words)?;
    std::fs::rename(&partial, &wheels)?;
    Ok(wheels)
}

/// Returns the path of a program of a package from PyPI; installs the package if it is missing.
fn python_program(workspace: &Workspace, package: &str, program: &str) -> Result<PathBuf> {
    let folder = workspace.target().join("python").join(package);
    let program = folder.join("bin").join(program);
    if !program.is_file() {
        run_pip(&folder, package, &["install", package].map(OsStr::new))?;
    }
    Ok(program)
}

/// Runs pip in a fresh Python environment for a package; removes its folder if that fails.
fn run_pip(folder: &Path, package: &str, words: &[&OsStr]) -> Result<()> {
    say!("{package} will be installed in {}", folder.display());
    // Remains of an earlier try.
    let _ = std::fs::remove_dir_all(folder);
    run_checked(Command::new("/usr/bin/python3").args(["-m", "venv"]).arg(folder))?;
    let mut pip = Command::new(folder.join("bin/pip"));
    pip.args(["--quiet", "--disable-pip-version-check"]).args(words);
    run_checked(&mut pip).map_err(|error| {
        let _ = std::fs::remove_dir_all(folder);
        error.context(format!("installing {package} from PyPI"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_need_says_why() {
        for need in
            [TEST, FUZZ, COVERAGE, VM, VM_RDMA, SSH, BROWSER, PYTHON, DEB, VM_ROOT, VM_PROFILE]
                .concat()
        {
            assert!(need.is_complete(), "{need:?}");
        }
    }
}
