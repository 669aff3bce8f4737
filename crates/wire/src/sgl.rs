//! Scatter Gather List descriptors (Base 4.1.2).

use zerocopy::little_endian::U64;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// A 16-byte SGL descriptor as on the wire (Base 4.1.2).
///
/// Bytes 8 to 15 are one number: length in bits 31:0, type in 63:60, sub type in 59:56. A keyed
/// descriptor has the length in 23:0 and a 32-bit key in 55:24.
#[derive(
    Clone,
    Copy,
    Debug,
    Default,
    PartialEq,
    Eq,
    FromBytes,
    IntoBytes,
    Immutable,
    KnownLayout,
    Unaligned,
)]
#[repr(C)]
pub struct SglDescriptor {
    /// Bytes 0-7: address or offset; reserved for a bit bucket.
    pub address: U64,
    /// Bytes 8-15: length, key, type and sub type.
    pub rest: U64,
}
const _: () = assert!(size_of::<SglDescriptor>() == 16);

/// SGL descriptor types (Base 4.1.2).
mod kind {
    pub(super) const DATA_BLOCK: u8 = 0x0;
    pub(super) const BIT_BUCKET: u8 = 0x1;
    pub(super) const SEGMENT: u8 = 0x2;
    pub(super) const LAST_SEGMENT: u8 = 0x3;
    pub(super) const KEYED: u8 = 0x4;
    pub(super) const TRANSPORT: u8 = 0x5;
}

/// SGL descriptor sub types (Base 4.1.2).
mod sub {
    pub(super) const ADDRESS: u8 = 0x0;
    pub(super) const OFFSET: u8 = 0x1;
    pub(super) const TRANSPORT: u8 = 0xa;
    pub(super) const INVALIDATE: u8 = 0xf;
}

/// A parsed SGL descriptor. Lengths and offsets are bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sgl {
    /// Type 0h, sub type 0h: a buffer at an address.
    DataBlock {
        /// Start of the buffer in host memory.
        address: u64,
        /// Bytes.
        length: u32,
    },
    /// Type 0h, sub type 1h: data inside the capsule, `offset` bytes into the in-capsule data
    /// (which itself starts at ICDOFF; Base 4.1.2.1).
    InCapsule {
        /// Bytes from the start of the in-capsule data.
        offset: u64,
        /// Bytes.
        length: u32,
    },
    /// Type 1h: bytes of the source that are discarded.
    BitBucket {
        /// Bytes.
        length: u32,
    },
    /// Type 2h: more descriptors, including another segment.
    Segment {
        /// Address or offset of the segment.
        address: u64,
        /// Bytes; a multiple of 16.
        length: u32,
        /// `address` is an offset into the in-capsule data (sub type 1h).
        offset: bool,
    },
    /// Type 3h: more descriptors, without a further segment.
    LastSegment {
        /// Address or offset of the segment.
        address: u64,
        /// Bytes; a multiple of 16.
        length: u32,
        /// `address` is an offset into the in-capsule data (sub type 1h).
        offset: bool,
    },
    /// Type 4h, sub type 0h or Fh: a buffer with a remote key.
    Keyed {
        /// Start of the buffer.
        address: u64,
        /// Bytes; 24 bits.
        length: u32,
        /// Remote key.
        key: u32,
        /// Sub type Fh: the key has to be invalidated remotely when the command completes.
        invalidate: bool,
    },
    /// Type 5h, sub type Ah: the transport's own data transfer (NVMe/TCP: C2HData, R2T and
    /// H2CData).
    Transport {
        /// Bytes.
        length: u32,
    },
    /// Any other descriptor.
    Unknown {
        /// Descriptor type, 4 bits.
        kind: u8,
        /// Descriptor sub type, 4 bits.
        subtype: u8,
    },
}

impl SglDescriptor {
    /// Parses the descriptor. Total: a descriptor without a name here is [`Sgl::Unknown`].
    #[inline]
    #[must_use]
    #[expect(clippy::cast_possible_truncation, reason = "each field is cut out of the word")]
    pub fn parse(&self) -> Sgl {
        let rest = self.rest.get();
        let address = self.address.get();
        let length = rest as u32;
        let id = (rest >> 56) as u8;
        let (kind, subtype) = (id >> 4, id & 0xf);
        let is_plain = matches!(subtype, sub::ADDRESS | sub::OFFSET);
        let offset = subtype == sub::OFFSET;
        match kind {
            kind::DATA_BLOCK if subtype == sub::ADDRESS => Sgl::DataBlock { address, length },
            kind::DATA_BLOCK if offset => Sgl::InCapsule { offset: address, length },
            kind::KEYED if matches!(subtype, sub::ADDRESS | sub::INVALIDATE) => Sgl::Keyed {
                address,
                length: length & 0xff_ffff,
                key: (rest >> 24) as u32,
                invalidate: subtype == sub::INVALIDATE,
            },
            kind::TRANSPORT if subtype == sub::TRANSPORT => Sgl::Transport { length },
            kind::BIT_BUCKET if subtype == sub::ADDRESS => Sgl::BitBucket { length },
            kind::SEGMENT if is_plain => Sgl::Segment { address, length, offset },
            kind::LAST_SEGMENT if is_plain => Sgl::LastSegment { address, length, offset },
            _ => Sgl::Unknown { kind, subtype },
        }
    }

    /// Descriptor type and sub type byte (byte 15).
    #[inline]
    #[must_use]
    pub fn id(&self) -> u8 {
        self.rest.get().to_le_bytes()[7]
    }
}

