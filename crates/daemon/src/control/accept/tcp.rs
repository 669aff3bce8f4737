//! TCP: connections from a listening socket.

use std::io::ErrorKind;
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::AsFd as _;
use std::time::Duration;

use nvmeof_transport::TransportError;
use nvmeof_transport::tcp::{self, TcpParams};
use rustix::io::Errno;
use tokio::net::{TcpListener, TcpStream};

use super::{BindError, Service};
use crate::control::place::node_of;
use crate::limits::{Limits, nanos};
use crate::logs::{LogCategory, limited};

/// Pause after an accept failed for lack of descriptors or memory; it prevents a busy loop.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// Interval between checks that the address still exists.
const LOOK: Duration = Duration::from_secs(5);
/// Number of consecutive accept failures, for any reason, after which the socket is abandoned.
const FAILURES_MAX: u32 = 50;

/// A listening socket whose setup is complete: starting to accept cannot fail.
#[derive(Debug)]
pub(crate) struct BoundTcpListener {
    listener: TcpListener,
    address: SocketAddr,
}

/// Opens a listening socket.
///
/// With `v6_only`, a listener at "::" leaves IPv4 hosts to another one.
pub(super) fn bind(address: SocketAddr, v6_only: bool) -> Result<BoundTcpListener, BindError> {
    let listener = tcp::listen(address, v6_only).map_err(|error| {
        let kind = match &error {
            TransportError::Io { source, .. } => Some(source.kind()),
            TransportError::NoMemory(_) => None,
        };
        BindError::of(error.into(), kind)
    })?;
    ready(listener).map_err(|error| BindError::Impossible(error.into()))
}

fn ready(listener: std::net::TcpListener) -> std::io::Result<BoundTcpListener> {
    let address = listener.local_addr()?;
    listener.set_nonblocking(true)?;
    Ok(BoundTcpListener { listener: TcpListener::from_std(listener)?, address })
}

impl BoundTcpListener {
    /// Returns the address at which it listens, with the actual port.
    pub(super) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Accepts until the task is aborted or the socket fails; returns the reason of the failure.
    pub(super) async fn accept(self, service: Service) -> String {
        let address = self.address;
        while_here(address, LOOK, self.accept_all(service)).await
    }

    async fn accept_all(self, service: Service) -> String {
        let Self { listener, address } = self;
        let params = params(&service.limits);
        let mut failures = 0;
        loop {
            match listener.accept().await {
                Ok((stream, peer)) => {
                    failures = 0;
                    // An IPv4 host has an IPv6 address at a listener at "::".
                    let peer = SocketAddr::new(peer.ip().to_canonical(), peer.port());
                    if let Err(error) = hand_over(stream, peer, params, &service) {
                        limited!(LogCategory::ConnectionRefused, warn, %peer, %error, "connection refused");
                    }
                }
                Err(error) => {
                    failures += 1;
                    if is_broken(&error, failures) {
                        return format!("the socket accepts no further connections: {error}");
                    }
                    limited!(LogCategory::ConnectionRefused, warn, %address, %error, "cannot accept a connection");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    }
}

/// Returns the result of `accepting`, or reports that the address has disappeared.
///
/// A socket gets no error when its address disappears.
async fn while_here(
    address: SocketAddr,
    every: Duration,
    accepting: impl Future<Output = String>,
) -> String {
    let gone = async {
        while is_here(address) {
            tokio::time::sleep(every).await;
        }
    };
    tokio::select! {
        why = accepting => why,
        () = gone => "no interface of this machine has the address".to_owned(),
    }
}

/// Returns true if this machine seems to have the address: another socket can be bound to it.
fn is_here(mut address: SocketAddr) -> bool {
    address.set_port(0);
    let bound = UdpSocket::bind(address);
    bound.err().is_none_or(|error| error.kind() != ErrorKind::AddrNotAvailable)
}

/// Returns true if the socket itself is at fault, after `failures` failures in a row.
///
/// The caller then opens a new socket. That does not help against a lack of descriptors or memory.
/// An error of one connection ([accept(2)]) says nothing about the next connection.
///
/// [accept(2)]: https://man7.org/linux/man-pages/man2/accept.2.html
fn is_broken(error: &std::io::Error, failures: u32) -> bool {
    match error.raw_os_error().map(Errno::from_raw_os_error) {
        Some(Errno::BADF | Errno::INVAL | Errno::NOTSOCK) => true,
        Some(Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM) => false,
        _ => failures >= FAILURES_MAX,
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

/// Returns the NUMA node of the CPU at which a connection's packets arrive.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_listener_whose_address_goes_is_of_no_more_use() {
        let moment = Duration::from_millis(1);
        // No machine has an address that is reserved for documentation.
        for gone in ["192.0.2.9:4420", "[2001:db8::9]:4420"] {
            let why = while_here(gone.parse().unwrap(), moment, std::future::pending()).await;
            assert!(why.contains("no interface"), "{why}");
        }
        for here in ["127.0.0.1:4420", "0.0.0.0:4420", "[::]:4420"] {
            let accepting = async {
                tokio::time::sleep(10 * moment).await;
                "accepted".to_owned()
            };
            let why = while_here(here.parse().unwrap(), moment, accepting).await;
            assert_eq!(why, "accepted", "{here}");
        }
    }

    #[test]
    fn a_shortage_is_waited_for_and_a_broken_socket_is_given_up() {
        let error = |errno: Errno| std::io::Error::from(errno);
        for lasting in [Errno::INVAL, Errno::BADF, Errno::NOTSOCK] {
            assert!(is_broken(&error(lasting), 1), "{lasting}");
        }
        for shortage in [Errno::MFILE, Errno::NFILE, Errno::NOBUFS, Errno::NOMEM] {
            assert!(!is_broken(&error(shortage), u32::MAX), "{shortage}");
        }
        // An error of one connection, unless every connection fails.
        assert!(!is_broken(&error(Errno::CONNABORTED), 1));
        assert!(is_broken(&error(Errno::NETDOWN), FAILURES_MAX));
    }
}
