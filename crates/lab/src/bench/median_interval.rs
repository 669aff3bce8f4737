//! Confidence intervals of medians.

use std::fmt;

use crate::averages::median;

/// The median of the rounds, with its confidence interval.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct MedianInterval {
    pub(crate) median: f64,
    /// Lower end of the 95 % confidence interval.
    ///
    /// In at least 95 of 100 measurements of this kind the real median lies between the two ends.
    /// They are infinite if the rounds are too few.
    pub(crate) low: f64,
    pub(crate) high: f64,
}

impl MedianInterval {
    /// Computes the median of at least one value; not-a-number otherwise.
    ///
    /// It assumes no distribution: each round lies above or below the real median with equal
    /// probability.
    pub(crate) fn of(values: &[f64]) -> Self {
        let mut values = values.to_vec();
        values.sort_by(f64::total_cmp);
        let median = median(&values).unwrap_or(f64::NAN);
        let ends = left_out(values.len()).map(|out| (values[out], values[values.len() - 1 - out]));
        let (low, high) = ends.unwrap_or((f64::NEG_INFINITY, f64::INFINITY));
        Self { median, low, high }
    }
}

impl fmt::Display for MedianInterval {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.3}", self.median)?;
        if self.low.is_finite() {
            write!(f, " ({:.3} to {:.3})", self.low, self.high)?;
        }
        Ok(())
    }
}

/// Returns the number of values to drop at each end, out of `values`.
///
/// `None` if even all of them lie on the same side with a probability above 5 %.
fn left_out(values: usize) -> Option<usize> {
    const ONE_SIDE: f64 = 0.025;
    // Probability of exactly `heads` heads in this number of tosses.
    let mut exactly = 0.5_f64.powi(i32::try_from(values).ok()?);
    let mut at_most = exactly;
    let mut out = None;
    for heads in 0..values {
        if at_most > ONE_SIDE {
            break;
        }
        out = Some(heads);
        #[expect(clippy::cast_precision_loss, reason = "rounds are few")]
        let next = (values - heads) as f64 / (heads + 1) as f64;
        exactly *= next;
        at_most += exactly;
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The numbers of sign-test tables.
    #[test]
    fn few_rounds_say_nothing_and_many_leave_more_out() {
        let known =
            [(5, None), (6, Some(0)), (8, Some(0)), (9, Some(1)), (12, Some(2)), (25, Some(7))];
        for (values, out) in known {
            assert_eq!(left_out(values), out, "{values}");
        }
    }

    #[test]
    fn ends_are_values_that_were_measured() {
        let values = [9.0, 1.0, 8.0, 2.0, 7.0, 3.0, 6.0, 4.0, 5.0];
        assert_eq!(
            MedianInterval::of(&values),
            MedianInterval { median: 5.0, low: 2.0, high: 8.0 }
        );
        let few = MedianInterval::of(&[3.0, 1.0]);
        assert_eq!((few.median, few.low, few.high), (2.0, f64::NEG_INFINITY, f64::INFINITY));
        assert!(MedianInterval::of(&[]).median.is_nan());
    }
}
