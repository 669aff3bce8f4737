//! Numbers with three digits and a unit.

/// Formats bytes, in powers of 1024.
pub(crate) fn bytes(value: u64) -> String {
    scaled(to_float(value), &["B", "KiB", "MiB", "GiB", "TiB"], 1024.0)
}

/// Formats bits per second, in powers of 1000.
pub(crate) fn bits(bytes_a_second: f64) -> String {
    scaled(bytes_a_second * 8.0, &["b/s", "kb/s", "Mb/s", "Gb/s", "Tb/s"], 1000.0)
}

/// Formats a rate per second.
pub(crate) fn rate(a_second: f64) -> String {
    scaled(a_second, &["/s", "k/s", "M/s", "G/s"], 1000.0)
}

/// Formats a count.
pub(crate) fn count(value: u64) -> String {
    scaled(to_float(value), &["", "k", "M", "G"], 1000.0).trim_end().to_owned()
}

/// Formats a time in nanoseconds.
pub(crate) fn time(nanos: u64) -> String {
    scaled(to_float(nanos), &["ns", "us", "ms", "s"], 1000.0)
}

/// Formats an optional value.
pub(crate) fn shown<T>(value: Option<T>, form: impl Fn(T) -> String) -> String {
    value.map_or_else(|| "-".to_owned(), form)
}

fn scaled(mut value: f64, units: &[&str], step: f64) -> String {
    let mut units = units.iter();
    let mut unit = units.next().copied().unwrap_or("");
    while value >= step {
        let Some(larger) = units.next() else { break };
        value /= step;
        unit = larger;
    }
    // Three digits in all, and none after the point of a whole number.
    let digits = match value {
        _ if value.fract() == 0.0 || value >= 100.0 => 0,
        _ if value >= 10.0 => 1,
        _ => 2,
    };
    format!("{value:.digits$} {unit}")
}

#[expect(clippy::cast_precision_loss, reason = "three digits of it are shown")]
pub(crate) fn to_float(value: u64) -> f64 {
    value as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn three_digits_and_a_unit() {
        assert_eq!(["0 B", "1023 B", "1 KiB", "1.50 MiB"], [0, 1023, 1024, 3 << 19].map(bytes));
        assert_eq!((bits(1.25e9), rate(1234.5)), ("10 Gb/s".into(), "1.23 k/s".into()));
        assert_eq!((count(7), count(20_500)), ("7".into(), "20.5 k".into()));
        assert_eq!([999, 45_600, 7_000_000_000].map(time), ["999 ns", "45.6 us", "7 s"]);
        assert_eq!(shown(None, time), "-");
        assert_eq!(count(u64::MAX), "18446744074 G");
    }
}
