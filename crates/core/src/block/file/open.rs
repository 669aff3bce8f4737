//! Opening: what the path is, whose it is, how large it is, and whether it takes direct I/O.

use std::borrow::Cow;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use rustix::fs::{AtFlags, FallocateFlags, FileType, Mode, OFlags, SeekFrom, StatxFlags};
use rustix::io::Errno;
use thiserror::Error;

use super::claim::Claim;
use super::resize::Extent;
use super::wwid::of_block_device;
use super::{Direct, FileConfig};

/// Mode of a file made here.
const NEW_FILE: Mode = Mode::from_raw_mode(0o600);

/// Why a file cannot be a device.
#[derive(Debug, Error)]
#[error("{}: {why}", .path.display())]
pub struct OpenError {
    /// The file.
    pub path: PathBuf,
    /// What is wrong and what to do.
    pub why: OpenErrorWhy,
}

/// What is wrong with a file.
#[derive(Debug, Error)]
pub enum OpenErrorWhy {
    /// There is no such file, and no size to make it.
    #[error("there is no such file; give a size to have it created")]
    Missing,
    /// It is no regular file and no block device.
    #[error("this is no regular file and no block device but {0}")]
    Kind(&'static str),
    /// Somebody else has it.
    #[error(
        "it is in use: another process or another device serves it, or it is mounted; stop that, or name another file"
    )]
    InUse,
    /// The block size is none we do.
    #[error("a block size of {0} bytes is not possible: choose 512 or 4096")]
    BlockSize(u32),
    /// The drive's sectors are larger than the blocks.
    #[error(
        "its sectors are {sector} bytes, more than the block size {block_size}: choose {sector}"
    )]
    Sector {
        /// Bytes of a sector.
        sector: u32,
        /// Bytes of a block.
        block_size: u32,
    },
    /// The size is not the one asked for.
    #[error("it has {actual} bytes but {wanted} are configured: {advice}")]
    Size {
        /// Bytes there are.
        actual: u64,
        /// Bytes configured.
        wanted: u64,
        /// What to do.
        advice: &'static str,
    },
    /// There is not one whole block.
    #[error("{size} bytes do not hold one block of {block_size}; give a size")]
    Empty {
        /// Bytes there are.
        size: u64,
        /// Bytes of a block.
        block_size: u32,
    },
    /// Direct I/O is required and does not go.
    #[error("it takes no direct I/O ({0}): leave `direct` to \"auto\", or use larger blocks")]
    NotDirect(Cow<'static, str>),
    /// This process may not use io_uring.
    #[error(
        "it needs io_uring, which is not to be had here ({0}): see the sysctl \
         kernel.io_uring_disabled, and in a container its seccomp profile"
    )]
    NoRing(io::Error),
    /// The system refused.
    #[error("cannot {what}: {source}")]
    System {
        /// What was tried.
        what: &'static str,
        /// What the system said.
        source: io::Error,
    },
}

/// A file or block device that is open, locked against other servers, and what was found out about it. What reads and
/// writes it is another matter: [`FileDevice`](super::FileDevice) does by io_uring.
#[derive(Debug)]
pub struct OpenFile {
    pub(super) path: PathBuf,
    pub(super) kind: Kind,
    pub(super) file: Arc<OwnedFd>,
    pub(super) claim: Claim,
    flags: OFlags,
    /// How much of it the newest of those that share it has.
    pub(super) extent: Mutex<Extent>,
    /// It was not there before.
    pub(super) is_made: bool,
    pub(super) size: u64,
    /// It is open for reading only: so it was configured, or nothing else goes.
    pub(super) read_only: bool,
    pub(super) direct: bool,
    pub(super) deallocate: bool,
    /// The identity of a block device.
    pub(super) medium: Option<String>,
    /// For the log: how it is used and why.
    pub(super) why_mode: Cow<'static, str>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Regular,
    Block,
}

impl OpenFile {
    /// Opens and locks it; creates the file if it is not there and a size is given.
    ///
    /// # Errors
    /// Says which file, what is wrong and what to do.
    pub fn open(config: &FileConfig) -> Result<Self, OpenError> {
        Self::take_over(config, &mut Vec::new())
    }

    /// The same, where the file may be that of one of these claims; that one is taken out.
    pub(super) fn take_over(
        config: &FileConfig,
        claims: &mut Vec<Claim>,
    ) -> Result<Self, OpenError> {
        open_inner(config, claims).map_err(|why| OpenError { path: config.path.clone(), why })
    }

    /// Bytes, in whole blocks.
    #[must_use]
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Whether [`reopen`](Self::reopen) gives files past the page cache.
    #[must_use]
    pub fn is_direct(&self) -> bool {
        self.direct
    }

