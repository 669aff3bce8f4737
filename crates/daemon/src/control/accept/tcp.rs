//! TCP: sockets from a listening socket.

use std::net::SocketAddr;
use std::os::fd::AsFd as _;
use std::time::Duration;

use nvmeof_transport::TransportError;
use nvmeof_transport::tcp::{self, TcpParams};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

use super::{BindError, Service};
use crate::control::place::node_of;
use crate::limits::{Limits, nanos};
use crate::logs::{Kind, limited};

/// Pause after an accept failed for want of descriptors or memory, so as not to spin on it.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// A socket that listens, of which nothing can fail any more.
#[derive(Debug)]
pub(crate) struct Bound {
    listener: TcpListener,
    address: SocketAddr,
}

/// A listening socket.
pub(super) fn bind(address: SocketAddr) -> Result<Bound, BindError> {
    let listener = tcp::listen(address).map_err(|error| {
        let kind = match &error {
            TransportError::Io { source, .. } => Some(source.kind()),
            TransportError::NoMemory(_) => None,
        };
        BindError::of(error.into(), kind)
    })?;
    ready(listener).map_err(|error| BindError::Impossible(error.into()))
}

fn ready(listener: std::net::TcpListener) -> std::io::Result<Bound> {
    let address = listener.local_addr()?;
    listener.set_nonblocking(true)?;
    Ok(Bound { listener: TcpListener::from_std(listener)?, address })
}

impl Bound {
    /// Where it listens, with the real port.
    pub(super) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Accepts until the task is ended.
    pub(super) fn accept(self, service: Service) -> JoinHandle<()> {
        let Self { listener, address } = self;
        let params = params(&service.limits);
        tokio::spawn(async move {
            loop {
                match listener.accept().await {
                    Ok((stream, peer)) => {
                        if let Err(error) = hand_over(stream, peer, params, &service) {
                            limited!(Kind::ConnectionRefused, warn, %peer, %error, "connection refused");
                        }
                    }
                    Err(error) => {
                        tracing::warn!(%address, %error, "cannot accept a connection");
                        tokio::time::sleep(ACCEPT_PAUSE).await;
                    }
                }
            }
        })
    }
}

fn hand_over(
    stream: TcpStream,
    peer: SocketAddr,
    params: TcpParams,
    service: &Service,
) -> anyhow::Result<()> {
    service.reactors.has_room()?;
    let stream = stream.into_std()?;
    let node = arrival_node(&stream);
    let queue = service.queue(peer, stream.local_addr()?);
    service.reactors.hand_over(tcp::accepted(stream, params), queue, peer, node);
    Ok(())
}

/// The NUMA node of the CPU that a connection's packets arrive at.
fn arrival_node(stream: &std::net::TcpStream) -> Option<usize> {
    let cpu = rustix::net::sockopt::socket_incoming_cpu(stream.as_fd()).ok()?;
    node_of(usize::try_from(cpu).ok()?)
}

fn params(limits: &Limits) -> TcpParams {
    TcpParams {
        in_capsule: limits.settings.in_capsule,
        max_transfer: limits.settings.max_transfer,
        handshake_timeout: nanos(limits.settings.connect_timeout),
        pdu_timeout: nanos(limits.settings.pdu_timeout),
        ..TcpParams::default()
    }
}
