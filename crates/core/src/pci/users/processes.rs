//! Programs that have device nodes open, by the links of `/proc/PID/fd`.

use std::collections::BTreeMap;
use std::fs;

use super::super::function::PciFunction;
use super::super::system::{PciError, System, names, text};
use super::User;

/// Which device nodes are open.
#[derive(Debug)]
pub(super) struct Processes {
    /// By the node's path below `/dev`: process ID and name.
    open: BTreeMap<String, Vec<(u32, String)>>,
    /// There are processes that could not be looked into.
    pub(super) unseen: bool,
    /// Nodes of a function that is bound for user space, by the function's address.
    system: System,
}

impl Processes {
    pub(super) fn read(system: &System) -> Result<Self, PciError> {
        let mut all = Self { open: BTreeMap::new(), unseen: false, system: system.clone() };
        for process in names(&system.proc)? {
            let Ok(pid) = process.parse::<u32>() else { continue };
            if pid == std::process::id() {
                continue;
            }
            all.add(pid);
        }
        Ok(all)
    }

    fn add(&mut self, pid: u32) {
        let folder = self.system.proc.join(pid.to_string());
        let files = match fs::read_dir(folder.join("fd")) {
            Ok(files) => files,
            Err(error) => {
                // One that has ended meanwhile is none.
                self.unseen |= error.kind() == std::io::ErrorKind::PermissionDenied;
                return;
            }
        };
        let links = files.flatten().filter_map(|file| fs::read_link(file.path()).ok());
        let mut nodes: Vec<String> = links
            .filter_map(|link| Some(link.to_str()?.strip_prefix("/dev/")?.to_owned()))
            .collect();
        nodes.sort_unstable();
        nodes.dedup();
        for node in nodes {
            let command = text(&folder.join("comm")).unwrap_or_else(|| "?".to_owned());
            self.open.entry(node).or_default().push((pid, command));
        }
    }

    pub(super) fn users(&self, function: &PciFunction, tree: &[String], users: &mut Vec<User>) {
        let nodes = tree.iter().cloned().chain(self.nodes(function));
        for node in nodes {
            let Some(processes) = self.open.get(&node) else { continue };
            users.extend(processes.iter().map(|(pid, command)| User::Process {
                pid: *pid,
                command: command.clone(),
                node: node.clone(),
            }));
        }
    }

    /// The nodes of a function that are no block devices.
    fn nodes(&self, function: &PciFunction) -> Vec<String> {
        let mut nodes = Vec::new();
        if let Some(controller) = &function.controller {
            nodes.push(controller.name.clone());
            let generic = controller.namespaces.iter().map(|ns| ns.name.replacen("nvme", "ng", 1));
            nodes.extend(generic);
        }
        if function.driver.as_deref() == Some("vfio-pci") {
            nodes.extend(function.iommu_group.map(|group| format!("vfio/{group}")));
        }
        let folder = self.system.function_folder(function.address);
        // A folder that is not there has no names.
        let devices = names(&folder.join("vfio-dev")).unwrap_or_default();
        nodes.extend(devices.iter().map(|device| format!("vfio/devices/{device}")));
        nodes.extend(names(&folder.join("uio")).unwrap_or_default());
        nodes
    }
}
