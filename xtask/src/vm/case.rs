//! Test cases of the QEMU machine, the report that each boot must make, and its check.

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::{Result, bail};

use super::drives::VmDrive;

/// A named case: one or more boots, over one fabric.
#[derive(Debug)]
pub(crate) struct VmCase {
    pub(crate) name: &'static str,
    pub(crate) about: &'static str,
    pub(crate) fabric: Fabric,
    /// Emulated drives behind an emulated IOMMU, in each boot.
    pub(crate) drives: &'static [VmDrive],
    pub(crate) boots: &'static [Boot],
}

/// One boot of a case: one guest, or two that a network joins.
#[derive(Debug)]
pub(crate) struct Boot {
    pub(crate) name: &'static str,
    pub(crate) guests: &'static [Guest],
}

/// Script and parts of one guest of a boot.
#[derive(Debug)]
pub(crate) struct Guest {
    /// Empty for a single guest.
    pub(crate) name: &'static str,
    pub(crate) script: &'static str,
}

/// Fabric between the host and the target.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fabric {
    Tcp,
    Rdma,
}

macro_rules! script {
    ($file:literal) => {
        &[Guest { name: "", script: include_str!(concat!("../../vm/", $file)) }]
    };
}

/// The target's guest, which also has a host, and a second host.
const RDMA_HOSTS: &[Guest] = &[
    Guest { name: "a", script: include_str!("../../vm/rdma-hosts-a.sh") },
    Guest { name: "b", script: include_str!("../../vm/rdma-hosts-b.sh") },
];

/// Drives for the scripts of the case `vfio`.
///
/// Four have their own slots, one of them with blocks of 4096 bytes. The last one shares its slot,
/// and so its IOMMU group, with the one before.
const DRIVES: &[VmDrive] = &[
    VmDrive { serial: "DRIVE0", block: 512, size: 128 << 20, place: (0, 0) },
    VmDrive { serial: "DRIVE1", block: 512, size: 128 << 20, place: (1, 0) },
    VmDrive { serial: "DRIVE2", block: 4096, size: 128 << 20, place: (2, 0) },
    VmDrive { serial: "DRIVE3", block: 512, size: 128 << 20, place: (3, 0) },
    VmDrive { serial: "DRIVE4", block: 512, size: 128 << 20, place: (3, 1) },
];

/// Drives for the operator's pages: one drive to unbind from the kernel, at 0000:01:00.0.
const OPERATORS_DRIVES: &[VmDrive] =
    &[VmDrive { serial: "DRIVE0", block: 512, size: 128 << 20, place: (0, 0) }];

/// All cases.
pub(crate) const CASES: &[VmCase] = &[
    VmCase {
        name: "boot",
        about: "only the machine: boots, finds its modules and disks",
        fabric: Fabric::Tcp,
        drives: &[],
        boots: &[Boot { name: "boot", guests: script!("boot.sh") }],
    },
    VmCase {
        name: "tcp",
        about: "the Linux host over NVMe/TCP: discovery, admin, filesystem, data, events, recovery",
        fabric: Fabric::Tcp,
        drives: &[],
        boots: &[
            Boot { name: "admin", guests: script!("admin.sh") },
            Boot { name: "files", guests: script!("files.sh") },
            Boot { name: "digests", guests: script!("digests.sh") },
            Boot { name: "data", guests: script!("data.sh") },
            Boot { name: "events", guests: script!("events.sh") },
            Boot { name: "recovery", guests: script!("recovery.sh") },
            Boot { name: "hosts", guests: script!("tcp-hosts.sh") },
            Boot { name: "compare", guests: script!("compare.sh") },
            Boot { name: "sweep", guests: script!("sweep.sh") },
        ],
    },
    VmCase {
        name: "tcp-short",
        about: "the Linux host over NVMe/TCP, shortly, for one kernel after the other: --kernel all",
        fabric: Fabric::Tcp,
        drives: &[],
        boots: &[Boot { name: "short", guests: script!("tcp-short.sh") }],
    },
    VmCase {
        name: "rdma",
        about: "the Linux host over NVMe/RDMA: the same, two guests at once, pools under pressure",
        fabric: Fabric::Rdma,
        drives: &[],
        boots: &[
            Boot { name: "verbs", guests: script!("rdma-verbs.sh") },
            Boot { name: "admin", guests: script!("admin.sh") },
            Boot { name: "connect", guests: script!("rdma-connect.sh") },
            Boot { name: "churn", guests: script!("rdma-churn.sh") },
            Boot { name: "files", guests: script!("files.sh") },
            Boot { name: "data", guests: script!("rdma-data.sh") },
            Boot { name: "commands", guests: script!("data.sh") },
            Boot { name: "pressure", guests: script!("rdma-pressure.sh") },
            Boot { name: "recovery", guests: script!("recovery.sh") },
            Boot { name: "hosts", guests: RDMA_HOSTS },
            Boot { name: "compare", guests: script!("compare.sh") },
            Boot { name: "pacing", guests: script!("rdma-pacing.sh") },
        ],
    },
    VmCase {
        name: "profile",
        about: "where the time of jobs over NVMe/RDMA goes, ours and nvmet-rdma: --icount on a busy machine",
        fabric: Fabric::Rdma,
        drives: &[],
        boots: &[Boot { name: "rdma", guests: script!("rdma-profile.sh") }],
    },
    VmCase {
        name: "vfio",
        about: "real drives: emulated ones behind an emulated IOMMU, by the VFIO driver",
        fabric: Fabric::Rdma,
        drives: DRIVES,
        boots: &[
            Boot { name: "provider", guests: script!("vfio-provider.sh") },
            Boot { name: "driver", guests: script!("vfio-driver.sh") },
            Boot { name: "served", guests: script!("vfio-served.sh") },
            Boot { name: "rebind", guests: script!("vfio-rebind.sh") },
            Boot { name: "steady", guests: script!("vfio-steady.sh") },
        ],
    },
    VmCase {
        name: "deb",
        about: "the package on a Debian of its own, under systemd: from docs/ alone, over a reboot",
        fabric: Fabric::Tcp,
        drives: OPERATORS_DRIVES,
        boots: &[
            Boot { name: "walk", guests: script!("deb-walk.sh") },
            Boot { name: "trixie", guests: script!("deb-trixie.sh") },
        ],
    },
];

