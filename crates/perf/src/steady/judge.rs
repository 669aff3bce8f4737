//! Detects the steady state of rounds.
//!
//! It follows SNIA PTS, "steady state": the last five rounds, their range and the slope of the line
//! that fits them best.

use nvmeof_report::steady::SteadyWindow;

/// Rounds of a window.
pub(crate) const WINDOW: usize = 5;
/// Maximum range (largest minus smallest value), relative to the mean.
const RANGE: f64 = 0.20;
/// Maximum change of the best-fit line over the window, relative to the mean.
const SLOPE: f64 = 0.10;

/// Returns the last rounds of `values`; `None` if there are too few.
pub(crate) fn window(values: &[f64]) -> Option<SteadyWindow> {
    let first = values.len().checked_sub(WINDOW)?;
    let last = &values[first..];
    let count = f64::from(u32::try_from(WINDOW).unwrap_or(u32::MAX));
    let mean = last.iter().sum::<f64>() / count;
    let most = last.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let least = last.iter().copied().fold(f64::INFINITY, f64::min);
    // Least squares: rounds have distance 1, so positions are relative to the center.
    let middle = (count - 1.0) / 2.0;
    let places = (0..).map(|at| f64::from(at) - middle);
    let (mut along, mut squares) = (0.0, 0.0);
    for (place, value) in places.zip(last) {
        along += place * value;
        squares += place * place;
    }
    let rise = along / squares;
    Some(SteadyWindow {
        first: first + 1,
        values: last.to_vec(),
        mean,
        range: (most - least) / mean,
        fit_first: mean - rise * middle,
        fit_last: mean + rise * middle,
        slope: (2.0 * rise * middle / mean).abs(),
        range_allowed: RANGE,
        slope_allowed: SLOPE,
    })
}

/// Returns true if a window is in steady state. A window without I/Os is not.
pub(crate) fn is_steady(window: &SteadyWindow) -> bool {
    window.mean > 0.0 && window.range <= RANGE && window.slope <= SLOPE
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Recorded windows, with the range and mean reported for them.
    const RECORDED: &str = include_str!("steady_windows.csv");

    #[test]
    fn recorded_windows_are_judged_as_recorded() {
        let mut slopes = Vec::new();
        for row in RECORDED.lines().skip(1) {
            let cells: Vec<&str> = row.split(',').collect();
            let number = |at: usize| cells[at].parse::<f64>().unwrap();
            let values: Vec<f64> = (2..7).map(number).collect();
            let window = window(&values).unwrap();
            assert_eq!((window.first, window.last()), (1, 5));
            assert!(
                (window.mean - number(7)).abs() < 0.06 * number(7) / 1000.0,
                "{row}: {window:?}"
            );
            assert_eq!(format!("{:.1}", window.range * 100.0), cells[8], "{row}");
            assert_eq!(is_steady(&window), cells[9] == "steady", "{row}");
            slopes.push(format!("{:.1}", window.slope * 100.0));
        }
        assert_eq!(slopes.len(), 3);
        assert_eq!(slopes[0], "7.5");
    }

    #[test]
    fn only_the_last_rounds_count() {
        let mut values = vec![1000.0, 1.0];
        assert_eq!(window(&values), None);
        values.extend([100.0; 5]);
        let window = window(&values).unwrap();
        assert_eq!((window.first, window.last()), (3, 7));
        assert!(is_steady(&window));
    }

    #[test]
    fn each_limit_is_one() {
        let steady = |values: [f64; 5]| is_steady(&window(&values).unwrap());
        // A range of 20 %, without a slope.
        assert!(steady([90.0, 110.0, 100.0, 110.0, 90.0]));
        assert!(!steady([89.0, 111.0, 100.0, 111.0, 89.0]));
        // A slope of 10 %, and an equal range.
        assert!(steady([95.0, 97.5, 100.0, 102.5, 105.0]));
        assert!(!steady([94.0, 97.0, 100.0, 103.0, 106.0]));
        assert!(!steady([106.0, 103.0, 100.0, 97.0, 94.0]), "falling is a slope, too");
    }

    #[test]
    fn nothing_is_not_steady() {
        assert!(!is_steady(&window(&[0.0; 5]).unwrap()));
    }
}
