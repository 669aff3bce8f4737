//! Opens an engine on a drive as a device that is known to work: it has read a block.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use nvmeof_core::block::{
    BlockDevice, BlockError, BlockOp, Direct, FileConfig, FileDevice, NvmeDevice, OpenError,
    OpenErrorReason, OpenFile,
};
use nvmeof_core::dma::{ChunkPool, CorePool};
use nvmeof_core::nvme_driver::function::Function;
use nvmeof_core::nvme_driver::{
    BufferMaps, Controller, ControllerOptions, OpenError as DriverError,
};
use nvmeof_core::vfio;
use rustix::fs::{FileType, Mode, OFlags};
use thiserror::Error;

use crate::engine::Engine;
use crate::sync::{ReadCall, SyncDevice};

/// The first kernel whose block layer ignores `RWF_HIPRI` on synchronous direct I/O.
///
/// It is Linux commit 9650b453a3d4, "block: ignore RWF_HIPRI hint for sync dio"; older kernels of
/// some distributions have it, too.
const HIPRI_IGNORED_SINCE: (u32, u32) = (5, 19);
/// Possible sector sizes of a drive, smallest first.
const SECTORS: [u32; 2] = [512, 4096];

/// Source of the reads.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ReadSource {
    /// A file or block device, through the kernel.
    Path {
        /// Path of the file or device.
        path: PathBuf,
        /// Bytes of a block: those of the drive's LBA format.
        block_size: u32,
        /// Use of the page cache. Figures of a drive require [`Direct::Required`].
        direct: Direct,
        /// Opens it even while it is in use: a member of the array that is compared.
        shared: bool,
    },
    /// A namespace of a drive that is bound to `vfio-pci`.
    Drive {
        /// PCI address.
        address: String,
        /// Namespace identifier.
        nsid: u32,
    },
}

/// A working device.
#[derive(Debug)]
pub struct OpenedDevice {
    /// The device.
    pub device: Arc<dyn BlockDevice>,
    /// Remark for readers of its figures.
    pub note: Option<String>,
}

/// Reason why an engine cannot be used on a drive.
#[derive(Debug, Error)]
pub enum EngineUnavailable {
    /// The file or block device does not open.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// The drive does not open.
    #[error("{address}: {why}")]
    OpenFunction {
        /// PCI address.
        address: String,
        /// Error of VFIO.
        why: String,
    },
    /// The drive does not initialize.
    #[error(transparent)]
    Driver(#[from] DriverError),
    /// The kernel's engines require a block device.
    #[error(
        "{address} has no block device, because the VFIO driver has the drive: pass /dev/nvmeXnY \
         of a drive of the kernel driver (`nvmeof-tgt drives unbind {address}`)"
    )]
    RequiresBlockDevice {
        /// PCI address.
        address: String,
    },
    /// The VFIO driver requires the drive itself.
    #[error(
        "{} is the kernel's: bind an NVMe drive to vfio-pci (`nvmeof-tgt drives bind`) and give pci:ADDRESS",
        path.display()
    )]
    RequiresVfioDrive {
        /// Its path.
        path: PathBuf,
    },
    /// Its driver has no queues to poll.
    #[error(
        "{} cannot be polled: its driver has no queues for that (queue/io_poll is 0); for NVMe drives load the nvme \
         module with poll_queues=N, or start the kernel with nvme.poll_queues=N",
        path.display()
    )]
    NoPollQueues {
        /// Its path.
        path: PathBuf,
    },
    /// Neither the filesystem nor the driver can be polled.
    #[error(
        "{} cannot be polled: the filesystem or the driver does not support polling ({why})",
        path.display()
    )]
    PollingUnsupported {
        /// Its path.
        path: PathBuf,
        /// Error of the kernel.
        why: BlockError,
    },
    /// A queue does not open.
    #[error("no queue to {name}: {why}")]
    Queue {
        /// Name of the drive.
        name: String,
        /// Cause.
        why: BlockError,
    },
    /// The first block does not read.
    #[error("reading the first block of {name} failed: {why}")]
    Read {
        /// Name of the drive.
        name: String,
        /// Cause.
        why: BlockError,
    },
}

/// Opens a PCI function by its address.
pub type OpenFunction<'t> = &'t dyn Fn(&str) -> Result<Arc<dyn Function>, String>;

