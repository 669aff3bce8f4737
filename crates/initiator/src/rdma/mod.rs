//! NVMe/RDMA: one queue pair a queue.
//!
//! | module | what |
//! |---|---|
//! | [`queue`] | the queue pair as a queue: life, turns, teardown |
//! | [`commands`] | what is outstanding: capsules out, responses back |
//! | [`handshake`] | the connection manager's part: private data both ways |
//! | [`sends`] | places of the send queue, and which sends are signaled |
//! | [`post`] | the fence: memory that is with the device |
//! | [`system`] | the machine's own devices |
//!
//! A command is 64 bytes, sent inline where the device can. Data of a write that fits the capsule goes with it; all
//! other data the controller fetches and stores by the key of the command's [`Buffer`](crate::Buffer), without a
//! copy. The provider is a parameter ([`Routes`]), so that the same code runs over memory and virtual time.

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
pub use self::system::SystemRoutes;
use crate::fabric::{Connector, QueuePair, QueueSpec};
use crate::{Address, Error, Options};

/// Most bytes between a command and its in-capsule data: it is the controller's to say, and ours to keep
/// capsules small.
const MAX_OFFSET: u32 = 1024;
/// Most bytes of data of a command: a keyed descriptor has 24 bits for them, and whole pages suit everybody.
const MAX_TRANSFER: u64 = (1 << 24) - 4096;

/// A way to RDMA devices, and to wait for them.
pub trait Routes: Debug + Send + Sync + 'static {
    /// The devices.
    type Device: Device;

    /// Finds the device and the route by which `to` is reached. May take `timeout`.
    ///
    /// # Errors
    /// What is missing, and what to do.
    fn resolve(
        &self,
        to: SocketAddr,
        timeout: Duration,
    ) -> Result<<Self::Device as Device>::Ticket, VerbsError>;

    /// Waits until one of the descriptors is readable, at most this long; too short is no harm.
    fn wait(&self, descriptors: &[BorrowedFd<'_>], timeout: Duration) {
        let mut fds: Vec<_> = descriptors.iter().map(|fd| PollFd::new(fd, PollFlags::IN)).collect();
        let timeout = Timespec::try_from(timeout).ok();
        // A failure or an interruption is a wait that was too short: the caller looks at the clock.
        let _ = poll(&mut fds, timeout.as_ref());
    }
}

/// Connects the queues of one controller by RDMA.
#[derive(Debug)]
pub(crate) struct RdmaConnector<R> {
    address: Address,
    routes: Arc<R>,
}

impl<R: Routes> RdmaConnector<R> {
    /// Refuses options that RDMA does not have.
    pub(crate) fn new(address: &Address, options: &Options, routes: R) -> Result<Self, Error> {
        if options.hdgst || options.ddgst {
            let what = "--hdgst and --ddgst are for tcp://; RDMA protects its packets by itself, so run \
                        without them";
            return Err(Error::Unusable { peer: address.to_string(), what: what.into() });
        }
        Ok(Self { address: address.clone(), routes: Arc::new(routes) })
    }
}

impl<R: Routes> Connector for RdmaConnector<R> {
    fn connect(&self, queue: &QueueSpec) -> Result<Box<dyn QueuePair>, Error> {
        let host = self.address.authority();
        let resolve = |cause| Error::Resolve { host: host.clone(), cause };
        let candidates = (self.address.host.as_str(), self.address.port).to_socket_addrs();
        let cause = io::Error::new(io::ErrorKind::NotFound, "no address found for this name");
        let mut last = resolve(cause);
        for candidate in candidates.map_err(resolve)? {
            let routes = Arc::clone(&self.routes);
            match RdmaQueuePair::connect(routes, candidate, queue) {
                Ok(pair) => return Ok(Box::new(pair)),
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
