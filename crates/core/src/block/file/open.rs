//! Opening a file: its type, ownership, size and support for direct I/O.

use std::borrow::Cow;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use rustix::fs::{AtFlags, FallocateFlags, FileType, Mode, OFlags, SeekFrom, StatxFlags};
use rustix::io::Errno;

use super::claim::Claim;
use super::config::{Direct, FileConfig};
use super::error::{OpenError, OpenErrorReason, system};
use super::extent::FileExtent;
use super::sysfs::{block_folder, queue_attribute};
use super::wwid::of_block_device;

/// Mode of a newly created file.
const NEW_FILE: Mode = Mode::from_raw_mode(0o600);

/// An open file or block device, locked against other servers, and its properties.
///
/// Reading and writing are left to the caller: [`FileDevice`](super::FileDevice) uses io_uring.
#[derive(Debug)]
pub struct OpenFile {
    pub(super) path: PathBuf,
    pub(super) kind: FileKind,
    pub(super) file: Arc<OwnedFd>,
    pub(super) claim: Claim,
    flags: OFlags,
    /// Bytes that the newest device sharing the file uses.
    pub(super) extent: Mutex<FileExtent>,
    /// True if this open created the file.
    pub(super) is_made: bool,
    pub(super) size: u64,
    /// Open for reading only, because of the configuration or because the file is not writable.
    pub(super) read_only: bool,
    pub(super) direct: bool,
    pub(super) deallocate: bool,
    /// Identity of a block device.
    pub(super) medium: Option<String>,
    /// I/O mode and its reason, for the log.
    pub(super) why_mode: Cow<'static, str>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum FileKind {
    Regular,
    Block,
}

impl OpenFile {
    /// Opens and locks the file; creates it if it is missing and a size is given.
    ///
    /// # Errors
    /// The error names the file, the problem and the remedy.
    pub fn open(config: &FileConfig) -> Result<Self, OpenError> {
        Self::take_over(config, &mut Vec::new())
    }

    /// Opens a file that one of these claims may hold; that claim is removed from `claims`.
    pub(super) fn take_over(
        config: &FileConfig,
        claims: &mut Vec<Claim>,
    ) -> Result<Self, OpenError> {
        open_inner(config, claims).map_err(|reason| OpenError { path: config.path.clone(), reason })
    }

    /// Returns the size in bytes, in whole blocks.
    #[must_use]
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Returns true if [`reopen`](Self::reopen) returns descriptors for direct I/O.
    #[must_use]
    pub fn is_direct(&self) -> bool {
        self.direct
    }

    /// Returns the identity of the block device itself; `None` for a regular file.
    #[must_use]
    pub fn medium(&self) -> Option<&str> {
        self.medium.as_deref()
    }

    /// Returns a queue attribute of a block device from sysfs, as `io_poll`; `None` for a regular
    /// file.
    #[must_use]
    pub fn queue_attribute(&self, name: &str) -> Option<String> {
        queue_attribute(&self.file, name)
    }

    /// Opens the same file again, with a separate file position.
    ///
    /// # Errors
    /// The system's error, for example without `/proc`.
    pub fn reopen(&self) -> io::Result<OwnedFd> {
        let path = format!("/proc/self/fd/{}", self.file.as_raw_fd());
        Ok(rustix::fs::open(&path, self.flags, Mode::empty())?)
    }

    /// Opens the same file again, because the kernel reports a lost write to each open separately.
    /// Without `/proc` it duplicates the descriptor.
    pub(super) fn reopen_or_share(&self) -> io::Result<OwnedFd> {
        self.reopen().or_else(|error| {
            tracing::debug!(%error, "no second opening of the file");
            self.file.as_fd().try_clone_to_owned()
        })
    }
}

impl FileConfig {
    /// Checks whether the device could be opened; creates, locks and changes nothing.
    ///
    /// # Errors
    /// The reason why it could not.
    pub fn check(&self) -> Result<(), OpenError> {
        check_inner(self).map_err(|reason| OpenError { path: self.path.clone(), reason })
    }
}

