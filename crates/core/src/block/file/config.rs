//! Parameters of a file.

use std::path::PathBuf;

/// Default number of operations in flight per queue.
pub const DEFAULT_DEPTH: usize = 256;

/// Parameters for opening a file as a device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileConfig {
    /// Name in the configuration.
    pub name: String,
    /// Path of the file or block device.
    pub path: PathBuf,
    /// Size in bytes. A missing or empty file is created sparse with this size; an existing one
    /// must have it. `None`: the current size.
    pub size: Option<u64>,
    /// Bytes per logical block: 512 or 4096.
    pub block_size: u32,
    /// Opens for reading only. Files that are not writable are opened this way, too: see
    /// [`DeviceInfo::read_only`](crate::block::DeviceInfo::read_only).
    pub read_only: bool,
    /// Opens a block device for reading even while it is in use, as a member of an array is.
    pub shared: bool,
    /// Use of direct I/O.
    pub direct: Direct,
    /// Maximum operations in flight per queue.
    pub queue_depth: usize,
}

/// Use of direct I/O (`O_DIRECT`), which bypasses the page cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Direct {
    /// Direct I/O if the file supports it for this block size; otherwise the log gives the reason.
    #[default]
    Auto,
    /// Direct I/O, or the file is not opened.
    Required,
    /// No direct I/O: through the page cache.
    Never,
}

impl FileConfig {
    /// Returns the defaults for a file or block device.
    pub fn new(name: impl Into<String>, path: impl Into<PathBuf>, block_size: u32) -> Self {
        Self {
            name: name.into(),
            path: path.into(),
            size: None,
            block_size,
            read_only: false,
            shared: false,
            direct: Direct::Auto,
            queue_depth: DEFAULT_DEPTH,
        }
    }
}
