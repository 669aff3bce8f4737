//! The guest's kernel: a distribution's own package, unpacked into a cache and never installed.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail, ensure};
use nvmeof_console::say;
use nvmeof_workspace::checkout::{output_of, run_checked};

use super::apt::Apt;
use crate::setup;

/// A kernel of a Debian suite.
#[derive(Debug)]
pub(crate) struct SuiteKernel {
    /// Name on the command line.
    pub(crate) name: &'static str,
    suite: &'static str,
    /// Package that depends on the current image.
    meta: &'static str,
}

/// The kernels that a case can boot on request.
pub(crate) const KERNELS: &[SuiteKernel] = &[
    SuiteKernel { name: "bookworm", suite: "bookworm", meta: "linux-image-amd64" },
    SuiteKernel { name: "bookworm-6.12", suite: "bookworm", meta: "linux-image-6.12-amd64" },
    SuiteKernel { name: "trixie", suite: "trixie", meta: "linux-image-amd64" },
];
/// Name of all of them on the command line.
const ALL: &str = "all";

/// An unpacked kernel that can be booted.
#[derive(Debug, Clone)]
pub(crate) struct GuestKernel {
    root: PathBuf,
    release: String,
}

impl GuestKernel {
    /// Returns a suite's current kernel, or that of this machine's distribution; downloads and
    /// unpacks it if the cache does not have it.
    pub(crate) fn prepare(cache: &Path, kernel: Option<&SuiteKernel>) -> Result<Self> {
        fs::create_dir_all(cache)?;
        let (apt, metas) = match kernel {
            Some(kernel) => (Apt::suite(cache, kernel.suite)?, vec![kernel.meta]),
            None => (Apt::machine(), vec!["linux-image-amd64", "linux-image-generic"]),
        };
        let name = match image_package(&apt, &metas) {
            Some(name) => name,
            None => {
                apt.update()?;
                image_package(&apt, &metas)
                    .with_context(|| format!("apt knows no package {}", metas.join(" or ")))?
            }
        };
        let root = cache.join(&name);
        if !root.join("complete").is_file() {
            unpack(&apt, cache, &name, &root)?;
        }
        let release = fs::read_to_string(root.join("complete"))?.trim().to_owned();
        Ok(Self { root, release })
    }

    /// Returns the path of the plain ELF kernel image.
    pub(crate) fn vmlinux(&self) -> PathBuf {
        self.root.join("vmlinux")
    }

    /// Returns the folder of this release's modules.
    pub(crate) fn modules(&self) -> PathBuf {
        self.root.join("lib/modules").join(&self.release)
    }

    /// Returns the output of `uname -r` in the guest.
    pub(crate) fn release(&self) -> &str {
        &self.release
    }

    /// Returns the files of a module and its dependencies, in the order to load them; none for a
    /// module built into this kernel.
    pub(crate) fn module_files(&self, module: &str) -> Result<Vec<PathBuf>> {
        let modprobe = setup::find_program("modprobe").context("modprobe is missing")?;
        let mut command = Command::new(modprobe);
        command.arg("--dirname").arg(&self.root);
        command.args(["--set-version", &self.release, "--show-depends", module]);
        let output = String::from_utf8(output_of(&mut command)?)?;
        let files = output.lines().filter_map(|line| line.strip_prefix("insmod "));
        Ok(files.map(|path| PathBuf::from(path.trim())).collect())
    }
}

/// Returns the arguments that name kernels on the command line.
pub(crate) fn names() -> Vec<&'static str> {
    KERNELS.iter().map(|kernel| kernel.name).chain([ALL]).collect()
}

/// Returns the kernels of a name: all of them, one, or without a name this machine's own.
pub(crate) fn by_name(name: Option<&str>) -> Vec<Option<&'static SuiteKernel>> {
    match name {
        None => vec![None],
        Some(name) => {
            KERNELS.iter().filter(|kernel| name == ALL || name == kernel.name).map(Some).collect()
        }
    }
}

/// Returns the versioned image on which one of the meta packages depends.
fn image_package(apt: &Apt, metas: &[&str]) -> Option<String> {
    metas.iter().find_map(|meta| {
        apt.dependencies(meta).ok()?.into_iter().find(|name| name.starts_with("linux-image-"))
    })
}

/// Downloads and unpacks a kernel next to `root`, then moves it into place in one step.
///
/// An interrupted run therefore leaves nothing that looks complete.
fn unpack(apt: &Apt, cache: &Path, name: &str, root: &Path) -> Result<()> {
    say!("downloading the guest kernel {name} (kept in {})", cache.display());
    let work = cache.join(format!("{name}.{}", std::process::id()));
    fs::create_dir_all(&work)?;
    // Ubuntu has the modules in a separate package; Debian has them in the image's package.
    let modules = name.replacen("linux-image-", "linux-modules-", 1);
    let extra = name.replacen("linux-image-", "linux-modules-extra-", 1);
    apt.download(&work, name)?;
    for package in [&modules, &extra] {
        if apt.has(package) {
            apt.download(&work, package)?;
        }
    }
    for entry in fs::read_dir(&work)? {
        let path = entry?.path();
        if path.extension().is_some_and(|ext| ext == "deb") {
            run_checked(Command::new("dpkg").arg("-x").arg(&path).arg(&work))?;
            fs::remove_file(&path)?;
        }
    }
    if !work.join("lib/modules").is_dir() && work.join("usr/lib/modules").is_dir() {
        std::os::unix::fs::symlink("usr/lib", work.join("lib"))?;
    }
    let release = only_entry(&work.join("lib/modules"))?;
    let depmod = setup::find_program("depmod").context("depmod is missing")?;
    run_checked(Command::new(depmod).arg("-b").arg(&work).arg(&release))?;
    let image = fs::read(work.join("boot").join(format!("vmlinuz-{release}")))?;
    fs::write(work.join("vmlinux"), elf_image(&image)?)?;
    fs::write(work.join("complete"), &release)?;
    if root.exists() {
        fs::remove_dir_all(root)?;
    }
    fs::rename(&work, root)?;
    Ok(())
}

