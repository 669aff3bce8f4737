//! Sizes ("1GiB", "4k"), durations ("30s"), latencies ("250us"), rates ("180Gb/s") and periods
//! ("5700ns"): parsers and formatters.

mod rate;

use std::time::Duration;

pub use rate::{PERIOD_FORM, RATE_FORM, parse_period, parse_rate, show_period, show_rate};

/// Syntax of a size; ends every message about an invalid one.
pub const SIZE_FORM: &str = "allowed: a number of bytes, or a number and a unit of k, KiB, M, MiB, G, GiB, T, TiB \
     (powers of 1024), as in \"512MiB\"";

/// Syntax of a duration; ends every message about an invalid one.
pub const DURATION_FORM: &str = "allowed: a number and a unit of ms, s, min, h, as in \"30s\"";

/// Syntax of a latency; ends every message about an invalid one.
pub const LATENCY_FORM: &str = "allowed: a number and a unit of us, ms, s, as in \"250us\"";

/// Parses a size in bytes. Units are powers of 1024, in any case; `B` means bytes.
///
/// # Errors
/// The defect of the text.
pub fn parse_size(text: &str) -> Result<u64, String> {
    let (number, unit) = split(text)?;
    let shift = match unit.to_ascii_lowercase().as_str() {
        "" | "b" => 0,
        "k" | "kib" => 10,
        "m" | "mib" => 20,
        "g" | "gib" => 30,
        "t" | "tib" => 40,
        "kb" | "mb" | "gb" | "tb" => {
            return Err(format!(
                "the unit of \"{text}\" is ambiguous (1000 or 1024): write {}iB",
                unit[..1].to_ascii_uppercase()
            ));
        }
        _ => return Err(format!("\"{text}\" has no unit of size")),
    };
    number.checked_mul(1 << shift).ok_or_else(|| format!("\"{text}\" is more than 64 bits hold"))
}

/// Parses a duration.
///
/// # Errors
/// The defect of the text.
pub fn parse_duration(text: &str) -> Result<Duration, String> {
    let (number, unit) = split(text)?;
    let milliseconds = match unit {
        "ms" => Some(number),
        "s" => number.checked_mul(1000),
        "min" => number.checked_mul(60_000),
        "h" => number.checked_mul(3_600_000),
        "" => return Err(format!("\"{text}\" has no unit")),
        _ => return Err(format!("\"{text}\" has no unit of time")),
    };
    let milliseconds = milliseconds.ok_or_else(|| format!("\"{text}\" is too long"))?;
    Ok(Duration::from_millis(milliseconds))
}

/// Parses a latency: a duration down to microseconds; 0 needs no unit.
///
/// # Errors
/// The defect of the text.
pub fn parse_latency(text: &str) -> Result<Duration, String> {
    let (number, unit) = split(text)?;
    let scale = match unit {
        "us" => 1,
        "ms" => 1000,
        "s" => 1_000_000,
        "" if number == 0 => 0,
        "" => return Err(format!("\"{text}\" has no unit")),
        _ => return Err(format!("\"{text}\" has no unit of latency")),
    };
    let micros = number.checked_mul(scale).ok_or_else(|| format!("\"{text}\" is too long"))?;
    Ok(Duration::from_micros(micros))
}

/// Formats a size in the largest unit that divides it.
#[must_use]
pub fn show_size(bytes: u64) -> String {
    let units = [(40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")];
    let unit = units.iter().find(|(shift, _)| bytes > 0 && bytes.is_multiple_of(1 << shift));
    match unit {
        Some((shift, name)) => format!("{}{name}", bytes >> shift),
        None => format!("{bytes} bytes"),
    }
}

/// Formats a duration in the largest unit that divides it.
#[must_use]
pub fn show_duration(duration: Duration) -> String {
    let milliseconds = duration.as_millis();
    let units = [(3_600_000, "h"), (60_000, "min"), (1000, "s")];
    let unit =
        units.iter().find(|(unit, _)| milliseconds > 0 && milliseconds.is_multiple_of(*unit));
    match unit {
        Some((unit, name)) => format!("{}{name}", milliseconds / unit),
        None => format!("{milliseconds}ms"),
    }
}

fn split(text: &str) -> Result<(u64, &str), String> {
    let text = text.trim();
    let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    if number.is_empty() {
        return Err(format!("\"{text}\" does not start with a whole number"));
    }
    let number = number.parse().map_err(|_| format!("\"{text}\" is more than 64 bits hold"))?;
    Ok((number, unit.trim_start()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes() {
        for (text, bytes) in [
            ("0", 0),
            ("512", 512),
            ("4k", 4096),
            ("4 KiB", 4096),
            ("512MiB", 512 << 20),
            ("1GiB", 1 << 30),
            ("1g", 1 << 30),
            ("16TiB", 16 << 40),
            ("7B", 7),
        ] {
            assert_eq!(parse_size(text), Ok(bytes), "{text}");
        }
        for (text, why) in [
            ("", "whole number"),
            ("GiB", "whole number"),
            ("-1", "whole number"),
            ("1.5GiB", "no unit of size"),
            ("1GB", "ambiguous"),
            ("1 GiB x", "no unit of size"),
            ("99999999999999999999", "64 bits"),
            ("99999999999TiB", "64 bits"),
            ("1ü", "no unit of size"),
        ] {
            let error = parse_size(text).unwrap_err();
            assert!(error.contains(why), "{text}: {error}");
        }
    }

    #[test]
    fn durations() {
        for (text, milliseconds) in
            [("0s", 0), ("250ms", 250), ("30s", 30_000), ("2min", 120_000), ("1h", 3_600_000)]
        {
            assert_eq!(parse_duration(text), Ok(Duration::from_millis(milliseconds)), "{text}");
        }
        for (text, why) in [
            ("30", "no unit"),
            ("s", "whole number"),
            ("1d", "no unit of time"),
            ("9999999999999999999h", "too long"),
        ] {
            let error = parse_duration(text).unwrap_err();
            assert!(error.contains(why), "{text}: {error}");
        }
    }

    #[test]
    fn latencies() {
        for (text, micros) in [
            ("0", 0),
            ("0us", 0),
            ("85us", 85),
            ("1ms", 1000),
            ("10 ms", 10_000),
            ("2s", 2_000_000),
        ] {
            assert_eq!(parse_latency(text), Ok(Duration::from_micros(micros)), "{text}");
        }
        for (text, why) in [
            ("1", "no unit"),
            ("1ns", "no unit of latency"),
            ("1min", "no unit of latency"),
            ("0.5ms", "no unit of latency"),
            ("-1ms", "whole number"),
            ("9999999999999999999s", "too long"),
        ] {
            let error = parse_latency(text).unwrap_err();
            assert!(error.contains(why), "{text}: {error}");
        }
    }

    #[test]
    fn what_is_shown_can_be_read() {
        for bytes in [512, 4096, 8192, 1 << 20, 256 << 20, 3 << 30, 1 << 40] {
            assert_eq!(parse_size(&show_size(bytes).replace(" bytes", "")), Ok(bytes));
        }
        for milliseconds in [1, 250, 1000, 90_000, 120_000, 7_200_000] {
            let duration = Duration::from_millis(milliseconds);
            assert_eq!(parse_duration(&show_duration(duration)), Ok(duration));
        }
    }
}
