//! Every way a command fails, and the one map to a status code.

use nvmeof_wire::Status;

/// Why a command failed. [`Failure::status`] is the only place where a failure becomes a status code.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    // Malformed or not allowed at all.
    /// Opcode, fabrics type or command that this controller does not have.
    #[error("the opcode is not supported")]
    InvalidOpcode,
    /// A field has a value that is reserved, unsupported or out of range.
    #[error("a field of the command is invalid")]
    InvalidField,
    /// The command identifier is in use.
    #[error("the command identifier is in use on this queue")]
    CidConflict,
    /// Not in this state: before Connect, before CC.EN, after shutdown, or out of order.
    #[error("the command is not allowed in this state")]
    CommandSequence,
    /// Commands of before a reset, or of the association before this one, are still with a device.
    #[error("commands of before are still with a device")]
    Quiescing,
    /// The NSID can name no namespace here.
    #[error("the namespace identifier is invalid")]
    InvalidNamespace,
    /// The host has more commands outstanding than its queue has entries.
    #[error("more commands are outstanding than the queue has entries")]
    QueueOverrun,

    // Data pointer.
    /// Descriptor type or sub type this transport does not take for this command.
    #[error("the SGL descriptor type is not allowed here")]
    SglType,
    /// Shorter than the data, or in-capsule data that did not come.
    #[error("the SGL is shorter than the data of the command")]
    SglLength,
    /// In-capsule offset beyond the capsule.
    #[error("the SGL offset is outside the in-capsule data")]
    SglOffset,
    /// More descriptors than MSDBD allows, or none.
    #[error("the number of SGL descriptors is invalid")]
    SglCount,
    /// The data did not arrive whole and unharmed (digest, transport failure).
    #[error("the data transfer failed")]
    DataTransfer,
    /// As [`Self::DataTransfer`], and worth another try.
    #[error("the data transfer failed for a passing reason")]
    TransientTransport,

    // Connect (Base 6.3).
    /// Unknown record format.
    #[error("the Connect record format is unknown")]
    ConnectFormat,
    /// No controller is to be had now.
    #[error("no controller is free")]
    ConnectBusy,
    /// The host has as many connections as it may have, in all subsystems.
    #[error("the host has as many connections as it may")]
    HostConnections,
    /// The host has as many I/O queues as it may have, in all subsystems.
    #[error("the host has as many I/O queues as it may")]
    HostQueues,
    /// The target has as many queues as it may have.
    #[error("the target has as many connections as limits.connections allows")]
    TargetConnections,
    /// What is left is kept for hosts that subsystems list.
    #[error("the last quarter of limits.connections is kept for hosts that subsystems list")]
    UnlistedConnections,
    /// There are as many discovery controllers as may be.
    #[error("there are as many discovery controllers as a quarter of limits.connections")]
    DiscoveryControllers,
    /// A parameter of Connect is invalid.
    #[error("a Connect parameter is invalid: byte {offset} of the {}", if *in_data { "data" } else { "command" })]
    ConnectParameter {
        /// The offending parameter's first byte (IPO).
        offset: u16,
        /// In the Connect data, not the command (IATTR).
        in_data: bool,
    },
    /// The controller that a Connect of an I/O queue names has gone, or is another by now. The host's next association
    /// has one: it may try again.
    #[error("the controller is gone: byte {offset} of the data names it")]
    ConnectGone {
        /// The parameter's first byte (IPO).
        offset: u16,
    },
    /// The controller is not enabled, was reset meanwhile, or still has the queue that is asked for.
    #[error("the controller is not ready for the queue")]
    ConnectTooSoon,
    /// There is no such subsystem now: it may be about to come.
    #[error("there is no such subsystem: byte {offset} of the data names it")]
    ConnectSubsystem {
        /// The parameter's first byte (IPO).
        offset: u16,
    },
    /// The host may not connect to this subsystem, as long as nobody lets it.
    #[error("the host is not allowed")]
    ConnectHost,
    /// CC.EN is not set or the queue type does not fit.
    #[error("the queue type is invalid")]
    InvalidQueueType,

    // Admin.
    /// Feature value cannot be saved.
    #[error("the feature cannot be saved")]
    FeatureNotSaveable,
    /// Feature cannot be changed.
    #[error("the feature cannot be changed")]
    FeatureNotChangeable,
    /// Feature is not namespace specific.
    #[error("the feature is not namespace specific")]
    FeatureNotNamespaceSpecific,
    /// Log page identifier.
    #[error("the log page is not supported")]
    InvalidLogPage,
    /// Keep-alive timeout out of range or missing where it is needed.
    #[error("the keep-alive timeout is invalid")]
    KeepAliveInvalid,
    /// More Asynchronous Event Requests than AERL allows.
    #[error("too many asynchronous event requests")]
    AsyncEventLimit,
    /// More Aborts than ACL allows.
    #[error("too many abort commands")]
    AbortLimit,
    /// I/O command set is not that of the namespace (Identify CSI).
    #[error("the I/O command set is not that of the namespace")]
    InvalidCommandSet,

    // I/O.
    /// Blocks beyond the namespace.
    #[error("the logical blocks are beyond the namespace")]
    LbaOutOfRange,
    /// More blocks than a limit of Dataset Management allows (DMRSL, DMSL).
    #[error("the ranges are larger than the limits that Identify reports")]
    SizeLimit,
    /// The namespace takes no writes.
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
    #[error("the device is gone")]
    DeviceGone,
    /// The device does not do this.
    #[error("the device does not support the operation")]
    Unsupported,

    // Anything else.
    /// Abort asked for it.
    #[error("aborted on request")]
    Aborted,
    /// Its queue went away.
    #[error("aborted because its queue was deleted")]
    QueueDeleted,
    /// No memory or other passing shortage.
    #[error("out of resources for the moment")]
    Busy,
    /// The target's own fault.
    #[error("internal error")]
    Internal,
}

impl Failure {
    /// The status code, DNR included: set where the same command would fail again.
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
            // Linux removes a controller for good when a reconnect fails with DNR (nvmf_should_reconnect): not where
            // the next Connect, after a reset, a reload or a change of the config, may go well.
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

            Self::LbaOutOfRange => Status::LBA_OUT_OF_RANGE.with_dnr(),
            Self::SizeLimit => Status::COMMAND_SIZE_LIMIT_EXCEEDED.with_dnr(),
            Self::WriteProtected => Status::NAMESPACE_WRITE_PROTECTED.with_dnr(),
            Self::CompareMismatch => Status::COMPARE_FAILURE.with_dnr(),
            Self::MediaRead => Status::UNRECOVERED_READ_ERROR.with_dnr(),
            Self::MediaWrite => Status::WRITE_FAULT.with_dnr(),
            Self::NoSpace => Status::CAPACITY_EXCEEDED.with_dnr(),
            // No path error: a Linux host with this path alone would try again on it without a pause and without end.
            Self::DeviceGone => Status::INTERNAL_ERROR,

            Self::Aborted => Status::ABORT_REQUESTED,
            Self::QueueDeleted => Status::ABORTED_SQ_DELETION,
            Self::Busy => Status::COMMAND_INTERRUPTED,
            Self::Internal => Status::INTERNAL_ERROR,
        }
    }

    /// What goes with the status in the completion's first dwords.
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

    /// Linux tries this path again without end for what it takes to be the path's fault: status code type 3h.
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
