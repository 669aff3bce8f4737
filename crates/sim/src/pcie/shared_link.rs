//! Distribution of the capacity over the drives.

use std::collections::BTreeMap;

use super::machine::PcieMachine;

/// Way in which drives are read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PcieReadMode {
    /// From one queue in turn: all at the rate of the slowest.
    Striped,
    /// From one queue each.
    Independent,
}

/// Joint read rate of drives.
#[derive(Debug, Clone, PartialEq)]
pub struct Read {
    /// Total, in GiB/s.
    pub total: f64,
    /// Rate of each, in GiB/s, in the given order.
    pub shares: Vec<f64>,
    /// Load of the drives' root complexes and their groups, in the order of the file.
    pub loads: Vec<LinkLoad>,
}

/// Load of a root complex or a group of them.
#[derive(Debug, Clone, PartialEq)]
pub struct LinkLoad {
    /// Root complexes, one or those of a group; or an adapter.
    pub of: Vec<String>,
    /// It is an adapter.
    pub is_adapter: bool,
    /// Drives that read through it.
    pub drives: usize,
    /// Rate through it, in GiB/s.
    pub carried: f64,
    /// Its capacity, in GiB/s.
    pub most: f64,
}

/// Limit that several drives share.
#[derive(Debug)]
struct SharedLink {
    of: Vec<String>,
    is_adapter: bool,
    /// Its drives, as positions in the given order.
    drives: Vec<usize>,
    most: f64,
}

/// Fraction of a limit from which it counts as reached.
const REACHED: f64 = 0.999;

impl LinkLoad {
    /// Returns whether it is at capacity.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.carried >= self.most * REACHED
    }
}

impl PcieMachine {
    /// Returns the joint read rate of the drives with these numbers (in system order). Numbers
    /// without a drive are omitted.
    #[must_use]
    pub fn read(&self, drives: &[usize], mode: PcieReadMode) -> Read {
        let shared = self.shared(drives);
        let mut shares = self.max_min(drives.len(), &shared);
        if mode == PcieReadMode::Striped {
            let slowest = shares.iter().copied().fold(f64::INFINITY, f64::min);
            shares.fill(slowest);
        }
        let carried = |shared: &SharedLink| shared.drives.iter().map(|&at| shares[at]).sum();
        let loads = shared.iter().map(|shared| LinkLoad {
            of: shared.of.clone(),
            is_adapter: shared.is_adapter,
            drives: shared.drives.len(),
            carried: carried(shared),
            most: shared.most,
        });
        let loads = loads.collect();
        Read { total: shares.iter().sum(), shares, loads }
    }

    /// Returns the root complexes and groups that the drives read through.
    fn shared(&self, drives: &[usize]) -> Vec<SharedLink> {
        let mut roots: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
        for (at, &drive) in drives.iter().enumerate() {
            if let Some(root) = self.root_complex(drive) {
                roots.entry(root).or_default().push(at);
            }
        }
        let mut shared = Vec::new();
        for (adapter, &most) in &self.adapter_gib_per_s {
            let is_on = |at: &usize| self.adapter(drives[*at]).as_ref() == Some(adapter);
            let drives: Vec<usize> = (0..drives.len()).filter(is_on).collect();
            if !drives.is_empty() {
                shared.push(SharedLink {
                    of: vec![adapter.clone()],
                    is_adapter: true,
                    drives,
                    most,
                });
            }
        }
        for (root, drives) in &roots {
            let (of, drives) = (vec![(*root).to_owned()], drives.clone());
            let most = self.root_complex_gib_per_s;
            shared.push(SharedLink { of, is_adapter: false, drives, most });
        }
        for group in &self.groups {
            let members = group.iter().filter_map(|root| roots.get(root.as_str()));
            let drives: Vec<usize> = members.flatten().copied().collect();
            if !drives.is_empty() {
                let (of, most) = (group.clone(), self.group_gib_per_s);
                shared.push(SharedLink { of, is_adapter: false, drives, most });
            }
        }
        shared
    }

