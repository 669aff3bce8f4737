//! Bytes of a file that its devices use.

/// Bytes of a file in use.
#[derive(Debug, Clone, Copy)]
pub(super) struct FileExtent {
    pub(super) size: u64,
    /// The file is larger and will be truncated.
    pub(super) is_less: bool,
}

impl FileExtent {
    pub(super) fn of(size: u64) -> Self {
        Self { size, is_less: false }
    }

    pub(super) fn set(&mut self, size: u64) {
        self.is_less |= size < self.size;
        self.size = size;
    }
}
