//! Positions of axis labels, and number formats.

use super::Axis;
use crate::values::{trimmed, whole};

/// Target number of labels on an axis.
const WANTED: f64 = 6.0;

/// Scale from data to positions on an axis: its ends, and its labels.
#[derive(Debug, Clone)]
pub(super) struct AxisScale {
    /// Smallest and largest position.
    pub(super) ends: (f64, f64),
    /// Positions of the labels.
    pub(super) labels: Vec<f64>,
    /// Positions are logarithms to base 2.
    log: bool,
    names: Vec<String>,
}

impl AxisScale {
    /// A scale that contains all these values.
    pub(super) fn over(axis: &Axis, values: impl Iterator<Item = f64>) -> Self {
        let mut this = Self {
            ends: (0.0, 1.0),
            labels: Vec::new(),
            log: axis.log2 || axis.log10,
            names: axis.names.clone(),
        };
        let places = values.chain(axis.up_to).filter_map(|value| this.place(value));
        let ends = places.fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), place| {
            (low.min(place), high.max(place))
        });
        let (mut low, mut high) = if ends.0 <= ends.1 { ends } else { (0.0, 1.0) };
        if !this.names.is_empty() {
            // Points may be next to a name.
            (low, high) = (low.min(0.0).round() - 0.5, high.max(0.0).round() + 0.5);
            this.labels = every(1.0, low.ceil(), high);
        } else if axis.log10 {
            if high - low < 1.0 {
                (low, high) = (low - 0.5, high + 0.5);
            }
            this.labels = decimal_labels(low, high);
            let margin = 0.02 * (high - low);
            (low, high) = (low - margin, high + margin);
        } else if axis.log2 {
            // Two powers of two are labels, so that the scale can be read.
            if low.ceil() + 1.0 > high {
                (low, high) = (low.floor(), high.ceil().max(low.floor() + 1.0));
            }
            let step = ((high - low) / 12.0).ceil().max(1.0);
            this.labels = every(step, low.ceil(), high);
            let margin = 0.02 * (high - low);
            (low, high) = (low - margin, high + margin);
        } else {
            if axis.from_zero {
                (low, high) = (low.min(0.0), high.max(0.0));
            }
            if high - low < f64::EPSILON * high.abs().max(1.0) {
                high = low + if low == 0.0 { 1.0 } else { low.abs() };
            }
            let step = nice_step((high - low) / WANTED);
            low = (low / step).floor() * step;
            high = (high / step).ceil() * step;
            this.labels = every(step, low, high);
        }
        this.ends = (low, high);
        this
    }

    /// The position of a value; `None` if it cannot be shown.
    pub(super) fn place(&self, value: f64) -> Option<f64> {
        let place = if self.log { (value > 0.0).then(|| value.log2())? } else { value };
        place.is_finite().then_some(place)
    }

    /// The label at a position.
    pub(super) fn label(&self, place: f64) -> String {
        if !self.names.is_empty() {
            let mut names = self.names.iter().enumerate();
            let name = names.find(|(at, _)| (place - whole(*at)).abs() < 0.25);
            return name.map_or_else(String::new, |(_, name)| name.clone());
        }
        number(if self.log { place.exp2() } else { place })
    }
}

/// Formats a number with the useful digits.
pub(crate) fn number(value: f64) -> String {
    let decimals = match value.abs() {
        size if size >= 100.0 || size == 0.0 => 0,
        size if size >= 10.0 => 1,
        size if size >= 1.0 => 2,
        _ => 4,
    };
    trimmed(value, decimals)
}

/// The smallest step of 1, 2 or 5 times a power of ten that is at least `least`.
fn nice_step(least: f64) -> f64 {
    let power = 10f64.powf(least.log10().floor());
    let factor = [1.0, 2.0, 5.0].into_iter().find(|factor| factor * power >= least * 0.999);
    factor.unwrap_or(10.0) * power
}

