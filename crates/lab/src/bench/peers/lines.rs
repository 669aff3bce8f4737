//! The measured lines: one load each.

/// One load.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct PeerLine {
    pub(super) access: Access,
    /// Bytes of an I/O.
    pub(super) bytes: u32,
    /// I/O queues of the host.
    pub(super) queues: u32,
    /// I/Os outstanding on all queues together.
    pub(super) depth: u32,
    /// Header and data digests.
    pub(super) has_digests: bool,
}

/// Operation of the I/Os, at random places.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Access {
    Read,
    Write,
    /// 70 % reads.
    Mix,
}

impl Access {
    fn name(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write => "write",
            Self::Mix => "70/30",
        }
    }
}

impl PeerLine {
    /// Name of the line: `4 KiB read, 8 queues, depth 1`.
    pub(super) fn name(&self) -> String {
        let size = match self.bytes {
            bytes if bytes.is_multiple_of(1024) => format!("{} KiB", bytes / 1024),
            bytes => format!("{bytes} B"),
        };
        let queues = if self.queues == 1 { "queue" } else { "queues" };
        let digests = if self.has_digests { ", digests" } else { "" };
        let Self { access, queues: count, depth, .. } = self;
        format!("{size} {}, {count} {queues}, depth {depth}{digests}", access.name())
    }

    /// Returns true for a line that only reads.
    pub(super) fn only_reads(&self) -> bool {
        self.access == Access::Read
    }
}

const fn read(bytes: u32, queues: u32, depth: u32) -> PeerLine {
    PeerLine { access: Access::Read, bytes, queues, depth, has_digests: false }
}

const KIB: u32 = 1024;

/// All lines. All queues together have the depth, so that many queues are nearly idle.
pub(super) const LINES: &[PeerLine] = &[
    read(4 * KIB, 1, 1),
    read(4 * KIB, 8, 1),
    read(4 * KIB, 16, 1),
    read(4 * KIB, 32, 1),
    read(4 * KIB, 1, 32),
    read(4 * KIB, 1, 128),
    read(4 * KIB, 16, 256),
    read(4 * KIB, 32, 2048),
    read(512, 1, 64),
    read(16 * KIB, 1, 32),
    read(128 * KIB, 1, 8),
    read(128 * KIB, 1, 32),
    PeerLine { has_digests: true, ..read(4 * KIB, 1, 32) },
    PeerLine { has_digests: true, ..read(128 * KIB, 1, 8) },
    PeerLine { access: Access::Write, ..read(4 * KIB, 1, 32) },
    PeerLine { access: Access::Write, ..read(128 * KIB, 1, 8) },
    PeerLine { access: Access::Mix, ..read(4 * KIB, 1, 32) },
];

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn a_name_says_all_of_its_line() {
        let names: BTreeSet<_> = LINES.iter().map(PeerLine::name).collect();
        assert_eq!(names.len(), LINES.len());
        assert!(names.contains("512 B read, 1 queue, depth 64"), "{names:?}");
        assert!(names.contains("128 KiB read, 1 queue, depth 8, digests"), "{names:?}");
        assert!(names.contains("4 KiB 70/30, 1 queue, depth 32"), "{names:?}");
    }
}
