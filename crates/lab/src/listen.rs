//! Listen address of a daemon under test, as a person types it: `tcp://ADDR[:PORT]` or
//! `rdma://ADDR[:PORT]`.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::str::FromStr;

/// An address of the daemon's machine, and its fabric.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ListenAddress {
    pub(crate) fabric: Fabric,
    pub(crate) address: IpAddr,
    /// 0: any port.
    pub(crate) port: u16,
}

/// Fabric between target and hosts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fabric {
    Tcp,
    Rdma,
}

impl ListenAddress {
    /// Returns whether PDUs can carry digests.
    pub(crate) fn has_digests(&self) -> bool {
        self.fabric == Fabric::Tcp
    }

    /// Returns a `[[listener]]` of the daemon's config.
    pub(crate) fn config(&self) -> String {
        let Self { fabric, address, port } = self;
        format!(
            "[[listener]]\ntype = \"{}\"\naddress = \"{address}\"\nport = {port}\n",
            fabric.name()
        )
    }
}

impl Default for ListenAddress {
    fn default() -> Self {
        Self { fabric: Fabric::Tcp, address: Ipv4Addr::LOCALHOST.into(), port: 0 }
    }
}

impl Fabric {
    /// Returns the name in addresses and configs.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Tcp => "tcp",
            Self::Rdma => "rdma",
        }
    }
}

impl FromStr for ListenAddress {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let form = || {
            format!(
                "`{text}` is not tcp://ADDR[:PORT] or rdma://ADDR[:PORT], an IPv6 address in brackets"
            )
        };
        let (scheme, rest) = text.split_once("://").ok_or_else(form)?;
        let fabrics = [Fabric::Tcp, Fabric::Rdma];
        let fabric = fabrics.into_iter().find(|fabric| fabric.name() == scheme).ok_or_else(form)?;
        if let Ok(socket) = rest.parse::<SocketAddr>() {
            return Ok(Self { fabric, address: socket.ip(), port: socket.port() });
        }
        let bare = rest.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(rest);
        Ok(Self { fabric, address: bare.parse().map_err(|_| form())?, port: 0 })
    }
}

impl fmt::Display for ListenAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { fabric, address, port } = self;
        let fabric = fabric.name();
        match (address, port) {
            (address, 1..) => write!(f, "{fabric}://{}", SocketAddr::new(*address, *port)),
            (IpAddr::V4(address), 0) => write!(f, "{fabric}://{address}"),
            (IpAddr::V6(address), 0) => write!(f, "{fabric}://[{address}]"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn where_to_listen() {
        for text in
            ["tcp://127.0.0.1", "rdma://10.0.1.1:4420", "rdma://[fe80::1]", "tcp://[fe80::1]:4420"]
        {
            let listen: ListenAddress = text.parse().expect("one");
            assert_eq!(listen.to_string(), text);
        }
        assert_eq!(ListenAddress::default().to_string(), "tcp://127.0.0.1");
        let rdma: ListenAddress = "rdma://::1".parse().expect("one");
        let config = rdma.config();
        assert!(config.contains("type = \"rdma\"\naddress = \"::1\"\nport = 0\n"), "{config}");
        for text in ["10.0.1.1", "fc://10.0.1.1", "tcp://host", "tcp://1.2.3.4:x", "tcp://"] {
            assert!(text.parse::<ListenAddress>().expect_err("none").contains(text));
        }
    }
}
