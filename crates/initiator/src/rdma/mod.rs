//! NVMe/RDMA: one queue pair per queue.
//!
//! | module | contents |
//! |---|---|
//! | [`queue`] | the queue pair as a queue: lifecycle, turns, teardown |
//! | [`commands`] | outstanding commands: capsules to the controller, responses back |
//! | [`handshake`] | private data of the connection manager, in both directions |
//! | [`sends`] | entries of the send queue, and which sends are signaled |
//! | [`post`] | the only unsafe code: memory that a device can access |
//! | [`system`] | the devices of the machine |
//!
//! A command has 64 bytes, sent inline if the device supports it. Write data that fits the capsule
//! is sent with it. The controller transfers all other data with the key of the command's
//! [`Buffer`](crate::Buffer), without a copy. The provider is a parameter ([`RouteResolver`]), so
//! that the same code works with memory and virtual time.

mod commands;
mod handshake;
mod post;
mod queue;
mod sends;
mod system;
#[cfg(test)]
mod tests;

use std::fmt::Debug;
use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;

use nvmeof_verbs::{Device, VerbsError};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use self::queue::RdmaQueuePair;
pub use self::system::SystemRouteResolver;
use crate::fabric::{Connector, QueuePair, QueueSpec};
use crate::{Address, ConnectOptions, Error};

/// Maximum bytes between a command and its in-capsule data. The controller chooses the offset; the
/// limit keeps capsules small.
const MAX_OFFSET: u32 = 1024;
/// Maximum data bytes of a command. A keyed descriptor has 24 bits for the length, and this is the
/// largest number of whole pages.
const MAX_TRANSFER: u64 = (1 << 24) - 4096;

/// Access to RDMA devices, and a wait for their descriptors.
pub trait RouteResolver: Debug + Send + Sync + 'static {
    /// The device type.
    type Device: Device;

    /// Resolves the device and the route to `to`. Can take `timeout`.
    ///
    /// # Errors
    /// The missing part and the remedy.
    fn resolve(
        &self,
        to: SocketAddr,
        timeout: Duration,
    ) -> Result<<Self::Device as Device>::PendingConnection, VerbsError>;

    /// Waits at most `timeout` until one of the descriptors is readable. A shorter wait is allowed.
    fn wait(&self, descriptors: &[BorrowedFd<'_>], timeout: Duration) {
        let mut fds: Vec<_> = descriptors.iter().map(|fd| PollFd::new(fd, PollFlags::IN)).collect();
        let timeout = Timespec::try_from(timeout).ok();
        // A failure or an interruption only shortens the wait: the caller checks the clock.
        let _ = poll(&mut fds, timeout.as_ref());
    }
}

/// Connects the queues of one controller by RDMA.
#[derive(Debug)]
pub(crate) struct RdmaConnector<R> {
    address: Address,
    resolver: Arc<R>,
}

impl<R: RouteResolver> RdmaConnector<R> {
    /// Rejects options that RDMA does not support.
    pub(crate) fn new(
        address: &Address,
        options: &ConnectOptions,
        resolver: R,
    ) -> Result<Self, Error> {
        if options.hdgst || options.ddgst {
            let what =
                "--hdgst and --ddgst are for tcp://; RDMA protects its packets, so omit both";
            return Err(Error::Unusable { peer: address.to_string(), what: what.into() });
        }
        Ok(Self { address: address.clone(), resolver: Arc::new(resolver) })
    }
}

impl<R: RouteResolver> Connector for RdmaConnector<R> {
    fn connect(&self, queue: &QueueSpec) -> Result<Box<dyn QueuePair>, Error> {
        let host = self.address.authority();
        let resolve = |cause| Error::Resolve { host: host.clone(), cause };
        let candidates = (self.address.host.as_str(), self.address.port).to_socket_addrs();
        let cause = io::Error::new(io::ErrorKind::NotFound, "no address found for this name");
        let mut last = resolve(cause);
        for candidate in candidates.map_err(resolve)? {
            let resolver = Arc::clone(&self.resolver);
            match RdmaQueuePair::connect(resolver, candidate, queue) {
                Ok(qp) => return Ok(Box::new(qp)),
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    fn in_capsule(&self, room: u32, offset: u32) -> u32 {
        if offset > MAX_OFFSET { 0 } else { room.saturating_sub(offset) }
    }

    fn max_transfer(&self) -> u64 {
        MAX_TRANSFER
    }
}
