//! Numbers of a machine with many drives.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use serde::{Deserialize, Serialize};
use thiserror::Error;

/// A machine with many drives. `configs/pcie/pcie-30.toml` documents the source of its numbers.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct PcieMachine {
    /// Read rate of a single drive, in GiB/s.
    pub drive_gib_per_s: f64,
    /// Capacity of a root complex, in GiB/s.
    pub root_complex_gib_per_s: f64,
    /// Capacity of adapters (`0000:60:03`: the device whose functions are the root ports), in
    /// GiB/s; adapters not named here have no limit.
    #[serde(default)]
    pub adapter_gib_per_s: BTreeMap<String, f64>,
    /// Joint capacity of the root complexes of a group, in GiB/s: the limit above them.
    pub group_gib_per_s: f64,
    /// The groups: names of root complexes (`0000:60`). Each root complex is in one.
    pub groups: Vec<Vec<String>>,
    /// The drives in system order, each as its path below `devices` in sysfs:
    /// `pci0000:60/0000:60:01.1/0000:61:00.0`.
    pub drives: Vec<String>,
}

/// Error of a machine file.
#[derive(Debug, Error)]
pub enum PcieError {
    /// It cannot be read.
    #[error("cannot read the machine {path}: {why}")]
    Unreadable {
        /// The file.
        path: String,
        /// The system's reason.
        why: std::io::Error,
    },
    /// A key is missing, unknown or of the wrong type.
    #[error("machine {path}: {why}")]
    Malformed {
        /// The file.
        path: String,
        /// Line, key and error.
        why: Box<toml::de::Error>,
    },
    /// Its content is impossible.
    #[error("machine {path}: {what}")]
    Impossible {
        /// The file.
        path: String,
        /// The error, and the valid values.
        what: String,
    },
}

impl PcieMachine {
    /// Reads a file.
    ///
    /// # Errors
    /// [`PcieError`] names the file, the error and the reason.
    pub fn load(path: &Path) -> Result<Self, PcieError> {
        let name = path.display().to_string();
        let text = std::fs::read_to_string(path)
            .map_err(|why| PcieError::Unreadable { path: name.clone(), why })?;
        Self::parse(&name, &text)
    }

    /// Parses the text of a file called `name`.
    ///
    /// # Errors
    /// As [`Self::load`].
    pub fn parse(name: &str, text: &str) -> Result<Self, PcieError> {
        let path = || name.to_owned();
        let machine: Self = toml::from_str(text)
            .map_err(|why| PcieError::Malformed { path: path(), why: Box::new(why) })?;
        match machine.wrong() {
            Some(what) => Err(PcieError::Impossible { path: path(), what }),
            None => Ok(machine),
        }
    }

    /// Returns the root complex of a drive, by the drive's number in system order.
    #[must_use]
    pub fn root_complex(&self, drive: usize) -> Option<&str> {
        root_complex(self.drives.get(drive)?)
    }

    /// Returns the adapter of a drive, by the drive's number in system order: `0000:60:03`.
    #[must_use]
    pub fn adapter(&self, drive: usize) -> Option<String> {
        let mut parts = self.drives.get(drive)?.split('/').skip(1);
        let (port, _) = parts.next()?.rsplit_once('.')?;
        Some(port.to_owned())
    }

    /// Returns the machine with a limit at every adapter.
    #[must_use]
    pub fn with_adapters(&self, gib_per_s: f64) -> Self {
        let names = (0..self.drives.len()).filter_map(|drive| self.adapter(drive));
        let adapter_gib_per_s = names.map(|name| (name, gib_per_s)).collect();
        Self { adapter_gib_per_s, ..self.clone() }
    }

