//! Block devices, and the devices layered on them.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use super::super::system::{PciError, System, link_name, names, text};
use super::user::User;

/// All block devices of the machine.
#[derive(Debug)]
pub(super) struct Blocks {
    by_name: BTreeMap<String, Block>,
    /// Members of mounted multi-device filesystems: device and filesystem.
    members: Vec<(String, &'static str)>,
    /// Devices and the part of the kernel that serves them.
    served: Vec<(String, String)>,
}

#[derive(Debug, Default)]
struct Block {
    /// Major and minor number, like `259:0`.
    number: Option<String>,
    partitions: Vec<String>,
    holders: BTreeSet<String>,
    /// Kind of device, if it is layered on others.
    kind: Option<String>,
    /// Name below `/dev/mapper`.
    mapper: Option<String>,
}

impl Blocks {
    pub(super) fn read(system: &System) -> Result<Self, PciError> {
        let mut by_name = BTreeMap::new();
        let mut slaves = Vec::new();
        let all = names(&system.sys.join("class/block"))?;
        for name in &all {
            let folder = system.block_folder(name);
            let entries = names(&folder)?;
            let mut block = Block {
                number: text(&folder.join("dev")),
                holders: names(&folder.join("holders"))?.into_iter().collect(),
                mapper: text(&folder.join("dm/name")),
                kind: kind(system, name),
                partitions: Vec::new(),
            };
            let partitions =
                entries.into_iter().filter(|entry| folder.join(entry).join("partition").exists());
            block.partitions = partitions.collect();
            for slave in names(&folder.join("slaves"))? {
                slaves.push((slave, name.clone()));
            }
            by_name.insert(name.clone(), block);
        }
        for (slave, holder) in slaves {
            by_name.entry(slave).or_insert_with(Block::default).holders.insert(holder);
        }
        let mut served = loops(system, &all);
        served.extend(nvmet(system)?);
        Ok(Self { by_name, members: members(system)?, served })
    }

    /// Returns the disks, their partitions, and all devices layered on them, from the bottom up.
    pub(super) fn above(&self, disks: &[&str]) -> Vec<String> {
        let mut tree: Vec<String> = disks.iter().map(|disk| (*disk).to_owned()).collect();
        let mut next = 0;
        while let Some(block) = tree.get(next) {
            next += 1;
            let Some(block) = self.by_name.get(block) else { continue };
            for above in block.partitions.iter().chain(&block.holders) {
                if !tree.contains(above) {
                    tree.push(above.clone());
                }
            }
        }
        tree
    }

    /// Returns true if a node of a mount or swap table, with its device number if known, is
    /// `device`.
    pub(super) fn is(&self, device: &str, number: Option<&str>, node: Option<&str>) -> bool {
        let Some(block) = self.by_name.get(device) else { return node == Some(device) };
        let same_number = number.is_some() && block.number.as_deref() == number;
        let same_name = node.is_some() && (node == Some(device) || block.mapper.as_deref() == node);
        same_number || same_name
    }

    /// Adds the users of the block devices of `tree`, or of `controllers` as a whole.
    pub(super) fn users(&self, tree: &[String], controllers: &[String], users: &mut Vec<User>) {
        for device in tree.iter().chain(controllers) {
            let holders = self.by_name.get(device).into_iter().flat_map(|block| &block.holders);
            users.extend(holders.map(|holder| {
                let kind = self.by_name.get(holder).and_then(|block| block.kind.clone());
                let kind = kind.unwrap_or_else(|| "a block device made of others".to_owned());
                User::Holder { device: device.clone(), holder: holder.clone(), kind }
            }));
            let members = self.members.iter().filter(|(member, _)| member == device);
            users
                .extend(members.map(|(_, kind)| User::Filesystem { device: device.clone(), kind }));
            let served = self.served.iter().filter(|(served, _)| served == device);
            users.extend(
                served.map(|(_, by)| User::Kernel { device: device.clone(), by: by.clone() }),
            );
        }
    }
}

/// Returns the kind of a block device that is layered on others.
fn kind(system: &System, name: &str) -> Option<String> {
    let folder = system.block_folder(name);
    if let Some(mapped) = text(&folder.join("dm/name")) {
        let uuid = text(&folder.join("dm/uuid")).unwrap_or_default();
        // The creator precedes the dash: LVM-..., CRYPT-LUKS2-..., mpath-...
        let what = match uuid.split('-').next() {
            Some("LVM") => "LVM volume",
            Some("CRYPT") => "encrypted volume",
            Some("mpath") => "multipath device",
            _ => "device-mapper volume",
        };
        return Some(format!("{what} {mapped}"));
    }
    if let Some(level) = text(&folder.join("md/level")) {
        return Some(format!("MD RAID, {level}"));
    }
    let made = folder.join("md").exists().then_some("MD RAID");
    let made = made.or_else(|| folder.join("bcache").exists().then_some("bcache"));
    made.map(str::to_owned)
}

/// Returns the members of filesystems that list them in sysfs, because a mount names at most one.
fn members(system: &System) -> Result<Vec<(String, &'static str)>, PciError> {
    let mut members = Vec::new();
    let btrfs = system.sys.join("fs/btrfs");
    for filesystem in names(&btrfs)? {
        for device in names(&btrfs.join(filesystem).join("devices"))? {
            members.push((device, "btrfs"));
        }
    }
    let bcachefs = system.sys.join("fs/bcachefs");
    for filesystem in names(&bcachefs)? {
        let folder = bcachefs.join(filesystem);
        for member in names(&folder)?.iter().filter(|name| name.starts_with("dev-")) {
            members.extend(link_name(&folder.join(member).join("block")).map(|d| (d, "bcachefs")));
        }
    }
    Ok(members)
}

/// Returns the devices below loop devices, which open them like a program, but no process shows
/// this.
fn loops(system: &System, all: &[String]) -> Vec<(String, String)> {
    let loops = all.iter().filter(|name| name.starts_with("loop"));
    loops
        .filter_map(|name| {
            let file = text(&system.block_folder(name).join("loop/backing_file"))?;
            Some((system.node_name(&file)?, format!("the loop device {name}")))
        })
        .collect()
}

/// Returns the namespaces of Linux nvmet, and the controllers that it passes commands to.
fn nvmet(system: &System) -> Result<Vec<(String, String)>, PciError> {
    let mut served = Vec::new();
    let subsystems = system.sys.join("kernel/config/nvmet/subsystems");
    for subsystem in names(&subsystems)? {
        let passthru = subsystems.join(&subsystem).join("passthru");
        if let Some(controller) = served_path(system, &passthru) {
            let by = format!("the kernel's NVMe target, as a whole by {subsystem}");
            served.push((controller, by));
        }
        let namespaces = subsystems.join(&subsystem).join("namespaces");
        for nsid in names(&namespaces)? {
            let device = served_path(system, &namespaces.join(&nsid));
            let by = format!("the kernel's NVMe target, namespace {nsid} of {subsystem}");
            served.extend(device.map(|device| (device, by)));
        }
    }
    Ok(served)
}

/// Returns the node that backs a part of Linux nvmet, if that is enabled.
fn served_path(system: &System, part: &Path) -> Option<String> {
    if text(&part.join("enable")).as_deref() != Some("1") {
        return None;
    }
    system.node_name(&text(&part.join("device_path"))?)
}
