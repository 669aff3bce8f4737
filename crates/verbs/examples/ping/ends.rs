//! Two connected ends over the system's libraries.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use nvmeof_verbs::system::{
    Listener, ListenerEvent, ListenerOptions, SystemDevice, SystemEndpoint, SystemTicket, resolve,
};
use nvmeof_verbs::{
    AcceptParams, ConnectParams, ConnectionEvent, Device, Endpoint, EndpointSpec,
    PendingConnection, PrivateData,
};
use nvmeof_verbs_conformance::{ACCESS, COMPLETIONS, End, MEMORY, Memory, Pair, READS, SPEC};

/// Maximum wait for anything that has to arrive. A slow machine is no failure; a missing event is
/// one.
const PATIENCE: Duration = Duration::from_secs(20);

/// Location of the receives of the ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shape {
    /// Each queue pair has its own queue.
    Own,
    /// All are in a shared queue.
    Shared,
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Own => "own receives",
            Self::Shared => "shared receives",
        })
    }
}

/// A listener, and a connection to it from the same process.
#[derive(Debug)]
pub(crate) struct Ends {
    pub(crate) pair: Pair<SystemDevice>,
    /// Data of the request at the listener: private data, depths.
    pub(crate) request: (PrivateData, (u8, u8)),
    /// Data of the acceptance at the asking side: private data, depth.
    pub(crate) acceptance: (PrivateData, u8),
}

impl Ends {
    pub(crate) fn new(address: IpAddr, shape: Shape) -> Result<Self> {
        Self::with_tries(address, shape, 7)
    }

    /// Connects with a traffic class.
    pub(crate) fn of_class(address: IpAddr, class: u8) -> Result<Self> {
        let spec = EndpointSpec { traffic_class: Some(class), ..SPEC };
        Self::connected(address, Shape::Own, 7, &spec)
    }

    /// Connects with `rnr_retries` retries when the peer has no receive; 7 means without limit.
    pub(crate) fn with_tries(address: IpAddr, shape: Shape, rnr_retries: u8) -> Result<Self> {
        Self::connected(address, shape, rnr_retries, &SPEC)
    }

    fn connected(
        address: IpAddr,
        shape: Shape,
        rnr_retries: u8,
        spec: &EndpointSpec,
    ) -> Result<Self> {
        let mut listener = listen(address)?;
        let mut asking = end_of(route(&listener)?, shape, spec)?;
        ask(asking.endpoint(), b"ask", rnr_retries)?;
        let ticket = request(&mut listener)?;
        let seen = (*ticket.private_data(), ticket.reads());
        let mut answering = end_of(ticket, shape, spec)?;
        answering.endpoint().accept(&AcceptParams {
            private_data: b"answer",
            reads_out: READS,
            reads_in: READS,
            rnr_retries,
        })?;
        let acceptance = match event(asking.endpoint())? {
            ConnectionEvent::Established { private_data, reads_out } => (private_data, reads_out),
            other => bail!("the side that asked got {other:?}"),
        };
        match event(answering.endpoint())? {
            ConnectionEvent::Established { .. } => {}
            other => bail!("the side that answered got {other:?}"),
        }
        let pair = Pair::new(asking, answering, Box::new(|| thread::sleep(PAUSE)));
        Ok(Self { pair, request: seen, acceptance })
    }
}

/// Pause between two polls.
const PAUSE: Duration = Duration::from_millis(1);

pub(crate) fn listen(address: IpAddr) -> Result<Listener> {
    Ok(Listener::bind(SocketAddr::new(address, 0), 8, &ListenerOptions::default())?)
}

pub(crate) fn route(listener: &Listener) -> Result<SystemTicket> {
    Ok(resolve(listener.local_addr(), None, Duration::from_secs(5))?)
}

/// Creates an end from a ticket, with its queues and memory.
pub(crate) fn end(ticket: SystemTicket, shape: Shape) -> Result<End<SystemDevice>> {
    end_of(ticket, shape, &SPEC)
}

fn end_of(ticket: SystemTicket, shape: Shape, spec: &EndpointSpec) -> Result<End<SystemDevice>> {
    let device = Arc::clone(ticket.device());
    let memory = Memory::new(&device, MEMORY, ACCESS)?;
    let completions = device.completions(COMPLETIONS)?;
    let shared = match shape {
        Shape::Own => None,
        Shape::Shared => {
            let made = device.shared_receives(SPEC.receives, SPEC.receive_pieces)?;
            Some(made.context("the device has no shared receives")?)
        }
    };
    let endpoint = device
        .open(ticket, &completions, shared.as_ref(), spec)
        .map_err(|(error, _ticket)| error)?;
    Ok(End::new(device, memory, completions, shared, endpoint))
}

pub(crate) fn ask(
    endpoint: &mut SystemEndpoint,
    private_data: &[u8],
    rnr_retries: u8,
) -> Result<()> {
    Ok(endpoint.connect(&ConnectParams {
        private_data,
        reads_out: READS,
        reads_in: READS,
        // Detects a missing peer soon.
        retries: 1,
        rnr_retries,
    })?)
}

/// Returns the next request of a listener.
pub(crate) fn request(listener: &mut Listener) -> Result<SystemTicket> {
    until("a connection request", || match listener.next() {
        Some(Ok(ListenerEvent::Request(ticket))) => Ok(Some(ticket)),
        Some(Ok(other)) => bail!("the listener got {other:?}"),
        Some(Err(error)) => Err(error.into()),
        None => Ok(None),
    })
}

/// Returns the next event of an endpoint.
pub(crate) fn event(endpoint: &mut SystemEndpoint) -> Result<ConnectionEvent> {
    until("an event", || Ok(endpoint.next_event()))
}

/// Repeats `look` until it returns a value.
pub(crate) fn until<T>(what: &str, mut look: impl FnMut() -> Result<Option<T>>) -> Result<T> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(found) = look()? {
            return Ok(found);
        }
        if Instant::now() > deadline {
            bail!("waited in vain for {what}");
        }
        thread::sleep(PAUSE);
    }
}

/// Returns true if a descriptor is readable, immediately or within `wait`.
pub(crate) fn is_readable(fd: BorrowedFd<'_>, wait: Duration) -> Result<bool> {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let mut fds = [PollFd::from_borrowed_fd(fd, PollFlags::IN)];
    Ok(poll(&mut fds, Some(&Timespec::try_from(wait)?))? > 0)
}

/// Returns true if a descriptor becomes readable.
pub(crate) fn wakes(fd: BorrowedFd<'_>) -> Result<bool> {
    is_readable(fd, PATIENCE)
}
