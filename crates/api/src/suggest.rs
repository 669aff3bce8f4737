//! Suggests a known name for an unknown one.

/// Returns the known name closest to `wrong`, if one is close enough.
#[must_use]
pub fn closest<'a>(wrong: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let wrong = wrong.to_lowercase().replace('_', "-");
    let far = (wrong.chars().count() / 3).max(1);
    known
        .into_iter()
        .map(|name| (unlikeness(&wrong, &name.to_lowercase()), name))
        .filter(|(distance, _)| *distance <= far)
        .min()
        .map(|(_, name)| name)
}

/// Returns the edit distance of two words, or 1 if one is a prefix of the other.
fn unlikeness(wrong: &str, known: &str) -> usize {
    let (short, long) = if wrong.len() < known.len() { (wrong, known) } else { (known, wrong) };
    if short.len() >= 3 && long.len() > short.len() && long.starts_with(short) {
        return 1;
    }
    distance(wrong, known)
}

/// Returns the edit distance of two words (insert, delete, replace, swap neighbors).
fn distance(a: &str, b: &str) -> usize {
    let (a, b): (Vec<char>, Vec<char>) = (a.chars().collect(), b.chars().collect());
    let mut rows = vec![vec![0; b.len() + 1]; a.len() + 1];
    for (i, row) in rows.iter_mut().enumerate() {
        row[0] = i;
    }
    rows[0] = (0..=b.len()).collect();
    for i in 1..=a.len() {
        for j in 1..=b.len() {
            let replace = rows[i - 1][j - 1] + usize::from(a[i - 1] != b[j - 1]);
            let mut best = replace.min(rows[i - 1][j] + 1).min(rows[i][j - 1] + 1);
            if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                best = best.min(rows[i - 2][j - 2] + 1);
            }
            rows[i][j] = best;
        }
    }
    rows[a.len()][b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_closest_name_is_suggested_if_it_is_close() {
        let known = ["address", "port", "type"];
        assert_eq!(closest("prot", known), Some("port"));
        assert_eq!(closest("adress", known), Some("address"));
        assert_eq!(closest("Type", known), Some("type"));
        assert_eq!(closest("queue_depth", ["queue-depth"]), Some("queue-depth"));
        assert_eq!(closest("warning", ["error", "warn"]), Some("warn"));
        assert_eq!(closest("nonsense", known), None);
        assert_eq!(closest("x", known), None);
    }
}
