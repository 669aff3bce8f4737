//! Which part of a namespace comes next.
//!
//! A region is cut into *units* of one I/O each. With verification two I/Os on the same unit must not be under
//! way at once, so the pattern also knows which units are busy.

use crate::rng::Rng;

/// Tries to find a random unit that is not busy before looking at the units in order.
const TRIES: usize = 8;

#[derive(Debug)]
pub(crate) struct Pattern {
    /// First unit and one past the last.
    first: u64,
    count: u64,
    order: Order,
    busy: Option<Bitmap>,
}

#[derive(Debug)]
enum Order {
    Sequential { next: u64 },
    Random(Rng),
}

impl Pattern {
    /// The `count` units from `first` on in order, beginning `start` units in, around and around.
    pub(crate) fn sequential(first: u64, count: u64, start: u64) -> Self {
        Self { first, count, order: Order::Sequential { next: start % count.max(1) }, busy: None }
    }

    /// Random ones of the `count` units from `first` on.
    pub(crate) fn random(first: u64, count: u64, rng: Rng) -> Self {
        Self { first, count, order: Order::Random(rng), busy: None }
    }

    /// From now on no unit is given out again before it is [`Pattern::release`]d.
    pub(crate) fn exclusive(mut self) -> Self {
        self.busy = Some(Bitmap::new(self.count));
        self
    }

    /// The next unit; `None` if every unit that may come next is busy.
    #[inline]
    pub(crate) fn next(&mut self) -> Option<u64> {
        let index = match &mut self.order {
            Order::Sequential { next } => {
                let index = *next;
                if self.busy.as_ref().is_some_and(|busy| busy.get(index)) {
                    return None;
                }
                *next = if index + 1 == self.count { 0 } else { index + 1 };
                index
            }
            Order::Random(rng) => match &self.busy {
                None => rng.below(self.count),
                Some(busy) => pick(rng, busy, self.count)?,
            },
        };
        if let Some(busy) = &mut self.busy {
            busy.set(index, true);
        }
        Some(self.first + index)
    }

    /// The unit's I/O has ended.
    #[inline]
    pub(crate) fn release(&mut self, unit: u64) {
        if let Some(busy) = &mut self.busy {
            busy.set(unit - self.first, false);
        }
    }
}

/// A random unit that is not busy.
fn pick(rng: &mut Rng, busy: &Bitmap, count: u64) -> Option<u64> {
    let mut index = 0;
    for _ in 0..TRIES {
        index = rng.below(count);
        if !busy.get(index) {
            return Some(index);
        }
    }
    (index..count).chain(0..index).find(|&at| !busy.get(at))
}

/// One bit a unit.
#[derive(Debug)]
struct Bitmap(Vec<u64>);

impl Bitmap {
    fn new(bits: u64) -> Self {
        Self(vec![0; usize::try_from(bits.div_ceil(64)).unwrap_or(usize::MAX)])
    }

    #[inline]
    fn get(&self, bit: u64) -> bool {
        let word = usize::try_from(bit / 64).ok().and_then(|at| self.0.get(at));
        word.is_some_and(|word| word >> (bit % 64) & 1 == 1)
    }

    #[inline]
    fn set(&mut self, bit: u64, value: bool) {
        let word = usize::try_from(bit / 64).ok().and_then(|at| self.0.get_mut(at));
        if let Some(word) = word {
            let mask = 1 << (bit % 64);
            *word = if value { *word | mask } else { *word & !mask };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn sequential_goes_around() {
        let mut pattern = Pattern::sequential(10, 3, 1);
        let seen: Vec<_> = (0..5).map(|_| pattern.next().unwrap()).collect();
        assert_eq!(seen, [11, 12, 10, 11, 12]);
    }

    #[test]
    fn random_stays_inside() {
        let mut pattern = Pattern::random(100, 7, Rng::new(1, 1));
        let seen: HashSet<_> = (0..1000).map(|_| pattern.next().unwrap()).collect();
        assert_eq!(seen, (100..107).collect());
    }

    #[test]
    fn an_exclusive_pattern_gives_no_busy_unit_out() {
        for mut pattern in [
            Pattern::sequential(5, 70, 0).exclusive(),
            Pattern::random(5, 70, Rng::new(3, 3)).exclusive(),
        ] {
            let seen: HashSet<_> = (0..70).map(|_| pattern.next().unwrap()).collect();
            assert_eq!(seen, (5..75).collect());
            assert_eq!(pattern.next(), None);
            // Unit 5 is the first and comes next in both orders once it is free.
            pattern.release(5);
            assert_eq!(pattern.next(), Some(5));
        }
    }
}
