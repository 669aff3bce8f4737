//! The median of measurements.

/// Returns the median of sorted values, the mean of the two central ones of an even number; `None`
/// if there are none.
pub(crate) fn median(sorted: &[f64]) -> Option<f64> {
    let last = sorted.len().checked_sub(1)?;
    Some(f64::midpoint(sorted[last / 2], sorted[last.div_ceil(2)]))
}

#[cfg(test)]
mod tests {
    use super::median;

    #[test]
    fn median_of_several() {
        assert_eq!(median(&[]), None);
        assert_eq!(median(&[1.0, 2.0, 3.0]), Some(2.0));
        assert_eq!(median(&[1.0, 4.0]), Some(2.5));
    }
}
