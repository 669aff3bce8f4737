//! Claims that keep other servers off a file: a lock on a regular file, an exclusive open of a
//! block device.
//!
//! The kernel ends either one when the descriptor that holds it is closed.
//!
//! A device may take a file over from another device of this process, for example one with another
//! name. The old device ends once the new one is in use. Both then share the claim, so no other
//! process can claim the file in between.

use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;

use rustix::fs::{FileType, FlockOperation, Stat};
use rustix::io::Errno;

use super::error::{OpenErrorReason, system};

/// A claim to an open file.
#[derive(Debug, Clone)]
pub struct Claim(Arc<OwnedFd>);

impl Claim {
    /// Locks a file for one writer, or for several readers.
    pub(super) fn lock(file: Arc<OwnedFd>, read_only: bool) -> Result<Self, OpenErrorReason> {
        flock(&file, read_only)?;
        Ok(Self(file))
    }

    /// Returns the claim of a block device that is open exclusively.
    pub(super) fn exclusive(file: Arc<OwnedFd>) -> Self {
        Self(file)
    }

    /// Removes the claim to the file at this path from `claims` and returns it, if there is one.
    pub(super) fn take(path: &Path, claims: &mut Vec<Self>) -> Option<Self> {
        let stat = rustix::fs::stat(path).ok()?;
        let at = claims.iter().position(|claim| claim.is_to(&stat))?;
        Some(claims.swap_remove(at))
    }

    /// Shares the claim with another open of the file. It stays exclusive even if that open only
    /// reads, because the first one may still write.
    pub(super) fn share(self, file: &OwnedFd, read_only: bool) -> Result<Self, OpenErrorReason> {
        let stat = system("stat the file", rustix::fs::fstat(file))?;
        // Another file has replaced it.
        if !self.is_to(&stat) {
            return Err(OpenErrorReason::InUse);
        }
        if !read_only && FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile {
            let locked = flock(&self.0, false);
            // The kernel releases the shared lock before it tries the exclusive one.
            locked.inspect_err(|_| drop(flock(&self.0, true)))?;
        }
        Ok(self)
    }

    /// Returns true if the claim is to the file with this status.
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

fn flock(file: &OwnedFd, read_only: bool) -> Result<(), OpenErrorReason> {
    let operation = if read_only {
        FlockOperation::NonBlockingLockShared
    } else {
        FlockOperation::NonBlockingLockExclusive
    };
    match rustix::fs::flock(file, operation) {
        Err(Errno::WOULDBLOCK) => Err(OpenErrorReason::InUse),
        result => system("lock it", result),
    }
}