/// Positions of decimal labels between two positions of a logarithmic axis: 1, 2 and 5 times powers
/// of ten, the powers alone if there are many, and more multiples if there are less than two.
fn decimal_labels(low: f64, high: f64) -> Vec<f64> {
    let within = |factors: &[f64]| -> Vec<f64> {
        let powers = (-9..=15).map(|power| 10_f64.powi(power));
        let values = powers.flat_map(|power| factors.iter().map(move |factor| factor * power));
        let places = values.map(f64::log2);
        places.filter(|place| (low - 1e-9..=high + 1e-9).contains(place)).collect()
    };
    let all = within(&[1.0, 2.0, 5.0]);
    match all.len() {
        0 | 1 => within(&[1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0]),
        2..=10 => all,
        _ => within(&[1.0]),
    }
}

fn every(step: f64, from: f64, to: f64) -> Vec<f64> {
    let places = (0..=200u32).map(|n| from + f64::from(n) * step);
    places.take_while(|place| *place <= to + step * 1e-6).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(axis: &Axis, values: &[f64]) -> Vec<String> {
        let scale = AxisScale::over(axis, values.iter().copied());
        scale.labels.iter().map(|place| scale.label(*place)).collect()
    }

    fn linear_log10() -> Axis {
        Axis::new("", "").log10()
    }

    #[test]
    fn labels_are_round_and_hold_the_data() {
        let linear = Axis::new("", "");
        assert_eq!(labels(&linear, &[142.4, 184.8]), ["140", "150", "160", "170", "180", "190"]);
        let from_zero = linear.clone().from_zero();
        assert_eq!(labels(&from_zero, &[142.4, 184.8]), ["0", "50", "100", "150", "200"]);
        assert_eq!(labels(&from_zero, &[0.02]), ["0", "0.005", "0.01", "0.015", "0.02"]);
        let log2 = linear.log2();
        assert_eq!(labels(&log2, &[32.0, 300.0]), ["32", "64", "128", "256"]);
        assert_eq!(labels(&log2, &[1.0]), ["1", "2"]);
        assert_eq!(labels(&log2, &[33.0, 70.0]), ["32", "64", "128"]);
        assert_eq!(labels(&log2, &[60.0, 70.0]), ["32", "64", "128"]);
        let log10 = linear_log10();
        assert_eq!(labels(&log10, &[32.0, 300.0]), ["50", "100", "200"]);
        assert_eq!(
            labels(&log10, &[0.9, 2e6]),
            ["1", "10", "100", "1000", "10000", "100000", "1000000"]
        );
        assert_eq!(labels(&log10, &[5.0]), ["4", "5", "6"]);
        assert_eq!(labels(&log10, &[21.0, 49.0]), ["30", "40"]);
    }

    #[test]
    fn a_logarithmic_axis_has_two_labels_and_holds_its_values() {
        let (mut low, factor) = (1.0, 1.013_f64);
        while low < 1000.0 {
            for width in [1.0, 1.4, 2.0, 2.4, 4.0, 30.0] {
                for axis in [linear_log10(), Axis::new("", "").log2()] {
                    let scale = AxisScale::over(&axis, [low, low * width].into_iter());
                    assert!(scale.labels.len() >= 2, "{low} {width}: {scale:?}");
                    let ends = (low.log2(), (low * width).log2());
                    assert!(scale.ends.0 <= ends.0 && ends.1 <= scale.ends.1, "{low} {width}");
                }
            }
            low *= factor;
        }
    }

    #[test]
    fn nothing_and_one_value_make_a_scale_too() {
        for axis in [Axis::new("", ""), Axis::new("", "").log2(), Axis::new("", "").from_zero()] {
            for values in [vec![], vec![0.0], vec![7.0], vec![-3.0], vec![f64::NAN]] {
                let scale = AxisScale::over(&axis, values.iter().copied());
                assert!(scale.ends.0 < scale.ends.1, "{axis:?} {values:?}: {scale:?}");
                assert!(!scale.labels.is_empty(), "{axis:?} {values:?}");
            }
        }
    }

    #[test]
    fn numbers() {
        for (value, text) in [
            (0.0, "0"),
            (-0.00001, "0"),
            (184.8, "185"),
            (12.0, "12"),
            (12.34, "12.3"),
            (1.25, "1.25"),
            (0.005, "0.005"),
            (200.0, "200"),
        ] {
            assert_eq!(number(value), text);
        }
    }
}
