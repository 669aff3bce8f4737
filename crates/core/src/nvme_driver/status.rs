//! Conversion of a drive's status codes to block errors.

use nvmeof_wire::status::{Status, StatusType};

use crate::block::BlockError;

/// Converts the status of a command on `len` bytes at `offset`.
pub(super) fn to_result(status: Status, offset: u64, len: u64) -> Result<(), BlockError> {
    if status.is_success() {
        return Ok(());
    }
    Err(match status.code() {
        Status::LBA_OUT_OF_RANGE => BlockError::OutOfRange { offset, len },
        Status::CAPACITY_EXCEEDED => BlockError::NoSpace,
        Status::INVALID_OPCODE => BlockError::Unsupported,
        Status::NAMESPACE_WRITE_PROTECTED | Status::WRITE_TO_READ_ONLY_RANGE => {
            BlockError::ReadOnly
        }
        Status::INVALID_NAMESPACE_OR_FORMAT => BlockError::Gone,
        Status::COMPARE_FAILURE => BlockError::Media { errno: libc::EILSEQ },
        // Only the supervisor aborts, and only commands that exceed the timeout.
        Status::ABORT_REQUESTED => timed_out(),
        Status::ABORTED_SQ_DELETION => BlockError::Cancelled,
        _ if status.status_type() == StatusType::MediaAndDataIntegrity => {
            BlockError::Media { errno: libc::EIO }
        }
        _ => BlockError::Io(libc::EIO),
    })
}

/// Returns the error of a command that exceeded the timeout.
pub(super) fn timed_out() -> BlockError {
    BlockError::Io(libc::ETIMEDOUT)
}
