//! Allocation of device addresses in a container.

use std::collections::BTreeMap;

/// Minimum address: zero, or a small number, in a command is a bug, which the IOMMU then stops.
const FLOOR: u64 = 2 << 20;
/// Addresses of interrupts on x86: writes to them bypass the IOMMU's mappings.
const INTERRUPTS: Range = Range { start: 0xfee0_0000, end: 0xfef0_0000 };
const PAGE: u64 = 4096;
const HUGE_PAGE: u64 = 2 << 20;

/// Addresses from `start` to `end`, exclusive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Range {
    start: u64,
    end: u64,
}

/// Allocates addresses from the ranges that the kernel reports, lowest first.
#[derive(Debug, Default)]
pub(super) struct IovaAllocator {
    usable: Vec<Range>,
    /// Allocated addresses, by their start.
    used: BTreeMap<u64, u64>,
}

impl IovaAllocator {
    /// Sets the ranges that the kernel reports now, as first and last address; allocations stay.
    pub(super) fn report(&mut self, ranges: &[(u64, u64)]) {
        self.usable = ranges.iter().flat_map(|&(first, last)| usable(first, last)).collect();
        self.usable.sort_by_key(|range| range.start);
    }

    /// Allocates `len` bytes, a multiple of 4096; at a multiple of 2 MiB if `len` is at least that,
    /// for the IOMMU's large pages. `None` if no range has enough space.
    pub(super) fn take(&mut self, len: u64) -> Option<u64> {
        let align = if len >= HUGE_PAGE { HUGE_PAGE } else { PAGE };
        let start = self.usable.iter().find_map(|range| self.room(*range, len, align))?;
        self.used.insert(start, start.checked_add(len)?);
        Some(start)
    }

    /// Releases an allocation of [`take`](Self::take).
    pub(super) fn give_back(&mut self, start: u64) {
        let was = self.used.remove(&start);
        debug_assert!(was.is_some(), "{start:#x} was not taken");
    }

    /// Returns the first free address for `len` bytes in a range.
    fn room(&self, range: Range, len: u64, align: u64) -> Option<u64> {
        let mut at = range.start.checked_next_multiple_of(align)?;
        // An allocation that begins before the range may extend into it.
        let before = self.used.range(..range.start).next_back();
        let inside = self.used.range(range.start..range.end);
        for (&start, &end) in before.into_iter().chain(inside) {
            if at.checked_add(len)? <= start {
                break;
            }
            at = at.max(end).checked_next_multiple_of(align)?;
        }
        (at.checked_add(len)? <= range.end).then_some(at)
    }
}

/// Returns the usable parts of a reported range, given by its first and last address.
fn usable(first: u64, last: u64) -> impl Iterator<Item = Range> {
    // In whole pages. The last possible page is omitted, so that the end is always representable.
    let start = first.max(FLOOR).checked_next_multiple_of(PAGE).unwrap_or(u64::MAX);
    let end = last.saturating_add(1) / PAGE * PAGE;
    let below = Range { start, end: end.min(INTERRUPTS.start) };
    let above = Range { start: start.max(INTERRUPTS.end), end };
    [below, above].into_iter().filter(|range| range.start < range.end)
}

#[cfg(test)]
mod tests {
    use nvmeof_random::SplitMix64;

    use super::*;

    /// Ranges that an Intel IOMMU of 39 bits reports.
    const VTD: &[(u64, u64)] = &[(0, 0xfedf_ffff), (0xfef0_0000, 0x7f_ffff_ffff)];

    fn addresses(ranges: &[(u64, u64)]) -> IovaAllocator {
        let mut addresses = IovaAllocator::default();
        addresses.report(ranges);
        addresses
    }

    #[test]
    fn the_first_is_neither_zero_nor_small() {
        assert_eq!(addresses(VTD).take(PAGE), Some(FLOOR));
    }

    #[test]
    fn interrupts_are_left_out_even_if_they_are_reported() {
        let mut one = addresses(&[(0xfedf_f000, 0xfef0_0fff)]);
        assert_eq!(one.take(2 * PAGE), None);
        assert_eq!(one.take(PAGE), Some(0xfedf_f000));
        assert_eq!(one.take(PAGE), Some(0xfef0_0000));
        assert_eq!(one.take(PAGE), None);
    }

    #[test]
    fn ends_of_the_address_space_overflow_nothing() {
        let mut all = addresses(&[(0, u64::MAX)]);
        assert!(all.take(PAGE).is_some());
        assert_eq!(all.take(u64::MAX - 4095), None);
        let mut top = addresses(&[(u64::MAX - 0x1fff, u64::MAX)]);
        assert_eq!(top.take(PAGE), Some(u64::MAX - 0x1fff));
        assert_eq!(top.take(PAGE), None);
        assert_eq!(addresses(&[(5, 3), (1, 1)]).take(PAGE), None);
        assert_eq!(addresses(&[]).take(PAGE), None);
    }

    #[test]
    fn ranges_that_shrink_keep_what_is_out() {
        let mut addresses = addresses(VTD);
        let low = addresses.take(4 * PAGE).expect("room");
        addresses.report(&[(low + PAGE, low + 8 * PAGE - 1)]);
        assert_eq!(addresses.take(4 * PAGE), Some(low + 4 * PAGE));
        assert_eq!(addresses.take(PAGE), None);
        addresses.give_back(low);
        assert_eq!(addresses.take(3 * PAGE), Some(low + PAGE));
    }

    /// Checks under random use that nothing overlaps, all lies in the ranges, and everything is
    /// released.
    #[test]
    fn nothing_overlaps() {
        for seed in 0..64 {
            let mut rng = SplitMix64::new(seed);
            let small = [(0, 0x43_ffff), (0x60_0000, 0xff_ffff), (0xfec0_0000, 0xff1f_ffff)];
            let mut addresses = addresses(&small);
            let mut out: Vec<(u64, u64)> = Vec::new();
            for _ in 0..400 {
                if rng.below(3) < 2 {
                    let len =
                        if rng.below(8) == 0 { HUGE_PAGE } else { PAGE * (1 + rng.below(64)) };
                    let Some(start) = addresses.take(len) else { continue };
                    let align = if len >= HUGE_PAGE { HUGE_PAGE } else { PAGE };
                    assert_eq!(start % align, 0, "seed {seed}");
                    let end = start + len;
                    let inside = small.iter().any(|&(a, b)| a.max(FLOOR) <= start && end - 1 <= b);
                    assert!(inside, "seed {seed}: {start:#x} of {len:#x}");
                    let interrupts = start < INTERRUPTS.end && INTERRUPTS.start < end;
                    assert!(!interrupts, "seed {seed}: {start:#x} of {len:#x}");
                    assert!(
                        out.iter().all(|&(a, b)| end <= a || b <= start),
                        "seed {seed}: {start:#x} of {len:#x} overlaps"
                    );
                    out.push((start, end));
                } else if !out.is_empty() {
                    let (start, _) = out.swap_remove(rng.index(out.len()));
                    addresses.give_back(start);
                }
            }
            for (start, _) in out {
                addresses.give_back(start);
            }
            assert_eq!(addresses.take(HUGE_PAGE), Some(FLOOR), "seed {seed}: something stayed out");
        }
    }
}
