//! Fabrics commands (Base 6): Connect, Property Get and Set, Disconnect.

use zerocopy::little_endian::U16;
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::nqn::{NQN_FIELD, Nqn, NqnError};
use crate::opcode::FabricsType;
use crate::sqe::Sqe;

/// CNTLID in Connect data that requests any controller, dynamic model (Base 6.3).
pub const CNTLID_DYNAMIC: u16 = 0xffff;
/// CNTLID in Connect data that requests any static controller.
pub const CNTLID_STATIC_ANY: u16 = 0xfffe;
/// Maximum CNTLID of a controller; FFF0h and above are reserved.
pub const CNTLID_MAX: u16 = 0xffef;

/// Size of the data of a Connect command in bytes.
pub const CONNECT_DATA_SIZE: usize = 1024;

/// Fields of a Connect command (Base 6.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Connect {
    /// Queue Identifier: 0 creates an admin queue and its controller, others an I/O queue.
    pub qid: u16,
    /// Entries in the submission queue, 1 to 65536 (SQSIZE is 0's based).
    pub entries: u32,
    /// Priority class of the queue (CATTR bits 1:0): 0 urgent, 1 high, 2 medium, 3 low.
    pub priority: u8,
    /// The host disables SQ flow control (CATTR bit 2).
    pub disable_sq_flow_control: bool,
    /// The host supports deleting individual I/O queues (CATTR bit 3).
    pub queue_deletion: bool,
    /// Keep Alive Timeout in milliseconds; 0 disables; meaningful for the admin queue.
    pub kato_ms: u32,
}

/// Error of a Connect command or its data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConnectError {
    /// RECFMT is not 0 (status Connect Incompatible Format).
    #[error("Connect record format {0} is not supported; only 0 is")]
    Format(u16),
    /// A name in the data is malformed (status Connect Invalid Parameters, IATTR 1).
    #[error("Connect data at byte {ipo}: {reason}")]
    Name {
        /// Byte offset of the field in the data, for Invalid Parameter Offset.
        ipo: u16,
        /// Error of the name.
        reason: NqnError,
    },
}

const CATTR_PRIORITY: u8 = 0b11;
const CATTR_NO_FLOW_CONTROL: u8 = 1 << 2;
const CATTR_QUEUE_DELETION: u8 = 1 << 3;

impl Connect {
    /// Byte offset of QID in the command, for Invalid Parameter Offset.
    pub const QID_OFFSET: u16 = 42;
    /// Byte offset of SQSIZE in the command.
    pub const SQSIZE_OFFSET: u16 = 44;
    /// Byte offset of CATTR in the command.
    pub const CATTR_OFFSET: u16 = 46;
    /// Byte offset of KATO in the command.
    pub const KATO_OFFSET: u16 = 48;

    /// Parses the fields of `sqe`, which is a Connect command.
    ///
    /// # Errors
    /// [`ConnectError::Format`].
    pub fn parse(sqe: &Sqe) -> Result<Self, ConnectError> {
        let [f0, f1, ..] = sqe.cdw10.get().to_le_bytes();
        let [s0, s1, cattr, _] = sqe.cdw11.get().to_le_bytes();
        let recfmt = u16::from_le_bytes([f0, f1]);
        if recfmt != 0 {
            return Err(ConnectError::Format(recfmt));
        }
        Ok(Self {
            qid: Self::qid(sqe),
            entries: u32::from(u16::from_le_bytes([s0, s1])) + 1,
            priority: cattr & CATTR_PRIORITY,
            disable_sq_flow_control: cattr & CATTR_NO_FLOW_CONTROL != 0,
            queue_deletion: cattr & CATTR_QUEUE_DELETION != 0,
            kato_ms: sqe.cdw12.get(),
        })
    }

    /// Returns QID of `sqe`, a Connect command of any record format.
    #[must_use]
    pub fn qid(sqe: &Sqe) -> u16 {
        let [_, _, q0, q1] = sqe.cdw10.get().to_le_bytes();
        u16::from_le_bytes([q0, q1])
    }