    /// The identity that a block device itself has; none of a regular file.
    #[must_use]
    pub fn medium(&self) -> Option<&str> {
        self.medium.as_deref()
    }

    /// What sysfs tells of the queue of a block device, as `io_poll`; none of a regular file.
    #[must_use]
    pub fn queue_attribute(&self, name: &str) -> Option<String> {
        queue_attribute(&self.file, name)
    }

    /// The same file opened once more, with a position of its own.
    ///
    /// # Errors
    /// The system's, as where there is no `/proc`.
    pub fn reopen(&self) -> io::Result<OwnedFd> {
        let path = format!("/proc/self/fd/{}", self.file.as_raw_fd());
        Ok(rustix::fs::open(&path, self.flags, Mode::empty())?)
    }

    /// The same file opened once more: a lost write is reported to each opening by itself.
    /// Without `/proc` it is the same opening again.
    pub(super) fn reopen_or_share(&self) -> io::Result<OwnedFd> {
        self.reopen().or_else(|error| {
            tracing::debug!(%error, "no second opening of the file");
            self.file.as_fd().try_clone_to_owned()
        })
    }
}

pub(super) fn check(config: &FileConfig) -> Result<(), OpenError> {
    check_inner(config).map_err(|why| OpenError { path: config.path.clone(), why })
}

fn open_inner(config: &FileConfig, claims: &mut Vec<Claim>) -> Result<OpenFile, OpenErrorWhy> {
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
        None if kind == Some(Kind::Block) => Claim::exclusive(Arc::clone(&file)),
        None => Claim::lock(Arc::clone(&file), read_only)?,
    };
    let size = match kind {
        Some(Kind::Block) => block_device_size(&file, config)?,
        _ => regular_size(&file, config)?,
    };
    let size = size - size % u64::from(config.block_size);
    if size == 0 {
        return Err(OpenErrorWhy::Empty { size, block_size: config.block_size });
    }
    let (direct, why_mode) = match config.direct {
        Direct::Never => (false, Cow::Borrowed("through the page cache, as configured")),
        wanted => match takes_direct(&file, flags, kind, config.block_size) {
            Ok(()) => (true, Cow::Borrowed("direct")),
            Err(why) if wanted == Direct::Required => return Err(OpenErrorWhy::NotDirect(why)),
            Err(why) => (false, format!("through the page cache: {why}").into()),
        },
    };
    let deallocate = !config.read_only && can_deallocate(&file, kind, size);
    let flags = if direct { flags | OFlags::DIRECT } else { flags };
    let (path, is_made) = (config.path.clone(), kind.is_none());
    let kind = kind.unwrap_or(Kind::Regular);
    let medium = of_block_device(&file);
    let extent = Mutex::new(Extent::of(size));
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

/// Opens what is there, for reading and writing if that goes; with what flags it was.
fn open_as_it_goes(
    config: &FileConfig,
    kind: Kind,
    is_claimed: bool,
) -> Result<(OwnedFd, OFlags), OpenErrorWhy> {
    // Exclusive: fails if it is mounted, part of an array, or another server has it. (A file
    // lock would meet udev, which locks a drive while it looks at it.)
    let is_exclusive = kind == Kind::Block && !is_claimed;
    let more = if is_exclusive { OFlags::EXCL } else { OFlags::empty() };
    let (mut file, mut read_only) = try_open(config, more)?;
    if kind == Kind::Block && !read_only && is_read_only(&file) {
        // Some drivers let it be opened for writing, and fail each write.
        drop(file);
        read_only = true;
        (file, _) = try_open(&FileConfig { read_only, ..config.clone() }, more)?;
    }
    if read_only && !config.read_only {
        tracing::warn!(
            device = %config.name, path = %config.path.display(),
            "it cannot be written to (write-protected, on a file system that is mounted read-only, \
             or without permission to write): hosts see it as write-protected"
        );
    }
    let access = if read_only { OFlags::RDONLY } else { OFlags::RDWR };
    Ok((file, access | OFlags::CLOEXEC))
}

