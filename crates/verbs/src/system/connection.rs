//! Identifiers, channels and events of the connection manager, owned.

use std::ffi::{c_int, c_uint, c_void};
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::{self, NonNull};

use rustix::fs::{Mode, OFlags};

use super::address;
use super::library::Library;
use crate::error::VerbsError;
use crate::ffi::cma::{
    RDMA_CM_EVENT_CONNECT_REQUEST, RDMA_OPTION_ID, RDMA_OPTION_ID_AFONLY, RDMA_OPTION_ID_TOS,
    RDMA_PS_TCP, rdma_cm_id, rdma_event_channel,
};
use crate::ffi::verbs::{ibv_context, ibv_device};
use crate::provider::PrivateData;

/// Maximum bytes of private data in a rejection (InfiniBand specification, REJ message).
const MOST_IN_REFUSAL: usize = 148;

/// Channel that delivers the events of identifiers. Never blocks.
#[derive(Debug)]
pub(super) struct EventChannel {
    library: &'static Library,
    channel: NonNull<rdma_event_channel>,
}

// SAFETY: the channel is memory of librdmacm with a descriptor in it; nothing ties it to a thread.
unsafe impl Send for EventChannel {}
// SAFETY: `&self` only allows calls that the library locks, and reading the descriptor.
unsafe impl Sync for EventChannel {}

/// An event, already copied and acknowledged. An unacknowledged event would block `rdma_destroy_id`
/// and `rdma_migrate_id` forever.
#[derive(Debug)]
pub(super) struct CmEvent {
    pub(super) kind: c_uint,
    pub(super) status: c_int,
    pub(super) private_data: PrivateData,
    pub(super) responder_resources: u8,
    pub(super) initiator_depth: u8,
    /// Identifier that was created for a connection request.
    request: Option<NonNull<rdma_cm_id>>,
}

impl EventChannel {
    pub(super) fn new(library: &'static Library) -> Result<Self, VerbsError> {
        // SAFETY: the call has no arguments.
        let channel = unsafe { (library.cm.rdma_create_event_channel)() };
        let error = io::Error::last_os_error();
        let Some(channel) = NonNull::new(channel) else {
            return Err(VerbsError::call(
                "opening RDMA's connection manager (kernel module rdma_ucm, /dev/infiniband/rdma_cm)",
                error,
            ));
        };
        let this = Self { library, channel };
        set_nonblocking(this.fd())
            .map_err(|error| VerbsError::call("setting up RDMA's event channel", error))?;
        Ok(this)
    }

    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the channel lives as long as `self`, and its descriptor as long as the channel.
        unsafe { BorrowedFd::borrow_raw((*self.channel.as_ptr()).fd) }
    }

    /// Returns the next event, if there is one.
    pub(super) fn next(&self) -> io::Result<Option<CmEvent>> {
        let mut event = ptr::null_mut();
        loop {
            // SAFETY: a live channel, and a place for the pointer.
            let answer =
                unsafe { (self.library.cm.rdma_get_cm_event)(self.channel.as_ptr(), &mut event) };
            if answer == 0 {
                break;
            }
            let error = io::Error::last_os_error();
            match error.kind() {
                io::ErrorKind::WouldBlock => return Ok(None),
                io::ErrorKind::Interrupted => {}
                _ => return Err(error),
            }
        }
        // SAFETY: the library returned the event, which is ours until it is acknowledged below. Our
        // identifiers are of the stream kind (RDMA_PS_TCP), whose events carry `conn`. Events
        // without parameters have zeroes there. Private data is part of the event, with the stated
        // length.
        let copy = unsafe {
            let event = &*event;
            let conn = event.param.conn;
            let private_data = if conn.private_data.is_null() {
                PrivateData::EMPTY
            } else {
                let len = usize::from(conn.private_data_len);
                PrivateData::new(std::slice::from_raw_parts(conn.private_data.cast(), len))
            };
            let is_request = event.event == RDMA_CM_EVENT_CONNECT_REQUEST;
            CmEvent {
                kind: event.event,
                status: event.status,
                private_data,
                responder_resources: conn.responder_resources,
                initiator_depth: conn.initiator_depth,
                request: if is_request { NonNull::new(event.id) } else { None },
            }
        };
        // SAFETY: the event was just returned, is acknowledged once, and is not read afterwards.
        unsafe { (self.library.cm.rdma_ack_cm_event)(event) };
        Ok(Some(copy))
    }
}

impl Drop for EventChannel {
    fn drop(&mut self) {
        // SAFETY: created by the library and destroyed once. Identifiers own their channel and are
        // destroyed before it (see `ConnectionId`).
        unsafe { (self.library.cm.rdma_destroy_event_channel)(self.channel.as_ptr()) };
    }
}

