//! The wanted state of a target, as a config describes it. Checked by
//! [`Target::apply`](crate::Target::apply), never here.

use std::collections::BTreeSet;
use std::time::Duration;

use nvmeof_wire::Nqn;

/// Names a block device to the caller; this crate only hands it back in an
/// [`IoCommand`](crate::IoCommand).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DeviceId(pub u32);

/// Names a listener; the Port ID of its discovery log entries (Base 5.16.1.23).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PortId(pub u16);

/// The fabric of a listener; decides which SGL descriptors its commands may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TransportKind {
    /// NVMe/TCP: transport and in-capsule descriptors.
    Tcp,
    /// NVMe/RDMA: keyed and in-capsule descriptors.
    Rdma,
    /// Inside one process, for tests: as TCP.
    Loop,
}

/// Address family of a listener (ADRFAM, Base 5.16.1.23).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AddressFamily {
    /// IPv4, dotted quad.
    Ipv4,
    /// IPv6, RFC 5952 text.
    Ipv6,
    /// Inside the host.
    Loop,
}

/// The whole wanted state.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TargetSpec {
    /// NVM subsystems.
    pub subsystems: Vec<SubsystemSpec>,
    /// Listeners, each of which serves every subsystem and the discovery service.
    pub ports: Vec<PortSpec>,
    /// Other discovery services to tell hosts of.
    pub referrals: Vec<ReferralSpec>,
}

/// An NVM subsystem.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SubsystemSpec {
    /// Its name.
    pub nqn: Nqn,
    /// Serial number: 1 to 20 printable ASCII characters.
    pub serial: String,
    /// Model number: 1 to 40 printable ASCII characters.
    pub model: String,
    /// Lowest controller ID given out, at least 1.
    pub cntlid_min: u16,
    /// Highest controller ID given out, at most FFEFh.
    pub cntlid_max: u16,
    /// Which hosts may connect.
    pub access: Access,
    /// Its namespaces.
    pub namespaces: Vec<NamespaceSpec>,
    /// How long a command can be with a device of them at most: what CAP.TO and a Connect that waits for the
    /// commands of the association before it are derived from.
    pub quiesce_bound: Duration,
}

/// Which hosts may connect to a subsystem and see it in the discovery log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Access {
    /// Every host.
    AnyHost,
    /// The hosts of these names.
    Hosts(BTreeSet<Nqn>),
}

impl Access {
    /// May the host of this name connect?
    #[must_use]
    pub fn allows(&self, host: &Nqn) -> bool {
        match self {
            Self::AnyHost => true,
            Self::Hosts(hosts) => hosts.contains(host),
        }
    }
}

/// A namespace and what its device can do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamespaceSpec {
    /// Namespace ID, 1 to [`MAX_NSID`](crate::limits::MAX_NSID).
    pub nsid: u32,
    /// The device behind it.
    pub device: DeviceId,
    /// Logical block size in bytes: a power of two, 512 to 65536.
    pub block_size: u32,
    /// Size in logical blocks, at least 1.
    pub blocks: u64,
    /// UUID; all zero: none.
    pub uuid: [u8; 16],
    /// Namespace Globally Unique Identifier; all zero: none.
    pub nguid: [u8; 16],
    /// IEEE Extended Unique Identifier; all zero: none.
    pub eui64: [u8; 8],
    /// Writes are refused.
    pub read_only: bool,
    /// Writes may be lost on power failure until a Flush.
    pub volatile_cache: bool,
    /// Deallocate does something.
    pub deallocate: bool,
    /// Deallocated blocks read as zeroes.
    pub deallocate_reads_zero: bool,
    /// The device takes Write Zeroes.
    pub write_zeroes: bool,
}

/// A listener.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortSpec {
    /// Its identity: unique, what queues name.
    pub id: PortId,
    /// Its fabric.
    pub transport: TransportKind,
    /// Address family of `address`.
    pub family: AddressFamily,
    /// Address hosts connect to.
    pub address: String,
    /// Service: the port number, decimal.
    pub service: String,
}

/// Another discovery service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReferralSpec {
    /// Its fabric.
    pub transport: TransportKind,
    /// Address family of `address`.
    pub family: AddressFamily,
    /// Address of the service.
    pub address: String,
    /// Service: the port number, decimal.
    pub service: String,
}
