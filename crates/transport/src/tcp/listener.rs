//! A listening socket.

use std::io;
use std::net::{SocketAddr, TcpListener};

use rustix::net::{AddressFamily, SocketFlags, SocketType, ipproto, sockopt};

use crate::queue::TransportError;

/// Maximum number of connections that wait in the kernel for `accept`.
const BACKLOG: i32 = 1024;

/// Listens at `address`; port 0 takes any free one. The socket does not block.
///
/// `::` also accepts IPv4 hosts, unless `v6_only` is set. With it, `::` and `0.0.0.0` can share a
/// port.
///
/// # Errors
/// Names the failed operation and a remedy.
pub fn listen(address: SocketAddr, v6_only: bool) -> Result<TcpListener, TransportError> {
    open(address, v6_only).map_err(|source| TransportError::Io {
        what: format!("cannot listen at {address}{}", hint(&source, address)),
        source,
    })
}

fn open(address: SocketAddr, v6_only: bool) -> io::Result<TcpListener> {
    let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(family, SocketType::STREAM, flags, Some(ipproto::TCP))?;
    sockopt::set_socket_reuseaddr(&socket, true)?;
    if address.is_ipv6() {
        sockopt::set_ipv6_v6only(&socket, v6_only)?;
    }
    // Accepted sockets inherit this.
    sockopt::set_tcp_nodelay(&socket, true)?;
    rustix::net::bind(&socket, &address)?;
    rustix::net::listen(&socket, BACKLOG)?;
    Ok(TcpListener::from(socket))
}

/// Returns the remedy for the operator.
fn hint(error: &io::Error, address: SocketAddr) -> String {
    match error.kind() {
        io::ErrorKind::AddrInUse => {
            format!(
                ": port {} is in use (`ss -ltnp` shows by whom); choose another",
                address.port()
            )
        }
        io::ErrorKind::AddrNotAvailable => {
            ": no interface of this machine has the address (`ip address` lists them)".to_owned()
        }
        io::ErrorKind::PermissionDenied => format!(
            ": ports below 1024 need CAP_NET_BIND_SERVICE; run with it or choose another port than {}",
            address.port()
        ),
        _ if error.raw_os_error() == Some(libc::EAFNOSUPPORT) => {
            ": the kernel has no IPv6".to_owned()
        }
        _ => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn listens_on_both_families_at_a_free_port() {
        for address in ["127.0.0.1:0", "[::1]:0"] {
            let listener = listen(address.parse().unwrap(), false).unwrap();
            let bound = listener.local_addr().unwrap();
            assert_ne!(bound.port(), 0);
            std::net::TcpStream::connect(bound).unwrap();
        }
    }

    #[test]
    fn wildcards_of_both_families_share_a_port() {
        let four = listen("0.0.0.0:0".parse().unwrap(), false).unwrap();
        let port = four.local_addr().unwrap().port();
        let six = SocketAddr::new("::".parse().unwrap(), port);
        listen(six, false).unwrap_err();
        listen(six, true).unwrap();
    }

    #[test]
    fn the_ipv6_wildcard_accepts_ipv4() {
        let both = listen("[::]:0".parse().unwrap(), false).unwrap();
        let port = both.local_addr().unwrap().port();
        std::net::TcpStream::connect(("127.0.0.1", port)).unwrap();
        std::net::TcpStream::connect(("::1", port)).unwrap();
    }

    #[test]
    fn errors_say_what_to_do() {
        let taken = listen("127.0.0.1:0".parse().unwrap(), false).unwrap();
        let error = listen(taken.local_addr().unwrap(), false).unwrap_err().to_string();
        assert!(error.contains("is in use"), "{error}");
        let error = listen("192.0.2.1:4420".parse().unwrap(), false).unwrap_err().to_string();
        assert!(error.contains("no interface"), "{error}");
    }
}