/// Opens a drive for an engine, with queues of `depth` operations, and reads its first block.
///
/// A device that opens is therefore known to work. `pool` supplies the buffers of all reads.
/// `queues` is the maximum number of queues.
///
/// # Errors
/// Reason why this engine cannot be used on this drive.
pub fn open(
    engine: Engine,
    source: &ReadSource,
    depth: usize,
    queues: usize,
    pool: &Arc<ChunkPool>,
) -> Result<OpenedDevice, EngineUnavailable> {
    let open_function = |address: &str| vfio::open(address).map_err(|error| error.to_string());
    open_with(engine, source, depth, queues, pool, &open_function)
}

/// Opens a drive like [`open`], with PCI functions from another source than VFIO.
///
/// # Errors
/// As [`open`].
pub fn open_with(
    engine: Engine,
    source: &ReadSource,
    depth: usize,
    queues: usize,
    pool: &Arc<ChunkPool>,
    open_function: OpenFunction<'_>,
) -> Result<OpenedDevice, EngineUnavailable> {
    let opened = match (engine, source) {
        (Engine::Vfio, ReadSource::Drive { address, nsid }) => {
            open_drive(address, *nsid, depth, queues, pool, open_function)?
        }
        (_, ReadSource::Drive { address, .. }) => {
            return Err(EngineUnavailable::RequiresBlockDevice { address: address.clone() });
        }
        (engine, ReadSource::Path { path, block_size, direct, shared }) => {
            let config = FileConfig {
                read_only: true,
                shared: *shared,
                direct: *direct,
                queue_depth: depth,
                ..FileConfig::new(path.display().to_string(), path, *block_size)
            };
            open_path(engine, &config)?
        }
    };
    match (try_read(&*opened.device, pool), source) {
        (Ok(()), _) => Ok(opened),
        (Err(EngineUnavailable::Read { why, .. }), ReadSource::Path { path, .. })
            if engine == Engine::IoUringPolled && is_refusal(&why) =>
        {
            Err(EngineUnavailable::PollingUnsupported { path: path.clone(), why })
        }
        (Err(error), _) => Err(error),
    }
}

/// Bytes of a sector at `path`.
///
/// For a block device it is that of the device; for a file, the smallest size that bypasses the
/// page cache.
///
/// # Errors
/// It does not open, or cannot bypass the page cache.
pub fn sector_size(path: &Path) -> Result<u32, OpenError> {
    let failed = |what, error: rustix::io::Errno| OpenError {
        path: path.to_owned(),
        reason: OpenErrorReason::System { what, source: error.into() },
    };
    let stat = rustix::fs::stat(path).map_err(|error| failed("stat the file", error))?;
    if FileType::from_raw_mode(stat.st_mode) == FileType::BlockDevice {
        let file = rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty());
        let file = file.map_err(|error| failed("open it", error))?;
        return rustix::fs::ioctl_blksszget(file)
            .map_err(|error| failed("read the sector size", error));
    }
    let mut last = None;
    for block_size in SECTORS {
        let config = FileConfig {
            read_only: true,
            direct: Direct::Required,
            ..FileConfig::new(path.display().to_string(), path, block_size)
        };
        match OpenFile::open(&config) {
            Ok(_) => return Ok(block_size),
            Err(error) if matches!(error.reason, OpenErrorReason::NotDirect(_)) => {
                last = Some(error);
            }
            Err(error) => return Err(error),
        }
    }
    Err(last.unwrap_or_else(|| failed("open it", rustix::io::Errno::INVAL)))
}

fn open_path(engine: Engine, config: &FileConfig) -> Result<OpenedDevice, EngineUnavailable> {
    let call = match engine {
        Engine::Sync => ReadCall::SeekRead,
        Engine::Psync => ReadCall::Pread,
        Engine::Pvsync => ReadCall::Preadv,
        Engine::Pvsync2 => ReadCall::Preadv2 { high_priority: false },
        Engine::Pvsync2Hipri => ReadCall::Preadv2 { high_priority: true },
        Engine::Libaio => {
            let device = FileDevice::open_aio(config)?;
            return Ok(OpenedDevice { device: Arc::new(device), note: None });
        }
        Engine::IoUring => {
            let device = FileDevice::open(config)?;
            return Ok(OpenedDevice { device: Arc::new(device), note: None });
        }
        Engine::Vfio => {
            return Err(EngineUnavailable::RequiresVfioDrive { path: config.path.clone() });
        }
        Engine::IoUringPolled => {
            if polls(&OpenFile::open(config)?) == Some(false) {
                return Err(EngineUnavailable::NoPollQueues { path: config.path.clone() });
            }
            let device = FileDevice::open(config)?.polled();
            return Ok(OpenedDevice { device: Arc::new(device), note: None });
        }
    };
    let device = SyncDevice::open(config, call)?;
    let note = (engine == Engine::Pvsync2Hipri).then(|| hipri_note(device.file())).flatten();
    Ok(OpenedDevice { device: Arc::new(device), note })
}

