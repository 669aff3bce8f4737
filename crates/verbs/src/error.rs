//! What can go wrong, and what a person can do about it.

use std::io;

/// Why something of RDMA cannot be had.
#[derive(Debug, thiserror::Error)]
pub enum VerbsError {
    /// The libraries are not installed.
    #[error(
        "RDMA needs {library}, which is not here ({why}): install rdma-core's libraries \
         (Debian: apt-get install librdmacm1 ibverbs-providers)"
    )]
    NoLibrary {
        /// The file looked for.
        library: &'static str,
        /// The loader's words.
        why: String,
    },
    /// The libraries are there but no RDMA device is.
    #[error(
        "this machine has no RDMA device (`rdma link` lists them): load the driver of the network card, or \
         `rdma link add rxe0 type rxe netdev INTERFACE` for RDMA in software"
    )]
    NoDevice,
    /// No RDMA device has this address.
    #[error(
        "no RDMA device has the address {address} (`rdma link` and `ip address` show which have one)"
    )]
    NoDeviceAt {
        /// The address.
        address: std::net::SocketAddr,
    },
    /// The device's packets are not what NVMe/RDMA is served over here.
    #[error(
        "the RDMA device {device} is {what}, and hosts are served over InfiniBand and RoCE only: listen at an \
         address of such a device, or serve this one's address with type = \"tcp\""
    )]
    Unserved {
        /// The device.
        device: String,
        /// What it is.
        what: &'static str,
    },
    /// A device was asked for by name, and is not there.
    #[error("there is no RDMA device {wanted:?}: this machine has {have}")]
    UnknownDevice {
        /// The name.
        wanted: String,
        /// Those there are.
        have: String,
    },
    /// An address belongs to another device than the one asked for.
    #[error(
        "the address {address} belongs to the RDMA device {device}, not to {wanted} as asked for"
    )]
    OtherDevice {
        /// The address.
        address: std::net::SocketAddr,
        /// The device it belongs to.
        device: Box<str>,
        /// The one asked for.
        wanted: Box<str>,
    },
    /// An address is at another index of its port's GID table than the one asked for.
    #[error(
        "GID index {index} of {device} port {port} is {found}, not {address}: see \
         /sys/class/infiniband/{device}/ports/{port}/gids"
    )]
    OtherGid {
        /// The address.
        address: std::net::IpAddr,
        /// Its device.
        device: Box<str>,
        /// The device's port, counted from 1.
        port: u8,
        /// The index asked for.
        index: u32,
        /// What is there.
        found: Box<str>,
    },
    /// The system may not lock the memory.
    #[error(
        "cannot register {bytes} bytes with {device}: the limit of locked memory is too small (`ulimit -l` \
         shows it; raise it, LimitMEMLOCK=infinity for a service)"
    )]
    LockedMemory {
        /// What was to be registered.
        bytes: usize,
        /// The device.
        device: String,
    },
    /// A call failed.
    #[error("{what}: {source}")]
    Call {
        /// What was being done, and to what.
        what: String,
        /// The system's answer.
        source: io::Error,
    },
}

impl VerbsError {
    /// The last system call failed while doing `what`.
    pub(crate) fn call(what: impl Into<String>, source: io::Error) -> Self {
        Self::Call { what: what.into(), source }
    }
}
