//! Reader of SPDK's block devices.
//!
//! | file | contents |
//! |---|---|
//! | `media` | memory, files and drives |
//! | `layers` | devices on other devices |

mod layers;
mod media;

use std::collections::{BTreeMap, BTreeSet};

use super::identity::BdevUuid;
use super::keys::bdev as keys;
use super::{RpcCall, note_call};
use crate::DiskProperties;
use crate::config_builder::{ConfigBuilder, DeviceBackend, NamespaceLimit};
use crate::json::ImportError;
use crate::note::Notes;

/// Maximum bytes of a device.
const SIZE_MAX: u64 = i64::MAX.unsigned_abs() / 2;
/// Maximum limits that are converted: I/Os per second, and MiB per second.
const IOPS_MAX: u64 = 1_000_000_000;
const MEBIBYTES_MAX: u64 = 1_000_000;

/// A block device with SPDK's name.
#[derive(Debug, Clone)]
pub(super) struct Bdev {
    /// Name of the device in the new config.
    pub(super) device: String,
    /// Size in bytes, if the config or the machine has it.
    size: Option<u64>,
    /// Bytes of a block, if the config or the machine has it.
    block_size: Option<u32>,
    pub(super) uuid: BdevUuid,
}

/// A drive with SPDK's own driver. Its namespaces become devices when something uses them.
#[derive(Debug, Clone)]
struct Drive {
    pci: String,
}

/// Rate limit of all users of a block device together.
#[derive(Debug, Clone, Default)]
struct Quota {
    /// The last call that set it.
    path: String,
    limit: NamespaceLimit,
    /// Number of namespaces that have it.
    namespaces: usize,
}

/// The block devices so far.
pub(super) struct Bdevs<'d> {
    disks: &'d dyn DiskProperties,
    bdevs: BTreeMap<String, Bdev>,
    drives: BTreeMap<String, Drive>,
    /// Names of all devices, also of those that were skipped.
    names: BTreeSet<String>,
    /// Timeout of commands from `bdev_nvme_set_options`.
    timeout: Option<String>,
    /// Limits by SPDK's name.
    quotas: BTreeMap<String, Quota>,
}

impl std::fmt::Debug for Bdevs<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Bdevs").field("bdevs", &self.bdevs).finish_non_exhaustive()
    }
}

impl<'d> Bdevs<'d> {
    pub(super) fn new(disks: &'d dyn DiskProperties) -> Self {
        Self {
            disks,
            bdevs: BTreeMap::new(),
            drives: BTreeMap::new(),
            names: BTreeSet::new(),
            timeout: None,
            quotas: BTreeMap::new(),
        }
    }

    /// Executes calls. SPDK takes a call for a device on another one before that exists, so a call
    /// waits until its base exists.
    pub(super) fn calls(
        &mut self,
        builder: &mut ConfigBuilder,
        calls: Vec<RpcCall<'_>>,
        notes: &mut Notes,
    ) -> Result<(), ImportError> {
        let mut waiting: Vec<RpcCall<'_>> = Vec::new();
        for call in calls {
            waiting.push(call);
            while let Some(at) = waiting.iter().position(|call| self.has_bases(call)) {
                let ready = waiting.remove(at);
                self.call(builder, &ready, notes)?;
            }
        }
        // Each of these names the base that it lacks.
        waiting.iter().try_for_each(|call| self.call(builder, call, notes))
    }

    /// Returns true if all devices exist that the call builds on.
    fn has_bases(&self, call: &RpcCall<'_>) -> bool {
        let Some(params) = &call.params else { return true };
        let one = ["base_bdev", "base_bdev_name", "base_name"];
        let mut names: Vec<&str> =
            one.iter().filter_map(|key| params.peek(key)?.text().ok()).collect();
        if let Some(listed) = params.peek("base_bdevs")
            && let Ok(members) = layers::member_names(&listed)
        {
            names.extend(members.iter().map(|(_, name)| *name));
        }
        names.iter().all(|name| self.exists(name))
    }

    fn call(
        &mut self,
        builder: &mut ConfigBuilder,
        call: &RpcCall<'_>,
        notes: &mut Notes,
    ) -> Result<(), ImportError> {
        match call.method {
            "bdev_malloc_create" | "bdev_null_create" => self.memory(builder, call, notes),
            "bdev_aio_create" | "bdev_uring_create" => self.file(builder, call, notes),
            "bdev_nvme_attach_controller" => self.attach(call, notes),
            "bdev_nvme_set_options" => self.options(call, notes),
            "bdev_nvme_set_hotplug" => {
                call.params(keys::HOTPLUG)?.finish(notes);
                Ok(())
            }
            "bdev_raid_create" => self.raid(builder, call, notes),
            "bdev_split_create" => self.split(builder, call, notes),
            "bdev_delay_create" => self.delay(builder, call, notes),
            "bdev_passthru_create" | "bdev_error_create" => self.whole(builder, call, notes),
            "bdev_set_qos_limit" => self.limit(call, notes),
            _ => {
                note_call(keys::CALLS, call, "no such device here", notes);
                Ok(())
            }
        }
    }