/// Target under test in the guest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum VmTarget {
    /// The daemon of this workspace, from the release build
    Ours,
    /// The guest kernel's target (Linux nvmet), to compare with and to prove the scripts
    Nvmet,
}

impl VmTarget {
    /// Returns the target's name in scripts.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Ours => "ours",
            Self::Nvmet => "nvmet",
        }
    }
}

/// Finds a case by its name.
pub(crate) fn find(name: &str) -> Result<&'static VmCase> {
    match CASES.iter().find(|case| case.name == name) {
        Some(case) => Ok(case),
        None => bail!("there is no case `{name}`; the cases are: {}", names().join(", ")),
    }
}

/// The names of all cases.
pub(crate) fn names() -> Vec<&'static str> {
    CASES.iter().map(|case| case.name).collect()
}

impl Fabric {
    /// Returns the fabric's name in scripts.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Tcp => "tcp",
            Self::Rdma => "rdma",
        }
    }
}

impl Boot {
    /// Returns whether a guest of it has its own Debian.
    pub(crate) fn is_rooted(&self) -> bool {
        self.guests.iter().any(|guest| guest.root().is_some())
    }

    /// Returns whether a guest's speeds are valid only without concurrent boots, by its script's
    /// line `# measures`.
    pub(crate) fn measures(&self) -> bool {
        self.guests.iter().any(|guest| guest.script.lines().any(|line| line == "# measures"))
    }
}

impl Guest {
    /// Returns the release of the Debian that the guest boots with systemd, by its script's line `#
    /// root: bookworm`.
    ///
    /// Without that line it runs its script on this machine's files.
    pub(crate) fn root(&self) -> Option<&'static str> {
        self.script.lines().find_map(|line| line.strip_prefix("# root: ")).map(str::trim)
    }

    /// Returns the time limit of a boot of this guest in seconds, by its script's line `# limit:
    /// 460`.
    pub(crate) fn limit(&self) -> Option<Duration> {
        let line = self.script.lines().find_map(|line| line.strip_prefix("# limit: "))?;
        Some(Duration::from_secs(line.trim().parse().ok()?))
    }

    /// Returns the parts that this guest must run against a target over a fabric.
    ///
    /// Its script lists them in lines `# parts: a b c`. For one target or fabric only, it lists
    /// them in `# parts ours: d e`, `# parts rdma: f` or `# parts rdma ours: g`.
    pub(crate) fn parts(&self, target: VmTarget, fabric: Fabric) -> Vec<&'static str> {
        let mut parts = Vec::new();
        for line in self.script.lines() {
            let Some((only, list)) =
                line.strip_prefix("# parts").and_then(|rest| rest.split_once(':'))
            else {
                continue;
            };
            let holds = |word: &str| word == target.name() || word == fabric.name();
            if only.split_whitespace().all(holds) {
                parts.extend(list.split_whitespace());
            }
        }
        parts
    }
}

/// Returns the listed parts for which a serial log has no line `part <name> ok`.
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
    use crate::vm::shared_folder::COMMON;

    #[test]
    fn parts_depend_on_the_target_and_the_fabric() {
        let script = "# parts: a b\n# parts ours: c\necho\n# parts: d\n# parts rdma ours: e\n";
        let guest = Guest { name: "", script };
        assert_eq!(guest.parts(VmTarget::Ours, Fabric::Tcp), ["a", "b", "c", "d"]);
        assert_eq!(guest.parts(VmTarget::Nvmet, Fabric::Rdma), ["a", "b", "d"]);
        assert_eq!(guest.parts(VmTarget::Ours, Fabric::Rdma), ["a", "b", "c", "d", "e"]);
    }

    #[test]
    fn a_part_counts_only_by_its_whole_line() {
        let log = "part a ok\r\npart b FAILED\necho part c ok\npart dd ok\n";
        assert_eq!(missing(&["a", "b", "c", "d"], log), ["b", "c", "d"]);
    }

    /// Returns a script with the scripts whose parts it uses.
    fn with_parts_of(script: &str) -> String {
        let others = script.lines().filter_map(|line| line.strip_prefix("parts_of "));
        let names = others.flat_map(str::split_whitespace);
        let text = |name| COMMON.iter().find(|(common, _)| *common == name).expect(name).1;
        names.map(text).chain([script]).collect()
    }

    #[test]
    fn every_guest_lists_parts_and_defines_them() {
        for case in CASES {
            for guest in case.boots.iter().flat_map(|boot| boot.guests) {
                let parts = guest.parts(VmTarget::Ours, case.fabric);
                assert_eq!(guest.limit().is_some(), guest.script.contains("# limit:"));
                assert!(!parts.is_empty(), "{} {} lists no parts", case.name, guest.name);
                let unique: BTreeSet<_> = parts.iter().collect();
                assert_eq!(unique.len(), parts.len(), "a part is listed twice: {parts:?}");
                let script = with_parts_of(guest.script);
                for part in parts {
                    let function = format!("\npart_{}() {{", part.replace('-', "_"));
                    assert!(script.contains(&function), "{} lacks {part}", case.name);
                }
            }
        }
    }
}