/// Opens the path, for reading only if it is configured so or cannot be written to; whether it was.
fn try_open(config: &FileConfig, more: OFlags) -> Result<(OwnedFd, bool), OpenErrorWhy> {
    let open = |access| {
        let opened = rustix::fs::open(&config.path, access | OFlags::CLOEXEC | more, Mode::empty());
        match opened {
            Err(Errno::BUSY) if !more.is_empty() => Err(OpenErrorWhy::InUse),
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
    file.map(|file| (file, true)).ok_or(OpenErrorWhy::Missing)
}

fn check_inner(config: &FileConfig) -> Result<(), OpenErrorWhy> {
    check_block_size(config.block_size)?;
    let Some(kind) = kind_of(&config.path)? else {
        let folder = folder_of(&config.path);
        return match config.size {
            _ if !folder.is_dir() => Err(OpenErrorWhy::System {
                what: "create it: its folder is not there",
                source: Errno::NOENT.into(),
            }),
            Some(size) if !config.read_only => check_whole(size, config.block_size),
            _ => Err(OpenErrorWhy::Missing),
        };
    };
    let (file, read_only) = try_open(config, OFlags::empty())?;
    if kind == Kind::Block {
        return block_device_size(&file, config).map(drop);
    }
    let config = &FileConfig { read_only, ..config.clone() };
    let actual = system("read its size", rustix::fs::fstat(&file))?.st_size.unsigned_abs();
    match config.size {
        Some(wanted) if actual != 0 || config.read_only => check_size(actual, wanted),
        Some(wanted) => check_whole(wanted, config.block_size),
        None => check_whole(actual, config.block_size),
    }
}

fn check_block_size(block_size: u32) -> Result<(), OpenErrorWhy> {
    match block_size {
        512 | 4096 => Ok(()),
        other => Err(OpenErrorWhy::BlockSize(other)),
    }
}

pub(super) fn check_whole(size: u64, block_size: u32) -> Result<(), OpenErrorWhy> {
    if size < u64::from(block_size) {
        return Err(OpenErrorWhy::Empty { size, block_size });
    }
    Ok(())
}

/// What is at the path; `None` if nothing is.
fn kind_of(path: &Path) -> Result<Option<Kind>, OpenErrorWhy> {
    let stat = match rustix::fs::stat(path) {
        Err(Errno::NOENT) => return Ok(None),
        stat => system("look at it", stat)?,
    };
    let other = match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile => return Ok(Some(Kind::Regular)),
        FileType::BlockDevice => return Ok(Some(Kind::Block)),
        FileType::Directory => "a directory",
        FileType::CharacterDevice => "a character device",
        FileType::Fifo => "a pipe",
        FileType::Socket => "a socket",
        _ => "something else",
    };
    Err(OpenErrorWhy::Kind(other))
}

/// Makes the file. It is empty until [`regular_size`] gives it its size under the lock.
fn create(config: &FileConfig, flags: OFlags) -> Result<OwnedFd, OpenErrorWhy> {
    if config.size.is_none() || config.read_only {
        return Err(OpenErrorWhy::Missing);
    }
    // Not exclusive: another server that makes it at the same time meets us at the lock.
    let file =
        system("create it", rustix::fs::open(&config.path, flags | OFlags::CREATE, NEW_FILE))?;
    let folder = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    // A new name is on the medium when its folder is.
    let folder = system(
        "open its folder",
        rustix::fs::open(folder_of(&config.path), folder, Mode::empty()),
    )?;
    system("sync its folder", rustix::fs::fsync(&folder))?;
    Ok(file)
}

fn folder_of(path: &Path) -> &Path {
    match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    }
}

/// The size of a regular file, set if it is empty and a size is configured.
fn regular_size(file: &OwnedFd, config: &FileConfig) -> Result<u64, OpenErrorWhy> {
    let actual = system("read its size", rustix::fs::fstat(file))?.st_size.unsigned_abs();
    let Some(wanted) = config.size else {
        return check_whole(actual, config.block_size).map(|()| actual);
    };
    if actual == 0 && !config.read_only {
        check_whole(wanted, config.block_size)?;
        system("give it its size", rustix::fs::ftruncate(file, wanted))?;
        system("sync it", rustix::fs::fsync(file))?;
        return Ok(wanted);
    }
    check_size(actual, wanted).map(|()| actual)
}

pub(super) fn check_size(actual: u64, wanted: u64) -> Result<(), OpenErrorWhy> {
    let advice = match actual.cmp(&wanted) {
        std::cmp::Ordering::Equal => return Ok(()),
        std::cmp::Ordering::Less => "leave the size out, or extend the file with `truncate`",
        std::cmp::Ordering::Greater => "leave the size out, or give the file's own",
    };
    Err(OpenErrorWhy::Size { actual, wanted, advice })
}

