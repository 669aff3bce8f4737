//! Mounted filesystems of every visible mount namespace, and swap space (proc(5)).

use std::collections::BTreeSet;
use std::path::PathBuf;

use super::super::system::{PciError, System, link_name, names, required};
use super::blocks::Blocks;
use super::user::User;

/// Mounts and swap devices.
#[derive(Debug)]
pub(super) struct Mounts {
    mounts: Vec<Mount>,
    /// Names of device nodes.
    swaps: Vec<String>,
}

#[derive(Debug, PartialEq, Eq)]
struct Mount {
    /// Major and minor number; for multi-device filesystems, that of no member.
    number: String,
    at: PathBuf,
    /// Name of the device node it was mounted from.
    node: Option<String>,
    seen_by: Option<u32>,
}

impl Mounts {
    pub(super) fn read(system: &System) -> Result<Self, PciError> {
        let own = system.proc.join("self");
        let mut mounts = Vec::new();
        let mut add = |text: &str, seen_by| {
            mounts.extend(text.lines().filter_map(|line| mount(system, line, seen_by)));
        };
        add(&required(&own.join("mountinfo"))?, None);
        let mut seen: BTreeSet<String> = link_name(&own.join("ns/mnt")).into_iter().collect();
        for process in names(&system.proc)? {
            let Ok(pid) = process.parse::<u32>() else { continue };
            let folder = system.proc.join(&process);
            // The process has ended, or access to it is denied.
            let Some(namespace) = link_name(&folder.join("ns/mnt")) else { continue };
            if !seen.insert(namespace) {
                continue;
            }
            let Ok(text) = std::fs::read_to_string(folder.join("mountinfo")) else { continue };
            add(&text, Some(pid));
        }
        // A kernel without swap has no swaps file.
        let swaps = std::fs::read_to_string(system.proc.join("swaps")).unwrap_or_default();
        let swaps = swaps.lines().skip(1).filter_map(|line| {
            let path = unescape(line.split_whitespace().next()?);
            system.node_name(&path)
        });
        Ok(Self { mounts, swaps: swaps.collect() })
    }

    pub(super) fn users(&self, blocks: &Blocks, tree: &[String], users: &mut Vec<User>) {
        // Lists the root first: it is the clearest reason why the drive is not available.
        let mut found: Vec<&Mount> = Vec::new();
        for device in tree {
            for mount in &self.mounts {
                if blocks.is(device, Some(&mount.number), mount.node.as_deref()) {
                    let Mount { at, seen_by, .. } = mount;
                    let same = |other: &&&Mount| other.at == *at;
                    // Every mount namespace repeats the mounts it was created with.
                    if seen_by.is_some() && found.iter().any(|other| same(&other)) {
                        continue;
                    }
                    found.push(mount);
                    let (at, seen_by) = (at.clone(), *seen_by);
                    users.push(User::Mount { device: device.clone(), at, seen_by });
                }
            }
            if self.swaps.iter().any(|swap| blocks.is(device, None, Some(swap))) {
                users.push(User::Swap { device: device.clone() });
            }
        }
        users.sort_by_key(|user| match user {
            User::Mount { at, seen_by: None, .. } if at.as_os_str() == "/" => 0,
            User::Mount { seen_by: None, .. } => 1,
            _ => 2,
        });
    }
}

/// Parses `36 35 259:2 / /mnt rw,noatime master:1 - ext4 /dev/nvme0n1p2 rw`: number, mount point,
/// and after the dash the type and the source.
fn mount(system: &System, line: &str, seen_by: Option<u32>) -> Option<Mount> {
    let (front, back) = line.split_once(" - ")?;
    let mut front = front.split(' ');
    let number = front.nth(2)?.to_owned();
    let at = PathBuf::from(unescape(front.nth(1)?));
    let source = unescape(back.split(' ').nth(1)?);
    Some(Mount { number, at, node: system.node_name(&source), seen_by })
}

/// Decodes white space and backslashes, which are written as a backslash and three octal digits.
fn unescape(text: &str) -> String {
    let mut out = Vec::with_capacity(text.len());
    let mut bytes = text.as_bytes();
    while let [first, rest @ ..] = bytes {
        let code = rest.get(..3).and_then(|digits| std::str::from_utf8(digits).ok());
        let code = code.and_then(|digits| u8::from_str_radix(digits, 8).ok());
        match code.filter(|_| *first == b'\\') {
            Some(byte) => {
                out.push(byte);
                bytes = &rest[3..];
            }
            None => {
                out.push(*first);
                bytes = rest;
            }
        }
    }
    String::from_utf8_lossy(&out).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn octal_escapes() {
        assert_eq!(unescape("/mnt/a\\040b"), "/mnt/a b");
        assert_eq!(unescape("\\134\\011x"), "\\\tx");
        assert_eq!(unescape("a\\04"), "a\\04");
        assert_eq!(unescape("\\999é"), "\\999é");
    }

    #[test]
    fn lines_of_mountinfo() {
        let system = System::below(std::path::Path::new("nowhere"));
        let line =
            "36 35 259:2 / /mnt/a\\040b rw,noatime shared:1 master:2 - ext4 /dev/nvme0n1p2 rw";
        let mount = mount(&system, line, Some(7)).unwrap();
        let node = Some("nvme0n1p2".to_owned());
        let at = "/mnt/a b".into();
        assert_eq!(mount, Mount { number: "259:2".into(), at, node, seen_by: Some(7) });
        for line in ["", "36 35", "1 2 3:4 / /x rw", "1 2 3:4 / /x rw - ext4"] {
            assert_eq!(super::mount(&system, line, None), None, "{line}");
        }
    }
}