impl Sgl {
    /// Returns the descriptor as on the wire. A keyed length is clamped to its 24 bits.
    #[inline]
    #[must_use]
    pub fn encode(self) -> SglDescriptor {
        let plain = |offset: bool| if offset { sub::OFFSET } else { sub::ADDRESS };
        let (address, low, kind, subtype) = match self {
            Self::DataBlock { address, length } => {
                (address, u64::from(length), kind::DATA_BLOCK, sub::ADDRESS)
            }
            Self::InCapsule { offset, length } => {
                (offset, u64::from(length), kind::DATA_BLOCK, sub::OFFSET)
            }
            Self::BitBucket { length } => (0, u64::from(length), kind::BIT_BUCKET, sub::ADDRESS),
            Self::Segment { address, length, offset } => {
                (address, u64::from(length), kind::SEGMENT, plain(offset))
            }
            Self::LastSegment { address, length, offset } => {
                (address, u64::from(length), kind::LAST_SEGMENT, plain(offset))
            }
            Self::Keyed { address, length, key, invalidate } => (
                address,
                u64::from(length & 0xff_ffff) | u64::from(key) << 24,
                kind::KEYED,
                if invalidate { sub::INVALIDATE } else { sub::ADDRESS },
            ),
            Self::Transport { length } => (0, u64::from(length), kind::TRANSPORT, sub::TRANSPORT),
            Self::Unknown { kind, subtype } => (0, 0, kind & 0xf, subtype & 0xf),
        };
        let id = u64::from(kind << 4 | subtype);
        SglDescriptor { address: U64::new(address), rest: U64::new(low | id << 56) }
    }

    /// Bytes that the descriptor describes; for a segment, the bytes of its descriptors.
    #[inline]
    #[must_use]
    pub const fn length(self) -> u32 {
        match self {
            Self::DataBlock { length, .. }
            | Self::InCapsule { length, .. }
            | Self::BitBucket { length }
            | Self::Segment { length, .. }
            | Self::LastSegment { length, .. }
            | Self::Keyed { length, .. }
            | Self::Transport { length } => length,
            Self::Unknown { .. } => 0,
        }
    }
}

impl From<Sgl> for SglDescriptor {
    #[inline]
    fn from(sgl: Sgl) -> Self {
        sgl.encode()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Base 4.1.2: each descriptor kind as 16 bytes.
    #[test]
    fn descriptor_bytes() {
        let address = 0x1122_3344_5566_7788;
        let a = [0x88, 0x77, 0x66, 0x55, 0x44, 0x33, 0x22, 0x11];
        let z = [0; 8];
        let length = 0x0a0b_0c0d;
        let cases = [
            (Sgl::DataBlock { address, length }, a, [0x0d, 0x0c, 0x0b, 0x0a, 0, 0, 0, 0x00]),
            (Sgl::InCapsule { offset: 0, length }, z, [0x0d, 0x0c, 0x0b, 0x0a, 0, 0, 0, 0x01]),
            (Sgl::BitBucket { length }, z, [0x0d, 0x0c, 0x0b, 0x0a, 0, 0, 0, 0x10]),
            (
                Sgl::Segment { address, length: 32, offset: false },
                a,
                [0x20, 0, 0, 0, 0, 0, 0, 0x20],
            ),
            (
                Sgl::LastSegment { address, length: 32, offset: true },
                a,
                [0x20, 0, 0, 0, 0, 0, 0, 0x31],
            ),
            (
                Sgl::Keyed { address, length: 0x02_0000, key: 0xdead_beef, invalidate: false },
                a,
                [0x00, 0x00, 0x02, 0xef, 0xbe, 0xad, 0xde, 0x40],
            ),
            (
                Sgl::Keyed { address, length: 0x02_0000, key: 0xdead_beef, invalidate: true },
                a,
                [0x00, 0x00, 0x02, 0xef, 0xbe, 0xad, 0xde, 0x4f],
            ),
            (Sgl::Transport { length }, z, [0x0d, 0x0c, 0x0b, 0x0a, 0, 0, 0, 0x5a]),
            (Sgl::Unknown { kind: 0xf, subtype: 3 }, z, [0, 0, 0, 0, 0, 0, 0, 0xf3]),
        ];
        for (sgl, low, high) in cases {
            let bytes: [u8; 16] = [low, high].concat().try_into().unwrap();
            assert_eq!(sgl.encode().as_bytes(), bytes, "{sgl:?}");
            assert_eq!(SglDescriptor::read_from_bytes(&bytes).unwrap().parse(), sgl);
        }
    }

    #[test]
    fn sub_types_that_make_no_sense_are_unknown() {
        for id in [0x02, 0x0f, 0x11, 0x2a, 0x3f, 0x41, 0x50, 0x51, 0x5f, 0x60] {
            let mut bytes = [0u8; 16];
            bytes[15] = id;
            let descriptor = SglDescriptor::read_from_bytes(&bytes).unwrap();
            assert_eq!(descriptor.id(), id);
            let unknown = Sgl::Unknown { kind: id >> 4, subtype: id & 0xf };
            assert_eq!(descriptor.parse(), unknown, "{id:#x}");
        }
    }

    proptest! {
        #[test]
        fn parsing_is_total_and_stable(bytes: [u8; 16]) {
            let sgl = SglDescriptor::read_from_bytes(&bytes).unwrap().parse();
            prop_assert_eq!(sgl.encode().parse(), sgl);
        }

        #[test]
        fn a_keyed_length_keeps_out_of_the_key(length: u32, key: u32) {
            let sgl = Sgl::Keyed { address: 0, length, key, invalidate: false };
            let back = Sgl::Keyed { address: 0, length: length & 0xff_ffff, key, invalidate: false };
            prop_assert_eq!(sgl.encode().parse(), back);
        }
    }
}
