//! The middle of what was measured.

/// The value in the middle of these, which are in order, or halfway between two; none of nothing.
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
