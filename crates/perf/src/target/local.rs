//! Devices of this machine: syntax of `--device`, and how they are opened.

use std::os::unix::fs::FileTypeExt as _;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;

use anyhow::{Context, Result};
use nvmeof_core::block::{
    BlockDevice, FileConfig, FileDevice, NullDevice, NvmeDevice, OpenError, OpenErrorReason,
    RamDevice,
};
use nvmeof_core::dma::ChunkPool;
use nvmeof_core::nvme_driver::{BufferMaps, Controller, ControllerOptions};
use nvmeof_core::pci::users::{Usage, User};
use nvmeof_core::pci::{Address, System};
use nvmeof_core::vfio;

use super::{DeviceIdentity, TargetNeeds};
use crate::plan::{UsageError, usage_error};
use crate::units;

/// Errno of a device or filesystem that cannot be written to.
const EROFS: i32 = rustix::io::Errno::ROFS.raw_os_error();
/// Block size of a device without a native one.
const BLOCK_SIZE: u32 = 4096;
/// Default size of a `null` device in bytes.
const NULL_SIZE: u64 = 1 << 40;

/// A device of `--device`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum DeviceSpec {
    /// A file or a block device of the kernel, through io_uring.
    File(PathBuf),
    /// A drive under the VFIO driver.
    Pci {
        /// PCI address.
        address: Address,
        /// Its namespace; `None`: the first one.
        nsid: Option<u32>,
    },
    /// Reads zeroes and discards writes.
    Null {
        /// Bytes.
        size: u64,
    },
    /// A RAM disk.
    Ram {
        /// Bytes.
        size: u64,
    },
}

impl FromStr for DeviceSpec {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = |why: &str| {
            format!(
                "`{text}` names no device ({why}): write a path (/dev/nvme0n1, ./file), pci:ADDRESS[/NSID] \
                 (pci:0000:61:00.0), null[:SIZE] or ram:SIZE"
            )
        };
        let sized = |size: &str| match units::size(size) {
            Ok(size) if size >= u64::from(BLOCK_SIZE) => Ok(size),
            Ok(_) => Err(wrong("less than a block of 4 KiB")),
            Err(why) => Err(wrong(&why)),
        };
        match text.split_once(':') {
            _ if text.is_empty() => Err(wrong("nothing is there")),
            None if text == "null" => Ok(Self::Null { size: NULL_SIZE }),
            Some(("null", size)) => Ok(Self::Null { size: sized(size)? }),
            Some(("ram", size)) => Ok(Self::Ram { size: sized(size)? }),
            Some(("file", path)) => Ok(Self::File(path.into())),
            Some(("pci", place)) => {
                let (address, nsid) = match place.split_once('/') {
                    Some((address, nsid)) => {
                        let nsid = nsid.parse().ok().filter(|&nsid| nsid > 0);
                        (
                            address,
                            Some(nsid.ok_or_else(|| wrong("a namespace is a number from 1"))?),
                        )
                    }
                    None => (place, None),
                };
                let address = address.parse().map_err(|why| wrong(&format!("{why}")))?;
                Ok(Self::Pci { address, nsid })
            }
            Some(("tcp" | "rdma", _)) => Err(wrong("--connect takes that")),
            _ => Ok(Self::File(text.into())),
        }
    }
}

impl std::fmt::Display for DeviceSpec {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::File(path) => path.display().fmt(f),
            Self::Pci { address, nsid: None } => write!(f, "pci:{address}"),
            Self::Pci { address, nsid: Some(nsid) } => write!(f, "pci:{address}/{nsid}"),
            Self::Null { size: NULL_SIZE } => f.write_str("null"),
            Self::Null { size } => write!(f, "null:{size}"),
            Self::Ram { size } => write!(f, "ram:{size}"),
        }
    }
}

impl DeviceSpec {
    /// Returns true if it holds no data that could be lost.
    pub(super) fn is_scratch(&self) -> bool {
        matches!(self, Self::Null { .. } | Self::Ram { .. })
    }
}

/// Opens devices for loads.
#[derive(Debug)]
pub(super) struct DeviceOpener<'a> {
    needs: &'a TargetNeeds,
    maps: Arc<BufferMaps>,
    system: System,
}

impl<'a> DeviceOpener<'a> {
    pub(super) fn new(needs: &'a TargetNeeds, pool: &Arc<ChunkPool>) -> Self {
        let maps = Arc::new(BufferMaps::new(pool));
        Self { needs, maps, system: System::this() }
    }

    pub(super) fn open(
        &mut self,
        spec: &DeviceSpec,
    ) -> Result<(Arc<dyn BlockDevice>, DeviceIdentity)> {
        let name = spec.to_string();
        let identity = |kind| DeviceIdentity { kind, ..DeviceIdentity::default() };
        Ok(match spec {
            DeviceSpec::Null { size } => {
                (Arc::new(NullDevice::new(&name, *size, BLOCK_SIZE)?), identity("null"))
            }
            DeviceSpec::Ram { size } => {
                (Arc::new(RamDevice::new(&name, *size, BLOCK_SIZE)?), identity("ram"))
            }
            DeviceSpec::File(path) => self.file(&name, path)?,
            DeviceSpec::Pci { address, nsid } => self.drive(&name, *address, *nsid)?,
        })
    }