fn open_inner(config: &FileConfig, claims: &mut Vec<Claim>) -> Result<OpenFile, OpenErrorReason> {
    check_block_size(config.block_size)?;
    let kind = kind_of(&config.path)?;
    let claim = Claim::take(&config.path, claims);
    let (file, flags) = match kind {
        Some(kind) => open_as_it_goes(config, kind, claim.is_some())?,
        None => {
            let flags = OFlags::RDWR | OFlags::CLOEXEC;
            (create(config, flags)?, flags)
        }
    };
    let file = Arc::new(file);
    let read_only = !flags.contains(OFlags::RDWR);
    let config = &FileConfig { read_only, ..config.clone() };
    let claim = match claim {
        Some(claim) => claim.share(&file, read_only)?,
        None if kind == Some(FileKind::Block) => Claim::exclusive(Arc::clone(&file)),
        None => Claim::lock(Arc::clone(&file), read_only)?,
    };
    let size = match kind {
        Some(FileKind::Block) => block_device_size(&file, config)?,
        _ => regular_size(&file, config)?,
    };
    let size = size - size % u64::from(config.block_size);
    if size == 0 {
        return Err(OpenErrorReason::Empty { size, block_size: config.block_size });
    }
    let (direct, why_mode) = match config.direct {
        Direct::Never => (false, Cow::Borrowed("through the page cache, as configured")),
        wanted => match takes_direct(&file, flags, kind, config.block_size) {
            Ok(()) => (true, Cow::Borrowed("direct")),
            Err(reason) if wanted == Direct::Required => {
                return Err(OpenErrorReason::NotDirect(reason));
            }
            Err(reason) => (false, format!("through the page cache: {reason}").into()),
        },
    };
    let deallocate = !config.read_only && can_deallocate(&file, kind, size);
    let flags = if direct { flags | OFlags::DIRECT } else { flags };
    let (path, is_made) = (config.path.clone(), kind.is_none());
    let kind = kind.unwrap_or(FileKind::Regular);
    let medium = of_block_device(&file);
    let extent = Mutex::new(FileExtent::of(size));
    Ok(OpenFile {
        path,
        kind,
        file,
        claim,
        flags,
        extent,
        is_made,
        size,
        read_only,
        direct,
        deallocate,
        medium,
        why_mode,
    })
}

/// Opens an existing file, for reading and writing if possible; returns the flags used.
fn open_as_it_goes(
    config: &FileConfig,
    kind: FileKind,
    is_claimed: bool,
) -> Result<(OwnedFd, OFlags), OpenErrorReason> {
    // Exclusive: fails if the device is mounted, part of an array, or used by another server. (A
    // file lock would collide with udev, which locks a drive while it probes it.)
    let is_shared = config.shared && config.read_only;
    let is_exclusive = kind == FileKind::Block && !is_claimed && !is_shared;
    let more = if is_exclusive { OFlags::EXCL } else { OFlags::empty() };
    let (mut file, mut read_only) = try_open(config, more)?;
    if kind == FileKind::Block && !read_only && is_read_only(&file) {
        // Some drivers allow an open for writing and then fail each write.
        drop(file);
        read_only = true;
        (file, _) = try_open(&FileConfig { read_only, ..config.clone() }, more)?;
    }
    if read_only && !config.read_only {
        tracing::warn!(
            device = %config.name, path = %config.path.display(),
            "file or device is not writable (write-protected, on a read-only file system, or no \
             write permission); hosts see the device as write-protected"
        );
    }
    let access = if read_only { OFlags::RDONLY } else { OFlags::RDWR };
    Ok((file, access | OFlags::CLOEXEC))
}

/// Opens the path, for reading only if configured or not writable; returns true in that case.
fn try_open(config: &FileConfig, more: OFlags) -> Result<(OwnedFd, bool), OpenErrorReason> {
    let open = |access| {
        let opened = rustix::fs::open(&config.path, access | OFlags::CLOEXEC | more, Mode::empty());
        match opened {
            Err(Errno::BUSY) if !more.is_empty() => Err(OpenErrorReason::InUse),
            Err(Errno::ROFS | Errno::ACCESS | Errno::PERM) if access != OFlags::RDONLY => Ok(None),
            opened => system("open it", opened).map(Some),
        }
    };
    if !config.read_only
        && let Some(file) = open(OFlags::RDWR)?
    {
        return Ok((file, false));
    }
    let file = open(OFlags::RDONLY)?;
    file.map(|file| (file, true)).ok_or(OpenErrorReason::Missing)
}

