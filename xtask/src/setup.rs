//! System requirements of each command, and their reasons.

use std::path::PathBuf;
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

/// Requirements of fuzzing the API, and of SPDK's command line.
pub(crate) const PYTHON: &[Prerequisite] = &[need(
    "/usr/bin/python3",
    "python3-venv",
    "runs schemathesis and SPDK's command line, from their own folders",
)];

/// schemathesis, which fuzzes the API: a fixed version, as another one can have other checks.
const SCHEMATHESIS: &str = "schemathesis==4.32.5";

/// SPDK's command line, which controls the daemon by JSON-RPC.
const SPDK: &str = "spdk==26.9";

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

/// Returns the path of a program of a package from PyPI; installs the package if it is missing.
fn python_program(workspace: &Workspace, package: &str, program: &str) -> Result<PathBuf> {
    let folder = workspace.target().join("python").join(package);
    let program = folder.join("bin").join(program);
    if program.is_file() {
        return Ok(program);
    }
    say!("{package} will be installed in {}", folder.display());
    // Remains of an earlier try.
    let _ = std::fs::remove_dir_all(&folder);
    run_checked(Command::new("/usr/bin/python3").args(["-m", "venv"]).arg(&folder))?;
    let mut pip = Command::new(folder.join("bin/pip"));
    pip.args(["install", "--quiet", "--disable-pip-version-check", package]);
    if let Err(error) = run_checked(&mut pip) {
        let _ = std::fs::remove_dir_all(&folder);
        return Err(error.context(format!("installing {package} from PyPI")));
    }
    Ok(program)
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