    /// Returns the command, without a data pointer. `entries` is clamped to 1 to 65536.
    #[must_use]
    pub fn encode(&self, cid: u16) -> Sqe {
        let sqsize = self.entries.clamp(1, 1 << 16) - 1;
        let mut cattr = self.priority & CATTR_PRIORITY;
        if self.disable_sq_flow_control {
            cattr |= CATTR_NO_FLOW_CONTROL;
        }
        if self.queue_deletion {
            cattr |= CATTR_QUEUE_DELETION;
        }
        Sqe::fabrics(FabricsType::CONNECT, cid).with_cdw10([
            u32::from(self.qid) << 16,
            sqsize | u32::from(cattr) << 16,
            self.kato_ms,
        ])
    }
}

/// Data of a Connect command (Base 6.3): 1024 bytes.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
pub struct ConnectData {
    /// Bytes 0-15, Host Identifier: 128 bits.
    pub hostid: [u8; 16],
    /// Bytes 16-17, Controller ID: a controller, [`CNTLID_DYNAMIC`] or [`CNTLID_STATIC_ANY`].
    pub cntlid: U16,
    /// Bytes 18-255, reserved.
    pub reserved18: [u8; 238],
    /// Bytes 256-511, NVM Subsystem NVMe Qualified Name, NUL terminated.
    pub subnqn: [u8; NQN_FIELD],
    /// Bytes 512-767, Host NVMe Qualified Name, NUL terminated.
    pub hostnqn: [u8; NQN_FIELD],
    /// Bytes 768-1023, reserved.
    pub reserved768: [u8; 256],
}
const _: () = assert!(size_of::<ConnectData>() == CONNECT_DATA_SIZE);

impl ConnectData {
    /// Byte offset of HOSTID in the data, for Invalid Parameter Offset.
    pub const HOSTID_OFFSET: u16 = 0;
    /// Byte offset of CNTLID in the data.
    pub const CNTLID_OFFSET: u16 = 16;
    /// Byte offset of SUBNQN in the data.
    pub const SUBNQN_OFFSET: u16 = 256;
    /// Byte offset of HOSTNQN in the data.
    pub const HOSTNQN_OFFSET: u16 = 512;

    /// Returns the data that a host sends.
    #[must_use]
    pub fn new(hostid: [u8; 16], cntlid: u16, subnqn: &Nqn, hostnqn: &Nqn) -> Self {
        Self {
            hostid,
            cntlid: U16::new(cntlid),
            subnqn: subnqn.to_field(),
            hostnqn: hostnqn.to_field(),
            ..Self::new_zeroed()
        }
    }

    /// NQN of the subsystem.
    ///
    /// # Errors
    /// [`ConnectError::Name`] with the offset of the field.
    pub fn subnqn(&self) -> Result<Nqn, ConnectError> {
        Nqn::from_field(&self.subnqn)
            .map_err(|reason| ConnectError::Name { ipo: Self::SUBNQN_OFFSET, reason })
    }

    /// NQN of the host; [`Nqn::anonymous`] if the field is empty.
    ///
    /// # Errors
    /// [`ConnectError::Name`] with the offset of the field.
    pub fn hostnqn(&self) -> Result<Nqn, ConnectError> {
        Nqn::from_host_field(&self.hostnqn)
            .map_err(|reason| ConnectError::Name { ipo: Self::HOSTNQN_OFFSET, reason })
    }
}

/// Result of a successful Connect (Base 6.3): the first 8 bytes of its completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectResult {
    /// Controller ID of the queue's controller.
    pub cntlid: u16,
    /// Authentication Transaction Required (AUTHREQ bit 1).
    pub authentication: bool,
    /// Authentication required after a secure channel is established (AUTHREQ bit 2, ASCR).
    pub authentication_over_secure_channel: bool,
}

impl ConnectResult {
    const ATR: u64 = 1 << 17;
    const ASCR: u64 = 1 << 18;

    /// Returns the result of the completion.
    #[must_use]
    pub const fn encode(self) -> u64 {
        let atr = if self.authentication { Self::ATR } else { 0 };
        let ascr = if self.authentication_over_secure_channel { Self::ASCR } else { 0 };
        self.cntlid as u64 | atr | ascr
    }

    /// Parses the result of a completion.
    #[must_use]
    pub const fn parse(result: u64) -> Self {
        let [c0, c1, ..] = result.to_le_bytes();
        Self {
            cntlid: u16::from_le_bytes([c0, c1]),
            authentication: result & Self::ATR != 0,
            authentication_over_secure_channel: result & Self::ASCR != 0,
        }
    }
}