/// An identifier (listener or connection) and its own event channel.
#[derive(Debug)]
pub(super) struct ConnectionId {
    id: NonNull<rdma_cm_id>,
    /// The identifier is a request that is neither accepted nor rejected yet.
    owes_answer: bool,
    /// Dropped after the identifier.
    channel: EventChannel,
}

// SAFETY: the identifier is memory of librdmacm, which nothing ties to a thread. It is owned here.
// One thread at a time uses it through `&mut`, or by calls that only pass its number to the kernel.
unsafe impl Send for ConnectionId {}
// SAFETY: `&self` only reads addresses, numbers and pointers that do not change once the address is
// bound. It also makes calls that pass the identifier's number to the kernel.
unsafe impl Sync for ConnectionId {}

impl ConnectionId {
    /// Creates an identifier of a stream-like connection, not bound to an address.
    pub(super) fn new(library: &'static Library) -> Result<Self, VerbsError> {
        let channel = EventChannel::new(library)?;
        let mut id = ptr::null_mut();
        // SAFETY: a live channel, a place for the pointer, no context.
        let answer = unsafe {
            (library.cm.rdma_create_id)(
                channel.channel.as_ptr(),
                &mut id,
                ptr::null_mut(),
                RDMA_PS_TCP,
            )
        };
        let error = io::Error::last_os_error();
        match NonNull::new(id) {
            Some(id) if answer == 0 => Ok(Self { id, owes_answer: false, channel }),
            _ => Err(VerbsError::call("making an RDMA connection identifier", error)),
        }
    }

    /// Takes over the identifier of a listener's connection request, and gives it its own channel.
    ///
    /// This has to happen before the next read of the listener's channel. The kernel then moves
    /// pending events of the identifier to its own channel, and the listener never sees one of
    /// them.
    pub(super) fn of_request(
        library: &'static Library,
        event: &CmEvent,
    ) -> Option<Result<Self, VerbsError>> {
        let id = event.request?;
        let channel = match EventChannel::new(library) {
            Ok(channel) => channel,
            Err(error) => {
                // SAFETY: the identifier came with the event, which is acknowledged; it has no
                // other owner.
                unsafe {
                    (library.cm.rdma_reject)(id.as_ptr(), ptr::null(), 0);
                    (library.cm.rdma_destroy_id)(id.as_ptr());
                }
                return Some(Err(error));
            }
        };
        // SAFETY: a live identifier without unacknowledged events, and a live channel.
        let answer = unsafe { (library.cm.rdma_migrate_id)(id.as_ptr(), channel.channel.as_ptr()) };
        let error = io::Error::last_os_error();
        // If the move failed, dropping rejects and destroys it through the listener's channel.
        let this = Self { id, owes_answer: true, channel };
        Some(match answer {
            0 => Ok(this),
            _ => Err(VerbsError::call("giving a connection its own event channel", error)),
        })
    }

