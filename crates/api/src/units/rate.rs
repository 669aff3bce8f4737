//! Parses and formats rates ("180Gb/s") and periods ("5700ns").

/// Syntax of a rate; ends every message about an invalid one.
pub const RATE_FORM: &str = "allowed: a number and a unit of kb/s, Mb/s, Gb/s, Tb/s (bits, powers of 1000) or kB/s, MB/s, \
     GB/s, TB/s (bytes, powers of 1000), as in \"184.8Gb/s\"";

/// Syntax of a period; ends every message about an invalid one.
pub const PERIOD_FORM: &str =
    "allowed: a number and a unit of ns, us, ms, s, as in \"5700ns\" or \"5.7us\"";

/// Maximum digits after the decimal point.
const DIGITS_MAX: usize = 9;

/// Parses a rate in bytes per second.
///
/// # Errors
/// The defect of the text.
pub fn parse_rate(text: &str) -> Result<u64, String> {
    let (number, unit) = split(text)?;
    let Some(unit) = unit.strip_suffix("/s") else {
        return Err(format!("\"{text}\" has no unit of rate"));
    };
    let (prefix, bits) = match (unit.strip_suffix('b'), unit.strip_suffix('B')) {
        (Some(prefix), _) => (prefix, 8),
        (_, Some(prefix)) => (prefix, 1),
        _ => return Err(format!("\"{text}\" has no unit of rate")),
    };
    let scale: u64 = match prefix {
        "k" => 1_000,
        "M" => 1_000_000,
        "G" => 1_000_000_000,
        "T" => 1_000_000_000_000,
        _ => return Err(format!("\"{text}\" has no unit of rate")),
    };
    number.scaled(scale, bits).ok_or_else(|| format!("\"{text}\" is more than 64 bits hold"))
}

/// Parses a period in nanoseconds.
///
/// # Errors
/// The defect of the text.
pub fn parse_period(text: &str) -> Result<u64, String> {
    let (number, unit) = split(text)?;
    let scale = match unit {
        "ns" => 1,
        "us" => 1_000,
        "ms" => 1_000_000,
        "s" => 1_000_000_000,
        "" => return Err(format!("\"{text}\" has no unit")),
        _ => return Err(format!("\"{text}\" has no unit of time")),
    };
    number.scaled(scale, 1).ok_or_else(|| format!("\"{text}\" is too long"))
}

/// Formats a rate in bytes per second.
#[must_use]
pub fn show_rate(bytes: u64) -> String {
    let bits = u128::from(bytes) * 8;
    let units = [(1_000_000_000_000, "Tb/s"), (1_000_000_000, "Gb/s"), (1_000_000, "Mb/s")];
    match units.iter().find(|(unit, _)| bits >= *unit) {
        Some((unit, name)) => {
            let thousandths = bits * 1000 / unit;
            let (whole, rest) = (thousandths / 1000, format!("{:03}", thousandths % 1000));
            let rest = rest.trim_end_matches('0');
            let point = if rest.is_empty() { "" } else { "." };
            format!("{whole}{point}{rest}{name}")
        }
        None => format!("{bits}b/s"),
    }
}

/// Formats a period in nanoseconds.
#[must_use]
pub fn show_period(nanos: u64) -> String {
    let units = [(1_000_000_000, "s"), (1_000_000, "ms"), (1_000, "us")];
    match units.iter().find(|(unit, _)| nanos > 0 && nanos.is_multiple_of(*unit)) {
        Some((unit, name)) => format!("{}{name}", nanos / unit),
        None => format!("{nanos}ns"),
    }
}

/// A decimal number: `digits` divided by ten to the power of `behind`.
#[derive(Debug, Clone, Copy)]
struct Decimal {
    digits: u64,
    behind: u32,
}

impl Decimal {
    /// Returns the number times `scale` divided by `divisor`, rounded down.
    fn scaled(self, scale: u64, divisor: u64) -> Option<u64> {
        let product = u128::from(self.digits) * u128::from(scale);
        u64::try_from(product / 10_u128.pow(self.behind) / u128::from(divisor)).ok()
    }
}

fn split(text: &str) -> Result<(Decimal, &str), String> {
    let text = text.trim();
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    let well_formed = !whole.is_empty() && !fraction.contains('.') && !number.ends_with('.');
    if !well_formed {
        return Err(format!("\"{text}\" does not start with a number"));
    }
    if fraction.len() > DIGITS_MAX {
        return Err(format!("\"{text}\" has more than {DIGITS_MAX} digits behind the point"));
    }
    let digits = format!("{whole}{fraction}");
    let digits = digits.parse().map_err(|_| format!("\"{text}\" is more than 64 bits hold"))?;
    let behind = u32::try_from(fraction.len()).unwrap_or(0);
    Ok((Decimal { digits, behind }, unit.trim_start()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates() {
        for (text, bytes) in [
            ("180Gb/s", 22_500_000_000),
            ("184.8 Gb/s", 23_100_000_000),
            ("1.5GB/s", 1_500_000_000),
            ("8kb/s", 1_000),
            ("0Mb/s", 0),
            ("1Tb/s", 125_000_000_000),
        ] {
            assert_eq!(parse_rate(text), Ok(bytes), "{text}");
        }
        for (text, why) in [
            ("180", "no unit of rate"),
            ("180G", "no unit of rate"),
            ("180Gb", "no unit of rate"),
            ("180GiB/s", "no unit of rate"),
            ("180gb/s", "no unit of rate"),
            ("180b/s", "no unit of rate"),
            ("-1Gb/s", "start with a number"),
            (".5Gb/s", "start with a number"),
            ("1.Gb/s", "start with a number"),
            ("1.2.3Gb/s", "start with a number"),
            ("Gb/s", "start with a number"),
            ("1.0123456789Gb/s", "behind the point"),
            ("99999999999999999999Gb/s", "64 bits"),
            ("999999999999999TB/s", "64 bits"),
        ] {
            let error = parse_rate(text).unwrap_err();
            assert!(error.contains(why), "{text}: {error}");
        }
    }

    #[test]
    fn periods() {
        for (text, nanos) in [
            ("5700ns", 5700),
            ("5.7us", 5700),
            ("0ns", 0),
            ("1 ms", 1_000_000),
            ("2s", 2_000_000_000),
        ] {
            assert_eq!(parse_period(text), Ok(nanos), "{text}");
        }
        for (text, why) in [
            ("5700", "no unit"),
            ("5700kns", "no unit of time"),
            ("-1us", "start with a number"),
            ("99999999999999999s", "too long"),
        ] {
            let error = parse_period(text).unwrap_err();
            assert!(error.contains(why), "{text}: {error}");
        }
    }

    #[test]
    fn what_is_shown_can_be_read() {
        for bytes in [125_000, 23_100_000_000, 22_500_000_000, 1_250_000_000_000] {
            assert_eq!(parse_rate(&show_rate(bytes)), Ok(bytes), "{}", show_rate(bytes));
        }
        for nanos in [1, 5700, 6_000, 1_000_000, 3_000_000_000] {
            assert_eq!(parse_period(&show_period(nanos)), Ok(nanos), "{}", show_period(nanos));
        }
    }
}
