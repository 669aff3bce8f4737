//! The guest's own Debian, with systemd: created once by mmdebstrap, kept, and copied for each
//! boot.

use std::fs::{self, File};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use nvmeof_console::say;
use nvmeof_workspace::checkout::run_checked;

/// Packages of a small server, and those that a host needs.
const PACKAGES: &str = "systemd-sysv,udev,kmod,iproute2,nvme-cli,curl,procps,pciutils,rdma-core,ibverbs-providers,librdmacm1";
/// Size of its disk in bytes; a sparse file.
const DISK_BYTES: u64 = 1200 << 20;
/// Version of the disk's content, raised when this file changes it.
const VERSION: u32 = 1;

/// Runs the boot's script once the system is up, on the serial line.
const SERVICE: &str = "[Unit]
Description=The guest's script
After=network.target nvmeof-tgt.service
[Service]
Type=simple
ExecStart=/bin/bash /share/run.sh
StandardOutput=tty
StandardError=tty
TTYPath=/dev/ttyS0
";
/// The network that docs/ assumes: an address that hosts reach.
const NETWORK: &str = "[Unit]
Description=The guest's network
Before=network.target network-online.target
Wants=network.target
[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart=ip link add dummy0 type dummy
ExecStart=ip addr add 192.0.2.10/24 dev dummy0
ExecStart=ip link set dummy0 up mtu 9000
";
/// Units that would only cost time.
const MASKED: &[&str] = &[
    "getty@tty1.service",
    "serial-getty@ttyS0.service",
    "apt-daily.timer",
    "apt-daily-upgrade.timer",
    "dpkg-db-backup.timer",
    "e2scrub_all.timer",
    "e2scrub_reap.service",
    "fstrim.timer",
    "systemd-networkd.service",
    "systemd-resolved.service",
    "systemd-timesyncd.service",
];

/// Returns a disk with this release of Debian, created if the cache does not have it.
pub(crate) fn prepare(cache: &Path, release: &str) -> Result<PathBuf> {
    fs::create_dir_all(cache)?;
    let disk = cache.join(format!("debian-{release}-{VERSION}.raw"));
    if disk.is_file() {
        return Ok(disk);
    }
    say!("making a Debian {release} for the guest (kept in {})", cache.display());
    let work = cache.join(format!("debian-{release}.{}", std::process::id()));
    let made = make(&work, release);
    // A partial system is useless, and a complete one is on its disk.
    let root = work.join("root");
    if root.exists() {
        fs::remove_dir_all(&root).context("cannot remove what mmdebstrap made")?;
    }
    made?;
    fs::rename(work.join("disk"), &disk)?;
    fs::remove_dir(&work)?;
    Ok(disk)
}

fn make(work: &Path, release: &str) -> Result<()> {
    fs::create_dir_all(work)?;
    let root = work.join("root");
    let mut make = Command::new("mmdebstrap");
    make.args(["--quiet", "--variant=minbase", "--format=directory"]);
    make.arg(format!("--include={PACKAGES}")).arg(release).arg(&root);
    if rustix::process::geteuid().is_root() {
        run_checked(&mut make).with_context(|| format!("cannot make a Debian {release}"))?;
    } else {
        bail!("a disk whose files are root's is made by root: run this as root once");
    }
    let units = root.join("etc/systemd/system");
    for (unit, text, target) in [
        ("guest.service", SERVICE, "multi-user.target"),
        ("guest-network.service", NETWORK, "network-online.target"),
    ] {
        fs::write(units.join(unit), text)?;
        let wants = units.join(format!("{target}.wants"));
        fs::create_dir_all(&wants)?;
        symlink(Path::new("..").join(unit), wants.join(unit))?;
    }
    for unit in MASKED {
        let mask = units.join(unit);
        if mask.symlink_metadata().is_err() {
            symlink("/dev/null", mask)?;
        }
    }
    fs::write(root.join("etc/hostname"), "guest\n")?;
    fs::write(root.join("etc/machine-id"), "5fa3d7a19f0b4c7e8a516c2d3b1e0f44\n")?;
    let disk = work.join("disk");
    File::create(&disk)?.set_len(DISK_BYTES)?;
    let mut fill = Command::new("mkfs.ext4");
    fill.args(["-q", "-F", "-d"]).arg(&root).arg(&disk);
    run_checked(&mut fill)
}
