//! What can go wrong between a host and a controller.

use std::io;
use std::time::Duration;

use nvmeof_verbs::VerbsError;
use nvmeof_wire::status::Status;
use nvmeof_wire::tcp::TcpError;

/// Why one command did not succeed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum CommandError {
    /// The controller completed it with an error.
    #[error("{status}")]
    Status {
        /// Status code type, status code, and whether to retry.
        status: Status,
        /// Dword 0 of the completion.
        dw0: u32,
    },
    /// Data came with a digest that does not fit it.
    #[error("the data digest does not fit the data received")]
    DataDigest,
    /// The controller reported success but did not send all of the data.
    #[error("the controller sent {got} of {want} bytes and reported success")]
    ShortData {
        /// Bytes received.
        got: u32,
        /// Bytes asked for.
        want: u32,
    },
    /// The controller reported success but did not fetch all of the data.
    #[error("the controller fetched {got} of {want} bytes and reported success")]
    ShortWrite {
        /// Bytes asked for by the controller.
        got: u32,
        /// Bytes the command has.
        want: u32,
    },
    /// No completion in time.
    #[error("no completion within the command timeout")]
    TimedOut,
    /// The connection ended first.
    #[error("the connection was lost before the command completed")]
    ConnectionLost,
}

/// Why a controller cannot be reached or used (any longer).
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The host name in the address has no IP address.
    #[error(
        "cannot resolve {host}: {cause}; check the address after --connect or use an IP address"
    )]
    Resolve {
        /// Name and port.
        host: String,
        /// What the resolver says.
        cause: io::Error,
    },
    /// No connection.
    #[error("cannot connect to {peer}: {cause}; is a target listening there?")]
    Connect {
        /// Address and port.
        peer: String,
        /// What the kernel says.
        cause: io::Error,
    },
    /// The socket or the queue pair failed.
    #[error("connection to {peer}: {cause}")]
    Io {
        /// Address and port.
        peer: String,
        /// What the kernel says.
        cause: io::Error,
    },
    /// The peer closed the connection.
    #[error("{peer} closed the connection{during}")]
    Closed {
        /// Address and port.
        peer: String,
        /// What was going on, beginning with a space, or nothing.
        during: &'static str,
    },
    /// The peer broke the protocol.
    #[error("{peer} broke the protocol: {error}{detail}")]
    Protocol {
        /// Address and port.
        peer: String,
        /// What a TermReq for it says.
        error: TcpError,
        /// More about it, beginning with a space, or nothing.
        detail: String,
    },
    /// The peer ended the connection with a TermReq.
    #[error("{peer} ended the connection: {error}")]
    Terminated {
        /// Address and port.
        peer: String,
        /// What it says we did.
        error: TcpError,
    },
    /// RDMA cannot be had, or what the queue needs of it.
    #[error("connection to {peer}: {cause}")]
    Verbs {
        /// Address and port.
        peer: String,
        /// What is missing, and what to do.
        cause: VerbsError,
    },
    /// The peer does not want the RDMA connection.
    #[error("{peer} rejected the RDMA connection of queue {qid}: {reason}")]
    Rejected {
        /// Address and port.
        peer: String,
        /// The queue.
        qid: u16,
        /// Why, and what to do about it.
        reason: String,
    },
    /// The RDMA connection does not work any more.
    #[error("the RDMA connection to {peer} failed: {what}")]
    Link {
        /// Address and port.
        peer: String,
        /// What happened.
        what: String,
    },
    /// The peer broke the protocol, over RDMA.
    #[error("{peer} broke the protocol: {what}")]
    Misbehaved {
        /// Address and port.
        peer: String,
        /// What it did.
        what: String,
    },
    /// A digest was asked for and is not granted.
    #[error(
        "{peer} does not grant the {which} digest; run without {option}, or enable it in the target"
    )]
    Digest {
        /// Address and port.
        peer: String,
        /// `header` or `data`.
        which: &'static str,
        /// Option of the command line that asks for it.
        option: &'static str,
    },
    /// Nothing came for too long.
    #[error("{peer} did not answer {what} within {} s", after.as_secs_f64())]
    Timeout {
        /// Address and port.
        peer: String,
        /// What was waited for.
        what: String,
        /// How long.
        after: Duration,
    },
    /// The controller refused Connect.
    #[error("{peer} refused subsystem {subnqn} for host {hostnqn}: {reason}")]
    Refused {
        /// Address and port.
        peer: String,
        /// Subsystem asked for.
        subnqn: String,
        /// Host that asked.
        hostnqn: String,
        /// Status and what to do about it.
        reason: String,
    },
    /// A command of the set-up failed.
    #[error("{peer}: {command} failed: {error}")]
    Command {
        /// Address and port.
        peer: String,
        /// Which command.
        command: &'static str,
        /// Why.
        error: CommandError,
    },
    /// The controller says something about itself that cannot be worked with.
    #[error("{peer}: {what}")]
    Unusable {
        /// Address and port.
        peer: String,
        /// What, and what to do.
        what: String,
    },
}
