//! Target addresses: `tcp://ADDR:PORT/SUBNQN` or `rdma://ADDR:PORT/SUBNQN`.

use std::fmt;
use std::str::FromStr;

use nvmeof_wire::nqn::{Nqn, NqnError};

/// Default port of NVMe/TCP and NVMe/RDMA I/O controllers (IANA).
const DEFAULT_PORT: u16 = 4420;

/// A fabric.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Fabric {
    /// NVMe/TCP.
    Tcp,
    /// NVMe/RDMA.
    Rdma,
}

impl Fabric {
    const ALL: [Self; 2] = [Self::Tcp, Self::Rdma];

    /// Scheme of an address.
    #[must_use]
    pub const fn scheme(self) -> &'static str {
        match self {
            Self::Tcp => "tcp",
            Self::Rdma => "rdma",
        }
    }
}

/// Fabric, host and port of a target.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Address {
    /// The fabric.
    pub fabric: Fabric,
    /// Host name or IP address, an IPv6 address without brackets.
    pub host: String,
    /// Port.
    pub port: u16,
}

/// A subsystem at an address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Endpoint {
    /// Address of the target.
    pub address: Address,
    /// NQN of the subsystem.
    pub subnqn: Nqn,
}

/// Error of parsing an address.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AddressError {
    /// Neither `tcp://` nor `rdma://`.
    #[error(
        "`{0}` begins with neither tcp:// nor rdma:// (the form is tcp://ADDR:PORT/SUBNQN or \
         rdma://ADDR:PORT/SUBNQN)"
    )]
    Scheme(String),
    /// No host.
    #[error(
        "`{0}` has no host (the form is tcp://ADDR:PORT/SUBNQN or rdma://ADDR:PORT/SUBNQN, an IPv6 address in \
         brackets)"
    )]
    Host(String),
    /// Invalid port.
    #[error("`{0}` is not a port from 1 to 65535")]
    Port(String),
    /// An endpoint without a subsystem.
    #[error(
        "`{0}` names no subsystem: append /SUBNQN (`nvmeof-perf discover` lists what a target has)"
    )]
    NoSubsystem(String),
    /// An invalid NQN.
    #[error("`{name}` is not a subsystem NQN: {source}")]
    Subsystem {
        /// The given name.
        name: String,
        /// Error of the name.
        source: NqnError,
    },
    /// Unexpected text after the address.
    #[error("`{0}`: nothing may follow the port of a discovery address but /")]
    Trailing(String),
}

impl Address {
    /// Host and port, an IPv6 address in brackets.
    #[must_use]
    pub fn authority(&self) -> String {
        if self.host.contains(':') {
            format!("[{}]:{}", self.host, self.port)
        } else {
            format!("{}:{}", self.host, self.port)
        }
    }
}

impl FromStr for Address {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Self, AddressError> {
        let (address, rest) = split(text)?;
        match rest {
            None | Some("") => Ok(address),
            Some(_) => Err(AddressError::Trailing(text.into())),
        }
    }
}

impl FromStr for Endpoint {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Self, AddressError> {
        let (address, rest) = split(text)?;
        let name = rest
            .filter(|name| !name.is_empty())
            .ok_or_else(|| AddressError::NoSubsystem(text.into()))?;
        let subnqn = Nqn::new(name)
            .map_err(|source| AddressError::Subsystem { name: name.into(), source })?;
        Ok(Self { address, subnqn })
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}://{}", self.fabric.scheme(), self.authority())
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.subnqn)
    }
}

/// Splits `SCHEME://HOST[:PORT][/REST]`.
fn split(text: &str) -> Result<(Address, Option<&str>), AddressError> {
    let of_fabric = |fabric: Fabric| {
        let rest = text.strip_prefix(fabric.scheme())?.strip_prefix("://")?;
        Some((fabric, rest))
    };
    let (fabric, rest) = Fabric::ALL
        .into_iter()
        .find_map(of_fabric)
        .ok_or_else(|| AddressError::Scheme(text.into()))?;
    let no_host = || AddressError::Host(text.into());
    let (authority, path) = match rest.split_once('/') {
        Some((authority, path)) => (authority, Some(path)),
        None => (rest, None),
    };
    let (host, port) = if let Some(inner) = authority.strip_prefix('[') {
        let (host, after) = inner.split_once(']').ok_or_else(no_host)?;
        match after.strip_prefix(':') {
            Some(port) => (host, Some(port)),
            None if after.is_empty() => (host, None),
            None => return Err(no_host()),
        }
    } else {
        match authority.split_once(':') {
            Some((_, port)) if port.contains(':') => return Err(no_host()),
            Some((host, port)) => (host, Some(port)),
            None => (authority, None),
        }
    };
    if host.is_empty() {
        return Err(no_host());
    }
    let port = match port {
        None => DEFAULT_PORT,
        Some(port) => match port.parse() {
            Ok(number @ 1..) => number,
            _ => return Err(AddressError::Port(port.into())),
        },
    };
    Ok((Address { fabric, host: host.into(), port }, path))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses() {
        let plain: Endpoint = "tcp://127.0.0.1:4420/nqn.2026-11.io.x:demo".parse().unwrap();
        assert_eq!(plain.address.host, "127.0.0.1");
        assert_eq!(plain.address.port, 4420);
        assert_eq!(plain.subnqn.as_str(), "nqn.2026-11.io.x:demo");
        assert_eq!(plain.to_string(), "tcp://127.0.0.1:4420/nqn.2026-11.io.x:demo");
        let six: Endpoint = "tcp://[::1]:1234/x".parse().unwrap();
        assert_eq!((six.address.host.as_str(), six.address.port), ("::1", 1234));
        assert_eq!(six.to_string(), "tcp://[::1]:1234/x");
        let short: Address = "tcp://host/".parse().unwrap();
        assert_eq!(short.port, 4420);
        let rdma: Endpoint = "rdma://[fe80::1]:4421/nqn.x".parse().unwrap();
        assert_eq!(rdma.address.fabric, Fabric::Rdma);
        assert_eq!(rdma.to_string(), "rdma://[fe80::1]:4421/nqn.x");
    }

    #[test]
    fn what_is_no_address() {
        let bad = |text: &str| text.parse::<Endpoint>().unwrap_err();
        assert!(matches!(bad("127.0.0.1:4420/x"), AddressError::Scheme(_)));
        assert!(matches!(bad("rdmatcp://h/x"), AddressError::Scheme(_)));
        assert!(matches!(bad("fc://h/x"), AddressError::Scheme(_)));
        assert!(matches!(bad("rdma://:4420/x"), AddressError::Host(_)));
        assert!(matches!(bad("tcp://:4420/x"), AddressError::Host(_)));
        assert!(matches!(bad("tcp://::1:4420/x"), AddressError::Host(_)));
        assert!(matches!(bad("tcp://[::1/x"), AddressError::Host(_)));
        assert!(matches!(bad("tcp://h:0/x"), AddressError::Port(_)));
        assert!(matches!(bad("tcp://h:70000/x"), AddressError::Port(_)));
        assert!(matches!(bad("tcp://h:1"), AddressError::NoSubsystem(_)));
        assert!(matches!(bad("tcp://h:1/"), AddressError::NoSubsystem(_)));
        assert!(matches!(
            bad(&format!("tcp://h/{}", "n".repeat(300))),
            AddressError::Subsystem { .. }
        ));
        assert!(matches!("tcp://h/x".parse::<Address>(), Err(AddressError::Trailing(_))));
    }
}
