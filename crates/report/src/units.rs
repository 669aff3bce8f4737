//! Units of numbers in reports and messages.

/// Formats a size with the largest binary unit that divides it (`4 KiB`, `513 B`).
#[must_use]
pub fn show_size(bytes: u64) -> String {
    const UNITS: [(u64, &str); 4] =
        [(1 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")];
    let unit = UNITS.iter().find(|(unit, _)| bytes >= *unit && bytes.is_multiple_of(*unit));
    unit.map_or_else(|| format!("{bytes} B"), |(unit, name)| format!("{} {name}", bytes / unit))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_shown_with_the_largest_unit_that_divides_them() {
        assert_eq!(show_size(4096), "4 KiB");
        assert_eq!(show_size(1 << 30), "1 GiB");
        assert_eq!(show_size(513), "513 B");
        assert_eq!(show_size(1536), "1536 B");
    }
}
