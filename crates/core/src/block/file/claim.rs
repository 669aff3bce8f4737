//! What keeps other servers from a file: a lock on a regular file, an exclusive opening of a block
//! device. The kernel ends either with the opening that has it.
//!
//! A device may take a file over from one of this process that ends when it is in use, as one that
//! is called otherwise does. Then both share the claim, and nobody else can come between them.

use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;

use rustix::fs::{FileType, FlockOperation, Stat};
use rustix::io::Errno;

use super::open::{OpenErrorWhy, system};

/// A claim to a file that is open.
#[derive(Debug, Clone)]
pub struct Claim(Arc<OwnedFd>);

impl Claim {
    /// Locks a file: for one writer, or for many readers.
    pub(super) fn lock(file: Arc<OwnedFd>, read_only: bool) -> Result<Self, OpenErrorWhy> {
        flock(&file, read_only)?;
        Ok(Self(file))
    }

    /// The claim of a block device that is open exclusively.
    pub(super) fn exclusive(file: Arc<OwnedFd>) -> Self {
        Self(file)
    }

    /// Takes the claim to what is at this path out of `claims`, if it is there.
    pub(super) fn take(path: &Path, claims: &mut Vec<Self>) -> Option<Self> {
        let stat = rustix::fs::stat(path).ok()?;
        let at = claims.iter().position(|claim| claim.is_to(&stat))?;
        Some(claims.swap_remove(at))
    }

    /// Shares it with another opening of the file. It stays as strict as it is when that reads
    /// only: what it is shared with may still write.
    pub(super) fn share(self, file: &OwnedFd, read_only: bool) -> Result<Self, OpenErrorWhy> {
        let stat = system("look at it", rustix::fs::fstat(file))?;
        // Another file was put there since.
        if !self.is_to(&stat) {
            return Err(OpenErrorWhy::InUse);
        }
        if !read_only && FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile {
            let locked = flock(&self.0, false);
            // The kernel gives the one lock up before it looks for the other.
            locked.inspect_err(|_| drop(flock(&self.0, true)))?;
        }
        Ok(self)
    }

    /// Whether it is to the file with this status.
    fn is_to(&self, other: &Stat) -> bool {
        let Ok(own) = rustix::fs::fstat(&self.0) else { return false };
        let is_block = |stat: &Stat| FileType::from_raw_mode(stat.st_mode) == FileType::BlockDevice;
        match (is_block(&own), is_block(other)) {
            (true, true) => own.st_rdev == other.st_rdev,
            (false, false) => (own.st_dev, own.st_ino) == (other.st_dev, other.st_ino),
            _ => false,
        }
    }
}

fn flock(file: &OwnedFd, read_only: bool) -> Result<(), OpenErrorWhy> {
    let operation = if read_only {
        FlockOperation::NonBlockingLockShared
    } else {
        FlockOperation::NonBlockingLockExclusive
    };
    match rustix::fs::flock(file, operation) {
        Err(Errno::WOULDBLOCK) => Err(OpenErrorWhy::InUse),
        result => system("lock it", result),
    }
}
