//! The measured lines.

/// One line: a load.
#[derive(Debug)]
pub(super) struct BenchLine {
    pub(super) name: &'static str,
    /// Selects the namespace in memory, not the one without a medium.
    pub(super) ram: bool,
    /// `--rw` of the load generator.
    pub(super) rw: &'static str,
    /// `--bs` of the load generator.
    pub(super) bs: &'static str,
    /// I/Os outstanding on one queue.
    pub(super) qd: u32,
    /// Header and data digests.
    pub(super) digests: bool,
}

pub(super) const LINES: &[BenchLine] = &[
    null("null 4 KiB randread, depth 1", "4k", 1),
    null("null 4 KiB randread, depth 32", "4k", 32),
    null("null 4 KiB randread, depth 128", "4k", 128),
    BenchLine { rw: "read", ..null("null 128 KiB read, depth 8", "128k", 8) },
    BenchLine { rw: "read", ..null("null 128 KiB read, depth 32", "128k", 32) },
    BenchLine { ram: true, rw: "randwrite", ..null("RAM 4 KiB randwrite, depth 32", "4k", 32) },
    BenchLine { ram: true, ..null("RAM 4 KiB randread, depth 32", "4k", 32) },
    BenchLine { digests: true, ..null("null 4 KiB randread, digests, depth 32", "4k", 32) },
    BenchLine {
        digests: true,
        rw: "read",
        ..null("null 128 KiB read, digests, depth 8", "128k", 8)
    },
];

/// Returns a line of random null reads.
const fn null(name: &'static str, bs: &'static str, qd: u32) -> BenchLine {
    BenchLine { name, ram: false, rw: "randread", bs, qd, digests: false }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn lines_are_told_apart_by_name() {
        let names: HashSet<_> = LINES.iter().map(|line| line.name).collect();
        assert_eq!(names.len(), LINES.len());
        for line in LINES {
            assert!(line.name.ends_with(&format!("depth {}", line.qd)), "{}", line.name);
            assert_eq!(line.name.starts_with("RAM"), line.ram, "{}", line.name);
        }
    }
}
