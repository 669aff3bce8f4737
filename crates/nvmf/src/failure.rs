//! Failures of commands, and their mapping to status codes.

use nvmeof_wire::Status;

/// Reason for the failure of a command.
///
/// [`Failure::status`] is the only place that maps a failure to a status code.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    // Malformed or not allowed at all.
    /// The controller does not support the opcode, fabrics type or command.
    #[error("the opcode is not supported")]
    InvalidOpcode,
    /// A field has a value that is reserved, unsupported or out of range.
    #[error("a field of the command is invalid")]
    InvalidField,
    /// The command identifier is in use.
    #[error("the command identifier is in use on this queue")]
    CidConflict,
    /// Not allowed in this state: before Connect, before CC.EN, after shutdown, or out of order.
    #[error("the command is not allowed in this state")]
    CommandSequence,
    /// Commands from before a reset, or of the previous association, are still at a device.
    #[error("commands of before are still with a device")]
    Quiescing,
    /// The NSID cannot identify a namespace.
    #[error("the namespace identifier is invalid")]
    InvalidNamespace,
    /// The host has more commands outstanding than its queue has entries.
    #[error("more commands are outstanding than the queue has entries")]
    QueueOverrun,

    // Data pointer.
    /// The transport does not support the descriptor type or subtype for this command.
    #[error("the SGL descriptor type is not allowed here")]
    SglType,
    /// The SGL is shorter than the data, or in-capsule data is missing.
    #[error("the SGL is shorter than the data of the command")]
    SglLength,
    /// The in-capsule offset is beyond the capsule.
    #[error("the SGL offset is outside the in-capsule data")]
    SglOffset,
    /// More descriptors than MSDBD allows, or none.
    #[error("the number of SGL descriptors is invalid")]
    SglCount,
    /// The data arrived incomplete or corrupted (digest, transport failure).
    #[error("the data transfer failed")]
    DataTransfer,
    /// As [`Self::DataTransfer`], but a retry can succeed.
    #[error("the data transfer failed for a passing reason")]
    TransientTransport,

    // Connect (Base 6.3).
    /// The record format is unknown.
    #[error("the Connect record format is unknown")]
    ConnectFormat,
    /// No controller is available now.
    #[error("no controller is free")]
    ConnectBusy,
    /// The host has reached its limit on connections, in all subsystems.
    #[error("the host has reached its limit on connections")]
    HostConnections,
    /// The host has reached its limit on I/O queues, in all subsystems.
    #[error("the host has reached its limit on I/O queues")]
    HostQueues,
    /// The target has reached its limit on queues.
    #[error("the target has as many connections as limits.connections allows")]
    TargetConnections,
    /// The remaining connections are reserved for hosts that subsystems list.
    #[error("the last quarter of limits.connections is kept for hosts that subsystems list")]
    UnlistedConnections,
    /// The maximum number of discovery controllers is reached.
    #[error("there are as many discovery controllers as a quarter of limits.connections")]
    DiscoveryControllers,
    /// A parameter of Connect is invalid.
    #[error("a Connect parameter is invalid: byte {offset} of the {}", if *in_data { "data" } else { "command" })]
    ConnectParameter {
        /// First byte of the invalid parameter (IPO).
        offset: u16,
        /// The parameter is in the Connect data, not in the command (IATTR).
        in_data: bool,
    },
    /// The controller that a Connect of an I/O queue names has ended, or was replaced.
    ///
    /// The host's next association has a controller, so the host may retry.
    #[error("the controller no longer exists: byte {offset} of the data")]
    ConnectGone {
        /// First byte of the parameter (IPO).
        offset: u16,
    },
    /// The controller is not enabled, was reset in between, or still has the requested queue.
    #[error("the controller is not ready for the queue")]
    ConnectTooSoon,
    /// The subsystem does not exist now; a later config can create it.
    #[error("unknown subsystem: byte {offset} of the data")]
    ConnectSubsystem {
        /// First byte of the parameter (IPO).
        offset: u16,
    },
    /// The host may not connect to this subsystem unless the config changes.
    #[error("the host is not allowed")]
    ConnectHost,
    /// CC.EN is not set or the queue type does not fit.
    #[error("the queue type is invalid")]
    InvalidQueueType,

    // Admin.
    /// The feature value is not saveable.
    #[error("the feature cannot be saved")]
    FeatureNotSaveable,
    /// The feature is not changeable.
    #[error("the feature cannot be changed")]
    FeatureNotChangeable,
    /// The feature is not namespace specific.
    #[error("the feature is not namespace specific")]
    FeatureNotNamespaceSpecific,
    /// The log page identifier is not supported.
    #[error("the log page is not supported")]
    InvalidLogPage,
    /// The keep-alive timeout is out of range, or missing where required.
    #[error("the keep-alive timeout is invalid")]
    KeepAliveInvalid,
    /// More Asynchronous Event Requests than AERL allows.
    #[error("too many asynchronous event requests")]
    AsyncEventLimit,
    /// More Aborts than ACL allows.
    #[error("too many abort commands")]
    AbortLimit,
    /// The I/O command set is not that of the namespace (Identify CSI).
    #[error("the I/O command set is not that of the namespace")]
    InvalidCommandSet,
    /// The controller does not have this combination of I/O command sets.
    #[error("the combination of I/O command sets does not exist")]
    CommandSetCombination,

    // I/O.
    /// The blocks are beyond the namespace.
    #[error("the logical blocks are beyond the namespace")]
    LbaOutOfRange,
    /// More blocks than a limit of Dataset Management allows (DMRSL, DMSL).
    #[error("the ranges are larger than the limits that Identify reports")]
    SizeLimit,
    /// The namespace is read-only.
    #[error("the namespace is write protected")]
    WriteProtected,
    /// Compare found a difference.
    #[error("the data differs from the medium")]
    CompareMismatch,
    /// The medium could not be read.
    #[error("the medium could not be read")]
    MediaRead,
    /// The medium could not be written.
    #[error("the medium could not be written")]
    MediaWrite,
    /// The device behind the namespace has no room (thin or sparse).
    #[error("the device has no space left")]
    NoSpace,
    /// The device behind the namespace is gone.
    #[error("the device is missing")]
    DeviceGone,
    /// The device does not support the operation.
    #[error("the device does not support the operation")]
    Unsupported,

    // Other failures.
    /// An Abort requested it.
    #[error("aborted on request")]
    Aborted,
    /// Its queue was deleted.
    #[error("aborted because its queue was deleted")]
    QueueDeleted,
    /// Memory or another resource is temporarily exhausted.
    #[error("out of resources for the moment")]
    Busy,
    /// A fault of the target itself.
    #[error("internal error")]
    Internal,
}

