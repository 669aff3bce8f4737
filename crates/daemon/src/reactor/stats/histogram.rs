//! Histogram of times with a fixed number of buckets. Each octave has equal parts.

/// Binary logarithm of the end of the first bucket: 1024 ns.
const FIRST_OCTAVE: u32 = 10;
/// Binary logarithm of the start of the last bucket: 17.2 s.
const END_OCTAVE: u32 = 34;
/// Binary logarithm of the number of parts of an octave.
const PARTS_LOG2: u32 = 3;
const PARTS: usize = 1 << PARTS_LOG2;
const OCTAVES: usize = (END_OCTAVE - FIRST_OCTAVE) as usize;
/// Number of buckets: one for shorter times, the octaves, one for longer times.
const BUCKETS: usize = 1 + OCTAVES * PARTS + 1;

/// Number of times in each bucket, and their sum in nanoseconds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Histogram {
    buckets: [u64; BUCKETS],
    sum: u64,
}

impl Default for Histogram {
    fn default() -> Self {
        Self { buckets: [0; BUCKETS], sum: 0 }
    }
}

impl Histogram {
    /// Counts a time in nanoseconds.
    #[inline]
    pub(crate) fn record(&mut self, nanos: u64) {
        if let Some(bucket) = self.buckets.get_mut(index_of(nanos)) {
            *bucket += 1;
        }
        self.sum = self.sum.wrapping_add(nanos);
    }

    /// Returns the number of times.
    pub(crate) fn count(&self) -> u64 {
        self.buckets.iter().sum()
    }

    /// Returns the sum of all times in nanoseconds.
    pub(crate) fn sum(&self) -> u64 {
        self.sum
    }

    pub(crate) fn add(&mut self, more: &Self) {
        for (into, from) in self.buckets.iter_mut().zip(&more.buckets) {
            *into += from;
        }
        self.sum = self.sum.wrapping_add(more.sum);
    }

    /// Returns the times since `before`, an earlier state of the same histogram.
    pub(crate) fn since(&self, before: &Self) -> Self {
        let mut since = self.clone();
        for (into, from) in since.buckets.iter_mut().zip(&before.buckets) {
            *into = into.saturating_sub(*from);
        }
        since.sum = since.sum.wrapping_sub(before.sum);
        since
    }

    /// Returns the time in nanoseconds that `per_mille` of a thousand times do not exceed.
    ///
    /// The result is the upper end of the bucket of that time: at most 1/8 too long. It is `None`
    /// for an empty histogram.
    pub(crate) fn quantile(&self, per_mille: u64) -> Option<u64> {
        let count = self.count();
        if count == 0 {
            return None;
        }
        let rank = (u128::from(count) * u128::from(per_mille)).div_ceil(1000).max(1);
        let mut seen = 0u128;
        for (index, bucket) in self.buckets.iter().enumerate() {
            seen += u128::from(*bucket);
            if seen >= rank {
                return Some(end_of(index).unwrap_or(1 << END_OCTAVE));
            }
        }
        None
    }

    /// Iterates over the end of each bucket in nanoseconds, and its count.
    ///
    /// The last bucket is unbounded, and its end is nominal.
    pub(crate) fn buckets(&self) -> impl Iterator<Item = (u64, u64)> {
        let buckets = self.buckets.iter().enumerate();
        buckets.map(|(index, count)| (end_of(index).unwrap_or(2 << END_OCTAVE), *count))
    }

    /// Iterates over the end of each octave in nanoseconds, and the number of shorter times.
    ///
    /// Times longer than the last end are only in [`Self::count`].
    pub(crate) fn octaves(&self) -> impl Iterator<Item = (u64, u64)> {
        let mut below = 0;
        self.buckets.iter().enumerate().filter_map(move |(index, bucket)| {
            below += bucket;
            let end = end_of(index)?;
            end.is_power_of_two().then_some((end, below))
        })
    }
}

/// Returns the bucket of a time.
#[inline]
#[expect(clippy::cast_possible_truncation, reason = "a part is less than PARTS")]
fn index_of(nanos: u64) -> usize {
    let octave = u64::BITS - 1 - (nanos | 1).leading_zeros();
    if octave < FIRST_OCTAVE {
        return 0;
    }
    if octave >= END_OCTAVE {
        return BUCKETS - 1;
    }
    // The bits after the leading one select the part of the octave.
    let part = (nanos >> (octave - PARTS_LOG2)) & (PARTS as u64 - 1);
    1 + ((octave - FIRST_OCTAVE) as usize) * PARTS + part as usize
}

/// Returns the first time beyond a bucket in nanoseconds. The last bucket has no end.
#[expect(clippy::cast_possible_truncation, reason = "there are fewer octaves than bits")]
fn end_of(index: usize) -> Option<u64> {
    let Some(from_first) = index.checked_sub(1) else { return Some(1 << FIRST_OCTAVE) };
    if index >= BUCKETS - 1 {
        return None;
    }
    let octave = FIRST_OCTAVE + (from_first / PARTS) as u32;
    let part = (from_first % PARTS) as u64;
    Some((1 << octave) + ((part + 1) << (octave - PARTS_LOG2)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_time_lies_in_its_bucket_and_buckets_follow_each_other() {
        let mut from = 0;
        for index in 0..BUCKETS - 1 {
            let end = end_of(index).unwrap();
            assert!(end > from, "bucket {index}");
            assert_eq!(index_of(from), index, "the first time of bucket {index}");
            assert_eq!(index_of(end - 1), index, "the last time of bucket {index}");
            // No bucket but the first is wider than 1/8 of its start.
            assert!(index == 0 || (end - from) * 8 <= from, "bucket {index}");
            from = end;
        }
        assert_eq!((from, end_of(BUCKETS - 1)), (1 << END_OCTAVE, None));
        assert_eq!((index_of(from), index_of(u64::MAX)), (BUCKETS - 1, BUCKETS - 1));
    }

    #[test]
    fn quantiles_are_never_too_short_and_at_most_an_eighth_too_long() {
        let mut histogram = Histogram::default();
        let times: Vec<u64> = (1..=1000).map(|at| at * 10_000).collect();
        times.iter().for_each(|time| histogram.record(*time));
        for per_mille in [1, 500, 990, 999, 1000] {
            let index = usize::try_from(per_mille).unwrap() - 1;
            let (exact, said) = (times[index], histogram.quantile(per_mille).unwrap());
            assert!(said >= exact && said <= exact + exact / 8, "{per_mille}: {said} for {exact}");
        }
        assert_eq!(Histogram::default().quantile(500), None);
        assert_eq!((histogram.count(), histogram.sum()), (1000, times.iter().sum()));
    }

    #[test]
    fn octaves_add_up_and_leave_out_only_what_is_longer() {
        let mut histogram = Histogram::default();
        for time in [0, 1023, 1024, 2047, 2048, 1 << 33, 1 << 34] {
            histogram.record(time);
        }
        let octaves: Vec<_> = histogram.octaves().collect();
        assert_eq!(octaves.len(), OCTAVES + 1);
        assert_eq!(octaves[..3], [(1024, 2), (2048, 4), (4096, 5)]);
        assert_eq!(octaves.last(), Some(&(1 << 34, 6)));
        assert_eq!(histogram.count(), 7);
    }

    #[test]
    fn a_difference_is_what_came_in_between() {
        let (mut before, mut later) = (Histogram::default(), Histogram::default());
        before.record(5000);
        later.add(&before);
        assert_eq!(later, before);
        later.record(9000);
        let since = later.since(&before);
        assert_eq!((since.count(), since.sum()), (1, 9000));
    }
}
