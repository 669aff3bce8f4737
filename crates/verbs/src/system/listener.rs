//! Listeners for connection requests.

use std::io;
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use super::address;
use super::connection::{CmEvent, ConnectionId, cm_result};
use super::device::{SystemDevice, no_device};
use super::library::Library;
use super::ticket::SystemTicket;
use crate::error::VerbsError;
use crate::ffi::cma::{
    RDMA_CM_EVENT_ADDR_CHANGE, RDMA_CM_EVENT_CONNECT_REQUEST, RDMA_CM_EVENT_DEVICE_REMOVAL,
};
use crate::provider::Device;

/// Constraints on a listener.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ListenerOptions {
    /// Device that the address has to belong to.
    pub device: Option<String>,
    /// Index of the port's GID table that the address has to be at.
    pub gid_index: Option<u32>,
    /// Traffic class (RoCE: DSCP and ECN) of the packets of connection management, if the system
    /// takes it from the listener. [`EndpointSpec`](crate::EndpointSpec) has that of data.
    pub traffic_class: Option<u8>,
    /// At `::`, accepts IPv6 hosts only.
    pub v6_only: bool,
}

/// Event of a listener.
#[derive(Debug)]
pub enum ListenerEvent {
    /// A host requests a connection.
    Request(SystemTicket),
    /// The device is being removed. The owner drops all objects of the device.
    DeviceRemoved,
    /// The address moved to another device or disappeared. The owner drops the listener and binds
    /// again.
    AddressChanged,
}

/// An address that hosts can connect to.
#[derive(Debug)]
pub struct Listener {
    id: ConnectionId,
    device: Option<Arc<SystemDevice>>,
    /// The last attempt to read events failed.
    paused: bool,
}

impl Listener {
    /// Listens at an address of an RDMA device (port 0: any port), or at a wildcard address of all
    /// devices. At most `backlog` requests wait.
    ///
    /// # Errors
    /// [`VerbsError::NoLibrary`], [`VerbsError::NoDevice`] or [`VerbsError::NoDeviceAt`].
    /// [`VerbsError::OtherDevice`] and [`VerbsError::OtherGid`] if a constraint of `options` does
    /// not hold. Otherwise [`VerbsError::Call`] (`AddrInUse` if another listener has the port).
    pub fn bind(
        address: SocketAddr,
        backlog: u32,
        options: &ListenerOptions,
    ) -> Result<Self, VerbsError> {
        let library = Library::load()?;
        // Without a device the connection manager's errors are less clear.
        SystemDevice::list()?;
        library.refresh();
        let id = ConnectionId::new(library)?;
        let failed = |error| VerbsError::call(format!("listening at {address} by RDMA"), error);
        if address.is_ipv6() {
            id.set_v6_only(options.v6_only).map_err(failed)?;
        }
        if let Some(class) = options.traffic_class {
            id.set_traffic_class(class).map_err(failed)?;
        }
        let mut c_address = address::to_c(address);
        // SAFETY: a live identifier, and an address that lives for the call.
        let answer =
            unsafe { (library.cm.rdma_bind_addr)(id.as_ptr(), (&raw mut c_address).cast()) };
        cm_result(answer).map_err(|error| match error.raw_os_error() {
            Some(libc::ENODEV | libc::EADDRNOTAVAIL) => no_device(library, address),
            _ => failed(error),
        })?;
        let device = check(&id, address, options)?;
        let backlog = i32::try_from(backlog).unwrap_or(i32::MAX);
        // SAFETY: a live identifier.
        let answer = unsafe { (library.cm.rdma_listen)(id.as_ptr(), backlog) };
        cm_result(answer).map_err(failed)?;
        Ok(Self { id, device, paused: false })
    }

    /// Descriptor that is readable when [`Self::next`] has an event.
    #[must_use]
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.id.fd()
    }

    /// Address of the listener, with the assigned port if the requested port was 0.
    #[must_use]
    pub fn local_addr(&self) -> SocketAddr {
        self.id.local()
    }

    /// Device of the listener; `None` if it listens on all devices.
    #[must_use]
    pub fn device(&self) -> Option<&Arc<SystemDevice>> {
        self.device.as_ref()
    }

    /// Returns the next event, if any; never blocks. More events can follow an error. Either the
    /// error concerns one request, which is rejected, or reading failed, and then the next call
    /// returns `None`.
    #[expect(clippy::should_implement_trait, reason = "it does not end where there is nothing yet")]
    pub fn next(&mut self) -> Option<Result<ListenerEvent, VerbsError>> {
        if std::mem::take(&mut self.paused) {
            // Ends a loop that calls until there is no event.
            return None;
        }
        loop {
            let event = match self.id.next_event() {
                Ok(event) => event?,
                Err(error) => {
                    self.paused = true;
                    return Some(Err(self.failed(error)));
                }
            };
            match event.kind {
                RDMA_CM_EVENT_CONNECT_REQUEST => {
                    if let Some(request) = self.request(&event) {
                        return Some(request.map(ListenerEvent::Request));
                    }
                }
                RDMA_CM_EVENT_DEVICE_REMOVAL => {
                    if let Some(device) = &self.device {
                        device.set_gone(&self.id);
                    }
                    return Some(Ok(ListenerEvent::DeviceRemoved));
                }
                RDMA_CM_EVENT_ADDR_CHANGE => return Some(Ok(ListenerEvent::AddressChanged)),
                // The event of a request that was given up before it got its own channel.
                other => tracing::debug!(kind = other, "an event that is not a listener's"),
            }
        }
    }

    fn request(&self, event: &CmEvent) -> Option<Result<SystemTicket, VerbsError>> {
        let id = match ConnectionId::of_request(self.id.library(), event)? {
            Ok(id) => id,
            Err(error) => return Some(Err(error)),
        };
        Some(SystemTicket::of_request(id, event))
    }

    fn failed(&self, error: io::Error) -> VerbsError {
        VerbsError::call(format!("listening at {} by RDMA", self.local_addr()), error)
    }
}

/// Checks the address against the options and returns its device.
fn check(
    id: &ConnectionId,
    address: SocketAddr,
    options: &ListenerOptions,
) -> Result<Option<Arc<SystemDevice>>, VerbsError> {
    let other = |device: &str, wanted: &str| VerbsError::OtherDevice {
        address,
        device: device.into(),
        wanted: wanted.into(),
    };
    if id.device().is_none() {
        return match (&options.device, options.gid_index) {
            (None, None) => Ok(None),
            (Some(wanted), _) => Err(other("(all of them)", wanted)),
            (None, Some(index)) => Err(other("(all of them)", &format!("one GID index {index}"))),
        };
    }
    let device = SystemDevice::of_id(id)?;
    if let Some(wanted) = &options.device
        && wanted != device.name()
    {
        return Err(other(device.name(), wanted));
    }
    if let Some(index) = options.gid_index {
        device.check_gid(address.ip(), id.port(), index)?;
    }
    Ok(Some(device))
}
