//! Errors of RDMA, with the remedies.

use std::io;

/// Error of an RDMA operation.
#[derive(Debug, thiserror::Error)]
pub enum VerbsError {
    /// The libraries are not installed.
    #[error(
        "RDMA needs {library}, which is not here ({why}): install rdma-core's libraries \
         (Debian: apt-get install librdmacm1 ibverbs-providers)"
    )]
    NoLibrary {
        /// The missing file.
        library: &'static str,
        /// Message of the loader.
        why: String,
    },
    /// The libraries are installed, but the machine has no RDMA device.
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
    /// NVMe/RDMA is not served over the transport of the device.
    #[error(
        "the RDMA device {device} is {what}, and only InfiniBand and RoCE are supported: listen \
         at an \
         address of such a device, or serve this one's address with type = \"tcp\""
    )]
    Unserved {
        /// The device.
        device: String,
        /// Transport of the device.
        what: &'static str,
    },
    /// No device has the requested name.
    #[error("there is no RDMA device {wanted:?}: this machine has {have}")]
    UnknownDevice {
        /// The requested name.
        wanted: String,
        /// Names of the devices that exist.
        have: String,
    },
    /// An address belongs to a different device than the requested one.
    #[error(
        "the address {address} belongs to the RDMA device {device}, not to {wanted} as asked for"
    )]
    OtherDevice {
        /// The address.
        address: std::net::SocketAddr,
        /// The device that has the address.
        device: Box<str>,
        /// The requested device.
        wanted: Box<str>,
    },
    /// An address is not at the requested index of its port's GID table.
    #[error(
        "GID index {index} of {device} port {port} is {found}, not {address}: see \
         /sys/class/infiniband/{device}/ports/{port}/gids"
    )]
    OtherGid {
        /// The address.
        address: std::net::IpAddr,
        /// The device that has the address.
        device: Box<str>,
        /// Port of the device, counted from 1.
        port: u8,
        /// The requested index.
        index: u32,
        /// Content of the table at that index.
        found: Box<str>,
    },
    /// The limit of locked memory is too small for the registration.
    #[error(
        "cannot register {bytes} bytes with {device}: the limit of locked memory is too small \
         (`ulimit -l`); raise the limit (LimitMEMLOCK=infinity for a service)"
    )]
    LockedMemory {
        /// Bytes of the registration.
        bytes: usize,
        /// The device.
        device: String,
    },
    /// A call failed.
    #[error("{what}: {source}")]
    Call {
        /// The operation and its object.
        what: String,
        /// Error of the system.
        source: io::Error,
    },
}

impl VerbsError {
    /// Returns the error of a system call that failed during `what`.
    #[must_use]
    pub fn call(what: impl Into<String>, source: io::Error) -> Self {
        Self::Call { what: what.into(), source }
    }
}