fn check_inner(config: &FileConfig) -> Result<(), OpenErrorReason> {
    check_block_size(config.block_size)?;
    let Some(kind) = kind_of(&config.path)? else {
        let folder = folder_of(&config.path);
        return match config.size {
            _ if !folder.is_dir() => Err(OpenErrorReason::System {
                what: "create the file: the folder does not exist",
                source: Errno::NOENT.into(),
            }),
            Some(size) if !config.read_only => check_whole(size, config.block_size),
            _ => Err(OpenErrorReason::Missing),
        };
    };
    let (file, read_only) = try_open(config, OFlags::empty())?;
    if kind == FileKind::Block {
        return block_device_size(&file, config).map(drop);
    }
    let config = &FileConfig { read_only, ..config.clone() };
    let actual = system("read the size", rustix::fs::fstat(&file))?.st_size.unsigned_abs();
    match config.size {
        Some(wanted) if actual != 0 || config.read_only => check_size(actual, wanted),
        Some(wanted) => check_whole(wanted, config.block_size),
        None => check_whole(actual, config.block_size),
    }
}

fn check_block_size(block_size: u32) -> Result<(), OpenErrorReason> {
    match block_size {
        512 | 4096 => Ok(()),
        other => Err(OpenErrorReason::BlockSize(other)),
    }
}

pub(super) fn check_whole(size: u64, block_size: u32) -> Result<(), OpenErrorReason> {
    if size < u64::from(block_size) {
        return Err(OpenErrorReason::Empty { size, block_size });
    }
    Ok(())
}

/// Returns the type of the file at the path; `None` if there is none.
fn kind_of(path: &Path) -> Result<Option<FileKind>, OpenErrorReason> {
    let stat = match rustix::fs::stat(path) {
        Err(Errno::NOENT) => return Ok(None),
        stat => system("stat the file", stat)?,
    };
    let other = match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile => return Ok(Some(FileKind::Regular)),
        FileType::BlockDevice => return Ok(Some(FileKind::Block)),
        FileType::Directory => "a directory",
        FileType::CharacterDevice => "a character device",
        FileType::Fifo => "a pipe",
        FileType::Socket => "a socket",
        _ => "something else",
    };
    Err(OpenErrorReason::FileKind(other))
}

/// Creates the file. It is empty until [`regular_size`] sets its size under the lock.
fn create(config: &FileConfig, flags: OFlags) -> Result<OwnedFd, OpenErrorReason> {
    if config.size.is_none() || config.read_only {
        return Err(OpenErrorReason::Missing);
    }
    // Not exclusive: another server that creates the file concurrently collides at the lock.
    let file = system(
        "create the file",
        rustix::fs::open(&config.path, flags | OFlags::CREATE, NEW_FILE),
    )?;
    let folder = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    // The new name is durable when its folder is.
    let folder = system(
        "open the folder",
        rustix::fs::open(folder_of(&config.path), folder, Mode::empty()),
    )?;
    system("sync the folder", rustix::fs::fsync(&folder))?;
    Ok(file)
}

fn folder_of(path: &Path) -> &Path {
    match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    }
}

/// Returns the size of a regular file; sets it if the file is empty and a size is configured.
fn regular_size(file: &OwnedFd, config: &FileConfig) -> Result<u64, OpenErrorReason> {
    let actual = system("read the size", rustix::fs::fstat(file))?.st_size.unsigned_abs();
    let Some(wanted) = config.size else {
        return check_whole(actual, config.block_size).map(|()| actual);
    };
    if actual == 0 && !config.read_only {
        check_whole(wanted, config.block_size)?;
        system("set the size of the file", rustix::fs::ftruncate(file, wanted))?;
        system("sync it", rustix::fs::fsync(file))?;
        return Ok(wanted);
    }
    check_size(actual, wanted).map(|()| actual)
}