    /// Returns the first impossible value.
    fn wrong(&self) -> Option<String> {
        let numbers = [
            ("drive-gib-per-s", self.drive_gib_per_s),
            ("root-complex-gib-per-s", self.root_complex_gib_per_s),
            ("group-gib-per-s", self.group_gib_per_s),
        ];
        for (key, value) in numbers {
            if !value.is_finite() || value <= 0.0 {
                return Some(format!("{key} = {value} cannot be: must be more than 0"));
            }
        }
        for (name, value) in &self.adapter_gib_per_s {
            if !value.is_finite() || *value <= 0.0 {
                return Some(format!("adapter-gib-per-s: {name} = {value} must be more than 0"));
            }
            if !(0..self.drives.len()).any(|drive| self.adapter(drive).as_ref() == Some(name)) {
                return Some(format!("adapter-gib-per-s: no drive hangs on {name}"));
            }
        }
        let mut grouped = BTreeSet::new();
        for name in self.groups.iter().flatten() {
            if !grouped.insert(name.as_str()) {
                return Some(format!("groups: {name} is in two of them"));
            }
        }
        if self.drives.is_empty() {
            return Some("drives: there are none".to_owned());
        }
        let mut seen = BTreeSet::new();
        for drive in &self.drives {
            let Some(root) = root_complex(drive) else {
                return Some(format!(
                    "drives: {drive:?} is no path from a root complex, as pci0000:60/0000:60:01.1/0000:61:00.0"
                ));
            };
            if !grouped.contains(root) {
                return Some(format!("groups: {root}, which {drive} hangs on, is in none"));
            }
            if !seen.insert(drive) {
                return Some(format!("drives: {drive} is there twice"));
            }
        }
        None
    }
}

/// Returns `0000:60` of `pci0000:60/0000:60:01.1/0000:61:00.0`.
fn root_complex(path: &str) -> Option<&str> {
    let (root, rest) = path.strip_prefix("pci")?.split_once('/')?;
    (!root.is_empty() && !rest.is_empty()).then_some(root)
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = r#"
drive-gib-per-s = 6
root-complex-gib-per-s = 12
group-gib-per-s = 20
groups = [["0000:00"], ["0000:40"]]
drives = ["pci0000:00/0000:00:01.1/0000:01:00.0", "pci0000:40/0000:40:01.1/0000:41:00.0"]
"#;

    #[test]
    fn a_machine_is_read() {
        let machine = PcieMachine::parse("x", GOOD).unwrap();
        assert_eq!(machine.root_complex(1), Some("0000:40"));
        assert_eq!(machine.root_complex(2), None);
        assert_eq!(machine.adapter(1).as_deref(), Some("0000:40:01"));
    }

    #[test]
    fn what_cannot_be_is_said() {
        for (good, bad, says) in [
            ("= 6\n", "= 0\n", "drive-gib-per-s = 0 cannot be"),
            ("= 20\n", "= nan\n", "group-gib-per-s"),
            (
                "= 6\n",
                "= 6\nadapter-gib-per-s = { \"0000:00:01\" = 0 }\n",
                "0000:00:01 = 0 must be",
            ),
            (
                "= 6\n",
                "= 6\nadapter-gib-per-s = { \"0000:00:02\" = 9 }\n",
                "no drive hangs on 0000:00:02",
            ),
            ("[\"0000:40\"]", "[\"0000:00\"]", "0000:00 is in two"),
            ("[\"0000:40\"]", "[\"0000:60\"]", "0000:40, which pci0000:40/"),
            ("pci0000:40/0000:40:01.1", "0000:40:01.1", "is no path"),
            ("groups", "group", "unknown field `group`"),
            (
                "pci0000:40/0000:40:01.1/0000:41:00.0",
                "pci0000:00/0000:00:01.1/0000:01:00.0",
                "is there twice",
            ),
        ] {
            let text = GOOD.replacen(good, bad, 1);
            assert_ne!(text, GOOD);
            let error = PcieMachine::parse("x", &text).unwrap_err().to_string();
            assert!(error.starts_with("machine x: ") && error.contains(says), "{error}");
        }
        let error = PcieMachine::load(Path::new("/no/such/file")).unwrap_err().to_string();
        assert!(error.starts_with("cannot read the machine /no/such/file: "), "{error}");
    }
}
