//! Discovery, log page 70h (Base 5.16.1.23).

use zerocopy::little_endian::{U16, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::ascii;
use crate::nqn::{NQN_FIELD, Nqn, NqnError};
use crate::open::{open_enum, zero_default};

/// Bytes of the header, and of each entry.
pub const DISCOVERY_RECORD_SIZE: usize = 1024;

open_enum! {
    /// Transport Type (TRTYPE).
    #[derive(zerocopy::Unaligned)]
    pub struct TransportType(pub u8) {
        RDMA = 0x01 => "rdma",
        FIBRE_CHANNEL = 0x02 => "fc",
        TCP = 0x03 => "tcp",
        INTRA_HOST = 0xfe => "loop",
    }
}

open_enum! {
    /// Address Family (ADRFAM).
    #[derive(zerocopy::Unaligned)]
    pub struct AddressFamily(pub u8) {
        IPV4 = 0x01 => "ipv4",
        IPV6 = 0x02 => "ipv6",
        INFINIBAND = 0x03 => "ib",
        FIBRE_CHANNEL = 0x04 => "fc",
        INTRA_HOST = 0xfe => "loop",
    }
}

open_enum! {
    /// Subsystem Type (SUBTYPE).
    #[derive(zerocopy::Unaligned)]
    pub struct DiscoverySubtype(pub u8) {
        REFERRAL = 0x01 => "discovery subsystem referral",
        NVM = 0x02 => "nvme subsystem",
        CURRENT_DISCOVERY = 0x03 => "current discovery subsystem",
    }
}

open_enum! {
    /// TCP Security Type (SECTYPE; TCP 3.6.1.1, Figure 17).
    pub struct TcpSecurity(pub u8) {
        NONE = 0x00 => "none",
        TLS_1_2 = 0x01 => "tls 1.2",
        TLS_1_3 = 0x02 => "tls 1.3",
    }
}

open_enum! {
    /// RDMA Queue Pair Type (RDMA_QPTYPE).
    pub struct RdmaQueuePair(pub u8) {
        CONNECTED = 0x01 => "reliable connected",
        DATAGRAM = 0x02 => "reliable datagram",
    }
}

open_enum! {
    /// RDMA Provider Type (RDMA_PRTYPE).
    pub struct RdmaProvider(pub u8) {
        NONE = 0x01 => "none specified",
        INFINIBAND = 0x02 => "infiniband",
        ROCE = 0x03 => "roce",
        ROCE_V2 = 0x04 => "roce v2",
        IWARP = 0x05 => "iwarp",
    }
}

open_enum! {
    /// RDMA Connection Management Service (RDMA_CMS).
    pub struct RdmaConnection(pub u8) {
        RDMA_CM = 0x01 => "rdma_cm",
    }
}

/// Fields of Transport Requirements (TREQ).
pub mod treq {
    /// Secure channel (bits 1:0): required.
    pub const SECURE_CHANNEL_REQUIRED: u8 = 0b01;
    /// Secure channel (bits 1:0): not required.
    pub const SECURE_CHANNEL_NOT_REQUIRED: u8 = 0b10;
    /// The controller can disable SQ flow control.
    pub const SQ_FLOW_CONTROL_OFF: u8 = 1 << 2;
}

/// Bits of Entry Flags (EFLAGS).
pub mod eflags {
    /// Duplicate Returned Information: other ports of this subsystem return the same.
    pub const DUPLICATE: u16 = 1 << 0;
    /// Explicit Persistent Connection Support for Discovery.
    pub const PERSISTENT: u16 = 1 << 1;
}

/// Header of the Discovery log page: 1024 bytes, then `numrec` entries.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
pub struct DiscoveryHeader {
    /// Bytes 0-7, Generation Counter: changes with the page, so that a host that reads it in parts
    /// notices a change.
    pub genctr: U64,
    /// Bytes 8-15, Number of Records.
    pub numrec: U64,
    /// Bytes 16-17, Record Format; 0.
    pub recfmt: U16,
    /// Bytes 18-1023, reserved.
    pub reserved18: [u8; 1006],
}
const _: () = assert!(size_of::<DiscoveryHeader>() == DISCOVERY_RECORD_SIZE);

impl DiscoveryHeader {
    /// Creates a header for `records` entries.
    #[must_use]
    pub fn new(generation: u64, records: u64) -> Self {
        Self { genctr: U64::new(generation), numrec: U64::new(records), ..Self::default() }
    }
}

/// Entry of the Discovery log page: 1024 bytes.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
pub struct DiscoveryEntry {
    /// Byte 0, Transport Type.
    pub trtype: TransportType,
    /// Byte 1, Address Family.
    pub adrfam: AddressFamily,
    /// Byte 2, Subsystem Type.
    pub subtype: DiscoverySubtype,
    /// Byte 3, Transport Requirements, see [`treq`].
    pub treq: u8,
    /// Bytes 4-5, Port ID.
    pub portid: U16,
    /// Bytes 6-7, Controller ID: FFFFh dynamic, FFFEh static and any.
    pub cntlid: U16,
    /// Bytes 8-9, Admin Max SQ Size in entries, at least 32.
    pub asqsz: U16,
    /// Bytes 10-11, Entry Flags, see [`eflags`].
    pub eflags: U16,
    /// Bytes 12-31, reserved.
    pub reserved12: [u8; 20],
    /// Bytes 32-63, Transport Service Identifier (port), ASCII.
    pub trsvcid: [u8; 32],
    /// Bytes 64-255, reserved.
    pub reserved64: [u8; 192],
    /// Bytes 256-511, NVM Subsystem NVMe Qualified Name, NUL terminated.
    pub subnqn: [u8; NQN_FIELD],
    /// Bytes 512-767, Transport Address, ASCII.
    pub traddr: [u8; 256],
    /// Bytes 768-1023, Transport Specific Address Subtype.
    pub tsas: [u8; 256],
}
const _: () = assert!(size_of::<DiscoveryEntry>() == DISCOVERY_RECORD_SIZE);
const _: () = {
    use core::mem::offset_of;
    assert!(offset_of!(DiscoveryEntry, trsvcid) == 32);
    assert!(offset_of!(DiscoveryEntry, subnqn) == 256);
    assert!(offset_of!(DiscoveryEntry, traddr) == 512);
    assert!(offset_of!(DiscoveryEntry, tsas) == 768);
};

/// Transport Specific Address Subtype, by transport.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tsas {
    /// NVMe/TCP.
    Tcp {
        /// Security Type.
        sectype: TcpSecurity,
    },
    /// NVMe/RDMA.
    Rdma {
        /// Queue Pair Type.
        qptype: RdmaQueuePair,
        /// Provider Type.
        prtype: RdmaProvider,
        /// Connection Management Service.
        cms: RdmaConnection,
        /// Partition key, for InfiniBand.
        pkey: u16,
    },
    /// Any other transport.
    None,
}

