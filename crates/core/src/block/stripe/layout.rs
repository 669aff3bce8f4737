//! Mapping of stripe offsets to members.
//!
//! ```text
//!  stripe   | chunk 0 | chunk 1 | chunk 2 | chunk 3 | chunk 4 | ...
//!  member 0 | chunk 0 | chunk 3 | ...
//!  member 1 | chunk 1 | chunk 4 | ...
//!  member 2 | chunk 2 | ...
//! ```

/// Round-robin distribution of chunks over members.
#[derive(Debug, Clone, Copy)]
pub(super) struct Layout {
    /// Bytes per chunk, greater than 0.
    chunk: u64,
    /// Number of members, greater than 0.
    members: u64,
    /// Exponent if the chunk size is a power of two: saves one division per operation.
    shift: Option<u32>,
    /// Slightly more than 2^64 / members: saves another division. 0 where it would be inexact.
    inverse: u64,
}

/// Location of a byte.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct MemberOffset {
    /// Index of the member.
    pub(super) member: usize,
    /// Offset in the member.
    pub(super) offset: u64,
    /// Bytes to the end of the chunk.
    pub(super) left: u64,
}

impl Layout {
    pub(super) fn new(chunk: u64, members: usize) -> Self {
        let (chunk, members) = (chunk.max(1), (members as u64).max(1));
        let shift = chunk.is_power_of_two().then(|| chunk.ilog2());
        // The inverse exceeds 2^64 / members by less than 1. So x * inverse / 2^64 exceeds x /
        // members by less than x / 2^64. That changes no quotient as long as x is below 2^64 /
        // members. No chunk number exceeds 2^64 / chunk.
        let is_exact = members > 1 && members <= chunk;
        let inverse = if is_exact { u64::MAX / members + 1 } else { 0 };
        Self { chunk, members, shift, inverse }
    }

    /// Returns the location of the byte at `offset`.
    #[inline]
    pub(super) fn place(&self, offset: u64) -> MemberOffset {
        let (number, within) = self.chunk_of(offset);
        let row = match self.inverse {
            0 => number / self.members,
            inverse => high(number, inverse),
        };
        debug_assert!(number - row * self.members < self.members, "chunk {number} of row {row}");
        let member = usize::try_from(number - row * self.members).unwrap_or(usize::MAX);
        MemberOffset { member, offset: row * self.chunk + within, left: self.chunk - within }
    }

    /// Returns the run of a member's bytes in the `len` bytes from `offset`.
    ///
    /// It is a single run, because only bytes of other members lie between two of its chunks.
    /// `None` if the member has none of the bytes.
    pub(super) fn run(&self, offset: u64, len: u64, member: usize) -> Option<(u64, u64)> {
        let (first, skip) = self.chunk_of(offset);
        let (last, end) = self.chunk_of(offset + len.checked_sub(1)?);
        let member = member as u64;
        // Rows whose chunk of this member is between the first and the last chunk.
        let from = first.saturating_sub(member).div_ceil(self.members);
        let to = last.checked_sub(member)? / self.members;
        if from > to {
            return None;
        }
        let skip = if from * self.members + member == first { skip } else { 0 };
        let end = if to * self.members + member == last { end + 1 } else { self.chunk };
        let start = from * self.chunk + skip;
        Some((start, to * self.chunk + end - start))
    }

    #[inline]
    fn chunk_of(&self, offset: u64) -> (u64, u64) {
        match self.shift {
            Some(shift) => (offset >> shift, offset & (self.chunk - 1)),
            None => (offset / self.chunk, offset % self.chunk),
        }
    }
}

/// Returns the upper half of a product.
#[inline]
fn high(a: u64, b: u64) -> u64 {
    ((u128::from(a) * u128::from(b)) >> 64) as u64
}

#[cfg(test)]
mod tests {
    use nvmeof_random::SplitMix64;

    use super::*;

    /// Covers the largest numbers, up to the last possible chunk.
    #[test]
    fn places_are_exact_without_a_division() {
        let mut rng = SplitMix64::new(1);
        for chunk in [512, 4096, 24 << 10, 128 << 10, 1 << 40] {
            for members in (1..=512).filter(|members| *members % 37 < 4) {
                let layout = Layout::new(chunk, members);
                let count = members as u64;
                assert_eq!(layout.inverse == 0, members == 1);
                let last = u64::MAX / chunk;
                for number in (0..200).flat_map(|at| [at, last - at, rng.below(last)]) {
                    // Near multiples, where an inexact quotient fails first.
                    for number in [number, number - number % count] {
                        let place = layout.place(number * chunk);
                        let member = usize::try_from(number % count).unwrap();
                        let offset = number / count * chunk;
                        assert_eq!(place, MemberOffset { member, offset, left: chunk }, "{number}");
                    }
                }
            }
        }
    }

    /// Compares each byte with the layout diagram.
    #[test]
    fn places_and_runs_are_what_dealing_out_gives() {
        for (chunk, members) in [(1, 1), (3, 1), (4, 3), (5, 2), (1, 4), (8, 5)] {
            let layout = Layout::new(chunk, members);
            let size = chunk * members as u64 * 4;
            let place = |at: u64| {
                let number = at / chunk;
                let member = usize::try_from(number).unwrap() % members;
                (member, number / members as u64 * chunk + at % chunk)
            };
            for at in 0..size {
                let MemberOffset { member, offset, left } = layout.place(at);
                assert_eq!((member, offset), place(at));
                assert_eq!(left, chunk - at % chunk);
            }
            for (offset, len) in
                (0..size).flat_map(|offset| (0..=size - offset).map(move |len| (offset, len)))
            {
                for member in 0..members {
                    let bytes = (offset..offset + len).map(place).filter(|(of, _)| *of == member);
                    let bytes: Vec<u64> = bytes.map(|(_, at)| at).collect();
                    let run = layout.run(offset, len, member);
                    let found: Vec<u64> =
                        run.map_or(Vec::new(), |(start, len)| (start..start + len).collect());
                    assert_eq!(found, bytes, "{chunk} x {members}: {offset}+{len} of {member}");
                }
            }
        }
    }
}
