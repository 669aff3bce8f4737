//! The measured lines, with goals of the target and figures of SPDK nvmf_tgt.

/// One line: a load, and reference figures for its result.
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
    /// I/Os per second, from and to, of SPDK nvmf_tgt.
    ///
    /// They were measured on another machine, with another load generator, and allow no close
    /// comparison.
    pub(super) reference: (f64, f64),
    /// Remarks on the line.
    pub(super) note: &'static str,
}

const K: f64 = 1e3;

pub(super) const LINES: &[BenchLine] = &[
    BenchLine {
        note: "p50 14.7, p99 29 us",
        ..null("null 4 KiB randread, depth 1", "4k", 1, 60.0, 74.0)
    },
    null("null 4 KiB randread, depth 32", "4k", 32, 500.0, 530.0),
    null("null 4 KiB randread, depth 128", "4k", 128, 430.0, 665.0),
    BenchLine { rw: "read", ..null("null 128 KiB read, depth 8", "128k", 8, 37.0, 41.0) },
    BenchLine { rw: "read", ..null("null 128 KiB read, depth 32", "128k", 32, 32.0, 42.0) },
    BenchLine {
        ram: true,
        rw: "randwrite",
        ..null("RAM 4 KiB randwrite, depth 32", "4k", 32, 300.0, 300.0)
    },
    BenchLine { ram: true, ..null("RAM 4 KiB randread, depth 32", "4k", 32, 350.0, 350.0) },
    BenchLine {
        digests: true,
        ..null("null 4 KiB randread, digests, depth 32", "4k", 32, 355.0, 355.0)
    },
    BenchLine {
        digests: true,
        rw: "read",
        ..null("null 128 KiB read, digests, depth 8", "128k", 8, 29.0, 29.0)
    },
];

/// Returns a line of random null reads; `from` and `to` are the reference in thousands per second.
const fn null(name: &'static str, bs: &'static str, qd: u32, from: f64, to: f64) -> BenchLine {
    BenchLine {
        name,
        ram: false,
        rw: "randread",
        bs,
        qd,
        digests: false,
        reference: (from * K, to * K),
        note: "",
    }
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
            assert!(line.reference.0 <= line.reference.1, "{}", line.name);
            assert!(line.name.ends_with(&format!("depth {}", line.qd)), "{}", line.name);
            assert_eq!(line.name.starts_with("RAM"), line.ram, "{}", line.name);
        }
    }
}
