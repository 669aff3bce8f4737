//! Sizes ("128KiB") and times ("5600ns", "1ms", "2s") in a plan.

/// Syntax of a size, for messages.
pub(super) const SIZE_FORM: &str = "a number of bytes, or a number and a unit of k, KiB, M, MiB, G, GiB (powers of 1024), as in \"128KiB\"";

/// Syntax of a time, for messages.
pub(super) const TIME_FORM: &str = "a number and a unit of ns, us, ms, s, as in \"5600ns\"";

/// Reads a size in bytes.
pub(super) fn size(text: &str) -> Option<u64> {
    let (number, unit) = split(text)?;
    let shift = match unit.to_ascii_lowercase().as_str() {
        "" | "b" => 0,
        "k" | "kib" => 10,
        "m" | "mib" => 20,
        "g" | "gib" => 30,
        _ => return None,
    };
    number.checked_mul(1 << shift)
}

/// Reads a time in nanoseconds.
pub(super) fn time(text: &str) -> Option<u64> {
    let (number, unit) = split(text)?;
    let factor = match unit {
        "ns" => 1,
        "us" => 1_000,
        "ms" => 1_000_000,
        "s" => 1_000_000_000,
        _ => return None,
    };
    number.checked_mul(factor)
}

/// Formats a size with the largest unit that divides it.
pub(crate) fn show_size(bytes: u64) -> String {
    let units = [(30, "GiB"), (20, "MiB"), (10, "KiB")];
    let unit = units.iter().find(|(shift, _)| bytes > 0 && bytes.is_multiple_of(1 << shift));
    unit.map_or_else(|| format!("{bytes}B"), |(shift, name)| format!("{}{name}", bytes >> shift))
}

/// Splits a text into a whole number and the rest.
fn split(text: &str) -> Option<(u64, &str)> {
    let text = text.trim();
    let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    Some((text[..end].parse().ok()?, text[end..].trim_start()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes() {
        let good = [("512", 512), ("4k", 4096), ("128KiB", 131_072), ("1 MiB", 1 << 20), ("7B", 7)];
        for (text, bytes) in good {
            assert_eq!(size(text), Some(bytes), "{text}");
        }
        for text in ["", "KiB", "-1", "1.5MiB", "1KB", "99999999999999999999", "99999999999GiB"] {
            assert_eq!(size(text), None, "{text}");
        }
        for bytes in [1, 512, 4096, 131_072, 12 << 20, 3 << 30] {
            assert_eq!(size(&show_size(bytes)), Some(bytes));
        }
    }

    #[test]
    fn times() {
        let good = [
            ("0ns", 0),
            ("5600ns", 5600),
            ("20us", 20_000),
            ("1ms", 1_000_000),
            ("2s", 2_000_000_000),
        ];
        for (text, ns) in good {
            assert_eq!(time(text), Some(ns), "{text}");
        }
        for text in ["", "1", "s", "1.5s", "1min", "-1s", "99999999999999s"] {
            assert_eq!(time(text), None, "{text}");
        }
    }
}