impl DiscoveryEntry {
    /// Sets TRSVCID and TRADDR, space padded.
    pub fn set_address(&mut self, address: &str, service: &str) {
        ascii::fill(&mut self.traddr, address);
        ascii::fill(&mut self.trsvcid, service);
    }

    /// TRADDR without padding, if it is printable ASCII.
    #[must_use]
    pub fn address(&self) -> Option<&str> {
        ascii::text(&self.traddr)
    }

    /// TRSVCID without padding, if it is printable ASCII.
    #[must_use]
    pub fn service(&self) -> Option<&str> {
        ascii::text(&self.trsvcid)
    }

    /// NQN of the subsystem.
    ///
    /// # Errors
    /// If the field is not an NQN.
    pub fn subnqn(&self) -> Result<Nqn, NqnError> {
        Nqn::from_field(&self.subnqn)
    }

    /// Sets TSAS; all other bytes of it are zero.
    pub fn set_tsas(&mut self, tsas: Tsas) {
        self.tsas = [0; 256];
        match tsas {
            Tsas::Tcp { sectype } => self.tsas[0] = sectype.0,
            Tsas::Rdma { qptype, prtype, cms, pkey } => {
                self.tsas[..3].copy_from_slice(&[qptype.0, prtype.0, cms.0]);
                self.tsas[8..10].copy_from_slice(&pkey.to_le_bytes());
            }
            Tsas::None => {}
        }
    }

    /// Returns TSAS in the form that TRTYPE determines.
    #[must_use]
    pub fn tsas(&self) -> Tsas {
        let at = |i: usize| self.tsas[i];
        match self.trtype {
            TransportType::TCP => Tsas::Tcp { sectype: TcpSecurity(at(0)) },
            TransportType::RDMA => Tsas::Rdma {
                qptype: RdmaQueuePair(at(0)),
                prtype: RdmaProvider(at(1)),
                cms: RdmaConnection(at(2)),
                pkey: u16::from_le_bytes([at(8), at(9)]),
            },
            _ => Tsas::None,
        }
    }
}

zero_default!(DiscoveryHeader, DiscoveryEntry);