    /// Computes max-min fair rates. All grow equally until a limit is full; its drives keep their
    /// rate, and the others continue.
    fn max_min(&self, drives: usize, shared: &[SharedLink]) -> Vec<f64> {
        let mut shares = vec![self.drive_gib_per_s; drives];
        let mut settled = vec![false; drives];
        loop {
            let growing = |of: &SharedLink| of.drives.iter().filter(|&&at| !settled[at]).count();
            let level = |of: &SharedLink| {
                let fixed: f64 =
                    of.drives.iter().filter(|&&at| settled[at]).map(|&at| shares[at]).sum();
                #[expect(clippy::cast_precision_loss, reason = "a count of drives")]
                let growing = growing(of) as f64;
                (of.most - fixed).max(0.0) / growing
            };
            let first = shared
                .iter()
                .filter(|of| growing(of) > 0)
                .map(|of| (level(of), of))
                .filter(|(level, _)| *level < self.drive_gib_per_s)
                .min_by(|(one, _), (other, _)| one.total_cmp(other));
            let Some((level, full)) = first else { return shares };
            for &at in &full.drives {
                if !settled[at] {
                    (shares[at], settled[at]) = (level, true);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn machine() -> PcieMachine {
        let drive = |root: &str, n: u32| format!("pci{root}/{root}:01.{n}/0000:{n:02x}:00.0");
        PcieMachine {
            drive_gib_per_s: 5.0,
            root_complex_gib_per_s: 12.0,
            adapter_gib_per_s: BTreeMap::new(),
            group_gib_per_s: 18.0,
            groups: vec![vec!["0000:00".into(), "0000:20".into()], vec!["0000:40".into()]],
            drives: (0..4)
                .map(|n| drive("0000:00", n))
                .chain((4..8).map(|n| drive("0000:20", n)))
                .chain((8..12).map(|n| drive("0000:40", n)))
                .collect(),
        }
    }

    fn total(drives: &[usize], mode: PcieReadMode) -> f64 {
        machine().read(drives, mode).total
    }

    #[test]
    fn drives_that_share_nothing_that_is_full_read_all_they_can() {
        for mode in [PcieReadMode::Striped, PcieReadMode::Independent] {
            assert_eq!(total(&[0, 1, 8, 9], mode), 20.0);
            assert_eq!(total(&[], mode), 0.0);
        }
    }

    #[test]
    fn a_full_root_complex_slows_its_own_drives_or_all_of_a_stripe() {
        let drives = [0, 1, 2, 8];
        let independent = machine().read(&drives, PcieReadMode::Independent);
        assert_eq!(independent.shares, [4.0, 4.0, 4.0, 5.0]);
        let striped = machine().read(&drives, PcieReadMode::Striped);
        assert_eq!(striped.shares, [4.0; 4]);
        assert!(striped.loads[0].is_full() && !striped.loads[1].is_full());
        assert_eq!((striped.loads[0].drives, striped.loads[1].drives), (3, 1));
    }

    #[test]
    fn a_full_adapter_slows_its_own_drives_or_all_of_a_stripe() {
        let mut machine = machine();
        machine.drives[1] = "pci0000:00/0000:00:03.1/0000:09:00.0".into();
        machine.drives[2] = "pci0000:00/0000:00:03.2/0000:0a:00.0".into();
        machine.adapter_gib_per_s.insert("0000:00:03".into(), 6.0);
        let read = machine.read(&[0, 1, 2], PcieReadMode::Independent);
        assert_eq!(read.shares, [5.0, 3.0, 3.0]);
        let full: Vec<_> = read.loads.iter().filter(|load| load.is_full()).collect();
        assert!(full.len() == 1 && full[0].is_adapter && full[0].of == ["0000:00:03"], "{full:?}");
        assert_eq!(machine.read(&[0, 1, 2], PcieReadMode::Striped).shares, [3.0; 3]);
    }

    #[test]
    fn what_one_drive_leaves_goes_to_those_that_can_take_it() {
        // The group is full: 18 over five drives, but three already share the 12 of a root complex.
        let read = machine().read(&[0, 1, 2, 3, 4], PcieReadMode::Independent);
        assert_eq!(read.shares, [3.0, 3.0, 3.0, 3.0, 5.0]);
        let read = machine().read(&[0, 1, 2, 3, 4, 5], PcieReadMode::Independent);
        assert_eq!(read.shares, [3.0; 6]);
        let read = machine().read(&[0, 1, 2, 3, 4, 5, 6, 7], PcieReadMode::Independent);
        assert_eq!((read.total, read.shares[0]), (18.0, 2.25));
        let group = read.loads.iter().find(|load| load.of.len() == 2).unwrap();
        assert!(group.is_full());
    }
}