    fn file(&self, name: &str, path: &Path) -> Result<(Arc<dyn BlockDevice>, DeviceIdentity)> {
        let block = block_name(path);
        if let Some(block) = block.as_deref().filter(|_| self.needs.writes) {
            usage_error!(self.system.disk(block).read_only, "{}", read_only(name));
            let users = Usage::read(&self.system)?.of_block(block);
            refuse_used(name, &users)?;
        }
        let depth = (self.needs.depth as usize).max(nvmeof_core::block::DEFAULT_DEPTH);
        let config = FileConfig {
            read_only: !self.needs.writes,
            queue_depth: depth,
            ..FileConfig::new(name, path, 512)
        };
        let opened = FileDevice::open(&config).or_else(|error| match error.reason {
            // Its sectors, or those of the filesystem, may be larger.
            OpenErrorReason::Sector { .. } => {
                FileDevice::open(&FileConfig { block_size: BLOCK_SIZE, ..config.clone() })
            }
            _ => Err(error),
        });
        let device = match opened {
            Ok(device) => device,
            Err(error) => return Err(self.why_not(name, block.as_deref(), error)),
        };
        let identity = match &block {
            None => DeviceIdentity { kind: "file", ..DeviceIdentity::default() },
            Some(block) => {
                let disk = self.system.disk(block);
                DeviceIdentity {
                    kind: "block",
                    model: disk.model.unwrap_or_default(),
                    serial: disk.serial.unwrap_or_default(),
                    firmware: disk.firmware.unwrap_or_default(),
                }
            }
        };
        Ok((Arc::new(device), identity))
    }

    /// Explains why a file or block device does not open, and the remedy.
    fn why_not(&self, name: &str, block: Option<&str>, error: OpenError) -> anyhow::Error {
        match (&error.reason, block) {
            (OpenErrorReason::Missing, _) => {
                UsageError(format!("--device {name}: file or device does not exist")).into()
            }
            (OpenErrorReason::InUse, Some(block)) => {
                let users = Usage::read(&self.system).map(|usage| usage.of_block(block));
                refuse_used(name, &users.unwrap_or_default()).err().unwrap_or(error.into())
            }
            (OpenErrorReason::System { source, .. }, _) if source.raw_os_error() == Some(EROFS) => {
                UsageError(read_only(name)).into()
            }
            (OpenErrorReason::System { source, .. }, _)
                if source.kind() == std::io::ErrorKind::PermissionDenied =>
            {
                anyhow::anyhow!("--device {error}; run this as root, or as the owner of the device")
            }
            _ => anyhow::Error::from(error).context("--device"),
        }
    }

    fn drive(
        &self,
        name: &str,
        address: Address,
        nsid: Option<u32>,
    ) -> Result<(Arc<dyn BlockDevice>, DeviceIdentity)> {
        let function = vfio::open(&address.to_string()).with_context(|| {
            format!("--device {name} (to hand it over: `nvmeof-tgt drives bind {address}`)")
        })?;
        // One entry of a queue stays empty.
        let entries = self.needs.depth.saturating_add(1);
        let options = ControllerOptions {
            io_queues: self.needs.jobs,
            queue_depth: u16::try_from(entries).unwrap_or(u16::MAX),
            interrupts: false,
            ..ControllerOptions::default()
        };
        let controller = Controller::open(function, options)?;
        let nsid = match nsid {
            Some(nsid) => nsid,
            None => *controller.namespaces()?.first().context("the drive has no namespace")?,
        };
        let about = controller.identity();
        let identity = DeviceIdentity {
            kind: "nvme",
            model: about.model.clone(),
            serial: about.serial.clone(),
            firmware: about.firmware.clone(),
        };
        let device = NvmeDevice::new(name, controller, nsid, Arc::clone(&self.maps))?;
        Ok((Arc::new(device), identity))
    }
}

fn read_only(name: &str) -> String {
    format!("--device {name} is read-only; use --rw read or randread")
}

/// Rejects a device in use.
fn refuse_used(name: &str, users: &[User]) -> Result<()> {
    let shown: Vec<String> = users.iter().map(ToString::to_string).collect();
    usage_error!(
        !users.is_empty(),
        "--device {name} is in use: {}; stop that use first: this test would destroy its data, \
         and it would distort the results",
        shown.join("; ")
    );
    Ok(())
}

/// The kernel's name of the block device at a path, if it is one.
fn block_name(path: &Path) -> Option<String> {
    let at = std::fs::canonicalize(path).ok()?;
    let is_block = std::fs::metadata(&at).ok()?.file_type().is_block_device();
    is_block.then(|| at.file_name()?.to_str().map(str::to_owned))?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_device_may_be_called() {
        for text in
            ["/dev/nvme0n1", "pci:0000:61:00.0", "pci:0000:61:00.0/2", "null", "ram:1048576"]
        {
            assert_eq!(text.parse::<DeviceSpec>().unwrap().to_string(), text);
        }
        assert_eq!("null:1g".parse(), Ok(DeviceSpec::Null { size: 1 << 30 }));
        assert_eq!("file:null".parse(), Ok(DeviceSpec::File("null".into())));
        for (text, says) in [
            ("", "nothing"),
            ("ram:1k", "less than a block"),
            ("ram:x", "not a size"),
            ("pci:61", "pci:ADDRESS"),
            ("pci:0000:61:00.0/0", "number from 1"),
            ("tcp://h:1/n", "--connect"),
        ] {
            let error = text.parse::<DeviceSpec>().unwrap_err();
            assert!(error.contains(says), "{text}: {error}");
        }
    }
}