impl Failure {
    /// The status code, including DNR: set if the same command would fail again.
    #[must_use]
    pub const fn status(&self) -> Status {
        match self {
            Self::InvalidOpcode | Self::Unsupported => Status::INVALID_OPCODE.with_dnr(),
            Self::InvalidField => Status::INVALID_FIELD.with_dnr(),
            Self::CidConflict => Status::CID_CONFLICT.with_dnr(),
            Self::CommandSequence | Self::QueueOverrun => Status::COMMAND_SEQUENCE_ERROR.with_dnr(),
            Self::Quiescing => Status::COMMAND_SEQUENCE_ERROR,
            Self::InvalidNamespace => Status::INVALID_NAMESPACE_OR_FORMAT.with_dnr(),

            Self::SglType => Status::SGL_TYPE_INVALID.with_dnr(),
            Self::SglLength => Status::DATA_SGL_LENGTH_INVALID.with_dnr(),
            Self::SglOffset => Status::SGL_OFFSET_INVALID.with_dnr(),
            Self::SglCount => Status::INVALID_SGL_COUNT.with_dnr(),
            Self::DataTransfer => Status::DATA_TRANSFER_ERROR,
            Self::TransientTransport => Status::TRANSIENT_TRANSPORT_ERROR,

            Self::ConnectFormat => Status::CONNECT_INCOMPATIBLE_FORMAT.with_dnr(),
            Self::ConnectBusy
            | Self::HostConnections
            | Self::HostQueues
            | Self::TargetConnections
            | Self::UnlistedConnections
            | Self::DiscoveryControllers => Status::CONTROLLER_BUSY,
            Self::ConnectParameter { .. } => Status::CONNECT_INVALID_PARAMETERS.with_dnr(),
            // Linux permanently removes a controller when a reconnect fails with DNR
            // (nvmf_should_reconnect). DNR is therefore clear where the next Connect can succeed,
            // after a reset, a reload or a change of the config.
            Self::ConnectGone { .. } | Self::ConnectSubsystem { .. } => {
                Status::CONNECT_INVALID_PARAMETERS
            }
            Self::ConnectTooSoon => Status::COMMAND_SEQUENCE_ERROR,
            Self::ConnectHost => Status::CONNECT_INVALID_HOST,
            Self::InvalidQueueType => Status::INVALID_QUEUE_TYPE.with_dnr(),

            Self::FeatureNotSaveable => Status::FEATURE_NOT_SAVEABLE.with_dnr(),
            Self::FeatureNotChangeable => Status::FEATURE_NOT_CHANGEABLE.with_dnr(),
            Self::FeatureNotNamespaceSpecific => Status::FEATURE_NOT_NAMESPACE_SPECIFIC.with_dnr(),
            Self::InvalidLogPage => Status::INVALID_LOG_PAGE.with_dnr(),
            Self::KeepAliveInvalid => Status::KEEP_ALIVE_INVALID.with_dnr(),
            Self::AsyncEventLimit => Status::ASYNC_EVENT_LIMIT_EXCEEDED.with_dnr(),
            Self::AbortLimit => Status::ABORT_LIMIT_EXCEEDED,
            Self::InvalidCommandSet => Status::INVALID_COMMAND_SET.with_dnr(),
            Self::CommandSetCombination => Status::COMMAND_SET_COMBINATION_REJECTED.with_dnr(),

            Self::LbaOutOfRange => Status::LBA_OUT_OF_RANGE.with_dnr(),
            Self::SizeLimit => Status::COMMAND_SIZE_LIMIT_EXCEEDED.with_dnr(),
            Self::WriteProtected => Status::NAMESPACE_WRITE_PROTECTED.with_dnr(),
            Self::CompareMismatch => Status::COMPARE_FAILURE.with_dnr(),
            Self::MediaRead => Status::UNRECOVERED_READ_ERROR.with_dnr(),
            Self::MediaWrite => Status::WRITE_FAULT.with_dnr(),
            Self::NoSpace => Status::CAPACITY_EXCEEDED.with_dnr(),
            // No path error: a Linux host with only this path would retry on it forever without a
            // pause.
            Self::DeviceGone => Status::INTERNAL_ERROR,

            Self::Aborted => Status::ABORT_REQUESTED,
            Self::QueueDeleted => Status::ABORTED_SQ_DELETION,
            Self::Busy => Status::COMMAND_INTERRUPTED,
            Self::Internal => Status::INTERNAL_ERROR,
        }
    }

