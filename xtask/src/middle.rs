//! The median of measurements.

/// Returns the median of sorted values: the middle one, or the mean of the two middle ones; `None`
/// if there are none.
pub(crate) fn middle(sorted: &[f64]) -> Option<f64> {
    let last = sorted.len().checked_sub(1)?;
    Some(f64::midpoint(sorted[last / 2], sorted[last.div_ceil(2)]))
}

#[cfg(test)]
mod tests {
    use super::middle;

    #[test]
    fn the_middle_of_several() {
        assert_eq!(middle(&[]), None);
        assert_eq!(middle(&[1.0, 2.0, 3.0]), Some(2.0));
        assert_eq!(middle(&[1.0, 4.0]), Some(2.5));
    }
}
