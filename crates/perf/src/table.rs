//! Text tables: columns as wide as their contents, numbers aligned to the right.

/// Rows of text under a header; `left` marks columns aligned to the left, others align to the
/// right.
#[derive(Debug)]
pub(crate) struct TextTable {
    left: Vec<bool>,
    rows: Vec<Vec<String>>,
}

impl TextTable {
    /// A table with this header; a name with a leading `<` marks a column aligned to the left.
    pub(crate) fn new(header: &[&str]) -> Self {
        let left = header.iter().map(|name| name.starts_with('<')).collect();
        let names = header.iter().map(|name| name.trim_start_matches('<').to_owned()).collect();
        Self { left, rows: vec![names] }
    }

    pub(crate) fn row(&mut self, cells: Vec<String>) {
        self.rows.push(cells);
    }
}

impl std::fmt::Display for TextTable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let width = |column: usize| {
            let cells = self.rows.iter().filter_map(|row| row.get(column));
            cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
        };
        let widths: Vec<_> = (0..self.left.len()).map(width).collect();
        for row in &self.rows {
            let mut line = String::new();
            for ((cell, &width), &left) in row.iter().zip(&widths).zip(&self.left) {
                if !line.is_empty() {
                    line.push_str("  ");
                }
                line.push_str(&if left {
                    format!("{cell:<width$}")
                } else {
                    format!("{cell:>width$}")
                });
            }
            writeln!(f, "{}", line.trim_end())?;
        }
        Ok(())
    }
}

/// A number with separated thousands: `1,234,567`.
pub(crate) fn thousands(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_aligned_to_the_right_and_names_to_the_left() {
        let mut table = TextTable::new(&["<name", "n"]);
        table.row(vec!["a".into(), "1".into()]);
        table.row(vec!["longer".into(), "1,000".into()]);
        assert_eq!(table.to_string(), "name        n\na           1\nlonger  1,000\n");
    }

    #[test]
    fn thousands_are_apart() {
        for (number, text) in [(0, "0"), (999, "999"), (1000, "1,000"), (1_234_567, "1,234,567")] {
            assert_eq!(thousands(number), text);
        }
    }
}
