//! The read calls.

use std::io::{self, IoSliceMut};
use std::os::fd::OwnedFd;

use nvmeof_core::block::BlockError;
use rustix::fs::SeekFrom;
use rustix::io::{Errno, ReadWriteFlags};

/// Error of a read that ends early: `ENODATA`.
const NO_DATA: i32 = Errno::NODATA.raw_os_error();

/// System calls of a read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ReadCall {
    /// `lseek`, then `read`.
    SeekRead,
    /// `pread`.
    Pread,
    /// `preadv`.
    Preadv,
    /// `preadv2`; with high priority `RWF_HIPRI`.
    Preadv2 { high_priority: bool },
}

impl ReadCall {
    /// Fills `buf` from `offset` on with as many calls as necessary; each starts on a block.
    pub(super) fn read_all(
        self,
        file: &OwnedFd,
        buf: &mut [u8],
        offset: u64,
        block: usize,
    ) -> Result<(), BlockError> {
        let mut at = 0;
        while at < buf.len() {
            let count = match self.read(file, &mut buf[at..], offset + at as u64) {
                Ok(count) => count,
                Err(Errno::INTR | Errno::AGAIN) => continue,
                Err(error) => return Err(block_error(&error.into())),
            };
            let next = at + count;
            let next = if next < buf.len() { next - next % block } else { next };
            if next == at {
                // The file has been truncated.
                return Err(BlockError::from_errno(NO_DATA));
            }
            at = next;
        }
        Ok(())
    }

    fn read(self, file: &OwnedFd, buf: &mut [u8], offset: u64) -> Result<usize, Errno> {
        match self {
            Self::SeekRead => {
                rustix::fs::seek(file, SeekFrom::Start(offset))?;
                rustix::io::read(file, buf)
            }
            Self::Pread => rustix::io::pread(file, buf, offset),
            Self::Preadv => rustix::io::preadv(file, &mut [IoSliceMut::new(buf)], offset),
            Self::Preadv2 { high_priority } => {
                let none = ReadWriteFlags::empty();
                let flags = if high_priority { ReadWriteFlags::HIPRI } else { none };
                rustix::io::preadv2(file, &mut [IoSliceMut::new(buf)], offset, flags)
            }
        }
    }
}

pub(super) fn block_error(error: &io::Error) -> BlockError {
    BlockError::from_errno(error.raw_os_error().unwrap_or(Errno::IO.raw_os_error()))
}
