//! Errors of opening a controller, and of admin commands.

use std::io;

use nvmeof_wire::status::Status;
use thiserror::Error;

/// Error that prevents the use of a controller or namespace.
#[derive(Debug, Error)]
#[error("{address}: {reason}")]
pub struct OpenError {
    /// PCI address of the controller.
    pub address: String,
    /// Reason.
    pub reason: OpenErrorReason,
}

/// Reason why a controller or namespace cannot be used.
#[derive(Debug, Error)]
pub enum OpenErrorReason {
    /// The registers read as all ones.
    #[error("controller not responding: registers read as all ones")]
    Gone,
    /// The registers are not those of an NVMe controller.
    #[error("this is no NVMe controller: {0}")]
    NotNvme(String),
    /// The controller's capabilities are invalid or insufficient.
    #[error("unsupported controller capabilities (CAP {cap:#018x}): {reason}")]
    Capabilities {
        /// The register.
        cap: u64,
        /// Problem with it.
        reason: String,
    },
    /// CSTS.RDY did not follow CC.EN in time.
    #[error("the controller did not become {} within {millis} ms (CAP.TO, CRTO)", if *.ready { "ready" } else { "disabled" })]
    Slow {
        /// Requested state.
        ready: bool,
        /// Time limit in milliseconds.
        millis: u64,
    },
    /// The controller reports CSTS.CFS.
    #[error("the controller reports a fatal status (CSTS.CFS)")]
    Fatal,
    /// Identify Controller is invalid.
    #[error("Identify Controller data is invalid: {0}")]
    Identify(String),
    /// The controller is of another type, or lacks a required feature.
    #[error("{0}")]
    Unsuitable(String),
    /// A namespace does not exist, or cannot be used.
    #[error("namespace {nsid}: {reason}")]
    Namespace {
        /// The namespace.
        nsid: u32,
        /// Problem with it.
        reason: String,
    },
    /// An admin command failed.
    #[error("{command}: {error}")]
    Command {
        /// Name of the command.
        command: &'static str,
        /// Its error.
        error: AdminError,
    },
    /// DMA memory, interrupts or descriptors are not available.
    #[error("{what}: {error}")]
    System {
        /// The operation.
        what: &'static str,
        /// The system's error.
        error: io::Error,
    },
}

/// Reason why an admin command did not succeed.
#[derive(Debug, Error, Clone, PartialEq, Eq)]
pub enum AdminError {
    /// The controller returned an error status.
    #[error("the controller responded: {0}")]
    Status(Status),
    /// No completion in time.
    #[error("the controller did not respond in time")]
    Timeout,
    /// The controller was reset before the command completed.
    #[error("the controller was reset before the command completed")]
    Reset,
    /// The controller has failed or is gone.
    #[error("the controller has failed: {0}")]
    Failed(String),
    /// All admin slots are in use.
    #[error("too many admin commands at a time: try again")]
    Busy,
    /// Queues to the controller are open.
    #[error("the drive is in use: {0} I/O queues are open")]
    InUse(usize),
    /// The controller does not support this.
    #[error("the drive does not support this: {0}")]
    Unsupported(&'static str),
    /// The request is invalid.
    #[error("{0}")]
    Invalid(String),
    /// The operation began, but its state is unknown: it may be running, completed or failed.
    #[error("the operation was started and may still be running; its state is unknown: {0}")]
    Unknown(String),
    /// The operation began, and failed on the drive.
    #[error("the drive reports a failure: {0}")]
    Unsuccessful(String),
}

impl OpenErrorReason {
    pub(super) fn at(self, address: &str) -> OpenError {
        OpenError { address: address.to_owned(), reason: self }
    }

    /// Wraps an [`Self::System`] error.
    pub(super) fn system(what: &'static str) -> impl FnOnce(io::Error) -> Self {
        move |error| Self::System { what, error }
    }

    /// Wraps an [`Self::Command`] error.
    pub(super) fn command(command: &'static str) -> impl FnOnce(AdminError) -> Self {
        move |error| Self::Command { command, error }
    }
}
