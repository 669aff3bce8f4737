//! Values by slot number, for the identifiers of outstanding operations.

/// Values by slot number. Free slots are reused last in, first out.
///
/// A number carries no generation. The owner removes a value after the last event for it, so that
/// no late event finds the next value of the slot.
#[derive(Debug)]
pub struct SlotTable<T> {
    slots: Vec<Option<T>>,
    free: Vec<u32>,
}

impl<T> SlotTable<T> {
    /// Creates a table that stores `capacity` values without an allocation.
    #[must_use]
    pub fn with_capacity(capacity: usize) -> Self {
        Self { slots: Vec::with_capacity(capacity), free: Vec::with_capacity(capacity) }
    }

    /// Grows the allocations to `capacity` values.
    pub fn reserve(&mut self, capacity: usize) {
        self.slots.reserve(capacity.saturating_sub(self.slots.len()));
        self.free.reserve(capacity.saturating_sub(self.free.len()));
    }

    /// Number of values.
    #[inline]
    #[must_use]
    pub fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Returns true if there is no value.
    #[inline]
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.slots.len() == self.free.len()
    }

    /// Stores a value and returns its slot.
    ///
    /// # Panics
    /// If there are 2^32 values.
    #[inline]
    pub fn insert(&mut self, value: T) -> u32 {
        if let Some(slot) = self.free.pop() {
            self.slots[slot as usize] = Some(value);
            return slot;
        }
        let slot = u32::try_from(self.slots.len()).expect("fewer than 2^32 values");
        self.slots.push(Some(value));
        slot
    }

    /// Returns the value in a slot, to change it.
    #[inline]
    pub fn get_mut(&mut self, slot: u32) -> Option<&mut T> {
        self.slots.get_mut(slot as usize)?.as_mut()
    }

    /// Removes the value of a slot.
    #[inline]
    pub fn remove(&mut self, slot: u32) -> Option<T> {
        let value = self.slots.get_mut(slot as usize)?.take()?;
        self.free.push(slot);
        Some(value)
    }

    /// Returns the values and their slots.
    pub fn iter(&self) -> impl Iterator<Item = (u32, &T)> {
        (0_u32..).zip(&self.slots).filter_map(|(slot, value)| Some((slot, value.as_ref()?)))
    }

    /// Removes all values.
    pub fn drain(&mut self) -> impl Iterator<Item = T> + '_ {
        self.free.clear();
        self.slots.drain(..).flatten()
    }

    /// Capacity of each allocation.
    #[cfg(test)]
    pub(crate) fn capacities(&self) -> [usize; 2] {
        [self.slots.capacity(), self.free.capacity()]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_reused() {
        let mut table = SlotTable::with_capacity(2);
        let (a, b) = (table.insert('a'), table.insert('b'));
        assert_eq!((table.remove(a), table.remove(a)), (Some('a'), None));
        assert_eq!(table.insert('c'), a);
        assert_eq!(table.get_mut(b), Some(&mut 'b'));
        assert_eq!(table.get_mut(b + 1), None);
        assert_eq!(table.iter().collect::<Vec<_>>(), [(a, &'c'), (b, &'b')]);
        let mut all: Vec<_> = table.drain().collect();
        all.sort_unstable();
        assert_eq!((all, table.len(), table.is_empty()), (vec!['b', 'c'], 0, true));
        assert_eq!(table.insert('d'), 0);
    }
}
