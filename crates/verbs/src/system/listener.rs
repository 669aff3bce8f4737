//! Where connection requests come in.

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
use crate::seam::Device;

/// What a listener may be held to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ListenerOptions {
    /// The device that the address has to belong to.
    pub device: Option<String>,
    /// The index of the port's GID table that the address has to be at.
    pub gid_index: Option<u32>,
    /// Traffic class (RoCE: DSCP and ECN) of the connections' own packets where the system takes it from
    /// the listener; that of data is [`EndpointSpec`](crate::EndpointSpec)'s.
    pub traffic_class: Option<u8>,
}

/// What comes to a listener.
#[derive(Debug)]
pub enum ListenerEvent {
    /// A host asks for a connection.
    Request(SystemTicket),
    /// The device goes away: drop the listener, and everything else of the device.
    DeviceRemoved,
    /// The address is at another device or gone: drop the listener and bind again.
    AddressChanged,
}

/// An address that hosts can connect to.
#[derive(Debug)]
pub struct Listener {
    id: ConnectionId,
    device: Option<Arc<SystemDevice>>,
    /// Asking for events failed the last time.
    paused: bool,
}

impl Listener {
    /// Listens at an address of an RDMA device (port 0: any port), or at one of all devices; `backlog`
    /// requests wait at most.
    ///
    /// # Errors
    /// [`VerbsError::NoLibrary`], [`VerbsError::NoDevice`], [`VerbsError::NoDeviceAt`],
    /// [`VerbsError::OtherDevice`] and [`VerbsError::OtherGid`] where the options ask for what is not so,
    /// else [`VerbsError::Call`] (`AddrInUse` if another listener has the port).
    pub fn bind(
        address: SocketAddr,
        backlog: u32,
        options: &ListenerOptions,
    ) -> Result<Self, VerbsError> {
        let library = Library::load()?;
        // Without a device the connection manager says less.
        SystemDevice::list()?;
        library.refresh();
        let id = ConnectionId::new(library)?;
        let failed = |error| VerbsError::call(format!("listening at {address} by RDMA"), error);
        if address.is_ipv6() {
            id.set_one_family().map_err(failed)?;
        }
        if let Some(class) = options.traffic_class {
            id.set_traffic_class(class).map_err(failed)?;
        }
        let mut c_address = address::to_c(address);
        // SAFETY: a living identifier, and an address that lives for the call.
        let answer =
            unsafe { (library.cm.rdma_bind_addr)(id.as_ptr(), (&raw mut c_address).cast()) };
        cm_result(answer).map_err(|error| match error.raw_os_error() {
            Some(libc::ENODEV | libc::EADDRNOTAVAIL) => no_device(library, address),
            _ => failed(error),
        })?;
        let device = check(&id, address, options)?;
        let backlog = i32::try_from(backlog).unwrap_or(i32::MAX);
        // SAFETY: a living identifier.
        let answer = unsafe { (library.cm.rdma_listen)(id.as_ptr(), backlog) };
        cm_result(answer).map_err(failed)?;
        Ok(Self { id, device, paused: false })
    }

    /// Readable when [`Self::next`] has something.
    #[must_use]
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.id.fd()
    }

    /// The address, with the port that was found where any would do.
    #[must_use]
    pub fn local_addr(&self) -> SocketAddr {
        self.id.local()
    }

    /// The device; `None` if all are listened to.
    #[must_use]
    pub fn device(&self) -> Option<&Arc<SystemDevice>> {
        self.device.as_ref()
    }

    /// What has come, if anything has; never waits. After an error there may be more: it is about one
    /// request, which is refused, or nothing could be asked for, and then there is nothing at the next call.
    #[expect(clippy::should_implement_trait, reason = "it does not end where there is nothing yet")]
    pub fn next(&mut self) -> Option<Result<ListenerEvent, VerbsError>> {
        if std::mem::take(&mut self.paused) {
            // Who calls until there is nothing shall not do so for ever.
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
                // Of a request that was given up before it got a channel of its own.
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

/// Whether the address is where it should be; its device.
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
