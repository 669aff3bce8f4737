//! The guest's first user space: busybox and the few modules that reach the host's files.

use std::fs;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};

use super::kernel::{self, GuestKernel};
use crate::setup;

/// Modules that `init` loads before it can mount anything.
const MODULES: &[&str] = &["virtio_pci", "9pnet_virtio", "9p", "overlay", "virtio_blk", "ext4"];
const INIT: &str = include_str!("../../vm/init.sh");

/// Packs the initramfs for a kernel into `file`.
pub(crate) fn build(kernel: &GuestKernel, work: &Path, file: &Path) -> Result<()> {
    if work.exists() {
        fs::remove_dir_all(work)?;
    }
    for folder in ["bin", "dev", "proc", "sys", "modules", "host", "upper", "new"] {
        fs::create_dir_all(work.join(folder))?;
    }
    let busybox = setup::find_program("busybox").context("busybox is missing")?;
    fs::copy(busybox, work.join("bin/busybox"))?;
    let mut order = Vec::new();
    for module in MODULES {
        for path in kernel.module_files(module)? {
            add_module(work, &path, &mut order)?;
        }
    }
    fs::write(work.join("modules/order"), order.join("\n") + "\n")?;
    let init = work.join("init");
    fs::write(&init, INIT)?;
    fs::set_permissions(&init, fs::Permissions::from_mode(0o755))?;
    pack(work, file)
}

/// Copies a module into the initramfs, unpacked, unless an earlier module has added it.
fn add_module(work: &Path, path: &Path, order: &mut Vec<String>) -> Result<()> {
    let name = path.file_name().context("a module without a name")?.to_string_lossy();
    let name = name.trim_end_matches(".xz").trim_end_matches(".zst").to_owned();
    if !order.contains(&name) {
        fs::write(work.join("modules").join(&name), kernel::module_bytes(path)?)?;
        order.push(name);
    }
    Ok(())
}

/// Packs a folder's content as a cpio archive in the kernel's format.
fn pack(folder: &Path, file: &Path) -> Result<()> {
    let mut names = Vec::new();
    list(folder, Path::new("."), &mut names)?;
    let mut child = Command::new("cpio")
        .args(["--quiet", "--null", "--create", "--format=newc", "--owner=0:0"])
        .current_dir(folder)
        .stdin(Stdio::piped())
        .stdout(fs::File::create(file)?)
        .spawn()
        .context("cannot start cpio")?;
    let mut stdin = child.stdin.take().context("no pipe to cpio")?;
    for name in names {
        stdin.write_all(name.as_os_str().as_encoded_bytes())?;
        stdin.write_all(&[0])?;
    }
    drop(stdin);
    let status = child.wait()?;
    ensure!(status.success(), "cpio could not pack the initramfs ({status})");
    Ok(())
}

/// Lists the content of a folder recursively, each folder before its content.
fn list(base: &Path, below: &Path, names: &mut Vec<PathBuf>) -> Result<()> {
    for entry in fs::read_dir(base.join(below))? {
        let entry = entry?;
        let name = below.join(entry.file_name());
        names.push(name.clone());
        if entry.file_type()?.is_dir() {
            list(base, &name, names)?;
        }
    }
    Ok(())
}
