//! What can be run in the machine, what each boot of it must report, and whether it did.

use std::collections::BTreeSet;

use anyhow::{Result, bail};

/// A named case: one or more boots, each with its script.
#[derive(Debug)]
pub(crate) struct Case {
    pub(crate) name: &'static str,
    pub(crate) about: &'static str,
    pub(crate) boots: &'static [Boot],
}

/// One boot of a case.
#[derive(Debug)]
pub(crate) struct Boot {
    pub(crate) name: &'static str,
    pub(crate) script: &'static str,
}

/// Every case there is.
pub(crate) const CASES: &[Case] = &[
    Case {
        name: "boot",
        about: "only the machine: boots, finds its modules and disks",
        boots: &[Boot { name: "boot", script: include_str!("../../vm/boot.sh") }],
    },
    Case {
        name: "tcp",
        about: "the Linux host over NVMe/TCP: discovery, admin, filesystem, data, events, recovery",
        boots: &[
            Boot { name: "admin", script: include_str!("../../vm/tcp-admin.sh") },
            Boot { name: "files", script: include_str!("../../vm/tcp-files.sh") },
            Boot { name: "digests", script: include_str!("../../vm/tcp-digests.sh") },
            Boot { name: "data", script: include_str!("../../vm/tcp-data.sh") },
            Boot { name: "events", script: include_str!("../../vm/tcp-events.sh") },
            Boot { name: "recovery", script: include_str!("../../vm/tcp-recovery.sh") },
            Boot { name: "hosts", script: include_str!("../../vm/tcp-hosts.sh") },
            Boot { name: "compare", script: include_str!("../../vm/tcp-compare.sh") },
        ],
    },
];

/// Which target the guest's scripts are run against.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Target {
    /// Our daemon, from the release build
    Ours,
    /// The guest kernel's own target, to compare with and to prove the scripts
    Nvmet,
}

impl Target {
    /// The name scripts know it by.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Ours => "ours",
            Self::Nvmet => "nvmet",
        }
    }
}

/// Finds a case by its name.
pub(crate) fn find(name: &str) -> Result<&'static Case> {
    match CASES.iter().find(|case| case.name == name) {
        Some(case) => Ok(case),
        None => bail!("there is no case `{name}`; the cases are: {}", names().join(", ")),
    }
}

/// The names of all cases.
pub(crate) fn names() -> Vec<&'static str> {
    CASES.iter().map(|case| case.name).collect()
}

impl Boot {
    /// The parts this boot must run against a target: what its script lists in lines
    /// `# parts: a b c` and, for one target only, `# parts ours: d e`.
    pub(crate) fn parts(&self, target: Target) -> Vec<&'static str> {
        let own = format!("# parts {}:", target.name());
        let lists = self
            .script
            .lines()
            .filter_map(|line| line.strip_prefix("# parts:").or_else(|| line.strip_prefix(&own)));
        lists.flat_map(str::split_whitespace).collect()
    }
}

/// The listed parts that a serial log has no line `part <name> ok` of.
pub(crate) fn missing<'a>(parts: &[&'a str], log: &str) -> Vec<&'a str> {
    let ran: BTreeSet<&str> = log
        .lines()
        .filter_map(|line| line.trim().strip_prefix("part ")?.strip_suffix(" ok"))
        .collect();
    parts.iter().copied().filter(|part| !ran.contains(part)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_depend_on_the_target() {
        let boot = Boot { name: "x", script: "# parts: a b\n# parts ours: c\necho\n# parts: d\n" };
        assert_eq!(boot.parts(Target::Ours), ["a", "b", "c", "d"]);
        assert_eq!(boot.parts(Target::Nvmet), ["a", "b", "d"]);
    }

    #[test]
    fn a_part_counts_only_by_its_whole_line() {
        let log = "part a ok\r\npart b FAILED\necho part c ok\npart dd ok\n";
        assert_eq!(missing(&["a", "b", "c", "d"], log), ["b", "c", "d"]);
    }

    #[test]
    fn every_boot_lists_parts_and_defines_them() {
        for boot in CASES.iter().flat_map(|case| case.boots) {
            let parts = boot.parts(Target::Ours);
            assert!(!parts.is_empty(), "{} lists no parts", boot.name);
            let unique: BTreeSet<_> = parts.iter().collect();
            assert_eq!(unique.len(), parts.len(), "{} lists a part twice", boot.name);
            for part in parts {
                let function = format!("\npart_{}() {{", part.replace('-', "_"));
                assert!(boot.script.contains(&function), "{} lacks {part}", boot.name);
            }
        }
    }
}
