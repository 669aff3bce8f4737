//! A slab whose keys carry a generation.
//!
//! A late event for a slot that has a new value is detected by its old generation.

/// Key of one value of a [`GenSlab`]: slot and generation, 56 bits together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct SlotKey {
    slot: u32,
    generation: u32,
}

/// Generations wrap at 24 bits, so that a key and a kind fit a 64-bit token.
const GENERATION_MASK: u32 = (1 << 24) - 1;

impl SlotKey {
    /// Returns the key as a number: `kind` in the top byte, generation, slot.
    #[inline]
    pub(crate) fn token(self, kind: u8) -> u64 {
        u64::from(kind) << 56 | u64::from(self.generation) << 32 | u64::from(self.slot)
    }

    /// Returns the kind and the key of a token.
    #[inline]
    #[expect(clippy::cast_possible_truncation, reason = "the fields of the token are cut out")]
    pub(crate) fn from_token(token: u64) -> (u8, Self) {
        let key = Self { slot: token as u32, generation: (token >> 32) as u32 & GENERATION_MASK };
        ((token >> 56) as u8, key)
    }
}

/// Values by [`SlotKey`]. Free slots are reused last in, first out.
#[derive(Debug)]
pub(crate) struct GenSlab<T> {
    entries: Vec<Entry<T>>,
    free: Vec<u32>,
}

#[derive(Debug)]
struct Entry<T> {
    generation: u32,
    value: Option<T>,
}

impl<T> Default for GenSlab<T> {
    fn default() -> Self {
        Self::with_capacity(0)
    }
}

impl<T> GenSlab<T> {
    pub(crate) fn with_capacity(capacity: usize) -> Self {
        Self { entries: Vec::with_capacity(capacity), free: Vec::with_capacity(capacity) }
    }

    #[inline]
    pub(crate) fn insert(&mut self, value: T) -> SlotKey {
        if let Some(slot) = self.free.pop()
            && let Some(entry) = self.entries.get_mut(slot as usize)
        {
            entry.value = Some(value);
            return SlotKey { slot, generation: entry.generation };
        }
        let slot = u32::try_from(self.entries.len()).expect("fewer than 2^32 slots");
        self.entries.push(Entry { generation: 0, value: Some(value) });
        SlotKey { slot, generation: 0 }
    }

    pub(crate) fn get(&self, key: SlotKey) -> Option<&T> {
        let entry = self.entries.get(key.slot as usize)?;
        if entry.generation == key.generation { entry.value.as_ref() } else { None }
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, key: SlotKey) -> Option<&mut T> {
        let entry = self.entries.get_mut(key.slot as usize)?;
        if entry.generation == key.generation { entry.value.as_mut() } else { None }
    }

    /// Returns a value that exists, because the caller works on it.
    ///
    /// # Panics
    /// In debug builds, if it does not exist.
    #[inline]
    pub(crate) fn present_mut(&mut self, key: SlotKey) -> Option<&mut T> {
        let value = self.get_mut(key);
        debug_assert!(value.is_some(), "{key:?} ended while the reactor worked on it");
        value
    }

    #[inline]
    pub(crate) fn remove(&mut self, key: SlotKey) -> Option<T> {
        let entry = self.entries.get_mut(key.slot as usize)?;
        if entry.generation != key.generation {
            return None;
        }
        let value = entry.value.take()?;
        entry.generation = entry.generation.wrapping_add(1) & GENERATION_MASK;
        self.free.push(key.slot);
        Some(value)
    }

    pub(crate) fn len(&self) -> usize {
        self.entries.len() - self.free.len()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (SlotKey, &T)> {
        (0u32..).zip(&self.entries).filter_map(|(slot, entry)| {
            let value = entry.value.as_ref()?;
            Some((SlotKey { slot, generation: entry.generation }, value))
        })
    }

    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = (SlotKey, &mut T)> {
        (0u32..).zip(&mut self.entries).filter_map(|(slot, entry)| {
            let key = SlotKey { slot, generation: entry.generation };
            Some((key, entry.value.as_mut()?))
        })
    }

    pub(crate) fn keys(&self) -> Vec<SlotKey> {
        self.iter().map(|(key, _)| key).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_late_key_finds_nothing() {
        let mut slots = GenSlab::with_capacity(2);
        let first = slots.insert("first");
        assert_eq!(slots.remove(first), Some("first"));
        let second = slots.insert("second");
        assert_ne!(first, second);
        assert_eq!(slots.get_mut(first), None);
        assert_eq!(slots.remove(first), None);
        assert_eq!(slots.len(), 1);
        assert_eq!(slots.remove(second), Some("second"));
        assert_eq!(slots.len(), 0);
    }

    #[test]
    fn tokens_carry_kind_slot_and_generation() {
        let mut slots = GenSlab::with_capacity(0);
        for round in 0..5 {
            let key = slots.insert(round);
            assert_eq!(SlotKey::from_token(key.token(7)), (7, key));
            slots.remove(key);
        }
    }
}
