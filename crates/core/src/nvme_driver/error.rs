//! What can go wrong before there is a queue, and with admin commands.

use std::io;

use nvmeof_wire::status::Status;
use thiserror::Error;

/// A controller or namespace that cannot be used.
#[derive(Debug, Error)]
#[error("{address}: {why}")]
pub struct OpenError {
    /// Where the controller is: its PCI address.
    pub address: String,
    /// Why.
    pub why: OpenErrorWhy,
}

/// Why a controller or namespace cannot be used.
#[derive(Debug, Error)]
pub enum OpenErrorWhy {
    /// The registers read as all ones.
    #[error("no device answers: the registers read as all ones")]
    Gone,
    /// The registers are not those of an NVMe controller.
    #[error("this is no NVMe controller: {0}")]
    NotNvme(String),
    /// The controller's capabilities make no sense, or are not enough.
    #[error("the controller's capabilities (CAP {cap:#018x}) do not do: {why}")]
    Capabilities {
        /// The register.
        cap: u64,
        /// What is wrong with it.
        why: String,
    },
    /// CSTS.RDY did not follow CC.EN in time.
    #[error("the controller did not become {} within {millis} ms (CAP.TO, CRTO)", if *.ready { "ready" } else { "disabled" })]
    Slow {
        /// Which way it was to go.
        ready: bool,
        /// How long it was given.
        millis: u64,
    },
    /// CSTS.CFS.
    #[error("the controller reports a fatal status (CSTS.CFS)")]
    Fatal,
    /// Identify Controller makes no sense.
    #[error("Identify Controller makes no sense: {0}")]
    Identify(String),
    /// A controller of another kind, or without what is needed.
    #[error("{0}")]
    Unsuitable(String),
    /// A namespace that does not exist, or cannot be used.
    #[error("namespace {nsid}: {why}")]
    Namespace {
        /// The namespace.
        nsid: u32,
        /// What is wrong with it.
        why: String,
    },
    /// An admin command failed.
    #[error("{command}: {error}")]
    Command {
        /// Which.
        command: &'static str,
        /// How.
        error: AdminError,
    },
    /// No memory the device reaches, no interrupts, no descriptors.
    #[error("{what}: {error}")]
    System {
        /// What was tried.
        what: &'static str,
        /// The system's answer.
        error: io::Error,
    },
}

/// Why an admin command did not succeed.
#[derive(Debug, Error, Clone, PartialEq, Eq)]
pub enum AdminError {
    /// The controller's own answer.
    #[error("the controller answered: {0}")]
    Status(Status),
    /// No answer in time.
    #[error("the controller did not answer in time")]
    Timeout,
    /// The controller was reset before it answered.
    #[error("the controller was reset before it answered")]
    Reset,
    /// The controller has failed or is gone.
    #[error("the controller has failed: {0}")]
    Failed(String),
    /// As many admin commands run as there may be.
    #[error("too many admin commands at a time: try again")]
    Busy,
    /// Queues to the controller are open.
    #[error("the drive is in use: {0} I/O queues are open")]
    InUse(usize),
    /// The controller does not do this.
    #[error("the drive does not support this: {0}")]
    Unsupported(&'static str),
    /// What was asked for cannot be.
    #[error("{0}")]
    Invalid(String),
    /// What was asked for was begun, and is not heard of any more: it may go on, be done, or have failed.
    #[error("it was begun and may still go on; its state is unknown: {0}")]
    Unknown(String),
    /// What was asked for was begun, and failed on the drive.
    #[error("the drive reports that it failed: {0}")]
    Unsuccessful(String),
}

impl OpenErrorWhy {
    pub(super) fn at(self, address: &str) -> OpenError {
        OpenError { address: address.to_owned(), why: self }
    }

    /// An [`Self::System`] error.
    pub(super) fn system(what: &'static str) -> impl FnOnce(io::Error) -> Self {
        move |error| Self::System { what, error }
    }

    /// A [`Self::Command`] error.
    pub(super) fn command(command: &'static str) -> impl FnOnce(AdminError) -> Self {
        move |error| Self::Command { command, error }
    }
}
