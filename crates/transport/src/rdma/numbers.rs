//! Maps by small numbers that a device or a host selects.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

/// A map by queue pair number or command identifier.
///
/// The target bounds its size, so that badly chosen numbers cost at worst a walk over few entries.
pub(super) type NumberMap<K, V> = HashMap<K, V, BuildHasherDefault<NumberHasher>>;

/// A hasher of one multiplication.
#[derive(Debug, Default)]
pub(super) struct NumberHasher(u64);

impl NumberHasher {
    fn add(&mut self, number: u64) {
        self.0 = (self.0 ^ number).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(26);
    }
}

impl Hasher for NumberHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.add(u64::from(*byte)));
    }

    fn write_u16(&mut self, number: u16) {
        self.add(u64::from(number));
    }

    fn write_u32(&mut self, number: u32) {
        self.add(u64::from(number));
    }
}