    pub(super) fn library(&self) -> &'static Library {
        self.channel.library
    }

    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.channel.fd()
    }

    pub(super) fn next_event(&self) -> io::Result<Option<CmEvent>> {
        self.channel.next()
    }

    /// Pointer for calls of the library, valid as long as `self`.
    pub(super) fn as_ptr(&self) -> *mut rdma_cm_id {
        self.id.as_ptr()
    }

    /// The library's own context of the device that the identifier is bound to. `None` before that,
    /// and for wildcard addresses of all devices.
    pub(super) fn context(&self) -> Option<NonNull<ibv_context>> {
        // SAFETY: a live identifier.
        NonNull::new(unsafe { (*self.id.as_ptr()).verbs })
    }

    /// Device that the identifier is bound to.
    pub(super) fn device(&self) -> Option<NonNull<ibv_device>> {
        // SAFETY: an identifier keeps its context open as long as it lives.
        self.context().and_then(|context| NonNull::new(unsafe { (*context.as_ptr()).device }))
    }

    /// Makes librdmacm release a device that is being removed. With some drivers (Soft-RoCE) the
    /// removal finishes only after every context of the device is closed. librdmacm keeps its own
    /// context open until it queries devices again and finds others. If this was the only device,
    /// that never happens.
    ///
    /// The context stays, and librdmacm closes it later, but from now on its descriptors refer to
    /// `/dev/null`. No other code uses them: our objects of a device are in our own context.
    ///
    /// Only an identifier that is bound to the device gets the event, and the context is certainly
    /// open only while one of them lives. So librdmacm still holds a device that it opened for no
    /// identifier of ours (it opens all devices when it queries them again). The same holds if that
    /// identifier is gone (a listener at all addresses).
    pub(super) fn let_go(&self) {
        let Some(context) = self.context() else { return };
        let null = match rustix::fs::open(
            "/dev/null",
            OFlags::RDWR | OFlags::CLOEXEC,
            Mode::empty(),
        ) {
            Ok(null) => null,
            Err(error) => {
                tracing::warn!(%error, "a removed RDMA device stays open: /dev/null cannot be opened");
                return;
            }
        };
        // SAFETY: an identifier keeps its context open as long as it lives.
        let fds = unsafe { [(*context.as_ptr()).cmd_fd, (*context.as_ptr()).async_fd] };
        for fd in fds.into_iter().filter(|fd| *fd >= 0) {
            // SAFETY: the descriptor belongs to the open context, so no other owner can have its
            // number. It stays a valid descriptor, which its owner closes once.
            if unsafe { libc::dup3(null.as_raw_fd(), fd, libc::O_CLOEXEC) } < 0 {
                let error = io::Error::last_os_error();
                tracing::warn!(%error, "a removed RDMA device stays open");
            }
        }
    }

    /// Port of the device, counted from 1; 0 before an address is bound.
    pub(super) fn port(&self) -> u8 {
        // SAFETY: a live identifier.
        unsafe { (*self.id.as_ptr()).port_num }
    }

    pub(super) fn local(&self) -> SocketAddr {
        // SAFETY: a live identifier, whose address is always initialized.
        address::from_c(unsafe { &(*self.id.as_ptr()).route.addr.src_storage })
    }

    pub(super) fn peer(&self) -> SocketAddr {
        // SAFETY: as above.
        address::from_c(unsafe { &(*self.id.as_ptr()).route.addr.dst_storage })
    }

    /// Sets the traffic class of sent packets; it takes effect when a route is resolved.
    pub(super) fn set_traffic_class(&self, class: u8) -> io::Result<()> {
        self.set_option(RDMA_OPTION_ID_TOS, class)
    }

    /// Restricts a listener at an IPv6 address to IPv6, or not.
    pub(super) fn set_v6_only(&self, v6_only: bool) -> io::Result<()> {
        self.set_option(RDMA_OPTION_ID_AFONLY, c_int::from(v6_only))
    }

    fn set_option<T>(&self, option: c_int, mut value: T) -> io::Result<()> {
        // SAFETY: a live identifier, and a value of the stated length, which the kernel reads.
        let answer = unsafe {
            (self.library().cm.rdma_set_option)(
                self.as_ptr(),
                RDMA_OPTION_ID,
                option,
                (&raw mut value).cast::<c_void>(),
                size_of::<T>(),
            )
        };
        cm_result(answer)
    }

    /// Rejects a request that has no reply yet.
    pub(super) fn reject(&mut self, private_data: &[u8]) {
        if !std::mem::take(&mut self.owes_answer) {
            return;
        }
        let data = &private_data[..private_data.len().min(MOST_IN_REFUSAL)];
        let len = u8::try_from(data.len()).expect("cut to what fits");
        // SAFETY: a live identifier, and `len` bytes that the library copies.
        let answer = unsafe {
            (self.library().cm.rdma_reject)(self.as_ptr(), data.as_ptr().cast::<c_void>(), len)
        };
        if let Err(error) = cm_result(answer) {
            tracing::debug!(%error, peer = %self.peer(), "a refusal could not be sent");
        }
    }

    /// Records that the request was accepted: dropping no longer rejects it.
    pub(super) fn answered(&mut self) {
        self.owes_answer = false;
    }
}

impl Drop for ConnectionId {
    fn drop(&mut self) {
        self.reject(&[]);
        // SAFETY: owned here and destroyed once. All its events are acknowledged
        // (`EventChannel::next` leaves none), no queue pair is attached to it, and its channel is
        // dropped afterwards.
        let answer = unsafe { (self.library().cm.rdma_destroy_id)(self.as_ptr()) };
        if let Err(error) = cm_result(answer) {
            tracing::error!(%error, "an RDMA connection identifier could not be destroyed");
        }
    }
}

/// Converts the result of a librdmacm function that returns 0, or -1 and errno.
pub(super) fn cm_result(answer: c_int) -> io::Result<()> {
    if answer == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Converts the status of an event, which is a negative error number if it is one at all.
pub(super) fn status_error(status: c_int) -> io::Error {
    io::Error::from_raw_os_error(status.saturating_abs())
}

pub(super) fn set_nonblocking(fd: BorrowedFd<'_>) -> io::Result<()> {
    let flags = rustix::fs::fcntl_getfl(fd)?;
    Ok(rustix::fs::fcntl_setfl(fd, flags | OFlags::NONBLOCK)?)
}
