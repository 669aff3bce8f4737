//! Selects the next part of a space.
//!
//! A region is divided into *units*; an I/O covers one or more of them. With verification, every
//! I/O covers one unit. Two I/Os on one unit must not be in flight concurrently, so the pattern
//! tracks busy units.

use nvmeof_random::SplitMix64;

use crate::workload::distribution::PlaceChooser;

/// Random attempts to find a unit that is not busy before a search in order.
const TRIES: usize = 8;

#[derive(Debug)]
pub(crate) struct AccessPattern {
    /// First unit and number of units.
    first: u64,
    count: u64,
    order: VisitOrder,
    busy: Option<Bitmap>,
}

#[derive(Debug)]
enum VisitOrder {
    Sequential {
        next: u64,
    },
    Random {
        /// Units between two places at which an I/O may begin.
        align: u64,
        chooser: PlaceChooser,
        rng: SplitMix64,
    },
}

impl AccessPattern {
    /// The `count` units from `first` on in order, starting `start` units in, in a cycle.
    pub(crate) fn sequential(first: u64, count: u64, start: u64) -> Self {
        Self {
            first,
            count,
            order: VisitOrder::Sequential { next: start % count.max(1) },
            busy: None,
        }
    }

    /// Random units of the `count` from `first` on; `chooser` selects places of `align` units.
    pub(crate) fn random(
        first: u64,
        count: u64,
        align: u64,
        chooser: PlaceChooser,
        rng: SplitMix64,
    ) -> Self {
        Self { first, count, order: VisitOrder::Random { align, chooser, rng }, busy: None }
    }

    /// Never returns a unit again before it is [`AccessPattern::release`]d; I/Os cover one unit.
    pub(crate) fn exclusive(mut self) -> Self {
        self.busy = Some(Bitmap::new(self.count));
        self
    }

    /// Returns the first of the next `len` units; `len` must not exceed the units of the region.
    ///
    /// `None` if every unit that may come next is busy.
    #[inline]
    pub(crate) fn next(&mut self, len: u64) -> Option<u64> {
        // Start of the last possible I/O of this length.
        let last = self.count.saturating_sub(len);
        let index = match &mut self.order {
            VisitOrder::Sequential { next } => {
                // An I/O that does not fit before the end starts over at 0; the smaller rest is
                // skipped.
                let index = if *next > last { 0 } else { *next };
                if self.busy.as_ref().is_some_and(|busy| busy.get(index)) {
                    return None;
                }
                *next = if index + len >= self.count { 0 } else { index + len };
                index
            }
            VisitOrder::Random { align, chooser, rng } => match &self.busy {
                None => (chooser.choose(rng) * *align).min(last / *align * *align),
                Some(busy) => pick(chooser, rng, busy, self.count)?,
            },
        };
        if let Some(busy) = &mut self.busy {
            busy.set(index, true);
        }
        Some(self.first + index)
    }

    /// Marks a unit as free after its I/O has ended.
    #[inline]
    pub(crate) fn release(&mut self, unit: u64) {
        if let Some(busy) = &mut self.busy {
            busy.set(unit - self.first, false);
        }
    }
}

/// Picks a random unit that is not busy.
fn pick(chooser: &PlaceChooser, rng: &mut SplitMix64, busy: &Bitmap, count: u64) -> Option<u64> {
    let mut index = 0;
    for _ in 0..TRIES {
        index = chooser.choose(rng);
        if !busy.get(index) {
            return Some(index);
        }
    }
    (index..count).chain(0..index).find(|&at| !busy.get(at))
}

/// One bit per unit.
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

    use crate::workload::distribution::Distribution;

    fn random(first: u64, count: u64, align: u64, seed: u64) -> AccessPattern {
        let chooser = PlaceChooser::new(&Distribution::Uniform, count / align, 512 * align, seed);
        AccessPattern::random(first, count, align, chooser, SplitMix64::stream(seed, 0))
    }

    #[test]
    fn sequential_goes_around() {
        let mut pattern = AccessPattern::sequential(10, 3, 1);
        let seen: Vec<_> = (0..5).map(|_| pattern.next(1).unwrap()).collect();
        assert_eq!(seen, [11, 12, 10, 11, 12]);
    }

    #[test]
    fn random_stays_inside() {
        let mut pattern = random(100, 7, 1, 1);
        let seen: HashSet<_> = (0..1000).map(|_| pattern.next(1).unwrap()).collect();
        assert_eq!(seen, (100..107).collect());
    }

    #[test]
    fn longer_ios_stay_inside_and_on_their_places() {
        // 8 places of 8 units each, and a rest of 3 units that only short I/Os reach.
        let mut pattern = random(100, 67, 8, 1);
        for len in [1, 8, 16, 24] {
            let firsts: HashSet<_> = (0..2000).map(|_| pattern.next(len).unwrap()).collect();
            assert!(firsts.iter().all(|unit| (unit - 100) % 8 == 0 && unit + len <= 167), "{len}");
            assert!(firsts.len() >= 5, "{len}: {firsts:?}");
        }
        let mut pattern = AccessPattern::sequential(10, 5, 0);
        let seen: Vec<_> = [2, 2, 2, 1, 5, 1].map(|len| pattern.next(len).unwrap()).into();
        assert_eq!(seen, [10, 12, 10, 12, 10, 10]);
    }

    #[test]
    fn an_exclusive_pattern_gives_no_busy_unit_out() {
        for mut pattern in
            [AccessPattern::sequential(5, 70, 0).exclusive(), random(5, 70, 1, 3).exclusive()]
        {
            let seen: HashSet<_> = (0..70).map(|_| pattern.next(1).unwrap()).collect();
            assert_eq!(seen, (5..75).collect());
            assert_eq!(pattern.next(1), None);
            // Unit 5 is the first and comes next in both orders once it is free.
            pattern.release(5);
            assert_eq!(pattern.next(1), Some(5));
        }
    }
}