pub(super) fn check_size(actual: u64, wanted: u64) -> Result<(), OpenErrorReason> {
    let advice = match actual.cmp(&wanted) {
        std::cmp::Ordering::Equal => return Ok(()),
        std::cmp::Ordering::Less => "omit \"size\", or extend the file with `truncate`",
        std::cmp::Ordering::Greater => "omit \"size\", or give the file's own",
    };
    Err(OpenErrorReason::Size { actual, wanted, advice })
}

/// Returns the size of a block device, or the configured part of it.
pub(super) fn block_device_size(
    file: &OwnedFd,
    config: &FileConfig,
) -> Result<u64, OpenErrorReason> {
    let sector = system("read the sector size", rustix::fs::ioctl_blksszget(file))?;
    let block_size = config.block_size;
    if sector > block_size {
        return Err(OpenErrorReason::Sector { sector, block_size });
    }
    let actual = system("read the size", rustix::fs::seek(file, SeekFrom::End(0)))?;
    match config.size {
        Some(wanted) if wanted > actual => {
            let advice = "omit \"size\", or set no more than the actual size";
            Err(OpenErrorReason::Size { actual, wanted, advice })
        }
        Some(wanted) => check_whole(wanted, block_size).map(|()| wanted),
        None => check_whole(actual, block_size).map(|()| actual),
    }
}

/// Checks support for direct I/O of whole blocks; `Err` gives the reason against it.
fn takes_direct(
    file: &OwnedFd,
    flags: OFlags,
    kind: Option<FileKind>,
    block_size: u32,
) -> Result<(), Cow<'static, str>> {
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    let direct = rustix::fs::open(&path, flags | OFlags::DIRECT, Mode::empty())
        .map_err(|error| format!("opening the file with O_DIRECT: {}", io::Error::from(error)))?;
    if kind == Some(FileKind::Block) {
        return Ok(());
    }
    let align = direct_alignment(&direct);
    match align {
        Some(0) => Err("the file system does none for this file".into()),
        Some(align) if align > block_size => {
            Err(format!("multiples of {align} bytes are required, blocks are {block_size}").into())
        }
        Some(_) => Ok(()),
        None => probe(&direct, block_size),
    }
}

/// Returns the alignment of offset, length and memory for direct I/O; `None` if the system does not
/// report it. (A part of a buffer starts on a block.)
fn direct_alignment(file: &OwnedFd) -> Option<u32> {
    let flags = StatxFlags::DIOALIGN;
    let stat = rustix::fs::statx(file.as_fd(), "", AtFlags::EMPTY_PATH, flags).ok()?;
    let align = stat.stx_dio_offset_align;
    let told = stat.stx_mask & flags.bits() != 0;
    told.then_some(if align == 0 { 0 } else { align.max(stat.stx_dio_mem_align) })
}

/// Tries a direct read of one block, if the system does not report the alignment.
fn probe(file: &OwnedFd, block_size: u32) -> Result<(), Cow<'static, str>> {
    #[repr(align(4096))]
    struct Page([u8; 4096]);
    let mut page = Page([0; 4096]);
    match rustix::io::pread(file, &mut page.0[..block_size as usize], 0) {
        Ok(_) => Ok(()),
        Err(error) => Err(format!("reading {block_size} bytes: {}", io::Error::from(error)).into()),
    }
}

/// Returns true if a deallocated range is freed and reads as zeroes.
fn can_deallocate(file: &OwnedFd, kind: Option<FileKind>, size: u64) -> bool {
    if kind == Some(FileKind::Block) {
        return block_device_frees(file);
    }
    // Nothing changes beyond the end, but a file system without support reports an error.
    let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    rustix::fs::fallocate(file, flags, size.next_multiple_of(4096), 4096).is_ok()
}

/// Returns true if the drive zeroes ranges itself, which punching a hole requires.
fn block_device_frees(file: &OwnedFd) -> bool {
    queue_attribute(file, "write_zeroes_max_bytes")
        .is_some_and(|text| text.parse::<u64>().is_ok_and(|max| max > 0))
}

/// Returns true if the kernel refuses writes to a block device (BLKROSET), which otherwise only a
/// failing write shows.
fn is_read_only(file: &OwnedFd) -> bool {
    let Some(folder) = block_folder(file) else { return false };
    std::fs::read_to_string(folder.join("ro")).is_ok_and(|text| text.trim() == "1")
}
