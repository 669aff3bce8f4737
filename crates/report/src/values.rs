//! Values of a report: each once, as a float, as text.

/// Each value once, in order.
pub(crate) fn distinct<T: PartialEq>(values: impl IntoIterator<Item = T>) -> Vec<T> {
    let mut known = Vec::new();
    for value in values {
        if !known.contains(&value) {
            known.push(value);
        }
    }
    known
}

/// A count as a float; no report counts more than 2^32 of anything.
pub(crate) fn whole(count: usize) -> f64 {
    f64::from(u32::try_from(count).unwrap_or(u32::MAX))
}

/// Formats exactly `decimals` digits after the point; nothing without a value.
pub(crate) fn fixed(value: Option<f64>, decimals: usize) -> String {
    value.map_or_else(String::new, |value| format!("{value:.decimals$}"))
}

/// Formats a difference with its sign and exactly `decimals` digits after the point.
///
/// A difference that rounds to zero is `+0`.
pub(crate) fn signed(value: f64, decimals: usize) -> String {
    let text = format!("{value:+.decimals$}");
    let is_zero = text.trim_start_matches(['-', '0', '.']).is_empty();
    if is_zero { text.replace('-', "+") } else { text }
}

/// Formats at most `decimals` digits after the point, without trailing zeros.
pub(crate) fn trimmed(value: f64, decimals: usize) -> String {
    let text = format!("{value:.decimals$}");
    let text = match text.contains('.') {
        true => text.trim_end_matches('0').trim_end_matches('.'),
        false => &text,
    };
    if text == "-0" { "0".to_owned() } else { text.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_distinct_in_their_order() {
        assert_eq!(distinct([3, 1, 3, 2, 1]), [3, 1, 2]);
    }

    #[test]
    fn digits_after_the_point() {
        assert_eq!((fixed(Some(1.5), 2).as_str(), fixed(None, 2).as_str()), ("1.50", ""));
        assert_eq!((trimmed(1.5, 2).as_str(), trimmed(-0.001, 2).as_str()), ("1.5", "0"));
        assert_eq!(trimmed(200.0, 0), "200");
        let differences = [-0.001, 0.0, -0.2, 10.0].map(|value| signed(value, 1));
        assert_eq!(differences, ["+0.0", "+0.0", "-0.2", "+10.0"]);
    }
}