/// Result of a Connect that failed with Connect Invalid Parameters (Base 6.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InvalidParameter {
    /// Invalid Parameter Offset in bytes.
    pub ipo: u16,
    /// IATTR bit 0: the offset is into the data; otherwise into the command.
    pub in_data: bool,
}

impl InvalidParameter {
    /// Returns the result of the completion.
    #[must_use]
    pub const fn encode(self) -> u64 {
        self.ipo as u64 | (self.in_data as u64) << 16
    }

    /// Parses the result of a completion.
    #[must_use]
    pub const fn parse(result: u64) -> Self {
        let [o0, o1, iattr, ..] = result.to_le_bytes();
        Self { ipo: u16::from_le_bytes([o0, o1]), in_data: iattr & 1 != 0 }
    }
}

/// Size of the property that a Property Get or Set names (ATTRIB bits 2:0).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PropertySize {
    /// 000b.
    Four,
    /// 001b.
    Eight,
    /// Any other value.
    Reserved(u8),
}

impl PropertySize {
    const fn from_attrib(attrib: u8) -> Self {
        match attrib & 7 {
            0 => Self::Four,
            1 => Self::Eight,
            other => Self::Reserved(other),
        }
    }

    const fn to_attrib(self) -> u8 {
        match self {
            Self::Four => 0,
            Self::Eight => 1,
            Self::Reserved(other) => other & 7,
        }
    }

    /// Bytes, or `None` if reserved.
    #[must_use]
    pub const fn bytes(self) -> Option<u8> {
        match self {
            Self::Four => Some(4),
            Self::Eight => Some(8),
            Self::Reserved(_) => None,
        }
    }
}

/// Property Get (Base 6.5). The value is the completion's result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PropertyGet {
    /// Size of the property.
    pub size: PropertySize,
    /// Offset of the property in bytes, see [`crate::properties::offset`].
    pub offset: u32,
}

impl PropertyGet {
    /// Parses the fields of `sqe`, which is a Property Get.
    #[must_use]
    pub fn parse(sqe: &Sqe) -> Self {
        let attrib = sqe.cdw10.get().to_le_bytes()[0];
        Self { size: PropertySize::from_attrib(attrib), offset: sqe.cdw11.get() }
    }

    /// Returns the command.
    #[must_use]
    pub fn encode(self, cid: u16) -> Sqe {
        Sqe::fabrics(FabricsType::PROPERTY_GET, cid)
            .with_cdw10([u32::from(self.size.to_attrib()), self.offset])
    }
}

/// Property Set (Base 6.6).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PropertySet {
    /// Size of the property.
    pub size: PropertySize,
    /// Offset of the property in bytes, see [`crate::properties::offset`].
    pub offset: u32,
    /// Value; the low half for a property of four bytes.
    pub value: u64,
}

impl PropertySet {
    /// Parses the fields of `sqe`, which is a Property Set.
    #[must_use]
    pub fn parse(sqe: &Sqe) -> Self {
        let attrib = sqe.cdw10.get().to_le_bytes()[0];
        Self {
            size: PropertySize::from_attrib(attrib),
            offset: sqe.cdw11.get(),
            value: sqe.cdw12_13(),
        }
    }

    /// Returns the command.
    #[must_use]
    #[expect(clippy::cast_possible_truncation, reason = "the value is split into its halves")]
    pub fn encode(self, cid: u16) -> Sqe {
        Sqe::fabrics(FabricsType::PROPERTY_SET, cid).with_cdw10([
            u32::from(self.size.to_attrib()),
            self.offset,
            self.value as u32,
            (self.value >> 32) as u32,
        ])
    }
}

/// Disconnect (Base 6.4): its Record Format, which must be 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Disconnect {
    /// Record Format.
    pub recfmt: u16,
}

impl Disconnect {
    /// Parses the fields of `sqe`, which is a Disconnect.
    #[must_use]
    pub fn parse(sqe: &Sqe) -> Self {
        let [f0, f1, ..] = sqe.cdw10.get().to_le_bytes();
        Self { recfmt: u16::from_le_bytes([f0, f1]) }
    }

    /// Returns the command.
    #[must_use]
    pub fn encode(self, cid: u16) -> Sqe {
        Sqe::fabrics(FabricsType::DISCONNECT, cid).with_cdw10([u32::from(self.recfmt)])
    }
}

#[cfg(test)]
mod tests;
