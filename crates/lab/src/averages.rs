//! Median and mean of measurements.

/// Returns the median of sorted values, the mean of the two central ones of an even number; `None`
/// if there are none.
pub(crate) fn median(sorted: &[f64]) -> Option<f64> {
    let last = sorted.len().checked_sub(1)?;
    Some(f64::midpoint(sorted[last / 2], sorted[last.div_ceil(2)]))
}

/// Returns the mean; `None` without values.
pub(crate) fn mean(values: impl IntoIterator<Item = f64>) -> Option<f64> {
    let sum = |(sum, count), value| (sum + value, count + 1.0);
    let (sum, count) = values.into_iter().fold((0.0, 0.0), sum);
    (count > 0.0).then(|| sum / count)
}

#[cfg(test)]
mod tests {
    use super::{mean, median};

    #[test]
    fn median_of_several() {
        assert_eq!(median(&[]), None);
        assert_eq!(median(&[1.0, 2.0, 3.0]), Some(2.0));
        assert_eq!(median(&[1.0, 4.0]), Some(2.5));
    }

    #[test]
    fn mean_of_several() {
        assert_eq!(mean([]), None);
        assert_eq!(mean([1.0, 2.0, 6.0]), Some(3.0));
    }
}
