//! The desired state of a target, as a config describes it.
//!
//! [`Target::apply`](crate::Target::apply) checks it, never this module.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::time::Duration;

use nvmeof_wire::Nqn;
use nvmeof_wire::identify::PreferredSizes;

/// Identifies a block device to the caller.
///
/// This crate only returns it in an [`IoCommand`](crate::IoCommand).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DeviceId(pub u32);

/// Identifies a listener; the Port ID of its discovery log entries (Base 5.16.1.23).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PortId(pub u16);

/// The fabric of a listener, which determines the SGL descriptors that its commands may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TransportKind {
    /// NVMe/TCP: transport and in-capsule descriptors.
    Tcp,
    /// NVMe/RDMA: keyed and in-capsule descriptors.
    Rdma,
    /// In-process, for tests: as TCP.
    Loop,
}

/// Address family of a listener (ADRFAM, Base 5.16.1.23).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AddressFamily {
    /// IPv4, dotted quad.
    Ipv4,
    /// IPv6, RFC 5952 text.
    Ipv6,
    /// Intra-host.
    Loop,
}

/// The complete desired state.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TargetSpec {
    /// NVM subsystems.
    pub subsystems: Vec<SubsystemSpec>,
    /// Listeners; each serves the discovery service.
    pub ports: Vec<PortSpec>,
    /// The discovery service.
    pub discovery: DiscoverySpec,
    /// Other discovery services, which the discovery log reports to hosts.
    pub referrals: Vec<ReferralSpec>,
}

/// An NVM subsystem.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SubsystemSpec {
    /// NQN of the subsystem.
    pub nqn: Nqn,
    /// Serial number: 1 to 20 printable ASCII characters.
    pub serial: String,
    /// Model number: 1 to 40 printable ASCII characters.
    pub model: String,
    /// Lowest controller ID, at least 1.
    pub cntlid_min: u16,
    /// Highest controller ID, at most FFEFh.
    pub cntlid_max: u16,
    /// Hosts that may connect.
    pub access: Access,
    /// Its namespaces.
    pub namespaces: Vec<NamespaceSpec>,
    /// Maximum time of a command at one of their devices.
    ///
    /// CAP.TO and the wait of a Connect for the commands of the previous association derive from
    /// it.
    pub quiesce_bound: Duration,
}

/// Hosts that may connect to a subsystem and see it in the discovery log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Access {
    /// Every host.
    AnyHost,
    /// The hosts with these NQNs.
    Hosts(BTreeSet<Nqn>),
}

impl Access {
    /// Returns true if the host with this NQN may connect.
    #[must_use]
    pub fn allows(&self, host: &Nqn) -> bool {
        match self {
            Self::AnyHost => true,
            Self::Hosts(hosts) => hosts.contains(host),
        }
    }
}

/// The discovery service.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DiscoverySpec {
    /// Unique NQN, in addition to the well-known one (Base 3.1.3.3.1).
    pub nqn: Option<Nqn>,
    /// Only hosts that may connect to a subsystem may connect to the discovery service.
    pub is_restricted: bool,
}

/// A namespace and the capabilities of its device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamespaceSpec {
    /// Namespace ID, 1 to [`MAX_NSID`](crate::limits::MAX_NSID).
    pub nsid: u32,
    /// The device of the namespace.
    pub device: DeviceId,
    /// Logical block size in bytes: a power of two, 512 to 65536.
    pub block_size: u32,
    /// Size in logical blocks, at least 1.
    pub blocks: u64,
    /// UUID; all zeroes: none.
    pub uuid: [u8; 16],
    /// Namespace Globally Unique Identifier; all zeroes: none.
    pub nguid: [u8; 16],
    /// IEEE Extended Unique Identifier; all zeroes: none.
    pub eui64: [u8; 8],
    /// The target rejects writes.
    pub read_only: bool,
    /// Writes can be lost on power failure until a Flush.
    pub volatile_cache: bool,
    /// Deallocate has an effect.
    pub deallocate: bool,
    /// Deallocated blocks read as zeroes.
    pub deallocate_reads_zero: bool,
    /// The device supports Write Zeroes.
    pub write_zeroes: bool,
    /// Sizes at which the device performs best.
    pub preferred: PreferredSizes,
}

/// A listener.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortSpec {
    /// Unique ID, which queues refer to.
    pub id: PortId,
    /// The fabric.
    pub transport: TransportKind,
    /// Address family of `address`.
    pub family: AddressFamily,
    /// Address that hosts connect to.
    pub address: String,
    /// Service: the port number, decimal.
    pub service: String,
    /// At `::`, it does not accept IPv4 hosts.
    pub v6_only: bool,
    /// Subsystems that it serves; `None`: all.
    pub subsystems: Option<BTreeSet<Nqn>>,
    /// A read's successful response may be folded into its data although the host uses SQ flow
    /// control.
    pub folds_always: bool,
}

impl PortSpec {
    /// Returns true if hosts can connect to this subsystem here.
    #[must_use]
    pub fn serves(&self, subsystem: &Nqn) -> bool {
        self.subsystems.as_ref().is_none_or(|served| served.contains(subsystem))
    }

    /// Returns true if it listens on every address of the machine.
    #[must_use]
    pub fn is_wildcard(&self) -> bool {
        self.address.parse().is_ok_and(|address: IpAddr| address.is_unspecified())
    }

    /// Returns true if both are the same socket: only what it serves differs.
    #[must_use]
    pub fn is_same_socket(&self, other: &Self) -> bool {
        let socket = |port: &Self| (port.id, port.transport, port.family);
        socket(self) == socket(other)
            && self.address == other.address
            && self.service == other.service
    }
}

/// Another discovery service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReferralSpec {
    /// The fabric.
    pub transport: TransportKind,
    /// Address family of `address`.
    pub family: AddressFamily,
    /// NQN of the service: the well-known one, or its unique one.
    pub nqn: Nqn,
    /// Address of the service.
    pub address: String,
    /// Service: the port number, decimal.
    pub service: String,
}