/// The size of a block device, or the part of it that is configured.
pub(super) fn block_device_size(file: &OwnedFd, config: &FileConfig) -> Result<u64, OpenErrorWhy> {
    let sector = system("read its sector size", rustix::fs::ioctl_blksszget(file))?;
    let block_size = config.block_size;
    if sector > block_size {
        return Err(OpenErrorWhy::Sector { sector, block_size });
    }
    let actual = system("read its size", rustix::fs::seek(file, SeekFrom::End(0)))?;
    match config.size {
        Some(wanted) if wanted > actual => {
            let advice = "leave the size out, or give no more than it has";
            Err(OpenErrorWhy::Size { actual, wanted, advice })
        }
        Some(wanted) => check_whole(wanted, block_size).map(|()| wanted),
        None => check_whole(actual, block_size).map(|()| actual),
    }
}

/// Whether direct I/O of whole blocks goes; `Err` says why not.
fn takes_direct(
    file: &OwnedFd,
    flags: OFlags,
    kind: Option<Kind>,
    block_size: u32,
) -> Result<(), Cow<'static, str>> {
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    let direct = rustix::fs::open(&path, flags | OFlags::DIRECT, Mode::empty())
        .map_err(|error| format!("opening it with O_DIRECT: {}", io::Error::from(error)))?;
    if kind == Some(Kind::Block) {
        return Ok(());
    }
    let align = direct_alignment(&direct);
    match align {
        Some(0) => Err("the file system does none for this file".into()),
        Some(align) if align > block_size => {
            Err(format!("it needs multiples of {align} bytes, blocks are {block_size}").into())
        }
        Some(_) => Ok(()),
        None => probe(&direct, block_size),
    }
}

/// Bytes that offset, length and memory of direct I/O are multiples of (a part of a buffer starts on a
/// block); `None` if the system tells not.
fn direct_alignment(file: &OwnedFd) -> Option<u32> {
    let flags = StatxFlags::DIOALIGN;
    let stat = rustix::fs::statx(file.as_fd(), "", AtFlags::EMPTY_PATH, flags).ok()?;
    let align = stat.stx_dio_offset_align;
    let told = stat.stx_mask & flags.bits() != 0;
    told.then_some(if align == 0 { 0 } else { align.max(stat.stx_dio_mem_align) })
}

/// Tries a direct read of one block, where the system does not tell what it takes.
fn probe(file: &OwnedFd, block_size: u32) -> Result<(), Cow<'static, str>> {
    #[repr(align(4096))]
    struct Page([u8; 4096]);
    let mut page = Page([0; 4096]);
    match rustix::io::pread(file, &mut page.0[..block_size as usize], 0) {
        Ok(_) => Ok(()),
        Err(error) => Err(format!("reading {block_size} bytes: {}", io::Error::from(error)).into()),
    }
}

/// Whether a deallocated range is freed and reads as zeroes.
fn can_deallocate(file: &OwnedFd, kind: Option<Kind>, size: u64) -> bool {
    if kind == Some(Kind::Block) {
        return block_device_frees(file);
    }
    // Past the end nothing is changed, but a file system that cannot says so.
    let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    rustix::fs::fallocate(file, flags, size.next_multiple_of(4096), 4096).is_ok()
}

/// Whether the drive zeroes ranges by itself, which is what punching a hole in it needs.
fn block_device_frees(file: &OwnedFd) -> bool {
    queue_attribute(file, "write_zeroes_max_bytes")
        .is_some_and(|text| text.parse::<u64>().is_ok_and(|max| max > 0))
}

/// Whether the kernel refuses writes to a block device (BLKROSET), which a writer learns of last.
fn is_read_only(file: &OwnedFd) -> bool {
    let Some(folder) = block_folder(file) else { return false };
    std::fs::read_to_string(folder.join("ro")).is_ok_and(|text| text.trim() == "1")
}

/// The folder of a block device in sysfs, by a link: see there before going up from it.
pub(super) fn block_folder(file: &OwnedFd) -> Option<PathBuf> {
    let stat = rustix::fs::fstat(file).ok()?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::BlockDevice {
        return None;
    }
    let (major, minor) = (rustix::fs::major(stat.st_rdev), rustix::fs::minor(stat.st_rdev));
    Some(PathBuf::from(format!("/sys/dev/block/{major}:{minor}")))
}

/// What sysfs tells of the queue of a block device.
fn queue_attribute(file: &OwnedFd, name: &str) -> Option<String> {
    let folder = block_folder(file)?;
    // A partition has no queue of its own: its drive's is one folder up.
    let queues = [folder.join("queue"), folder.join("../queue")];
    let mut texts = queues.iter().filter_map(|at| std::fs::read_to_string(at.join(name)).ok());
    texts.next().map(|text| text.trim().to_owned())
}

pub(super) fn system<T, E: Into<io::Error>>(
    what: &'static str,
    result: Result<T, E>,
) -> Result<T, OpenErrorWhy> {
    result.map_err(|source| OpenErrorWhy::System { what, source: source.into() })
}