fn only_entry(folder: &Path) -> Result<String> {
    let entries: Vec<_> = fs::read_dir(folder)?.collect::<std::io::Result<_>>()?;
    match entries.as_slice() {
        [entry] => Ok(entry.file_name().to_string_lossy().into_owned()),
        _ => bail!("{} should have one kernel release, has {}", folder.display(), entries.len()),
    }
}

/// Returns the ELF kernel inside a bzImage.
///
/// Under emulation its boot is several times faster than that of a bzImage, which unpacks itself.
fn elf_image(image: &[u8]) -> Result<Vec<u8>> {
    let payload = payload(image).context("the kernel image is not a bzImage")?;
    let elf = if payload.starts_with(b"\x7fELF") {
        payload.to_vec()
    } else if payload.starts_with(b"\xfd7zXZ\0") {
        filter("xz", payload)?
    } else if payload.starts_with(&[0x28, 0xb5, 0x2f, 0xfd]) {
        filter("zstd", payload)?
    } else {
        bail!("the kernel is packed by a method this command does not know (not xz, not zstd)");
    };
    ensure!(elf.starts_with(b"\x7fELF"), "the kernel unpacked to something that is not ELF");
    Ok(elf)
}

/// Returns the packed kernel in a bzImage, found by the boot protocol's header.
///
/// The header (2.08 and later) has setup_sects at 0x1f1, "HdrS" at 0x202, payload_offset at 0x248
/// and payload_length at 0x24c. The result excludes the four bytes of unpacked size that the
/// kernel's build appends.
fn payload(image: &[u8]) -> Option<&[u8]> {
    let word = |at: usize| -> Option<usize> {
        let bytes: [u8; 4] = image.get(at..at + 4)?.try_into().ok()?;
        usize::try_from(u32::from_le_bytes(bytes)).ok()
    };
    if image.get(0x202..0x206)? != b"HdrS" {
        return None;
    }
    let setup_sects = match *image.get(0x1f1)? {
        0 => 4,
        sects => usize::from(sects),
    };
    let start = (setup_sects + 1) * 512 + word(0x248)?;
    let end = start.checked_add(word(0x24c)?)?.checked_sub(4)?;
    image.get(start..end)
}

/// Unpacks bytes with a tool that reads standard input and writes standard output.
fn filter(tool: &str, packed: &[u8]) -> Result<Vec<u8>> {
    use std::io::Write;
    let mut child = Command::new(tool)
        .arg("-dc")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .with_context(|| format!("cannot start {tool}"))?;
    let mut stdin = child.stdin.take().context("no pipe to the tool")?;
    let output = std::thread::scope(|scope| {
        // The tool's own exit status reports a broken pipe.
        scope.spawn(move || stdin.write_all(packed));
        child.wait_with_output()
    })?;
    ensure!(output.status.success(), "{tool} could not unpack the kernel ({})", output.status);
    Ok(output.stdout)
}

/// Returns a module's bytes, unpacked if the distribution packs its modules.
pub(crate) fn module_bytes(file: &Path) -> Result<Vec<u8>> {
    let bytes = fs::read(file).with_context(|| format!("cannot read {}", file.display()))?;
    match file.extension().and_then(|ext| ext.to_str()) {
        Some("xz") => filter("xz", &bytes),
        Some("zst") => filter("zstd", &bytes),
        _ => Ok(bytes),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Builds a bzImage with two setup sectors and `packed` 16 bytes into the protected-mode part.
    fn bzimage(packed: &[u8]) -> Vec<u8> {
        let mut image = vec![0; 3 * 512 + 16];
        image[0x1f1] = 2;
        image[0x202..0x206].copy_from_slice(b"HdrS");
        image[0x248..0x24c].copy_from_slice(&16u32.to_le_bytes());
        let length = u32::try_from(packed.len() + 4).expect("small");
        image[0x24c..0x250].copy_from_slice(&length.to_le_bytes());
        image.extend_from_slice(packed);
        image.extend_from_slice(&[9; 40]);
        image
    }

    #[test]
    fn a_plain_payload_is_cut_out() {
        assert_eq!(elf_image(&bzimage(b"\x7fELFkernel")).expect("plain"), b"\x7fELFkernel");
    }

    #[test]
    fn an_unknown_or_cut_payload_is_refused() {
        assert!(elf_image(&bzimage(b"BZh9")).is_err());
        let image = bzimage(b"\x7fELFkernel");
        assert!(elf_image(&image[..3 * 512 + 20]).is_err());
        assert!(elf_image(b"MZ").is_err());
    }

    #[test]
    fn a_name_selects_one_kernel_and_all_selects_every_one() {
        let count = |name: &str| by_name(Some(name)).len();
        assert!(KERNELS.iter().all(|kernel| count(kernel.name) == 1));
        assert_eq!(count(ALL), KERNELS.len());
        assert!(by_name(None)[0].is_none());
    }
}
