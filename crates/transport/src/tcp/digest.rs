//! Header and data digests: CRC32C (TCP 3.3.1.1).

use crc_fast::{CrcAlgorithm, Digest};

/// Returns the digest of `bytes`.
#[inline]
pub(super) fn crc32c(bytes: &[u8]) -> u32 {
    crc_fast::crc32_iscsi(bytes)
}

/// Digest of bytes that arrive in parts.
#[derive(Debug, Clone)]
pub(super) struct Crc32c(Digest);

impl Crc32c {
    #[inline]
    pub(super) fn new() -> Self {
        Self(Digest::new(CrcAlgorithm::Crc32Iscsi))
    }

    #[inline]
    pub(super) fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    #[inline]
    #[expect(clippy::cast_possible_truncation, reason = "the algorithm has 32 bits")]
    pub(super) fn value(&self) -> u32 {
        self.0.finalize() as u32
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const ORACLE: crc::Crc<u32> = crc::Crc::<u32>::new(&crc::CRC_32_ISCSI);

    proptest! {
        #[test]
        fn agrees_with_another_implementation(
            bytes in prop::collection::vec(any::<u8>(), 0..5000),
            cut in any::<prop::sample::Index>(),
        ) {
            let expected = ORACLE.checksum(&bytes);
            prop_assert_eq!(crc32c(&bytes), expected);
            let (head, tail) = bytes.split_at(cut.index(bytes.len() + 1));
            let mut parts = Crc32c::new();
            parts.update(head);
            parts.update(tail);
            prop_assert_eq!(parts.value(), expected);
        }
    }

    /// Digest of 32 zero bytes, RFC 3720 B.4.
    #[test]
    fn known_answer() {
        assert_eq!(crc32c(&[0; 32]), 0x8a91_36aa);
    }
}