fn open_drive(
    address: &str,
    nsid: u32,
    depth: usize,
    queues: usize,
    pool: &Arc<ChunkPool>,
    open_function: OpenFunction<'_>,
) -> Result<OpenedDevice, EngineUnavailable> {
    let function = open_function(address)
        .map_err(|why| EngineUnavailable::OpenFunction { address: address.to_owned(), why })?;
    let options = ControllerOptions {
        io_queues: u16::try_from(queues).unwrap_or(u16::MAX),
        // A ring of N entries holds N - 1.
        queue_depth: u16::try_from(depth.saturating_add(1)).unwrap_or(u16::MAX),
        ..ControllerOptions::default()
    };
    let controller = Controller::open(function, options)?;
    let holds = controller.queue_depth();
    let note = (holds < depth).then(|| {
        format!("the drive's queues hold {holds} commands, not {depth}: the others wait; use more threads")
    });
    let maps = Arc::new(BufferMaps::new(pool));
    let device = NvmeDevice::new(&format!("pci:{address}"), controller, nsid, maps)?;
    Ok(OpenedDevice { device: Arc::new(device), note })
}

/// Reads the first block through a separate queue.
fn try_read(device: &dyn BlockDevice, pool: &Arc<ChunkPool>) -> Result<(), EngineUnavailable> {
    let name = || device.info().name.clone();
    let pool = CorePool::new(pool);
    let mut queue =
        device.open_queue(&pool).map_err(|why| EngineUnavailable::Queue { name: name(), why })?;
    let read = |why| EngineUnavailable::Read { name: name(), why };
    let block = usize::try_from(device.info().block_size).unwrap_or(usize::MAX);
    let buf = pool.lease(block).map_err(|_| read(BlockError::NoMemory))?;
    queue.submit(BlockOp::read(0, 0, buf)).map_err(|_| read(BlockError::Unsupported))?;
    let mut done = Vec::new();
    // If the device never completes it, its supervisor or the kernel's driver ends the command.
    while done.is_empty() {
        queue.poll(&mut done);
        if done.is_empty() {
            std::thread::yield_now();
        }
    }
    done.into_iter().try_for_each(|completed| completed.result).map_err(read)
}

/// Errors that report an unsupported operation.
fn is_refusal(error: &BlockError) -> bool {
    const INVALID: i32 = rustix::io::Errno::INVAL.raw_os_error();
    matches!(error, BlockError::Unsupported | BlockError::Io(INVALID))
}

/// Returns true if the drive's driver has queues to poll; `None` if unknown, as for a file.
fn polls(file: &OpenFile) -> Option<bool> {
    file.queue_attribute("io_poll").map(|text| text != "0")
}

/// A note that high priority has no effect on this kernel or drive, if so.
fn hipri_note(file: &OpenFile) -> Option<String> {
    let uname = rustix::system::uname();
    let release = uname.release().to_string_lossy();
    if version(&release).is_some_and(|version| version >= HIPRI_IGNORED_SINCE) {
        let (major, minor) = HIPRI_IGNORED_SINCE;
        return Some(format!(
            "without effect: since Linux {major}.{minor} the kernel takes no notice of RWF_HIPRI on synchronous reads \
             (this is {release}); io-uring-polled polls"
        ));
    }
    (polls(file) == Some(false)).then(|| {
        "without effect: the drive's driver has no queues to poll (nvme.poll_queues)".to_owned()
    })
}

/// Parses a kernel release: `(6, 1)` from `6.1.0-18-amd64`.
fn version(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit());
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_of_kernels() {
        assert_eq!(version("6.1.0-18-amd64"), Some((6, 1)));
        assert_eq!(version("5.19-rc1"), Some((5, 19)));
        assert_eq!(version("next"), None);
        assert!(version("5.18.19").unwrap() < HIPRI_IGNORED_SINCE);
        assert!(version("10.0").unwrap() > HIPRI_IGNORED_SINCE);
    }
}
