//! Errors between a host and a controller.

use std::io;
use std::time::Duration;

use nvmeof_verbs::VerbsError;
use nvmeof_wire::status::Status;
use nvmeof_wire::tcp::TcpError;

/// Error of one command.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum CommandError {
    /// The controller completed the command with an error.
    #[error("{status}")]
    Status {
        /// Status code type, status code, and the retry flag.
        status: Status,
        /// Dword 0 of the completion.
        dw0: u32,
    },
    /// The data digest does not match the data.
    #[error("the data digest does not fit the data received")]
    DataDigest,
    /// The controller reported success but did not send all of the data.
    #[error("the controller sent {got} of {want} bytes and reported success")]
    ShortData {
        /// Bytes received.
        got: u32,
        /// Bytes requested.
        want: u32,
    },
    /// The controller reported success but did not fetch all of the data.
    #[error("the controller fetched {got} of {want} bytes and reported success")]
    ShortWrite {
        /// Bytes that the controller requested.
        got: u32,
        /// Bytes of the command.
        want: u32,
    },
    /// The completion did not arrive in time.
    #[error("no completion within the command timeout")]
    TimedOut,
    /// The connection ended before the completion.
    #[error("the connection was lost before the command completed")]
    ConnectionLost,
}

/// Error of connecting to a controller or of using it.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The host name in the address has no IP address.
    #[error(
        "cannot resolve {host}: {cause}; check the address after --connect or use an IP address"
    )]
    Resolve {
        /// Name and port.
        host: String,
        /// Error of the resolver.
        cause: io::Error,
    },
    /// Connecting failed.
    #[error("cannot connect to {peer}: {cause}; is a target listening there?")]
    Connect {
        /// Address and port.
        peer: String,
        /// Error of the kernel.
        cause: io::Error,
    },
    /// The socket or the queue pair failed.
    #[error("connection to {peer}: {cause}")]
    Io {
        /// Address and port.
        peer: String,
        /// Error of the kernel.
        cause: io::Error,
    },
    /// The peer closed the connection.
    #[error("{peer} closed the connection{during}")]
    Closed {
        /// Address and port.
        peer: String,
        /// The operation in progress, with a leading space, or empty.
        during: &'static str,
    },
    /// The peer violated the protocol.
    #[error("{peer} broke the protocol: {error}{detail}")]
    Protocol {
        /// Address and port.
        peer: String,
        /// Status for the TermReq.
        error: TcpError,
        /// Details, with a leading space, or empty.
        detail: String,
    },
    /// The peer ended the connection with a TermReq.
    #[error("{peer} ended the connection: {error}")]
    Terminated {
        /// Address and port.
        peer: String,
        /// Status of the peer's TermReq.
        error: TcpError,
    },
    /// RDMA, or a feature of it that the queue requires, is not available.
    #[error("connection to {peer}: {cause}")]
    Verbs {
        /// Address and port.
        peer: String,
        /// The missing part and the remedy.
        cause: VerbsError,
    },
    /// The peer rejected the RDMA connection.
    #[error("{peer} rejected the RDMA connection of queue {qid}: {reason}")]
    RejectedCommand {
        /// Address and port.
        peer: String,
        /// Queue identifier.
        qid: u16,
        /// Reason and remedy.
        reason: String,
    },
    /// The RDMA connection failed.
    #[error("the RDMA connection to {peer} failed: {what}")]
    Link {
        /// Address and port.
        peer: String,
        /// Description of the failure.
        what: String,
    },
    /// The peer violated the protocol, over RDMA.
    #[error("{peer} broke the protocol: {what}")]
    Misbehaved {
        /// Address and port.
        peer: String,
        /// Description of the violation.
        what: String,
    },
    /// The controller does not grant a requested digest.
    #[error(
        "{peer} does not grant the {which} digest; run without {option}, or enable it in the target"
    )]
    Digest {
        /// Address and port.
        peer: String,
        /// `header` or `data`.
        which: &'static str,
        /// Option of the command line that requests it.
        option: &'static str,
    },
    /// The peer did not respond in time.
    #[error("{peer} did not respond to {what} within {} s", after.as_secs_f64())]
    Timeout {
        /// Address and port.
        peer: String,
        /// The missing response.
        what: String,
        /// Duration of the wait.
        after: Duration,
    },
    /// The controller rejected Connect.
    #[error("{peer} refused subsystem {subnqn} for host {hostnqn}: {reason}")]
    Refused {
        /// Address and port.
        peer: String,
        /// The requested subsystem.
        subnqn: String,
        /// NQN of the host.
        hostnqn: String,
        /// Status and remedy.
        reason: String,
    },
    /// A command of the set-up failed.
    #[error("{peer}: {command} failed: {error}")]
    Command {
        /// Address and port.
        peer: String,
        /// Name of the command.
        command: &'static str,
        /// Error of the command.
        error: CommandError,
    },
    /// The host does not support a property of the controller.
    #[error("{peer}: {what}")]
    Unusable {
        /// Address and port.
        peer: String,
        /// The property and the remedy.
        what: String,
    },
}
