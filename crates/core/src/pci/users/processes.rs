//! Programs with open device nodes, by the targets of the links in `/proc/PID/fd`.
//!
//! A node is identified by its number, so it is found under any name and path. A program may have
//! it open under a private name, in another mount namespace, or after it was removed. If sysfs does
//! not report the number, the name below `/dev` is compared.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::Path;

use super::super::function::PciFunction;
use super::super::node::{NodeId, NodeKind};
use super::super::system::{PciError, System, names, text};
use super::user::User;

/// Open device nodes of all processes.
#[derive(Debug)]
pub(super) struct Processes {
    open: BTreeMap<Key, Openers>,
    /// True if some files could not be examined.
    pub(super) unseen: bool,
    system: System,
}

/// Process IDs and names.
type Openers = BTreeMap<u32, String>;

/// Identity of an open node.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Key {
    /// Its number.
    Number(NodeId),
    /// Its path below `/dev`.
    Name(String),
}

/// A device node of a function.
struct Node {
    /// Path below `/dev`.
    name: String,
    /// Number, as sysfs reports it.
    number: Option<NodeId>,
}

impl Processes {
    pub(super) fn read(system: &System) -> Result<Self, PciError> {
        let mut all = Self { open: BTreeMap::new(), unseen: false, system: system.clone() };
        for process in names(&system.proc)? {
            let Ok(pid) = process.parse::<u32>() else { continue };
            if pid == std::process::id() {
                continue;
            }
            if let Err(error) = all.add(pid) {
                all.missed(&error);
            }
        }
        Ok(all)
    }

    fn add(&mut self, pid: u32) -> io::Result<()> {
        let folder = self.system.proc.join(pid.to_string());
        let mut command = None;
        for file in fs::read_dir(folder.join("fd"))? {
            let keys = match file.and_then(|file| self.keys(&file.path())) {
                Ok(keys) => keys,
                Err(error) => {
                    self.missed(&error);
                    continue;
                }
            };
            for key in keys {
                let command = command.get_or_insert_with(|| {
                    text(&folder.join("comm")).unwrap_or_else(|| "?".to_owned())
                });
                self.open.entry(key).or_default().insert(pid, command.clone());
            }
        }
        Ok(())
    }

    /// Returns the identities of an open file that may be a device node.
    fn keys(&self, link: &Path) -> io::Result<Vec<Key>> {
        let target = fs::read_link(link)?;
        // Sockets, pipes and similar files have no path.
        if !target.is_absolute() {
            return Ok(Vec::new());
        }
        let name = target.to_str().and_then(|path| path.strip_prefix("/dev/"));
        let mut keys: Vec<Key> = name.map(|name| Key::Name(name.to_owned())).into_iter().collect();
        keys.extend((self.system.node)(link)?.map(Key::Number));
        Ok(keys)
    }

    /// Records a failed read, unless the process has ended or the file was closed.
    fn missed(&mut self, error: &io::Error) {
        let is_over =
            error.kind() == io::ErrorKind::NotFound || error.raw_os_error() == Some(libc::ESRCH);
        self.unseen |= !is_over;
    }

    /// Adds the processes that have a node of `functions`, or of their block devices, open.
    pub(super) fn users(&self, functions: &[&PciFunction], tree: &[String], users: &mut Vec<User>) {
        let blocks = tree.iter().map(|name| {
            let folder = self.system.block_folder(name);
            Node { name: name.clone(), number: number(&folder, NodeKind::Block) }
        });
        let others = functions.iter().flat_map(|function| self.nodes(function));
        for node in blocks.chain(others) {
            let mut openers = Openers::new();
            let keys = [Some(Key::Name(node.name.clone())), node.number.map(Key::Number)];
            for found in keys.iter().flatten().filter_map(|key| self.open.get(key)) {
                openers.extend(found.iter().map(|(pid, command)| (*pid, command.clone())));
            }
            users.extend(openers.into_iter().map(|(pid, command)| User::Process {
                pid,
                command,
                node: node.name.clone(),
            }));
        }
    }

    /// Returns the nodes of a function except block devices.
    fn nodes(&self, function: &PciFunction) -> Vec<Node> {
        let classes = self.system.sys.join("class");
        let folder = self.system.function_folder(function.address);
        let node = |name: String, folder: &Path| Node {
            name,
            number: number(folder, NodeKind::Character),
        };
        let mut nodes = Vec::new();
        if let Some(controller) = &function.controller {
            let name = controller.name.clone();
            nodes.push(node(name.clone(), &classes.join("nvme").join(name)));
            for namespace in &controller.namespaces {
                let name = namespace.name.replacen("nvme", "ng", 1);
                nodes.push(node(name.clone(), &classes.join("nvme-generic").join(name)));
            }
        }
        if function.driver.as_deref() == Some("vfio-pci")
            && let Some(group) = function.iommu_group
        {
            nodes
                .push(node(format!("vfio/{group}"), &classes.join("vfio").join(group.to_string())));
        }
        // A missing folder has no names.
        let below = |folder: &Path| names(folder).unwrap_or_default();
        for (class, place) in [("vfio-dev", "vfio/devices/"), ("uio", "")] {
            let class = folder.join(class);
            for device in below(&class) {
                nodes.push(node(format!("{place}{device}"), &class.join(&device)));
            }
        }
        nodes
    }
}

/// Returns the node number of a device, by its sysfs folder.
fn number(folder: &Path, kind: NodeKind) -> Option<NodeId> {
    NodeId::parse(kind, &text(&folder.join("dev"))?)
}
