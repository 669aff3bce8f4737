//! Conversion of errors of the lower layers into NVMe failures.
//!
//! Only `Failure::status` chooses the status codes.

use nvmeof_core::block::BlockError;
use nvmeof_nvmf::{Failure, IoKind};
use nvmeof_transport::FabricError;

/// Converts a device's error for a command of this kind.
pub(super) fn from_block(error: &BlockError, kind: IoKind) -> Failure {
    match error {
        BlockError::OutOfRange { .. } => Failure::LbaOutOfRange,
        BlockError::ReadOnly => Failure::WriteProtected,
        BlockError::NoSpace => Failure::NoSpace,
        BlockError::Gone => Failure::DeviceGone,
        BlockError::NoMemory | BlockError::NoThread => Failure::Busy,
        BlockError::Unsupported => Failure::Unsupported,
        _ => match kind {
            IoKind::Read | IoKind::Compare | IoKind::Verify => Failure::MediaRead,
            IoKind::Write
            | IoKind::Flush
            | IoKind::WriteZeroes { .. }
            | IoKind::Deallocate { .. } => Failure::MediaWrite,
        },
    }
}

/// Converts a fabric's error.
pub(super) fn from_fabric(error: FabricError) -> Failure {
    match error {
        FabricError::DataDigest => Failure::TransientTransport,
        FabricError::Transfer => Failure::DataTransfer,
        FabricError::Closed => Failure::QueueDeleted,
        FabricError::SglType => Failure::SglType,
        FabricError::SglLength => Failure::SglLength,
        FabricError::SglOffset => Failure::SglOffset,
        FabricError::SglCount => Failure::SglCount,
    }
}
