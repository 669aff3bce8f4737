//! Connections before their queue pair: incoming requests and resolved routes.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::address;
use super::connection::{CmEvent, ConnectionId, cm_result, status_error};
use super::device::{SystemDevice, no_device};
use super::library::Library;
use crate::error::VerbsError;
use crate::ffi::cma::{RDMA_CM_EVENT_ADDR_RESOLVED, RDMA_CM_EVENT_ROUTE_RESOLVED};
use crate::provider::{PendingConnection, PrivateData};

/// A request of a host, or a route to a target.
#[derive(Debug)]
pub struct SystemTicket {
    pub(super) id: ConnectionId,
    device: Arc<SystemDevice>,
    private_data: Box<PrivateData>,
    reads: (u8, u8),
}

impl SystemTicket {
    /// Creates the ticket of a request. If its device is not available, dropping the identifier
    /// rejects the host.
    pub(super) fn of_request(id: ConnectionId, event: &CmEvent) -> Result<Self, VerbsError> {
        let device = SystemDevice::of_id(&id)?;
        // The connection manager reports the peer's numbers from our side: the READs that the peer
        // issues are our responder resources.
        let reads = (event.responder_resources, event.initiator_depth);
        Ok(Self { id, device, private_data: Box::new(event.private_data), reads })
    }
}

impl PendingConnection for SystemTicket {
    type Device = SystemDevice;

    fn device(&self) -> &Arc<SystemDevice> {
        &self.device
    }

    fn private_data(&self) -> &PrivateData {
        &self.private_data
    }

    fn reads(&self) -> (u8, u8) {
        self.reads
    }

    fn peer(&self) -> SocketAddr {
        self.id.peer()
    }

    fn local(&self) -> SocketAddr {
        self.id.local()
    }

    fn reject(mut self, private_data: &[u8]) {
        self.id.reject(private_data);
    }
}

/// Resolves the device and the route to a target; each of the two takes at most `timeout`.
///
/// # Errors
/// [`VerbsError::NoLibrary`], [`VerbsError::NoDevice`], or an error of the system, for example
/// `TimedOut` or `HostUnreachable`.
pub fn resolve(
    address: SocketAddr,
    source: Option<IpAddr>,
    timeout: Duration,
) -> Result<SystemTicket, VerbsError> {
    resolve_with(address, source, timeout, None)
}

/// Resolves as [`resolve`] does. `traffic_class` (RoCE: DSCP and ECN) also applies to the packets
/// of connection management, and to the peer's replies.
///
/// # Errors
/// The errors of [`resolve`].
pub fn resolve_with(
    address: SocketAddr,
    source: Option<IpAddr>,
    timeout: Duration,
    traffic_class: Option<u8>,
) -> Result<SystemTicket, VerbsError> {
    let library = Library::load()?;
    SystemDevice::list()?;
    library.refresh();
    let id = ConnectionId::new(library)?;
    let failed = |error| VerbsError::call(format!("finding a way to {address}"), error);
    if let Some(class) = traffic_class {
        id.set_traffic_class(class).map_err(failed)?;
    }
    let milliseconds = i32::try_from(timeout.as_millis()).unwrap_or(i32::MAX);
    let mut to = address::to_c(address);
    let mut from = source.map(|ip| address::to_c(SocketAddr::new(ip, 0)));
    let from = from.as_mut().map_or(std::ptr::null_mut(), |from| (&raw mut *from).cast());
    // SAFETY: a live identifier, and addresses that live for the call.
    let answer = unsafe {
        (library.cm.rdma_resolve_addr)(id.as_ptr(), from, (&raw mut to).cast(), milliseconds)
    };
    cm_result(answer).map_err(|error| match (error.raw_os_error(), source) {
        (Some(libc::ENODEV | libc::EADDRNOTAVAIL), Some(source)) => {
            no_device(library, SocketAddr::new(source, 0))
        }
        _ => failed(error),
    })?;
    wait_for(&id, RDMA_CM_EVENT_ADDR_RESOLVED, timeout).map_err(failed)?;
    // SAFETY: a live identifier.
    let answer = unsafe { (library.cm.rdma_resolve_route)(id.as_ptr(), milliseconds) };
    cm_result(answer).map_err(failed)?;
    wait_for(&id, RDMA_CM_EVENT_ROUTE_RESOLVED, timeout).map_err(failed)?;
    let device = SystemDevice::of_id(&id)?;
    Ok(SystemTicket { id, device, private_data: Box::new(PrivateData::EMPTY), reads: (0, 0) })
}

/// Waits for an event; any other event is an error.
fn wait_for(id: &ConnectionId, kind: u32, timeout: Duration) -> io::Result<()> {
    // The connection manager has its own timeout; this one applies if that does not expire.
    let deadline = Instant::now() + timeout + Duration::from_secs(1);
    loop {
        match id.next_event()? {
            Some(event) if event.kind == kind && event.status == 0 => return Ok(()),
            Some(event) if event.status != 0 => return Err(status_error(event.status)),
            Some(event) => {
                return Err(io::Error::other(format!("unexpected event {}", event.kind)));
            }
            None => {}
        }
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        let left = Timespec::try_from(left).map_err(|_| io::ErrorKind::InvalidInput)?;
        match poll(&mut [PollFd::from_borrowed_fd(id.fd(), PollFlags::IN)], Some(&left)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}
