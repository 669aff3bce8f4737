//! UUIDs of SPDK's block devices. A namespace without its own UUID shows that of its block device.

use uuid::Uuid;

/// Namespaces of the version 5 UUIDs that SPDK, from 23.05 on, gives to devices on other devices.
const PART: Uuid = Uuid::from_u128(0x976b_899e_3e1e_4d71_ab69_c2b0_8e9d_f8b8);
const PASSTHROUGH: Uuid = Uuid::from_u128(0x7e25_812e_c8c0_4d3f_8599_16d7_9055_5b85);
const DELAY: Uuid = Uuid::from_u128(0x4009_b574_6430_4f1b_bc40_ace8_1109_1027);

/// UUID of a block device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum BdevUuid {
    /// The config states it, or it follows from one that the config states.
    Known(Uuid),
    /// SPDK reads it from a drive, or derives it from that.
    OfDrive,
    /// SPDK draws it at each start.
    Random,
}

/// A layer on another device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Layer {
    /// A range, in blocks.
    Part {
        offset: u64,
        blocks: u64,
    },
    Passthrough,
    Delay,
    /// A layer whose UUID does not follow from its base.
    Other,
}

impl BdevUuid {
    /// Returns the UUID that a call states, or `otherwise` without one.
    pub(super) fn stated(text: Option<&str>, otherwise: Self) -> Self {
        match text.map(Uuid::parse_str) {
            Some(Ok(uuid)) if !uuid.is_nil() => Self::Known(uuid),
            _ => otherwise,
        }
    }

    /// Returns the UUID of a layer on a device with this UUID.
    pub(super) fn of(self, layer: Layer) -> Self {
        match (self, layer) {
            (_, Layer::Other) | (Self::Random, _) => Self::Random,
            (Self::OfDrive, _) => Self::OfDrive,
            (Self::Known(base), layer) => {
                let mut name = base.as_bytes().to_vec();
                let space = match layer {
                    Layer::Part { offset, blocks } => {
                        name.extend_from_slice(&offset.to_le_bytes());
                        name.extend_from_slice(&blocks.to_le_bytes());
                        &PART
                    }
                    Layer::Delay => &DELAY,
                    Layer::Passthrough | Layer::Other => &PASSTHROUGH,
                };
                Self::Known(Uuid::new_v5(space, &name))
            }
        }
    }

    /// Returns the UUID as text, if it is known.
    pub(super) fn text(self) -> Option<String> {
        match self {
            Self::Known(uuid) => Some(uuid.to_string()),
            Self::OfDrive | Self::Random => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The second value of each was computed with Python's `hashlib.sha1`.
    #[test]
    fn layers_have_derived_uuids() {
        let base = BdevUuid::stated(Some("6E4F9B2A-31CC-4A55-9D0E-2F1F6D2B8C01"), BdevUuid::Random);
        let of = |layer| base.of(layer).text().unwrap_or_default();
        assert_eq!(of(Layer::Passthrough), "df580498-e813-59ae-9536-8d880646c8b3");
        assert_eq!(of(Layer::Delay), "2ddc436e-3ae6-5d6e-82da-007f3248db8f");
        assert_eq!(
            of(Layer::Part { offset: 2048, blocks: 1024 }),
            "0d7d719a-97c3-5133-87a1-1aaabf3ce113"
        );
        assert_eq!(of(Layer::Other), "");
        assert_eq!(BdevUuid::OfDrive.of(Layer::Delay), BdevUuid::OfDrive);
        assert_eq!(BdevUuid::stated(Some("7"), BdevUuid::OfDrive), BdevUuid::OfDrive);
        let nil = "00000000-0000-0000-0000-000000000000";
        assert_eq!(BdevUuid::stated(Some(nil), BdevUuid::Random), BdevUuid::Random);
    }
}