    /// Stores a limit for the namespace of the device. Values that a call omits stay unchanged.
    fn limit(&mut self, call: &RpcCall<'_>, notes: &mut Notes) -> Result<(), ImportError> {
        let mut params = call.params(keys::LIMIT)?;
        let name = params.need("name")?.text()?;
        let name = self.canonical(name);
        let quota = self.quotas.entry(name).or_default();
        quota.path.clone_from(&call.path);
        if let Some(node) = params.get("rw_ios_per_sec") {
            quota.limit.iops = Some(node.number(0..=IOPS_MAX)?).filter(|iops| *iops > 0);
        }
        if let Some(node) = params.get("rw_mbytes_per_sec") {
            let mebibytes =
                Some(node.number(0..=MEBIBYTES_MAX)?).filter(|mebibytes| *mebibytes > 0);
            quota.limit.bandwidth = mebibytes.map(|mebibytes| {
                let bytes = mebibytes << 20;
                format!("{}.{:03}kB/s", bytes / 1000, bytes % 1000)
            });
        }
        for (key, way) in [("r_mbytes_per_sec", "reads"), ("w_mbytes_per_sec", "writes")] {
            let node = params.get(key);
            if let Some(node) = node.filter(|node| node.number(0..=0).is_err()) {
                let what = format!(
                    "a limit of {way} alone ({} MiB/s) has no counterpart: `limit` counts both directions \
                     together (docs/tenants.md)",
                    node.number(0..=MEBIBYTES_MAX)?
                );
                notes.unsupported(node.path(), what);
            }
        }
        params.finish(notes);
        Ok(())
    }

    /// Returns the limit of a namespace on this block device.
    pub(super) fn limit_of(&mut self, name: &str, path: &str, notes: &mut Notes) -> NamespaceLimit {
        let name = self.canonical(name);
        let Some(quota) = self.quotas.get_mut(&name) else { return NamespaceLimit::default() };
        quota.namespaces += 1;
        if quota.namespaces == 2 && !quota.limit.is_empty() {
            let what = format!(
                "the limit of block device \"{}\" is one for all its namespaces there; here each has it",
                name.escape_debug()
            );
            notes.converted(path, what);
        }
        quota.limit.clone()
    }

    /// Removes a namespace on this block device from those that have its limit.
    pub(super) fn release_limit(&mut self, name: &str) {
        let name = self.canonical(name);
        if let Some(quota) = self.quotas.get_mut(&name) {
            quota.namespaces = quota.namespaces.saturating_sub(1);
        }
    }

    /// Adds notes for limits that no namespace has.
    pub(super) fn finish(self, notes: &mut Notes) {
        for (name, quota) in self.quotas {
            if quota.namespaces == 0 && !quota.limit.is_empty() {
                let what = format!(
                    "no namespace is block device \"{}\" itself: only namespaces and hosts have \
                     limits here, not layered devices (docs/tenants.md)",
                    name.escape_debug()
                );
                notes.unsupported(&quota.path, what);
            }
        }
    }

    /// Returns the device of an SPDK name or UUID; `None`, with a note, if there is none.
    pub(super) fn find(
        &mut self,
        builder: &mut ConfigBuilder,
        path: &str,
        name: &str,
        notes: &mut Notes,
    ) -> Option<Bdev> {
        if let Some(bdev) = self.bdevs.get(&self.canonical(name)) {
            return Some(bdev.clone());
        }
        if let Some((pci, nsid)) = self.namespace_of_drive(name) {
            let (pci, io_timeout) = (pci.to_owned(), self.timeout.clone());
            let known = self.disks.drive_namespace(&pci, nsid);
            let device = builder.add_device(name, DeviceBackend::Nvme { pci, nsid, io_timeout });
            let bdev = Bdev {
                device,
                size: known.map(|known| known.size),
                block_size: known.map(|known| known.block_size),
                uuid: BdevUuid::OfDrive,
            };
            self.bdevs.insert(name.to_owned(), bdev.clone());
            return Some(bdev);
        }
        let what = format!(
            "block device \"{}\" is not created by this file, or was skipped; a GPT partition \
             (NAMEp1) or a logical volume comes from the data of its disk",
            name.escape_debug()
        );
        notes.unsupported(path, what);
        None
    }

    /// Returns true if a name or UUID has a device.
    fn exists(&self, name: &str) -> bool {
        self.bdevs.contains_key(&self.canonical(name)) || self.namespace_of_drive(name).is_some()
    }

    /// Returns the name of the device of which `name` is the UUID, or `name`.
    fn canonical(&self, name: &str) -> String {
        let uuid = name.to_ascii_lowercase();
        let of = |bdev: &Bdev| bdev.uuid.text().is_some_and(|text| text == uuid);
        match self.bdevs.iter().find(|(_, bdev)| of(bdev)) {
            Some((other, _)) if !self.bdevs.contains_key(name) => other.clone(),
            _ => name.to_owned(),
        }
    }

    /// Resolves names of the form `Nvme0n2`: namespace 2 of the drive attached as `Nvme0`.
    fn namespace_of_drive(&self, name: &str) -> Option<(&str, u64)> {
        let (controller, nsid) = name.rsplit_once('n')?;
        let drive = self.drives.get(controller)?;
        let nsid: u64 = nsid.parse().ok().filter(|nsid| *nsid >= 1 && *nsid < u32::MAX.into())?;
        Some((&drive.pci, nsid))
    }

    /// Takes a name for a device. Returns true, with a note, if a device has it, also one that was
    /// skipped: its data is not that of a later device.
    fn is_taken(&mut self, call: &RpcCall<'_>, name: &str, notes: &mut Notes) -> bool {
        let is_taken = !self.names.insert(name.to_owned()) || self.exists(name);
        if is_taken {
            let what = format!("there is a block device \"{}\" already", name.escape_debug());
            notes.unsupported(&call.path, what);
        }
        is_taken
    }

    fn add(&mut self, name: &str, bdev: Bdev) {
        self.bdevs.insert(name.to_owned(), bdev);
    }
}