    /// The value of the completion's first dwords for this failure.
    #[must_use]
    pub const fn result(&self) -> u64 {
        match self {
            // IPO in 15:0, IATTR in 16 (Base 6.3, Figure 390).
            Self::ConnectParameter { offset, in_data } => *offset as u64 | (*in_data as u64) << 16,
            Self::ConnectGone { offset } | Self::ConnectSubsystem { offset } => {
                *offset as u64 | 1 << 16
            }
            _ => 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_may_pass_is_worth_another_try() {
        let passing = [
            Failure::DataTransfer,
            Failure::TransientTransport,
            Failure::ConnectBusy,
            Failure::Quiescing,
            Failure::HostConnections,
            Failure::HostQueues,
            Failure::TargetConnections,
            Failure::UnlistedConnections,
            Failure::DiscoveryControllers,
            Failure::ConnectGone { offset: 16 },
            Failure::ConnectTooSoon,
            Failure::ConnectSubsystem { offset: 256 },
            Failure::ConnectHost,
            Failure::DeviceGone,
            Failure::AbortLimit,
            Failure::Aborted,
            Failure::QueueDeleted,
            Failure::Busy,
            Failure::Internal,
        ];
        let lasting = [
            Failure::InvalidOpcode,
            Failure::InvalidField,
            Failure::CommandSequence,
            Failure::LbaOutOfRange,
            Failure::SizeLimit,
            Failure::WriteProtected,
            Failure::CompareMismatch,
            Failure::MediaRead,
            Failure::MediaWrite,
            Failure::NoSpace,
            Failure::ConnectFormat,
            Failure::ConnectParameter { offset: 44, in_data: false },
        ];
        assert!(passing.iter().all(|failure| !failure.status().dnr()));
        assert!(lasting.iter().all(|failure| failure.status().dnr()));
    }

    /// Linux retries a path forever after a path error, which is status code type 3h.
    #[test]
    fn a_device_that_is_gone_is_not_the_paths_fault() {
        assert_eq!(Failure::DeviceGone.status().sct(), 0, "a host with one path gives up");
    }

    #[test]
    fn connect_says_which_parameter_is_wrong() {
        let in_data = Failure::ConnectParameter { offset: 256, in_data: true };
        assert_eq!(
            (in_data.status().code(), in_data.result()),
            (Status::CONNECT_INVALID_PARAMETERS, 0x1_0100)
        );
        let in_command = Failure::ConnectParameter { offset: 44, in_data: false };
        assert_eq!(in_command.result(), 44);
        assert_eq!(
            in_command.to_string(),
            "a Connect parameter is invalid: byte 44 of the command"
        );
        assert_eq!(Failure::ConnectGone { offset: 16 }.result(), 0x1_0010);
        assert_eq!(Failure::ConnectSubsystem { offset: 256 }.result(), 0x1_0100);
        assert_eq!(Failure::ConnectHost.result(), 0);
    }
}
